"""Configuration: every fault is one sentence naming field, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from fedfade.config import (
    Config,
    changed,
    config_from_tree,
    differences,
    load_config,
    preset_names,
    preset_summary,
    render_config,
)
from fedfade.errors import UserError
from fedfade.experiments import RunFolder
from fedfade.experiments.run_folder import open_finished

FAULTS = [
    ("radio.bandwidth_hz=0", "radio.bandwidth_hz = 0 ", "at least 1"),
    ("radio.bandwidth_hz=-5e6", "radio.bandwidth_hz", "at least 1"),
    ("radio.bandwidth_hz=.nan", "radio.bandwidth_hz", "finite"),
    ("radio.bandwidth_hz=wide", "radio.bandwidth_hz = 'wide'", "a number"),
    ("radio.bandwidth_hz=1e9", "radio.bandwidth_hz", "radio.carrier_hz"),
    ("radio.clusters=1", "radio.clusters = 1", "at least 2"),
    ("radio.clusters=10001", "radio.clusters = 10001", "at most 10000"),
    ("radio.clusters=2.5", "radio.clusters = 2.5", "whole number"),
    (
        "radio.source=quadriga",
        "radio.source = 'quadriga'",
        "one of clustered, rayleigh, gamma, traces, or",
    ),
    ("radio.source=traces", "radio.traces = 'null'", "a path"),
    ("radio.power_levels_dbm=[-100]", "radio.power_levels_dbm", "above -100 dBm"),
    ("radio.power_levels_dbm=[23, 10]", "radio.power_levels_dbm", "silent level"),
    ("radio.power_levels_dbm=[]", "radio.power_levels_dbm = []", "at least 1 entry"),
    ("radio.clutsers=3", "radio.clutsers is not a known field", "'clusters'"),
    ("raido.clusters=3", "raido is not a known field", "'radio'"),
    ("radio=3", "radio = 3", "a mapping of fields"),
    ("learning.clients=0", "learning.clients = 0", "at least 1"),
    ("learning.payload_bits=large", "learning.payload_bits = 'large'", "a number"),
    ("learning.payload_bits=-1", "learning.payload_bits = -1", "at least 1e-06"),
    ("cell.min_distance_m=600", "cell.min_distance_m = 600", "inner radius"),
    ("cell.mobility=walk", "cell.mobility = 'walk'", "'reflect', 'waypoint', 'redraw', 'fixed'"),
    ("cell.placement=walk", "cell.mobility = 'walk'", "or 'ring'"),
    (
        "cell={placement: ring, mobility: fixed}",
        "cell.placement = 'ring'",
        "left out where its new",
    ),
    ("cell.round_s=24", "cell.round_s = 24", "the hexagon's inner radius, 433.013 m, in a round"),
    (
        "cell={mobility: waypoint, round_s: 1e5}",
        "cell.round_s = 100000",
        "100,000 times cell.side_m",
    ),
    ("qmix.batch_size=20000", "qmix.batch_size = 20000", "qmix.replay_size"),
    ("qmix.n_step=501", "qmix.n_step = 501", "at most 500, the slots in qmix.replay_size"),
    ("allocation.policies=[random, random]", "allocation.policies", "without repetitions"),
    ("run.seed=-1", "run.seed = -1", "at least 0"),
    ("nonsense", "--set = 'nonsense'", "section.field=value"),
    ("radio.clusters=[1", "--set", "valid YAML"),
    ("radio.clusters.deep=1", "radio.clusters", "whole number"),
    ("learning.clients=true", "learning.clients = True", "a whole number"),
    ("run.seed=true", "run.seed = True", "a whole number"),
    ("radio.bandwidth_hz=true", "radio.bandwidth_hz = True", "a number"),
    ('radio.bandwidth_hz="5e6"', "radio.bandwidth_hz = '5e6'", "a number"),
    ('radio.subbands="4"', "radio.subbands = '4'", "a whole number"),
    ('run.rounds="7"', "run.rounds = '7'", "a whole number"),
    ('qmix.share_parameters="off"', "qmix.share_parameters = 'off'", "true or false"),
    ("qmix.share_parameters=1", "qmix.share_parameters = 1", "true or false"),
    ('qmix.hidden=[true, "12"]', "qmix.hidden.0 = True", "a whole number"),
    ('qmix.hidden=[12, "12"]', "qmix.hidden.1 = '12'", "a whole number"),
    ("learning.payload_bits=foo", "learning.payload_bits = 'foo'", "a number or 'auto'."),
    ("learning.payload_bits=true", "learning.payload_bits = True", "a number or 'auto'."),
    ("allocation.policies=[]", "allocation.policies = []", "a list of at least 1 entry."),
    (f"qmix.hidden={[8] * 33}", "qmix.hidden", "a list of at most 32 entries."),
    (
        "radio.traces=gains.npz",
        "radio.traces = 'gains.npz'",
        "null unless radio.source is 'traces'",
    ),
    ("learning.codec=zip", "learning.codec = 'zip'", "one of none, float32, float16, int8, int4,"),
    ("learning.codec_fraction=0", "learning.codec_fraction = 0", "greater than 0"),
    ("learning.codec_fraction=1.1", "learning.codec_fraction = 1.1", "at most 1"),
    ("learning.count_partial=true", "learning.count_partial = True", "false unless learning.codec"),
    ("learning.payload_factors=0", "learning.payload_factors = 0", "at least 0.01"),
    ("learning.payload_factors=[1, 2]", "learning.payload_factors = [1.0, 2.0]", "a list of"),
    ("learning.payload_factors=[]", "learning.payload_factors = []", "a list of"),
    ("learning.codec=8", "learning.codec = 8", "text"),
    ("learning.server=median", "learning.server = 'median'", "one of mean, momentum, adam,"),
    (
        "learning.server=momentum",
        "learning.server_momentum = 0.0",
        "greater than 0 when learning.server is 'momentum'.",
    ),
    ("learning.previous_update=0", "learning.previous_update = 0", "one of 'broadcast' or 'last'"),
    ("cost.samples_per_s=0", "cost.samples_per_s = 0", "at least 1e-06"),
    ("cost.samples_per_s=.nan", "cost.samples_per_s = nan", "a finite number"),
    ("cost.speed_spread=-0.1", "cost.speed_spread = -0.1", "at least 0"),
    ("cost.speeds=[1, 2]", "cost.speeds", "text"),
    ("cost.amplifier_efficiency=-0.3", "cost.amplifier_efficiency = -0.3", "at least 1e-06"),
    ("cost.amplifier_efficiency=0", "cost.amplifier_efficiency = 0", "at least 1e-06"),
    ("cost.amplifier_efficiency=1.1", "cost.amplifier_efficiency = 1.1", "at most 1"),
    ("cost.circuit_w=-1", "cost.circuit_w = -1", "at least 0"),
    ("cost.compute_w=.inf", "cost.compute_w = inf", "a finite number"),
    ("cost.downlink_bps=0", "cost.downlink_bps = 0", "at least 1"),
    ("run.deadline=soon", "run.deadline = 'soon'", "one of 'fixed', 'wait-for-k' or 'adaptive'"),
    ("run.deadline_clients=0", "run.deadline_clients = 0", "at least 1"),
    (
        "run={deadline: wait-for-k, deadline_clients: 11}",
        "run.deadline_clients = 11",
        "at most learning.clients = 10.",
    ),
    ("radio={clusters: 28, clusters: 14}", "--set", "the key 'clusters' is given twice"),
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


def test_what_is_named_shows_its_choices(fedfade) -> None:
    """From the tables of what can be replaced, so that none is forgotten."""
    notes = dict(
        line.strip().split(": ", 1) for line in fedfade("config", "paper").out.split("\n")[:-1]
    )
    assert notes["source"].endswith("(clustered | rayleigh | gamma | traces | module:factory)")
    codecs = "float16 | int8 | int4 | sign | topk | lowrank | int8-progressive | topk-progressive"
    assert notes["codec"].endswith(f"(none | float32 | {codecs} | module:factory)")
    rules = "mean | momentum | adam | yogi | mifa | fedvarp | scaffold"
    assert notes["server"].endswith(f"({rules} | module:factory)")
    assert notes["hide"].endswith("(gradient | fading)")


def test_what_an_older_version_stored_means_what_it_did(tmp_path: Path) -> None:
    """It names every field but those that came later; a preset without them has the defaults."""
    path = tmp_path / "config.yaml"
    path.write_text(render_config(Config()))
    assert load_config(path, stored=True) == Config()
    later = ("codec", "server", "previous_update", "algorithm", "state", "client_id")
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join(
            line
            for line in lines
            if not line.strip().startswith(tuple(f"{name}:" for name in later))
        )
    )
    assert load_config(path) == Config()
    older = load_config(path, stored=True)
    assert differences(older, Config()) == ["learning.previous_update"]
    assert older.learning.previous_update == "last"
    assert load_config(path, ["learning.previous_update=broadcast"], stored=True) == Config()
    assert config_from_tree({}, stored=True) == older
    with pytest.raises(UserError, match="learning = 3 is not allowed"):
        config_from_tree({"learning": 3}, stored=True)


def test_an_old_name_is_read(tmp_path: Path) -> None:
    """In a user's file, in what a run left, in overrides of either; a preset has the new one."""
    path = tmp_path / "mine.yaml"
    path.write_text("cell: {placement: waypoint, side_m: 400}")
    for stored in (False, True):
        assert load_config(path, stored=stored).cell.mobility == "waypoint"
        for name in ("placement", "mobility"):
            cell = load_config(path, [f"cell.{name}=redraw"], stored).cell
            assert (cell.mobility, cell.side_m) == ("redraw", 400)
    assert load_config("ring", ["cell.placement=fixed"]).cell.mobility == "fixed"
    path.write_text("cell: {placement: ring, mobility: ring}")
    with pytest.raises(UserError, match=r"cell.placement = 'ring' is not allowed: it must be left"):
        load_config(path)


def test_a_run_of_an_older_version_continues_as_it_began(tiny: Config, tmp_path: Path) -> None:
    """Or is refused with the field that says how; nothing goes on in another way."""
    cpu = torch.device("cpu")
    with RunFolder(tmp_path, tiny, cpu).open():
        pass
    stored = tmp_path / "config.yaml"
    lines = stored.read_text().splitlines(keepends=True)
    stored.write_text("".join(line for line in lines if "previous_update:" not in line))
    refused = r"a run of another configuration, differing in learning.previous_update: choose"
    with pytest.raises(UserError, match=refused), RunFolder(tmp_path, tiny, cpu).open():
        pass
    as_before = changed(tiny, {"learning.previous_update": "last"})
    folder = RunFolder(tmp_path, as_before, cpu)
    with folder.open():
        folder.finish({})
    assert open_finished(tmp_path)[0] == as_before


def test_overrides_understand_scientific_notation() -> None:
    assert load_config("paper", ["radio.carrier_hz=28e9"]).radio.carrier_hz == 28e9


WHOLE = [("1e1", 10), ("10.0", 10), ("10", 10), ("1.0e+1", 10), ("1E1", 10)]


@pytest.mark.parametrize(("text", "meant"), WHOLE)
def test_a_whole_number_may_be_written_in_any_way(text: str, meant: int, tmp_path: Path) -> None:
    """The same in --set, in lists and in a file, where YAML 1.1 would read 1e1 as text."""
    preset = tmp_path / "mine.yaml"
    preset.write_text(f"run: {{rounds: {text}}}\nqmix: {{hidden: [{text}]}}\n")
    by_set = load_config("paper", [f"run.rounds={text}", f"qmix.hidden=[{text}]"])
    for config in (load_config(preset), by_set):
        assert (config.run.rounds, config.qmix.hidden) == (meant, [meant])
        assert isinstance(config.run.rounds, int)


@pytest.mark.parametrize(("text", "meant"), [("010", 10), ("0o10", 8), ("0x10", 16), ("+08", 8)])
def test_numbers_are_those_of_yaml_1_2(text: str, meant: int) -> None:
    assert load_config("paper", [f"run.seed={text}"]).run.seed == meant
    with pytest.raises(UserError, match=r"run.seed = '1:30' is not allowed: it must be a whole"):
        load_config("paper", ["run.seed=1:30"])
    assert load_config("paper", ["learning.data=2024-01-01"]).learning.data == "2024-01-01"


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, f"[0x{'f' * 5000}]"])
def test_numbers_that_python_does_not_print(number: str, tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text(f"radio: {{carrier_hz: {number}}}")
    for how in ((preset,), ("paper", [f"radio.carrier_hz={number}"])):
        with pytest.raises(UserError, match=r"a number has 500\d digits"):
            load_config(*how)
    with pytest.raises(UserError, match=r"run.seed = a number of thousands of digits is not"):
        config_from_tree({"run": {"seed": 10**5000}})


def test_a_number_may_be_whole_where_a_fraction_could_be(tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text("radio: {bandwidth_hz: 5.4e6, speed_mps: 3, power_levels_dbm: [2e1, -100]}")
    radio = load_config(preset).radio
    assert (radio.bandwidth_hz, radio.speed_mps) == (5.4e6, 3.0)
    assert radio.power_levels_dbm == [20.0, -100.0]


def test_a_key_given_twice_is_named(tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text("run: {seeds: 2}\nradio:\n  clusters: 28\n  'clusters': 14\n")
    with pytest.raises(UserError, match=r"line 4: the key 'clusters' is given twice"):
        load_config(preset)


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
        "compare": "small-cell, urban-5g, or the path of a .yaml file [required]",
        "reproduce": "[PART] what to make; all in order if not given [default: all]",
        "channel show": "FILES... one .npz of gains, or two to compare [required]",
    }
    assert " ".join(answer.out.split()).count(wanted[command]) == 1
    assert "\\[" not in answer.out


def test_config_command(fedfade) -> None:
    answer = fedfade("config", "ring", "--set", "radio.clusters=28")
    assert answer.code == 0
    assert yaml.safe_load(answer.out)["radio"]["clusters"] == 28
    answer = fedfade("config", "ring", "--set", "radio.clusters=1")
    assert answer.code == 2
    assert answer.err.strip().count("\n") == 0


def test_a_preset_is_one_line_on_a_narrow_screen(fedfade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    heading, *lines = fedfade("presets").out.splitlines()
    assert heading.split()[0] == "preset"
    assert [line.split()[0] for line in lines] == preset_names()
    for line, name in zip(lines, preset_names(), strict=True):
        assert preset_summary(name) in line


def test_quickstart_shows_its_curve_by_half_the_tests() -> None:
    """The last round is among them."""
    run = load_config("quickstart").run
    assert (run.rounds, run.evaluate_every) == (16, 2)
    assert run.rounds % run.evaluate_every == 0
