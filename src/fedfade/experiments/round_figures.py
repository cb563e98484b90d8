"""One round, slot by slot: a picture of it, and the same in motion."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedfade.experiments.replay import ReplayedRound, round_part, shares_left
from fedfade.pages import page_html, png_source
from fedfade.shown import drawn
from fedfade.storage import save_figure, write_text, writing
from fedfade.style import blank, shade, tidy
from fedfade.wording import counted

_FRAMES, _FRAME_MS, _END_MS = 50, 100, 2500


def round_figure(replay: ReplayedRound, in_motion: bool = False) -> Figure:
    """One round, slot by slot: who is on which sub-band at which power, and what is left.

    A column per policy. Top: a lane per sub-band, one colour per client, height = power level;
    collisions in grey hatching. Below: each client's remaining bits; for motion, the cell too.
    """
    scenario, columns, power_w = replay.scenario, len(replay.plays), replay.scenario.power_w.cpu()
    heights = [max(1.2, 0.5 * scenario.bands), 2.2] + [3.0] * in_motion
    width, height = 11 if columns == 1 else 7.5 * columns, 2.4 + 1.08 * sum(heights[:2])
    figure: Figure = blank(width, height + 2.6 * in_motion)
    panels: Any = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for (name, play), (lanes, progress, *cell) in zip(replay.plays.items(), panels.T, strict=True):
        power = power_w[play.level.cpu()].numpy()  # [slot, client]
        band, levels = play.band.numpy(force=True), np.unique(power_w.numpy())
        _draw_lanes(lanes, band, power, levels, scenario.bands)
        lanes.set_title(f"{drawn(name)}, {replay.name}", loc="left")
        lanes.sharex(progress)
        lanes.tick_params(labelbottom=False)
        left = shares_left(play, scenario).numpy(force=True)
        _draw_progress(progress, left, replay.snr_db)
        for axes in cell:
            _draw_cell(axes, replay)
        if not in_motion:
            text = "(top: bar height = power, hatched = collision; dotted = did not finish)"
            count = f"{int((left[-1] <= 0).sum())} of {counted(scenario.clients, 'client')}"
            progress.set_title(f"{count} delivered {text}", loc="left", fontsize=10)
            progress.set_xlabel("slot")
    corner = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.05), "frameon": False, "fontsize": 8}
    many = 1 + (scenario.clients - 1) // 14
    panels[1, -1].legend(title="client (mean SNR)", ncols=many, **corner)
    return figure


def save_round(replay: ReplayedRound, path: Path) -> None:
    """As what its ending asks for: a page, a picture, or a picture in motion."""
    ending = path.suffix.lower()
    if ending == ".gif":
        save_motion(replay, path)
    elif ending == ".html":
        title = f"{' beside '.join(replay.plays)}, {replay.name}"
        round_figure(replay).savefig(file := io.BytesIO(), dpi=60, format="png")
        part = round_part(replay, title, png_source(file.getvalue()))
        write_text(path, page_html("One round, slot by slot", [part]))
    else:
        save_figure(round_figure(replay), path)


def save_motion(replay: ReplayedRound, path: Path) -> None:
    """The round as a GIF: what is to come is covered, who has delivered lights up on the map."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patches import Rectangle

    figure, plays = round_figure(replay, in_motion=True), replay.plays.values()
    canvas: Any = FigureCanvasAgg(figure)
    figure.set_dpi(72)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    timed, cells = figure.axes[: 2 * len(plays)], figure.axes[2 * len(plays) :]
    veil: dict[str, Any] = {"fc": "white", "alpha": 0.88, "zorder": 9, "animated": True}
    covers: list[Any] = [axes.add_patch(Rectangle((0, 0), 1, 1, **veil)) for axes in timed]
    slots, frames = replay.scenario.slots, []
    for slot in np.unique(np.linspace(0, slots, _FRAMES).round().astype(int)):
        canvas.restore_region(still)
        for cover in covers:
            low, high = cover.axes.get_ylim()
            cover.set_bounds(slot, low, slots - slot, high - low)
            cover.axes.draw_artist(cover)
        for axes, progress, play in zip(cells, timed[len(plays) :], plays, strict=True):
            done = (play.remaining_bits[max(0, slot - 1)] <= 0).numpy(force=True) & (slot > 0)
            count = f"slot {slot}: {int(done.sum())} of {counted(len(done), 'client')} delivered"
            _once(progress.text(0, 1.03, count, transform=progress.transAxes, weight="bold"))
            for client in np.flatnonzero(done).tolist():
                x, y = replay.position[client].tolist()
                _once(axes.scatter(x, y, s=210, c=shade(client)))
                _once(axes.text(x, y, str(client), **_NUMBER, color="white"))
        frames.append(np.array(canvas.buffer_rgba())[..., :3])
    _save_gif(frames, path)


def _once(artist: Any) -> None:
    """Draw something on the canvas as it is now, and not again."""
    artist.axes.draw_artist(artist)
    artist.remove()


def _save_gif(frames: Sequence[np.ndarray], path: Path) -> None:
    """With one palette for all frames, so that what rests is small: that of the first and the
    last, in which the clients' colours have more weight than the few dots of them."""
    from PIL import Image

    pure = [list(bytes.fromhex(shade(client)[1:])) for client in range(10)]
    bars = np.repeat(np.array(pure, np.uint8), 40, 0)[:, None].repeat(frames[0].shape[1], 1)
    both = Image.fromarray(np.concatenate([frames[0], frames[-1], bars]))
    palette, plain = both.quantize(255), Image.Dither.NONE
    images = [Image.fromarray(one).quantize(palette=palette, dither=plain) for one in frames]
    times = [_FRAME_MS] * (len(images) - 1) + [_END_MS]
    with writing(path) as temporary:
        images[0].save(temporary, save_all=True, append_images=images[1:], duration=times, loop=0)


_NUMBER: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "zorder": 4}


def _draw_cell(axes: Any, replay: ReplayedRound) -> None:
    """The hexagon, the base station, and every client with its number."""
    corners = np.exp(1j * np.pi / 3 * np.arange(7)) * replay.config.cell.side_m
    axes.plot(corners.real, corners.imag, color="#999999", lw=1)
    axes.plot(0, 0, "^", color="#222222", ms=10)
    for client, (x, y) in enumerate(replay.position.tolist()):
        axes.scatter(x, y, s=210, fc="white", ec=shade(client), lw=1.6)
        axes.text(x, y, str(client), **_NUMBER)
    axes.set_aspect("equal")
    axes.axis("off")


def _draw_lanes(
    axes: Any, band: np.ndarray, power: np.ndarray, levels: np.ndarray, bands: int
) -> None:
    """A bar per sub-band and slot: `band` and `power` are [slot, client]."""
    for lane in range(bands):
        sending = (band == lane) & (power > 0)  # [slot, client]
        crowd = sending.sum(1)
        alone = sending & (crowd == 1)[:, None]
        rank = np.searchsorted(levels, power) / max(1, len(levels) - 1)
        bars = [
            (alone[:, client], 0.25 + 0.6 * rank[:, client], {"color": shade(client)})
            for client in range(band.shape[1])
        ]
        grey = {"fc": "#bbbbbb", "ec": "#777777", "hatch": "xxxx"}
        bars.append((crowd > 1, np.full(len(crowd), 0.85), grey))
        floor = lane + 0.9
        for mask, height, style in bars:
            if mask.any():
                top = np.where(mask, floor - height, np.nan)
                axes.stairs(top, baseline=floor, fill=True, lw=0, **style)
    axes.set_yticks(np.arange(bands) + 0.45, [f"sub-band {b}" for b in range(bands)])
    axes.set_ylim(bands, -0.1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw_progress(axes: Any, left: np.ndarray, snr_db: Sequence[float]) -> None:
    """What each client has left to send: `left` is [slot, client], 1 = everything."""
    slots, clients = left.shape
    for client in range(clients):
        delivered, colour = left[-1, client] <= 0, shade(client)
        curve, label = 100 * np.append(1.0, left[:, client]), f"{client} ({snr_db[client]:.0f} dB)"
        axes.plot(range(slots + 1), curve, "-" if delivered else ":", color=colour, label=label)
        if delivered:
            end = int(np.argmax(left[:, client] <= 0)) + 1
            axes.plot(end, 0, "o", color=colour, clip_on=False, zorder=4)
    axes.set(ylabel="left to send in %", xlim=(0, slots), ylim=(0, 102))
    tidy(axes)
