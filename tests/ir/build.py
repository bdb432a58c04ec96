"""Small programs by hand, without capture: a graph written line by line, values from fakes.

b = Builder()
w = b.parameter("linear.weight", nn.Parameter(torch.ones(3)))
x = b.input("x", torch.zeros(2, 3))
y = b.call(aten.mul.Tensor, x, w)
program = b.program({"y": y})
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree

from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from lostwax.sym import ShapeEnv

STACK = '  File "/home/me/model.py", line 12, in forward\n    y = x + 1\n'


class Builder:
    """State first, then inputs, then calls: the order in which they are written is the graph's."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.graph = fx.Graph()
        self.inputs: list[InputSpec] = []
        self.writes: list[OutputSpec] = []
        self.written: list[Any] = []
        self.state: dict[str, torch.Tensor] = {}
        self.constants: dict[str, Any] = {}
        self.stack = STACK
        self.root = torch.nn.Module()
        """Holds sub-graphs: what `get_attr` nodes read."""

    # ---- inputs

    def parameter(self, name: str, value: torch.Tensor) -> fx.Node:
        self.state[name] = value
        return self._lifted("p", InputKind.PARAMETER, name, value)

    def buffer(self, name: str, value: torch.Tensor, persistent: bool = True) -> fx.Node:
        (self.state if persistent else self.constants)[name] = value
        return self._lifted("b", InputKind.BUFFER, name, value, persistent)

    def constant(self, name: str, value: torch.Tensor) -> fx.Node:
        self.constants[name] = value
        return self._lifted("c", InputKind.CONSTANT_TENSOR, name, value)

    def _lifted(
        self, letter: str, kind: InputKind, name: str, value: Any, persistent: bool | None = None
    ) -> fx.Node:
        node = self.graph.placeholder(f"{letter}_{name.replace('.', '_')}")
        node.meta["val"] = self.mode.from_tensor(value.detach(), static_shapes=True)
        self.inputs.append(InputSpec(kind, TensorArgument(node.name), name, persistent))
        return node

    def input(self, name: str, value: Any, sizes: tuple[Any, ...] | None = None) -> fx.Node:
        """A leaf of the user's arguments; `sizes` makes it dynamic."""
        node = self.graph.placeholder(name)
        if isinstance(value, torch.Tensor):
            static = sizes is None
            value = self.mode.from_tensor(value, static_shapes=static, sizes=sizes)
        node.meta["val"] = value
        arg: Any = ConstantArgument(node.name, value)
        if isinstance(value, torch.Tensor):
            arg = TensorArgument(node.name)
        elif isinstance(value, torch.SymInt):
            arg = SymIntArgument(node.name)
        self.inputs.append(InputSpec(InputKind.USER_INPUT, arg, None))
        return node

    # ---- calls

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        values, named = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode:
            value = target(*values, **named)
        node.meta.update(
            val=_pytree.tree_map_only(FakeTensor, FakeTensor.snapshot, value),
            stack_trace=self.stack,
            nn_module_stack={},
            source_fn_stack=[],
        )
        return node

    def item(self, node: fx.Node, index: int) -> fx.Node:
        return self.call(operator.getitem, node, index)

    # ---- outputs

    def write(self, source: fx.Node, value: fx.Node) -> None:
        """`value` is written to what the placeholder `source` stands for."""
        spec = next(s for s in self.inputs if s.arg.name == source.name)
        kind = {
            InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
            InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
            InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
        }[spec.kind]
        target = source.name if spec.kind is InputKind.USER_INPUT else spec.target
        self.writes.append(OutputSpec(kind, TensorArgument(value.name), target))
        self.written.append(value)

    def program(
        self,
        result: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        names: list[str] | None = None,
        ranges: dict[Any, Any] | None = None,
    ) -> ExportedProgram:
        """`result`, `args` and `kwargs` are structures whose leaves stand for the outputs and the
        inputs, in their order; without `args` each input is an argument of its own."""
        users = [s.arg for s in self.inputs if s.kind is InputKind.USER_INPUT]
        if args is None and kwargs is None:
            args, names = tuple(a.name for a in users), [a.name for a in users]
        in_spec = _pytree.tree_structure((args or (), kwargs or {}))
        leaves, out_spec = _pytree.tree_flatten(result)
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, _output(leaf), None) for leaf in leaves]
        self.graph.output((*self.written, *leaves))
        root = ModuleCallSignature([], [], in_spec, out_spec, names)
        return ExportedProgram(
            fx.GraphModule(self.root, self.graph),
            ExportGraphSignature(self.inputs, [*self.writes, *outputs]),
            self.state,
            self.constants,
            ranges or {},
            [ModuleCallEntry("", root)],
            guards=tuple(self.env.minimal_guards()),
        )


def _output(leaf: Any) -> Any:
    if not isinstance(leaf, fx.Node):
        return ConstantArgument("", leaf)
    if isinstance(leaf.meta["val"], torch.SymInt):
        return SymIntArgument(leaf.name)
    return TensorArgument(leaf.name)
