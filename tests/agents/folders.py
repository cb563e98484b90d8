"""Looking into the folder of a training, and stopping one."""

from collections.abc import Callable
from pathlib import Path

import torch

from fedfade.agents import Trainer
from fedfade.agents.checkpoint import load_checkpoint


def final_tensors(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = load_checkpoint(folder)
    return checkpoint.tensors("agents") | checkpoint.tensors("training")


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    def raw(t: torch.Tensor) -> bytes:
        return t.numpy().tobytes()  # NaN in the curve equals itself

    return one.keys() == other.keys() and all(raw(one[k]) == raw(other[k]) for k in one)


def same_run(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """The same choices; sums of other lengths round differently, so all else to a few roundings."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if not tensor.is_floating_point():
            assert torch.equal(tensor, other[name]), name
        close = torch.allclose(tensor, other[name], rtol=1e-4, atol=1e-5, equal_nan=True)
        assert close, name


class Interrupted(Exception):
    pass


def stop_at(batch: int) -> Callable[[Trainer, object], None]:
    def look(trainer: Trainer, reports: object) -> None:
        if trainer.batch == batch:
            raise Interrupted

    return look
