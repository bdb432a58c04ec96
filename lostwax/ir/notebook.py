"""A program as a notebook shows it."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable

from lostwax.ir.data import Program
from lostwax.ir.text import call_dims_by_name, graph_text, ranges_text, type_text

Chain = tuple[str, ...]
"""The paths of the modules around a node, the outermost first."""


def program_html(program: Program) -> str:
    """What a notebook shows: counts, inputs and outputs as tables, the graph folded in."""
    with call_dims_by_name(program):
        return _write_html(program)


def _write_html(program: Program) -> str:
    signature = program.graph_signature
    inputs = [(s.arg.name, s.kind.name, s.target or "") for s in signature.input_specs]
    outputs = [(s.arg.name, s.kind.name, s.target or "") for s in signature.output_specs]
    calls = sum(1 for node in program.graph.nodes if node.op == "call_function")
    values = {n.name: type_text(n.meta.get("val")) for n in program.graph.nodes}
    return (
        f"<b>ExportedProgram</b> ({html.escape(program.dialect)}): {_count(calls, 'operator')}, "
        f"{_count(len(inputs), 'input')}, {_count(len(outputs), 'output')}"
        + _fold_html("Inputs", _html_table(inputs, values.get))
        + _fold_html("Outputs", _html_table(outputs, values.get))
        + _fold_html("Modules", _modules_html(program))
        + _fold_html("Graph", show_code(graph_text(program.graph)))
        + f"<div>Range constraints: {html.escape(ranges_text(program))}</div>"
    )


def show_code(text: str) -> str:
    """Text as it is. Notebooks would show it in the font of prose, and break its lines."""
    return f"<pre style='{_CODE}'>{html.escape(text)}</pre>"


_CODE = "font-family:monospace; font-size:12px; line-height:1.4; white-space:pre; overflow-x:auto"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


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


def _fold_html(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def _html_table(rows: list[tuple[str, str, str]], type_of: Callable[[str], str | None]) -> str:
    cells = ((name, kind, target, type_of(name) or "") for name, kind, target in rows)
    left = "<td style='text-align:left'>"
    lines = ("".join(f"{left}{html.escape(c)}</td>" for c in row) for row in cells)
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
