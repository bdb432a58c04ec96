"""Decides whether tensors that a call leaves in a module are a cache, which the next call reads
instead of computing it again.

A program has no place for a cache, and needs none: it computes it in each run. That is right if the
next call, which finds the cache, computes and leaves the same. So we make the call a second time
and compare what both have recorded, value by value. If the cache depends on a size that varies, we
make a third call, with the cache of another size in place. When in doubt, it is no cache. (What
functions with a cache keep is looked at alone: it has to be made of numbers, and of state that
nobody writes to.)

What depends on inputs is no cache; but if the next call does the same with any other tensor in its
place, then nothing reads it, and the program does without (an auxiliary loss, attention maps for
display). Must not change the program: it is built already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.capture.aliasing.input_layouts import LayoutAssumptions
from lostwax.capture.aliasing.maybe_views import MaybeViews
from lostwax.capture.heap.cached import ResultCache, is_deeply_fixed, split_key
from lostwax.capture.heap.contents import find_change, list_items, write
from lostwax.capture.heap.edges import is_object, parts
from lostwax.capture.heap.holders import Content, items
from lostwax.capture.heap.places import Places
from lostwax.capture.heap.recomputed import find_reach, locate_function
from lostwax.capture.inputs import CaptureInputs
from lostwax.capture.state.unkept_changes import note_silent_change
from lostwax.capture.steps.numbering import Numbering
from lostwax.capture.trace.gradient_reach import is_differentiable
from lostwax.capture.trace.tracer import Tracer
from lostwax.classes import SYMBOLIC, list_nested
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.identity import Seen
from lostwax.ir.graph.effects import has_effect
from lostwax.ir.graph.numbers import number_sources, simplify_number
from lostwax.ir.trace.log import InnerGraph, Region, Step, Value
from lostwax.ir.trace.views import Root, make_root
from lostwax.sym import BoolExpr, Expr, Guard, Symbol, evaluate, ne, show
from lostwax.sym.numbers.real import Real
from lostwax.types import TensorType


class NotACache(Exception):
    """Raised with the reason why a tensor is no cache."""


class RecordedCall(NamedTuple):
    """What a call has recorded, returned and left behind."""

    steps: Sequence[Step]
    results: Sequence[Any]
    """The flat results, as values of the log."""
    roots: Sequence[Root | None]
    """The memory of each result."""
    structure: Any
    layouts: frozenset[Any]
    """The layouts of inputs that it relies on."""
    writes: bool
    """Does it write to inputs or state?"""
    held: HeldObjects


def check_cache(
    tracer: Tracer,
    kept: Sequence[FakeTensor],
    inputs: Mapping[Value, str],
    first: RecordedCall,
    again: Callable[[], RecordedCall],
) -> list[FakeTensor]:
    """Raise `NotACache` if the tensors that the first call left are no cache, and the next reads
    them. Returns those that are none, but that nothing reads. `inputs` are the values that differ
    between calls, with their names; `again` makes another call."""
    if tracer.tracked or first.writes:
        what = "differentiates inside" if tracer.tracked else "writes to inputs or other state"
        raise NotACache(f"the program also {what}")
    stale, unread = dict[int, set[Symbol]](), dict[int, FakeTensor]()
    reason = None
    for each in kept:
        try:
            stale[id(each)] = _sizes_used(tracer.value_of(each), inputs)
        except NotACache as found:
            reason, unread[id(each)] = reason or found, each
    if reason is not None:
        _check_unread(tracer, kept, unread, inputs, first, again, reason)
    kept = [each for each in kept if id(each) in stale]
    if any(each.tracked.root in first.roots for each in kept):
        raise NotACache("it is also returned, and who gets it may write to it")
    varying = set[Symbol]().union(*stale.values(), *map(_symbols, first.held.numbers()))
    if len(varying) > 1:
        raise NotACache("it depends on several sizes that vary")
    _compare_calls(tracer, kept, first, again)
    if not varying:
        return [*unread.values()]
    (size,) = varying
    other = _make_other_size(tracer, size)
    fakes = {id(k): _make_stale(tracer, k, size, other) for k in kept if stale[id(k)]}

    def after_another_size() -> RecordedCall:
        first.held.put_back(fakes, partial(_rename_size, old=size, new=other))
        return again()

    _compare_calls(tracer, kept, first, after_another_size, ne(other, size.expr))
    return [*unread.values()]


def name_varying_inputs(inputs: CaptureInputs, declared: Iterable[int]) -> dict[Value, str]:
    """The tensors of a call that may be others in the next one, with their names."""
    fixed = {inputs.initial[id(inputs.call_leaves[i])] for i in declared}
    named = inputs.named_tensors()
    return {value: name for value, name in named.items() if value not in fixed}


def _check_unread(
    tracer: Tracer,
    kept: Sequence[FakeTensor],
    unread: Mapping[int, FakeTensor],
    inputs: Mapping[Value, str],
    first: RecordedCall,
    again: Callable[[], RecordedCall],
    reason: NotACache,
) -> None:
    """Raise `NotACache` for this reason if the next call reads one of these tensors: with others in
    their places, of which it knows nothing, it computes or leaves something else, or asks."""
    fakes = {key: _make_unknown(tracer, each) for key, each in unread.items()}

    def with_others() -> RecordedCall:
        if first.held.put_back(fakes, lambda number: number) != fakes.keys():
            raise NotACache("it is where others would not be found")
        second = again()
        used = [part for step in second.steps for part in (*step.args, *step.kwargs.values())]
        for value in list_nested([*used, *second.results], Value):
            if value.step in earlier:
                _sizes_used(value, inputs)  # wherever the call has it from
        return second

    earlier = {*first.steps}
    try:
        _compare_calls(tracer, [fakes.get(id(each), each) for each in kept], first, with_others)
    except NotACache as found:
        raise NotACache(f"{reason}, and {found}") from found


def _compare_calls(
    tracer: Tracer,
    kept: Sequence[FakeTensor],
    first: RecordedCall,
    again: Callable[[], RecordedCall],
    given: Any = None,
) -> None:
    """Make the call again, and compare it with the first. It may rely on the condition `given`."""
    before = _versions(kept)
    assert tracer.shape_env is not None
    before_guards = [*tracer.shape_env.guards]
    asserted = {_key_assertion(guard) for guard in before_guards}
    try:
        with record_apart(tracer) as guards:
            second = again()
    except NotACache:
        raise
    except Exception as error:  # whatever the module's own code raises
        raise NotACache(f"the next call fails: {error}") from error
    if second.writes or _versions(kept) != before:
        raise NotACache("the next call writes to it, or to other state")
    numbers = Numbering(tracer.outside.constants, tracer.origins)
    numbered = [numbers.number_steps(call.steps) for call in (first, second)]
    same = {numbers.assertion_key(guard) for guard in before_guards}
    new = [
        guard
        for guard in guards
        if _key_assertion(guard) not in asserted and numbers.assertion_key(guard) not in same
    ]
    if any(guard.cond is not given for guard in new) or not second.layouts <= first.layouts:
        raise NotACache("the next call is right for other inputs only")
    if numbered[0] != numbered[1] or (
        _results_key(numbers, first) != _results_key(numbers, second)
        or any(each.tracked.root in second.roots for each in kept)
    ):
        raise NotACache("the next call computes something else")
    if not _are_alike(numbers, first.held, second.held):
        raise NotACache("the next call leaves something else")


def _results_key(numbers: Numbering, run: RecordedCall) -> Any:
    """Equal for two calls that return the same."""
    roots = run.roots
    sharing = [r if r is None or r.kind else roots.index(r) for r in roots]
    types = [numbers.type_key(r.type) if isinstance(r, Value) else None for r in run.results]
    return numbers.value_key([*run.results]), run.structure, types, sharing


def _are_alike(numbers: Numbering, first: HeldObjects, second: HeldObjects) -> bool:
    key = numbers.value_key
    pairs = zip(first.objects, second.objects, first.logged, second.logged, strict=False)
    return (
        first.shape == second.shape
        and all(a is b or key(x) == key(y) for a, b, x, y in pairs)
        and first.are_others_alike()
    )


def _key_assertion(guard: Guard) -> Any:
    """Equal for what a line asserts about data, in one call as in the next, where each number of
    the data has another name; for other guards equal to nothing."""
    symbols = guard.cond.symbols()
    if guard.kind != "assert" or not all(symbol.unbacked for symbol in symbols):
        return object()
    names = {symbol: f"#{i}" for i, symbol in enumerate(sorted(symbols, key=attrgetter("id")))}
    return guard.where, show(guard.cond, names)


@contextmanager
def record_apart(tracer: Tracer) -> Iterator[list[Guard]]:
    """Inside, the tracer records as if nothing were recorded yet, and afterwards forgets what it
    learned about sizes. The list then has the guards."""
    assert tracer.shape_env is not None
    before = tracer.region, tracer.layout_assumptions, tracer.maybe_views
    tracer.region, tracer.layout_assumptions, tracer.maybe_views = (
        Region(),
        LayoutAssumptions(),
        MaybeViews(),
    )
    try:
        with tracer.shape_env.trial() as guards:
            yield guards
    finally:
        tracer.region, tracer.layout_assumptions, tracer.maybe_views = before


def _versions(kept: Iterable[FakeTensor]) -> list[Any]:
    """What a write to one of these tensors changes."""
    return [(each.fake_type, each.tracked.root, each.tracked.root.version) for each in kept]


# -------------------------------------------------------------------- what a cache is computed from


def _sizes_used(value: Value, inputs: Mapping[Value, str]) -> set[Symbol]:
    """The sizes that a value depends on. Raises `NotACache` if it depends on more than sizes and
    state."""
    found: set[Symbol] = set()
    seen: set[Value] = set()
    left: list[Any] = [value]
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, InnerGraph):
            raise NotACache("it has a gradient of its own")
        elif not isinstance(part, Value):
            found |= _symbols(part)
        elif part not in seen:
            seen.add(part)
            left += _parts_of(part, inputs)
    return found


def _parts_of(value: Value, inputs: Mapping[Value, str]) -> list[Any]:
    if value in inputs:
        raise NotACache(f"it depends on the input {inputs[value]}")
    parts: list[Any] = [] if value.type is None else [*value.type.size, *value.type.stride]
    step = value.step
    if step is not None:
        if has_effect(step.target):
            raise NotACache(f"it depends on {step.target}, which is another one in each run")
        parts += [*step.args, *step.kwargs.values()]
    return parts


def _symbols(number: Any) -> set[Symbol]:
    """The sizes that a number is computed from."""
    found = set(number_sources(simplify_number(unwrap(number))))
    if any(isinstance(s, Real) or s.unbacked for s in found):
        raise NotACache("it depends on a number that lies in data")
    return found


# ------------------------------------------------------------------------- a cache of another size


def _make_other_size(tracer: Tracer, size: Symbol) -> Expr:
    """A symbol for what the size was in an earlier call."""
    env = tracer.shape_env
    assert env is not None
    assert size.hint is not None
    lo, hi = env.bounds(size.expr)
    example = size.hint + 1 if hi is None or size.hint < hi else size.hint - 1
    return env.symbol(hint=example, lo=lo, hi=hi, source=f"an earlier {size.source}")


def _rename_size(size: Any, old: Symbol, new: Expr) -> Any:
    """A size with the new symbol in place of the old one."""
    size = simplify_number(size)
    if not isinstance(size, (Expr, BoolExpr, Real)):
        return size
    if not isinstance(size, Expr) or set(size.atoms()) != {old}:
        raise NotACache(f"it depends on {size}")
    return evaluate(size, {old: new})  # type: ignore[dict-item]  # adds and multiplies them


def _make_stale(tracer: Tracer, kept: FakeTensor, old: Symbol, new: Expr) -> FakeTensor:
    """A tensor that an earlier call, of another size, could have left in the place of this one. Its
    data are unknown."""
    t = kept.fake_type
    size, stride = ([_rename_size(s, old, new) for s in sizes] for sizes in (t.size, t.stride))
    offset = _rename_size(t.offset, old, new)
    renamed = TensorType(tuple(size), t.dtype, t.device, tuple(stride), offset)
    fake = new_fake(tracer, renamed, None, is_differentiable(tracer.value_of(kept)))
    make_root(fake, None, None)
    return fake


def _make_unknown(tracer: Tracer, kept: FakeTensor) -> FakeTensor:
    """A tensor that an earlier call, of any sizes that vary, could have left in the place of this
    one. Nothing is known of its data, nor of such sizes."""
    t, env = kept.fake_type, tracer.shape_env
    assert env is not None

    def make_other(size: Any) -> Any:
        if not isinstance(size, Expr):
            return size
        lo, hi = env.bounds(size)
        return env.unbacked(lo=lo, hi=hi, origin=f"an earlier {size}")

    size, stride = (tuple(map(make_other, sizes)) for sizes in (t.size, t.stride))
    other = TensorType(size, t.dtype, t.device, stride, make_other(t.offset))
    fake = new_fake(tracer, other, None, is_differentiable(tracer.value_of(kept)))
    make_root(fake, None, None)
    return fake


# ------------------------------------------------------------------------------- what modules hold


class HeldObjects:
    """All objects that modules hold, in attributes and deeper."""

    def __init__(self, tracer: Tracer, root: nn.Module) -> None:
        found = Places(Seen(), follows=False)
        found.add("self", root)
        found.open_fakes()
        self._contents: list[tuple[Any, Content]] = []
        """The places, in the order of the walk, with the keys and values in them."""
        self._others: list[tuple[Any, Any]] = []
        """Places without keys, an array or what C keeps, with what was in them."""
        for _, place, content in found.list_places():
            pairs = list_items(content)
            if pairs is None:
                self._others.append((place, content))
            elif not isinstance(place, set):
                self._contents.append((place, pairs))
            elif any(isinstance(each, torch.Tensor) for each, _ in pairs):
                raise NotACache("it is in a set")
        pairs_of_all = [pairs for _, pairs in self._contents]
        self.objects = [each for pairs in pairs_of_all for _, each in pairs]
        self.shape = [[key for key, _ in pairs] for pairs in pairs_of_all]
        """The keys in each place."""
        self.logged = [_as_logged(tracer, each) for each in self.objects]
        """The objects, with tensors as values of the log and symbolic numbers as expressions."""

    def are_others_alike(self) -> bool:
        """Is the same in the places without keys, still?"""
        return all(find_change(place, before) is None for place, before in self._others)

    def numbers(self) -> Iterator[Any]:
        """The symbolic numbers among the objects."""
        left = [*self.logged]
        while left:
            each = left.pop()
            if isinstance(each, tuple):
                left += each
            elif isinstance(each, (Expr, BoolExpr, Real)):
                yield each

    def put_back(self, fakes: Mapping[int, Any], rename: Callable[[Any], Any]) -> set[int]:
        """Put every object back, but exchange tensors (by id) and symbolic numbers. Returns the ids
        of the tensors."""
        exchanged = set[int]()

        def exchange(value: Any) -> Any:
            if isinstance(value, SYMBOLIC):
                return wrap(rename(unwrap(value)))
            if not isinstance(value, tuple):
                if id(value) not in fakes:
                    return value
                exchanged.add(id(value))
                return fakes[id(value)]
            new = [exchange(each) for each in value]
            if all(a is b for a, b in zip(new, value, strict=True)):
                return value
            return value._make(new) if hasattr(value, "_make") else tuple(new)

        for place, pairs in self._contents:
            content = [(key, exchange(each)) for key, each in pairs]
            if find_change(place, content) is not None:
                write(place, content)
        return exchanged


def _as_logged(tracer: Tracer, value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return tracer.value_of(tracer.adopt(value))
    if isinstance(value, tuple):
        return tuple([_as_logged(tracer, each) for each in value])
    if isinstance(value, _CONTAINERS) or is_object(value):
        return type(value)  # its content has places of its own
    return unwrap(value)


_CONTAINERS = (dict, list, deque)


# --------------------------------------------------------------- what functions with a cache keep


def check_kept_results(
    tracer: Tracer,
    inputs: CaptureInputs,
    declared: Iterable[int],
    writes: Iterable[tuple[tuple[Any, str | None], Any, Any]],
) -> None:
    """Refuse a tensor in the cache of a function (`functools.lru_cache`) that the next call would
    compute otherwise: a program computes it in each run. `writes` says which state it writes."""
    names, state = {name for (_, name), _, _ in writes}, inputs.state_values().items()
    written = {v: f"the {slot.kind} {slot.name}" for v, slot in state if slot.name in names}
    varying = {**name_varying_inputs(inputs, declared), **written}
    for saved in tracer.python.outside.caches.values():
        place = ResultCache(saved.function)
        new = place.list_new(saved.results or ())
        for key, result in new:
            args, options = split_key(saved.function, key)
            given = [each for each in pytree.tree_leaves((args, options)) if _is_tensor(each)]
            for each in _list_kept(result):
                if isinstance(each, SYMBOLIC):
                    raise _refuse(place, "data or a size decide it", "a number")
                because = _find_reason(tracer, each, written if given else varying)
                if because is None and each.tracked.root.version:
                    because = _find_write(tracer, place, key, result)
                if because is not None:
                    raise _refuse(place, because)
        _note_others(place, new, bool(written))


def _note_others(place: ResultCache, new: list[tuple[Any, Any]], writes: bool) -> None:
    """Let the next call be tried, if what is kept may change, or computing it did more."""
    if not new:
        return
    is_fixed = all(is_deeply_fixed(result) for _, result in new)
    if not is_fixed or (writes and find_reach(place, [key for key, _ in new]).list_tensors()):
        note_silent_change(f"{place.describe('')} gets results")


def _is_tensor(value: Any) -> bool:
    return type(value) is FakeTensor


def _list_kept(result: Any) -> Iterator[Any]:
    """The tensors and symbolic numbers in a result, also in objects."""
    left, seen = [result], Seen()
    while left:
        value = left.pop()
        if _is_tensor(value) or isinstance(value, SYMBOLIC):
            yield value
        elif value not in seen and not isinstance(value, (str, bytes, type)):
            seen.add(value)
            left += [each for part in parts(value) for _, each in items(part)]


def _find_reason(tracer: Tracer, tensor: Any, varying: Mapping[Value, str]) -> str | None:
    """Why it is another one in each run; None if it is not."""
    left, seen = list[Any]([tracer.value_of(tracer.adopt(tensor))]), set[Any]()
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, Value) and part not in seen:
            seen.add(part)
            if part in varying:
                return f"it depends on {varying[part]}, which the next call may find otherwise"
            if part.step is not None:
                if has_effect(part.step.target):
                    return f"it depends on {part.step.target}, which is another one in each run"
                left += (*part.step.args, *part.step.kwargs.values())
    return None


def _find_write(tracer: Tracer, place: ResultCache, key: Any, result: Any) -> str | None:
    """Was it written to after it was computed? Then computing it again gives something else."""
    args, options = split_key(place.owner, key)
    first = tracer.region.steps
    with record_apart(tracer):
        again = place.find_function()(*args, **options)
        numbers = Numbering(tracer.outside.constants, tracer.origins)
        for steps in (first, tracer.region.steps):
            numbers.number_steps(steps)
        keys = [_find_key(tracer, numbers, each) for each in (result, again)]
    return None if keys[0] == keys[1] else "it is written to after it was computed"


def _find_key(tracer: Tracer, numbers: Numbering, result: Any) -> Any:
    tensors = filter(_is_tensor, pytree.tree_leaves(result))
    return [numbers.value_key(tracer.value_of(tracer.adopt(each))) for each in tensors]


def _refuse(place: ResultCache, because: str, what: str = "a tensor") -> CaptureError:
    return CaptureError(
        f"{place.describe('')} keeps {what}, and {because}.\n"
        f"  at {locate_function(place.find_function())}\n"
        "  why: eager's next call finds it there, and a program computes it in each run\n"
        "  instead: compute it without the cache; or keep it in a buffer, "
        'self.register_buffer("kept", ...)'
    )
