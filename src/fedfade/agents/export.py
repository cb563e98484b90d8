"""Agents for devices without PyTorch: one ONNX file per client, and how to scale its inputs."""

import math
import statistics
import timeit
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfade.agents.checkpoint import load_checkpoint
from fedfade.agents.sets import REACH, SetNetworks
from fedfade.agents.trained import ClientNetwork, load_agents
from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.storage import write_json, writing
from fedfade.uplink import gradient_source, part_columns, scenario_from_config
from fedfade.uplink import parts as observation

OPSET, IR_VERSION = 17, 8  # old enough for small runtimes

QUANTITIES = {
    "alphas": "mean SNR of every client at full power, dB",
    "fading": "own small-scale gain on every sub-band, dB",
    "remaining": "own bits still to send",
    "slots_left": "slots left, this one included",
    "deviation": "log10 of own squared gradient deviation",
    "round": "federated round, from 0",
    "finished": "1 for every client that has delivered, else 0",
    "others_fading": "small-scale gain of every client on every sub-band {delay} slots ago, dB; 0 "
    "before there is any",
    "schedule": "own place in the block-fading schedule: 1 from its start on, 1 at its sub-band, "
    "rounds until its start (0 to {plan:g}), rounds until its expected end (within {plan:g}), rank "
    "/ clients",
    "reservation": "own place in the wrap-around plan: 1 at the planned sub-band, 1 at every "
    "reserved one, 1 where to go on after the own turn, probability that a sub-band's holder is "
    "done, rounds until the own turn, share of the slots reserved from now on, rounds the payload "
    "takes (at most {plan:g}) times the share of it left, rank / clients",
    "order": "1 at the own rank, shortest expected time first; everybody's expected rounds in that "
    "order (at most {plan:g}); their sum over better ranks, and up to each rank, by sub-bands (at "
    "most {plan:g})",
    "slack": "slots left less the slots the bits left take alone on a sub-band (at most {plan:g} "
    "rounds), in rounds; the latter by itself",
    "finished_order": "1 for every client that has delivered, else 0, in the order of rank",
    "order_fading": "small-scale gain of every client, in the order of rank, on every sub-band "
    "{delay} slots ago, dB; 0 before there is any",
    "time_to_finish": "rounds the payload takes at the own ergodic rate (at most {bound:g}) times "
    "the share of it left",
}
"""What each part of an observation is made from, in which unit."""


def export_agents(folder: Path, out: Path) -> list[Path]:
    """Write `client-N.onnx` for every client and `normalisation.json` into `out`."""
    try:
        import onnx
    except ImportError:
        raise UserError("fedfade export needs ONNX: pip install 'fedfade[onnx]'.") from None
    checkpoint = load_checkpoint(folder)
    agents = load_agents(checkpoint)
    written = []
    for client in range(agents.agents):
        if isinstance(agents, SetNetworks):
            text, arrays = set_onnx_text(agents), set_arrays(agents)
        else:
            text = onnx_text(network := ClientNetwork(agents, client))
            arrays = {f"weight{n}": weight for n, weight in enumerate(network.weights)}
            arrays |= {f"bias{n}": bias for n, bias in enumerate(network.biases)}
            arrays |= {} if network.skip is None else {"skip": network.skip}
        model = onnx.parser.parse_model(text)
        for name, tensor in arrays.items():
            array = np.asarray(tensor.numpy(), order="C")  # a scalar stays one
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        onnx.checker.check_model(model)
        written.append(out / f"client-{client}.onnx")
        with writing(written[-1]) as temporary:
            temporary.write_bytes(model.SerializeToString())
    write_json(out / "normalisation.json", normalisation(checkpoint.config))
    return written


def onnx_text(network: ClientNetwork) -> str:
    """The network in ONNX's own language: observation -> action and values of all actions."""
    lines = _head(network.weights[0].shape[0], network.weights[-1].shape[1])
    last, x = len(network.weights) - 1, "observation"
    for layer in range(last):
        lines.append(f"sum{layer} = Gemm({x}, weight{layer}, bias{layer})")
        lines.append(f"hidden{layer} = Relu(sum{layer})")
        x = f"hidden{layer}"
    learned = "values" if network.skip is None else f"sum{last}"
    lines.append(f"{learned} = Gemm({x}, weight{last}, bias{last})")
    if network.skip is not None:
        lines.append(f"values = Gemm(observation, skip, {learned})")
    return "\n".join([*lines, _CHOOSE])


_CHOOSE = "action = ArgMax <axis = 1, keepdims = 0> (values) }"


def _head(width: int, actions: int) -> list[str]:
    head = f'<ir_version: {IR_VERSION}, opset_import: ["" : {OPSET}], producer_name: "fedfade">'
    out = f"int64[batch] action, float[batch, {actions}] values"
    return [head, f"client (float[batch, {width}] observation) => ({out}) {{"]


def set_onnx_text(agents: SetNetworks) -> str:
    """`SetNetworks` of one size in ONNX's own language: what `tokens`, `pool` and its layers do."""
    lines = _head(agents.width, agents.sizes[-1])

    def through(x: str, *layers: str) -> str:
        for layer in layers:
            lines.append(f"{layer}_sum = MatMul({x}, {layer}_weight)")
            lines.append(f"{layer}_out = Add({layer}_sum, {layer}_bias)")
            x = f"{layer}_out"
            if layer.startswith(("listen", "body")):
                lines.append(f"{layer}_relu = Relu({x})")
                x = f"{layer}_relu"
        return x

    lines.append(_CLIENT_TOKENS)
    heard = through("others", *(f"listen{n}" for n in range(len(agents.listen))))
    for side in ("ahead", "behind"):
        lines.append(f"{side}_column = Unsqueeze({side}, two)")
        lines.append(f"{side}_heard = Mul({heard}, {side}_column)")
        lines.append(f"{side}_all = ReduceSum <keepdims = 0> ({side}_heard, one)")
        lines.append(f"{side}_most = ReduceMax <axes = [1], keepdims = 0> ({side}_heard)")
        lines.append(f"{side}_mean = Div({side}_all, bands)")
    pooled = "ahead_mean, ahead_most, behind_mean, behind_most"
    lines.append(f"body_in = Concat <axis = 1> (own, {pooled})")
    x = through("body_in", *(f"body{n}" for n in range(len(agents.body))))
    lines.append(f"both = Concat <axis = 1> ({x}, own)")
    lines.append(f"mine_here = Unsqueeze({through('both', 'own_side')}, one)")
    lines.append(f"meeting = Add(mine_here, {through('bands_seen', 'band_side')})")
    lines.append("met = Relu(meeting)")
    lines.append(f"more = Squeeze({through('met', 'score')}, two)")
    silent = through(x, "silence")
    lines.append(f"sending = Add({silent}, more)")
    lines.append(f"values = Concat <axis = 1> (sending, {silent})")
    return "\n".join([*lines, _CHOOSE])


_CLIENT_TOKENS = """
me, need, before, work, rest = Split <axis = 1> (observation, columns)
passed = CumSum(me, axis)
ahead = Sub(unit, passed)
behind = Sub(passed, me)
rank = ReduceSum <keepdims = 1> (ahead, one)
my_need = Mul(me, need)
mine = ReduceSum <keepdims = 1> (my_need, one)
start = Mul(before, bands)
stop = Add(start, mine)
turn = Floor(start)
more_need = Sub(need, mine)
works = Mul(work, bands)
later = Sub(works, start)
near = Clip(later, low, high)
apart = Sub(places, rank)
ranks = Div(apart, bands)
token0 = Unsqueeze(need, two)
token1 = Unsqueeze(work, two)
token2 = Unsqueeze(more_need, two)
token3 = Unsqueeze(near, two)
token4 = Unsqueeze(ranks, two)
others = Concat <axis = 2> (token0, token1, token2, token3, token4)
from_turn = Sub(start, turn)
to_turn = Sub(stop, turn)
my_rank = Div(rank, bands)
none = Sub(rank, rank)
of_size = Add(none, size)
all_work = Gather <axis = 1> (work, last)
own = Concat <axis = 1> (rest, mine, before, from_turn, to_turn, my_rank, of_size, all_work)
start_there = Sub(start, band)
stop_there = Sub(stop, band)
begin = Clip(start_there, low, high)
end = Clip(stop_there, low, high)
circle = Mod <fmod = 1> (rank, bands)
same = Equal(circle, band)
alike = Cast <to = 1> (same)
share = Div(band, bands)
logical = Add(none, share)
band0 = Unsqueeze(begin, two)
band1 = Unsqueeze(end, two)
band2 = Unsqueeze(alike, two)
band3 = Unsqueeze(logical, two)
bands_seen = Concat <axis = 2> (band0, band1, band2, band3)
"""


def set_arrays(agents: SetNetworks) -> dict[str, Tensor]:
    """Numbers and weights that `set_onnx_text` names."""
    clients, bands = agents.agents, agents.sizes[-1] - 1
    own = agents.width - 3 * clients - 1
    arrays = {
        "columns": torch.tensor([clients, clients, 1, clients, own]),
        "axis": torch.tensor(1),
        "one": torch.tensor([1]),
        "two": torch.tensor([2]),
        "last": torch.tensor([clients - 1]),
        "unit": torch.ones(1),
        "low": torch.tensor(-REACH),
        "high": torch.tensor(REACH),
        "bands": torch.tensor([float(bands)]),
        "size": torch.tensor([clients / bands]),
        "places": torch.arange(clients, dtype=torch.float32)[None],
        "band": torch.arange(bands, dtype=torch.float32)[None],
    }
    for name, weight in agents.named_parameters():
        layer, _, kind = name.rpartition(".")
        arrays[f"{layer.replace('.', '')}_{kind}"] = weight[0] if kind == "weight" else weight[0, 0]
    return arrays


def decision_us(path: Path, repeats: int = 2000) -> float | None:
    """Microseconds of one decision under ONNX Runtime on one thread, None where it is missing."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    one = {"observation": np.zeros((1, session.get_inputs()[0].shape[1]), dtype=np.float32)}
    decide = timeit.repeat(lambda: session.run(["action"], one), repeat=repeats, number=1)
    return 1e6 * statistics.median(decide)


def normalisation(config: Config) -> dict[str, Any]:
    """How a device makes its observation, and what an action means.

    Every input is clamp((x - subtract) / divide, low, high) of a quantity x in the unit named;
    a part that was hidden in training is the constant 1.
    """
    payload = config.learning.payload_bits
    if payload == "auto":  # which is allowed only where there is a model to count
        payload = gradient_source(config).payload_bits
    fading = (0.0, observation.FADING_SCALE_DB, 10.0 * np.log10(observation.FADING_FLOOR))
    lowest_snr, lowest_deviation = np.log10([observation.SNR_FLOOR, observation.DEVIATION_FLOOR])
    scales: dict[str, tuple[float, Any, float]] = {  # subtract, divide, least quantity
        "alphas": (observation.SNR_CENTRE_DB, observation.SNR_SCALE_DB, 10.0 * lowest_snr),
        "fading": fading,
        "others_fading": fading,
        "order_fading": fading,
        "remaining": (0.0, payload, -math.inf),
        "slots_left": (0.0, config.radio.slots, -math.inf),
        "deviation": (0.0, observation.DEVIATION_SCALE, lowest_deviation),
        "round": (0.0, config.run.rounds, -math.inf),
    }
    bound, delay = observation.BOUND, config.allocation.csi_delay_slots
    hidden = dict.fromkeys(("fading", "others_fading", "order_fading"), "fading")
    hidden |= {"deviation": "gradient"}
    parts = []
    for name, columns in part_columns(scenario_from_config(config, 1.0)).items():
        part: dict[str, Any] = {"name": name, "first": columns.start, "stop": columns.stop}
        if hidden.get(name) in config.allocation.hide:
            parts.append(part | {"constant": 1.0})
            continue
        quantity = QUANTITIES.get(name, f"what {name} makes")
        quantity = quantity.format(bound=bound, delay=delay, plan=observation.PLAN_BOUND)
        subtract, divide, least = scales.get(name, (0.0, 1.0, -math.inf))
        low = max(-bound, float((least - subtract) / divide))
        part |= {"quantity": quantity, "subtract": subtract, "divide": divide}
        parts.append(part | {"low": low, "high": bound})
    binary = config.qmix.power == "binary"
    action = "sub-band at full power, subbands: silent" if binary else "sub-band * levels + level"
    return {
        "inputs": parts,
        "action": f"{action}, decided in slots 0, hold_slots, 2 hold_slots, ... "
        "and held in between; with hop_subbands, b in inputs and actions is sub-band (b + slot) "
        "mod subbands",
        "hold_slots": config.qmix.hold_slots,
        "hop_subbands": config.qmix.hop_subbands,
        "levels_dbm": config.radio.power_levels_dbm,
        "subbands": config.radio.subbands,
    }
