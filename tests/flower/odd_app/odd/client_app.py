"""Partition 2 sends NaN in round 1; partition 1 hangs in round 3 until somebody kills it."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp

from fedfade.flower import FederatedTask, UplinkMod

app = ClientApp(mods=[UplinkMod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    client = context.node_config["partition-id"]
    number = message.content["config"]["server-round"]
    if (client, number) == (1, 3):
        Path(str(context.run_config["folder"]), "hanging").touch()
        time.sleep(600)
    reply = FederatedTask.from_run_config(context.run_config).train(message, context)
    if (client, number) == (2, 1):
        record = reply.content["arrays"]
        name = next(iter(record))
        record[name] = Array(np.full_like(record[name].numpy(), np.nan))
    return reply
