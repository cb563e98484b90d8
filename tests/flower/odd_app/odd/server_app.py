"""FedAvg behind an uplink on which nobody may send in the second round."""

from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedfade.allocation import Action, View, full_power, load_policy
from fedfade.flower import FederatedTask, WirelessStrategy
from fedfade.storage import write_json

app = ServerApp()


class QuietInTheMiddle:
    """Max sum rate, except in the second round."""

    name, scope, gradient_aware = "quiet-in-the-middle", "central", False

    def __init__(self) -> None:
        self._usual = load_policy("max-sum-rate")

    def begin(self, view: View) -> None:
        self._usual.begin(view)

    def act(self, view: View, memory: None) -> Action:
        if int(view.round_index[0]) == 1:
            return full_power(view, torch.full_like(view.active, -1, dtype=torch.int64))
        return self._usual.act(view, memory)


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    task = FederatedTask.from_run_config(settings)
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=3)
    strategy = WirelessStrategy(inner, task.config, QuietInTheMiddle())
    result = strategy.start(
        grid,
        task.initial_arrays(),
        num_rounds=3,
        timeout=float(settings["timeout-s"]),
        evaluate_fn=task.evaluate,
    )
    tested = result.evaluate_metrics_serverapp
    write_json(
        Path(str(settings["folder"])) / "history.json",
        {
            "rounds": [report._asdict() for report in strategy.history],
            "loss": [tested[number]["loss"] for number in sorted(tested)],
        },
    )
