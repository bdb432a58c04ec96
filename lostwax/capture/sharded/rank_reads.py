"""Watches the call that a capture makes of a module, for what it reads of the rank of the process:
programs of two ranks can only differ by that, if their modules are alike.

torch asks a mesh for the coordinate of this rank in it as for a number that it may compute with
(`_sym_get_coordinate`), also where it then needs none of it. There it gets a symbol, which may stay
in the arguments of operators, where each rank has a number of its own. All else that is told of the
rank is a number, and that it was asked is noted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from lostwax.capture import threads
from lostwax.capture.heap.cached import CACHED
from lostwax.capture.python.functions_run import FunctionNotes
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.ir.trace.log import Step, Value, values_of
from lostwax.sym import Expr, Symbol, eq
from lostwax.sym.expressions.expr import evaluate

T = TypeVar("T")
_COORDINATE = "_coordinate_on_dim"


class RankNumber(int):
    """A number of the rank for which a graph was captured."""

    of_rank: Sequence[int]
    """What it is for each rank."""


class RankWatch:
    """Runs around the call of a capture on one rank of `world`."""

    def __init__(self, rank: int, world: int, gives_symbol: bool) -> None:
        self.rank, self.world = rank, world
        self._gives_symbol = gives_symbol
        self.functions = FunctionNotes()
        self.calls = 0
        self.is_read = False
        """May the program be another one for another rank, but for its `RankNumber`s?"""
        self.has_symbol = False
        """Was there a symbol in the place of the rank?"""
        self._symbol: Expr | None = None

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        self.calls += 1
        self._symbol = None
        forget_placements()  # what was asked of the rank before is asked again
        with self._watch_questions():
            result = self.functions.call(function, *args, **kwargs)
        if self._symbol is not None:
            self._settle(self._symbol, result)
        return result

    def note(self) -> None:
        self.is_read = True

    # ------------------------------------------------------------------------------ what is told

    @contextmanager
    def _watch_questions(self) -> Iterator[None]:
        from torch.distributed.device_mesh import DeviceMesh

        watch, ask = self, getattr(DeviceMesh, "_sym_get_coordinate", None)
        if ask is None:  # this torch asks in another way, which is not watched
            self.note()
            yield
            return

        def tell_coordinate(self: Any, index: int) -> Any:
            place = vars(self).get(_COORDINATE)
            if place == (watch.rank,) and watch._may_give(sys._getframe(1)):
                return wrap(watch._find_symbol())
            return ask(self, index)

        with ExitStack() as undo:
            for owner in _list_groups():
                _put(undo, owner, "rank", _note_before(owner.rank, watch.note))
            _put(undo, DeviceMesh, "_sym_get_coordinate", tell_coordinate)
            _put(undo, DeviceMesh, _COORDINATE, property(self._read_place, _write_place))
            _put(undo, DeviceMesh, "_rank", property(self._read_rank, _write_rank))
            yield

    def _read_place(self, mesh: Any) -> Any:
        place = vars(mesh)[_COORDINATE]
        return None if place is None else _Coordinate(place, self.note)

    def _read_rank(self, mesh: Any) -> Any:
        self.note()
        return vars(mesh)["_rank"]

    def _may_give(self, asking: FrameType) -> bool:
        """A symbol is for torch's own code, which takes it for a number."""
        return self._gives_symbol and str(asking.f_globals.get("__name__")).startswith(_DTENSORS)

    def _find_symbol(self) -> Expr:
        if self._symbol is None:
            self.has_symbol = True
            env = threads.running[-1].shape_env
            last = self.world - 1
            self._symbol = env.symbol("rank", hint=self.rank, hi=last, source="the rank")
        return self._symbol

    # -------------------------------------------------------------------------- what became of it

    def _settle(self, rank: Expr, result: Any) -> None:
        """Put this rank's number in the place of the symbol, where another rank has another."""
        (symbol,) = rank.symbols()
        tracer = threads.running[-1]
        env = tracer.shape_env
        of_rank = partial(_list_values, symbol, self.world)
        if env.bounds(rank) != (0, self.world - 1):
            self.note()
        if any(_has(symbol, each.cond) for each in env.guards):
            self.note()
        if any(_has(symbol, unwrap(each)) for each in pytree.tree_leaves(result)):
            self.note()
        for step in tracer.region.steps:
            self._settle_step(step, symbol, of_rank)
        env.learn(eq(rank, self.rank))

    def _settle_step(self, step: Step, symbol: Symbol, of_rank: Callable[[Expr], Any]) -> None:
        for value in values_of(step.result):
            if value.type is not None and any(map(partial(_has, symbol), _list_sizes(value))):
                self.note()
        given: dict[Any, Any] = {**dict(enumerate(step.args)), **step.kwargs}
        for key, each in given.items():
            if each.__class__ is Expr and _has(symbol, each):
                given[key] = _make_number(of_rank(each), self.rank)
            elif each.__class__ is not Value and _may_hold(symbol, each):
                self.note()
        count = len(step.args)
        step.args = tuple(given[i] for i in range(count))
        step.kwargs = {name: given[name] for name in step.kwargs}


class _Coordinate(Sequence[int]):
    """Where in a mesh the rank is: that it is in it is no news, the numbers are."""

    def __init__(self, place: tuple[int, ...], note: Callable[[], None]) -> None:
        self._place, self._note = place, note

    def __getitem__(self, index: Any) -> Any:
        self._note()
        return self._place[index]

    def __len__(self) -> int:
        return len(self._place)

    def __eq__(self, other: object) -> bool:
        self._note()
        return self._place == other

    def __hash__(self) -> int:
        self._note()
        return hash(self._place)

    def __repr__(self) -> str:
        self._note()
        return repr(self._place)


def _list_groups() -> list[Any]:
    """The classes whose objects tell the rank."""
    from torch._C._distributed_c10d import Backend, ProcessGroup

    return [ProcessGroup, Backend]


def _note_before(tell: Callable[[Any], int], note: Callable[[], None]) -> Callable[[Any], int]:
    def tell_noted(self: Any) -> int:
        note()
        return tell(self)

    return tell_noted


def _put(undo: ExitStack, owner: type, name: str, value: Any) -> None:
    if name in vars(owner):
        undo.callback(setattr, owner, name, vars(owner)[name])
    else:
        undo.callback(delattr, owner, name)
    setattr(owner, name, value)


def _write_place(mesh: Any, place: Any) -> None:
    vars(mesh)[_COORDINATE] = place


def _write_rank(mesh: Any, rank: int) -> None:
    vars(mesh)["_rank"] = rank


def _has(symbol: Symbol, value: Any) -> bool:
    found = getattr(value, "symbols", None)
    return found is not None and symbol in found()


def _may_hold(symbol: Symbol, value: Any) -> bool:
    """May the symbol be in it? Of graphs within the graph that is not asked."""
    if isinstance(value, (list, tuple)):
        return any(_may_hold(symbol, each) for each in value)
    if value.__class__ is Value:
        return False
    return type(value).__module__.startswith("lostwax.ir.") or _has(symbol, value)


def _list_sizes(value: Value) -> Sequence[Any]:
    assert value.type is not None
    return (*value.type.size, *value.type.stride, value.type.offset)


def _list_values(symbol: Symbol, world: int, e: Expr) -> list[int]:
    return [evaluate(e, {symbol: rank}) for rank in range(world)]


def _make_number(of_rank: Sequence[int], rank: int) -> int:
    found = RankNumber(of_rank[rank])
    found.of_rank = of_rank
    return found


def forget_placements() -> None:
    """torch remembers how DTensors are cut, and would take the mesh of one rank for another's."""
    import torch.distributed.tensor.debug as debug

    debug._clear_sharding_prop_cache()
    for name, module in [*sys.modules.items()]:
        if name.startswith(_DTENSORS):
            for held in [*vars(module).values()]:
                inner = vars(held).values() if isinstance(held, type) else ()
                for each in (held, *(getattr(each, "__func__", each) for each in inner)):
                    if type(each) is CACHED:
                        each.cache_clear()


_DTENSORS = "torch.distributed.tensor"


# ------------------------------------------------------------------------------ the graphs of ranks


def take_numbers(module: GraphModule) -> Mapping[str, tuple[Any, ...]]:
    """The nodes with numbers of the rank, by name, with what the numbers were; they are plain ones
    now."""
    found: dict[str, tuple[Any, ...]] = {}
    for node in module.graph.nodes:
        given = (*node.args, *node.kwargs.values())
        if any(type(each) is RankNumber for each in given):
            found[node.name] = node.args, node.kwargs
            _put_numbers(node, node.args, node.kwargs, int)
    return found


def put_numbers(module: GraphModule, numbers: Mapping[str, tuple[Any, ...]], rank: int) -> None:
    """The numbers of another rank."""
    for node in module.graph.nodes:
        if node.name in numbers:
            args, kwargs = numbers[node.name]
            _put_numbers(node, args, kwargs, lambda n: n.of_rank[rank])


def _put_numbers(
    node: Node, args: Sequence[Any], kwargs: Mapping[str, Any], read: Callable[[Any], int]
) -> None:
    """Only numbers are replaced: nodes are those that the graph has."""
    for i, each in enumerate(args):
        if type(each) is RankNumber:
            node.update_arg(i, read(each))
    for name, each in kwargs.items():
        if type(each) is RankNumber:
            node.update_kwarg(name, read(each))
