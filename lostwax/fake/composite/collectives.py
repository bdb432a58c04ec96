"""Collectives that write: what `torch.distributed` calls, by the functional ones.

`dist.all_reduce(x)` becomes `all_reduce`, a wait and a copy into `x`. Eager tells autograd nothing
of what a collective writes, so the copy goes past it. What is asked for with `async_op=True` is
waited for at once: until its handle has been waited for, nobody may read it. Must not call a
process group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lostwax.errors import CaptureError
from lostwax.ops.registry import aten, composite
from lostwax.ops.shapes import are_same_sizes, fail, require
from lostwax.sym import eq
from lostwax.types import product

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

_functional: Any = torch.ops._c10d_functional
_REDUCING = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""As functional collectives call them, in the order of `ReduceOp`."""


# ------------------------------------------------------------------------ what they are called with


def _open_group(group: Any) -> tuple[str, int]:
    """Name and size of a process group, as C++ hands it on."""
    from torch._C._distributed_c10d import ProcessGroup

    opened: Any = ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
    return opened.group_name, opened.size()


def _name_reduction(reduce_op: Any) -> str:
    number: int = reduce_op.op()
    if not 0 <= number < len(_REDUCING):
        raise CaptureError.here(
            f"a collective reduces by {reduce_op}, which functional ones do not know",
            instead=f"reduce by one of these: {', '.join(_REDUCING)}",
        )
    return _REDUCING[number]


def _work() -> Any:
    """A handle whose `wait()` returns at once."""
    from torch._C._distributed_c10d import FakeWork

    return FakeWork().boxed()


# ------------------------------------------------------------------------------- calls and writes


def _past_autograd(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(before)

    return run


def _receive(mode: FakeTensorMode, collective: Any, *args: Any) -> Any:
    """What a functional collective returns, once it is there."""
    wait = _functional.wait_tensor.default
    out = mode.call(collective.default, *args)
    if isinstance(out, (list, tuple)):
        return [mode.call(wait, each) for each in out]
    return mode.call(wait, out)


def _write(mode: FakeTensorMode, target: Any, received: Any) -> None:
    mode.call(aten.copy_.default, target, received)


def _write_reshaped(mode: FakeTensorMode, target: Any, received: Any, what: str) -> None:
    """Into a tensor of as many elements; collectives see memory, and no dimensions."""
    wanted, found = mode.adopt(target).fake_type, mode.adopt(received).fake_type
    if not are_same_sizes(wanted.size, found.size):
        text = f"{what} needs an output of {product(found.size)} elements, not {wanted.size}"
        require(eq(product(wanted.size), product(found.size)), text)
        received = mode.call(aten.view.default, received, list(wanted.size))
    _write(mode, target, received)


def _check_alike(mode: FakeTensorMode, name: str, tensors: Sequence[Any]) -> None:
    """Of one dtype, since what arrives is not cast; and row-major, or eager sends other parts."""
    for each in tensors:
        if not mode.adopt(each).fake_type.is_contiguous:
            raise CaptureError.here(
                f"{name} of a tensor that is not contiguous cannot be captured",
                why="collectives see memory, and no strides",
                instead="call it with x.contiguous(), and with an output that is contiguous",
            )
    found = list(dict.fromkeys(mode.adopt(each).fake_type.dtype for each in tensors))
    if len(found) > 1:
        fail(f"{name} takes tensors of one dtype, not {', '.join(map(str, found))}")


def _check_layout(mode: FakeTensorMode, name: str, tensors: Sequence[Any]) -> None:
    """Refuse a view with gaps: gloo would send what lies between, others raise."""
    for each in tensors:
        if not mode.adopt(each).fake_type.is_dense:
            raise CaptureError.here(
                f"{name} of a view that does not fill its memory cannot be captured",
                why="collectives see memory, and no strides",
                instead="call it with a copy, y = x[:, 1].contiguous(), and write that back",
            )


def _check_sizes(mode: FakeTensorMode, name: str, tensors: Sequence[Any]) -> None:
    """Elements are what counts: each rank sends as many."""
    counts = [product(mode.adopt(each).fake_type.size) for each in tensors]
    for count in counts[1:]:
        require(eq(count, counts[0]), f"{name} takes tensors of one size")


def _flatten(mode: FakeTensorMode, tensor: Any) -> Any:
    count = product(mode.adopt(tensor).fake_type.size)
    return mode.call(aten.reshape.default, tensor, [count])


def _join(mode: FakeTensorMode, tensors: Sequence[Any]) -> Any:
    return mode.call(aten.cat.default, [_flatten(mode, each) for each in tensors])


def _deal_out(mode: FakeTensorMode, targets: Sequence[Any], joined: Any) -> None:
    """Write pieces of what has arrived, one after the other."""
    types = [mode.adopt(each).fake_type for each in targets]
    pieces = mode.call(aten.split_with_sizes.default, joined, [product(t.size) for t in types])
    for target, piece, t in zip(targets, pieces, types, strict=True):
        _write(mode, target, mode.call(aten.view.default, piece, list(t.size)))


def _rows(mode: FakeTensorMode, tensor: Any) -> Any:
    """Functional collectives split and join along dim 0."""
    return tensor if mode.adopt(tensor).fake_type.size else _flatten(mode, tensor)


# --------------------------------------------------------------------------- one tensor for another


@composite("c10d::allreduce_")
@_past_autograd
def allreduce_(
    mode: FakeTensorMode, tensors: Any, group: Any, reduce_op: Any, sparse: Any, *_: Any, **__: Any
) -> Any:
    if sparse is not None:
        fail("all_reduce of sparse tensors has no functional form")
    name, _size = _open_group(group)
    _check_layout(mode, "all_reduce", tensors)
    for each in tensors:
        out = _receive(mode, _functional.all_reduce, each, _name_reduction(reduce_op), name)
        _write(mode, each, out)
    return tensors, _work()


@composite("c10d::allreduce_coalesced_")
@_past_autograd
def allreduce_coalesced_(
    mode: FakeTensorMode, tensors: Any, group: Any, reduce_op: Any, *_: Any, **__: Any
) -> Any:
    how, (name, _size) = _name_reduction(reduce_op), _open_group(group)
    _check_layout(mode, "all_reduce", tensors)
    received = _receive(mode, _functional.all_reduce_coalesced, tensors, how, name)
    for target, out in zip(tensors, received, strict=True):
        _write(mode, target, out)
    return _work()


@composite("c10d::broadcast_")
@_past_autograd
def broadcast_(
    mode: FakeTensorMode, tensors: Any, group: Any, root_rank: int, *_: Any, **__: Any
) -> Any:
    name, _size = _open_group(group)
    _check_layout(mode, "broadcast", tensors)
    for each in tensors:
        _write(mode, each, _receive(mode, _functional.broadcast, each, root_rank, name))
    return tensors, _work()


def _all_gather(mode: FakeTensorMode, output: Any, input: Any, group: Any) -> None:
    name, size = _open_group(group)
    _check_alike(mode, "all_gather", (output, input))
    given = _rows(mode, input)
    received = _receive(mode, _functional.all_gather_into_tensor, given, size, name)
    _write_reshaped(mode, output, received, "all_gather")


@composite("c10d::_allgather_base_")
@_past_autograd
def allgather_base_(
    mode: FakeTensorMode, output: Any, input: Any, group: Any, *_: Any, **__: Any
) -> Any:
    _all_gather(mode, output, input, group)
    return output, _work()


@composite("c10d::allgather_into_tensor_coalesced_")
@_past_autograd
def allgather_coalesced_(
    mode: FakeTensorMode, outputs: Any, inputs: Any, group: Any, *_: Any, **__: Any
) -> Any:
    for output, input in zip(outputs, inputs, strict=True):
        _all_gather(mode, output, input, group)
    return _work()


def _reduce_scatter(
    mode: FakeTensorMode, output: Any, input: Any, group: Any, reduce_op: Any
) -> None:
    how, (name, size) = _name_reduction(reduce_op), _open_group(group)
    _check_alike(mode, "reduce_scatter", (output, input))
    flat = _flatten(mode, input)  # whatever its first dimension is, the parts are those of memory
    received = _receive(mode, _functional.reduce_scatter_tensor, flat, how, size, name)
    _write_reshaped(mode, output, received, "reduce_scatter")


@composite("c10d::_reduce_scatter_base_")
@_past_autograd
def reduce_scatter_base_(
    mode: FakeTensorMode, output: Any, input: Any, group: Any, reduce_op: Any, *_: Any, **__: Any
) -> Any:
    _reduce_scatter(mode, output, input, group, reduce_op)
    return output, _work()


@composite("c10d::reduce_scatter_tensor_coalesced_")
@_past_autograd
def reduce_scatter_coalesced_(
    mode: FakeTensorMode, outputs: Any, inputs: Any, group: Any, reduce_op: Any, *_: Any, **__: Any
) -> Any:
    for output, input in zip(outputs, inputs, strict=True):
        _reduce_scatter(mode, output, input, group, reduce_op)
    return _work()


@composite("c10d::alltoall_base_")
@_past_autograd
def alltoall_base_(
    mode: FakeTensorMode,
    output: Any,
    input: Any,
    group: Any,
    output_split_sizes: Any,
    input_split_sizes: Any,
    *_: Any,
    **__: Any,
) -> Any:
    name, count = _open_group(group)
    _check_alike(mode, "all_to_all_single", (output, input))
    splits = [
        list(sizes) or _even_splits(mode, tensor, count)
        for tensor, sizes in ((output, output_split_sizes), (input, input_split_sizes))
    ]
    received = _receive(mode, _functional.all_to_all_single, input, *splits, name)
    _write_reshaped(mode, output, received, "all_to_all_single")
    return _work()


def _even_splits(mode: FakeTensorMode, tensor: Any, count: int) -> list[Any]:
    first = (*mode.adopt(tensor).fake_type.size, 0)[0]
    text = f"dim 0 of all_to_all_single, {first}, must be divisible by the group's size, {count}"
    require(eq(first % count, 0), text)
    return [first // count] * count


# --------------------------------------------------------------------------------- lists of tensors


@composite("c10d::allgather_")
@_past_autograd
def allgather_(
    mode: FakeTensorMode, output_tensors: Any, input_tensors: Any, group: Any, *_: Any, **__: Any
) -> Any:
    name, size = _open_group(group)
    for outputs, input in zip(output_tensors, input_tensors, strict=True):
        _check_alike(mode, "all_gather", (*outputs, input))
        _check_sizes(mode, "all_gather", (input, *outputs))
        flat = _flatten(mode, input)
        received = _receive(mode, _functional.all_gather_into_tensor, flat, size, name)
        _deal_out(mode, outputs, received)
    return output_tensors, _work()


@composite("c10d::reduce_scatter_")
@_past_autograd
def reduce_scatter_(
    mode: FakeTensorMode,
    output_tensors: Any,
    input_tensors: Any,
    group: Any,
    reduce_op: Any,
    *_: Any,
    **__: Any,
) -> Any:
    how, (name, size) = _name_reduction(reduce_op), _open_group(group)
    for output, inputs in zip(output_tensors, input_tensors, strict=True):
        _check_alike(mode, "reduce_scatter", (output, *inputs))
        _check_sizes(mode, "reduce_scatter", (output, *inputs))
        joined = _join(mode, inputs)
        received = _receive(mode, _functional.reduce_scatter_tensor, joined, how, size, name)
        _write_reshaped(mode, output, received, "reduce_scatter")
    return output_tensors, _work()


@composite("c10d::alltoall_")
@_past_autograd
def alltoall_(
    mode: FakeTensorMode, output_tensors: Any, input_tensors: Any, group: Any, *_: Any, **__: Any
) -> Any:
    name, _size = _open_group(group)
    _check_alike(mode, "all_to_all", (*output_tensors, *input_tensors))
    splits = [
        [product(mode.adopt(each).fake_type.size) for each in tensors]
        for tensors in (output_tensors, input_tensors)
    ]
    joined = _join(mode, input_tensors)
    _deal_out(
        mode,
        output_tensors,
        _receive(mode, _functional.all_to_all_single, joined, *splits, name),
    )
    return output_tensors, _work()


# --------------------------------------------------------------- functional collectives that write


def _written_by(name: str, collective: str) -> None:
    """`all_reduce_(x)` by `all_reduce(x)`: what it writes is there after a wait, too."""

    @composite(f"_c10d_functional::{name}")
    @_past_autograd
    def write(mode: FakeTensorMode, *args: Any, **kwargs: Any) -> Any:
        functional = getattr(_functional, collective)
        target = kwargs.pop("out", args[0])
        received = _receive(mode, functional, *args, **kwargs)
        pairs = zip(target, received, strict=True) if type(target) is list else [(target, received)]
        for each, new in pairs:
            _write(mode, each, new)
        return target


for _name, _collective in (
    ("all_reduce_", "all_reduce"),
    ("all_reduce_coalesced_", "all_reduce_coalesced"),
    ("broadcast_", "broadcast"),
    ("all_gather_into_tensor_out", "all_gather_into_tensor"),
    ("reduce_scatter_tensor_out", "reduce_scatter_tensor"),
):
    _written_by(_name, _collective)
