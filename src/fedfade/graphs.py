"""Recorded work: a fixed chain of tensor operations, launched as one.

Slot steps, learning steps and local training are chains of small operations on buffers that stay
where they are. On a GPU launching such a chain costs more than its work, so it is recorded once
as a CUDA graph and replayed; on the CPU the function itself is called. Both do the same, so the
code that uses `record` is the same on both.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Work = Callable[[], None]

WARM_UP = 3
"""How often work is run before it is recorded: libraries choose algorithms on the first calls."""


def record(work: Work, changed: Iterable[Tensor], device: torch.device) -> Work:
    """`work` as something quick to repeat. `changed`: every tensor it writes to.

    Recording runs the work a few times; what it changed is put back, so that nothing has happened
    when `record` returns. The work must not wait for the device nor make tensors from host data.
    A recording knows addresses only, so it keeps the work, and with it what the work refers to.

    >>> total = torch.zeros(())
    >>> add = record(lambda: total.add_(1.0), [total], total.device)
    >>> for _ in range(2):
    ...     _ = add()
    >>> total.item()
    2.0
    """
    if device.type != "cuda":
        return work
    tensors = list(changed)
    before = [tensor.clone() for tensor in tensors]
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for tensor, value in zip(tensors, before, strict=True):
        tensor.copy_(value)

    def replay() -> None:
        graph.replay()

    replay.work = work  # type: ignore[attr-defined]  # what it reads and writes stays as long
    return replay


class SideStream:
    """Work beside the main chain: a second stream on CUDA; elsewhere it is simply done in turn.

    What `work` needs must exist when it begins; `join` before using what it made.
    """

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    @contextmanager
    def work(self) -> Iterator[None]:
        """Runs after what was asked for so far, beside what is asked for next."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """What comes next waits for the work beside."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class OnItsWay:
    """A tensor that is copied to the host from now on; only who reads it waits, and not for what
    the device is asked for in between.

    >>> OnItsWay(torch.ones(2)).tolist()
    [1.0, 1.0]
    """

    def __init__(self, tensor: Tensor) -> None:
        self._here, self._arrived = tensor, None
        if tensor.device.type == "cuda":
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._here.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def tolist(self) -> list[Any]:
        """Its numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[Any] = self._here.tolist()
        return found


_UNFUSED: list[Callable[..., object]] = []


def unfused(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for a function that is called as it is inside what `fuse` compiles: a long loop
    would be unrolled. `torch.compiler.disable` imports a compiler even where nothing is compiled,
    and every command would wait a second for it."""
    _UNFUSED.append(function)
    return function


_IN_ONE_PIECE: list[Callable[..., object]] = []


def in_one_piece(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for a function that what `fuse` compiles calls, but does not look into: one that
    brings its own derivative cannot be mapped otherwise."""
    _IN_ONE_PIECE.append(function)
    return function


def compiled_on(device: torch.device) -> bool:
    """Whether functions are compiled for this device: for CUDA, unless FEDFADE_COMPILE=0."""
    return device.type == "cuda" and os.environ.get("FEDFADE_COMPILE") != "0"


def kernels_run_on(device: torch.device) -> bool:
    """Whether kernels of our own run there: on processors that know TensorFloat-32, with Triton."""
    if not compiled_on(device) or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


UNPADDED = {"comprehensive_padding": False}
"""Compilers may pad the rows of what they keep in between. PyTorch 2.11 and its neighbours then
sometimes read the padding as if it were numbers (pytorch/pytorch, issue 194281)."""


def fuse(function: Callable[P, R], device: torch.device, **settings: Any) -> Callable[P, R]:
    """`function` with its small operations merged into few kernels, where that pays: on CUDA.

    Compiling takes seconds at the first call for tensors of a new size; FEDFADE_COMPILE=0 does
    without. `settings` are those of `torch.compile`.
    """
    if not compiled_on(device):
        return function
    # By default the ninth size of a function would silently not be compiled.
    torch._dynamo.config.recompile_limit = 256
    for whole in _UNFUSED:
        torch._dynamo.decorators.skip(whole)
    for piece in _IN_ONE_PIECE:
        torch._dynamo.decorators.allow_in_graph(piece)  # type: ignore[no-untyped-call]
    options = UNPADDED | settings.pop("options", {})
    return torch.compile(function, dynamic=False, options=options, **settings)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for a function or method that `fuse` is to compile on CUDA.

    The first argument with a `device` says where the work is: a tensor, or an object whose tensors
    are all in one place.

    >>> @fused
    ... def square_sum(x: Tensor) -> Tensor:
    ...     return x.square().sum()
    >>> square_sum(torch.ones(3))
    tensor(3.)
    """
    compiled: list[Callable[P, R]] = []  # empty until the first call on CUDA

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(arg.device for arg in args if hasattr(arg, "device"))
        if not compiled_on(device):
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(fuse(function, device))
        return compiled[0](*args, **kwargs)

    return run
