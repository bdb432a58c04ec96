"""The conditions under which a program is right, in files.

torch keeps them as Python expressions over `L['x'].size()[0]`. We write these for torch, and read
them with the grammar of `lostwax.sym`; they are never evaluated. What that form has no place for is
in a record of our own, which torch's reader ignores: the user's line, the reason, what symbols
stand for, what the trace has found out, and how values were written before it did.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import TreeSpec

from lostwax.errors import LoadError, ParseError
from lostwax.fake import FakeTensor
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import argument_names, leaf_paths
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.run.captured_call import solve_symbols
from lostwax.ir.signature import InputKind
from lostwax.location import NOWHERE, Location
from lostwax.pt2 import original, peer
from lostwax.pt2.graph.spelling import SymbolWriter
from lostwax.pt2.graph.symbols import SymbolReader
from lostwax.pt2.lines import Lines, read_place
from lostwax.sym import BoolExpr, Expr, Guard, Size, Symbol, current, evaluate, known, show
from lostwax.sym.numbers.real import complete_values, definition
from lostwax.sym.text.parse import parse
from lostwax.sym.text.show import CUT

aten = torch.ops.aten


class Beside:
    """What the graphs hold that torch's form does not, by graph and by name."""

    def __init__(self, delegates: Sequence[LoweredBackendModule] = ()) -> None:
        self.delegates = delegates
        self.values: dict[str, dict[str, Any]] = {}
        """Numbers, and tensors' sizes, strides and offset, where torch is described what became of
        them."""
        self.items: dict[str, dict[str, dict[str, str]]] = {}
        """Metadata of nodes that read an item of a result, which files have no nodes for."""
        self.order: dict[str, list[str]] = {}
        """Of graphs whose nodes stand in another order than a reader would make them in."""
        self.numbers: dict[str, dict[str, int | float]] = {}
        """Numbers among the operands of sub-graphs, for which a file needs nodes."""


_RECORD_VERSION = 1
_LONGEST = 8000
"""Characters of a part of a condition."""
_SIZE = ".size()["
_LIMIT = re.compile(r"-?\d+ [<>]= ")
_EXAMPLES = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 1)
_TRUNCATED = re.compile(r"math\.trunc\(([^()]*(?:\(\)[^()]*)*) / (\d+)\)")


# ------------------------------------------------------------------------------------------ writing


def guards_code(program: ExportedProgram, whole: bool = False) -> list[str]:
    """All that a call must fulfil, as torch has it; if not `whole`, without what torch checks by
    itself: fixed sizes, equal sizes, and the limits of a size that is a symbol."""
    found = _places(program)
    varying = [(path, size) for path, size in found if isinstance(size, Expr)]
    solved = dict(solve_symbols([size for _, size in varying]))
    limits = limits_by_name(program.range_constraints)
    names: dict[Symbol, str] = {}
    texts = [f"{path} == {size}" for path, size in found if whole and isinstance(size, int)]
    for symbol, (index, factor, offset) in solved.items():
        path = varying[index][0]
        name = f"({path} - {offset})" if offset else path
        if factor != 1:
            texts.append(f"{name} % {factor} == 0")
            name = f"{name}//{factor}"
        names[symbol] = name
        texts += _limit(name, *limits.get(symbol.name, (None, None)), name == path and not whole)
    sources = {index for index, _, _ in solved.values()}
    for index, (path, size) in enumerate(varying):
        is_checked = not whole and _find_lone_symbol(size)
        if size.symbols() <= names.keys() and index not in sources and not is_checked:
            texts.append(f"{path} == {show(size, names, longest=_LONGEST)}")
    guards = [g for g in program.guards if g.cond.symbols() <= names.keys()]
    texts += [show(guard.cond, names, longest=_LONGEST) for guard in guards]
    texts += () if whole else _list_layouts(program, names)
    return [text for text in dict.fromkeys(texts) if CUT not in text]


def _list_layouts(program: ExportedProgram, names: Mapping[Symbol, str]) -> Iterator[str]:
    """What the graph asserts of the strides and offsets of a call's tensors. torch's decompositions
    take that for known, and drop the assertions."""
    for path, node in _inputs(program):
        for asking in node.users:
            if asking.target not in _LAYOUTS:
                continue
            place = _LAYOUTS[asking.target].format(*asking.args[1:])
            for compared in asking.users:
                wanted = compared.args[1] if compared.target is operator.eq else None
                number = current(unwrap(wanted.meta["val"])) if isinstance(wanted, Node) else wanted
                if isinstance(number, Expr) and number.symbols() <= names.keys():
                    number = show(number, names, longest=_LONGEST)
                if isinstance(number, int | str):
                    yield f"{path}{_NO_ELEMENTS}{path}{place} == {number}"


_NO_ELEMENTS = ".numel() == 0 or "
_LAYOUTS: dict[Any, str] = {
    aten.sym_stride.int: ".stride()[{}]",
    aten.sym_storage_offset.default: ".storage_offset()",
}


def _inputs(program: ExportedProgram) -> list[tuple[str, Node]]:
    """The placeholders of a call's values, as torch's guards name them."""
    root = program.root_signature
    if root is None:
        return []
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = zip(placeholders, program.graph_signature.input_specs, strict=True)
    nodes = [node for node, spec in specs if spec.kind is InputKind.USER_INPUT]
    return list(zip(_paths(root.in_spec, peer.argument_names(root)), nodes, strict=True))


def _limit(name: str, lo: int | None, hi: int | None, is_symbol: bool) -> Iterator[str]:
    """The limits of a symbol, where torch does not check them: it takes 2 for no limit. The number
    comes first, by which they can be told from guards."""
    is_checked = is_symbol and (lo or 0) > 2
    if lo is not None and not is_checked and (lo, _SIZE in name) != (0, True):
        yield f"{lo} <= {name}"
    if hi is not None and not is_symbol:
        yield f"{hi} >= {name}"


def example_sizes(program: ExportedProgram) -> dict[Symbol, int]:
    """Other sizes for the example in torch's part of the file, if one of the example's was 0 or 1:
    torch takes such a size for fixed, or refuses it. Empty if the example will do, or none does."""
    sizes = [size for _, size in _places(program) if isinstance(size, Expr)]
    symbols = {s for size in sizes for s in size.symbols()}
    small = [s for s in symbols if s.hint in (0, 1) and s.lo is not None and s.lo >= 0]
    if not small:
        return {}
    known = {s: s.hint for s in sizes[0].env.symbols if s.hint is not None and not definition(s)}
    for size in _EXAMPLES:
        values = known | dict.fromkeys(small, size)
        if all(s.hi is None or size <= s.hi for s in small) and _hold(program.guards, values):
            return values
    return {}


def _hold(guards: Iterable[Guard], values: Mapping[Symbol, int]) -> bool:
    try:
        return all(evaluate(g.cond, complete_values(values, g.cond.symbols())) for g in guards)
    except (ArithmeticError, ValueError):
        return False


def own_record(
    program: ExportedProgram, symbols: SymbolWriter, beside: Beside, lines: Lines
) -> dict[str, Any]:
    """Our own record: what torch's form has no place for."""
    guards = [_guard(g, symbols, lines) for g in program.guards]
    values = {
        path: {name: _texts(value, symbols) for name, value in graph.items()}
        for path, graph in beside.values.items()
    }
    envs = dict.fromkeys(s.expr.env for s in symbols.symbols.values())
    facts = [symbols.text(fact) for env in envs for fact in dict.fromkeys(env.facts.told)]
    ordered = sorted(symbols.symbols.items(), key=lambda item: item[1].id)
    described: dict[str, Any] = {name: _describe_symbol(symbol, lines) for name, symbol in ordered}
    integers = symbols.integers()
    for name, real in symbols.floats.items():
        described[name] = {"name": real.args[0], "origin": lines.write_text(real.args[1])}
    return {
        "version": _RECORD_VERSION,
        "guards": guards,
        "facts": facts,
        "symbols": described,
        "defined": symbols.defined,
        "integers": integers,
        "values": values,
        "items": beside.items,
        "order": beside.order,
        "numbers": beside.numbers,
        "ranges": [
            name if name.isidentifier() else [name, *limits]
            for name, limits in limits_by_name(program.range_constraints).items()
        ],
        "original": original.write(program, lines),
        "writes": [s.write and s.write.value for s in program.graph_signature.output_specs],
    }


def _texts(value: Any, symbols: SymbolWriter) -> Any:
    if isinstance(value, tuple):
        return [_texts(v, symbols) for v in value]
    return value if isinstance(value, int) else symbols.text(value)


def _guard(guard: Guard, symbols: SymbolWriter, lines: Lines) -> dict[str, Any]:
    return {
        "cond": symbols.text(guard.cond),
        "kind": guard.kind,
        **lines.write_place(guard.where),
        "asked_by": guard.asked_by,
        "reason": lines.write_text(guard.reason),
    }


def _describe_symbol(symbol: Symbol, lines: Lines) -> dict[str, Any]:
    return {
        "name": symbol.name,
        "hint": symbol.hint,
        "lo": symbol.lo,
        "hi": symbol.hi,
        "source": symbol.source,
        "declared": symbol.declared,
        "origin": lines.write_text(symbol.origin),
    }


def _places(program: ExportedProgram) -> list[tuple[str, Size]]:
    """Each size and each int of a call, as torch's guards name it."""
    found = _inputs(program)
    return _sizes([path for path, _ in found], [node.meta.get("val") for _, node in found])


def places(in_spec: TreeSpec, names: list[str] | None, values: list[Any]) -> list[tuple[str, Size]]:
    """Each size and each int of a call under the name that torch's guards have for it."""
    return _sizes(_paths(in_spec, names), values)


def _paths(in_spec: TreeSpec, names: list[str] | None) -> list[str]:
    positional, by_name = in_spec.children()
    arguments = (*positional.children(), *by_name.children())
    named = zip(argument_names(in_spec, names), arguments, strict=True)
    return [path for name, spec in named for path in leaf_paths(spec, f"L[{name!r}]")]


def flat_places(values: list[Any]) -> list[tuple[str, Size]]:
    """As `places`, under the names that guards of torch's strict mode use."""
    return _sizes([f"L['flat_args'][{i}]" for i in range(len(values))], values)


def _sizes(paths: list[str], values: list[Any]) -> list[tuple[str, Size]]:
    found: list[tuple[str, Size]] = []
    for path, value in zip(paths, values, strict=True):
        if isinstance(value, FakeTensor):
            sizes = enumerate(value.fake_type.size)
            found += [(f"{path}{_SIZE}{d}]", current(s)) for d, s in sizes]
        else:
            number = unwrap(value)
            if isinstance(number, Expr):
                found.append((path, number))
    return found


def _find_lone_symbol(size: Size) -> tuple[Symbol, ...]:
    """The symbol, if a size is just that symbol."""
    if not isinstance(size, Expr) or len(size.symbols()) != 1:
        return ()
    (symbol,) = size.symbols()
    return (symbol,) if symbol.expr is size else ()


# ------------------------------------------------------------------------------------------ reading


def read_guards(
    given: Mapping[str, Any],
    symbols: SymbolReader,
    where: list[tuple[str, Size]],
    targets: Set[Any],
) -> list[Guard]:
    """The guards of a file: from our own record if it has one, else from torch's expressions, but
    for those of layouts, if the graph asserts some: what it calls is given."""
    own = given.get("lostwax")
    if isinstance(own, dict):
        if own.get("version") != _RECORD_VERSION:
            raise LoadError(f"the record of lostwax has the unknown version {own.get('version')!r}")
        return [g for g in (_own_guard(g, symbols) for g in own["guards"]) if g is not None]
    names = dict(where)
    texts = given.get("guards_code") or ()
    layouts = [text for text in texts if _NO_ELEMENTS in str(text)]
    if layouts and targets.isdisjoint(_LAYOUTS):
        raise LoadError(
            f"the graph does not assert {layouts[0].partition(_NO_ELEMENTS)[2]!r}, on which the "
            "program relies: torch's run_decompositions() has dropped that\n"
            "  instead: hand over the program as it was before, and decompose it here"
        )
    texts = [text for text in texts if text not in layouts]
    found = [_peer_guard(text, names) for text in texts]
    return [g for g in found if g is not None]


def read_facts(
    given: Mapping[str, Any], symbols: SymbolReader, guards: list[Guard]
) -> list[BoolExpr]:
    """All that was known when the program was captured. In a file of torch's, that is its
    guards."""
    own = given.get("lostwax")
    if not isinstance(own, dict) or "facts" not in own:
        return [guard.cond for guard in guards]
    found = [symbols.expression(text) for text in own["facts"]]
    for fact, text in zip(found, own["facts"], strict=True):
        if fact is not True and not isinstance(fact, BoolExpr):
            raise LoadError(f"{text[:300]!r} is no condition, or never holds")
    return [fact for fact in found if fact is not True]


def _own_guard(given: Mapping[str, Any], symbols: SymbolReader) -> Guard | None:
    condition = symbols.expression(given["cond"])
    texts = (str(given["asked_by"]), str(given["reason"]))
    return _make_guard(condition, str(given["kind"]), read_place(given), *texts)


def _peer_guard(text: Any, names: Mapping[str, Size]) -> Guard | None:
    if not isinstance(text, str):
        raise LoadError("a guard is not a text")
    readable = _TRUNCATED.sub(r"((\1) // \2)", text)  # sizes are not negative
    try:
        condition = parse(readable, names)
    except ParseError as error:
        raise LoadError(
            f"the condition {text[:300]!r} is not understood, and without it the program could be "
            f"run where it is wrong: {error}\n"
            "  instead: save the program again after ep.run_decompositions(), or export it with "
            "lostwax"
        ) from None
    if _LIMIT.match(text) and isinstance(condition, BoolExpr) and known(condition):
        return None
    return _make_guard(condition, "branch", NOWHERE, "", "torch.export recorded it")


def _make_guard(
    condition: Any, kind: str, where: Location, asked_by: str, reason: str
) -> Guard | None:
    if condition is True:
        return None
    if not isinstance(condition, BoolExpr):
        raise LoadError(f"a guard says {condition}, which no input satisfies, or is no condition")
    return Guard(condition, kind, where, asked_by, reason)
