"""Which of several agents of one training to keep: those that deliver most on rounds of their own.

The last weights of a training are a lottery; whoever is chosen must be chosen on rounds that were
neither trained on nor are tested on.
"""

import torch
from torch import Tensor

from fedfade import uplink
from fedfade.agents.trained import QmixPolicy, agents_for
from fedfade.allocation import play_round
from fedfade.config import Config, changed
from fedfade.learning import Payload
from fedfade.randomness import streams

_FIRST_CYCLE = 1_000_000
"""Cycles of training from here on are never reached: their fading, and where every cycle has its
own, their layouts, are new."""
_CYCLES = 10


class Audition:
    """Rounds to try the agents of one training on; all candidates meet the same."""

    def __init__(self, config: Config, payload: Payload, device: torch.device) -> None:
        # Fading that repeats in all cycles would be that of the training.
        fields = {"qmix.gradients": "synthetic", "run.repeat_fading": False}
        self._config = changed(config, fields)
        source = uplink.SyntheticGradients(self._config, device, payload)
        count, last = config.qmix.candidate_rounds, config.run.rounds
        tasks = uplink.layout_seeds(config.run.seed, config.qmix.layouts)[:count]
        own = [uplink.Rounds(self._config, source, 1, [task], device) for task in tasks]
        self._scenario = own[0].scenario
        cycles = min(_CYCLES, count)
        each = -(-count // cycles)  # rounds of a cycle, spread over it
        found = []
        for cycle, n, task in sorted((i % cycles, i // cycles, i % len(own)) for i in range(count)):
            place = (_FIRST_CYCLE + cycle) * last + last * n // each
            found.append(own[task].round(place * config.run.episodes_per_round))
        self._round = uplink.Round(*map(torch.cat, zip(*found, strict=True)))
        self._keys = streams(range(len(found)), "candidates", device=device)

    def uploads(self, agents: dict[str, Tensor]) -> float:
        """Mean clients a round that deliver under these agents."""
        networks = agents_for(self._config)
        networks.load_state_dict(agents)
        policy = QmixPolicy(networks, self._config)
        outcome = play_round(policy, self._scenario, self._round, self._keys)
        return outcome.delivered.sum(-1).float().mean().item()
