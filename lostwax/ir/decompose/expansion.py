"""Expansions: the steps that replace a call, recorded once for each distinct call, checked, and
kept.

The decomposition runs on fakes of the arguments' types. Its result must be what the operator
returns: as many tensors, of the same sizes and dtypes. Must not know of the graph that is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from lostwax.classes import SYMBOLIC
from lostwax.errors import DecompositionError
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.identity import ByIdentity
from lostwax.ir.decompose.core_aten import CustomDecompTable, default_decomposition
from lostwax.ir.decompose.expander import CannotExpand, Composite, Decomposition, Expander
from lostwax.ir.text import source_place, type_text
from lostwax.ir.trace.log import Step, Value, values_of
from lostwax.ir.trace.views import memory_of
from lostwax.ops.registry import aten, operator
from lostwax.ops.shapes import is_same
from lostwax.ops.traits import Trait
from lostwax.sym import BoolExpr, Expr, ShapeEnv
from lostwax.sym.numbers.real import Real
from lostwax.types import TensorType


class Expansion:
    """The steps that replace one call. `results` is what the decomposition returned: tensors as
    values, None for those that nobody reads. `whole` is the step whose outputs are just the
    results, if there is one."""

    __slots__ = ("inputs", "memory", "numbers", "read", "results", "steps", "whole")

    def __init__(self, inputs: list[Value], steps: list[Step], results: Any) -> None:
        self.inputs = inputs
        self.results = results
        self.whole = _whole_step(results)
        self.steps, used = _live_steps(steps, results)
        if self.whole is None:
            used.update(values_of(results))
        made = {step: values_of(step.result) for step in self.steps}
        self.read = {step: [v for v in values if v in used] for step, values in made.items()}
        """The outputs of each step that are read one by one."""
        self.memory = {v: memory_of(v) for values in made.values() for v in values}
        """For each value, the value in whose memory it lies."""
        self.numbers = set(_numbers_in([(step.args, step.kwargs) for step in self.steps]))
        """The symbolic numbers among the arguments."""


def _live_steps(steps: list[Step], results: Any) -> tuple[list[Step], set[Value]]:
    """The steps that the results need, in order, and the values that steps read."""
    needed: set[Value] = set(values_of(results))
    read: set[Value] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        draws = torch.Tag.nondeterministic_seeded in step.target.tags
        if draws or not needed.isdisjoint(values_of(step.result)):
            kept.append(step)
            read.update(values_of([step.args, *step.kwargs.values()]))
            needed.update(read)
    return kept[::-1], read


def _whole_step(results: Any) -> Step | None:
    """If the results are the outputs of one step, in order, return that step."""
    if not isinstance(results, list):
        return None
    steps = {v.step for v in results if isinstance(v, Value)}
    step = next(iter(steps)) if len(steps) == 1 else None
    if step is None or not isinstance(step.result, (list, tuple)):
        return None
    if len(step.result) != len(results):
        return None
    is_unchanged = all(r is None or r is o for r, o in zip(results, step.result, strict=True))
    return step if is_unchanged else None


def _numbers_in(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (Expr, BoolExpr, Real)):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _numbers_in(each)
    elif isinstance(tree, dict):
        yield from _numbers_in(list(tree.values()))


class Expansions:
    """The expansions of one program by one table. Use it inside of its `expander`."""

    def __init__(
        self,
        table: Mapping[OpOverload, Decomposition],
        mode: FakeTensorMode,
        are_strides_seen: bool = True,
    ) -> None:
        self.table = table
        self.are_strides_seen = are_strides_seen
        self.env = mode.shape_env or ShapeEnv()
        self.expander = Expander(table, self.env)
        self._found: dict[Any, Expansion | None] = {}
        self._takes = ByIdentity[OpOverload, bool]()

    def takes(self, target: OpOverload) -> bool:
        """Does the table take this operator apart?"""
        found = self._takes.get(target)
        if found is None:
            # An operator that writes has no functional form here: it stays.
            writes = bool(operator(target).mutates)
            found = self._takes[target] = not writes and self.table.get(target) is not None
        return found

    def find(self, node: Node, shown: bool) -> Expansion | None:
        """Return what replaces this call; None if it stays. `shown` says that the caller of the
        program sees the memory of its result."""
        used = _used_outputs(node)
        key = (id(node.target), _argument_key(node.args), _argument_key(node.kwargs), used, shown)
        if key not in self._found:
            self._found[key] = self._record(node, used, shown)
        return self._found[key]

    def _record(self, node: Node, used: Any, shown: bool) -> Expansion | None:
        target: Any = node.target
        decomposition = self.table[target]
        try:
            with self.env.trial() as guards:
                found = self._trace(node, decomposition, used, shown)
            if guards:
                raise CannotExpand(f"it holds only where {guards[0].cond}")
            return found
        except Exception as error:
            if decomposition is default_decomposition(target) or self._may_stay(target):
                return None  # the operator stays whole, which is correct if not core
            if isinstance(error, DecompositionError):
                raise
            raise DecompositionError(
                f"the decomposition of {target} failed: {error}\n  at {source_place(node)}\n"
                f"  instead: keep the operator whole, table.keep(torch.ops.{target})",
                target,
            ) from error

    def _may_stay(self, target: OpOverload) -> bool:
        return isinstance(self.table, CustomDecompTable) and self.table.may_stay(target)

    def _trace(
        self, node: Node, decomposition: Decomposition, used: Any, shown: bool
    ) -> Expansion | None:
        expander, target = self.expander, node.target
        inputs: list[Value] = []
        args, kwargs = (
            self._make_argument(node.args, inputs),
            self._make_argument(node.kwargs, inputs),
        )
        expander.start()
        out = expander.expand(target, decomposition, args, kwargs)  # type: ignore[arg-type]
        if out is NotImplemented:  # torch's functions say so of arguments that are not for them
            return None
        wanted = node.meta["val"]
        _check_result(node, wanted, out, used if _is_of_torch(decomposition) else None)
        fresh = shown and _makes_new(target, decomposition)
        results = self._results(wanted, out, used, fresh)
        expansion = Expansion(inputs, expander.region.steps, results)
        is_default = decomposition is default_decomposition(target)  # type: ignore[arg-type]
        comes_back = any(step.target is target for step in expansion.steps)
        return None if is_default and comes_back else expansion

    def _make_argument(self, value: Any, inputs: list[Value]) -> Any:
        """Make an argument as the decomposition gets it."""
        if isinstance(value, Node):
            value = value.meta["val"]
            if isinstance(value, FakeTensor):
                fake = self.expander.make_input(value.fake_type)
                inputs.append(fake.tracked.value)
                return fake
        if isinstance(value, (list, tuple)):
            return [self._make_argument(v, inputs) for v in value]
        if isinstance(value, dict):
            return {k: self._make_argument(v, inputs) for k, v in value.items()}
        return value

    def _results(self, wanted: Any, out: Any, used: Any, fresh: bool) -> Any:
        if isinstance(wanted, FakeTensor):
            return self._result(wanted.fake_type, out, fresh)
        if isinstance(wanted, (list, tuple)):
            return [
                self._results(w, o, used, fresh) if used is None or i in used else None
                for i, (w, o) in enumerate(zip(wanted, out, strict=True))
            ]
        return unwrap(out)

    def _result(self, wanted: TensorType, out: FakeTensor, fresh: bool) -> Value:
        expander = self.expander
        laid = _lay_out(expander, out, wanted)
        value = expander.value_of(laid)
        if fresh and laid is out and memory_of(value).step is None:
            value = expander.value_of(expander.record_plain(aten.clone.default, (out,), {}))
        return value


def _makes_new(target: Any, decomposition: Decomposition) -> bool:
    """Does this operator return memory of its own?"""
    record = operator(target)
    is_functional = record.kind == "functional" and Trait.SHARES_STORAGE not in record.traits
    return is_functional and not isinstance(decomposition, Composite)


def _is_of_torch(decomposition: Decomposition) -> bool:
    """Is the decomposition torch's or ours? Outputs that nobody reads are not checked for these:
    kernels of different devices differ there."""
    home = getattr(decomposition, "__module__", None) or ""
    return home.split(".")[0] in ("torch", "lostwax")


def _used_outputs(node: Node) -> Any:
    """The indices of the outputs that are read; None if all are, or if there is only one."""
    if not isinstance(node.meta["val"], (list, tuple)):
        return None
    found = set()
    for user in node.users:
        if len(user.args) != 2 or user.args[0] is not node or not isinstance(user.args[1], int):
            return None
        found.add(user.args[1])
    return frozenset(found)


# ------------------------------------------------------------------------------------------- checks


def _check_result(node: Node, wanted: Any, out: Any, used: Any) -> None:
    """Check that the decomposition returned what the operator returns."""
    if isinstance(wanted, (list, tuple)):
        if not isinstance(out, (list, tuple)) or len(out) != len(wanted):
            given = len(out) if isinstance(out, (list, tuple)) else 1
            _refuse(node, f"gives {given} outputs, the operator {len(wanted)}")
        for i, (w, o) in enumerate(zip(wanted, out, strict=True)):
            if used is None or i in used:
                _check_result(node, w, o, used)
    elif isinstance(wanted, FakeTensor):
        if isinstance(out, (list, tuple)):
            _refuse(node, f"gives {len(out)} outputs, the operator 1")
        if not isinstance(out, FakeTensor):
            _refuse(node, f"gives a {type(out).__name__}, the operator {type_text(wanted)}")
        a, b = wanted.fake_type, out.fake_type
        if a.dtype is not b.dtype or a.ndim != b.ndim or not all(map(is_same, a.size, b.size)):
            _refuse(node, f"gives {type_text(out)}, the operator {type_text(wanted)}")
        if a.device != b.device:
            found, due = f"{type_text(out)} on {b.device}", f"{type_text(wanted)} on {a.device}"
            _refuse(node, f"gives {found}, the operator {due}")


def _refuse(node: Node, what: str) -> None:
    raise DecompositionError(
        f"the decomposition of {node.target} {what}.\n  at {source_place(node)}\n"
        "  why: the nodes after it were made for what the operator returns\n"
        f"  instead: return that, or keep the operator, table.keep(torch.ops.{node.target})",
        node.target,
    )


def _lay_out(expander: Expander, out: FakeTensor, wanted: TensorType) -> FakeTensor:
    """Return the result with the operator's strides: nodes after it may rely on them."""
    t = out.fake_type
    if t.stride == wanted.stride or t.is_symbolic or wanted.is_symbolic or 0 in t.size:
        return out
    pairs = zip(t.size, t.stride, wanted.stride, strict=True)
    if all(size == 1 or a == b for size, a, b in pairs) or not wanted.is_dense:
        return out
    order = sorted(range(t.ndim), key=lambda d: (-wanted.stride[d], d))
    back = sorted(range(t.ndim), key=order.__getitem__)
    turned = expander.record_plain(aten.permute.default, (out, order), {})
    rows = {"memory_format": torch.contiguous_format}
    turned = expander.record_plain(aten.clone.default, (turned,), rows)
    return expander.record_plain(aten.permute.default, (turned, back), {})  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------------- distinct calls


def _argument_key(value: Any) -> Any:
    cls = type(value)
    if cls is Node:
        value = value.meta["val"]
        if type(value) is FakeTensor:
            kind = value.fake_type
            return kind.token or kind
        cls = type(value)
    if cls is int or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return tuple([_argument_key(v) for v in value])
    if isinstance(value, dict):
        return tuple([(k, _argument_key(v)) for k, v in value.items()])
    if isinstance(value, SYMBOLIC):
        return unwrap(value)
    return (cls, repr(value))
