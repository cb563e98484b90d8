"""Everything works from an installed wheel, in a folder without the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_every_command_works_from_a_wheel(tmp_path: Path) -> None:
    """Templates, scripts, presets, tables and trained agents come along."""
    source, site, here = (tmp_path / name for name in ("source", "site", "here"))
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", site, source], check=True)
    here.mkdir()
    shown = ", ".join(change.replace("=", ": ") for change in TINY if "seeds" not in change)
    (here / "alphas.yaml").write_text(SWEEP.replace("SETTINGS", shown))
    few = [word for change in TINY for word in ("--set", change)]
    agents = ["--set", "qmix.hidden=[4]", "--set", "qmix.batch_size=16"]
    commands = [
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
    made = ("run/report.html", "agents/training.html", "round.html", "all.html")
    for page in made:
        text = (here / page).read_text()
        assert text.startswith("<!doctype html>"), page
        assert str(ROOT) not in text
    assert (here / "runs" / "sweep-alphas" / "figures" / "alpha-accuracy.png").exists()
