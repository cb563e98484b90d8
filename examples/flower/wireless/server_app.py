"""The server: FedAvg behind the uplink."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedfade.flower import FederatedTask, WirelessStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; accuracy and uplink metrics are logged after each."""
    settings = context.run_config
    task = FederatedTask.from_run_config(settings)
    strategy = WirelessStrategy(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=2),
        uplink=task.config,
        policy=str(settings["policy"]),
        decide=settings["decide"],
        answer_timeout_s=float(settings["timeout-s"]),
    )
    strategy.start(
        grid,
        task.initial_arrays(),
        num_rounds=int(settings["num-server-rounds"]),
        timeout=float(settings["timeout-s"]),
        evaluate_fn=task.evaluate,
    )
