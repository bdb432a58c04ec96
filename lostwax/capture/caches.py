"""Caches: tensors that a call leaves in a module, for the next call to read instead of computing
them again.

A program has no place for them, and needs none: it computes them in each run. That is right if the
next call, which finds them, computes the same and leaves the same. So the call is made a second
time, and what both have recorded is compared, value by value; where the cache depends on a size
that varies, also a third time, with the cache of another size in place. Whatever is in doubt is no
cache. Must not change the program: it is built when this begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.capture.aliasing.functionalize import is_differentiable
from lostwax.capture.aliasing.input_layouts import Reliance
from lostwax.capture.aliasing.maybe_views import Doubts
from lostwax.capture.python.containers import is_object, items, key_of, parts
from lostwax.capture.trace.tracer import Tracer
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.graph.effects import has_effect
from lostwax.ir.graph.numbers import simplified, sources
from lostwax.ir.trace.log import Body, Region, Step, Value
from lostwax.ir.trace.views import Root, make_root
from lostwax.sym import BoolExpr, Expr, Guard, Symbol, evaluate, ne
from lostwax.sym.numbers.real import Real
from lostwax.types import TensorType


class NoCache(Exception):
    """Says why."""


class Run(NamedTuple):
    """What one call has recorded, returned and left behind."""

    steps: Sequence[Step]
    results: Sequence[Any]
    """Flat, as values of the log."""
    roots: Sequence[Root | None]
    """The memory of each."""
    structure: Any
    layouts: frozenset[Any]
    """What is asked of the inputs' layouts."""
    writes: bool
    """Does it write to inputs or state?"""
    held: Held


def check(
    tracer: Tracer,
    kept: Sequence[FakeTensor],
    inputs: Mapping[Value, str],
    first: Run,
    again: Callable[[], Run],
) -> None:
    """Raise if the tensors that the first call has left are no cache. `inputs` are the values that
    are other ones in each call, with their names; `again` makes another call."""
    if tracer.tracked or first.writes:
        what = "differentiates inside" if tracer.tracked else "writes to inputs or other state"
        raise NoCache(f"the program also {what}")
    if any(each.tracked.root in first.roots for each in kept):
        raise NoCache("it is also returned, and who gets it may write to it")
    stale = {id(each): _sizes(tracer.value_of(each), inputs) for each in kept}
    varying = set[Symbol]().union(*stale.values(), *map(_symbols, first.held.numbers()))
    if len(varying) > 1:
        raise NoCache("it depends on several sizes that vary")
    _compare(tracer, kept, first, again)
    if not varying:
        return
    (size,) = varying
    other = _other(tracer, size)
    fakes = {id(k): _stale(tracer, k, size, other) for k in kept if stale[id(k)]}

    def after_another_size() -> Run:
        first.held.put(fakes, partial(_renamed, old=size, new=other))
        return again()

    _compare(tracer, kept, first, after_another_size, ne(other, size.expr))


def _compare(
    tracer: Tracer,
    kept: Sequence[FakeTensor],
    first: Run,
    again: Callable[[], Run],
    given: Any = None,
) -> None:
    """Make the call again, and compare. It may depend on the condition that is `given`."""
    before = _looks(kept)
    try:
        with _apart(tracer) as guards:
            second = again()
    except NoCache:
        raise
    except Exception as error:  # whatever the module's own code raises
        raise NoCache(f"the next call fails: {error}") from error
    if second.writes or _looks(kept) != before:
        raise NoCache("the next call writes to it, or to other state")
    if any(guard.cond is not given for guard in guards) or not second.layouts <= first.layouts:
        raise NoCache("the next call is right for other inputs only")
    numbers = Numbering(tracer.constants)
    if numbers.effects(first.steps) != numbers.effects(second.steps) or (
        numbers.results(first) != numbers.results(second)
        or any(each.tracked.root in second.roots for each in kept)
    ):
        raise NoCache("the next call computes something else")
    if not numbers.are_alike(first.held, second.held):
        raise NoCache("the next call leaves something else")


@contextmanager
def _apart(tracer: Tracer) -> Iterator[list[Guard]]:
    """Inside, the tracer records as if nothing were recorded yet; what it learns of sizes is
    forgotten. The list has the guards afterwards."""
    assert tracer.shape_env is not None
    before = tracer.region, tracer.reliance, tracer.doubts
    tracer.region, tracer.reliance, tracer.doubts = Region(), Reliance(), Doubts()
    try:
        with tracer.shape_env.trial() as guards:
            yield guards
    finally:
        tracer.region, tracer.reliance, tracer.doubts = before


def _looks(kept: Iterable[FakeTensor]) -> list[Any]:
    """Other ones after a write."""
    return [(each.fake_type, each.tracked.root, each.tracked.root.version) for each in kept]


# ---------------------------------------------------------------------------- what they are made of


def _sizes(value: Value, inputs: Mapping[Value, str]) -> set[Symbol]:
    """The sizes that a value depends on. Raises if it depends on more than those and state."""
    found: set[Symbol] = set()
    seen: set[Value] = set()
    left: list[Any] = [value]
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, Body):
            raise NoCache("it has a gradient of its own")
        elif not isinstance(part, Value):
            found |= _symbols(part)
        elif part not in seen:
            seen.add(part)
            left += _made_of(part, inputs)
    return found


def _made_of(value: Value, inputs: Mapping[Value, str]) -> list[Any]:
    if value in inputs:
        raise NoCache(f"it depends on the input {inputs[value]}")
    parts: list[Any] = [] if value.type is None else [*value.type.size, *value.type.stride]
    step = value.step
    if step is not None:
        if has_effect(step.target):
            raise NoCache(f"it depends on {step.target}, which is another one in each run")
        parts += [*step.args, *step.kwargs.values()]
    return parts


def _symbols(number: Any) -> set[Symbol]:
    """The sizes that a number is computed from."""
    found = set(sources(simplified(unwrap(number))))
    if any(isinstance(s, Real) or s.unbacked for s in found):
        raise NoCache("it depends on a number that lies in data")
    return found


# --------------------------------------------------------------------------------- of another size


def _other(tracer: Tracer, size: Symbol) -> Expr:
    """What a size was in an earlier call."""
    env = tracer.shape_env
    assert env is not None
    assert size.hint is not None
    lo, hi = env.bounds(size.expr)
    example = size.hint + 1 if hi is None or size.hint < hi else size.hint - 1
    return env.symbol(hint=example, lo=lo, hi=hi, source=f"an earlier {size.source}")


def _renamed(size: Any, old: Symbol, new: Expr) -> Any:
    """A size with one symbol in another's place."""
    size = simplified(size)
    if not isinstance(size, (Expr, BoolExpr, Real)):
        return size
    if not isinstance(size, Expr) or set(size.atoms()) != {old}:
        raise NoCache(f"it depends on {size}")
    return evaluate(size, {old: new})  # type: ignore[dict-item]  # adds and multiplies them


def _stale(tracer: Tracer, kept: FakeTensor, old: Symbol, new: Expr) -> FakeTensor:
    """What an earlier call has left in the place of a kept tensor: of its size and otherwise
    unknown."""
    t = kept.fake_type
    size, stride = ([_renamed(s, old, new) for s in sizes] for sizes in (t.size, t.stride))
    offset = _renamed(t.offset, old, new)
    renamed = TensorType(tuple(size), t.dtype, t.device, tuple(stride), offset)
    fake = new_fake(tracer, renamed, None, is_differentiable(tracer.value_of(kept)))
    make_root(fake, None, None)
    return fake


# ------------------------------------------------------------------------------- what modules hold


class Held:
    """What modules hold: their attributes, and what is in containers."""

    def __init__(self, tracer: Tracer, root: nn.Module) -> None:
        self.places: list[tuple[Any, Any]] = []
        """Container and key."""
        self.objects: list[Any] = []
        self.shape: list[Any] = []
        """How many there are where, by what keys."""
        self._seen: set[int] = set()
        for module in root.modules():
            self._add(vars(module))
        self.logged = [_logged(tracer, each) for each in self.objects]
        """Tensors as values of the log, symbolic numbers as expressions."""

    def _add(self, value: Any) -> None:
        if isinstance(value, set) and any(isinstance(v, torch.Tensor) for v in value):
            raise NoCache("it is in a set")
        for part in parts(value):
            if isinstance(part, tuple):
                for each in part:
                    self._add(each)
            elif key_of(part) not in self._seen and not isinstance(part, set):
                self._seen.add(key_of(part))
                pairs = items(part)
                self.places += [(part, name) for name, _ in pairs]
                self.objects += [each for _, each in pairs]
                self.shape += [len(pairs), *(name for name, _ in pairs)]
                for _, each in pairs:
                    self._add(each)

    def numbers(self) -> Iterator[Any]:
        """The symbolic ones."""
        left = [*self.logged]
        while left:
            each = left.pop()
            if isinstance(each, tuple):
                left += each
            elif isinstance(each, (Expr, BoolExpr, Real)):
                yield each

    def put(self, fakes: Mapping[int, Any], renamed: Callable[[Any], Any]) -> None:
        """Put everything back, but exchange tensors (by id) and symbolic numbers."""

        def exchanged(value: Any) -> Any:
            if isinstance(value, _SYMBOLIC):
                return wrap(renamed(unwrap(value)))
            if not isinstance(value, tuple):
                return fakes.get(id(value), value)
            new = [exchanged(each) for each in value]
            if all(a is b for a, b in zip(new, value, strict=True)):
                return value
            return value._make(new) if hasattr(value, "_make") else tuple(new)

        for (container, key), each in zip(self.places, self.objects, strict=True):
            new = exchanged(each)
            if new is not each or container[key] is not each:
                container[key] = new


def _logged(tracer: Tracer, value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return tracer.value_of(tracer.adopt(value))
    if isinstance(value, tuple):
        return tuple([_logged(tracer, each) for each in value])
    if isinstance(value, _CONTAINERS) or is_object(value):
        return type(value)  # what is in it has places of its own
    return unwrap(value)


_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_CONTAINERS = (dict, list, deque)


# ----------------------------------------------------------------------------------------- numbers


class Numbering:
    """Numbers for the steps of several runs: what has the same number is the same value."""

    def __init__(self, constants: Sequence[tuple[torch.Tensor, Value]]) -> None:
        self._literals = {value: tensor for tensor, value in constants if value.is_literal}
        self._numbers: dict[Any, int] = {}
        self._steps: dict[Step, int] = {}

    def effects(self, steps: Sequence[Step]) -> list[int]:
        """Number the steps of a run. Returned are those that act on the world, in order: how many
        went before counts, as it does for random numbers."""
        found: list[int] = []
        for step in steps:
            acts = has_effect(step.target)
            operands = self.key([step.args, *step.kwargs.values()])
            key = (id(step.target), step.grad, (*step.kwargs,), operands, acts and len(found))
            self._steps[step] = self._number(key)
            if acts:
                found.append(self._steps[step])
        return found

    def results(self, run: Run) -> Any:
        """What a run returns."""
        roots = run.roots
        sharing = [r if r is None or r.kind else roots.index(r) for r in roots]
        types = [r.type if isinstance(r, Value) else None for r in run.results]
        return self.key([*run.results]), run.structure, types, sharing

    def are_alike(self, first: Held, second: Held) -> bool:
        pairs = zip(first.objects, second.objects, first.logged, second.logged, strict=False)
        return first.shape == second.shape and all(
            a is b or self.key(x) == self.key(y) for a, b, x, y in pairs
        )

    def key(self, value: Any) -> Any:
        """Equal for what is the same. What is unknown is equal to nothing."""
        cls = value.__class__
        if cls is Value:
            return self._value(value)
        if isinstance(value, (list, tuple)):
            return (list, *map(self.key, value))
        if cls is float or cls is complex:
            return (cls, repr(value))  # 0.0 is not -0.0
        if cls is Expr or cls is Real:
            return (cls, simplified(value))
        return (cls, value) if cls in _PLAIN else object()

    def _value(self, value: Value) -> Any:
        if value.step is not None:
            return (Value, self._steps.get(value.step, value), value.index)
        literal = self._literals.get(value)
        if literal is None:
            return (Value, value)
        with torch._C._DisableTorchDispatch():
            return (Value, repr(literal.tolist()), value.type)

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


_PLAIN = frozenset(
    (
        int, bool, str, type(None), type, BoolExpr,
        torch.dtype, torch.device, torch.layout, torch.memory_format,
    )
)  # fmt: skip
