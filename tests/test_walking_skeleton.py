"""The thinnest path to capture: forty lines of recorder over `FakeTensorMode.evaluate` export a
two-layer MLP.

Not the tracer: it proves that the boundaries under it (evaluate, types, symbolic sizes) carry one,
and stays until the real one stands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.fallback import is_composite
from lostwax.ops.registry import operator
from lostwax.sym import ShapeEnv


class Recorder(FakeTensorMode):
    """Evaluates and records in one trip through Python."""

    def __init__(self, shape_env: ShapeEnv | None = None) -> None:
        super().__init__(shape_env=shape_env)
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}
        self.alive: list[Any] = []

    def input(self, name: str, tensor: torch.Tensor, **how: Any) -> FakeTensor:
        fake = self.from_tensor(tensor, **how)
        self._note(fake, self.graph.placeholder(name))
        return fake

    def _note(self, value: Any, node: fx.Node) -> None:
        node.meta["val"] = value
        self.nodes[id(value)] = node
        self.alive.append(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, *args, **(kwargs or {}))

    def call(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if operator(func).parts is not None or is_composite(func):
            return self.evaluate(func, args, kwargs)  # which calls its parts
        out = self.evaluate(func, args, kwargs)
        as_node = lambda a: self.nodes.get(id(a), a)  # noqa: E731
        self._note(out, self.graph.call_function(func, tuple(map(as_node, args)), kwargs))
        return out


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def export(module: nn.Module, x: torch.Tensor, env: ShapeEnv | None, **how: Any) -> fx.GraphModule:
    recorder = Recorder(env)
    state = {
        k: recorder.input(f"p_{k.replace('.', '_')}", v, static_shapes=True)
        for k, v in module.named_parameters()
    }
    fake = recorder.input("x", x, **how)
    with torch.no_grad(), recorder:
        out = torch.func.functional_call(module, state, (fake,))
    recorder.graph.output(recorder.nodes[id(out)])
    recorder.graph.lint()
    return fx.GraphModule({}, recorder.graph)


def test_static_mlp() -> None:
    module, x = MLP(), torch.randn(3, 4)
    program = export(module, x, None)
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert targets == [
        *("aten.t.default", "aten.addmm.default"),
        "aten.relu.default",
        *("aten.t.default", "aten.addmm.default"),
    ]
    torch.testing.assert_close(program(*module.parameters(), x), module(x))


def test_symbolic_mlp_holds_for_every_batch_and_guards_nothing() -> None:
    env = ShapeEnv()
    module = MLP()
    program = export(module, torch.randn(3, 4), env, sizes=None)
    x = next(n for n in program.graph.nodes if n.name == "x")
    out = list(program.graph.nodes)[-2].meta["val"]
    assert isinstance(out.shape[0], torch.SymInt)
    assert out.shape[0].node is x.meta["val"].shape[0].node
    assert [str(g.cond) for g in env.minimal_guards()] == ["s1 == 4"]
    for n in (0, 1, 5):
        torch.testing.assert_close(
            program(*module.parameters(), torch.ones(n, 4)), module(torch.ones(n, 4))
        )
