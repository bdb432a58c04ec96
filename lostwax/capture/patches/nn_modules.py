"""Modules of torch.nn that have kernels of their own for some devices go the common way; and those
that ask for data while they run are asked to compute with it.

What that would change is refused. Must not change what a module computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from lostwax.capture import threads
from lostwax.capture.patches.swap import CodeSwap

if TYPE_CHECKING:
    from lostwax.fake.composite.recurrent import Packed


def has_averages(modules: Sequence[nn.Module]) -> bool:
    """Do some of these normalize batches without a momentum?"""
    return any(isinstance(m, _BatchNorm) and m.momentum is None for m in modules)


def _normalize(plain: Any, self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    """Without a momentum the statistics are averages over all batches: torch asks for the number of
    these, to hand it to a kernel."""
    mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
    is_asked = self.training and self.track_running_stats and self.momentum is None
    if not is_asked or mean is None or var is None or count is None:
        return plain(self, input)  # type: ignore[no-any-return]
    self._check_input_dim(input)
    out = functional.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
    with torch.no_grad():
        count.add_(1)
        dims = [d for d in range(input.ndim) if d != 1]
        new_var, new_mean = torch.var_mean(input.to(mean.dtype), dims)
        share = 1.0 / count.to(mean.dtype)
        mean.lerp_(new_mean, share)
        var.lerp_(new_var, share)
    return out


def _encode(
    plain: Any,
    self: nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """Where eager leaves the padding out of nested tensors, it returns zeros there, if the mask has
    padding only at the end."""
    given = src_key_padding_mask
    if given is None or mask is not None or not _would_nest(self, src):
        return plain(self, src, mask, given, is_causal)  # type: ignore[no-any-return]
    padding = given if given.dtype is torch.bool else given != 0
    if getattr(self, "mask_check", True):
        is_at_end = (padding[:, :-1] & ~padding[:, 1:]).any().logical_not()
    else:  # it counts what is no padding, and takes as many from the beginning
        places = torch.arange(src.shape[1], device=src.device)
        given = padding = places >= padding.logical_not().sum(1, keepdim=True)
        is_at_end = None
    out = src
    for layer in self.layers:
        out = layer(out, src_mask=None, is_causal=bool(is_causal), src_key_padding_mask=given)
    left_out = padding if is_at_end is None else padding & is_at_end
    out = out.masked_fill(left_out.unsqueeze(-1), 0.0)
    return out if self.norm is None else self.norm(out)


def _would_nest(module: nn.TransformerEncoder, src: torch.Tensor) -> bool:
    """Would eager make nested tensors? It does so without gradients: then calls are held to it."""
    first: Any = module.layers[0]
    is_wanted = torch.backends.mha._is_fastpath_enabled and getattr(
        module, "use_nested_tensor", False
    )
    if not is_wanted or first.training or src.dim() != 3 or torch.is_autocast_enabled():
        return False
    read = [src, *first.parameters()]
    if torch.is_grad_enabled() and any(each.requires_grad for each in read):
        return False
    tracer = threads.running[-1]
    tracer.observer.note_gradients([tracer.value_of(tracer.adopt(each)) for each in read])
    return True


# --------------------------------------------------------------------------------- packed sequences


def _pack(
    plain: Any,
    input: torch.Tensor,
    lengths: torch.Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """`pack_padded_sequence`, computed: the lengths are data."""
    from lostwax.fake.composite.recurrent import Packed

    given = torch.as_tensor(lengths, dtype=torch.int64, device=_cpu_of(lengths))
    batch, steps = input.shape[:2] if batch_first else (input.shape[1], input.shape[0])
    if given.ndim != 1 or given.device.type != "cpu" or input.ndim < 2:
        return plain(input, lengths, batch_first, enforce_sorted)  # type: ignore[no-any-return]
    torch._check(given.shape[0] == batch, lambda: _OTHER_BATCH)
    known, order = _read(given), None
    if known is not None and not enforce_sorted:
        places = sorted(range(len(known)), key=[-each for each in known].__getitem__)
        known = [known[i] for i in places]
        given, order = torch.tensor(known), torch.tensor(places, device=input.device)
    elif not enforce_sorted:
        given, order = torch.sort(given, descending=True)
        order = order.to(input.device)
    if order is not None:
        input = input.index_select(0 if batch_first else 1, order)
    _check_lengths(given, steps)
    mask = torch.arange(steps)[:, None] < given
    if known is None:
        positions, longest = mask.flatten().nonzero().squeeze(1), given[0].item()
        torch._check(longest >= 1)
        torch._check(longest <= steps)
    else:
        longest = max(known)
        found = [t * len(known) + b for t in range(longest) for b, n in enumerate(known) if t < n]
        positions = torch.tensor(found)
    packed = Packed(given, steps, positions)
    sizes = mask.sum(1)[:longest]
    tracer = threads.running[-1]
    tracer.packed[tracer.value_of(tracer.adopt(sizes))] = packed
    data = packed.pack(input.transpose(0, 1) if batch_first else input)
    return rnn._packed_sequence_init(data, sizes, order, None)


_OTHER_BATCH = "pack_padded_sequence takes as many lengths as there are sequences"


def _cpu_of(lengths: Any) -> torch.device:
    return lengths.device if isinstance(lengths, torch.Tensor) else torch.device("cpu")


def _read(lengths: torch.Tensor) -> list[int] | None:
    """The lengths, if they are known."""
    found = threads.running[-1].adopt(lengths).known_constant()
    return None if found is None else found.tolist()


def _check_lengths(lengths: torch.Tensor, steps: Any) -> None:
    """Assert what eager checks of lengths, from the longest on."""
    in_order = (lengths[1:] <= lengths[:-1]).all()
    torch._assert_async(
        in_order, "lengths must be sorted in decreasing order, unless enforce_sorted=False"
    )
    torch._assert_async((lengths > 0).all(), "the lengths of all sequences must be greater than 0")
    torch._assert_async((lengths <= steps).all(), "a sequence is longer than the tensor to pack")


def _pad(
    plain: Any,
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`pad_packed_sequence`, computed."""
    packed = _find_packed(sequence.batch_sizes)
    longest = sequence.batch_sizes.shape[0]
    if packed is None or (total_length is not None and type(longest) is type(total_length) is int):
        if packed is None or total_length < longest:
            return plain(sequence, batch_first, padding_value, total_length)  # type: ignore[no-any-return]
    elif total_length is not None:
        torch._check(total_length >= longest, lambda: "total_length is less than the longest")
    steps = longest if total_length is None else total_length
    padded = packed.unpack(sequence.data, steps)
    mask = packed.mask(steps).to(padded.device)
    mask = mask.reshape(*mask.shape, *[1] * (padded.ndim - 2))
    out = padded.masked_fill(~mask, padding_value)
    out, lengths, order = out.transpose(0, 1) if batch_first else out, packed.lengths, sequence[3]
    if order is None:
        return out, lengths.clone()
    return out.index_select(0 if batch_first else 1, order), lengths[order.cpu()]


def _find_packed(sizes: Any) -> Packed | None:
    tracer = threads.running[-1]
    if not tracer.packed or not isinstance(sizes, torch.Tensor):
        return None
    return tracer.packed.get(tracer.value_of(tracer.adopt(sizes)))  # type: ignore[no-any-return]


def _start_with_zeros(plain: Any, self: nn.RNNBase, input: Any, hx: Any = None) -> Any:
    """A recurrent layer: how many sequences are packed is asked of the sequences, not of data."""
    if hx is None and isinstance(input, PackedSequence) and _find_packed(input[1]) is not None:
        data, sizes = input[:2]
        shapes = [self.get_expected_hidden_size(data, sizes)]
        if isinstance(self, nn.LSTM):
            shapes.append(self.get_expected_cell_size(data, sizes))
        states = [torch.zeros(shape, dtype=data.dtype, device=data.device) for shape in shapes]
        hx = tuple(states) if isinstance(self, nn.LSTM) else states[0]
    return plain(self, input, hx)


def _expect_size(plain: Any, self: nn.RNNBase, input: Any, batch_sizes: Any) -> Any:
    packed = _find_packed(batch_sizes)
    if packed is None:
        return plain(self, input, batch_sizes)
    rows = packed.lengths[:, None]  # one of its dims is the batch
    return plain(self, rows if self.batch_first else rows.t(), None)


PACKING = [
    CodeSwap(rnn.pack_padded_sequence, _pack),
    CodeSwap(rnn.pad_packed_sequence, _pad),
    *(CodeSwap(layer.forward, _start_with_zeros) for layer in (nn.LSTM, nn.GRU, nn.RNN)),
    CodeSwap(nn.RNNBase.get_expected_hidden_size, _expect_size),
    CodeSwap(nn.LSTM.get_expected_cell_size, _expect_size),
]
ENCODER = CodeSwap(nn.TransformerEncoder.forward, _encode)
NORM = CodeSwap(_BatchNorm.forward, _normalize)
