"""`fedfade channel`: draw fading, look at it, bring in somebody else's."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfade.commands import options
from fedfade.config import load_config
from fedfade.errors import not_allowed
from fedfade.storage import save_figure, write_npz
from fedfade.wording import counted

_SUBBAND_GAIN = "where a file keeps both: centre or average"
_AXES = "what the coefficients' axes are, of drop (repeatable), path, slot, antenna: drop,path"
_papers = partial(typer.Option, show_default="the paper's")

_HELP = "Draw, look at and import channel gains; look at a link."
app = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)


@app.command()
def sample(
    out: Annotated[Path, typer.Option(help="the .npz to write")],
    clusters: Annotated[int | None, _papers(help="clusters (radio.clusters)")] = None,
    drops: Annotated[int, typer.Option(min=1, max=200_000, help="independent drops")] = 600,
    seed: Annotated[int, typer.Option(min=0, help="seed")] = 0,
    carrier_ghz: Annotated[float | None, _papers(help="carrier in GHz")] = None,
    speed: Annotated[float | None, _papers(help="client speed in m/s")] = None,
    subband_gain: options.GainOption = None,
    threads: options.ThreadsOption = None,
    overrides: options.SetOption = None,
) -> None:
    """Draw independent drops of fading and write them as traces."""
    from fedfade.radio import sample_drops

    options.check_output("--out", out, ".npz")
    options.use_threads(threads)
    carrier_hz = None if carrier_ghz is None else carrier_ghz * 1e9
    others = {"radio.carrier_hz": carrier_hz, "radio.speed_mps": speed}
    given = {"clusters": clusters, "subband_gain": subband_gain}
    asked = options.with_fields(overrides, others, **given)
    config = load_config("paper", ["cell.mobility=redraw", *asked])
    options.tell_idle("paper", config)
    write_npz(out, sample_drops(config.radio, config.cell, drops, seed))
    options.echo(f"{_size(drops, config.radio.slots, config.radio.subbands)}: {out}")


@app.command()
def show(
    files: Annotated[list[Path], typer.Argument(help="one .npz of gains, or two to compare")],
    out: Annotated[Path, typer.Option(help="the picture to write (.png, .pdf or .svg)")],
    subband_gain: Annotated[str, typer.Option(help=_SUBBAND_GAIN)] = "centre",
    drop: Annotated[int, typer.Option(min=0, help="drop shown over time")] = 0,
) -> None:
    """Picture and table of recorded gains; two files side by side."""
    from fedfade.radio import RAYLEIGH, gain_statistics, read_recording
    from fedfade.radio.channel_figure import channel_figure

    if len(files) > 2:
        raise not_allowed("FILES", len(files), "one file, or two to compare")
    if subband_gain not in ("centre", "average"):
        raise not_allowed("--subband-gain", subband_gain, "one of 'centre' or 'average'")
    options.check_output("--out", out, *options.PICTURES)
    recordings = [read_recording(file, subband_gain == "average") for file in files]
    fewest = min(len(recording.gain) for recording in recordings)
    if drop >= fewest:
        raise not_allowed("--drop", drop, f"between 0 and {fewest - 1}")
    _print_statistics(
        [*(recording.name for recording in recordings), "Rayleigh"],
        [*(str(len(recording.gain)) for recording in recordings), ""],
        [*(gain_statistics(recording.gain) for recording in recordings), RAYLEIGH],
    )
    save_figure(channel_figure(recordings, drop), out)
    options.echo(f"picture: {out}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help=".mat or .npz with coefficients and delays")],
    out: Annotated[Path | None, typer.Option(help="the .npz to write [FILE.traces.npz]")] = None,
    axes: Annotated[str | None, typer.Option(help=_AXES)] = None,
    subband_gain: options.GainOption = None,
    overrides: options.SetOption = None,
) -> None:
    """Turn impulse responses [drop, path, slot] into traces for `radio.source: traces`."""
    from fedfade.radio import import_drops

    out = out or file.with_suffix(".traces.npz")
    options.check_output("--out", out, ".npz")
    changes = options.with_fields(overrides, subband_gain=subband_gain)
    told = [change.partition("=")[0].strip().removeprefix("radio.") for change in changes]
    arrays = import_drops(file, load_config("paper", changes).radio, told, axes)
    write_npz(out, arrays)
    drops, slots, bands = arrays["small_scale_gain"].shape
    options.echo(f"{_size(drops, slots, bands)}: {out}")


@app.command()
def link(
    out: Annotated[Path, typer.Option(help="the picture to write (.png, .pdf or .svg)")],
    preset: Annotated[str, typer.Argument(help="preset name or path of a .yaml file")] = "paper-nr",
    overrides: options.SetOption = None,
) -> None:
    """Picture and table of what a link carries, beside Shannon's and the capped one."""
    import torch

    from fedfade.uplink.figures import link_figure, link_rates, scenarios

    options.check_output("--out", out, *options.PICTURES)
    config = load_config(preset, overrides or [])
    options.tell_idle(preset, config)
    links, snr_db = scenarios(config), torch.arange(-5.0, 31.0, 5.0)
    table = Table(box=None, header_style="bold")
    for name in ("SNR (dB)", *links, *(f"{name}, fading" for name in links)):
        table.add_column(name, justify="right", overflow="fold")
    rates = zip(*(link_rates(scenario, snr_db) for scenario in links.values()), strict=True)
    columns = torch.stack([column for kind in rates for column in kind], -1)
    for level, row in zip(snr_db.tolist(), columns.tolist(), strict=True):
        table.add_row(f"{level:.0f}", *(f"{value:.2f}" for value in row))
    options.PlainConsole().print(table)
    save_figure(link_figure(links), out)
    options.echo(f"picture: {out}")


def _size(drops: int, slots: int, bands: int) -> str:
    return f"{counted(drops, 'drop')} of {counted(slots, 'slot')} x {counted(bands, 'sub-band')}"


def _print_statistics(names: Sequence[str], drops: Sequence[str], sets: Sequence[Any]) -> None:
    """A column for each set of `GainStatistics`, empty where it lacks a value."""
    table = Table(box=None, header_style="bold")
    table.add_column("statistic", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    table.add_row("drops", *drops)
    table.add_row("mean power", *(f"{one.mean:.3f}" for one in sets))
    table.add_row("std (dB)", *(f"{one.std_db:.2f}" for one in sets))
    for name, label, unit, digits in (
        ("percentiles_db", "{} % below (dB)", "", 2),
        ("autocorrelation", "correlation, {} apart", "slot", 3),
        ("band_correlation", "correlation, {} apart", "sub-band", 3),
    ):
        columns: list[dict[int, float]] = [getattr(one, name) for one in sets]
        for key in sorted(set[int]().union(*columns)):
            values = (f"{column[key]:.{digits}f}" if key in column else "" for column in columns)
            table.add_row(label.format(counted(key, unit) if unit else key), *values)
    options.PlainConsole().print(table)
