"""Train agents on the small cell and count uploads on rounds they have not seen.

    python examples/small_cell.py --seeds 5 --out runs/small-cell

Each seed trains for about a minute and a half on one core. Prints uploads per round of the
agents beside exact max sum rate, the block-fading schedule and random, and draws the curves.
"""

import argparse
import sys
from pathlib import Path

import torch

from fedfade.agents import load_policy_checkpoint, train
from fedfade.agents.run import saved_curve
from fedfade.allocation import Policy, load_policy, play_round
from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.storage import save_figure
from fedfade.uplink import Rounds, gradient_source

UNSEEN = 1_000_000  # added to the seed: fading and gradients that were not trained on


def uploads(policy: Policy, config: Config, seed: int, batches: int = 20) -> float:
    """Mean clients delivered in 20 x 20 rounds, of channels that no `fedfade compare` plays."""
    rounds = Rounds(config, gradient_source(config), 20, [seed])
    total = 0.0
    for batch in range(batches):
        keys = torch.arange(20) + 20 * batch
        outcome = play_round(policy, rounds.scenario, rounds.round(batch), keys)
        total += float(outcome.delivered.sum(-1).float().mean())
    return total / batches


def main() -> None:
    """Train, count, draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--out", type=Path, default=Path("runs/small-cell"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="e.g. qmix.mixer=vdn")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    names = ("random", "max-sum-rate", "block-fading-schedule")
    print("seed    qmix", *names, sep="  ")  # noqa: T201
    curves = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        config = load_config("small-cell", [f"run.seed={seed}", "run.device=cpu", *arguments.set])
        folder = arguments.out / f"seed-{seed}"
        train(config, folder)
        policies = [load_policy_checkpoint(folder, config), *map(load_policy, names)]
        counts = [uploads(policy, config, UNSEEN + seed) for policy in policies]
        print(f"{seed:4d}", *(f"{count:6.2f}" for count in counts), sep="  ", flush=True)  # noqa: T201
        curves.append(saved_curve(folder))
    draw(curves, arguments.out / "curves.png")


def draw(curves: list, path: Path) -> None:
    """The trainings in one picture, that of `fedfade train`."""
    from fedfade.agents.curve import curve_figure

    save_figure(curve_figure(curves, 4, "QMIX on small-cell"), path)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
