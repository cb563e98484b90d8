"""Which allocation policy gives the best model? Everything one configuration needs to answer it.

Runs are seeds x policies. Runs of one seed share everything but the policy: the walk of the
clients, the fading, the partition, the first weights and the mini-batches. What differs in the
end is what the policy did. `side_by_side.py` plays the rounds, of one comparison or of many.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfade import agents
from fedfade.allocation import (
    GENIE,
    PERFECT,
    Outcome,
    Policy,
    described,
    gradient_aware,
    load_policy,
)
from fedfade.config import Config
from fedfade.device import one_thread
from fedfade.errors import UserError, not_allowed
from fedfade.experiments import metrics
from fedfade.experiments.metrics import Row, RunRound, read_rows, rows_text
from fedfade.experiments.run_folder import RunFolder, check_unchanged, digest, fingerprint
from fedfade.experiments.uploads import Uplink, ages_after, on_cpu, part_of
from fedfade.learning import (
    BoundRow,
    Federation,
    Payload,
    Sent,
    ServerState,
    bound_along_run,
    load_data,
)
from fedfade.storage import read_npz, write_npz, write_text
from fedfade.uplink import Bill

QMIX = "qmix"


def compared_names(config: Config) -> list[str]:
    """The policies of a comparison; trained agents join when a checkpoint is given."""
    trained = list(agents.trained_agents(config))
    names: list[str] = []
    for name in config.allocation.policies:
        names += trained if name == QMIX and trained else [name]
    return list(dict.fromkeys([*names, *trained]))


def compared_policy(config: Config, name: str, field: str = "allocation.policies") -> Policy:
    """A policy of a comparison, going by what the user typed, so that the run folder names it;
    `field` is where it was typed."""
    shipped = agents.shipped_policies()
    if (folder := agents.trained_agents(config).get(name)) is not None:
        policy = agents.load_policy_checkpoint(folder, config)
    elif name in shipped:
        policy = agents.load_shipped_policy(name, config)
    else:
        policy = load_policy(name, shipped, field)
    policy.name = name
    return policy


class Position(NamedTuple):
    """How far the runs of a comparison have come."""

    rounds: int
    state: ServerState
    uploads: Tensor  # [run, client] rounds in which each client delivered
    ages: Tensor  # [run, client] rounds since it did last; not stored, as rows say who delivered


class Comparison:
    """One configuration: its task, uplink and policies, and how far its runs have come."""

    def __init__(
        self, config: Config, device: torch.device, federation: Federation | None = None
    ) -> None:
        """`federation`: one already made, to share."""
        self.config, self.device = config, device
        self.names = names = compared_names(config)  # with rows in the metrics
        sending = [name for name in names if name not in (PERFECT, GENIE)]
        self.policies = {name: compared_policy(config, name) for name in sending}
        for name, policy in self.policies.items():
            if gradient_aware(policy) and not config.run.train_absent:
                wanted = f"true where {name} is compared, which looks at everybody's gradients"
                raise not_allowed("run.train_absent", False, wanted)
        self.learned = [name for name in names if name != GENIE]
        if not self.learned:
            raise UserError("allocation.policies = ['genie'] is not allowed: it needs a policy.")
        learning, run = config.learning, config.run
        self.federation = federation or Federation(
            learning, load_data(learning), device=device, precision=run.precision
        )
        self.uplink = Uplink(config, self.federation.payload_bits, device)
        values, samples = self.federation.values_sent, len(self.federation.dataset.train_labels)
        self._bill = Bill(config, self.uplink.seeds, values, samples)
        self.runs = runs_of(config)
        nobody = torch.zeros(len(self.runs), learning.clients, dtype=torch.int64)
        start = self.federation.start([seed for seed, _ in self.runs])
        self.at = Position(0, start, nobody, nobody.float())
        self.outcomes: dict[str, Outcome] = {}  # of the round being played, by policy
        self.genie: Tensor | None = None  # its bound: [seed]
        self.rows: list[Row] = []
        # One block for all rounds: a small tensor kept from each would hold on to the memory
        # that the large ones around it leave behind.
        self.grams = torch.empty(run.rounds, *nobody.shape, learning.clients)
        self._saved = time.monotonic()

    @property
    def update_bytes(self) -> int:
        """Memory of what all clients of all runs send in a round."""
        return 4 * len(self.runs) * self.config.learning.clients * self.federation.values_sent

    @property
    def memory_bytes(self) -> int:
        """Memory of what is kept from round to round beside the models: error feedback, say."""
        return sum(tensor.nbytes for tensor in self.at.state.memory.values())

    def of_policy(self, policy: str) -> slice:
        """Runs of a policy, one per seed."""
        return slice(self.learned.index(policy), None, len(self.learned))

    def delivered(self) -> Tensor:
        """Whose update arrived in time, or what share of it if a part counts: [run, client]."""
        shape, scenario = (len(self.runs), self.config.learning.clients), self.uplink.scenario
        kind = torch.float32 if scenario.count_partial else torch.bool
        delivered = torch.zeros(shape, dtype=kind, device=self.device)
        if PERFECT in self.learned:
            delivered[self.of_policy(PERFECT)] = 1
        for name, outcome in self.outcomes.items():
            delivered[self.of_policy(name)] = outcome.arrived(scenario)
        return delivered

    def evaluates(self, number: int) -> bool:
        """Whether the models are tested after a round."""
        run = self.config.run
        return (number + 1) % run.evaluate_every == 0 or number + 1 == run.rounds

    def add(self, state: ServerState, inner: Tensor, measures: Mapping[str, Tensor]) -> None:
        """Take down one more round: Gram matrices, and what `RunRound` is made of, [run, ...]."""
        number, bits = self.at.rounds, self.uplink.scenario.payload_bits
        bits = bits.cpu() if isinstance(bits, Tensor) else bits
        if not self.evaluates(number):  # though others beside it may be tested now
            missing = torch.full_like(measures["loss"], torch.nan)
            tested = ("accuracy", "loss", "accuracy_averaged")
            measures = {**measures, **dict.fromkeys(tested, missing)}
        uploads = self.at.uploads + measures["delivered"]
        ages = torch.where(measures["delivered"], 0.0, self.at.ages + 1.0)
        outcomes = {name: on_cpu(outcome) for name, outcome in self.outcomes.items()}
        for run, (seed, name) in enumerate(self.runs):
            sent = outcomes.get(name)
            outcome = sent and part_of(sent, run // len(self.learned))
            own = {what: value[run] for what, value in measures.items()}
            spent = outcome and self._bill.spent(seed, *outcome.used)
            seen = RunRound(bits, uploads=uploads[run], outcome=outcome, spent=spent, **own)
            self.rows.append(metrics.measured_row(seed, name, number, seen))
        if self.genie is not None:
            bounds = zip(self.uplink.seeds, self.genie.tolist(), strict=True)
            self.rows += [metrics.bound_row(seed, GENIE, number, bound) for seed, bound in bounds]
        self.grams[number] = inner
        # One assignment: an interrupt finds a whole number of rounds done.
        self.at = Position(number + 1, state, uploads, ages)

    # --- its folder ------------------------------------------------------------------------------

    def save_if_due(self, folder: RunFolder) -> None:
        """A checkpoint every `run.checkpoint_s`."""
        if time.monotonic() - self._saved >= self.config.run.checkpoint_s:
            self.save(folder)

    def save(self, folder: RunFolder) -> None:
        """A checkpoint now."""
        # Metrics first: rows of rounds the checkpoint does not know are dropped on resuming.
        at = self.at
        text = rows_text(row for row in self.rows if row.round < at.rounds)
        write_text(folder.metrics, text)
        folder.save_checkpoint(at.rounds, self._tensors(at), fingerprint(text))
        self._saved = time.monotonic()

    def _tensors(self, at: Position) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        tensors = at.state.tensors() | {"uploads": at.uploads}
        return tensors | ({"grams": self.grams[: at.rounds]} if at.rounds else {})

    def resume(self, folder: RunFolder) -> None:
        """Go on where the folder's checkpoint left off, if it has one."""
        if (stored := folder.load_checkpoint()) is None:
            return
        done, tensors, of_rows = stored
        wanted = self._tensors(self.at._replace(rounds=done))
        if "momentum" not in wanted:  # version 0.1.0 kept one where there was none
            tensors.pop("momentum", None)
        shapes, found = (
            {name: (tensor.shape, tensor.dtype) for name, tensor in each.items()}
            for each in (wanted, tensors)
        )
        if found != shapes or done > self.config.run.rounds:
            raise folder.damaged()
        rows = [row for row in read_rows(folder.metrics) if row.round < done]
        metrics.check_complete(rows, folder.metrics, self.names, self.config, done)
        if of_rows not in (None, fingerprint(rows_text(rows))):
            raise folder.damaged("is not of the rounds in metrics.csv")
        uploads = tensors.pop("uploads")
        if done:
            self.grams[:done] = tensors.pop("grams")
        state = ServerState.of(tensors).each(lambda tensor: tensor.to(self.device))
        each = [deliveries(rows, seed, name) for seed, name in self.runs]
        ages = torch.stack([ages_after(own, self.config.learning.clients) for own in each])
        self.rows, self.at = rows, Position(done, state, uploads, ages)

    def finish(self, folder: RunFolder) -> None:
        """Write what a finished run leaves."""
        if folder.keeps_models:
            self.save(folder)
        facts = {
            "scopes": {policy.name: str(policy.scope) for policy in self.policies.values()},
            "about": {policy.name: described(policy) for policy in self.policies.values()},
        }
        grams, bits = self.grams.transpose(0, 1).numpy(), self.uplink.scenario.payload_bits
        write_results(folder, self.rows, self.runs, grams, bits, self.model_digests(), facts)

    def model_digests(self) -> dict[str, str]:
        """SHA-256 of every run's model."""
        models, state = {}, self.at.state
        for run, (seed, name) in enumerate(self.runs):
            model = {"parameters": state.parameters[run], "buffers": state.buffers[run]}
            models[model_name(seed, name)] = digest(model)
        return models


def model_name(seed: int, policy: str) -> str:
    """What run.json calls the model of a run."""
    return f"{policy}, seed {seed}"


def runs_of(config: Config) -> list[tuple[int, str]]:
    """Seeds and policies that learn: all of the first seed, then of the second, ..."""
    learned = [name for name in compared_names(config) if name != GENIE]
    return [(config.run.seed + n, name) for n in range(config.run.seeds) for name in learned]


def write_results(
    folder: RunFolder,
    rows: Sequence[Row],
    runs: Sequence[tuple[int, str]],
    grams: np.ndarray,
    payload: Payload,
    models: Mapping[str, str],
    facts: Mapping[str, Mapping[str, str]],
) -> None:
    """Rows, Gram matrices [run, round, client, client] for `replay` and training, digests, and
    facts about policies."""
    write_text(folder.metrics, rows_text(rows))
    arrays = {
        "inner": grams,
        "seed": np.array([seed for seed, _ in runs]),
        "policy": np.array([name for _, name in runs]),
        "payload_bits": torch.as_tensor(payload, dtype=torch.float64).numpy(force=True),
    }
    write_npz(folder.path / "gradients.npz", arrays)
    folder.finish(models, **facts)


def deliveries(rows: Iterable[Row], seed: int, policy: str) -> list[list[int]]:
    """Who delivered in a run, round after round."""
    own = [row for row in rows if (row.seed, row.policy) == (seed, policy)]
    return [[int(client) for client in row.delivered_clients.split()] for row in own]


def stored_rows(folder: RunFolder) -> list[Row]:
    """The rows of a finished run; refused unless all are there, as the run left them."""
    check_unchanged(folder.path, folder.record, folder.metrics.name)
    rows = read_rows(folder.metrics)
    names, config = compared_names(folder.config), folder.config
    metrics.check_complete(rows, folder.metrics, names, config, config.run.rounds)
    return rows


def stored_grams(folder: Path, config: Config, policies: int) -> tuple[np.ndarray, Payload]:
    """Gram matrices [run, round, client, client] and payload of a finished run.

    Refused if they are not those of a run of so many policies that learn.
    """
    path, names = folder / "gradients.npz", ("inner", "payload_bits")
    clients = config.learning.clients
    stored = read_npz(path, names)
    inner, payload = (stored.get(name, np.zeros(0)) for name in names)
    wanted = (config.run.seeds * policies, config.run.rounds, clients, clients)
    if inner.shape != wanted or inner.dtype != np.float32:
        raise UserError(f"{str(path)!r} does not belong to this run: it must hold {list(wanted)}.")
    fits = payload.shape in ((), (clients,)) and payload.dtype.kind == "f"
    if not fits or not np.all((payload > 0) & (payload < np.inf)):
        raise UserError(f"{str(path)!r} does not belong to this run: payload_bits is missing.")
    return inner, torch.from_numpy(payload).float() if payload.ndim else payload.item()


def bound_under(
    config: Config, delivering: str | int | None, device: torch.device, draws: int = 8
) -> Iterator[BoundRow]:
    """Every term of Theorem 1, round by round, on the first seed of `config`.

    A policy says who delivers, as in `fedfade compare`; or a number of clients, drawn at random.
    """
    if delivering == GENIE:
        raise not_allowed("--policy", delivering, "a policy that sends, or perfect")
    learning, run = config.learning, config.run
    federation = Federation(learning, load_data(learning), device=device, precision=run.precision)
    along_run = partial(bound_along_run, federation, run.seed, run.rounds, draws=draws)
    if delivering == PERFECT:
        return along_run(None)
    if not isinstance(delivering, str):
        return along_run(delivering)
    policy = compared_policy(config, delivering, "--policy")
    one_seed = config.model_copy(update={"run": run.model_copy(update={"seeds": 1})})
    uplink = Uplink(one_seed, federation.payload_bits, federation.device)

    rounds: list[list[int]] = []  # who delivered

    def deliver(sent: Sent) -> Tensor:
        age = ages_after(rounds, learning.clients)[None]
        with one_thread():
            outcome = uplink.play(policy, sent.number, sent.inner, age=age)
        rounds.append((outcome.delivered & sent.updates.finite)[0].nonzero().flatten().tolist())
        return outcome.arrived(uplink.scenario)

    return along_run(deliver)
