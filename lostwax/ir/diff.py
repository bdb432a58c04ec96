"""`diff`: finds what has changed between two programs, for people and for tests; `find_change`: the
first change, for those who ask whether two captures gave the same program.

Nodes are compared by name and by what they compute, values by type, weights by a hash of their
bytes. The result is data that prints as a text. Must not change either program.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import chain, zip_longest
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lostwax.fake import FakeTensor
from lostwax.ir.graph.delegate import find_delegates
from lostwax.ir.graph.lookup import subgraphs
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.signature import InputSpec
from lostwax.ir.text import argument_text, call_text, source_place, type_text
from lostwax.sym import Expr, ShapeEnv, show


@dataclass(frozen=True)
class Change:
    """One difference. `kind` says what changed; `old` is empty if it is new, `new` if it is
    gone."""

    kind: str
    name: str
    old: str
    new: str
    where: str = field(default="", compare=False)
    """The user's line, where `find_change` knows it."""
    numbers_alone: bool = field(default=False, compare=False)
    """Is it a tensor of the same type with other numbers? Then its texts differ by a hash."""

    def __str__(self) -> str:
        if self.name in (self.old, self.new):  # a guard has no other name
            return f"{'-' if self.old else '+'} {self.kind} {self.name}"
        if not self.old:
            return f"+ {self.kind} {self.name}: {self.new}"
        if not self.new:
            return f"- {self.kind} {self.name}: {self.old}"
        return f"~ {self.kind} {self.name}: {self.old} → {self.new}"

    def between_runs(self) -> str:
        """The change between two runs of one call in words, with its line."""
        old, new = self.old or "nothing", self.new or "nothing"
        where = f"\n  at {self.where}" if self.where else ""
        return f"{self.kind} {self.name}: {old} in the first run, {new} in the second{where}"


@dataclass(frozen=True)
class ProgramDiff:
    """All changes, in the order of the programs; empty if the programs are the same."""

    changes: tuple[Change, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def of(self, kind: str) -> list[Change]:
        """The changes of one kind: "node", "input", "output", "range", "guard", "weight", ..."""
        return [c for c in self.changes if c.kind == kind]

    def lines(self) -> list[str]:
        """The text of each change, in order. Tensors of which only the numbers differ share a line
        for each kind, where the first of them is."""
        alone: dict[str, list[str]] = {}
        for each in self.changes:
            if each.numbers_alone:
                alone.setdefault(each.kind, []).append(each.name)
        shared = {k: _share_line(k, names) for k, names in alone.items() if len(names) > 1}
        lines = (shared.get(c.kind, str(c)) if c.numbers_alone else str(c) for c in self.changes)
        return list(dict.fromkeys(lines))

    def __str__(self) -> str:
        return "\n".join(self.lines()) or "no differences"


_MOST_NAMES = 3


def _share_line(kind: str, names: list[str]) -> str:
    more = ", …" if len(names) > _MOST_NAMES else ""
    return f"~ {len(names)} {kind}s have other values: {', '.join(names[:_MOST_NAMES])}{more}"


def diff(a: ExportedProgram, b: ExportedProgram) -> ProgramDiff:
    """Return what differs in `b` from `a`: nodes, shapes, constraints, signature, weights.

    Weights are compared by a hash of their values. Where nodes come from (source lines, modules)
    is not compared.
    """
    for program in (a, b):
        check_is_program(program, "diff")
    with _call_dims_alike(a, b):
        return ProgramDiff(
            (
                *_table("dialect", {"": a.dialect}, {"": b.dialect}),
                *_table("input", _inputs(a), _inputs(b)),
                *_compare(a, b, _graphs),
                *_weights("weight", a.state_dict, b.state_dict),
            )
        )


@contextlib.contextmanager
def _call_dims_alike(*programs: ExportedProgram) -> Iterator[None]:
    """While it lasts, texts call the sizes of both programs by their order, `s0`, unless both have
    the same names for them: a dim that is called otherwise computes nothing else."""
    envs = [env for p in programs if (env := _find_env(p)) is not None]
    names = [{symbol.name for symbol in env.symbols} for env in envs]
    if len(names) < 2 or names[0] <= names[1] or names[1] <= names[0]:
        yield
        return
    with _naming:
        before = [env.show for env in envs]
        for env in envs:
            by_order = {symbol: f"s{i}" for i, symbol in enumerate(env.symbols)}
            env.show = functools.partial(show, names=by_order)
        try:
            yield
        finally:
            for env, old in zip(envs, before, strict=True):
                env.show = old


_naming = threading.RLock()
"""Of two threads that show one program, the second would put back what the first has set."""


def _find_env(program: ExportedProgram) -> ShapeEnv | None:
    """The environment of a program's sizes; None if none varies."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            for size in value.fake_type.size:
                if isinstance(size, Expr):
                    return size.env
    return None


def find_change(a: ExportedProgram, b: ExportedProgram) -> Change | None:
    """The first change between two programs that were captured from one module; None if they are
    the same. Nodes are compared in pairs; types follow from what they compute."""
    given = _table("input", *({s.arg.name: _describe(s) for s in _specs(p)} for p in (a, b)))
    change = next(chain(given, _compare(a, b, _pairs)), None)
    if change is not None and change.kind == "constant":
        inputs = zip(a.graph.nodes, a.graph_signature.input_specs, strict=False)
        readers = [node for n, s in inputs if s.target == change.name for node in n.users]
        return replace(change, where=source_place(readers[0]) if readers else "")
    return change


Graphs = Callable[[GraphModule, GraphModule, str], Iterator[Change]]


def _compare(a: ExportedProgram, b: ExportedProgram, compare: Graphs) -> Iterator[Change]:
    """All but inputs, whose types follow from the call, and weights, which programs of one module
    share."""
    yield from compare(a.graph_module, b.graph_module, "")
    yield from _table("output", _outputs(a), _outputs(b))
    yield from _table("structure", _structure(a), _structure(b))
    yield from _table("range", _ranges(a), _ranges(b))
    yield from _table("guard", _guards(a), _guards(b))
    yield from _weights("constant", a.constants, b.constants)


def _table(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name, text in old.items():
        if new.get(name, "") != text:
            yield Change(kind, name, text, new.get(name, ""))
    for name, text in new.items():
        if name not in old:
            yield Change(kind, name, "", text)


# ------------------------------------------------------------------------------------------- graphs


def _graphs(a: GraphModule, b: GraphModule, path: str) -> Iterator[Change]:
    yield from _nodes(_lines(a.graph, path), _lines(b.graph, path))
    mine, others = dict(subgraphs(a)), dict(subgraphs(b))
    for name, child in mine.items():
        if name in others:
            yield from _graphs(child, others[name], f"{path}{name}.")
        else:
            yield Change("graph", f"{path}{name}", f"{len(child.graph.nodes)} nodes", "")
    for name, child in others.items():
        if name not in mine:
            yield Change("graph", f"{path}{name}", "", f"{len(child.graph.nodes)} nodes")
    yield from _table("delegate", _delegates(a, path), _delegates(b, path))


def _pairs(a: GraphModule, b: GraphModule, path: str) -> Iterator[Change]:
    """Yield the first two nodes in one place that are not the same, also of the graphs inside."""
    for one, other in zip_longest(a.graph.nodes, b.graph.nodes):
        if one is not None and other is not None and _is_same_call(one, other):
            continue  # nearly always
        lines = [("", "") if n is None else (n.name, _call(n)) for n in (one, other)]
        if lines[0] != lines[1]:
            node = other if one is None or one.op == "output" else one
            yield Change("node", path + node.name, lines[0][1], lines[1][1], source_place(node))
            return
    inner = dict(subgraphs(b))
    for name, graph in subgraphs(a):
        yield from _pairs(graph, inner[name], f"{path}{name}.")


def _is_same_call(one: Node, other: Node) -> bool:
    """Is the one node surely as the other? (Texts are slower to make.)"""
    return (
        one.name == other.name
        and (one.target is other.target or one.target == other.target)
        and repr(one.args) == repr(other.args)
        and repr(one.kwargs) == repr(other.kwargs)
    )


def _delegates(module: GraphModule, path: str) -> dict[str, str]:
    """Each delegate of a graph: its backend, and a hash of its payload and settings."""
    found = {}
    for node, delegate in find_delegates(module.graph):
        settings = ((spec.key, spec.value) for spec in delegate.compile_specs)
        data = delegate.processed_bytes + repr([*settings, *delegate.named_data]).encode()
        text = f"{delegate.extra_repr()}, {hashlib.blake2b(data, digest_size=6).hexdigest()}"
        found[f"{path}{node.args[0]}"] = text
    return found


def _lines(graph: Graph, path: str) -> list[tuple[str, str]]:
    """The name and text of each call, and of the output."""
    return [(path + n.name, _text(n)) for n in graph.nodes if n.op in ("call_function", "output")]


def _text(node: Node) -> str:
    value = "" if node.op == "output" else _types(node.meta.get("val"))
    return f"{_call(node)}: {value}" if value else _call(node)


def _call(node: Node) -> str:
    return argument_text(node.args[0]) if node.op == "output" else call_text(node)


def _types(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_types, value))})"
    text = type_text(value)
    if isinstance(value, FakeTensor) and not value.fake_type.is_contiguous:
        text += f" stride ({', '.join(map(str, value.fake_type.stride))})"
    return text


def _nodes(old: list[tuple[str, str]], new: list[tuple[str, str]]) -> Iterator[Change]:
    """Yield, in the order of the graphs, the nodes that went, that came, and that have the same
    name but compute something else."""
    before, after = dict(old), dict(new)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for tag, start, stop, other_start, other_stop in matcher.get_opcodes():
        if tag == "equal":
            continue
        for name, text in old[start:stop]:
            if after.get(name) != text:
                yield Change("node", name, text, after.get(name, ""))
        for name, text in new[other_start:other_stop]:
            if name not in before:
                yield Change("node", name, "", text)


# ----------------------------------------------------------------------------------- what is around


def _inputs(program: ExportedProgram) -> dict[str, str]:
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    return {
        spec.arg.name: f"{_describe(spec)} {_value(values.get(spec.arg.name))}".strip()
        for spec in _specs(program)
    }


def _specs(program: ExportedProgram) -> list[InputSpec]:
    return program.graph_signature.input_specs


def _describe(spec: InputSpec) -> str:
    return f"{spec.kind.name} {spec.target}" if spec.target else spec.kind.name


def _value(value: Any) -> str:
    return _types(value) or repr(value)


def _outputs(program: ExportedProgram) -> dict[str, str]:
    found = {}
    for i, spec in enumerate(program.graph_signature.output_specs):
        constant = getattr(spec.arg, "value", None)
        text = spec.arg.name or repr(constant)
        found[str(i)] = f"{spec.kind.name} {text}{f' to {spec.target}' if spec.target else ''}"
    return found


def _structure(program: ExportedProgram) -> dict[str, str]:
    found = {}
    for entry in program.module_call_graph:
        if entry.signature is not None:
            name = entry.fqn or "the call"
            found[f"{name}, arguments"] = str(entry.signature.in_spec)
            found[f"{name}, result"] = str(entry.signature.out_spec)
    return found


def _ranges(program: ExportedProgram) -> dict[str, str]:
    limits = limits_by_name(program.range_constraints).items()
    return {
        name: f"{'-∞' if lo is None else lo} to {'∞' if hi is None else hi}"
        for name, (lo, hi) in limits
    }


def _guards(program: ExportedProgram) -> dict[str, str]:
    return {str(guard.cond): str(guard.cond) for guard in program.guards}


# ------------------------------------------------------------------------------------------ weights


def _weights(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in (*old, *(n for n in new if n not in old)):
        a, b = old.get(name), new.get(name)
        if a is b:
            continue
        (type_, numbers), (other, other_numbers) = _weight_texts(a), _weight_texts(b)
        if (type_, numbers) != (other, other_numbers):
            texts = f"{type_} {numbers}".strip(), f"{other} {other_numbers}".strip()
            yield Change(kind, name, *texts, numbers_alone=type_ == other)


def _weight_texts(value: Any) -> tuple[str, str]:
    """The type of a weight, and its numbers: their hash, if they are several."""
    if value is None:
        return "", ""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__qualname__}", ""
    text = f"{type_text(value)}{' requires grad' if value.requires_grad else ''}"
    if isinstance(value, FakeTensor) or value.is_meta or value.layout is not torch.strided:
        return f"{text} without data", ""
    return text, _hash(value) if value.ndim else f"of {value.item()!r}"


def _hash(tensor: torch.Tensor) -> str:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    data: Any = plain.view(torch.uint8).numpy() if plain.numel() else b""
    return hashlib.blake2b(data, digest_size=6).hexdigest()
