"""`fedfade train`: train QMIX agents on the uplink. `fedfade export`: for other devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfade.commands import options
from fedfade.config import Config
from fedfade.interrupts import interrupts_held
from fedfade.storage import save_figure
from fedfade.wording import counted

MIXER_NAMES = {"qmix": "QMIX", "qplex": "QPLEX", "vdn": "VDN", "independent": "independent agents"}
"""What a training is called, by its `qmix.mixer`."""

_SEEDS = "policies trained side by side, from seed on"
_GRADIENTS = "learning, synthetic, or a recording (.npz)"
_OUT = "folder of the training; continued if it has begun"
_OWN = "runs/train-PRESET, and what was changed in it"
_OVERWRITE = "start anew if the folder holds a training"
_AGENTS = "folder of a training, or agents that come along, such as qmix-plus"


def train(
    preset: options.PresetArgument,
    out: Annotated[Path | None, typer.Option(help=_OUT, show_default=_OWN)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help=_OVERWRITE)] = False,
    episodes: Annotated[int | None, options.field(help="training episodes")] = None,
    seed: Annotated[int | None, options.field(help="seed")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help=_SEEDS)] = 1,
    gradients: Annotated[str | None, options.field(help=_GRADIENTS)] = None,
    device: options.DeviceOption = None,
    precision: options.PrecisionOption = None,
    threads: options.ThreadsOption = None,
    data_dir: options.DataDirOption = None,
    overrides: options.SetOption = None,
) -> None:
    """Train agents; interrupted anywhere, the same command continues to the same result."""
    from fedfade import agents
    from fedfade.agents import each_seed, is_trained, train_together
    from fedfade.agents.live import PAGE

    how = {"data_dir": data_dir, "gradients": gradients, "device": device, "precision": precision}
    config = options.asked_config(preset, overrides, episodes=episodes, seed=seed, **how)
    out = out or _default_folder(preset, config, seeds)
    options.use_threads(threads)
    side_by_side = config.qmix.parallel_episodes
    total = -(-config.qmix.episodes // side_by_side) * side_by_side  # whole batches are played
    unit = "episodes" if total == config.qmix.episodes else f"episodes: batches of {side_by_side}"
    numbers = range(config.run.seed, config.run.seed + seeds)
    configs, folders = each_seed(config, out, numbers)
    begun = False
    with options.running(unit, total, f"the same command continues in {out}") as progress:

        def begin() -> None:
            nonlocal begun
            if not begun:
                options.say(_outlook(config))
                options.say(f"to follow the training, open {out / PAGE} in a browser")
                if not agents.tensorboard_installed():
                    options.say("no TensorBoard files: pip install 'fedfade[tensorboard]' for them")
            begun = True

        def tell(_: object, reports: Sequence[Any]) -> None:
            uploads = sum(report.uploads for report in reports) / len(reports)
            progress(reports[0].episodes, f"{uploads:.2f} uploads")

        try:
            trainer = train_together(configs, folders, tell, None, overwrite, begin)
        except KeyboardInterrupt:
            if not all(map(is_trained, configs, folders)):
                raise
            trainer = train_together(configs, folders)  # in the last batch: nothing is left to do
    if not begun:
        options.say(f"already finished: {out}")
    _tell_ends(config, out, folders, trainer.learned, f"{_trained(config)} on {Path(preset).stem}")


def _trained(config: Config) -> str:
    return "MAPPO" if config.qmix.algorithm == "mappo" else MIXER_NAMES[config.qmix.mixer]


def _tell_ends(
    config: Config, out: Path, folders: Sequence[Path], learned: int, title: str
) -> None:
    """How trainings ended: a line each, a page, curves."""
    from fedfade.agents import saved_curve
    from fedfade.agents.live import write_training_page

    curves = [saved_curve(folder) for folder in folders]
    clients = config.learning.clients
    for folder, curve in zip(folders, curves, strict=True):
        last = curve[-max(1, len(curve) // 20) :]
        uploads = sum(report.uploads for report in last) / len(last)
        which = "" if folder == out else f"{folder.name}: "
        recent = counted(len(last) * config.qmix.parallel_episodes, "episode")
        options.echo(
            f"{which}{counted(curve[-1].episodes, 'episode')}, "
            f"{counted(learned, 'update')}; uploads per round in the last {recent}: "
            f"{uploads:.2f} of {clients}"
        )
    page = write_training_page(out, config, curves, title)
    options.echo(f"page: {page}")
    pictures = [([curve], folder) for folder, curve in zip(folders, curves, strict=True)]
    if [*folders] != [out]:
        pictures.append((curves, out))
    try:
        with interrupts_held():  # a finished training has its picture
            for shown, folder in pictures:
                _draw(shown, folder / "curve.png", clients, title)
        options.echo(f"curve: {out / 'curve.png'}")
    except ImportError:
        options.say("no curve.png: Matplotlib is not installed.")


def _outlook(config: Config) -> str:
    """How many clients a round has room for."""
    from fedfade.device import pick_device
    from fedfade.experiments import Uplink
    from fedfade.learning import payload_bits

    return Uplink(config, payload_bits(config.learning), pick_device("cpu")).outlook()


def _default_folder(preset: str, config: Config, seeds: int) -> Path:
    from fedfade.experiments.run_folder import folder_name

    several = f"-{seeds}-seeds" if seeds > 1 else ""
    return Path("runs") / f"train-{folder_name(preset, config, config)}{several}"


def _draw(curves: Sequence[Sequence[Any]], path: Path, clients: int, title: str) -> None:
    from fedfade.agents.curve import curve_figure

    save_figure(curve_figure(curves, clients, title), path)


def export(
    folder: Annotated[Path, typer.Argument(help=_AGENTS)],
    onnx: Annotated[Path, typer.Option(help="folder to write the ONNX files to")],
) -> None:
    """Write one small ONNX file per client and the normalisation of its inputs."""
    from fedfade.agents import agents_folder
    from fedfade.agents.export import decision_us, export_agents

    files = export_agents(agents_folder(folder), onnx)
    size = sum(path.stat().st_size for path in files) // len(files)
    speed = decision_us(files[0])
    if speed is not None:
        options.echo(f"one decision under ONNX Runtime: {speed:.0f} microseconds")
    clients = f"{counted(len(files), 'client')}, {size // 1024} KiB each"
    options.echo(f"{clients}, and normalisation.json: {onnx}")
