"""Algorithm 1 of the paper, top to bottom.

    for each federated round                          Trainer.play_batch
        broadcast, local training, channel            Rounds.round
        for each slot                                 (20 episodes side by side)
            observe, act, send, store                 Rollout.step
            every 30 transitions: learn               Learner.update
            every 210 updates: copy the targets       Learner.copy_target
        the last episode decides the average          Rounds.deliver

Whatever is random is a function of (seed, purpose, batch, slot or update), and whatever is
remembered is in `Trainer.tensors`, so a run continued from a checkpoint ends in the same bits.

Several seeds are trained side by side as runs that share nothing but the clock: what a run does
is what it would do alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.agents.engine import Engine
from fedfade.agents.learner import Learner
from fedfade.agents.networks import padded
from fedfade.agents.rollout import Rollout
from fedfade.agents.transitions import Replay
from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.graphs import WARM_UP
from fedfade.uplink import (
    Round,
    Rounds,
    gradient_source,
    observation_width,
    plan_preference,
    state_width,
)


class Report(NamedTuple):
    """One batch of episodes of one run in figures."""

    episodes: int  # played so far
    reward: float  # mean sum of slot rewards of an episode
    uploads: float  # mean clients that delivered
    loss: float  # mean squared TD error; NaN before the first update
    q: float  # mean Q_tot; NaN before the first update
    epsilon: float
    accuracy: float  # of the federated model where it was tested, else NaN


class Diverged(UserError):
    """Losses or rewards stopped being numbers."""


class Trainer:
    """QMIX agents learning on federated rounds; one run for each of `seeds`, or for `run.seed`.

    >>> from fedfade.config import load_config
    >>> config = load_config("ring", ["qmix.gradients=synthetic", "radio.slots=5",
    ...     "qmix.batch_size=32", "qmix.hidden=[8]"])
    >>> [report.episodes for report in Trainer(config, seeds=[0, 1]).play_batch()]
    [20, 20]
    """

    def __init__(
        self,
        config: Config,
        device: torch.device | str = "cpu",
        seeds: Sequence[int] | None = None,
    ) -> None:
        self.config = config
        self.seeds = [config.run.seed] if seeds is None else list(seeds)
        qmix, episodes = config.qmix, config.qmix.parallel_episodes
        gradients = gradient_source(config, device)
        self.rounds = Rounds(config, gradients, episodes, self.seeds, device)
        self.scenario = scenario = self.rounds.scenario
        agents, width, state = scenario.clients, observation_width(scenario), state_width(scenario)
        sizes = (agents, width, state, scenario.actions)
        preference = plan_preference(scenario, qmix.trust)
        self.learner = Learner(qmix, *sizes, self.seeds, device, preference)
        self.replay = Replay(
            qmix.replay_size,
            episodes,
            agents,
            padded(width),
            state,
            scenario.slots,
            self.seeds,
            device,
        )
        self.rollout = Rollout(scenario, episodes, self.seeds, qmix)
        self._next: Round | None = None  # of the batch to come, made before the host waits
        self.batch = 0  # batches of episodes played
        self.learned = 0  # updates so far
        self.updates = torch.zeros((), dtype=torch.int64, device=device)  # the same, over there
        runs = len(self.seeds)
        self._loss = torch.zeros(runs, device=device)  # sums over the updates of a batch
        self._q = torch.zeros(runs, device=device)
        self._engine: Engine | None = None

    # --- Algorithm 1 ---------------------------------------------------------------------------

    def play_batch(self) -> list[Report]:
        """Play one batch of parallel episodes, learning on the way; a report for each run."""
        round_ = self.rounds.round(self.batch) if self._next is None else self._next
        epsilon = self.epsilon()
        self.rollout.begin(round_, epsilon, self.batch, self.replay, self.payload())
        self.replay.draw_ahead(self.updates, self._most_updates, self.config.qmix.batch_size)
        engine = self.engine()
        learned = 0
        stored = self.batch * self.scenario.slots * self.rollout.episodes
        self._loss.zero_()
        self._q.zero_()
        for _ in range(self.scenario.slots):
            engine.step()
            before, stored = stored, stored + self.rollout.episodes
            if stored >= self.ready_at:
                for _ in range(_passed(self.config.qmix.update_every, before, stored)):
                    engine.update()
                    learned += 1
            if _passed(self.config.qmix.target_every, before, stored):
                self.learner.copy_target()
        self.rounds.deliver(self.batch, self.rollout.delivered)
        self.batch += 1
        self.learned += learned
        figures = self._figures()
        # Asked for before the host waits, so that the device does not wait for the host.
        more = self.batch < self.batches
        self._next = self.rounds.round(self.batch) if more else None
        return self._reports(figures, learned, epsilon)

    def epsilon(self) -> float:
        """Exploration of the current batch: linear in the episodes played, then constant."""
        qmix = self.config.qmix
        share = self._share_of(qmix.epsilon_episodes)
        return qmix.epsilon_start + (qmix.epsilon_end - qmix.epsilon_start) * share

    def payload(self) -> float:
        """Share of an upload left to send in the current batch: rising, then 1."""
        qmix = self.config.qmix
        return qmix.payload_start + (1.0 - qmix.payload_start) * self._share_of(
            qmix.payload_episodes
        )

    def _share_of(self, episodes: int) -> float:
        """How much of the first `episodes` has been played."""
        return min(1.0, self.batch * self.config.qmix.parallel_episodes / episodes)

    @property
    def ready_at(self) -> int:
        """Transitions stored before the first update: a batch, and n steps to look ahead."""
        qmix = self.config.qmix
        return qmix.batch_size + (qmix.n_step - 1) * qmix.parallel_episodes

    @property
    def batches(self) -> int:
        """Batches of episodes in the whole training."""
        return -(-self.config.qmix.episodes // self.config.qmix.parallel_episodes)

    @property
    def _most_updates(self) -> int:
        """Updates in a batch of episodes, at most; as many as recording one takes, at least."""
        stored = self.scenario.slots * self.rollout.episodes
        return max(WARM_UP, -(-stored // self.config.qmix.update_every))

    def _step(self) -> None:
        self.rollout.step(self.learner.agents, self.replay)

    def _update(self) -> None:
        qmix = self.config.qmix
        batch = self.replay.sample(self.updates, qmix.gamma, qmix.n_step)
        seen = self.learner.update(batch)
        self.updates += 1
        self._loss += seen.loss
        self._q += seen.q

    def engine(self) -> Engine:
        """What carries out slots and updates on this device; needs a round begun."""
        if self._engine is None:
            changed = [*self.tensors().values(), *self.rollout.tensors().values()]
            changed += [self._loss, self._q]
            self._engine = Engine(self._step, self._update, changed, self.scenario.device)
        return self._engine

    # --- what happened -------------------------------------------------------------------------

    def _figures(self) -> Tensor:
        """Reward, uploads, summed loss and Q, accuracy: [run, figure]."""
        uploads = self.rollout.delivered.sum(-1).float().mean(-1)
        parts = [self.rollout.returns.mean(-1), uploads, self._loss, self._q, self._accuracy()]
        return torch.stack(parts, -1)

    def _reports(self, figures: Tensor, learned: int, epsilon: float) -> list[Report]:
        """The figures of a batch; the only place where the host waits for the device."""
        updates = learned or math.nan
        reports = [
            Report(
                episodes=self.batch * self.rollout.episodes,
                reward=reward,
                uploads=delivered,
                loss=loss / updates,
                q=q / updates,
                epsilon=epsilon,
                accuracy=accuracy,
            )
            for reward, delivered, loss, q, accuracy in figures.tolist()
        ]
        for seed, report in zip(self.seeds, reports, strict=True):
            if not math.isfinite(report.reward):
                raise self._diverged(seed, report, "rewards")
            if learned and not math.isfinite(report.loss):
                raise self._diverged(seed, report, "the loss")
        return reports

    def _diverged(self, seed: int, report: Report, what: str) -> Diverged:
        which = f" of seed {seed}" if len(self.seeds) > 1 else ""
        return Diverged(
            f"training{which} stopped at episode {report.episodes} because {what} became "
            "infinite or not a number."
        )

    def _accuracy(self) -> Tensor:
        """Test accuracy at the end of every n-th federated round, else NaN: [run]."""
        _, number, part = self.rounds.place(self.batch)
        done = part == 0 and (number == 0 or number % self.config.qmix.evaluate_every == 0)
        accuracy = self.rounds.gradients.accuracy() if done else None
        return torch.full_like(self._loss, math.nan) if accuracy is None else accuracy

    # --- what is remembered --------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All that learning changes, by name."""
        found = {f"learner/{name}": t for name, t in self.learner.tensors().items()}
        found |= {f"replay/{name}": t for name, t in self.replay.tensors().items()}
        return found | {"updates": self.updates}

    def snapshot(self, run: int = 0) -> dict[str, Tensor]:
        """Everything a continuation of a run needs, as if it had been trained alone."""
        found = {f"learner/{name}": t for name, t in self.learner.take(run).items()}
        found |= {f"replay/{name}": t for name, t in self.replay.take(run).items()}
        task = self.rounds.gradients.tensors().items()
        found |= {f"gradients/{name}": t[run : run + 1] for name, t in task}
        return found | {"updates": self.updates}

    def restore(self, batch: int, snapshots: Sequence[dict[str, Tensor]]) -> None:
        """Continue after `batch` batches with what `snapshot` gave for each run."""
        for run, found in enumerate(snapshots):
            self.learner.put(run, _below("learner/", found))
            self.replay.put(run, _below("replay/", found))
            self.updates.copy_(found["updates"])
        tasks = [_below("gradients/", found) for found in snapshots]
        names = tasks[0] if tasks else {}
        self.rounds.gradients.restore({n: torch.cat([task[n] for task in tasks]) for n in names})
        self.batch = batch
        self.learned = int(self.updates)
        self._next = None


def _below(prefix: str, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {n.removeprefix(prefix): t for n, t in found.items() if n.startswith(prefix)}


def _passed(every: int, before: int, after: int) -> int:
    """How many multiples of `every` lie in (before, after].

    >>> [_passed(30, n, n + 20) for n in (0, 20, 40, 60)]
    [0, 1, 1, 0]
    """
    return after // every - before // every
