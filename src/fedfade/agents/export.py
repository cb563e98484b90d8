"""Agents for devices without PyTorch: an ONNX file a client, and how to scale its inputs."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfade.agents.checkpoint import load_checkpoint
from fedfade.agents.trained import ClientNetwork, load_agents
from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.storage import write_json, writing
from fedfade.uplink import gradient_source, observation, scenario_from_config

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET, IR_VERSION = 17, 8  # old enough for small runtimes


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
        path = out / f"client-{client}.onnx"
        model = client_model(ClientNetwork(agents, client))
        onnx.checker.check_model(model)
        with writing(path) as temporary:
            temporary.write_bytes(model.SerializeToString())
        written.append(path)
    write_json(out / "normalisation.json", normalisation(checkpoint.config))
    return written


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
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        session.run(["action"], one)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def client_model(network: ClientNetwork) -> ModelProto:
    """observation [batch, width] -> action [batch] and values [batch, action]."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights, x = [], [], "observation"
    last = len(network.weights) - 1
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        for kind, value in (("weight", weight), ("bias", bias)):
            array = np.ascontiguousarray(value.numpy())
            weights.append(numpy_helper.from_array(array, f"{kind}{layer}"))
        out = "values" if layer == last and network.skip is None else f"sum{layer}"
        nodes.append(helper.make_node("Gemm", [x, f"weight{layer}", f"bias{layer}"], [out]))
        if layer < last:
            nodes.append(helper.make_node("Relu", [out], [f"hidden{layer}"]))
            x = f"hidden{layer}"
    if network.skip is not None:
        weights.append(numpy_helper.from_array(network.skip.numpy(), "skip"))
        nodes.append(helper.make_node("Gemm", ["observation", "skip", f"sum{last}"], ["values"]))
    nodes.append(helper.make_node("ArgMax", ["values"], ["action"], axis=1, keepdims=0))
    width, actions = network.weights[0].shape[0], network.weights[-1].shape[1]
    floats, whole = TensorProto.FLOAT, TensorProto.INT64
    graph = helper.make_graph(
        nodes,
        "client",
        [helper.make_tensor_value_info("observation", floats, ["batch", width])],
        [
            helper.make_tensor_value_info("action", whole, ["batch"]),
            helper.make_tensor_value_info("values", floats, ["batch", actions]),
        ],
        weights,
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(
        graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="fedfade"
    )


def normalisation(config: Config) -> dict[str, Any]:
    """How a device makes its observation, and what an action means.

    Every input is clamp((x - subtract) / divide, low, high) of a quantity x in the unit named;
    a part that was hidden in training is the constant 1.
    """
    bound = observation.BOUND
    payload = config.learning.payload_bits
    if payload == "auto":  # which is allowed only where there is a model to count
        payload = gradient_source(config).payload_bits
    scales: dict[str, tuple[str, float, float]] = {
        "alphas": (
            "mean SNR of every client at full power, dB",
            observation.SNR_CENTRE_DB,
            observation.SNR_SCALE_DB,
        ),
        "fading": ("own small-scale gain on every sub-band, dB", 0.0, observation.FADING_SCALE_DB),
        "remaining": ("own bits still to send", 0.0, payload),
        "slots_left": ("slots left, this one included", 0.0, config.radio.slots),
        "deviation": (
            "log10 of own squared gradient deviation",
            0.0,
            observation.DEVIATION_SCALE,
        ),
        "round": ("federated round, from 0", 0.0, config.run.rounds),
        "finished": ("1 for every client that has delivered, else 0", 0.0, 1.0),
        "others_fading": (
            f"small-scale gain of every client on every sub-band "
            f"{config.allocation.csi_delay_slots} slots ago, dB; 0 before there is any",
            0.0,
            observation.FADING_SCALE_DB,
        ),
        "schedule": (
            "own place in the block-fading schedule: 1 from its start on, 1 at its sub-band, "
            f"rounds until its start (0 to {observation.PLAN_BOUND:g}), rounds until its expected "
            f"end (within {observation.PLAN_BOUND:g}), rank / clients",
            0.0,
            1.0,
        ),
        "reservation": (
            "own place in the wrap-around plan: 1 at the planned sub-band, 1 at every reserved "
            "one, 1 where to go on after the own turn, probability that a sub-band's holder is "
            "done, rounds until the own turn, share of the slots reserved from now on, rounds the "
            f"payload takes (at most {observation.PLAN_BOUND:g}) times the share of it left, "
            "rank / clients",
            0.0,
            1.0,
        ),
        "time_to_finish": (
            f"rounds the payload takes at the own ergodic rate (at most {bound:g}) times the share "
            "of it left",
            0.0,
            1.0,
        ),
    }
    hidden = {"fading": "fading", "others_fading": "fading", "deviation": "gradient"}
    faded = 10.0 * np.log10(observation.FADING_FLOOR) / observation.FADING_SCALE_DB
    weakest = 10.0 * np.log10(observation.SNR_FLOOR) - observation.SNR_CENTRE_DB
    lows = {
        "alphas": weakest / observation.SNR_SCALE_DB,
        "fading": faded,
        "others_fading": faded,
        "deviation": np.log10(observation.DEVIATION_FLOOR) / observation.DEVIATION_SCALE,
    }
    parts = []
    for name, columns in observation.part_columns(scenario_from_config(config, 1.0)).items():
        quantity, subtract, divide = scales[name]
        part: dict[str, Any] = {"name": name, "first": columns.start, "stop": columns.stop}
        if hidden.get(name) in config.allocation.hide:
            parts.append(part | {"constant": 1.0})
            continue
        part |= {"quantity": quantity, "subtract": subtract, "divide": divide}
        parts.append(part | {"low": float(lows.get(name, -bound)), "high": bound})
    return {
        "inputs": parts,
        "action": "sub-band * levels + level",
        "levels_dbm": config.radio.power_levels_dbm,
        "subbands": config.radio.subbands,
    }
