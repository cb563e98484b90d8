"""Agents for devices without PyTorch: one ONNX file per client, and how to scale its inputs."""

import math
import statistics
import timeit
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedfade.agents.checkpoint import load_checkpoint
from fedfade.agents.networks import StackedLinear
from fedfade.agents.sets import NEAR, OVER, REACH, SHARP, STRETCH, SetNetworks
from fedfade.agents.trained import ClientNetwork, load_agents
from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.learning import listed, payload_bits
from fedfade.storage import write_json, writing
from fedfade.uplink import part_columns, scenario_from_config
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
            lines, arrays = (graph := set_graph(agents)).lines, graph.arrays
        else:
            lines = onnx_lines(network := ClientNetwork(agents, client))
            arrays = {f"weight{n}": weight for n, weight in enumerate(network.weights)}
            arrays |= {f"bias{n}": bias for n, bias in enumerate(network.biases)}
            arrays |= {} if network.skip is None else {"skip": network.skip}
        choose = "action = ArgMax <axis = 1, keepdims = 0> (values) }"
        model = onnx.parser.parse_model("\n".join([*lines, choose]))
        for name, tensor in arrays.items():
            array = np.asarray(tensor.numpy(), order="C")  # a scalar stays one
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        onnx.checker.check_model(model)
        written.append(out / f"client-{client}.onnx")
        with writing(written[-1]) as temporary:
            temporary.write_bytes(model.SerializeToString())
    write_json(out / "normalisation.json", normalisation(checkpoint.config))
    return written


def onnx_lines(network: ClientNetwork) -> list[str]:
    """The network in ONNX's own language: observation -> values of all actions."""
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
    return lines


def _head(width: int, actions: int) -> list[str]:
    head = f'<ir_version: {IR_VERSION}, opset_import: ["" : {OPSET}], producer_name: "fedfade">'
    out = f"int64[batch] action, float[batch, {actions}] values"
    return [head, f"client (float[batch, {width}] observation) => ({out}) {{"]


class _Graph:
    """A graph in ONNX's own language, written operation by operation, and the arrays it names."""

    def __init__(self, width: int, actions: int) -> None:
        self.lines, self.arrays = _head(width, actions), dict[str, Tensor]()

    def __call__(self, op: str, *inputs: str | Tensor, options: str = "", out: str = "") -> str:
        """One operation; the name of what comes out."""
        names = [x if isinstance(x, str) else self._array(x) for x in inputs]
        out = out or f"x{len(self.lines)}"
        self.lines.append(f"{out} = {op} {options} ({', '.join(names)})")
        return out

    def _array(self, tensor: Tensor) -> str:
        self.arrays[name := f"array{len(self.arrays)}"] = tensor
        return name

    def stack(self, *columns: str) -> str:
        tall = (self("Unsqueeze", column, torch.tensor([2])) for column in columns)
        return self("Concat", *tall, options="<axis = 2>")

    def beside(self, *parts: str, out: str = "") -> str:
        return self("Concat", *parts, options="<axis = 1>", out=out)

    def layer(self, x: str, layer: nn.Module, relu: bool = False) -> str:
        assert isinstance(layer, StackedLinear)
        x = self("Add", self("MatMul", x, layer.weight[0]), layer.bias[0, 0])
        return self("Relu", x) if relu else x

    def through(self, layers: nn.ModuleList, x: str) -> str:
        for layer in layers[:-1]:
            x = self.layer(x, layer, relu=True)
        return self.layer(x, layers[-1])

    def total(self, x: str, y: str) -> str:
        return self("ReduceSum", self("Mul", x, y), torch.tensor([1]))

    def fill(self, value: float, like: str) -> str:
        return self("Add", self("Sub", like, like), torch.tensor([value]))

    def near(self, x: str) -> str:
        return self("Clip", x, torch.tensor(-REACH), torch.tensor(REACH))

    def times(self, x: str, factor: float) -> str:
        return self("Mul", x, torch.tensor([factor]))


def set_graph(agents: SetNetworks) -> _Graph:
    """A network over the set of clients, of one size: `client_tokens`, `band_tokens` and its
    layers."""
    clients, bands = agents.agents, agents.sizes[-1] - 1
    do, one, count = _Graph(agents.width, bands + 1), torch.tensor([1]), torch.tensor([1.0 * bands])
    names = ["me", "need", "before", "work", "left", "fading", "rest"]
    columns = torch.tensor(agents.columns())
    do("Split", "observation", columns, options="<axis = 1>", out=", ".join(names))
    me, need, before, work, left, fading, rest = names

    nobody = do.beside(need, do.fill(REACH, left))
    following = do("Gather", nobody, torch.arange(1, clients + 1), options="<axis = 1>")
    served = do("Add", do.fill(0.0, need), torch.arange(1.0, clients + 1.0)[None] / bands)
    excess = do("Sub", work, torch.ones(1))
    full = do.near(do.times(excess, NEAR))
    others = do.stack(need, work, full, following, served, do.fill(1.0 / bands, need))
    heard = do("Relu", do.through(agents.listen, others))
    summed = do("ReduceSum", heard, one, options="<keepdims = 0>")
    largest = do("ReduceMax", heard, options="<axes = [1], keepdims = 0>")
    pooled = do.beside(do("Div", summed, count), largest)
    everybody = do("Expand", do("Unsqueeze", pooled, one), torch.tensor([1, clients, 1]))
    said = do.through(agents.judge, do("Concat", heard, everybody, options="<axis = 2>"))
    odds, turns = (do("Gather", said, torch.tensor(n), options="<axis = 2>") for n in (0, 1))
    lacks, over = do("Relu", do("Neg", excess)), do.times(do("Relu", excess), OVER)
    wrong = do.times(do("Add", lacks, over), NEAR)
    last = do("Softmax", do("Sub", do.times(odds, SHARP), wrong), options="<axis = 1>")
    belongs = do.total(do("CumSum", last, torch.tensor(1), options="<reverse = 1>"), me)
    most = do("Add", do("Softplus", do("Add", turns, torch.tensor([STRETCH]))), torch.ones(1))
    fills = do("Reciprocal", do("Clip", work, torch.tensor(1e-3), torch.tensor(1.0)))
    stretch, mine = do.total(last, do("Min", fills, most)), do.total(me, need)
    start, row = (do("Mul", do("Mul", stretch, count), x) for x in (before, do.total(last, work)))
    end = do("Add", start, do("Min", do("Mul", stretch, mine), torch.ones(1)))
    band = torch.arange(1.0 * bands)[None]
    here = do("Add", do("Sub", torch.ones(1), left), band)
    less = (do("Cast", do("Less", here, x), options="<to = 1>") for x in (row, start))
    busy, under = (do("ReduceSum", flags, one) for flags in less)
    spare = do("Sub", do("Sub", do("Add", busy, busy), torch.ones(1)), do("Add", under, band))
    edges = [do("Sub", here, start), do("Sub", end, here), do("Sub", row, here)]
    seen = [*edges, *(do.times(edge, NEAR) for edge in edges)]
    seen += [do("Sub", band, busy), do("Sub", band, under), spare]
    rank = do("MatMul", me, torch.arange(1.0 * clients)[:, None])
    alike = do("Equal", do("Mod", rank, count, options="<fmod = 1>"), band)
    logical = do("Add", do.fill(0.0, fading), band / bands)
    token = do.stack(*map(do.near, seen), fading, do("Cast", alike, options="<to = 1>"), logical)
    until = do("Add", end, left)
    until = do("Sub", until, do("Floor", until))
    place = [mine, left, belongs, until, stretch, before, do.fill(clients / bands, left)]
    own = do.beside(rest, *place, pooled)
    mine_there = do("Unsqueeze", do.layer(own, agents.own_side), one)
    met = do("Relu", do("Add", mine_there, do.layer(token, agents.band_side)))
    more = do("Squeeze", do.through(agents.score, met), torch.tensor([2]))
    silent = do.through(agents.silence, own)
    do.beside(do("Add", silent, more), silent, out="values")
    return do


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
    payload = listed(payload_bits(config.learning))  # perhaps of client 0, 1, ...
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
        low = -bound if least == -math.inf else max(-bound, float((least - subtract) / divide))
        part |= {"quantity": quantity, "subtract": subtract, "divide": divide}
        parts.append(part | {"low": low, "high": bound})
    binary = config.qmix.power == "binary"
    action = "sub-band at full power, subbands: silent" if binary else "sub-band * levels + level"
    return {
        "inputs": parts,
        "action": f"{action}, decided in slots 0, hold_slots, 2 hold_slots, ... "
        "and held in between; with hop_subbands, b in inputs and actions is sub-band (b + slot) "
        "mod subbands",
        "hold_slots": config.qmix.play_hold_slots or config.qmix.hold_slots,
        "hop_subbands": config.qmix.hop_subbands,
        "levels_dbm": config.radio.power_levels_dbm,
        "subbands": config.radio.subbands,
    }
