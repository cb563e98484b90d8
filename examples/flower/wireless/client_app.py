"""The clients: local training, and the mod that speaks with the uplink."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfade.flower import FederatedTask, UplinkMod

app = ClientApp(mods=[UplinkMod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Mini-batch steps on this client's own samples."""
    return FederatedTask.from_run_config(context.run_config).train(message, context)
