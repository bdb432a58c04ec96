"""A program as a notebook shows it, and several of them."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from lostwax.ir.data import Program
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.signature import InputKind, OutputKind
from lostwax.ir.text import count_operators, count_text, graph_text, type_text

Chain = tuple[str, ...]
"""The paths of the modules around a node, the outermost first."""
Rows = Sequence[Sequence[str]]


def program_html(program: Program) -> str:
    """What a notebook shows: inputs and outputs, and folded in the state, the sizes that vary, the
    modules and the graph."""
    calls = count_operators(program).total()
    title = f"<b>ExportedProgram</b> {_badge(program.dialect)} {count_text(calls, 'operator')}"
    return _frame(f"<header>{title}</header>{_body_html(program)}")


def methods_html(
    title: str,
    facts: Sequence[str],
    programs: Mapping[str, Program],
    constants: Mapping[str, object],
) -> str:
    """What a notebook shows of programs that are the methods of one file."""
    badges = " ".join(map(_badge, facts))
    methods = [
        _fold(f"<code>{html.escape(name)}</code>", _body_html(each), is_open=len(programs) == 1)
        for name, each in programs.items()
    ]
    values = [(name, repr(value)) for name, value in constants.items()]
    methods += [_fold("Methods that return a constant", _table(values))] if values else []
    return _frame(f"<header><b>{title}</b> {badges}</header>{''.join(methods)}")


def _body_html(program: Program) -> str:
    signature = program.graph_signature
    types = {n.name: type_text(n.meta.get("val")) for n in program.graph.nodes}
    given, state = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for spec in signature.input_specs:
        name = spec.arg.name or ""
        if spec.kind is InputKind.USER_INPUT:
            given.append((name, types.get(name, "")))
        else:
            kind = spec.kind.name.lower().replace("_", " ")
            state.append((spec.target or name, types.get(name, ""), kind))
    made = list[tuple[str, ...]]()
    for result in signature.output_specs:
        name = result.arg.name or repr(getattr(result.arg, "value", None))
        kind = result.kind.name.lower().replace("_", " ")
        note = "" if result.kind is OutputKind.USER_OUTPUT else f"{kind} {result.target or ''}"
        made.append((name, types.get(name, ""), note))
    limits = limits_by_name(program.range_constraints).items()
    sizes = [(n, _range_text(lo, hi)) for n, (lo, hi) in limits]
    return "".join(
        (
            _fold(count_text(len(given), "input"), _table(given), is_open=True),
            _fold(count_text(len(made), "output"), _table(made), is_open=True),
            _fold(count_text(len(sizes), "varying size"), _table(sizes)) if sizes else "",
            _fold(_describe_state(program, len(state)), _table(state)) if state else "",
            _fold("Modules", _modules_html(program)),
            _fold("Graph", show_code(graph_text(program.graph))),
        )
    )


def _describe_state(program: Program, count: int) -> str:
    """`2 parameters and buffers, 1.2 MB`."""
    held = (*program.state_dict.values(), *program.constants.values())
    size = sum(t.numel() * t.itemsize for t in held if isinstance(t, torch.Tensor))
    return f"{count_text(count, 'parameter')}, buffers and constants, {size / 1e6:,.1f} MB"


def _range_text(lo: int | None, hi: int | None) -> str:
    return f"{'any' if lo is None else lo} to {'any' if hi is None else hi}"


def show_code(text: str) -> str:
    """Text as it is. Notebooks would show it in the font of prose, and break its lines."""
    return f"<pre style='{_CODE}'>{html.escape(text)}</pre>"


_CODE = "font-family:monospace; font-size:12px; line-height:1.4; white-space:pre; overflow-x:auto"


_STYLE = """<style>
.lostwax{font:13px/1.5 system-ui,sans-serif;border:1px solid #8886;border-radius:6px;max-width:72em}
.lostwax header{padding:6px 12px;background:#8881;border-bottom:1px solid #8884}
.lostwax details{padding:2px 12px}
.lostwax summary{cursor:pointer;font-weight:600}
.lostwax .badge{border:1px solid #8888;border-radius:9px;padding:0 7px;font-size:11px}
.lostwax table{border-collapse:collapse;margin:2px 0 6px 1em}
.lostwax td{text-align:left;padding:1px 14px 1px 0;font-family:monospace;font-size:12px}
</style>"""
"""Colours that are half transparent fit light pages and dark ones."""


def _frame(content: str) -> str:
    return f"{_STYLE}<div class='lostwax'>{content}</div>"


def _badge(text: str) -> str:
    return f"<span class='badge'>{html.escape(text)}</span>"


def _modules_html(program: Program) -> str:
    """The modules as a tree, each with the number of operators in it."""
    inside: Counter[Chain] = Counter()
    kinds: dict[Chain, str] = {}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        chain: Chain = ()
        for path, kind in (node.meta.get("nn_module_stack") or {"": ("", "")}).values():
            chain = (*chain, path)
            inside[chain] += 1
            kinds[chain] = kind if isinstance(kind, str) else kind.__qualname__
    return "".join(_module_html(c, inside, kinds) for c in inside if len(c) == 1)


def _module_html(chain: Chain, inside: Counter[Chain], kinds: dict[Chain, str]) -> str:
    kind = html.escape(kinds[chain].rpartition(".")[2])
    title = f"{html.escape(chain[-1])} <i>{kind}</i> ({inside[chain]})"
    below = [c for c in inside if c[:-1] == chain]
    if not below:
        return f"<div style='padding-left:1em'>{title}</div>"
    opened = " open" if len(chain) == 1 else ""
    return (
        f"<details{opened} style='padding-left:1em'><summary>{title}</summary>"
        f"{''.join(_module_html(c, inside, kinds) for c in below)}</details>"
    )


def _fold(title: str, content: str, is_open: bool = False) -> str:
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{title}</summary>{content}</details>"


def _table(rows: Rows) -> str:
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
