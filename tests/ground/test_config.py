"""Configuration: every fault is one sentence naming field, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedfade.config import (
    Config,
    differences,
    load_config,
    preset_names,
    preset_summary,
    render_config,
)
from fedfade.errors import UserError

FAULTS = [
    ("radio.bandwidth_hz=0", "radio.bandwidth_hz = 0 ", "at least 1"),
    ("radio.bandwidth_hz=-5e6", "radio.bandwidth_hz", "at least 1"),
    ("radio.bandwidth_hz=.nan", "radio.bandwidth_hz", "finite"),
    ("radio.bandwidth_hz=wide", "radio.bandwidth_hz = 'wide'", "a number"),
    ("radio.bandwidth_hz=1e9", "radio.bandwidth_hz", "radio.carrier_hz"),
    ("radio.clusters=1", "radio.clusters = 1", "at least 2"),
    ("radio.clusters=2.5", "radio.clusters = 2.5", "whole number"),
    ("radio.source=quadriga", "radio.source = 'quadriga'", "'clustered', 'rayleigh' or 'traces'"),
    ("radio.source=traces", "radio.traces = 'null'", "a path"),
    ("radio.power_levels_dbm=[-100]", "radio.power_levels_dbm", "above -100 dBm"),
    ("radio.power_levels_dbm=[23, 10]", "radio.power_levels_dbm", "silent level"),
    ("radio.power_levels_dbm=[]", "radio.power_levels_dbm = []", "longer list"),
    ("radio.clutsers=3", "radio.clutsers is not a known field", "'clusters'"),
    ("raido.clusters=3", "raido is not a known field", "'radio'"),
    ("radio=3", "radio = 3", "a mapping of fields"),
    ("learning.clients=0", "learning.clients = 0", "at least 1"),
    ("learning.payload_bits=large", "learning.payload_bits = 'large'", "a number"),
    ("learning.payload_bits=-1", "learning.payload_bits = -1", "at least 1e-20"),
    ("cell.min_distance_m=600", "cell.min_distance_m = 600", "inner radius"),
    ("qmix.batch_size=20000", "qmix.batch_size = 20000", "qmix.replay_size"),
    ("qmix.n_step=501", "qmix.n_step = 501", "at most 500, the slots in qmix.replay_size"),
    ("allocation.policies=[random, random]", "allocation.policies", "without repetitions"),
    ("run.seed=-1", "run.seed = -1", "at least 0"),
    ("nonsense", "--set = 'nonsense'", "section.field=value"),
    ("radio.clusters=[1", "--set", "valid YAML"),
    ("radio.clusters.deep=1", "radio.clusters", "whole number"),
]


@pytest.mark.parametrize(("override", "names", "allowed"), FAULTS)
def test_a_fault_is_one_sentence(override: str, names: str, allowed: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config("paper", [override])
    sentence = str(caught.value)
    assert names in sentence
    assert allowed in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize("name", preset_names())
def test_presets_survive_printing_and_reading(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    printed = tmp_path / "copy.yaml"
    printed.write_text(render_config(config))
    assert load_config(printed) == config
    assert len(preset_summary(name)) > 20


def test_every_field_is_described() -> None:
    text = render_config(Config())
    for line in text.splitlines():
        assert "# " in line
        assert "None" not in line.split("# ")[1]


def test_overrides_understand_scientific_notation() -> None:
    assert load_config("paper", ["radio.carrier_hz=28e9"]).radio.carrier_hz == 28e9


def test_differences_name_the_fields() -> None:
    one, other = load_config("paper"), load_config("paper", ["radio.clusters=28", "run.seed=3"])
    assert differences(one, other) == ["radio.clusters", "run.seed"]
    assert differences(one, other, ignore=["run.seed"]) == ["radio.clusters"]


@pytest.mark.parametrize(
    "text", ["a: [1", "- 1\n- 2", "radio: {clusters: !!python/object/apply:os.getcwd []}"]
)
def test_a_broken_preset_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(UserError):
        load_config(path)


def test_noise_power_is_the_textbook_value() -> None:
    # -174 dBm/Hz + 10 log10(5 MHz) + 5 dB
    assert load_config("paper").radio.noise_dbm == pytest.approx(-102.01, abs=0.005)


@pytest.mark.parametrize("command", ["compare", "reproduce", "channel show"])
def test_help_says_what_arguments_are_for(command: str, fedfade) -> None:
    """Plain text, whatever the versions of Typer and click do to it."""
    answer = fedfade(*command.split(), "--help")
    assert answer.code == 0
    wanted = {
        "compare": "PRESET  preset name or path of a .yaml file  [required]",
        "reproduce": "[PART]  what to make; all in order if not given  [default: all]",
        "channel show": "FILES...  one .npz of gains, or two to compare  [required]",
    }
    assert answer.out.count(wanted[command]) == 1
    assert "\\[" not in answer.out


def test_config_command(fedfade) -> None:
    answer = fedfade("config", "ring", "--set", "radio.clusters=28")
    assert answer.code == 0
    assert yaml.safe_load(answer.out)["radio"]["clusters"] == 28
    answer = fedfade("config", "ring", "--set", "radio.clusters=1")
    assert answer.code == 2
    assert answer.err.strip().count("\n") == 0
    answer = fedfade("presets")
    assert all(name in answer.out for name in preset_names())
