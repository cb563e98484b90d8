"""Algorithm 1 of the paper, top to bottom.

    for each federated round                          Trainer.play_batch
        broadcast, local training, channel            Rounds.round
        for each slot                                 (20 episodes side by side)
            observe, act, send, store                 Rollout.step
            every 30 transitions: learn               Learner.update
            every 210: copy the target networks       Learner.copy_target
        the last episode decides the average          Rounds.deliver

Whatever is random is a function of (seed, purpose, batch, slot or update), and whatever is
remembered is in `Trainer.tensors`, so a run continued from a checkpoint ends in the same bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.qmix.engine import Engine
from fedfade.qmix.learner import Learner, copy_into
from fedfade.qmix.replay import Replay
from fedfade.qmix.rollout import Rollout
from fedfade.uplink import Rounds, gradient_source, observation_width, state_width


class Report(NamedTuple):
    """One batch of episodes in figures."""

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
    """QMIX agents learning on federated rounds.

    >>> from fedfade.config import load_config
    >>> config = load_config("ring", ["qmix.gradients=synthetic", "radio.slots=5",
    ...     "qmix.batch_size=32", "qmix.hidden=[8]"])
    >>> Trainer(config).play_batch().episodes
    20
    """

    def __init__(self, config: Config, device: torch.device | str = "cpu") -> None:
        self.config = config
        qmix, seed = config.qmix, config.run.seed
        episodes = qmix.parallel_episodes
        gradients = gradient_source(config, device)
        self.rounds = Rounds(config, gradients, episodes, seed, device)
        scenario = self.rounds.scenario
        self.scenario = scenario
        sizes = (scenario.clients, observation_width(scenario), state_width(scenario))
        self.learner = Learner(qmix, *sizes, scenario.actions, seed, device)
        self.replay = Replay(qmix.replay_size, episodes, *sizes, scenario.slots, seed, device)
        self.rollout = Rollout(scenario, episodes, seed)
        self.batch = 0  # batches of episodes played
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self._loss = torch.zeros((), device=device)  # sums over the updates of a batch
        self._q = torch.zeros((), device=device)
        self._engine: Engine | None = None

    # --- Algorithm 1 ---------------------------------------------------------------------------

    def play_batch(self) -> Report:
        """Play one batch of parallel episodes, learning on the way."""
        round_ = self.rounds.round(self.batch)
        epsilon = self.epsilon()
        self.rollout.begin(round_, epsilon, self.batch, self.replay)
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
        delivered = self.rollout.remaining_bits <= 0
        self.rounds.deliver(self.batch, delivered)
        self.batch += 1
        return self._report(delivered, learned, epsilon)

    def epsilon(self) -> float:
        """Exploration of the current batch: linear in the episodes played, then constant."""
        qmix = self.config.qmix
        share = min(1.0, self.batch * qmix.parallel_episodes / qmix.epsilon_episodes)
        return qmix.epsilon_start + (qmix.epsilon_end - qmix.epsilon_start) * share

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
        """Updates in a batch of episodes, at most."""
        stored = self.scenario.slots * self.rollout.episodes
        return -(-stored // self.config.qmix.update_every)

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

    def _report(self, delivered: Tensor, learned: int, epsilon: float) -> Report:
        """The figures of a batch; the only place where the host waits for the device."""
        parts = [self.rollout.returns.mean(), delivered.sum(-1).float().mean(), self._loss, self._q]
        reward, uploads, loss, q = torch.stack(parts).tolist()
        report = Report(
            episodes=self.batch * self.rollout.episodes,
            reward=reward,
            uploads=uploads,
            loss=loss / learned if learned else math.nan,
            q=q / learned if learned else math.nan,
            epsilon=epsilon,
            accuracy=self._accuracy(),
        )
        if not math.isfinite(reward) or (learned and not math.isfinite(loss)):
            what = "rewards" if not math.isfinite(reward) else "the loss"
            raise Diverged(
                f"training stopped at episode {report.episodes} because {what} became "
                "infinite or not a number; the last checkpoint before it is kept."
            )
        return report

    def _accuracy(self) -> float:
        """Test accuracy at the end of every n-th federated round."""
        _, number, part = self.rounds.place(self.batch)
        done = part == 0 and (number == 0 or number % self.config.qmix.evaluate_every == 0)
        accuracy = self.rounds.gradients.accuracy() if done else None
        return math.nan if accuracy is None else accuracy

    # --- what is remembered --------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All that learning changes, by name; `restore` takes it back."""
        found = {f"learner/{name}": t for name, t in self.learner.tensors().items()}
        found |= {f"replay/{name}": t for name, t in self.replay.tensors().items()}
        return found | {"updates": self.updates}

    def restore(self, batch: int, tensors: dict[str, Tensor]) -> None:
        """Continue after `batch` batches."""
        copy_into(self.tensors(), tensors)
        self.batch = batch
        prefix = "gradients/"
        self.rounds.gradients.restore(
            {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        )

    def snapshot(self) -> dict[str, Tensor]:
        """Everything a continuation needs, the federated task included."""
        task = {f"gradients/{name}": t for name, t in self.rounds.gradients.tensors().items()}
        return self.tensors() | task


def _passed(every: int, before: int, after: int) -> int:
    """How many multiples of `every` lie in (before, after].

    >>> [_passed(30, n, n + 20) for n in (0, 20, 40, 60)]
    [0, 1, 1, 0]
    """
    return after // every - before // every
