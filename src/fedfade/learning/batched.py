"""Local training of all clients of all runs in one batch: the engine for CUDA.

One client's step is written for one client and mapped over all by `torch.vmap`, then recorded.
Nothing waits for the host.
"""

import copy
import itertools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedfade.config import Precision
from fedfade.device import spare_bytes
from fedfade.graphs import Work, fuse, kernels_run_on, record
from fedfade.learning.averaging import ServerState
from fedfade.learning.convolution import Geometry, convolve, shifted
from fedfade.learning.data import Dataset
from fedfade.learning.local import ClientLoop, LocalWork, Trained, arithmetic, copy_all, dropout_of
from fedfade.learning.model import InitialState, buffer_layout, parameter_layout, pass_changes

_MEMORY_SHARE = 0.4  # of the device's free memory that a step of local training may take
_CLIENTS = 100  # at once, at most: they fill a GPU, and 350 together cost twice as much each
_GROUPS = 10  # parts of a mini-batch whose sums are made side by side, at most
_COPIES = 10  # times smaller than unfolded images the copies of a kernel are, at least
_ONE_TILE = 64 * 64  # numbers of a kernel whose gradient one processor works out alone
ALIGNED = 8
_STEPS = 8  # of local training in one recording, at most
_EVALUATION_IMAGES = 5_000  # in a block of the test set

Buffers = dict[str, Tensor]


class MatmulConv2d(nn.Conv2d):
    """A convolution as one matrix product of the unfolded images, a handful of shifted copies.

    With other weights for every client a convolution becomes a grouped one, for which libraries
    have no fast kernels; for a batched matrix product they have.
    """

    kernels = False  # whether there are some of our own for the device it is on

    def forward(self, input: Tensor) -> Tensor:
        """[sample, channel, row, column] -> the same with other channels, channels innermost."""
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        assert not isinstance(self.padding, str)
        size, padding, dilation = self.kernel_size, self.padding, self.dilation
        where = Geometry((size[0], size[1]), (padding[0], padding[1]), (dilation[0], dilation[1]))
        if self._gathers(input, where):
            kernel = self.weight.to(input.dtype).permute(0, 2, 3, 1).flatten(1).mT
            out = convolve(input.permute(0, 2, 3, 1)[None], kernel[None], *where)[0]
        else:
            out = self._unfolded(input, where)  # [sample, row, column, out]
        if self.bias is not None:
            out = out + self.bias
        return out.permute(0, 3, 1, 2)

    def _unfolded(self, input: Tensor, where: Geometry) -> Tensor:
        kernel = self.weight.permute(2, 3, 1, 0).flatten(0, 2)  # [place x channel, out]
        patches, rows, columns = shifted(input, where, self.stride)
        # Tensor cores want rows of a multiple of 8 numbers; three colours make 27.
        if spare := -len(kernel) % ALIGNED:
            patches.append(input.new_zeros(*patches[0].shape[:3], spare))
            kernel = F.pad(kernel, (0, 0, 0, spare))
        groups = groups_of_samples(len(input), rows * columns, kernel.shape, input.dtype)
        grouped = torch.cat(patches, -1).view(groups, -1, len(kernel))
        out = torch.bmm(grouped, kernel.expand(groups, -1, -1))
        return out.view(len(input), rows, columns, -1)

    def _gathers(self, input: Tensor, where: Geometry) -> bool:
        """Whether our kernels, which never write the unfolded images, can do it."""
        usual = self.stride == (1, 1) and min(where.backwards.padding) >= 0
        numbers = input.dtype in (torch.float32, torch.bfloat16)
        pixels = len(input) * math.prod(where.after(*input.shape[2:]))
        counted = max(input.numel(), pixels * self.out_channels) < 2**31  # as the kernels count
        return self.kernels and usual and numbers and counted


def groups_of_samples(samples: int, pixels: int, kernel: Sequence[int], dtype: torch.dtype) -> int:
    """In how many groups a mini-batch is multiplied with copies of a kernel [row, channel].

    The kernel's gradient is a sum over all pixels of all samples, and one long sum a client would
    keep a handful of a GPU's processors busy; for bfloat16 libraries split it themselves unless
    the kernel is tiny. The copies must stay small beside the images.

    >>> groups_of_samples(50, 32 * 32, (32, 32), torch.float32)
    10
    >>> [groups_of_samples(50, 8 * 8, (576, 128), d) for d in (torch.float32, torch.bfloat16)]
    [2, 1]
    """
    rows, channels = kernel
    most = samples * pixels // (_COPIES * channels)
    split_anyway = dtype == torch.bfloat16 and rows * channels > _ONE_TILE
    if split_anyway or most < 1:
        return 1
    return max(count for count in range(1, min(_GROUPS, most) + 1) if samples % count == 0)


class PlainBatchNorm(nn.BatchNorm2d):
    """Batch norm in plain operations, which can be mapped and recorded anywhere."""

    def forward(self, input: Tensor) -> Tensor:
        """Statistics in float32 whatever the input; running ones are updated in place."""
        x = input.float()
        if self.training or self.running_mean is None or self.running_var is None:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            variance, mean = torch.var_mean(x, dim=axes, correction=0)
            self._remember(mean.detach(), variance.detach(), x.numel() // x.shape[1])
        else:
            mean, variance = self.running_mean, self.running_var
        scale = torch.rsqrt(variance + self.eps)
        shift = -mean * scale
        if self.affine:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        each_channel = (-1, *[1] * (x.ndim - 2))
        return self._line(x, scale.view(each_channel), shift.view(each_channel))

    def _line(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return x * scale + shift

    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        momentum: float | Tensor | None = self.momentum
        if momentum is None:  # the running statistics are the mean over all steps
            assert self.num_batches_tracked is not None
            momentum = 1.0 / self.num_batches_tracked.add_(1)
        unbiased = variance * (count / max(1, count - 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.add_((new - running) * momentum)  # vmap has no rule for lerp_


class PooledBatchNorm(PlainBatchNorm):
    """Batch norm and the max pooling behind it, which comes first: the greatest of some pixels is
    the same before a rising line and after it. So all but the statistics has fewer pixels to do."""

    pool: nn.MaxPool2d

    def _line(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        rising = torch.where(scale < 0, -1.0, 1.0)
        return super()._line(self.pool(x * rising), scale * rising, shift)


def batchable(model: nn.Module, device: torch.device | str = "cpu") -> nn.Module:
    """A copy there whose layers are fast with other weights for every client; only their classes
    change, so parameters and buffers keep their names."""
    model = copy.deepcopy(model).to(device)
    for layers in (part for part in model.modules() if type(part) is nn.Sequential):
        for place, (norm, pool) in enumerate(itertools.pairwise(layers)):
            pooled = type(norm) is nn.BatchNorm2d and type(pool) is nn.MaxPool2d
            if pooled and not pool.return_indices:
                norm.__class__, norm.pool = PooledBatchNorm, pool
                layers[place + 1] = nn.Identity()
    for layer in model.modules():
        kind = type(layer)
        plain = kind is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        mean_of_steps = kind in (nn.BatchNorm1d, nn.BatchNorm3d) and layer.momentum is None
        if plain and not isinstance(layer.padding, str):
            layer.__class__ = MatmulConv2d
        elif kind is nn.BatchNorm2d or mean_of_steps:  # PyTorch's kernels cannot do these mapped
            layer.__class__ = PlainBatchNorm
        if isinstance(layer, MatmulConv2d):
            layer.kernels = kernels_run_on(torch.device(device))
        if isinstance(layer, PlainBatchNorm) and layer.momentum is not None:
            layer.num_batches_tracked = None  # nobody reads it
    return model


class ClientBatch:
    """Every client of every run at once; one after the other with dropout, or with layers that
    cannot be mapped."""

    def __init__(self, model: nn.Module, dataset: Dataset, precision: Precision) -> None:
        self.device = dataset.mean.device
        self.model = batchable(model, self.device).train()
        self.dataset, self.precision = dataset, precision
        self.parameter_layout = parameter_layout(model)
        self.buffer_layout = buffer_layout(model)
        self._initial = InitialState(self.model)
        self._loop = ClientLoop(model, dataset, precision, threads=1)
        self.dropout = self._loop.dropout
        # Without dropout a random number would be a mistake, so vmap is told to refuse it.
        randomness = "different" if self.dropout else "error"
        self._plain_gradient = vmap(grad(self._loss, has_aux=True), randomness=randomness)
        # A pooled pixel is read by nine patches: worked out once and kept, not nine times.
        keep = {"realize_reads_threshold": 3}
        fused = fuse(self._plain_gradient, self.device, options=keep)
        self._gradient = self._plain_gradient if self.dropout else fused
        self._recorded: dict[tuple[object, ...], _RecordedSteps] = {}
        self._at_once: int | None = None
        changes = pass_changes(model, dataset.shape, training=True)
        self.mapped = not changes and self._can_be_mapped(model)

    def _can_be_mapped(self, model: nn.Module) -> bool:
        """Whether one client's step can be written for all, by trying: spectral norm's cannot."""
        named = dict(model.named_parameters()) | dict(model.named_buffers())
        both = self.parameter_layout, self.buffer_layout
        flat, averaged = (layout.flatten(named)[None].to(self.device) for layout in both)
        blank = torch.zeros(1, 2, dtype=torch.int64, device=self.device)
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                self.gradient(flat, self.buffers(averaged), blank, compiled=False)
        except RuntimeError:  # all that vmap and functional_call have to say
            return False
        finally:
            self._initial.restore()
        return True

    def _loss(
        self, flat: Tensor, buffers: Buffers, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Buffers]]:
        """Loss of one client; aux: the loss again, and the buffers after the pass."""
        # Layers write into their buffers, so they are given copies.
        copies = {name: buffer.clone() for name, buffer in buffers.items()}
        named = self.parameter_layout.views(flat) | copies
        logits = functional_call(self.model, named, (images,))
        loss = F.cross_entropy(logits.float(), labels)
        # `named` now also holds what the pass put in a buffer's place; a cache that took another
        # shape is made anew in the next step.
        after = {n: named[n] if named[n].shape == b.shape else b for n, b in buffers.items()}
        return loss, (loss, after)

    def gradient(
        self, flat: Tensor, buffers: Buffers, batch: Tensor, compiled: bool = True
    ) -> tuple[Tensor, Tensor, Buffers]:
        """Gradients [client, D], losses [client] and buffers [client, ...] of a step."""
        images = self.dataset.normalised(self.dataset.train_images[batch]).contiguous()
        labels = self.dataset.train_labels[batch]
        # The backward pass runs inside `_gradient`, so the arithmetic is set around all of it.
        with arithmetic(self.device, self.precision):
            method = self._gradient if compiled else self._plain_gradient
            gradient, (loss, buffers) = method(flat, buffers, images, labels)
        self._initial.restore(values=False)  # `functional_call` leaves those that were None
        return gradient, loss, buffers

    def buffers(self, averaged: Tensor) -> Buffers:
        """All buffers [client, ...] where a round begins: the averaged ones from [client, B]."""
        own = {n: b.expand(len(averaged), *b.shape) for n, b in self.model.named_buffers()}
        return own | self.buffer_layout.views(averaged)

    def train(self, state: ServerState, work: LocalWork) -> Trained:
        if not self.mapped:
            return self._loop.train(state, work)
        runs, clients = work.samples.shape[:2]
        both = state.parameters, state.buffers  # of a single run views will do
        start, averaged = (rows[:, None].expand(-1, clients, -1).flatten(0, 1) for rows in both)
        samples = work.samples.flatten(0, 1)  # [run x client, step, sample]
        update, after = start.new_zeros(start.shape), averaged.new_zeros(averaged.shape)
        loss = start.new_full((len(start),), torch.nan)
        given = None if work.correction is None else work.correction.flatten(0, 1)
        at_once = self._clients_at_once(start[:1], averaged[:1], samples[:1, 0], len(start))
        for part in self._blocks(work.who, len(start), at_once):
            block = start[part], self.buffers(averaged[part]), samples[part]
            key = (block[0].shape, block[2].shape, work.rate, work.proximal, given is None)
            if key not in self._recorded:
                self._recorded.clear()  # a recording holds memory; one shape at a time is in use
                self._recorded[key] = _RecordedSteps(self, *block, work)
            with self._dropout(work, part):
                correction = None if given is None else given[part]
                update[part], buffers, loss[part] = self._recorded[key].train(*block, correction)
            left = averaged.new_empty(len(block[2]), averaged.shape[1])
            for name, view in self.buffer_layout.views(left).items():
                view.copy_(buffers[name])
            after[part] = left
        update, after = (found.view(runs, clients, found.shape[1]) for found in (update, after))
        return Trained(update, after, loss.view(runs, clients))

    def _dropout(self, work: LocalWork, part: slice | Tensor) -> AbstractContextManager[None]:
        """Of the one client in a block, where the model has dropout."""
        if not self.dropout:
            return nullcontext()
        row = int(part.start if isinstance(part, slice) else part[0])
        return dropout_of(work, *divmod(row, work.samples.shape[1]))

    @staticmethod
    def _blocks(who: Tensor | None, count: int, at_once: int) -> Sequence[slice | Tensor]:
        """Clients trained together, in blocks of the one size that is recorded."""
        blocks = equal_blocks(count, at_once)
        if who is None or bool(who.all()):
            return blocks
        chosen, size = who.flatten().nonzero().flatten(), blocks[0].stop
        if not len(chosen):
            return []
        # The last block is filled up with its last client, trained to the same end again and again.
        filled = torch.cat([chosen, chosen[-1:].expand(-len(chosen) % size)])
        return torch.split(filled, size)

    def _clients_at_once(self, flat: Tensor, averaged: Tensor, batch: Tensor, wanted: int) -> int:
        """As many clients as are worth it and fit the memory set aside, by what one takes."""
        if self.dropout:
            return 1  # its random numbers must not depend on who is trained beside it
        if self.device.type != "cuda":
            return wanted
        if self._at_once is None:
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            # Compiling for one client would take longer than all it could tell.
            self.gradient(flat, self.buffers(averaged), batch, compiled=False)
            one = torch.cuda.max_memory_allocated(self.device) - before
            room = spare_bytes(self.device, _MEMORY_SHARE, on_cpu=0)
            self._at_once = max(1, min(_CLIENTS, room // max(1, one)))
        return self._at_once

    def evaluate(self, state: ServerState, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # One run after the other: a test set keeps a GPU busy, and one model convolves fast.
        return self._loop.evaluate(state, images, labels, _EVALUATION_IMAGES)


def equal_blocks(count: int, at_once: int) -> list[slice]:
    """Blocks that cover `count` clients, of one size to record once: the last goes back a little.

    >>> equal_blocks(10, 4)
    [slice(0, 4, None), slice(4, 8, None), slice(6, 10, None)]
    """
    size = min(count, at_once)
    firsts = [min(first, count - size) for first in range(0, count, size)]
    return [slice(first, first + size) for first in firsts]


class _RecordedSteps:
    """Some steps of SGD for a block of clients, recorded on tensors that stay where they are."""

    def __init__(
        self, engine: ClientBatch, start: Tensor, buffers: Buffers, samples: Tensor, work: LocalWork
    ) -> None:
        count = samples.shape[1]
        together = max(some for some in range(1, _STEPS + 1) if count % some == 0)
        self._engine, self._rate, self._proximal = engine, work.rate, work.proximal
        self._start, self._flat = start.clone(), start.clone()
        self._correction = None if work.correction is None else torch.zeros_like(start)
        self._buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        self._samples = samples[:, :together].clone()  # [client, step, sample]
        self._loss = torch.zeros(len(start), device=start.device)
        changed = [self._flat, self._loss, *self._buffers.values()]
        # A user's dropout draws new numbers in every step, which a recording would repeat.
        self._steps: Work = self._some_steps
        if not engine.dropout:
            self._steps = record(self._some_steps, changed, start.device)

    def _some_steps(self) -> None:
        """Steps of every client (paper: eq. 4)."""
        for batch in self._samples.unbind(1):
            gradient, loss, buffers = self._engine.gradient(self._flat, self._buffers, batch)
            if self._proximal:  # FedProx: the gradient of proximal / 2 |w - w_t|^2
                gradient = gradient + self._proximal * (self._flat - self._start)
            if self._correction is not None:
                gradient = gradient + self._correction
            self._flat.sub_(gradient, alpha=self._rate)
            copy_all(self._buffers.values(), [buffers[name] for name in self._buffers])
            self._loss.add_(loss)

    def train(
        self, start: Tensor, buffers: Buffers, samples: Tensor, correction: Tensor | None
    ) -> tuple[Tensor, Buffers, Tensor]:
        """Updates, buffers and mean loss after all steps."""
        if self._correction is not None and correction is not None:
            self._correction.copy_(correction)
        if self._proximal:
            self._start.copy_(start)
        self._flat.copy_(start)
        copy_all(self._buffers.values(), buffers.values())
        self._loss.zero_()
        for some in torch.split(samples, self._samples.shape[1], dim=1):
            self._samples.copy_(some)
            self._steps()
        return start - self._flat, self._buffers, self._loss / samples.shape[1]
