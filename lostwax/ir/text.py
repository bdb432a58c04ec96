"""A program as text: the graph as Python with typed values and source comments, the signature, the
ranges. Deterministic: no addresses; paths are relative to the working directory.

For people, not for machines: nothing parses it. Must not change what it prints.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node

from lostwax.classes import SYMBOLIC
from lostwax.fake import FakeTensor
from lostwax.ir.data import Program
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.ir.graph.lookup import all_nodes, find_attribute
from lostwax.ir.ranges import RangeConstraints
from lostwax.ir.signature import InputKind, OutputKind
from lostwax.location import shorten_path, show_path
from lostwax.sym import current

_FRAME = re.compile(r'File "([^"]*)", line (\d+), in ([^\n]*)(?:\n[ \t]+([^\n]*))?')
_DTYPE = re.compile(r"(bfloat|float|uint|int|complex|bits)(\d+)(?:_(\w+))?")
_SHORT = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c", "bits": "bits"}

# Arithmetic on sizes, as Python writes it.
_INFIX = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.truediv: "/",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "&",
    operator.or_: "|",
}


# ------------------------------------------------------------------------------------------- values


def dtype_text(dtype: torch.dtype) -> str:
    """`torch.float32` → "f32", `torch.bool` → "b8"."""
    name = str(dtype).removeprefix("torch.")
    if name == "bool":
        return "b8"
    match = _DTYPE.fullmatch(name)
    if match is None:
        return name
    return _SHORT[match[1]] + match[2] + (match[3] or "")


def type_text(value: Any) -> str:
    """The type of a value: "f32[2, batch]" for a tensor, "Sym(batch + 1)" for a number, else ""."""
    if isinstance(value, torch.Tensor):
        size = map(current, value.fake_type.size) if isinstance(value, FakeTensor) else value.shape
        return f"{dtype_text(value.dtype)}[{', '.join(map(str, size))}]"
    if isinstance(value, SYMBOLIC):
        return f"Sym({value})"
    return ""


def value_text(value: Any) -> str:
    """The type of what a node computes, which may be several values: "(f32[2], i64[2])"."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(value_text, value))})"
    return type_text(value)


# -------------------------------------------------------------------------------------------- nodes


def target_text(target: Any) -> str:
    """How Python would name the function that a node calls."""
    if isinstance(target, OpOverload):
        return f"torch.ops.{target}"
    if isinstance(target, HigherOrderOperator):
        return f"torch.ops.{target.namespace}.{target.name()}"
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", None) or type(target).__name__
    return f"{module.lstrip('_')}.{name}" if module and module != "builtins" else name


def argument_text(value: Any) -> str:
    """An argument of a call as Python: nodes by name, operators by their path."""
    if isinstance(value, Node):
        return value.name
    if isinstance(value, tuple):
        items = ", ".join(map(argument_text, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, list):
        return f"[{', '.join(map(argument_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {argument_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return f"slice({', '.join(map(argument_text, parts))})"
    if isinstance(value, (OpOverload, HigherOrderOperator)):
        return target_text(value)
    if isinstance(value, torch.device):
        return f"device({str(value)!r})"
    return repr(value)


def call_text(node: Node) -> str:
    """The right side of a call_function node's line."""
    args = [argument_text(a) for a in node.args]
    if node.target is operator.getitem and len(args) == 2:
        return f"{args[0]}[{args[1]}]"
    if node.target in _INFIX and len(args) == 2 and not node.kwargs:
        return f"{args[0]} {_INFIX[node.target]} {args[1]}"
    args += [f"{name}={argument_text(a)}" for name, a in node.kwargs.items()]
    called = path_text(str(node.target)) if node.op == "call_module" else target_text(node.target)
    return f"{called}({', '.join(args)})"


def path_text(path: str) -> str:
    """The path of a part of the module as Python: `self.layers[0].weight`."""
    return "self" + "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in path.split("."))


def source_text(node: Node) -> str:
    """`model.py:12 in forward, code: x = x + 1`: the innermost line of the user; "" if
    unknown."""
    frame = _find_innermost(str(node.meta.get("stack_trace") or ""))
    if frame is None:
        return ""
    file, line, function, code = frame
    place = f"{show_path(file)}:{line} in {function}"
    return f"{place}, code: {code}" if code else place


def shorten_trace(trace: str) -> str:
    """The innermost line of the user in a stack trace, as a trace, without the names of this
    machine's folders; "" if there is none."""
    frame = _find_innermost(trace)
    if frame is None:
        return ""
    file, line, function, code = frame
    return f'  File "{shorten_path(file)}", line {line}, in {function}\n    {code}\n'


def _find_innermost(trace: str) -> tuple[str, str, str, str] | None:
    """File, line, function and code of the innermost frame that is not torch's."""
    frames = list_frames(trace)
    return frames[-1] if frames else None


def list_frames(trace: str) -> list[tuple[str, str, str, str]]:
    """File, line, function and code of each frame of a stack trace, the innermost last, without
    those of torch, unless there are no others."""
    frames = _FRAME.findall(trace)
    users = [f for f in frames if "/site-packages/torch/" not in f[0]]
    return [(f[0], f[1], f[2].strip(), f[3].strip()) for f in users or frames]


def source_place(node: Node) -> str:
    """The user's line; if only torch's code is known, the module."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    module = "the module {!r}, {}".format(*modules[-1]) if modules else f"the node {node.name!r}"
    return source_text(node) or module


def _typed_name(node: Node) -> str:
    text = type_text(node.meta.get("val"))
    return f'{node.name}: "{text}"' if text else node.name


# ------------------------------------------------------------------------------------------- graphs


def graph_text(graph: Graph, name: str = "GraphModule") -> str:
    """A graph as the Python class that it is equivalent to; sub-graphs follow as nested classes."""
    inputs = [_typed_name(n) for n in graph.nodes if n.op == "placeholder"]
    lines = [
        f"class {name}(torch.nn.Module):",
        f"    def forward({', '.join(['self', *inputs])}):",
        *(f"        {line}" if line else "" for line in _body(graph)),
    ]
    for child_name, child in _children(graph):
        lines.append("")
        if isinstance(child, LoweredBackendModule):
            lines.append(f"    # {child.extra_repr()}")
        lines += [f"    {s}" if s else "" for s in graph_text(child.graph, child_name).split("\n")]
    return "\n".join(lines)


def _body(graph: Graph) -> Iterator[str]:
    source = first = ""
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            yield f"return {argument_text(node.args[0])}"
            continue
        here = source_text(node)
        if here != source and node.op == "call_function":
            if first:
                yield ""
            yield f"# File: {here}" if here else "# (no source line)"
            source = here
        first = node.name
        if node.op == "get_attr":
            yield f"{_typed_name(node)} = {path_text(str(node.target))}"
        else:
            yield f"{_typed_name(node)} = {call_text(node)}"


def _children(graph: Graph) -> Iterator[tuple[str, GraphModule | LoweredBackendModule]]:
    for path in dict.fromkeys(str(n.target) for n in graph.nodes if n.op == "get_attr"):
        child = find_attribute(graph.owning_module, path)
        if isinstance(child, (GraphModule, LoweredBackendModule)):
            yield path.replace(".", "_"), child


# ----------------------------------------------------------------------------------------- programs


def program_text(program: Program) -> str:
    """What `print(program)` shows."""
    body = "\n".join(
        [
            graph_text(program.graph),
            "",
            f"Graph signature: {program.graph_signature}",
            f"Range constraints: {ranges_text(program)}",
            *_list_shards(program),
        ]
    )
    return "ExportedProgram:\n" + "\n".join(f"    {s}" if s else "" for s in body.split("\n"))


def _list_shards(program: Program) -> Iterator[str]:
    """The table of placements, if tensors are cut."""
    sharding = None if program.settings is None else program.settings.sharding
    if sharding is None:
        return
    specs = program.graph_signature.input_specs
    names = [s.arg.name for s in specs if s.kind is InputKind.USER_INPUT]
    yield "Shards:"
    for i, mesh in enumerate(sharding.meshes):
        dims = zip(mesh.names or ("",) * len(mesh.shape), mesh.shape, strict=True)
        shape = ", ".join(f"{name}={size}" if name else str(size) for name, size in dims)
        yield f"    mesh {i}: {mesh.device} ({shape}), this rank at {mesh.coordinate}"
    rows = [*sharding.state, *((names[i], each) for i, each in sharding.inputs)]
    rows += [(f"result {i}", each) for i, each in sharding.results]
    for name, layout in rows:
        size = "" if layout.size is None else f" of {layout.size}"
        yield f"    {name}: [{', '.join(layout.placements)}]{size} on mesh {layout.mesh}"


def summary_text(program: Program) -> str:
    """What `repr(program)` is, in one line: how many operators, what goes in and comes out."""
    signature = program.graph_signature
    values = {n.name: value_text(n.meta.get("val")) for n in program.graph.nodes}
    of_user = [s.arg for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    given = [f"{a.name}: {values.get(a.name) or '?'}" for a in of_user]
    results = [s.arg for s in signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    made = [values.get(a.name) or repr(getattr(a, "value", None)) for a in results]
    calls = count_operators(program).total()
    return (
        f"<ExportedProgram ({program.dialect}) of {count_text(calls, 'operator')}: "
        f"({_list_few(given)}) → {_list_few(made)}>"
    )


def count_operators(program: Program) -> Counter[str]:
    """How often each operator is called, in the bodies of control flow, too. To take a result out
    of several is no call."""
    calls = (n for n in all_nodes(program.graph_module) if n.op == "call_function")
    nodes = (n for n in calls if n.target is not operator.getitem)
    return Counter(dict(Counter(target_text(n.target) for n in nodes).most_common()))


def count_text(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _list_few(texts: list[str]) -> str:
    rest = len(texts) - _FEW
    return ", ".join([*texts[:_FEW], *([f"… {rest} more"] if rest > 0 else [])]) or "nothing"


_FEW = 4


def ranges_text(program: Program) -> str:
    """The ranges by name. If they are our own, sympy is not loaded."""
    if isinstance(program.range_constraints, RangeConstraints):
        return repr(program.range_constraints)
    items = (f"{symbol}: {limits}" for symbol, limits in program.range_constraints.items())
    return f"{{{', '.join(items)}}}"
