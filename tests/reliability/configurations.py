"""Any configuration the typed tree allows, as Hypothesis strategies made from the tree itself."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedfade.config import Config
from fedfade.seams import CODECS, LINKS, PARTS, SERVER_RULES

Tree = dict[str, Any]

SMALL = {
    "radio.subbands": 3,
    "radio.slots": 6,
    "radio.subcarriers": 4,
    "radio.clusters": 6,
    "learning.clients": 4,
    "learning.local_work": 2,
    "learning.batch_size": 20,
    "learning.shards_per_client": 3,
    "radio.receive_antennas": 3,
    "run.deadline_clients": 2,
    "qmix.hidden": 5,
    "qmix.mixing_width": 4,
    "qmix.hypernet_width": 4,
    "qmix.n_step": 4,
    "qmix.replay_size": 60,
    "qmix.batch_size": 20,
    "qmix.parallel_episodes": 3,
    "qmix.layouts": 2,
    "qmix.candidates": 2,
    "qmix.candidate_rounds": 2,
    "qmix.mappo.value_hidden": 5,
    "qmix.mappo.epochs": 2,
    "qmix.mappo.minibatches": 2,
    "run.seeds": 2,
    "run.rounds": 3,
    "run.episodes_per_round": 6,
}
"""Sizes are cut to these, so that any configuration runs in a moment; nothing else is."""

CHOSEN: dict[str, st.SearchStrategy[Any]] = {
    "radio.source": st.sampled_from(["clustered", "rayleigh"]),
    "radio.traces": st.none(),
    "radio.link": st.sampled_from(list(LINKS.built_in)),
    "radio.nr.table": st.sampled_from(["64qam", "256qam"]),
    "radio.nr.curves": st.none(),
    "cost.speeds": st.none(),
    "radio.power_levels_dbm": st.lists(
        st.sampled_from([60.0, 23.0, 0.0, -50.0, -99.9]), min_size=1, max_size=4
    ).map(lambda levels: [*levels, -100.0]),
    "cell.round_s": st.sampled_from([0.0, 1e-9, 1.0]),  # or most steps are longer than the cell
    "learning.data": st.just("digits"),
    "learning.data_dir": st.none(),
    "learning.model": st.just("cnn"),
    "learning.codec": st.sampled_from(list(CODECS.built_in)),
    "learning.payload_factors": st.sampled_from([0.01, 1.0, 100.0, []]),  # none: one a client
    "learning.server": st.sampled_from(list(SERVER_RULES.built_in)),
    "allocation.policies": st.just(
        [
            "random",
            "max-individual-rate",
            "max-sum-rate",
            "block-fading-schedule",
            "block-fading-schedule-feedback",
            "shortest-remaining-first",
            "perfect",
            "genie",
        ]
    ),
    "allocation.checkpoint": st.none(),
    "allocation.observe": st.lists(
        st.sampled_from([*PARTS.built_in]), min_size=1, max_size=3, unique=True
    ),
    "qmix.gradients": st.sampled_from(["synthetic", "learning"]),
    "qmix.teacher": st.sampled_from(["none", "wrap-around-schedule", "max-sum-rate"]),
    "qmix.sizes": st.sampled_from([[], [[3, 2], [4, 1]]]),
    "run.device": st.just("cpu"),
}


def configurations() -> st.SearchStrategy[Tree]:
    """Valid trees, sizes cut; a few of the cross-checks of the tree may still refuse one."""
    return _branch(Config, "").map(_settled)


def _settled(tree: Tree) -> Tree:
    """Without the contradictions that nearly every tree would have."""
    qmix = tree["qmix"]
    for part, name in ((qmix, "layouts"), (qmix["mappo"], "minibatches")):
        part[name] = part[name] if qmix["parallel_episodes"] % part[name] == 0 else 1
    if over_set := qmix["network"] != "mlp":
        qmix |= {"share_parameters": True, "client_id": False, "power": "binary"}
        qmix |= {"dueling": False, "trust": 0.0}
        told = {"set-feedback": ["finished_order"], "set-csi": ["finished_order", "order_fading"]}
        seen = ["order", "slots_left", "fading", *told.get(qmix["network"], []), "remaining"]
        tree["allocation"]["observe"] = seen
        any_size = qmix["algorithm"] == "mappo" or qmix["mixer"] in ("vdn", "independent")
    qmix["sizes"] = qmix["sizes"] if over_set and any_size else []
    qmix["client_id"] |= not qmix["share_parameters"]
    radio, cell, learning = tree["radio"], tree["cell"], tree["learning"]
    qmix["hold_slots"] = min(qmix["hold_slots"], radio["slots"])
    qmix["batch_size"] = min(qmix["batch_size"], qmix["replay_size"])
    qmix["trust"] *= "reservation" in tree["allocation"]["observe"]
    widest = radio["carrier_hz"] / (2 * radio["subbands"])
    radio["bandwidth_hz"] = min(radio["bandwidth_hz"], widest)
    cell["min_distance_m"] = min(cell["min_distance_m"], 0.5 * cell["side_m"])
    if learning["server"] == "momentum":
        learning["server_momentum"] = learning["server_momentum"] or 0.5
    if learning["server"] == "scaffold":
        learning["local_unit"] = "step"
    learning["count_partial"] &= learning["codec"].endswith("-progressive")
    if learning["payload_factors"] == []:
        learning["payload_factors"] = [0.1 + n for n in range(learning["clients"])]
    return tree


def _branch(model: type[BaseModel], prefix: str) -> st.SearchStrategy[Tree]:
    return st.fixed_dictionaries(
        {
            name: _branch(field.annotation, f"{prefix}{name}.")
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            else _leaf(field, f"{prefix}{name}")
            for name, field in model.model_fields.items()
        }
    )


def _leaf(field: FieldInfo, path: str) -> st.SearchStrategy[Any]:
    if path in CHOSEN:
        return CHOSEN[path]
    return _value(field.annotation, field.metadata, SMALL.get(path))


def _value(kind: Any, limits: list[Any], cut: int | None) -> st.SearchStrategy[Any]:
    found = {}
    for limit in _flat(limits):
        for name in ("ge", "gt", "le", "lt"):
            if getattr(limit, name, None) is not None:
                found[name] = getattr(limit, name)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        return st.lists(_annotated(item, cut), min_size=1, max_size=3, unique=True)
    if kind is bool:
        return st.booleans()
    if kind is int:
        high = found.get("le", found.get("lt", 10**6))
        return st.integers(found.get("ge", 1), min(high, cut or 10**6) - ("lt" in found))
    if kind is float:
        return _floats(found)
    if not get_args(kind):
        raise TypeError(f"say in CHOSEN what to draw for a field of type {kind}")
    return st.one_of(*(_annotated(part, cut) for part in get_args(kind)))  # a union


def _annotated(kind: Any, cut: int | None) -> st.SearchStrategy[Any]:
    if hasattr(kind, "__metadata__"):
        return _value(kind.__origin__, list(kind.__metadata__), cut)
    return _value(kind, [], cut)


def _flat(limits: list[Any]) -> list[Any]:
    """A pydantic Field inside Annotated keeps its limits one level down."""
    return [inner for limit in limits for inner in [limit, *getattr(limit, "metadata", [])]]


def _floats(found: dict[str, float]) -> st.SearchStrategy[float]:
    """Ends of the range, and in between evenly on the logarithmic scale."""
    low, high = found.get("ge", found.get("gt", 0.0)), found.get("le", found.get("lt", 1.0))
    ends = [value for name, value in (("ge", low), ("le", high)) if name in found]
    if low < 0:
        inside = st.floats(low, high, exclude_min="gt" in found)
    else:
        smallest = math.log10(max(low, 1e-12))
        inside = st.floats(smallest, math.log10(high) - 1e-9).map(lambda x: 10.0**x)
        inside = inside.map(lambda x: min(max(x, low), high))
    return st.one_of(*map(st.just, ends), inside) if ends else inside
