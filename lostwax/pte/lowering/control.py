"""Control flow as jumps: `cond`, `while_loop`, `map`, `scan` and `associative_scan`.

The runtime jumps to an instruction if a condition is false, forwards or backwards. Results of
branches and what loops carry lie in memory of their own, and are copied there. Must not plan
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from lostwax.errors import LoweringError
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.graph.control import recorded_value
from lostwax.ir.text import source_place
from lostwax.ops.shapes import is_same
from lostwax.pte.lowering.listing import Call, JumpIfFalse, Label, Move, Number, Tensor
from lostwax.pte.lowering.writer import CallWriter
from lostwax.sym import Expr

Control = Callable[[CallWriter, Node], Any]


def lower_cond(writer: CallWriter, node: Node) -> Any:
    """One branch, then a jump over the other."""
    args: Any = node.args
    condition, *branches, operands = args
    graphs = [writer.find_subgraph(branch) for branch in branches]
    values, chosen = writer.value(operands), writer.value(condition)
    if isinstance(chosen, bool):
        return writer.inline(graphs[0 if chosen else 1], values)
    listing, otherwise, end = writer.listing, Label(), Label()
    results = _new_results(writer, node)
    listing.steps.append(JumpIfFalse(chosen, otherwise, node))
    with listing.scope():
        _assign(writer, writer.inline(graphs[0], values), results)
    listing.steps += [JumpIfFalse(False, end, node), otherwise]
    with listing.scope():
        _assign(writer, writer.inline(graphs[1], values), results)
    listing.steps.append(end)
    return _note_results(writer, node, results)


def lower_while(writer: CallWriter, node: Node) -> Any:
    """The condition, a jump behind the loop, the body, and a jump back."""
    args: Any = node.args
    condition, body = (writer.find_subgraph(a) for a in args[:2])
    starts, others = writer.value(args[2]), writer.value(args[3])
    listing, begin, end = writer.listing, Label(), Label()
    _check_sizes(node, args[2])
    carried = _new_results(writer, node)
    _assign(writer, starts, carried)
    listing.steps.append(begin)
    with listing.scope():
        (holds,) = writer.inline(condition, [*carried, *others])
        listing.steps.append(JumpIfFalse(holds, end, node))
        _carry(writer, writer.inline(body, [*carried, *others]), carried)
        listing.steps += [JumpIfFalse(False, begin, node), end]
    return _note_results(writer, node, carried)


def lower_map(writer: CallWriter, node: Node) -> Any:
    """A loop over the rows of the inputs."""
    args: Any = node.args
    graph = writer.find_subgraph(args[0])
    rows, others = writer.value(args[1]), writer.value(args[2])
    made = _new_results(writer, node)
    _lower_rows(writer, rows, made, [], lambda row: (writer.inline(graph, [*row, *others]), []))
    return _note_results(writer, node, made)


def lower_scan(writer: CallWriter, node: Node) -> Any:
    """A loop over the rows of the inputs, which carries values from one to the next."""
    args: Any = node.args
    graph = writer.find_subgraph(args[0])
    starts, rows, others = (writer.value(v) for v in args[1:])
    _check_sizes(node, args[1])
    results = _new_results(writer, node)
    carried, made = results[: len(starts)], results[len(starts) :]
    _assign(writer, starts, carried)

    def turn(row: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = writer.inline(graph, [*carried, *row, *others])
        return outs[len(starts) :], outs[: len(starts)]

    _lower_rows(writer, rows, made, carried, turn)
    return _note_results(writer, node, results)


def lower_associative_scan(writer: CallWriter, node: Node) -> Any:
    """As `scan`, from the second row on, where what is made is carried. The first row is copied."""
    args: Any = node.args
    graph = writer.find_subgraph(args[0])
    rows, others = writer.value(args[1]), writer.value(args[2])
    made = _new_results(writer, node)
    first = [_select(writer, each, 0) for each in rows]
    carried = [writer.listing.new_tensor(row.size, row.dtype) for row in first]
    _assign(writer, first, carried)

    def turn(row: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = writer.inline(graph, [*carried, *row, *others])
        return outs, outs

    _lower_rows(writer, rows, made, carried, turn, first)
    return _note_results(writer, node, made)


def _check_sizes(node: Node, starts: Sequence[Any]) -> None:
    """Refuse a loop that hands on tensors of changing size."""
    for start, after in zip(map(recorded_value, starts), node.meta["val"], strict=False):
        if isinstance(start, FakeTensor) and isinstance(after, FakeTensor):
            sizes = zip(start.fake_type.size, after.fake_type.size, strict=True)
            if not all(is_same(a, b) for a, b in sizes):
                raise LoweringError.at(
                    "a loop hands on a tensor whose size changes from turn to turn",
                    source_place(node),
                    why="what a loop of an executable hands on lies in memory of one size",
                    instead="hand on a tensor of the largest size, out[n] = x, and the number n",
                )


Turn = Callable[[list[Any]], tuple[list[Any], list[Any]]]
"""Writes the steps for one row of each input; returns the rows of the results, and what the next
turn begins with."""


def _lower_rows(
    writer: CallWriter,
    rows: list[Any],
    made: list[Any],
    carried: list[Any],
    turn: Turn,
    first: Sequence[Any] = (),
) -> None:
    """A loop over rows, whose results are written row by row; `first` are rows of these that are
    there before the first turn."""
    listing, begin, end = writer.listing, Label(), Label()
    length = rows[0].size[0]
    total = listing.number(length)
    for out in made:
        out.grows = True  # by a row in each turn
        if not isinstance(length, int) or not length:
            rest = [listing.number(s) for s in out.size[1:]]
            writer.call("aten::full.out", [0, *rest], 0, outs=[out])
    _add_row(writer, made, first, 0)
    at = Number(0)
    listing.steps += [Move(1 if first else 0, at, listing.node), begin]
    with listing.scope():
        node, within = listing.node, listing.apply("lt", at, total, start=False)
        listing.steps.append(JumpIfFalse(within, end, node))
        results, following = turn([_select(writer, each, at) for each in rows])
        _add_row(writer, made, results, at)
        _carry(writer, following, carried)
        listing.steps += [
            Call("executorch_prim::add.Scalar", [at, 1, at], (at,), listing.node),
            JumpIfFalse(False, begin, node),
            end,
        ]
    for out in made:
        listing.note(out)


def _add_row(writer: CallWriter, to: Sequence[Any], row: Sequence[Any], at: int | Number) -> None:
    for out, part in zip(to, row, strict=False):
        args = [out, part, at]
        step = Call("executorch_prim::et_copy_index.tensor", args, (out,), writer.listing.node)
        writer.listing.steps.append(step)


def _select(writer: CallWriter, source: Tensor, at: int | Number) -> Tensor:
    row = writer.listing.new_tensor(source.size[1:], source.dtype)
    return writer.call("aten::select_copy.int_out", source, 0, at, outs=[row])


# ------------------------------------------------------------------------------- values


def _new_results(writer: CallWriter, node: Node) -> list[Any]:
    """Memory for what a call returns."""
    found: list[Any] = []
    for value in node.meta["val"]:
        if isinstance(value, FakeTensor):
            found.append(writer.new_like(value))
        elif isinstance(value, torch.SymInt):
            found.append(Number(0))
        elif isinstance(value, (torch.SymFloat, torch.SymBool)):
            found.append(Number(0.0 if isinstance(value, torch.SymFloat) else False))
        elif value is None or isinstance(value, (int, float, bool)):
            found.append(value)
        else:
            raise LoweringError.at(
                f"{node.target} returns a {type(value).__name__}",
                source_place(node),
                why="an executable computes tensors and numbers",
                instead="return tensors",
            )
    return found


def _note_results(writer: CallWriter, node: Node, results: list[Any]) -> list[Any]:
    """From now on, numbers among the results, and sizes of them, can be used in expressions of
    sizes."""
    for value, result in zip(node.meta["val"], results, strict=True):
        if isinstance(result, Tensor):
            writer.listing.note(result)
        size = unwrap(value) if isinstance(value, torch.SymInt) else None
        if isinstance(size, Expr):
            writer.listing.numbers[size] = result
    return results


def _assign(writer: CallWriter, values: Sequence[Any], to: Sequence[Any]) -> None:
    """Copy values to where they belong."""
    for value, place in zip(values, to, strict=True):
        if isinstance(place, Tensor):
            order = list(range(len(place.size)))
            writer.call("dim_order_ops::_clone_dim_order.out", value, False, order, outs=[place])
        elif isinstance(place, Number):
            writer.listing.steps.append(Move(value, place, writer.listing.node))


def _carry(writer: CallWriter, values: Sequence[Any], carried: Sequence[Any]) -> None:
    """Copy what the next turn begins with. What is carried already is set aside first: a loop may
    exchange two values."""
    taken = {place.storage for place in carried if isinstance(place, Tensor)}
    ready: list[Any] = []
    for value in values:
        if isinstance(value, Tensor) and value.storage in taken:
            ready.append(writer.clone(value))
        elif isinstance(value, Number):
            aside = Number(value.start)
            writer.listing.steps.append(Move(value, aside, writer.listing.node))
            ready.append(aside)
        else:
            ready.append(value)
    _assign(writer, ready, carried)


CONTROL: dict[str, Control] = {
    "cond": lower_cond,
    "while_loop": lower_while,
    "map_impl": lower_map,
    "scan": lower_scan,
    "associative_scan": lower_associative_scan,
}
"""How higher-order operators are lowered, by name."""
