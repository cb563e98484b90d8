"""What pages are made of, without a browser: sizes, the content policy, data that stays data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedfade.allocation import History
from fedfade.config import load_config
from fedfade.experiments import read_rows
from fedfade.experiments.replay import ReplayedRound, replayed, round_part
from fedfade.experiments.round_figures import save_round
from fedfade.pages import PagePart, page_html
from fedfade.uplink import scenario_from_config


def made_up_round(clients: int = 10, slots: int = 250, plays: int = 2) -> ReplayedRound:
    """Noise, which packs worse than anything a policy would do."""
    config = load_config("paper", [f"learning.clients={clients}", f"radio.slots={slots}"])
    scenario = scenario_from_config(config, 1e6)
    generator = torch.Generator().manual_seed(0)
    shape = (slots, clients)

    def drawn(most: int) -> torch.Tensor:
        return torch.randint(most, shape, generator=generator)

    left = torch.rand(shape, generator=generator).sort(0, descending=True).values * 1e6
    histories = {
        f"policy {n}": History(drawn(4), drawn(4), torch.zeros(shape), left, torch.ones(shape) > 0)
        for n in range(plays)
    }
    fading = torch.rand(slots, clients, 4, generator=generator)
    position = 400 * torch.rand(clients, 2, generator=generator) - 200
    return ReplayedRound(
        *(config, 0, 0, scenario, [10.0] * clients, position, fading, histories),
        dict.fromkeys(histories, "as it comes"),
    )


def test_a_round_of_two_policies_is_small(tmp_path: Path) -> None:
    """250 slots, 10 clients: below 200 kB with scripts and the picture for those without."""
    for plays in (1, 2):
        save_round(made_up_round(plays=plays), tmp_path / "round.html")
        assert (tmp_path / "round.html").stat().st_size < 200_000


def test_the_data_of_a_round_are_what_was_played(run: Path) -> None:
    replay = replayed(run, ["max-sum-rate"], 1, 4)
    data = round_part(replay, "x", None).data
    assert isinstance(data, dict)
    (play,), history = data["plays"], replay.plays["max-sum-rate"]
    shape = (data["slots"], data["clients"])

    def stored(text: str, *more: int) -> np.ndarray:
        return np.frombuffer(base64.b64decode(text), np.uint8).reshape(*shape, *more)

    assert (stored(play["band"]) == history.band.numpy()).all()
    assert (stored(play["level"]) == history.level.numpy()).all()
    delivered = (stored(play["left"])[-1] == 0).nonzero()[0]
    rows = read_rows(run / "metrics.csv")
    row = next(r for r in rows if (r.policy, r.seed, r.round) == ("max-sum-rate", 1, 4))
    assert " ".join(map(str, delivered)) == row.delivered_clients
    low, high = data["fading_db"]
    found = low + stored(data["fading"], data["bands"]) / 255 * (high - low)
    exact = 10 * np.log10(replay.fading.numpy())
    inside = (exact > low) & (exact < high)
    assert np.abs(found - exact)[inside].max() <= (high - low) / 255


def test_a_round_in_motion(run: Path, tmp_path: Path) -> None:
    save_round(replayed(run, ["max-sum-rate", "random"], 0, 1), tmp_path / "round.gif")
    picture = Image.open(tmp_path / "round.gif")
    assert picture.n_frames == 21  # of 20 slots, before the first too
    first = np.asarray(picture.convert("L")).astype(int)
    picture.seek(20)
    last = np.asarray(picture.convert("L")).astype(int)
    assert last.mean() < first.mean() - 1  # bars come out of the veil


def test_data_stay_data() -> None:
    """Nothing ends the element they stand in, and what is no number is none."""
    given = {"a": "</script><!--", "b": [float("nan"), float("inf"), 1.5], "c": "\x1b"}
    part = PagePart("chart", "<b>", {"intro": "&", "picture": None}, given)
    page = page_html("<i>", [part])
    (text,) = re.findall(r'<script type="application/json" class="data">(.*?)</script>', page)
    assert json.loads(text) == {"a": "</script><!--", "b": [None, None, 1.5], "c": "\\x1b"}
    assert "<b>" not in page
    assert "<i>" not in page.partition("<script id")[0]


def test_the_content_policy_names_our_script_and_style_alone(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert len(page) < 1_500_000
    policy = re.findall(r'Content-Security-Policy" content="(.*?)">', page)[0]
    policy = policy.replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    for tag in ('script id="code"', "style"):
        inner = re.findall(rf"<{tag}>(.*?)</{tag.split()[0]}>", page, re.S)[0]
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not re.search(
        r' (on\w+|style)="', page.partition("<script id")[0]
    )  # all would be refused


def test_one_report_of_several_folders(run: Path, fedfade, tmp_path: Path) -> None:
    out = tmp_path / "all.html"
    answer = fedfade("report", run, run, "qmix-plus", "--out", out)
    assert answer.code == 0, answer.err
    page = out.read_text()
    assert page.count('data-kind="comparison"') == 2
    assert page.count('data-kind="round"') == 2
    assert 'data-kind="overview"' in page
    assert "QMIX agents, 1 seed" in page
    assert page.count('<script id="code">') == 1


def test_an_old_report_is_built_again(run: Path, fedfade) -> None:
    before = (run / "report.html").read_text()
    (run / "report.html").write_text("of an older version")
    answer = fedfade("report", run)
    assert answer.code == 0, answer.err
    assert (run / "report.html").read_text() == before


def test_a_run_under_way_and_a_training_have_one_too(fedfade, run: Path, tmp_path: Path) -> None:
    """Rounds that only some runs have are left out, and there is no round to watch."""
    under_way = tmp_path / "under-way"
    under_way.mkdir()
    record = json.loads((run / "run.json").read_text()) | {"finished": None}
    (under_way / "run.json").write_text(json.dumps(record))
    (under_way / "config.yaml").write_text((run / "config.yaml").read_text())
    lines = (run / "metrics.csv").read_text().splitlines()
    (under_way / "metrics.csv").write_text("\n".join(lines[:-2]) + "\n")
    small = ["--set", "qmix.hidden=[4]", "--set", "qmix.gradients=synthetic", "--episodes", 20]
    assert fedfade("train", "small-cell", *small, "--out", tmp_path / "trained").code == 0
    out = tmp_path / "report.html"
    answer = fedfade("report", under_way, tmp_path / "trained", "--out", out)
    assert answer.code == 0, answer.err
    page = out.read_text()
    assert "6 rounds of which 5 are done" in page
    assert 'data-kind="round"' not in page
    assert "training episodes" in page


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("empty", "holds no run, sweep, training or checkpoint"),
        ("metrics", "is not a metrics file"),
        ("link", "is a link"),
    ],
)
def test_a_folder_that_is_none_is_one_sentence(
    damage: str, sentence: str, run: Path, fedfade, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if damage != "empty":
        for name in ("run.json", "config.yaml", "metrics.csv"):
            (folder / name).write_text((run / name).read_text())
    if damage == "metrics":
        (folder / "metrics.csv").write_text("a,b\n1,2\n")
    if damage == "link":
        (folder / "figures").symlink_to(tmp_path)
    answer = fedfade("report", folder)
    assert answer.code == 2
    assert sentence in answer.err
    assert not (folder / "report.html").exists()


def test_a_report_of_a_strangers_folder_runs_none_of_its_code(
    run: Path, fedfade, tmp_path: Path
) -> None:
    """A policy that the folder names is not imported for a round to watch."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in run.glob("*.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    for name in ("config.yaml", "metrics.csv"):
        text = (run / name).read_text().replace("block-fading-schedule", "trap:Policy")
        (folder / name).write_text(text)
    record = json.loads((run / "run.json").read_text())
    del record["left"]
    (folder / "run.json").write_text(json.dumps(record))
    (tmp_path / "trap.py").write_text("raise SystemExit('it ran')")
    answer = fedfade("report", folder, "--out", tmp_path / "page.html")
    assert answer.code == 0, answer.err
    assert "trap:Policy" in (tmp_path / "page.html").read_text()
