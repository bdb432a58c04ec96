"""The table of operators: what is known of each ATen overload, one record an operator.

A family file (`pointwise.py`, `views.py`, ...) fills it, when one of its operators is first met
(`families.py`):

    @rule("mm")
    def mm(a: TensorType, b: TensorType) -> TensorType: ...

An operator is named as torch names it, without `aten::`; several names may stand in one string, and
`mm` is `mm.default`. (Torch makes an overload when it is first asked for, which takes far longer
than to name it, and a program uses few of those that a family knows.)

A *type rule* maps `TensorType`s and plain arguments to `TensorType`s; sizes are `int | Expr`. It is
called with the arguments of the ATen call (tensors replaced by their types, `SymInt` by `Expr`) and
raises what eager raises. Whether outputs are new tensors, views of an argument or the mutated
argument itself is read off the schema here, so no rule says it. In-place and `out=` overloads need
no rule of their own: they use that of their functional twin. All other facts about an operator are
traits (`traits.py`). Must not know of fake tensors or tracing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch._ops import OpOverload

from lostwax import torch_version
from lostwax.ops import index
from lostwax.ops.families import Families, index_name
from lostwax.ops.traits import OperatorRefusal, Trait
from lostwax.sym import Size

Rule = Callable[..., Any]


class Absent:
    """Stands for an operator that this version of torch lacks, and for all of its overloads.
    Nothing is registered for it, and calling it raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, overload: str) -> Absent:
        if overload.startswith("__"):
            raise AttributeError(overload)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"torch {torch.__version__} has no operator aten::{self._name}")


class _Aten:
    """`torch.ops.aten`, where a missing operator is `Absent` if `torch_version` lists it, or if
    this version of torch is untested. Any other missing name is a typing error."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch.ops.aten, name, None)
        if found is None:
            if name not in torch_version.PARTIAL and torch_version.is_tested():
                raise AttributeError(f"aten has no operator {name!r}")
            found = Absent(name)
        self.__dict__[name] = found  # so `__getattr__` is not called again
        return found


aten: Any = _Aten()


class Fresh(Protocol):
    """Gives a data-dependent rule the sizes that are known only when the program runs."""

    def size(self, upper: Size | None = None, lower: int = 0) -> Size:
        """An integer in [lower, upper] that is decided at run time."""


_PLACES = frozenset(("index", "indices", "offsets", "repeats"))
"""The arguments, of operators of all families, that say where."""


@dataclass(eq=False)
class Operator:
    """One overload: its rule and how its results relate to its arguments."""

    overload: OpOverload
    rule: Rule | None = None
    data_dependent: bool = False
    """Its result depends on data: the rule takes a `Fresh` as its first argument."""
    twin: OpOverload | None = None
    """The functional overload that computes what this one writes."""
    by_twin: bool = False
    """The rule is the twin's, and takes the twin's arguments."""
    mutates: tuple[str, ...] = ()
    """Names of the arguments that are written."""
    results: tuple[ResultSource, ...] = ()
    """For each output, what it is."""
    out_names: tuple[str, ...] = ()
    """Names of the `out=` arguments, in the order of the outputs."""
    changes_metadata: bool = False
    """It changes sizes and strides in place (`t_`, `squeeze_`, `resize_`); the rule returns the new
    type."""
    argument_names: tuple[str, ...] = ()
    kind: str = "functional"
    """functional | view | inplace | out | mixed (some arguments written, some outputs new)"""
    view_inverse: Rule | None = None
    """For a view: (base, written view, *other arguments) -> the base with the view written back."""
    itself: Rule | None = None
    """Of an operator that may return its first argument, though its schema has no alias: does it,
    for these arguments? In the place of tensors may be their types, or None."""
    parts: Rule | None = None
    """For a composite operator: how a mode takes it apart."""
    evaluation: Rule | None = None
    """How a mode evaluates it, if not by a rule."""
    traits: frozenset[Trait] = frozenset()
    refusal: OperatorRefusal | None = None
    """Why no program can have it."""
    silent_flag: str | None = None
    """The argument which, if true, makes it write to its running statistics, although its schema
    does not say so."""

    @property
    def may_fail(self) -> bool:
        """Does it raise for some data: for a place that is outside, for a matrix that has no such
        factors?"""
        if not self.traits.isdisjoint((Trait.FAILS, Trait.FAILS_TO_FACTOR)):
            return True
        return bool(self.places)

    @property
    def places(self) -> tuple[str, ...]:
        """The names of its tensors that say where."""
        given = self.overload._schema.arguments
        return tuple(a.name for a in given if a.name in _PLACES and "Tensor" in str(a.type))

    @property
    def writes(self) -> bool:
        """Does its schema say that it writes?"""
        return self.kind in ("inplace", "out", "mixed")


class ResultSource(NamedTuple):
    """What one output is: new, or a view of an argument, or (`written`) that argument itself."""

    argument: str | None = None
    written: bool = False
    is_list: bool = False


_facts: dict[str, dict[str, Any]] = {}
"""What the family files have registered: fields of `Operator`, by the name of the overload."""

_traits_of_forms: dict[tuple[str, str], set[Trait]] = {}
"""By the name of an operator, and which of its overloads have them: plain, out or writing."""

_decompositions: dict[str, Rule] = {}
"""Functions of tensors that compute the same by other operators."""

FAMILIES = Families()
"""The files that fill `_facts`."""
FAMILIES.add(index.FAMILIES)

DECOMPOSITIONS = Families()
"""The files that fill `_decompositions`. Few programs ask for them."""
DECOMPOSITIONS.add(index.DECOMPOSITIONS)

_described: set[str] = set()
"""The overloads that have a record: nothing more may be registered for them."""

_operators: dict[int, Operator] = {}
"""By the id of the overload, since torch hashes overloads in Python, which is slow. The records
keep the overloads alive."""


def name_overload(overload: OpOverload) -> str:
    """As the families name it."""
    namespace, _, name = str(overload).partition(".")
    return name if namespace == "aten" else f"{namespace}::{name}"


def list_overloads(names: Iterable[str]) -> list[str]:
    """The names of overloads, each for itself and with its second part."""
    found = [name for several in names for name in several.split()]
    return [name if "." in name else f"{name}.default" for name in found]


def find_overload(name: str) -> Any:
    """The overload of this name, or `Absent`. Libraries other than torch may not be loaded."""
    packet, _, overload = name.partition(".")
    namespace, _, other = packet.partition("::")
    if other:
        found = getattr(getattr(torch.ops, namespace), other, None) or Absent(packet)
    else:
        found = getattr(aten, packet)
    return getattr(found, overload or "default")


def _record_facts(names: Iterable[str], **fields: Any) -> None:
    is_again = _is_said_again()
    for name in list_overloads(names):
        known = _facts_of(name)
        if (twice := known.keys() & fields.keys()) and not is_again:
            raise AssertionError(f"{name} has two of {', '.join(twice)}")
        known.update(fields)


def _is_said_again() -> bool:
    """Is it a file that registers something for the second time? If its loading was interrupted, it
    is loaded again, and says again what it has said."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    known = frame.f_globals
    return _files.setdefault(known["__name__"], known) is not known


_files: dict[str, dict[str, Any]] = {}
"""The globals of the files that have registered something, as they were first loaded."""


def _facts_of(name: str) -> dict[str, Any]:
    assert name not in _described, f"{name} is in use before all of it is known"
    return _facts.setdefault(name, {})


def _register_as(field: str, names: tuple[str, ...]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _record_facts(names, **{field: function})
        return function

    return register


def rule(*names: str, data: bool = False, metadata: bool = False) -> Callable[[Rule], Rule]:
    """Register a type rule. `data`: it takes a `Fresh` first. `metadata`: the (in-place) operator
    changes sizes and strides of its first argument, and the rule returns the new type."""

    def register(function: Rule) -> Rule:
        _record_facts(names, rule=function, data_dependent=data, changes_metadata=metadata)
        return function

    return register


def view_inverse(*names: str) -> Callable[[Rule], Rule]:
    """Register how a write through a view is scattered back: (base, written, *view arguments) ->
    new base."""
    return _register_as("view_inverse", names)


def decomposition(*names: str) -> Callable[[Rule], Rule]:
    """Register how an operator is computed by others: a function of tensors, with the arguments of
    the schema, that returns what the operator returns."""

    def register(function: Rule) -> Rule:
        is_again = _is_said_again()
        for name in list_overloads(names):
            if name in _decompositions and not is_again:
                raise AssertionError(f"{name} has two decompositions")
            _decompositions[name] = function
        return function

    return register


def find_decomposition(overload: OpOverload) -> Rule | None:
    """The decomposition that is registered for an operator."""
    DECOMPOSITIONS.load(overload._schema.name)
    return _decompositions.get(name_overload(overload))


def itself(*names: str) -> Callable[[Rule], Rule]:
    """Register when an operator returns its first argument, though its schema has no alias."""
    return _register_as("itself", names)


def composite(*names: str) -> Callable[[Rule], Rule]:
    """Register how a mode takes an operator apart, instead of C++: (mode, *arguments) -> results.
    It calls the parts through the mode."""
    return _register_as("parts", names)


def evaluation(*names: str) -> Callable[[Rule], Rule]:
    """Register how a mode evaluates an operator for which no type rule is enough, because it reads
    or remembers data: (mode, record, args, kwargs) -> results."""
    return _register_as("evaluation", names)


def mark(trait: Trait, *names: str) -> None:
    """Say that these operators have a trait. (Another thread may load another file meanwhile, which
    says another of them.)"""
    for name in list_overloads(names):
        _facts_of(name).setdefault("traits", set()).add(trait)


def mark_overloads(trait: Trait, names: str, out: bool = False) -> None:
    """Say that every overload of these operators that takes `out=`, or that does not, has a
    trait."""
    _mark_forms(trait, names, "out" if out else "plain")


def mark_writing_forms(trait: Trait, names: str) -> None:
    """Say that every overload that writes has a trait: for a name `x`, those with `out=`, and those
    of `x_`."""
    _mark_forms(trait, names, "writing")


def _mark_forms(trait: Trait, names: str, form: str) -> None:
    for name in names.split():
        _traits_of_forms.setdefault((name, form), set()).add(trait)


def _find_traits_of_forms(schema: Any) -> Iterator[Trait]:
    name = index_name(schema.name)
    form = "out" if schema.overload_name.endswith("out") else "plain"
    keys = [(name, form)]
    if schema.is_mutable:
        keys += [(name, "writing"), (name.removesuffix("_"), "writing")]
    for key in keys:
        yield from _traits_of_forms.get(key, ())


def refuse_operators(refusal: OperatorRefusal, *names: str) -> None:
    """Say that no program can have these operators, and why."""
    _record_facts(names, refusal=refusal)


def writes_silently(flag: str, *names: str) -> None:
    """Say that these operators write to `running_mean` and `running_var` if a flag is set, although
    their schemas do not say so."""
    _record_facts(names, silent_flag=flag)


def operator(overload: OpOverload) -> Operator:
    """The record of an overload, made on first use; every operator has one."""
    found = _operators.get(id(overload))
    if found is None:
        # All threads must get the same record, since keys contain its id.
        found = _operators.setdefault(id(overload), _describe(overload))
    return found


def has_trait(target: Any, trait: Trait) -> bool:
    """Is this, whatever a node or a step calls, an operator with the trait?"""
    return isinstance(target, OpOverload) and trait in operator(target).traits


T = TypeVar("T")
Ways = Sequence[tuple[Trait | Callable[[Operator], bool], T]]


def choose(record: Operator, ways: Ways[T]) -> T:
    """The second member of the first pair whose condition holds for the operator. A condition is a
    trait that it must have, or a predicate on its record."""
    traits = record.traits
    for condition, way in ways:
        if condition in traits if condition.__class__ is Trait else condition(record):  # type: ignore[operator]
            return way
    raise AssertionError(f"nothing is there for {record.overload}")


def overloads_with_rules() -> frozenset[OpOverload]:
    """Every overload with a rule of its own, not one that an in-place or `out=` form borrows."""
    FAMILIES.load_all()
    return _find_present(name for name, known in _facts.items() if "rule" in known)


def overloads_with_decompositions() -> frozenset[OpOverload]:
    """Every overload with a decomposition of ours."""
    DECOMPOSITIONS.load_all()
    return _find_present(_decompositions)


def _find_present(names: Iterable[str]) -> frozenset[OpOverload]:
    """Those of these overloads that this version of torch has."""
    found = map(find_overload, names)
    return frozenset(overload for overload in found if not isinstance(overload, Absent))


def mark_taking(trait: Trait, argument: str) -> None:
    """Give a trait to all operators that take an argument of this name."""
    _of_arguments[argument] = trait


_of_arguments: dict[str, Trait] = {}
mark_taking(Trait.COMMUNICATES, "group_name")  # so all collectives call their processes


def _describe(overload: OpOverload) -> Operator:
    schema = overload._schema
    FAMILIES.load(schema.name)
    name = name_overload(overload)
    _described.add(name)
    record = Operator(overload, **_facts.get(name, {}))
    record.traits = frozenset((*record.traits, *_find_traits_of_forms(schema)))
    arguments = schema.arguments  # a new list each time
    aliases = [(a, info) for a in arguments if (info := a.alias_info) is not None]
    writes = [a for a, info in aliases if info.is_write]
    record.argument_names = tuple([a.name for a in arguments])
    marked = [_of_arguments[name] for name in record.argument_names if name in _of_arguments]
    record.traits |= frozenset(marked)
    record.mutates = tuple([a.name for a in writes])
    record.out_names = tuple([a.name for a in writes if a.is_out])
    record.results = tuple([_describe_result(r, aliases) for r in schema.returns])
    record.kind = _classify(record)
    if record.mutates and not record.changes_metadata:
        record.twin = functional_twin(overload)
        if record.rule is None and record.twin is not None and record.kind in ("inplace", "out"):
            FAMILIES.load(record.twin._schema.name)
            twin = _facts.get(name_overload(record.twin), {})
            record.rule, record.by_twin = twin.get("rule"), True
            record.data_dependent = twin.get("data_dependent", False)
    return record


def _describe_result(returned: Any, aliases: list[tuple[Any, Any]]) -> ResultSource:
    """What a result is, by the arguments that have aliases."""
    is_list = returned.type.kind() == "ListType"
    info = returned.alias_info
    if info is None:
        return ResultSource(is_list=is_list)
    for argument, source in aliases:
        # The schema of a list of views (`split`) names no alias set: it views the aliased argument.
        if source.before_set & info.before_set or not info.before_set:
            return ResultSource(argument.name, info.is_write, is_list)
    return ResultSource(is_list=is_list)


def _classify(record: Operator) -> str:
    if record.out_names:
        return "out"
    if any(r.written for r in record.results):
        return "inplace"
    if record.mutates:
        return "mixed" if record.results else "inplace"
    if any(r.argument is not None for r in record.results):
        return "view"
    return "functional"


def functional_twin(overload: OpOverload) -> OpOverload | None:
    """The overload that computes the same without writing: `add_.Tensor` → `add.Tensor`, `add.out`
    → `add.Tensor`.

    It is found by its schema, not in a list: it has the same arguments, except that it only reads
    those that are written in place, and has no `out=`. Names say so in torch's own libraries alone:
    a user's `scale_` and `scale` may compute different things.
    """
    schema = overload._schema
    namespace, _, base = schema.name.partition("::")
    if namespace not in _TWINNED:
        return None
    wanted = _signature(a for a in schema.arguments if not a.is_out)
    plain = base.removesuffix("_")
    shifting = base.replace("__i", "__", 1)  # `__ilshift__`
    for name in (base, plain, f"{base}_functional", f"{plain}_functional", shifting):
        packet = getattr(getattr(torch.ops, namespace), name, None)
        for other in packet.overloads() if packet is not None else ():
            # Torch makes an overload when it is first asked for; its schema is there before.
            candidate = torch._C._get_schema(
                f"{namespace}::{name}", "" if other == "default" else other
            )
            if not candidate.is_mutable and _signature(candidate.arguments) == wanted:
                return getattr(packet, other)  # type: ignore[no-any-return]
    return None


def writing_twin(overload: OpOverload) -> OpOverload | None:
    """The overload that writes to its first argument what this one computes: `add.Tensor` →
    `add_.Tensor`."""
    namespace, _, base = overload._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), f"{base}_", None)
    found: OpOverload | None = getattr(packet, overload._overloadname, None)
    return found if found is not None and operator(found).twin is overload else None


_TWINNED = frozenset(("aten", "prims"))

_FACTORY_OPTIONS = {"dtype", "layout", "device", "pin_memory"}


def _signature(arguments: Iterable[Any]) -> list[tuple[str, str]]:
    """Names and types of arguments, without a factory's options: an `out=` form takes these from
    `out`. The first may be called `self` in one and `input` in the other (`dropout_`)."""
    first = {"input": "self"}
    return [
        (first.get(a.name, a.name), str(a.type))
        for a in arguments
        if a.name not in _FACTORY_OPTIONS
    ]
