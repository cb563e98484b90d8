"""What all tests share: one thread, a tiny scenario, the reference data where it exists."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import torch

from fedfade.config import Config, load_config
from fedfade.uplink import Round, Scenario, draw_chance, plain_round, scenario_from_config

torch.set_num_threads(1)

HERE = Path(__file__).parent

# Third parties are not told that tests run, here and in every process a test starts.
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


class NetworkUsed(AssertionError):
    """A test asked for a machine other than this one."""


def _refuse_the_network(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: no connection and no look-up beyond this machine, whoever asks."""
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else "localhost"  # else: a Unix socket
    elif event == "socket.getaddrinfo":
        host = arguments[0] or "localhost"
    else:
        return
    text = host.decode() if isinstance(host, bytes) else str(host)
    try:
        here = ipaddress.ip_address(text).is_loopback or text in ("0.0.0.0", "::")
    except ValueError:
        here = text in ("localhost", "", socket.gethostname())
    if not here:
        raise NetworkUsed(f"tests use no network: {event} to {host!r}")


sys.addaudithook(_refuse_the_network)

SLOW_FOLDERS = ("bench", "experiments", "flower", "pages", "reliability", "studies", "tutorials")
QUICK_IN_THEM = ("test_source.py", "test_a_run_leaves_a_report", "test_what_is_kept_is_clean")
SLOW_TESTS = (
    "test_a_kill_at_any_moment_of_a_save_of_two_seeds",
    "test_a_plain_key_is_folded_where_the_index_is",
    "test_a_policy_that_raises_leaves_the_folder_to_the_corrected_command",
    "test_a_rules_memory_survives_an_interrupt",
    "test_agents_learn_to_take_turns",
    "test_agrees_with_the_sample_by_sample_procedure",
    "test_bench",
    "test_bf16_stays_near_the_textbook",
    "test_clients_are_uniform_in_the_hexagon",
    "test_duplex_dueling",
    "test_engines_agree_with_a_textbook_loop",
    "test_export.py",
    "test_killed_training_resumes_to_the_same_bits",
    "test_learning_learns",
    "test_more_clusters_mean_less_correlation",
    "test_nobody_beats_the_genie",
    "test_partition_counts_and_picture",
    "test_resumed_training_ends_in_the_same_bits",
    "test_seeds_saved_at_different_moments_draw_level",
    "test_several_seeds_in_one_program_are_each_what_they_are_alone",
    "test_side_by_side_and_resumed_alike",
    "test_small_cell.py",
    "test_statistics_are_quadrigas",
    "test_the_command",
    "test_the_fewest_and_the_most_clusters",
    "test_the_planned_subband_is_what",
    "test_the_reference_learns_as_a_program",
    "test_training_images_are_standardised_per_channel",
    "test_training_needs_no_extras",
    "test_two_step_game.py",
    "test_values_are_checked_after_the_round",
    "test_who_begins_with_less_is_planned_with_less",
    "test_who_has_nothing_to_send_takes_nobodys_turn",
    "test_whole_batches_are_announced",
)
"""Beginnings of the names of tests and files; what is left takes `make check` about a minute."""


LONGEST = (
    "test_runtimes.py",
    "test_sweep.py",
    "test_strategy.py",
    "test_tutorials.py",
    "test_compare.py",
    "test_reproduce.py",
    "test_faults.py",
    "test_kills.py",
    "test_sets.py",
    "test_training.py",
    "test_policies.py",
    "test_growth.py",
    "test_side_by_side.py",
    "test_small_cell.py",
    "test_wheel.py",
)
"""Files that take longest, in this order: a process that is handed one of them last works on while
the others have nothing left to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, where several processes share the files; and mark what `make check`
    leaves out."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        ranks = {name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path.name, len(LONGEST)))
    for item in items:
        slow = item.name.startswith(SLOW_TESTS) or item.path.name.startswith(SLOW_TESTS)
        if item.path.is_relative_to(HERE) and item.path.parent.name in SLOW_FOLDERS:
            slow = not (item.name.startswith(QUICK_IN_THEM) or item.path.name in QUICK_IN_THEM)
        if slow:
            item.add_marker("slow")


def pytest_sessionstart() -> None:
    """Importing everything makes no garbage worth looking for."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What is there by now stays: no collection of garbage has to look through all of it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


TINY = [
    "learning.data=digits",
    "learning.clients=4",
    "learning.local_work=1",
    "learning.batch_size=20",
    "learning.payload_bits=400000",
    "radio.subbands=2",
    "radio.slots=20",
    "radio.clusters=4",
    "radio.subcarriers=4",
    "run.rounds=3",
    "run.seeds=2",
]
"""Overrides that make any preset run in a second or two."""


@pytest.fixture
def tiny() -> Config:
    """A small cell with digits."""
    return load_config("paper", TINY)


@pytest.fixture
def make_round() -> Callable[..., tuple[Scenario, Round]]:
    """Upload problems at a wanted SNR under Rayleigh fading, independent of fedfade.radio."""

    def make(
        snr_db: float = 15.0,
        spread_db: float = 0.0,
        episodes: int = 3,
        seed: int = 0,
        overrides: tuple[str, ...] = (),
    ) -> tuple[Scenario, Round]:
        config = load_config("paper", list(overrides))
        payload = config.learning.payload_bits
        scenario = scenario_from_config(config, 9_932_960 if payload == "auto" else payload)
        generator = torch.Generator().manual_seed(seed)
        clients = scenario.clients
        level = snr_db + spread_db * torch.randn(episodes, clients, generator=generator)
        uniform = torch.rand(episodes, scenario.slots, clients, scenario.bands, generator=generator)
        vectors = torch.randn(episodes, clients, 30, generator=generator)
        return scenario, plain_round(
            alpha=10 ** (level / 10) * (scenario.noise_w / scenario.full_power_w),
            fading=-torch.log1p(-uniform),
            inner=vectors @ vectors.transpose(1, 2),
            number=torch.arange(episodes, dtype=torch.float32),
            age=torch.zeros(episodes, clients),
            chance=draw_chance(scenario, torch.arange(episodes) + 1000 * seed),
        )

    return make


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def fedfade(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Run the real command line in this process: `fedfade("compare", "quickstart")`."""
    from fedfade.cli import main

    def call(*words: object) -> Answer:
        monkeypatch.setattr("sys.argv", ["fedfade", *map(str, words)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and trainings without their pictures, which take most of the time of a tiny run."""
    monkeypatch.setattr("fedfade.experiments.report._pictures", lambda *given: {})
    monkeypatch.setattr("fedfade.commands.train._draw", lambda *given: None)


def shared_folder() -> Path | None:
    """Reference traces and CIFAR-10, when they lie beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    return folder if folder.is_dir() else None


@pytest.fixture
def ray_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of Ray's own for one test, so that clusters of two tests never meet."""
    # Not tmp_path: Ray puts sockets there, and their paths must stay below 108 characters.
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        yield Path(folder)
