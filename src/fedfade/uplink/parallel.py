"""The uplink as a PettingZoo environment, which is loaded when one is asked for."""

import json
from collections.abc import Mapping
from typing import Any

from fedfade.config import Config, load_config


def uplink_config(
    preset: str | Config = "paper",
    max_cycles: int | None = None,
    gradients: str | None = None,
    hold_slots: int | None = None,
    **overrides: Any,
) -> Config:
    """The configuration of an environment: a preset, or a whole configuration, and changes.

    `gradients` is `synthetic` (needs no data set), `learning` (real federated rounds) or a
    recording; if not given, synthetic for a preset and qmix.gradients for a configuration.
    A step is a decision: with `hold_slots` (qmix.hold_slots) it is held for so many slots.
    `max_cycles` sets radio.slots; other fields are overridden by branch,
    `radio={"clusters": 28}`, or by dotted name, `**{"radio.clusters": 28}`.
    """
    changes: dict[str, object] = {}
    if isinstance(preset, Config):  # all its sections, laid over any preset
        changes |= preset.model_dump()
    elif gradients is None:
        gradients = "synthetic"
    if gradients is not None:
        changes["qmix.gradients"] = gradients
    if max_cycles is not None:
        changes["radio.slots"] = int(max_cycles)
    if hold_slots is not None:
        changes["qmix.hold_slots"] = hold_slots
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            changes |= {f"{name}.{field}": content for field, content in value.items()}
        else:
            changes[name] = value
    written = [f"{path}={json.dumps(new, ensure_ascii=False)}" for path, new in changes.items()]
    base = "paper" if isinstance(preset, Config) else preset
    return load_config(base, written)


def parallel_env(
    preset: str | Config = "paper", render_mode: str | None = None, *given: Any, **named: Any
) -> Any:
    """The uplink as a PettingZoo ParallelEnv; all else it takes is for `uplink_config`."""
    from fedfade.uplink.environment import UplinkEnv

    return UplinkEnv(uplink_config(preset, *given, **named), render_mode)


def env(*given: Any, **named: Any) -> Any:
    """The same, given the same, with agents acting in turn (PettingZoo AEC)."""
    from pettingzoo.utils import parallel_to_aec, wrappers

    return wrappers.OrderEnforcingWrapper(parallel_to_aec(parallel_env(*given, **named)))
