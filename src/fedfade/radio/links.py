"""Link models: how many bits of a slot get through, given how well the base station hears it.

    shannon   B log2(1 + SINR): the paper's, and the default
    capped    the same, some decibel worse and with a ceiling
    nr        the schemes of TS 38.214, block errors, retransmissions (`fedfade.radio.nr`)

A link is one of the seams (`fedfade.seams.LINKS`): a pure function of what it remembers of every
client, the SINR now and the SINR the base station knew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedfade.config import RadioConfig
from fedfade.errors import UserError
from fedfade.radio.link import db_to_linear, rate_bps
from fedfade.seams import LINKS, ask


class Link(Protocol):
    """A link model, made as `factory(radio, device)`; it holds no state.

    Optional attributes: `initial`, float32 [width], is what it remembers of a client when a round
    begins, nothing if not given; `adapts = True` asks for the SINR `radio.link_delay_slots` ago in
    `known`, which is that of now otherwise; `draws = True` asks for random numbers in `chance`.
    """

    def send(
        self, state: Tensor, ratio: Tensor, known: Tensor, chance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """State after the slot [episode, client, width], and bit/s that get through in it.

        `ratio` [episode, client] is the SINR, 0 for who is silent; `chance` [episode, client]
        are uniform numbers between 0 and 1.
        """
        ...

    def efficiency(self, ratio: Tensor) -> Tensor:
        """Expected bit/s/Hz where the SINR, of any shape, stays as it is: what policies reckon
        with. It must not fall as the SINR grows."""
        ...


@dataclass(frozen=True)
class LoadedLink:
    """A link with all that is optional; equal texts are equal links."""

    name: str
    text: str
    send: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = field(repr=False)
    efficiency: Callable[[Tensor], Tensor] = field(repr=False)
    initial: Tensor = field(repr=False)
    adapts: bool
    draws: bool


def load_link(radio: RadioConfig, device: torch.device | str = "cpu") -> LoadedLink:
    """The link `radio.link` names: built in, an entry point of `fedfade.links`, or dotted."""
    made: Link = LINKS.make(radio.link, radio, torch.device(device))
    send, efficiency = made.send, made.efficiency
    if radio.link not in LINKS.built_in:
        send, efficiency = _checked(f"radio.link = {radio.link!r}", made)
    initial = getattr(made, "initial", torch.zeros(0)).to(device)
    described = (radio.link_overhead, radio.capped, radio.nr)
    return LoadedLink(
        radio.link,
        repr((*described, radio.bandwidth_hz, radio.slot_s)),
        send,
        efficiency,
        initial,
        bool(getattr(made, "adapts", False)),
        bool(getattr(made, "draws", False)),
    )


class Shannon:
    """Every slot carries B log2(1 + SINR) (paper: eq. 12)."""

    def __init__(self, radio: RadioConfig, device: torch.device) -> None:
        self._bandwidth_hz = radio.bandwidth_hz

    def send(
        self, state: Tensor, ratio: Tensor, known: Tensor, chance: Tensor
    ) -> tuple[Tensor, Tensor]:
        return state, rate_bps(ratio, self._bandwidth_hz)

    def efficiency(self, ratio: Tensor) -> Tensor:
        return torch.log2(1.0 + ratio)


class Capped:
    """Shannon's curve for an SINR so many decibel worse, up to the best scheme's efficiency, in
    what pilots and control leave of a slot (Mogensen et al. 2007)."""

    def __init__(self, radio: RadioConfig, device: torch.device) -> None:
        self._loss = float(db_to_linear(torch.tensor(-radio.capped.gap_db)))
        self._ceiling, self._share = radio.capped.ceiling_bps_hz, 1.0 - radio.link_overhead
        self._bandwidth_hz = radio.bandwidth_hz

    def send(
        self, state: Tensor, ratio: Tensor, known: Tensor, chance: Tensor
    ) -> tuple[Tensor, Tensor]:
        return state, self.efficiency(ratio) * self._bandwidth_hz

    def efficiency(self, ratio: Tensor) -> Tensor:
        return torch.log2(1.0 + ratio * self._loss).clamp(max=self._ceiling) * self._share


def _checked(
    who: str, link: Link
) -> tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor]]:
    """A user's link, held to the protocol."""

    def answer(found: object, what: str, shape: torch.Size) -> Tensor:
        if not isinstance(found, Tensor) or found.dtype != torch.float32 or found.shape != shape:
            kind = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else found
            needed = f"it must be torch.float32 {list(shape)}"
            raise UserError(f"{who} answered {what} {kind}: {needed}.")
        # Looking at values would wait for a GPU.
        if found.device.type == "cpu" and not bool((found.isfinite() & (found >= 0)).all()):
            raise UserError(f"{who} answered a {what} that is negative, NaN or infinite.")
        return found

    def send(state: Tensor, ratio: Tensor, known: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
        found = ask(who, link, "send", state, ratio, known, chance)
        if not isinstance(found, tuple) or len(found) != 2:
            raise UserError(f"{who} answered {type(found).__name__}: it must answer (state, rate).")
        after, rate = found
        if not isinstance(after, Tensor) or after.shape != state.shape:
            raise UserError(f"{who} answered a state that is not shaped like the one it was given.")
        return after, answer(rate, "rate", ratio.shape)

    def efficiency(ratio: Tensor) -> Tensor:
        return answer(ask(who, link, "efficiency", ratio), "efficiency", ratio.shape)

    return send, efficiency
