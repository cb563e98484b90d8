"""Training on the uplink (paper: algorithm 1), top to bottom; `reference.py` is the short version.

    for each federated round                          Trainer.play_batch
        broadcast, local training, channel            Rounds.round
        for each decision                             (20 episodes side by side)
            observe, act, send, store                 Rollout.step
            every 30 transitions: learn               Learner.update
            every 210 updates: copy the targets       Learner.copy_target
        the last episode decides the average          Rounds.deliver

Whatever is random is a function of (seed, purpose, batch, slot or update), and whatever is
remembered is in `Trainer.snapshot`, so a run continued from a checkpoint ends in the same bits.

Several trainings run side by side, sharing nothing but the clock: what a run does is what it would
do alone. They may have different seeds, and differ in whatever `OWN` names.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade import uplink
from fedfade.agents.candidates import Audition
from fedfade.agents.learner import Learner
from fedfade.agents.mappo import EpisodeMemory, MappoLearner
from fedfade.agents.networks import padded
from fedfade.agents.rollout import Rollout
from fedfade.agents.transitions import ReplayMemory
from fedfade.config import Config, changed, differences
from fedfade.device import one_thread
from fedfade.errors import UserError
from fedfade.graphs import WARM_UP, OnItsWay, Work, fused, record

OWN = (
    *("run.seed", "run.restart", "run.repeat_fading", "run.seeds", "learning.alpha"),
    *("learning.local_unit", "learning.local_work", "learning.batch_size", "allocation.hide"),
    *("radio.noise_density_dbm_hz", "radio.noise_figure_db", "radio.antenna_gain_dbi"),
    *("radio.client_antenna_gain_dbi", "radio.clusters", "radio.speed_mps"),
    *("qmix.agent_rate", "qmix.mixer_rate", "qmix.gamma", "qmix.advance", "qmix.target_every"),
    *("qmix.gradients", "qmix.gain_spread_db", "qmix.clip_gradient", "qmix.standardise_rewards"),
    *("qmix.average_weights", "qmix.candidates", "qmix.candidate_rounds"),
)
"""What trainings in one program may each have to themselves, besides `cell` and
`allocation.reward`; all else decides shapes, or is left alike to keep the program simple."""

_SHARED_VALUES = 2**18
"""In a layer of fewer numbers, threads cost an update more than they save."""


def programs(configs: Sequence[Config]) -> list[list[int]]:
    """Which configurations can be trained side by side: their places, program by program.

    >>> from fedfade.config import load_config
    >>> changes = ["run.seed=1"], ["cell.side_m=100"], ["qmix.replay_size=5000"]
    >>> programs([load_config("paper", change) for change in changes])
    [[0, 1], [2]]
    """
    found: list[list[int]] = []
    for place, config in enumerate(configs):
        for program in found:
            lead = configs[program[0]]
            apart = differences(lead, config, OWN)
            lonely = [one.cell.interference_cells == 0 for one in (lead, config)]
            alike = lonely[0] == lonely[1]  # what neighbours send is one more input, or none
            if alike and all(field.startswith(("cell.", "allocation.reward.")) for field in apart):
                program.append(place)
                break
        else:
            found.append([place])
    return found


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
    """Losses, rewards or parameters of a run stopped being numbers."""

    def __init__(self, sentence: str, folders: Sequence[Path] = ()) -> None:
        super().__init__(sentence)
        self.folders = list(folders)  # of all that did, where it is known


def diverged(what: str, episodes: int, which: str = "") -> Diverged:
    """The sentence about it; `which` training, where there are several."""
    end = f"because {what} became infinite or not a number."
    return Diverged(f"training{which} stopped at episode {episodes} {end}")


@fused
def _count_in(loss_sum: Tensor, loss: Tensor, q_sum: Tensor, q: Tensor) -> None:
    loss_sum.add_(loss)
    q_sum.add_(q)


class _Place(NamedTuple):
    """Where batches of one size are played and remembered."""

    rounds: uplink.ManyRounds
    rollout: Rollout
    memory: ReplayMemory | EpisodeMemory


class Trainer:
    """QMIX agents learning on federated rounds: a run for each of several configurations, or for
    each of `seeds`, or one for `run.seed`.

    >>> from fedfade.config import load_config
    >>> config = load_config("ring", ["qmix.gradients=synthetic", "radio.slots=5",
    ...     "qmix.batch_size=32", "qmix.hidden=[8]"])
    >>> [report.episodes for report in Trainer(config, seeds=[0, 1]).play_batch()]
    [20, 20]
    """

    def __init__(
        self,
        config: Config | Sequence[Config],
        device: torch.device | str = "cpu",
        seeds: Sequence[int] | None = None,
    ) -> None:
        configs = [config] if isinstance(config, Config) else list(config)
        if seeds is not None:
            configs = [changed(configs[0], {"run.seed": seed}) for seed in seeds]
        assert len(programs(configs)) == 1, "these cannot be trained side by side"
        self.configs, self.config, self._device = configs, configs[0], device
        self.seeds = [config.run.seed for config in configs]
        qmix, options = self.config.qmix, [config.qmix for config in configs]
        sizes = qmix.sizes or [[self.config.learning.clients, self.config.radio.subbands]]
        self._places = [self._place(*size) for size in sizes]
        scenario = self._places[0].rounds.scenario
        width, state = uplink.observation_width(scenario), uplink.state_width(scenario)
        shape = (scenario.clients, width, state, scenario.actions)
        preference = uplink.plan_preference(scenario, qmix.trust)
        self.learner: Learner | MappoLearner
        if qmix.algorithm == "mappo":
            self.learner = MappoLearner(options, *shape, self.seeds, device, preference)
        else:
            self.learner = Learner(options, *shape, self.seeds, device, preference)
        self._recorded: dict[int, tuple[Work, Work]] = {}  # of each place
        self._gamma = torch.tensor([[own.gamma] for own in options], device=device)  # [run, 1]
        self._next: uplink.Round | None = None  # of the batch to come, made before the host waits
        self.batch = 0  # batches of episodes played
        self.learned = 0  # updates so far; `learner.updates` is the same, on the device
        self._done = torch.zeros((), device=device)  # share of the training
        self._lessons = torch.zeros((), device=device)  # how much the teacher counts
        self._loss = torch.zeros(len(configs), device=device)  # summed over a batch's updates
        self._q = torch.zeros_like(self._loss)
        self.lost: dict[int, Diverged] = {}  # runs that diverged; the others go on
        self._auditions: dict[int, Audition] = {}  # by run, made when the first is due
        self._enter()

    def _place(self, clients: int, bands: int) -> _Place:
        """Cells with so many clients and sub-bands; all else is as the configurations say."""
        size = {"learning.clients": clients, "radio.subbands": bands}
        configs = [changed(config, size) for config in self.configs]
        rounds = uplink.ManyRounds(configs, self._device)
        scenario, qmix = rounds.scenario, self.config.qmix
        width, state = uplink.observation_width(scenario), uplink.state_width(scenario)
        shape = (rounds.episodes, clients, padded(width), state)
        memory: ReplayMemory | EpisodeMemory
        if qmix.algorithm == "mappo":
            memory = EpisodeMemory(scenario.decisions, *shape, len(configs), self._device)
        else:
            kept = (qmix.replay_size, *shape, scenario.decisions, self.seeds, self._device)
            memory = ReplayMemory(*kept, qmix.mask_finished, self._pulled)
        return _Place(rounds, Rollout(rounds, configs), memory)

    def _enter(self) -> None:
        """Go to the place of the current batch."""
        self.visit, self._here = divmod(self.batch, len(self._places))
        self.rounds, self.rollout, self.memory = self._places[self._here]
        self.scenario = scenario = self.rounds.scenario
        if len(self._places) > 1:
            width = uplink.observation_width(scenario)
            self.learner.resize(scenario.clients, width, scenario.actions)

    def play_batch(self) -> list[Report]:
        """Play one batch of parallel episodes, learning on the way; a report for each run."""
        self._enter()
        round_ = self.rounds.round(self.visit) if self._next is None else self._next
        epsilon = self.epsilon()
        lessons = self.lessons()
        self.rollout.begin(round_, epsilon, self.batch, self.memory, self.payload(), lessons)
        self._loss.zero_()
        self._q.zero_()
        self._done.fill_(self.batch / self.batches)
        self._lessons.fill_(lessons)
        if isinstance(self.learner, Learner):
            self._prepare_updates(self.learner)
        learned, stored = 0, self.batch * self.scenario.decisions * self.rollout.episodes
        step, _ = self.recorded
        for decision in range(self.scenario.decisions):
            with self._threads():
                self.rollout.ask_teacher(decision)
                step()
            stored += self.rollout.episodes
            learned += self._learn_between(stored)
        learned += self._learn_after()
        self.rounds.deliver(self.visit, self.rollout.arrived)
        self.batch += 1
        self.learned += learned
        self._choose()
        figures = OnItsWay(self._figures())
        # Asked for before the host waits, so that the device does not wait for the host.
        self._next = None
        if self.batch < self.batches:
            visit, there = divmod(self.batch, len(self._places))
            self._next = self._places[there].rounds.round(visit)
        return self._reports(figures, learned, epsilon)

    def _prepare_updates(self, learner: Learner) -> None:
        """Rates of a batch and random numbers of its updates."""
        qmix = self.config.qmix
        if qmix.final_rate < 1.0:
            learner.fall(self._ramp(1.0, qmix.final_rate, qmix.episodes))
        self.replay.draw_ahead(learner.updates, self._most_updates, qmix.batch_size)

    def _learn_between(self, stored: int) -> int:
        """Q-learning goes on between decisions: the updates due after so many transitions."""
        if not isinstance(self.learner, Learner):
            return 0
        qmix, before = self.config.qmix, stored - self.rollout.episodes
        # Before the first update: a batch of transitions, and n steps to look ahead.
        ready_at = qmix.batch_size + (qmix.n_step - 1) * self.rollout.episodes
        due = stored // qmix.update_every - before // qmix.update_every
        elsewhere = (self.batch - self.visit) * self.scenario.decisions * self.rollout.episodes
        due = due if stored - elsewhere >= ready_at else 0
        for _ in range(due):
            self.update()
        intervals = [own.qmix.target_every for own in self.configs]
        copied = tuple(stored // every > before // every for every in intervals)
        if any(copied):
            self.learner.copy_target(copied)
        return due

    def _learn_after(self) -> int:
        """Policy gradients wait for the end of the episodes."""
        if not isinstance(self.learner, MappoLearner):
            return 0
        self.update()
        return self._policy_steps

    @property
    def _policy_steps(self) -> int:
        """Steps of policy gradients on a batch of episodes."""
        return self.config.qmix.mappo.epochs * self.config.qmix.mappo.minibatches

    @property
    def replay(self) -> ReplayMemory:
        """The memory of Q-learning."""
        assert isinstance(self.memory, ReplayMemory)
        return self.memory

    def epsilon(self) -> float:
        """Exploration of the current batch; policy gradients have none of this kind."""
        qmix = self.config.qmix
        if qmix.algorithm == "mappo":
            return 0.0
        return self._ramp(qmix.epsilon_start, qmix.epsilon_end, qmix.epsilon_episodes)

    def payload(self) -> float:
        """Share of an upload left to send in the current batch."""
        return self._ramp(self.config.qmix.payload_start, 1.0, self.config.qmix.payload_episodes)

    def lessons(self) -> float:
        """How much the teacher counts in the current batch."""
        qmix = self.config.qmix
        return (
            self._ramp(qmix.lessons, 0.0, qmix.lesson_episodes) if qmix.teacher != "none" else 0.0
        )

    @property
    def _pulled(self) -> bool:
        """Whether values are drawn to what a teacher does."""
        return self.config.qmix.teacher != "none" and self.config.qmix.lesson_margin > 0

    def _ramp(self, start: float, end: float, episodes: int) -> float:
        """Linear in the episodes played, then constant."""
        return start + (end - start) * min(1.0, self.batch * self.rollout.episodes / episodes)

    def _choose(self) -> None:
        """Try the agents of now where a candidate is due, and keep the best so far."""
        kept, device = self.learner.kept, self.scenario.device
        due = [run for run, own in enumerate(self.configs) if self._is_due(own.qmix.candidates)]
        if not due:
            return
        scores = torch.full((len(self.configs),), -1.0, device=device)
        for run in due:
            if run not in self._auditions:
                own, payload = self.configs[run], self.scenario.payload_bits
                self._auditions[run] = Audition(own, payload, device)
            scores[run] = self._auditions[run].uploads(kept.candidate(run))
        kept.choose(scores)

    def _is_due(self, candidates: int) -> bool:
        """Whether one of so many candidates is tried after this batch; they are spread over the
        second half of the training."""
        half = self.batches // 2
        rest = self.batches - half
        points = (half + -(-rest * n // candidates) for n in range(1, candidates + 1))
        return candidates > 1 and self.batch in points

    @property
    def batches(self) -> int:
        """Batches of episodes in the whole training."""
        return -(-self.config.qmix.episodes // self.rollout.episodes)

    @property
    def _most_updates(self) -> int:
        """Updates in a batch of episodes, at most; as many as recording one takes, at least."""
        stored = self.scenario.decisions * self.rollout.episodes
        return max(WARM_UP, -(-stored // self.config.qmix.update_every))

    @property
    def recorded(self) -> tuple[Work, Work]:
        """Decision and update as they run on this device; needs a round begun.

        A slot is some sixty small operations and an update some hundred and fifty. On a GPU
        their launches cost more than their work, so both are recorded once and replayed.
        """
        if self._here not in self._recorded:
            learner = [*self.learner.tensors().values(), self.learner.updates]
            remembered = [*learner, *self.memory.tensors()]
            changed = [*remembered, *self.rollout.tensors(), self._loss, self._q]
            device = self.scenario.device
            step = partial(self.rollout.step, self.learner.agents, self.memory)
            works = record(step, changed, device), record(self._update, changed, device)
            self._recorded[self._here] = works
        return self._recorded[self._here]

    def _threads(self, small: bool = True) -> AbstractContextManager[None]:
        """Where operations are small one thread of a CPU is fastest."""
        return one_thread() if small and self.scenario.device.type == "cpu" else nullcontext()

    def step(self) -> None:
        """One decision of all parallel episodes, each of whose operations is small."""
        with self._threads():
            self.recorded[0]()

    def update(self) -> None:
        """One learning step of all runs."""
        with self._threads(self._layer_values < _SHARED_VALUES):
            self.recorded[1]()

    @property
    def _layer_values(self) -> int:
        """Numbers in the largest layer of an update: [run, transition, client, unit]."""
        qmix, decisions = self.config.qmix, self.scenario.decisions * self.rollout.episodes
        mappo = qmix.algorithm == "mappo"
        rows = decisions // qmix.mappo.minibatches if mappo else qmix.batch_size
        return rows * len(self.configs) * self.scenario.clients * max(qmix.hidden)

    def _update(self) -> None:
        if isinstance(self.learner, MappoLearner):
            assert isinstance(self.memory, EpisodeMemory)
            lessons = self._lessons if self.config.qmix.teacher != "none" else None
            figures = self.learner.update(self.memory, self._done, lessons)  # means over the steps
            loss, q = (self._policy_steps * figure for figure in figures)
        else:
            n_step = self.config.qmix.n_step
            sample = self.replay.sample(self.learner.updates, self._gamma, n_step)
            loss, q = self.learner.update(sample, self._lessons if self._pulled else None)
        _count_in(self._loss, loss, self._q, q)

    def _figures(self) -> Tensor:
        """Reward, uploads, summed loss and Q, accuracy: [run, figure]."""
        uploads = self.rollout.delivered.sum(-1).float().mean(-1)
        _, number, part = self.rounds.place(self.batch // len(self._places))
        tested = part == 0 and number % self.config.qmix.evaluate_every == 0
        accuracy = self.rounds.accuracy() if tested else None
        if accuracy is None:
            accuracy = torch.full_like(self._loss, math.nan)
        parts = [self.rollout.returns.mean(-1), uploads, self._loss, self._q, accuracy]
        return torch.stack(parts, -1)

    def _reports(self, figures: OnItsWay, learned: int, epsilon: float) -> list[Report]:
        """The figures of a batch; the only place where the host waits for the device."""
        episodes, updates = self.batch * self.rollout.episodes, learned or math.nan
        reports = []
        rows = enumerate(figures.tolist())
        for run, (reward, uploads, loss, q, accuracy) in rows:
            if not (math.isfinite(reward) and (math.isfinite(loss) or not learned)):
                which = f" of seed {self.seeds[run]}" if len(self.seeds) > 1 else ""
                what = "the loss" if math.isfinite(reward) else "rewards"
                self.lost.setdefault(run, diverged(what, episodes, which))
            means = (reward, uploads, loss / updates, q / updates)
            reports.append(Report(episodes, *means, epsilon, accuracy))
        if len(self.lost) == len(self.seeds):
            raise self.lost[0]
        return reports

    def snapshot(self, run: int = 0) -> dict[str, Tensor]:
        """Everything a continuation of a run needs, as if it had been trained alone."""
        found = {f"learner/{name}": t for name, t in self.learner.take(run).items()}
        for n, (rounds, _, memory) in enumerate(self._places):
            found |= {f"gradients{n or ''}/{name}": t for name, t in rounds.take(run).items()}
            found |= {f"replay{n or ''}/{name}": t for name, t in memory.take(run).items()}
        if self.configs[run].qmix.candidates > 1:
            found["score"] = self.learner.kept.score[run]
        return found | {"updates": self.learner.updates}

    def restore(self, batch: int, snapshots: Sequence[dict[str, Tensor]]) -> None:
        """Continue after `batch` batches with what `snapshot` gave for each run."""

        def below(prefix: str, found: dict[str, Tensor]) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in found.items() if n.startswith(prefix)}

        for run, found in enumerate(snapshots):
            self.learner.put(run, below("learner/", found))
            for n, place in enumerate(self._places):
                place.memory.put(run, below(f"replay{n or ''}/", found))
            self.learner.updates.copy_(found["updates"])
            if "score" in found:
                self.learner.kept.score[run] = found["score"]
        for n, place in enumerate(self._places):
            place.rounds.restore([below(f"gradients{n or ''}/", found) for found in snapshots])
        self.batch, self.learned, self._next = batch, int(self.learner.updates), None
