"""Agents for devices without PyTorch: one ONNX file per client, and how to scale its inputs."""

import io
import math
import statistics
import timeit
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedfade.agents.checkpoint import load_checkpoint
from fedfade.agents.networks import AgentNetworks
from fedfade.agents.trained import client_network, load_agents
from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.learning import payload_bits, plain_payload
from fedfade.storage import write_json, writing
from fedfade.uplink import part_columns, scenario_from_config
from fedfade.uplink import parts as observation

OPSET = 17  # old enough for small runtimes
_TIMED = 2000  # decisions

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
        model = onnx.load_from_string(_traced(agents, client))
        onnx.checker.check_model(model)
        written.append(out / f"client-{client}.onnx")
        with writing(written[-1]) as temporary:
            temporary.write_bytes(model.SerializeToString())
    write_json(out / "normalisation.json", normalisation(checkpoint.config))
    return written


class _Decision(nn.Module):
    """Observation [batch, width] -> the best action [batch], the values of all."""

    def __init__(self, values: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._values = values

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        values = self._values(observation)
        return values.argmax(-1), values


def _traced(agents: AgentNetworks, client: int) -> bytes:
    """What one client carries, as an ONNX model for any number of observations."""
    names = {"input_names": ["observation"], "output_names": ["action", "values"]}
    sizes = {name: {0: "batch"} for name in (*names["input_names"], *names["output_names"])}
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Sizes become constants, and so they are. PyTorch's newer exporter needs one package more.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Decision(client_network(agents, client)),
            (torch.zeros(2, agents.width),),
            file,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=OPSET,
            dynamic_axes=sizes,
            **names,  # type: ignore[arg-type]
        )
    return file.getvalue()


def decision_us(path: Path) -> float | None:
    """Microseconds of one decision under ONNX Runtime on one thread, None where it is missing."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    one = {"observation": np.zeros((1, session.get_inputs()[0].shape[1]), dtype=np.float32)}
    decide = timeit.repeat(lambda: session.run(["action"], one), repeat=_TIMED, number=1)
    return 1e6 * statistics.median(decide)


def normalisation(config: Config) -> dict[str, Any]:
    """How a device makes its observation, and what an action means.

    Every input is clamp((x - subtract) / divide, low, high) of a quantity x in the unit named;
    a part that was hidden in training is the constant 1.
    """
    payload = plain_payload(payload_bits(config.learning))  # perhaps of client 0, 1, ...
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
