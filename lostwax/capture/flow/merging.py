"""What two ways through a piece of Python have left behind, made one.

The two are walked side by side: variables, and all that has changed. Tensors that differ become
results of the operator, whichever way it goes; so do numbers and truths. Objects that each way has
made for itself become one. What cannot be one is told (`MergeConflict`). Must not record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import torch

from lostwax.capture.aliasing.attributes import list_attributes
from lostwax.capture.control.outputs import ALIKE, Merger, Side, describe
from lostwax.capture.control.scope import RecordedFunction, Scope
from lostwax.capture.flow.lists.spans import UnknownElements
from lostwax.capture.flow.numbers import FLOATS, find_kind, number_to_tensor
from lostwax.capture.flow.options.filling import Filling, is_made_of_such
from lostwax.capture.flow.options.kinds import (
    ATOMS,
    MOST_OPTIONS,
    are_alike,
    find_place,
    is_one_kind,
    list_options,
    number_option,
    read_option,
)
from lostwax.capture.flow.rewriting.names import show_name
from lostwax.capture.flow.truths import make_tensor
from lostwax.capture.heap.edges import parts
from lostwax.capture.heap.holders import MISSING, Content, items
from lostwax.capture.heap.moment import ChangedPlace, Changes, Moment
from lostwax.capture.python.one_of import OneOf
from lostwax.capture.trace.tracer import Tracer
from lostwax.classes import SYMBOLIC
from lostwax.errors import CaptureError
from lostwax.fake.asked_tensor import is_marked_leaf, is_of_the_class, read_attributes
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.trace.log import Value
from lostwax.ir.trace.views import Root, memory_of
from lostwax.location import Location
from lostwax.sym import BoolExpr, Expr, Size, eq, maximum, minimum, ne
from lostwax.sym.numbers.real import Real

NOTHING: Any = type("Nothing", (), {"__repr__": lambda self: "nothing"})()
"""What a variable of ours has before it is set."""


Makers = Sequence[tuple[CodeType, str, list[str]]]
"""Functions, what they make (the field of a plan), and their variables that are this."""
Path = tuple[Any, ...]
"""Where a value is: the variable or the place, and the keys in it."""


def look_at(tracer: Tracer, variables: Mapping[str, Any]) -> Moment:
    """This moment, with these variables of a function."""
    return Moment(tracer.python.reachable, [(show_name(name), v) for name, v in variables.items()])


def refuse_numbers(place: ChangedPlace, key: Any, values: Sequence[Any], where: Location) -> None:
    """Refuse what data decide and the next call would find: a number that is no tensor."""
    if place.is_lasting and any(isinstance(each, (int, float, *SYMBOLIC)) for each in values):
        raise CaptureError(
            f"data decide what is left in {key or place.name}, a number that is there before the "
            f"call.\n  at {where}\n"
            "  why: the next call of the original finds it, and a program keeps tensors alone\n"
            '  instead: keep it in a buffer, self.register_buffer("n", torch.zeros(()))'
        )


class MergeConflict(Exception):
    """The two ways have left what cannot be one value."""

    def __init__(self, what: str, instead: str = "", makers: Makers = ()) -> None:
        self.is_of_guard = False
        """Do they differ because one of them does not run a loop?"""
        self.makers = makers
        """The functions that have made a list to which one of them appends more, and its names."""
        self.instead = instead or (
            "give both the same structure and dtype, with tensors in the places of values that "
            "differ"
        )
        super().__init__(what)

    def refuse(self, where: Location) -> CaptureError:
        what = "the two sides of an `if` on data do not agree"
        if self.is_of_guard:
            what = (
                "a loop on data may not run once (the False side), and leaves something else then"
            )
        return CaptureError(
            f"{what}: {self}.\n  at {where}\n"
            "  why: the program goes on with what one of them leaves, and must know what it is\n"
            f"  instead: {self.instead}"
        )


class Logged(NamedTuple):
    """A tensor, its value when a way ended, and whose memory it shows."""

    tensor: torch.Tensor
    value: Value
    root: Root


class Outcome:
    """What one way has left behind."""

    def __init__(
        self, name: str, scope: Scope, variables: dict[str, Any], changes: Changes
    ) -> None:
        self.name = name
        """To the user: "the True side"."""
        self.scope = scope
        self.variables = variables
        self.changes = changes
        self._logged: dict[int, Logged] = {}

    def log(self, values: Iterable[Any]) -> None:
        """Note the values of all tensors in these, before the way's region ends."""
        seen: dict[int, Any] = {}
        left = list(values)
        while left:
            value = left.pop()
            if id(value) in seen:
                continue
            seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                tracer = self.scope.tracer
                root = self.scope.find_root(value)
                self._logged[id(value)] = Logged(value, tracer.value_of(tracer.adopt(value)), root)
                left += self.find_attributes(value).values()
            elif type(value) is OneOf:
                left += value._lw_options
            elif not isinstance(value, torch.nn.Module):
                left += [v for part in _find_parts(value) for _, v in items(part)]

    def find(self, tensor: torch.Tensor) -> Logged:
        """A tensor as it was when the way ended."""
        if id(tensor) in self._logged:
            return self._logged[id(tensor)]
        tracer = self.scope.tracer
        fake = tracer.adopt(tensor)
        root = fake.tracked.root
        if root not in self.scope.writes:
            return Logged(tensor, tracer.value_of(fake), root)
        if fake.tracked is not root:
            raise MergeConflict("a view of a tensor that one side writes to")
        return Logged(tensor, self.scope.writes[root], root)

    def find_attributes(self, tensor: torch.Tensor) -> dict[str, Any]:
        """What users have put on a tensor, as it was when the way ended."""
        place = self.changes.get(id(read_attributes(tensor)))
        return dict(list_attributes(tensor) if place is None else place.after)

    def list_names(self, tensor: torch.Tensor) -> set[str]:
        """The names of what is or may be on a tensor, or is on the one that it stands for, there or
        now."""
        tracer = self.scope.tracer
        real = tracer.fake_tensor_converter.find_real(tensor)
        found = set[str]() if real is None else {*vars(real)}
        found |= tracer.sharing.attributes.find_names(tensor)
        return found.union(dict(list_attributes(tensor)), self.find_attributes(tensor))

    def read(self, holder: Any) -> Content:
        """What was in a container when the way ended."""
        place = self.changes.get(id(holder))
        return items(holder) if place is None else place.after

    def make(self, function: Callable[[], Any]) -> Any:
        """Compute something more where the way ends."""
        with self.scope.resume():
            made = function()
            self.log([made])
        return made

    def record(self, logged: Sequence[Logged | None]) -> RecordedFunction:
        """The same as operators know it, with these results."""
        roots = [None if each is None else each.root for each in logged]
        structure = torch.utils._pytree.tree_structure(0)
        return RecordedFunction(self.scope, [], structure, [], roots)


def _find_parts(value: Any) -> list[Any]:
    return parts(value) if not isinstance(value, (str, bytes, type)) else []


# ------------------------------------------------------------------------------------- what becomes


Build = Callable[[Sequence[Any]], Any]
"""Makes a value, given what the operator returns."""


class Merging:
    """The two ways made one."""

    def __init__(
        self,
        tracer: Tracer,
        heap: Moment,
        true: Outcome,
        false: Outcome,
        joins_truths: bool,
        is_guard: bool,
        asked: type[BaseException],
    ) -> None:
        """`joins_truths`: may True and False become one? Else the ways differ: operators whose
        arguments are truths take no others than these two."""
        self._heap = heap
        self._joins_truths = joins_truths
        self._is_guard, self._asked = is_guard, asked
        self.tracer, self.true, self.false = tracer, true, false
        self.pairs: list[tuple[Any, Any]] = []
        """What the operator returns if it goes the one way, and the other."""
        self.types: list[Any] = []
        self.logged: list[tuple[Logged | None, Logged | None]] = []
        self.types_of = _Types(tracer, true, false)
        self.kept: list[tuple[Root, Outcome, Build]] = []
        """Whose memory results show in eager, beside their own, on which way."""
        self.alone, self.replaced = set[int](), set[int]()
        """The objects from before that are to be returned, and that nobody else has, by identity;
        those of them in whose places others are now."""
        self._fillings = {side: Filling(tracer, heap.knows) for side in (true, false)}
        self._found: dict[tuple[int, int], Build] = {}
        self._partners: tuple[dict[int, Any], dict[int, Any]] = {}, {}
        self._alive: list[Any] = []

    def merge(self, name: str, t: Any, f: Any, is_ours: bool = False) -> Build:
        """How the one value is made of the two. `is_ours`: it is a variable that the user does not
        see."""
        if t is f and not isinstance(t, torch.Tensor):
            return lambda _: f
        key = id(t), id(f)
        if key not in self._found:
            self._alive += (t, f)
            self._found[key] = self._merge(name, t, f, is_ours)
        return self._found[key]

    def merge_or_keep_apart(
        self, name: str, t: Any, f: Any, is_ours: bool, where: Location
    ) -> Build:
        """The same; what cannot be one value becomes one of several (`one_of.py`)."""
        if t is f or t is NOTHING or f is NOTHING:
            return self.merge(name, t, f, is_ours)
        if OneOf in (type(t), type(f)):
            return self._keep_apart(name, t, f, None)
        made = self._try_merge(name, t, f)
        if not isinstance(made, MergeConflict):
            return made
        made.is_of_guard = self._is_guard
        return self._keep_apart(name, t, f, partial(made.refuse, where))

    def _try_merge(self, name: str, t: Any, f: Any) -> Build | MergeConflict:
        """How they become one value, or why they cannot. (What came before that is not
        returned.)"""
        lists: tuple[list[Any], ...] = (self.pairs, self.types, self.logged, self.kept)
        kept = [*map(len, lists)]
        found, partners = {**self._found}, tuple({**each} for each in self._partners)
        try:
            return self.merge(name, t, f)
        except MergeConflict as error:
            for own, count in zip(lists, kept, strict=True):
                del own[count:]
            self._found, self._partners = found, partners  # type: ignore[assignment]
            error.__context__ = error.__cause__ = None
            return error.with_traceback(None)  # it may be kept, and would keep what there was here

    def _keep_apart(
        self, name: str, t: Any, f: Any, refuse: Callable[[], CaptureError] | None
    ) -> Build:
        """One of the options of both: those that can be one value are one."""
        ones, others = list_options(t), list_options(f)
        builds: list[Build] = []
        places: tuple[dict[int, int], dict[int, int]] = {}, {}
        left = dict(enumerate(others))
        for i, one in enumerate(ones):
            places[0][i] = len(builds)
            for j, other in left.items():
                made = self._try_merge(name, one, other) if is_one_kind(one, other) else None
                if made is not None and not isinstance(made, MergeConflict):
                    builds.append(made)
                    places[1][j] = places[0][i]
                    del left[j]
                    break
            else:
                builds.append(self._merge_filled(name, one, NOTHING))
        for j, other in left.items():
            places[1][j] = len(builds)
            builds.append(self._merge_filled(name, NOTHING, other))
        if refuse is None:
            refuse = next(each for each in (t, f) if type(each) is OneOf)._lw_refuse
        if len(builds) > MOST_OPTIONS:
            raise MergeConflict(f"{name} is one of more than {MOST_OPTIONS} things")
        if len(builds) == 1:
            return builds[0]
        index = self._merge_indices(name, (t, f), places)

        def build(results: Sequence[Any]) -> OneOf:
            number = read_option(index(results), len(builds))
            return OneOf(number, [each(results) for each in builds], refuse, self._asked)

        return build

    def _merge_filled(self, name: str, t: Any, f: Any) -> Build:
        """An option that one side alone has."""
        given = f if t is NOTHING else t
        if not is_made_of_such(given):
            if self._heap.knows(given) or callable(given):
                return lambda _: given
            raise MergeConflict(f"{name} is on one side an object that this side has made")
        return self._fill_in(name, t, f)

    def _merge_indices(
        self, name: str, values: tuple[Any, Any], places: Sequence[Mapping[int, int]]
    ) -> Build:
        """Which option it is: a number, or a tensor, if that has to be looked up."""
        known = [find_place(value, own) for value, own in zip(values, places, strict=True)]
        if None not in known:
            return self._return(name, *map(unwrap, known))
        sides = [
            side.find(side.make(partial(number_option, value, own)))
            for side, value, own in zip((self.true, self.false), values, places, strict=True)
        ]
        return self._return(name, sides[0].value, sides[1].value, (sides[0], sides[1]))

    def _merge(self, name: str, t: Any, f: Any, is_ours: bool) -> Build:
        if OneOf in (type(t), type(f)) and not (t is NOTHING or f is NOTHING):
            return self._keep_apart(name, t, f, None)
        if is_ours and (t is NOTHING or f is NOTHING):
            return self._fill_in(name, t, f)
        if is_ours and (isinstance(t, torch.Tensor) != isinstance(f, torch.Tensor)):
            t, f = (self._make_truth(*each) for each in ((self.true, t), (self.false, f)))
        if isinstance(t, torch.Tensor) and isinstance(f, torch.Tensor):
            return self._merge_tensors(name, t, f)
        are_truths = isinstance(t, bool) and isinstance(f, bool) and t is not f
        if are_truths and not (self._joins_truths or is_ours):
            raise MergeConflict(self._explain(name, t, f))
        kinds = find_kind(t), find_kind(f)
        if all(kinds) and FLOATS not in kinds:
            return self._merge_numbers(name, t, f)
        if kinds == (FLOATS, FLOATS):
            return self._merge_floats(name, t, f)
        is_atom = isinstance(t, ATOMS), isinstance(f, ATOMS)
        if type(t) is not type(f):
            is_tensor = any(isinstance(each, torch.Tensor) for each in (t, f))
            instead = _TENSOR_TOO if is_tensor and any(is_atom) else advise_plain(t, f)
            raise MergeConflict(self._explain(name, t, f), instead)
        if is_atom[0] or callable(t):
            if t is f or (not callable(t) and are_alike(t, f)):
                return lambda _: f
            raise MergeConflict(self._explain(name, t, f), advise_plain(t, f))
        return self._merge_objects(name, t, f)

    def _merge_tensors(self, name: str, t: torch.Tensor, f: torch.Tensor) -> Build:
        one, other = self.true.find(t), self.false.find(f)
        if t is f:
            # What was written to a tensor from outside, whichever way, is given to it afterwards;
            # and so is what was put on it.
            return lambda _: f
        if any(map(_is_own_leaf, (t, f))):
            raise MergeConflict(f"{name} is a leaf, which requires gradients, on one side")
        made = self._return(name, one.value, other.value, (one, other))
        mine, theirs = self.true.find_attributes(t), self.false.find_attributes(f)
        builds, differing = self.merge_attributes(name, mine, theirs)
        differing |= (self.true.list_names(t) | self.false.list_names(f)) - builds.keys()

        def build(results: Sequence[Any]) -> Any:
            tensor = made(results)
            read_attributes(tensor).update({key: each(results) for key, each in builds.items()})
            others = [each.tensor for each in (one, other) if self._is_held(each)]
            join_attributes(self.tracer, tensor, others, differing)
            return tensor

        return build

    def _is_held(self, logged: Logged) -> bool:
        """May a tensor be in other places, too, when it was joined with another?"""
        if self.tracer.sharing.attributes.is_one_of_several(logged.tensor):
            return True
        pairs = [pair for pair in self._found if id(logged.tensor) in pair]
        made = (*self.true.scope.made, *self.false.scope.made)
        return len(pairs) > 1 or logged.root not in made

    def merge_attributes(
        self, name: str, mine: dict[str, Any], theirs: dict[str, Any]
    ) -> tuple[dict[str, Build], set[str]]:
        """What users have put on tensors that become one; and the names of what cannot be one."""
        builds: dict[str, Build] = {}
        differing = set[str]()
        for key in {**mine, **theirs}:
            t, f = (each.get(key, MISSING) for each in (mine, theirs))
            try:
                builds[key] = self.merge(f"{name}.{key}", t, f)
            except MergeConflict:
                if is_of_the_class(key):  # which would be found in its place
                    raise
                differing.add(key)
        return builds, differing

    def _merge_numbers(self, name: str, t: Any, f: Any) -> Build:
        a, b = unwrap(t), unwrap(f)
        if type(a) is type(b) and (a is b or (not isinstance(a, (Expr, BoolExpr)) and a == b)):
            return lambda _: f
        if isinstance(a, (bool, BoolExpr)) and isinstance(b, (bool, BoolExpr)):
            numbers = [count_truth(self.tracer, each) for each in (a, b)]
            as_number = self._return(name, numbers[0], numbers[1])
            return lambda results: wrap(eq(unwrap(as_number(results)), 1))
        if not all(isinstance(x, (int, Expr)) and not isinstance(x, bool) for x in (a, b)):
            raise MergeConflict(self._explain(name, t, f))
        return self._return(name, a, b)

    def _merge_floats(self, name: str, t: Any, f: Any) -> Build:
        """The operator returns tensors, from which the number is read that it is then."""
        if is_same_number(t, f):
            return lambda _: f
        one, other = (
            side.find(side.make(partial(number_to_tensor, value)))
            for side, value in ((self.true, t), (self.false, f))
        )
        as_tensor = self._return(name, one.value, other.value, (one, other))
        return lambda results: as_tensor(results).item()

    def _return(
        self, name: str, a: Any, b: Any, logged: tuple[Logged | None, Logged | None] = (None, None)
    ) -> Build:
        found = self.types_of.merge(name, a, b)
        if found is None:
            same = a if isinstance(a, int) else wrap(a)
            return lambda _: same
        index = len(self.pairs)
        self.pairs.append((a, b))
        self.types.append(found)
        self.logged.append(logged)
        return lambda results: results[index]

    def give_back(self, name: str, one: Logged, other: Logged) -> Build:
        """A tensor that the operator returns."""
        return self._return(name, one.value, other.value, (one, other))

    def _fill_in(self, name: str, t: Any, f: Any) -> Build:
        """One way has not set it, and nobody reads it after that way: it may be anything."""
        given, side = (f, self.true) if t is NOTHING else (t, self.false)
        made = side.make(lambda: self._fillings[side].fill(given))
        pair = (made, given) if t is NOTHING else (given, made)
        return self.merge(name, *pair)

    def _make_truth(self, side: Outcome, value: Any) -> Any:
        if not isinstance(value, (bool, torch.SymBool)):
            return value
        return side.make(lambda: make_tensor(value))

    def _merge_objects(self, name: str, t: Any, f: Any) -> Build:
        """Two objects that the ways have made, each for itself."""
        ones, others = self._partners
        if ones.setdefault(id(t), f) is not f or others.setdefault(id(f), t) is not t:
            raise MergeConflict(f"{name} is an object that the two sides share in different ways")
        if isinstance(t, (set, frozenset)):
            if not all(isinstance(x, ATOMS) for x in (*t, *f)) or t != f:
                raise MergeConflict(
                    f"{name} is a set whose elements are not the same on both sides"
                )
            return lambda _: f
        if isinstance(t, tuple):
            return self._merge_tuples(name, t, f)
        mine, theirs = parts(t), parts(f)
        kept, into = (t, mine) if self._gives_way(name, t, f) else (f, theirs)
        if isinstance(t, UnknownElements):
            raise MergeConflict(
                f"{name.rpartition('[')[0]} is a list to which a loop has appended, and each side "
                "takes from it",
                "take from it before the `if`, or read an element, values[-1]",
            )
        if not mine:
            raise MergeConflict(
                f"{name} is a {type(t).__name__}, of which we do not know what is in it"
            )
        contents = [
            self.merge_content(name, self.true.read(one), self.false.read(other))
            for one, other in zip(mine, theirs, strict=True)
        ]

        def build(results: Sequence[Any]) -> Any:
            for part, content in zip(into, contents, strict=True):
                _set_items(part, content(results))
            return kept

        return build

    def _gives_way(self, name: str, t: Any, f: Any) -> bool:
        """Of two objects, is it the False side's that nobody keeps? One from before gives way to
        one that the other side has made, if nobody can tell."""
        old = [each for each in (t, f) if self._heap.knows(each)]
        whole = {id(part) for each in old for part in (each, *parts(each))}
        if len(old) == 2 or not whole <= self.alone:
            raise MergeConflict(f"{name} is another object on the True side than on the False side")
        self.replaced |= whole
        return self._fillings[self.false].has_made(f) or any(each is f for each in old)

    def _merge_tuples(self, name: str, t: Any, f: Any) -> Build:
        if len(t) != len(f):
            raise MergeConflict(
                f"{name} has {len(t)} elements on one side, and {len(f)} on the other"
            )
        builds = [
            self.merge(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(zip(t, f, strict=True))
        ]

        def build(results: Sequence[Any]) -> Any:
            made = [each(results) for each in builds]
            if all(a is b for a, b in zip(made, f, strict=True)):
                return f
            if hasattr(f, "_fields"):
                return type(f)(*made)
            return type(f)(made)

        return build

    def merge_content(
        self, name: str, t: Content, f: Content, is_ours: bool = False
    ) -> Callable[[Sequence[Any]], Content]:
        """The same for what is in a container or an object, by key."""
        if len(t) != len(f) or any(
            a is not c and a != c for (a, _), (c, _) in zip(t, f, strict=True)
        ):
            by_index = all(type(key) is int for key, _ in (*t, *f))
            instead = "" if len(t) == len(f) else _SAME_LENGTH if by_index else _SAME_KEYS
            instead = _CHOSEN_CONTEXT if any(map(_is_exit, (*t, *f))) else instead
            raise MergeConflict(_explain_keys(name, t, f), instead)
        builds = [
            (key, self.merge(_name_item(name, key), a, b, is_ours))
            for (key, b), (_, a) in zip(f, t, strict=True)
        ]
        return lambda results: [(key, build(results)) for key, build in builds]

    def _explain(self, name: str, t: Any, f: Any) -> str:
        sides = ((t, self.true), (f, self.false))
        one, other = (f"{self._describe(side, value)} on {side.name}" for value, side in sides)
        return f"{name} is {one}, and {other}"

    def _describe(self, side: Outcome, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return describe(side.find(value).value)
        if value is MISSING:
            return "not set"
        return repr(value) if isinstance(value, ATOMS) else f"a {type(value).__name__}"


def _is_own_leaf(tensor: Any) -> bool:
    """Has the module itself made it, and set that it requires gradients? The operator would return
    a tensor that is neither a leaf nor a parameter."""
    tracked = tensor.tracked if type(tensor) is FakeTensor else None
    if tracked is None or (tracked is tracked.root and tracked.root.kind):
        return False
    return is_marked_leaf(tensor) or "_is_param" in read_attributes(tensor)


def join_attributes(
    tracer: Tracer, tensor: FakeTensor, others: Iterable[Any], names: set[str]
) -> None:
    """A tensor is in eager one of the others, some of which have attributes of these names."""
    by = tracer.sharing.merge_site_of.get(tensor.tracked.root)
    tracer.sharing.attributes.note(read_attributes(tensor), others, names, by)


def list_leaves(path: Path, name: str, value: Any) -> list[tuple[Path, str, Any]]:
    """What is in a value, or in a tuple, also one of tuples, with where it is and its name."""
    if type(value) is tuple:
        return [
            found
            for k, each in enumerate(value)
            for found in list_leaves((*path, k), f"{name}[{k}]", each)
        ]
    return [(path, name, value)]


def show_value(value: Any) -> str:
    """What to say of a value in an error."""
    if type(value) is OneOf:
        return " or ".join(map(show_value, value._lw_options))
    if isinstance(value, torch.Tensor):
        return f"a tensor of size {tuple(value.shape)}"
    return repr(value) if isinstance(value, ATOMS) else f"a {type(value).__name__}"


def _set_items(part: Any, content: Content) -> None:
    for (key, new), (_, old) in zip(content, items(part), strict=True):
        if new is not old:
            part[key] = new


def _name_item(name: str, key: Any) -> str:
    if key == "":  # of a cell, which is a variable of a function around
        return show_name(name)
    return f"{name}.{key}" if isinstance(key, str) and name == "self" else f"{name}[{key!r}]"


def _explain_keys(name: str, t: Content, f: Content) -> str:
    for side, one, other in (("True", t, f), ("False", f, t)):
        names = [k for k, _ in one if isinstance(k, str) and k not in {key for key, _ in other}]
        if names:
            return f"{' and '.join(_name_item(name, k) for k in names)} is on the {side} side only"
    if len(t) != len(f):
        return f"{name} has {len(t)} elements on the True side, and {len(f)} on the False side"
    return f"{name} has other keys on the True side than on the False side"


def _is_exit(item: tuple[Any, Any]) -> bool:
    """Is it what a `contextlib.ExitStack` calls when it is left?"""
    value = item[1]
    return (
        type(value) is tuple and len(value) == 2 and type(value[0]) is bool and callable(value[1])
    )


_CHOSEN_CONTEXT = (
    "choose what is entered, with (manager if c else contextlib.nullcontext()): …, in the place of "
    "enter_context on one side"
)
_SAME_LENGTH = (
    "append on both sides, and choose later; or select from a tensor, x[x > 0]; or write to a "
    "tensor of the largest size, out[n] = x, and count n"
)
_SAME_KEYS = "set the same keys and attributes on both sides, with zeros where there is nothing"
_TENSOR_TOO = (
    "let it be a tensor on both sides: begin with torch.zeros(()), not 0 or None, as in "
    "sum(values, torch.zeros(())); or return a second value that says whether it is there"
)
_PLAIN_NUMBER = (
    "let it be a plain number, int(...) or float(...), and compare it by ==: one that data choose "
    "has no class of its own"
)


def count_truth(tracer: Tracer, truth: bool | BoolExpr) -> Size:
    """A truth as 0 or 1."""
    if isinstance(truth, bool):
        return int(truth)
    symbols = truth.symbols()
    for symbol in symbols:
        if len(symbols) == 1 and tracer.shape_env.bounds(symbol.expr) == (0, 1):
            if truth in (eq(symbol.expr, 1), ne(symbol.expr, 0)):
                return symbol.expr
            if truth in (eq(symbol.expr, 0), ne(symbol.expr, 1)):
                return 1 - symbol.expr
    if truth.args:
        numbers = [count_truth(tracer, each) for each in truth.args]
        return minimum(*numbers) if truth.kind == "and" else maximum(*numbers)
    if truth.kind == "ge":
        return minimum(1, maximum(0, truth.poly + 1))
    is_other = minimum(1, maximum(truth.poly, -truth.poly))
    return is_other if truth.kind == "ne" else 1 - is_other


def advise_plain(*values: Any) -> str:
    """What to write where a number is more than a number, and data choose it."""
    is_more = any(isinstance(each, (int, float)) and not find_kind(each) for each in values)
    return _PLAIN_NUMBER if is_more else ""


def is_same_number(before: Any, after: Any) -> bool:
    """Are two leaves the same number? (Tensors are compared by identity.)"""
    a, b = unwrap(before), unwrap(after)
    if type(a) is not type(b) or isinstance(a, (torch.Tensor, Expr, BoolExpr, Real)):
        return a is b
    return repr(a) == repr(b)


class _Types(Merger):
    """The types of results; raises `MergeConflict` for what differs."""

    def __init__(self, tracer: Tracer, true: Outcome, false: Outcome) -> None:
        sides = (Side(each.name, each.record([])) for each in (true, false))
        super().__init__(tracer, "the two sides", *sides)

    def _can_be_moved(self, a: Value, b: Value) -> bool:
        """If one is from outside, nobody writes to what they become (`note_sharing`): that it is
        another tensor is seen only by who asks for its layout, which is refused."""
        pairs = ((a, self.one), (b, self.other))
        return any(memory_of(v).step not in side.recorded.scope.steps for v, side in pairs)

    def _disagree(self, place: str, a: str, b: str, instead: str = "") -> Any:
        text = f"{place} is {a} on {self.one.name}, and {b} on {self.other.name}"
        return MergeConflict(text, ALIKE if instead is ALIKE else "")
