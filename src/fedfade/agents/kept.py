"""Which weights of a training are kept as its agents: the last, their mean, or the best."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfade.agents.networks import AgentNetworks
from fedfade.agents.optimisers import Flat
from fedfade.config import QmixConfig


class KeptAgents:
    """The agents of every run as a checkpoint has them, each by `qmix.average_weights` and
    `candidates` of its own."""

    def __init__(self, configs: Sequence[QmixConfig], agents: AgentNetworks, flat: Flat) -> None:
        self._flat, self._configs = flat, configs
        self._names = [name for name, _ in agents.named_parameters()]
        factors = torch.tensor([own.average_weights for own in configs])
        averaged, chosen = bool(factors.any()), any(own.candidates > 1 for own in configs)
        self._average = flat.values.clone() if averaged else None
        # The least a step counts in the mean; all of it where the last weights are kept.
        self._least = flat.spread(1.0 - factors.to(flat.values.device)) if averaged else None
        self._best = flat.values.clone() if chosen else None
        # Of the best; -1: none was tried yet.
        self.score = torch.full((flat.runs,), -1.0, device=flat.values.device)

    def update(self, updates: Tensor) -> None:
        """After a step of the optimiser, of which there were `updates` [] before."""
        if self._average is not None and self._least is not None:
            # At first the mean is over the last tenth, or it would remember the initial weights.
            weight = torch.maximum(10.0 / (updates + 10.0), self._least)
            self._average.lerp_(self._flat.values, weight)

    def of(self, run: int) -> dict[str, Tensor]:
        """The networks of one run that are kept: all that execution needs."""
        chosen = self._best if self.score[run] >= 0 else None
        return self._named(self._now if chosen is None else chosen, run)

    def candidate(self, run: int) -> dict[str, Tensor]:
        """The networks of one run now."""
        return self._named(self._now, run)

    def choose(self, scores: Tensor) -> None:
        """Keep those of now in the runs whose score [run] is above that of those kept."""
        assert self._best is not None
        better = self._flat.spread((scores > self.score).float()) > 0
        self._best.copy_(torch.where(better, self._now, self._best))
        self.score.copy_(torch.maximum(scores, self.score))

    def parts(self, run: int | None = None) -> dict[str, Tensor]:
        """Flat vectors to remember: those that any run has, or this one."""
        own = self._configs if run is None else [self._configs[run]]
        found = {}
        if self._average is not None and any(one.average_weights for one in own):
            found["average"] = self._average
        if self._best is not None and any(one.candidates > 1 for one in own):
            found["best"] = self._best
        return found

    @property
    def _now(self) -> Tensor:
        return self._flat.values if self._average is None else self._average

    def _named(self, vector: Tensor, run: int) -> dict[str, Tensor]:
        views = zip(self._names, self._flat.views(vector), strict=True)
        return {name: view.chunk(self._flat.runs)[run] for name, view in views}
