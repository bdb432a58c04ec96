"""Collectives of `torch.distributed`: operators that all processes of a group run together.

A program has the functional ones (`_c10d_functional`), which name their group by a string. What
they return is there after a wait. Those that write (`c10d`, what `dist.all_reduce(x)` calls) are
taken apart into these (`fake/composite/collectives.py`). That they communicate is told by their
schemas (`registry.py`). Must not know of process groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lostwax.ops.registry import itself, mark, refuse_operators, rule, view_inverse
from lostwax.ops.shapes import fail, require
from lostwax.ops.traits import OperatorRefusal, Trait
from lostwax.sym import Size, eq
from lostwax.types import Sizes, TensorType


def _both(name: str) -> tuple[str, str]:
    return f"_c10d_functional::{name}", f"_c10d_functional_autograd::{name}"


def _receive(input: TensorType, size: Sizes) -> TensorType:
    """What arrives is row-major, whatever the layout of what is sent."""
    return TensorType(size, input.dtype, input.device)


def _check_group(group: Any) -> None:
    if not isinstance(group, str):
        fail("a program names a process group by a string: group.group_name", TypeError)


@rule("_c10d_functional::all_reduce")
def all_reduce(input: TensorType, reduce_op: str, group_name: str) -> TensorType:
    _check_group(group_name)
    return _receive(input, input.size)


@rule("_c10d_functional::broadcast")
def broadcast(input: TensorType, src: int, group_name: str) -> TensorType:
    _check_group(group_name)
    return _receive(input, input.size)


@rule(*_both("all_gather_into_tensor"))
def all_gather(input: TensorType, group_size: int, group_name: str) -> TensorType:
    _check_group(group_name)
    first, rest = _split_size(input)
    return _receive(input, (first * group_size, *rest))


@rule(*_both("reduce_scatter_tensor"))
def reduce_scatter(
    input: TensorType, reduce_op: str, group_size: int, group_name: str
) -> TensorType:
    _check_group(group_name)
    first, rest = _split_size(input)
    text = f"dim 0 of the input, {first}, must be divisible by the group's size, {group_size}"
    require(eq(first % group_size, 0), text)
    return _receive(input, (first // group_size, *rest))


@rule(*_both("all_to_all_single"))
def all_to_all(
    input: TensorType,
    output_split_sizes: Sequence[Size],
    input_split_sizes: Sequence[Size],
    group_name: str,
) -> TensorType:
    _check_group(group_name)
    first, rest = _split_size(input)
    sent, count = _add(input_split_sizes), _add(output_split_sizes)
    require(
        eq(sent, first), f"the pieces that are sent, {sent}, are not dim 0 of the input, {first}"
    )
    for size in (*input_split_sizes, *output_split_sizes):
        require(size >= 0, "a piece of an all_to_all cannot have a negative size")
    return _receive(input, (count, *rest))


@rule("_c10d_functional::all_reduce_coalesced")
def all_reduce_all(inputs: Sequence[TensorType], reduce_op: str, group: str) -> list[TensorType]:
    return [all_reduce(each, reduce_op, group) for each in inputs]


@rule("_c10d_functional::all_gather_into_tensor_coalesced")
def all_gather_all(inputs: Sequence[TensorType], group_size: int, group: str) -> list[TensorType]:
    return [all_gather(each, group_size, group) for each in inputs]


@rule("_c10d_functional::reduce_scatter_tensor_coalesced")
def reduce_scatter_all(
    inputs: Sequence[TensorType], reduce_op: str, group_size: int, group: str
) -> list[TensorType]:
    return [reduce_scatter(each, reduce_op, group_size, group) for each in inputs]


def _split_size(input: TensorType) -> tuple[Size, Sizes]:
    if not input.size:
        fail("a collective that splits or joins tensors takes none of 0 dimensions")
    return input.size[0], input.size[1:]


def _add(sizes: Sequence[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = total + size
    return total


# ------------------------------------------------------------------------------------------- waits

_WAIT = "_c10d_functional::wait_tensor"
mark(Trait.WAITS, _WAIT)
mark(Trait.SHARES_STORAGE, _WAIT)


@rule(_WAIT)
def wait_tensor(tensor: TensorType) -> TensorType:
    return tensor


@itself(_WAIT)
def _is_awaited(tensor: Any) -> bool:
    return True


@view_inverse(_WAIT)
def _write_awaited(base: Any, written: Any) -> Any:
    return written


# ---------------------------------------------------------------------------------------- refusals

_TO_ALL = "let all ranks take part, in a collective that gives each of them its result: "

refuse_operators(
    OperatorRefusal(
        "{name}: a message from one process to another cannot be captured",
        "each rank has a program of its own, and none of them says what the other one does",
        f"{_TO_ALL}dist.broadcast, dist.all_gather or dist.all_to_all",
    ),
    *("c10d::send", "c10d::recv_", "c10d::recv_any_source_"),
    *("_c10d_functional::isend", "_c10d_functional::irecv", "_c10d_functional::batch_p2p_ops"),
)
refuse_operators(
    OperatorRefusal(
        "{name}: a barrier cannot be captured",
        "a program computes values, and a barrier has none",
        "leave it out: collectives wait for each other; or call dist.barrier() around the program",
    ),
    *("c10d::barrier", "c10d::monitored_barrier_"),
)
refuse_operators(
    OperatorRefusal(
        "{name}: a collective whose result one rank alone receives cannot be captured",
        "what it leaves in the tensors of the other ranks is not defined",
        f"{_TO_ALL}dist.all_reduce instead of reduce, dist.all_gather instead of gather",
    ),
    *("c10d::reduce_", "c10d::gather_"),
)
refuse_operators(
    OperatorRefusal(
        "{name}: it cannot be captured",
        "there is no functional form of it, which a program could have",
        f"{_TO_ALL}dist.broadcast of all parts, dist.all_gather, or dist.reduce_scatter_tensor",
    ),
    *("c10d::scatter_", "c10d::allgather_coalesced_", "c10d::check_for_nan"),
)
