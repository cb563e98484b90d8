"""`fedfade compare`: which policy gives the best model? `replay`, `report`: to look at it again.
`verify`: does it still come out the same?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfade.commands import options
from fedfade.config import Config, load_config, preset_names
from fedfade.errors import not_allowed
from fedfade.interrupts import interrupts_held

_POLICIES = "comma-separated policies: of those above, or module:factory"
_FITTING = "the preset's, and trained ones that fit"
_CHECKPOINT = "folder of fedfade train; adds its agents as qmix (repeatable)"
_OUT = "run folder; continued if it has begun, and grown if policies, seeds or rounds are new"
_OWN = "runs/compare-PRESET, and what was changed in it"
_POLICY = "policy to show, one of the run's; a second goes beside it"
_SEED = "seed of the run; its first if not given"
_ROUND = "page to watch it on, .html; picture, .png .pdf or .svg; in motion, .gif"
_FOLDERS = "folders of fedfade compare, train or sweep, or agents that come with the package"
_ITS_OWN = "report.html, in the run folder if there is one"
_OVERWRITE = "start anew if the folder holds a run"
_AGAIN = "rounds to run again; for a training: batches of episodes"
_SHOWN = 5  # differences


def compare(
    preset: options.PresetArgument,
    policies: Annotated[str | None, typer.Option(help=_POLICIES, show_default=_FITTING)] = None,
    seed: Annotated[int | None, options.field(help="first seed")] = None,
    seeds: options.SeedsOption = None,
    rounds: options.RoundsOption = None,
    out: Annotated[Path | None, typer.Option(help=_OUT, show_default=_OWN)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help=_OVERWRITE)] = False,
    checkpoint: Annotated[list[Path] | None, typer.Option(help=_CHECKPOINT)] = None,
    device: options.DeviceOption = None,
    precision: options.PrecisionOption = None,
    threads: options.ThreadsOption = None,
    data_dir: options.DataDirOption = None,
    overrides: options.SetOption = None,
) -> None:
    """Run every policy on the same channel and data; write a report with pictures.

    Policies by what clients know when they decide (docs/reference/policies.md):

    \b
        local     random, max-individual-rate, block-fading-schedule,
                  wrap-around-schedule, wrap-around-choice, wrap-around-pairs,
                  progressive-schedule,
                  trained: mappo-hold, qmix, qmix-hold, qmix-plus, size-free
        feedback  block-fading-schedule-feedback, wrap-around-feedback,
                  wrap-around-age, deadline-feedback,
                  trained: size-free-feedback
        csi       csi-matching
        central   max-sum-rate, shortest-remaining-first, deadline-matching,
                  deadline-progress, wrap-around-innovation,
                  progressive-matching
        bounds    perfect, genie
    """
    from fedfade.device import pick_device
    from fedfade.experiments import RunFolder, batches, stored_rows, write_report
    from fedfade.experiments.findings import genie_line, left_out_lines, summary_table, verdict
    from fedfade.experiments.growth import growth
    from fedfade.experiments.run_folder import folder_name

    names = None if policies is None else [n.strip() for n in policies.split(",") if n.strip()]
    counts = {"seed": seed, "seeds": seeds, "rounds": rounds}
    where = {"device": device, "precision": precision, "data_dir": data_dir}
    agents = _folders(checkpoint or [])
    changes = options.with_fields(overrides, **counts, **where, policies=names, checkpoint=agents)
    config = asked = load_config(preset, changes)
    named = any(change.startswith("allocation.policies") for change in changes)
    if preset in preset_names() and not named:  # a file of the user's says what it wants
        changes = options.with_fields(changes, policies=_with_shipped(config))
    config = options.asked_config(preset, changes)
    options.use_threads(threads)
    chosen = pick_device(config.run.device)
    place = out or Path("runs") / f"compare-{folder_name(preset, asked, config)}"
    found = None if overwrite else growth(place, config)
    folder = RunFolder(place, found.there if found else config, chosen, keeps_models=True)
    # Whatever is refused is refused before a run is overwritten.
    prepared = next(batches([folder], chosen)) if overwrite else None
    with options.stopping_cleanly(f"the same command continues in {place}"), folder.open(overwrite):
        folder = _computed(folder, found, prepared, chosen)
        with interrupts_held():  # a finished run has a report
            rows = stored_rows(folder)
            record = folder.record
            report = write_report(place, folder.config, record, rows)
    summary = summary_table(rows, record.get("scopes", {}))
    _print_summary(summary, verdict(rows, config.learning.clients), genie_line(rows) or "")
    for line in left_out_lines(rows):
        options.say(line)
    options.echo(f"report: {report}")


def _computed(folder: Any, found: Any, prepared: Any, device: Any) -> Any:
    """An open `RunFolder`, with what was missing in it; `found`: its `Growth`."""
    from fedfade.experiments import RunFolder, batches
    from fedfade.experiments.growth import grow

    added = found.words() if found else ""
    if folder.finished and not added:
        options.say(f"already finished: {folder.path}")
        return folder
    for change in folder.changes():
        options.say(f"note: since the run began, {change}; its last bits may differ")
    if not folder.finished:
        batch = prepared or next(batches([folder], device))
        options.say(batch.comparisons[0].uplink.outlook())
        options.say(batch.plan)
        try:
            with options.time_left("rounds", folder.config.run.rounds) as tell:
                batch.run(tell)
        except KeyboardInterrupt:
            if added or not folder.finished:
                raise
    if not added:
        return folder
    options.say(f"adding to {folder.path}: {added}")
    with options.time_left("rounds", sum(block.run.rounds for block in found.blocks())) as tell:
        grow(folder, found, device, tell, options.say)
    return RunFolder(folder.path, found.whole, device)


def _folders(asked: Sequence[Path]) -> Path | list[Path] | None:
    """One training, or several: those of all seeds of a folder, and of all folders."""
    from fedfade.agents.checkpoint import trained_folders

    found = [place for folder in asked for place in trained_folders(folder)]
    return found if len(found) > 1 else next(iter(found), None)


def _with_shipped(config: Config) -> list[str]:
    """Whoever names no policies sees the agents that come with the package as well."""
    from fedfade.agents import shipped_policies, shipped_policies_for

    names, fitting = list(config.allocation.policies), shipped_policies_for(config)
    if missing := [name for name in shipped_policies() if name not in fitting]:
        options.say(f"left out, being trained for another scenario: {', '.join(missing)}")
    return names + [name for name in fitting if name not in names]


def _print_summary(summary: Sequence[Sequence[str]], *sentences: str) -> None:
    """A table, names to the left and numbers to the right, and what follows from it."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    headings, *lines = summary
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < 2 else "right", no_wrap=place > 0)
    for line in lines:
        table.add_row(*line)
    console = options.console_of_width(110)
    console.print(table)
    console.print(*sentences, highlight=False)


def replay(
    folder: Annotated[Path, typer.Argument(help="run folder of fedfade compare")],
    policy: Annotated[list[str], typer.Option(help=_POLICY)],
    seed: Annotated[int | None, typer.Option(help=_SEED)] = None,
    round_number: Annotated[int, typer.Option("--round", help="round, counted from 0")] = 0,
    out: Annotated[Path, typer.Option(help=_ROUND)] = Path("round.png"),
    threads: options.ThreadsOption = None,
) -> None:
    """Show who was on which sub-band at which power, and whose bits ran out in time."""
    from fedfade.experiments.replay import replayed
    from fedfade.experiments.round_figures import save_round

    options.check_output("--out", out, *options.PICTURES, ".gif", ".html")
    if len(policy) > 2:
        raise not_allowed("--policy", ", ".join(policy), "one policy or two")
    options.use_threads(threads)
    save_round(replayed(folder, policy, seed, round_number), out)
    options.echo(f"{'page' if out.suffix.lower() == '.html' else 'picture'}: {out}")


def report(
    folders: Annotated[list[Path], typer.Argument(help=_FOLDERS)],
    out: Annotated[Path | None, typer.Option(help="page, .html", show_default=_ITS_OWN)] = None,
) -> None:
    """Write one page of comparisons, sweeps, trainings and checkpoints; that of one run anew."""
    from fedfade.experiments.report import write_joint_report

    options.check_output("--out", out, ".html")
    options.echo(f"report: {write_joint_report(folders, out)}")


def verify(
    folder: Annotated[Path, typer.Argument(help="folder of fedfade compare or fedfade train")],
    rounds: Annotated[int, typer.Option(min=1, help=_AGAIN)] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    threads: Annotated[int | None, options.threads_option(show_default="the run's")] = None,
    data_dir: options.DataDirOption = None,
) -> None:
    """Run the first rounds again from the stored configuration; exit code 1 if a number differs."""
    from fedfade.device import pick_device
    from fedfade.experiments import verification

    if device not in ("auto", "cpu", "cuda"):
        raise not_allowed("--device", device, "auto, cpu or cuda")
    total = min(rounds, verification.stored_steps(folder))
    if threads is None:
        options.use_threads(None)  # where the folder does not say
    with options.running("steps", total, "nothing was changed") as tell:
        found = verification.verify(folder, total, pick_device(device), tell, data_dir, threads)
    for note in found.notes:
        options.say(f"note: {note}")
    scope = f"{found.again} of {found.stored} {found.what} run again, {found.numbers} numbers"
    if not found.differences:
        options.echo(f"same: {scope}, all equal to the last bit.")
        return
    options.echo(f"different: {scope}, {len(found.differences)} differ.")
    for line in found.differences[:_SHOWN]:
        options.echo(f"  {line}")
    raise typer.Exit(1)
