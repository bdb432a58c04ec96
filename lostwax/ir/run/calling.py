"""The calling convention of a program: it takes a call apart into the graph's inputs, checks each,
and builds the result.

Both directions run on every call, so they are generated: flat Python for the one structure that was
captured. The generated check only accepts or refuses; a refused call is walked again, slowly, to
find what is wrong with it. Must not know how programs run.
"""

from __future__ import annotations

import functools
import inspect
import keyword
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._pytree import TreeSpec

from lostwax.errors import LostwaxError, did_you_mean
from lostwax.ir.pytree import MAPPINGS, container_class, is_namedtuple, mapping_keys
from lostwax.ir.run.captured_call import CapturedCall, Range
from lostwax.ir.run.leaves import (
    UNCHANGED,
    Changes,
    ConstantLeaf,
    FloatLeaf,
    Leaf,
    NumberLeaf,
    TensorLeaf,
    is_default,
    refuse_default,
)
from lostwax.ir.signature import same_constant
from lostwax.sym import Atom, BoolExpr, Expr, Guard, Symbol, show
from lostwax.sym.text.show import WHOLE

_MISSING = object()
_GENERATED = f"{__file__}:generated"  # within lostwax: its frames are not the user's


_SELF = "self (the argument)"


def call_with_self(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """Replace `nn.Module.__call__` for a module that has an argument named `self`: torch's own
    would take it for the module. Its `forward` is wrapped by `accept_self`."""
    if "self" in kwargs:
        kwargs[_SELF] = kwargs.pop("self")
    return torch.nn.Module.__call__(module, *args, **kwargs)


def accept_self(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The other half of `call_with_self`."""

    @functools.wraps(forward)
    def under_its_name(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if _SELF in kwargs:
            kwargs["self"] = kwargs.pop(_SELF)
        return forward(module, *args, **kwargs)

    return under_its_name


class Convention(CapturedCall):
    """How a program is called, and what it returns.

    `captured` are the values of the leaves of `in_spec` at capture: fakes, symbolic ints,
    constants. `ranges` are the limits of symbols by name, `guards` further conditions on them.
    `original` is the signature of what was captured: a call may leave out an argument with a
    default, or pass one that was left out at capture, if the value is that of the capture.
    """

    def __init__(
        self,
        in_spec: TreeSpec,
        out_spec: TreeSpec,
        captured: Sequence[Any],
        names: Sequence[str] | None = None,
        ranges: Mapping[str, Range] | None = None,
        guards: Sequence[Guard] = (),
        changes: Changes = UNCHANGED,
        original: inspect.Signature | None = None,
    ) -> None:
        super().__init__(in_spec, captured, names, ranges, guards, changes)
        self.original = original
        self.bind: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]] = _Binder(
            self
        ).make_bind()
        self.rebuild: Callable[[Sequence[Any]], Any] = _make_rebuild(out_spec)

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the original, if it is known; else one made of the names."""
        if self.original is not None:
            return self.original
        kinds = inspect.Parameter
        if not all(name.isidentifier() and not keyword.iskeyword(name) for name in self.names):
            rest = [kinds("args", kinds.VAR_POSITIONAL), kinds("kwargs", kinds.VAR_KEYWORD)]
            return inspect.Signature(rest)
        return inspect.Signature(
            [
                kinds(
                    name,
                    kinds.POSITIONAL_OR_KEYWORD if i < self.positional else kinds.KEYWORD_ONLY,
                )
                for i, name in enumerate(self.names)
            ]
        )

    @property
    def takes_self(self) -> bool:
        """Is there an argument named `self`?"""
        original = self.original
        return "self" in self.names or (original is not None and "self" in original.parameters)

    # ---- the call by names

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments in the order of `names`, whether given by position or by name."""
        if self.original is not None:
            args, kwargs = self._with_defaults(self.original, args, kwargs)
        if len(args) > self.positional:
            most, by_name = self._most_positional, self.names[self.positional :]
            fix = "leave out what is too much, or capture it again with it"
            if len(args) <= most and by_name:
                fix = f"pass {by_name[0]} by name, as at capture"
            self.refuse_structure(
                f"{len(args)} positional arguments were given, the program takes "
                f"{most if len(args) > most else self.positional}",
                f"args[{self.positional}]",
                args,
                kwargs,
                fix,
            )
        taken = set(self.names[: len(args)])
        for name in kwargs:
            if name in taken:
                fix = f"pass {name} once, by position or by name"
                self.refuse_structure(f"{name} was given twice", name, args, kwargs, fix)
            if name not in self.names:
                near = did_you_mean(name, [n for n in self.names if n not in kwargs])
                text = f"{name} is not an argument of the program{near}"
                fix = "leave it out, or capture it again with it"
                self.refuse_structure(text, name, args, kwargs, fix)
        for name in self.names[len(args) :]:
            if name not in kwargs:
                fix = f"pass it, {name}={self.sketch_argument(name)}; or capture it again without"
                self.refuse_structure(f"{name} is missing", name, args, kwargs, fix)
        return [*args, *(kwargs[name] for name in self.names[len(args) :])]

    @property
    def _most_positional(self) -> int:
        """How many positional arguments the original takes."""
        if self.original is None:
            return len(self.names)
        kinds = [parameter.kind for parameter in self.original.parameters.values()]
        return sum(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)

    def _with_defaults(
        self, original: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Add defaults for arguments that are left out; drop those that were left out at capture.
        A call that does not fit the original is returned as it is: it is refused later."""
        try:
            bound = original.bind(*args, **kwargs)
        except TypeError:
            return args, kwargs
        given = set(bound.arguments)
        bound.apply_defaults()
        kept: dict[str, Any] = {}
        for parameter in original.parameters.values():
            name, value = parameter.name, bound.arguments[parameter.name]
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kept.update(value)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                if value:
                    return args, kwargs
            elif name in self.names:
                kept[name] = value
            elif name in given and not is_default(value, parameter.default):
                refuse_default(name, value, parameter.default)
        return (), kept


# --------------------------------------------------------------------- the fast, generated check


class _Binder:
    """Writes the function that takes a call apart and checks it."""

    def __init__(self, convention: Convention) -> None:
        self.convention = convention
        self.globals: dict[str, Any] = {
            "missing": _MISSING,
            "arguments": convention.arguments,
            "explain": convention.explain,
            "same_constant": same_constant,
            "STRIDED": torch.strided,
            "LostwaxError": LostwaxError,
        }
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self.count = 0

    def make_bind(self) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]:
        self.arguments()
        for name, expected in zip(self.leaves, self.convention.leaves, strict=True):
            self.check_leaf(name, expected)
        names = self.symbols()
        form, self.lines = "\n        ".join(self.lines), []
        self.conditions(names)
        self.lines.append(f"return {_tuple_text(self.leaves)}")
        rest = "\n        ".join(self.lines)
        # A value without `dtype` or `shape`, or one that cannot be compared, was not captured so.
        # Conditions on sizes stand outside of the `try`: a capture of this sees that they raise.
        source = (
            f"def bind(args, kwargs):\n    try:\n        {form}\n"
            "    except LostwaxError:\n        raise\n"
            "    except (AttributeError, TypeError):\n        pass\n"
            f"    else:\n        {rest}\n    explain(args, kwargs)\n"
        )
        return _compile_function(source, "bind", self.globals)  # type: ignore[no-any-return]

    def add_constant(self, value: Any) -> str:
        name = f"k{len(self.globals)}"
        self.globals[name] = value
        return name

    def fresh_name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def refuse_unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): explain(args, kwargs)")

    def check(self, condition: str) -> None:
        """Refuse what the original refuses as well: a capture of this reads the `raise`."""
        self.lines.append(f"if not ({condition}): raise explain(args, kwargs)")

    def arguments(self) -> None:
        """Take apart a call that passes arguments as at capture; other calls go through
        `Convention.arguments`, by name."""
        positional, by_name = self.convention.in_spec.children()
        first = [self.fresh_name() for _ in positional.children()]
        rest = [self.fresh_name() for _ in by_name.children()]
        self.lines.append(f"if len(args) == {len(first)} and len(kwargs) == {len(rest)}:")
        taken = [f"{_tuple_text(first)} = args"] if first else []
        keys = mapping_keys(by_name)
        taken += [f"{v} = kwargs.get({k!r}, missing)" for v, k in zip(rest, keys, strict=True)]
        taken += [f"if {v} is missing: explain(args, kwargs)" for v in rest]
        self.lines += [f"    {line}" for line in taken or ["pass"]]
        unpacked = f"{_tuple_text([*first, *rest])} = " if first or rest else ""
        self.lines += ["else:", f"    {unpacked}arguments(args, kwargs)"]
        specs = (*positional.children(), *by_name.children())
        for name, spec in zip([*first, *rest], specs, strict=True):
            self.unpack(spec, name)

    def unpack(self, spec: TreeSpec, name: str) -> None:
        if spec.is_leaf():
            self.leaves.append(name)
            return
        children = [self.fresh_name() for _ in spec.children()]
        self.refuse_unless(f"{name}.__class__ is {self.add_constant(container_class(spec))}")
        if spec.type in MAPPINGS:
            if spec.type is OrderedDict:  # its order is a part of it, as that of a dict is not
                self.refuse_unless(f"list({name}) == {self.add_constant(list(mapping_keys(spec)))}")
            self.refuse_unless(f"len({name}) == {len(children)}")
            for child, key in zip(children, mapping_keys(spec), strict=True):
                self.lines.append(f"{child} = {name}.get({self.add_constant(key)}, missing)")
                self.refuse_unless(f"{child} is not missing")
        elif spec.type in (tuple, list) or is_namedtuple(spec):
            self.refuse_unless(f"len({name}) == {len(children)}")
            self.lines += [f"{_tuple_text(children)} = {name}"] if children else []
        else:
            self.flatten(spec, name, children)
        for child, child_spec in zip(children, spec.children(), strict=True):
            self.unpack(child_spec, child)

    def flatten(self, spec: TreeSpec, name: str, children: list[str]) -> None:
        """Unpack a container with the function that it was registered with."""
        parts, context = self.fresh_name(), self.fresh_name()
        flatten = self.add_constant(_pytree.SUPPORTED_NODES[spec.type].flatten_fn)
        self.lines += [f"{parts}, {context} = {flatten}({name})", f"{parts} = tuple({parts})"]
        same = f"{context} == {self.add_constant(spec.context)}"
        self.refuse_unless(f"len({parts}) == {len(children)} and {same}")
        self.lines += [f"{_tuple_text(children)} = {parts}"] if children else []

    def check_leaf(self, name: str, expected: Leaf) -> None:
        if isinstance(expected, TensorLeaf):
            dtype = (
                f"{name}.dtype is {self.add_constant(expected.dtype)} and {name}.layout is STRIDED"
                f" and {self.device_test(name, expected.device)}"
            )
            if all(isinstance(size, int) for size in expected.size):
                shape = self.add_constant(torch.Size(expected.size))  # type: ignore[arg-type]
                self.refuse_unless(f"{dtype} and {name}.shape == {shape}")
                return
            fixed = [
                f"{name}.shape[{d}] == {size}"
                for d, size in enumerate(expected.size)
                if isinstance(size, int)
            ]
            rank = f"len({name}.shape) == {len(expected.size)}"
            self.refuse_unless(" and ".join([dtype, rank, *fixed]))
        elif isinstance(expected, NumberLeaf):
            self.refuse_unless(f"{name}.__class__ in {self.add_constant((int, torch.SymInt))}")
        elif isinstance(expected, FloatLeaf):
            self.refuse_unless(f"{name}.__class__ in {self.add_constant((float, torch.SymFloat))}")
        elif isinstance(expected, ConstantLeaf):
            self.refuse_unless(self.same_test(name, expected.value))

    def device_test(self, name: str, device: torch.device) -> str:
        if device.index is None:
            return f"{name}.device.type == {device.type!r}"
        return f"{name}.device == {self.add_constant(device)}"

    def same_test(self, name: str, value: Any) -> str:
        constant = self.add_constant(value)
        if value is None or isinstance(value, (bool, torch.dtype)):
            return f"{name} is {constant}"
        if isinstance(value, (int, str)):
            return f"{name}.__class__ is {constant}.__class__ and {name} == {constant}"
        return f"same_constant({name}, {constant})"

    def symbols(self) -> dict[Atom, str]:
        """Read the values of symbols, then check every size; return the names of the values."""
        convention = self.convention
        given = [
            self.leaves[p.leaf] if p.dim is None else f"{self.leaves[p.leaf]}.shape[{p.dim}]"
            for p in convention.places
        ]
        names: dict[Atom, str] = {}
        for symbol, (index, factor, offset) in convention.solved.items():
            names[symbol] = name = self.fresh_name()
            self.lines.append(f"{name} = {given[index]}")
            if (factor, offset) != (1, 0):
                self.refuse_unless(f"({name} - {offset}) % {factor} == 0")
                self.lines.append(f"{name} = ({name} - {offset}) // {factor}")
        for i, place in enumerate(convention.places):
            symbols = place.expr.symbols()
            if symbols <= names.keys() and not self.solves(i, symbols):
                self.refuse_unless(f"{given[i]} == {self.compute_text(place.expr, names)}")
        return names

    def conditions(self, names: dict[Atom, str]) -> None:
        """Check the conditions on symbols: first what the original checks, as ranges follow."""
        convention = self.convention
        for guard in convention.guards:
            if guard.kind == "check":
                self.check(self.compute_text(guard.cond, names))
        for symbol, (lo, hi) in convention.ranges.items():
            if (lo, hi) != (None, None):
                self.refuse_unless(_range_test(names[symbol], lo, hi))
        for guard in convention.guards:
            if guard.kind != "check":
                self.refuse_unless(self.compute_text(guard.cond, names))

    def compute_text(self, e: Expr | BoolExpr, names: dict[Atom, str]) -> str:
        """Return an expression as code. Its long parts are computed once, before it: written out, a
        chain of sizes would double with each step."""
        for atom in sorted(e.atoms(), key=attrgetter("id")):  # from the inside out
            if atom in names or atom.kind == "symbol":
                continue
            text = show(atom.expr, names, longest=WHOLE)
            if len(text) > _LONG and not _may_fail(atom):
                names[atom] = self.fresh_name()
                self.lines.append(f"{names[atom]} = {text}")
        return show(e, names, longest=WHOLE)

    def solves(self, index: int, symbols: frozenset[Symbol]) -> bool:
        """Was the value of one of these symbols read from this place?"""
        return any(self.convention.solved[s][0] == index for s in symbols)


_LONG = 200


def _may_fail(atom: Atom) -> bool:
    """May computing this raise? A divisor may be zero if only an earlier condition excludes it."""
    return any(
        a.kind in ("div", "mod") and not isinstance(a.args[1], int) for a in atom.expr.atoms()
    )


def _range_test(name: str, lo: int | None, hi: int | None) -> str:
    return f"{'' if lo is None else f'{lo} <= '}{name}{'' if hi is None else f' <= {hi}'}"


def _tuple_text(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _compile_function(source: str, name: str, names: dict[str, Any]) -> Any:
    exec(compile(source, _GENERATED, "exec"), names)
    return names[name]


# -------------------------------------------------------------------------------------- the results


def _make_rebuild(spec: TreeSpec) -> Callable[[Sequence[Any]], Any]:
    """Make a function that builds the structure of `spec` from flat results."""
    names: dict[str, Any] = {}
    leaves: list[str] = []
    result = _rebuild_text(spec, names, leaves)
    unpacked = f"    {_tuple_text(leaves)} = values\n" if leaves else ""
    source = f"def rebuild(values):\n{unpacked}    return {result}\n"
    return _compile_function(source, "rebuild", names)  # type: ignore[no-any-return]


def _rebuild_text(spec: TreeSpec, names: dict[str, Any], leaves: list[str]) -> str:
    if spec.is_leaf():
        leaves.append(f"v{len(leaves)}")
        return leaves[-1]
    children = [_rebuild_text(child, names, leaves) for child in spec.children()]
    if spec.type is tuple:
        return _tuple_text(children)
    if spec.type is list:
        return f"[{', '.join(children)}]"

    def constant(value: Any) -> str:
        names[f"k{len(names)}"] = value
        return f"k{len(names) - 1}"

    if spec.type is dict:
        pairs = zip(mapping_keys(spec), children, strict=True)
        return f"{{{', '.join(f'{constant(k)}: {v}' for k, v in pairs)}}}"
    if is_namedtuple(spec):
        return f"{constant(spec.context)}({', '.join(children)})"
    if spec.type is torch.Size:  # torch's registration would make it a tuple
        return f"{constant(torch.Size)}({_tuple_text(children)})"
    unflatten = constant(_pytree.SUPPORTED_NODES[spec.type].unflatten_fn)
    return f"{unflatten}([{', '.join(children)}], {constant(spec.context)})"
