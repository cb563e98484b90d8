"""Everything works from what is released, in a folder without the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_every_command_works_from_a_wheel_of_the_sdist(tmp_path: Path) -> None:
    """Templates, scripts, presets, tables and trained agents come along, all the way from the
    checkout to the sdist, to the wheel that pip makes of it, and to where it is installed."""
    source, site, here = (tmp_path / name for name in ("source", "site", "here"))
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-c", SDIST, str(tmp_path)]
    subprocess.run(build, cwd=source, check=True, stdout=subprocess.DEVNULL)
    sdist = tmp_path / f"fedfade-{__version__}.tar.gz"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", site, sdist], check=True)
    assert files(site / "fedfade") == files(source / "src" / "fedfade")
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
