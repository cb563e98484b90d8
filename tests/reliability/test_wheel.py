"""Everything works from what is released, in a folder without the repository: the wheel of the
sdist, with the packages that are installed here and in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fedfade import __version__
from tests.conftest import TINY

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
import fedfade, torch
from fedfade.cli import main

torch.set_num_threads(1)
assert fedfade.__file__.startswith(sys.argv[1]), fedfade.__file__
for words in json.loads(sys.argv[2]):
    sys.argv = ["fedfade", *words]
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            sys.exit(f"{words}: exit code {stop.code}")
"""
SWEEP = """
preset: paper
set: {SETTINGS, allocation.policies: [random, perfect]}
grid: {learning.alpha: [0.5, 5]}
"""


SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def files(package: Path) -> set[str]:
    found = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if path.parent.name != "__pycache__"}


class Release(NamedTuple):
    """What is released, and the sources it was made from."""

    wheel: Path
    package: Path


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """From the checkout to the sdist, and to the wheel that pip makes of it."""
    made = tmp_path_factory.mktemp("release")
    source = made / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-c", SDIST, str(made)]
    subprocess.run(build, cwd=source, check=True, stdout=subprocess.DEVNULL)
    sdist = made / f"fedfade-{__version__}.tar.gz"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "-w", made, sdist], check=True)
    return Release(made / f"fedfade-{__version__}-py3-none-any.whl", source / "src" / "fedfade")


def test_every_command_works_from_a_wheel_of_the_sdist(release: Release, tmp_path: Path) -> None:
    """Templates, scripts, presets, tables and trained agents come along."""
    site, here = tmp_path / "site", tmp_path / "here"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", site, release.wheel], check=True)
    assert files(site / "fedfade") == files(release.package)
    here.mkdir()
    shown = ", ".join(change.replace("=", ": ") for change in TINY if "seeds" not in change)
    (here / "alphas.yaml").write_text(SWEEP.replace("SETTINGS", shown))
    few = [word for change in TINY for word in ("--set", change)]
    agents = ["--set", "qmix.hidden=[4]", "--set", "qmix.batch_size=16"]
    commands = [
        ["--version"],
        ["presets"],
        ["train", "paper", *few, *agents, "--episodes", "20", "--out", "agents"],
        ["compare", "paper", *few, "--policies", "random", "--out", "run"],
        ["compare", "paper", *few, "--policies", "qmix", "--checkpoint", "agents", "--out", "run"],
        ["verify", "run", "--rounds", "1"],
        ["replay", "run", "--policy", "random", "--out", "round.html"],
        ["sweep", "alphas.yaml", "--workers", "1"],
        ["report", "run", "agents", "runs/sweep-alphas", "--out", "all.html"],
    ]
    words = [sys.executable, "-P", "-c", PROGRAM, str(site), json.dumps(commands)]
    given = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(words, cwd=here, env=given, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(f"fedfade {__version__}\n")
    made = ("run/report.html", "agents/training.html", "round.html", "all.html")
    for page in made:
        text = (here / page).read_text()
        assert text.startswith("<!doctype html>"), page
        assert str(ROOT) not in text
    assert (here / "runs" / "sweep-alphas" / "figures" / "alpha-accuracy.png").exists()


UNREACHABLE = re.compile(r"connection broken|Max retries|Could not fetch URL|HTTP error")
"""What pip says of an index that does not answer."""


@pytest.mark.skipif(
    sys.platform == "linux" and torch.version.cuda is not None,
    reason="a fresh environment would fetch PyTorch for CUDA once more",
)
def test_the_wheel_works_in_an_environment_of_its_own(release: Release, tmp_path: Path) -> None:
    """With its dependencies and nothing else: no package of the development environment, no
    checkout, no PYTHONPATH."""
    clean, here = tmp_path / "clean", tmp_path / "here"
    here.mkdir()
    python, command = clean / "bin" / "python", clean / "bin" / "fedfade"
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        line, own = [*map(str, words)], given | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(line, cwd=here, env=own, capture_output=True, text=True, check=False)

    assert run(sys.executable, "-m", "venv", "--without-pip", clean).returncode == 0
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--retries=1")
    exact = f"torch=={version('torch')}"  # a range would fetch the CUDA build
    answer = run(
        *pip, "--no-compile", "--constraint", ROOT / "constraints.txt", exact, release.wheel
    )
    unreachable = "PIP_NO_INDEX" in given or UNREACHABLE.search(answer.stderr)
    if answer.returncode and unreachable:
        pytest.skip("pip reaches no package index, which a fresh environment is made from")
    assert answer.returncode == 0, answer.stderr
    (site,) = clean.glob("lib/python*/site-packages")
    assert files(site / "fedfade") == files(release.package)
    for part in ("py.typed", "presets/quickstart.yaml", "pages/page.html", "checkpoints/qmix"):
        assert (site / "fedfade" / part).exists(), part
    assert not (site / "pytest").exists()
    answer = run(command, "--version")
    assert answer.stdout == f"fedfade {__version__}\n", answer.stderr
    few = (word for change in TINY for word in ("--set", change))
    compare = ("compare", "quickstart", *few, "--policies", "random,size-free", "--out", "run")
    answer = run(command, *compare)
    assert answer.returncode == 0, answer.stderr
    text = (here / "run" / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert str(ROOT) not in text
    shutil.rmtree(clean)  # a gigabyte
