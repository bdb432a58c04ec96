"""`torch.cond`: both branches are recorded, each into a graph of its own.

Inside of a branch the predicate is known. What a branch writes to tensors from outside leaves the
operator as results of its own, and is assigned after it. Must not choose a branch by data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.capture.control.lifting import Lifting
from lostwax.capture.control.outputs import Merger, Side, new_results
from lostwax.capture.control.scope import RecordedFunction, Scope, are_equal, record_function
from lostwax.capture.control.side_effects import ReplacedBuffer, SideEffects
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.ir.pytree import leaf_paths
from lostwax.ir.trace.log import Operands, Value
from lostwax.ir.trace.views import Root
from lostwax.sym import BoolExpr, Expr, eq, known, negate
from lostwax.sym.numbers.real import Real
from lostwax.types import TensorType


def call_cond(tracer: Tracer, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """`torch.cond` as users call it."""
    if isinstance(pred, (bool, int, float)):
        warnings.warn(
            "Pred is a Python constant. When used with torch.cond, it specializes on one of the "
            "branches. If you want torch.cond to preserve two branches, please make the predicate "
            "a boolean tensor or a SymBool.",
            UserWarning,
            stacklevel=4,
        )
        return true_fn(*operands) if pred else false_fn(*operands)
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("Expect both branches to be callable.")
    if not isinstance(operands, (tuple, list)):
        raise RuntimeError(
            "Expect operands to be a tuple of possibly nested dict/list/tuple that only consists "
            f"of tensor leaves, but got {operands}."
        )
    return record_cond(tracer, pred, true_fn, false_fn, operands)


def record_cond(
    tracer: Tracer,
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any],
) -> Any:
    condition = read_predicate(tracer, pred)
    if isinstance(condition, bool):
        return (true_fn if condition else false_fn)(*operands)
    return _Cond(tracer, condition, operands).record(true_fn, false_fn)


def find_facts(condition: Any) -> tuple[list[BoolExpr], list[BoolExpr]]:
    if not isinstance(condition, BoolExpr):
        return [], []
    opposite = negate(condition)
    assert isinstance(opposite, BoolExpr)
    return [condition], [opposite]


def read_predicate(tracer: Tracer, pred: Any) -> Any:
    """The predicate as the log keeps it; a bool, if it is known."""
    if isinstance(pred, torch.Tensor):
        fake = tracer.adopt(pred)
        if known(eq(fake.fake_type.numel(), 1)) is False:
            raise CaptureError.here(
                f"the predicate of torch.cond is a tensor of size {tuple(fake.shape)}",
                why="it must be one boolean",
                instead="say which is meant, (x > 0).any() or (x > 0).all()",
            )
        if fake.dtype is not torch.bool:
            raise CaptureError.here(
                f"the predicate of torch.cond is a tensor of {fake.dtype}",
                why="torch takes a boolean",
                instead="compare it, torch.cond(x != 0, ...)",
            )
        return tracer.value_of(fake)
    if isinstance(pred, bool):
        return pred
    if not isinstance(pred, torch.SymBool):
        raise CaptureError.here(
            f"the predicate of torch.cond is {pred!r}, of class {type(pred).__name__}",
            why="it must be one boolean",
            instead="a tensor of dtype bool with one element, or a comparison of sizes",
        )
    condition = unwrap(pred)
    answer = known(condition)
    return condition if answer is None else answer


class _Cond:
    """One call of the operator."""

    def __init__(self, tracer: Tracer, condition: Any, operands: Sequence[Any]) -> None:
        self.tracer = tracer
        self.condition = condition
        self.operands = operands
        self.given = [
            tracer.value_of(tracer.adopt(leaf))
            for leaf in pytree.tree_leaves(list(operands))
            if isinstance(leaf, torch.Tensor)
        ]

    def record(self, true_fn: Callable[..., Any], false_fn: Callable[..., Any]) -> Any:
        facts = find_facts(self.condition)
        effects = SideEffects(self.tracer, (true_fn, false_fn))
        true = self._record_branch("the true branch", true_fn, facts[0], effects)
        false = self._record_branch("the false branch", false_fn, facts[1], effects)
        merger = Merger(self.tracer, "the branches of torch.cond", true, false)
        merger.check_structure()
        return self._merge(merger, true.recorded, false.recorded)

    def _record_branch(
        self,
        name: str,
        function: Callable[..., Any],
        facts: Sequence[BoolExpr],
        effects: SideEffects,
    ) -> Side:
        what, give = f"{name} of torch.cond", self._give_operands
        recorded = record_function(self.tracer, what, function, give, facts, effects=effects)
        return Side(name, recorded)

    def _give_operands(self, scope: Scope) -> Sequence[Any]:
        """The branches get the operands as they are: what they read of them is lifted."""
        return self.operands

    def _merge(self, merger: Merger, true: RecordedFunction, false: RecordedFunction) -> Any:
        tracer = self.tracer
        roots, buffers = _find_carried(true, false)
        ours, theirs = (_find_values_after(f, roots, buffers) for f in (true, false))
        count = true.structure.num_leaves
        of_buffers = count + len(roots)
        names = list(leaf_paths(true.structure, "the result"))
        types: list[Any] = list(map(merger.merge, names, ours[:count], theirs[:count]))
        types += map(merger.merge_written, ours[count:of_buffers], theirs[count:of_buffers])
        names = ["a buffer"] * len(buffers)
        types += map(merger.merge, names, ours[of_buffers:], theirs[of_buffers:])
        leaves = append_cond(
            tracer, self.condition, self.given, (true.scope, false.scope), (ours, theirs), types
        )
        for root, new in zip(roots, leaves[count:], strict=False):
            tracer.replace_value(root, tracer.value_of(new))
        for each, new in zip(buffers, leaves[of_buffers:], strict=True):
            each.buffers[each.name] = new
        for f in (true, false):
            held = [each.buffers[each.name] for each in f.buffers]
            f.note_ways([*leaves[:count], *held])
            f.note_sharing([*leaves[:count], *held])
        return pytree.tree_unflatten(leaves[:count], true.structure)


def append_cond(
    tracer: Tracer,
    condition: Any,
    given: Sequence[Any],
    scopes: tuple[Scope, Scope],
    values: tuple[Sequence[Any], Sequence[Any]],
    types: Sequence[Any],
) -> list[Any]:
    """Append the step that chooses between two recorded regions. `values` are what each of them
    returns, and `types` what that is after the step; None: the same in both. Returns what is in
    their places then."""
    kept = [i for i, t in enumerate(types) if t is not None]
    results = [types[i] for i in kept]
    lifting = Lifting(tracer, given)
    graphs = []
    for name, scope, all_of_them in zip(_GRAPHS, scopes, values, strict=True):
        own = [all_of_them[i] for i in kept]
        returned = scope.return_new(own, list(map(_find_own_type, own, results)))
        lifting.read(scope, returned)
        graphs.append((name, scope, returned))
    lifting.check_gradients("torch.cond")
    bodies = [lifting.make_graph(*each) for each in graphs]
    for body in bodies:
        body.operands = lifting.operands
    operands = [condition, *bodies, Operands(lifting.operands)]
    step = tracer.append_step(torch.ops.higher_order.cond, operands, {})
    made = dict(zip(kept, new_results(tracer, step, results), strict=True))
    return [made[i] if i in made else _wrap(value) for i, value in enumerate(values[0])]


_GRAPHS = ("true_graph", "false_graph")


def _wrap(value: Any) -> Any:
    return wrap(value) if isinstance(value, (Expr, BoolExpr, Real)) else value


def _find_own_type(value: Any, result: Any) -> Any:
    """The type in which one branch returns a result: where sizes differ, its own."""
    if not isinstance(result, TensorType):
        return result
    size = value.type.size
    if are_equal(size, result.size):
        return result
    return value.type.replace(offset=0) if value.type.offset != 0 else value.type


def _find_carried(*functions: RecordedFunction) -> tuple[list[Root], list[ReplacedBuffer]]:
    """The tensors to which functions write, and the buffers that they replace."""
    roots = dict.fromkeys(root for f in functions for root in f.scope.writes)
    buffers: list[ReplacedBuffer] = []
    for each in (each for f in functions for each in f.buffers):
        if not any(map(each.is_same_place, buffers)):
            buffers.append(each)
    return list(roots), buffers


def _find_values_after(
    f: RecordedFunction, roots: Sequence[Root], buffers: Sequence[ReplacedBuffer]
) -> list[Any]:
    """What a function returns, and what it leaves in these tensors and buffers."""
    written = [f.scope.writes.get(root, root.value) for root in roots]
    return [*f.leaves, *written, *[_find_value_in(f, each) for each in buffers]]


def _find_value_in(f: RecordedFunction, place: ReplacedBuffer) -> Value:
    """The value of a buffer when the function ended, whether it has replaced it or not."""
    for own in filter(place.is_same_place, f.buffers):
        return own.value  # type: ignore[no-any-return]
    buffer = f.scope.tracer.adopt(place.buffers[place.name])
    root = buffer.tracked.root
    if root in f.scope.writes and buffer.tracked is root:
        return f.scope.writes[root]
    return f.scope.tracer.value_of(buffer)
