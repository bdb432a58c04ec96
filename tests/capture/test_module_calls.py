"""`preserve_module_call_signature`: how submodules are called stays known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from lostwax import ConstantArgument, TensorArgument, export
from lostwax.errors import UnknownModuleError


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, pair: Any, *, scale: Any = None) -> dict[str, Any]:
        return {"a": self.lin(pair[0]) * scale, "same": pair[1]}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.layers = nn.ModuleList([nn.ReLU(), nn.Linear(3, 3)])
        self.unused = nn.Linear(2, 2)
        self.again = self.inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.inner((x, x + 1), scale=3)["a"]
        same = self.again([a, None], scale=4)["a"]
        return self.layers[1](self.layers[0](same)).view(-1)


X = torch.randn(2, 3)


def entries(program: Any) -> dict[str, Any]:
    return {e.fqn: e.signature for e in program.module_call_graph}


def test_every_module_has_an_entry_in_torchs_order() -> None:
    program = export(Outer(), (X,))
    peer = torch.export.export(Outer(), (X,))
    ours = [e.fqn for e in program.module_call_graph]
    assert ours == [e.fqn for e in peer.module_call_graph]
    assert [e.fqn for e in program.module_call_graph if e.signature] == [""]


@pytest.fixture(scope="module")
def program() -> Any:
    return export(Outer(), (X,), preserve_module_call_signature=("inner", "layers.1"))


def test_a_signature_names_the_nodes_of_a_call(program: Any) -> None:
    found = entries(program)
    first = found["inner"]
    call = (((X, X),), {"scale": 3})
    assert first.in_spec == pytree.tree_structure(call)
    assert first.out_spec == pytree.tree_structure({"a": X, "same": X})
    x, plus, scale = first.inputs
    assert (x, scale) == (TensorArgument("x"), ConstantArgument("", 3))
    assert [a.name for a in first.outputs] == ["mul", plus.name]
    assert first.forward_arg_names == ["pair", "scale"]
    (given,), (result,) = found["layers.1"].inputs, found["layers.1"].outputs
    assert (given.name, result.name) == ("relu", "addmm_2")
    assert found["layers.0"] is None
    program.validate()


def test_later_calls_are_numbered_and_may_differ(program: Any) -> None:
    assert [e.fqn for e in program.module_call_graph][-1] == "inner@1"
    second = entries(program)["inner@1"]
    assert second.in_spec == pytree.tree_structure((([X, None],), {"scale": 4}))
    assert second.inputs[1:] == [ConstantArgument("", None), ConstantArgument("", 4)]
    assert second.inputs[0].name == entries(program)["inner"].outputs[0].name
    assert second.outputs[1] == ConstantArgument("", None)


def test_the_peer_has_the_same_signature() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.inner((x, x), scale=3)["a"]
            return self.inner((a, x), scale=3)["a"]

    ours = entries(export(Net(), (X,), preserve_module_call_signature=("inner",)))
    peer = torch.export.export(Net(), (X,), preserve_module_call_signature=("inner",))
    for entry in peer.module_call_graph[1:]:
        mine = ours[entry.fqn]
        assert (mine is None) == (entry.signature is None)
        if entry.signature is not None:
            assert mine.in_spec == entry.signature.in_spec
            assert mine.out_spec == entry.signature.out_spec
            assert [type(a).__name__ for a in (*mine.inputs, *mine.outputs)] == [
                type(a).__name__ for a in (*entry.signature.inputs, *entry.signature.outputs)
            ]


def test_a_shared_module_goes_by_its_first_name() -> None:
    found = entries(export(Outer(), (X,), preserve_module_call_signature=("again",)))
    assert found["inner"] is not None
    assert found["inner@1"] is not None


def test_results_that_nobody_reads_and_values_before_a_write_stay() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.sin(), x.topk(1)[1]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = Both()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            a, _ = self.both(y)
            a.add_(1)
            y.mul_(2)
            return a + y

    program = export(Net(), (X,), preserve_module_call_signature=("both",))
    found = entries(program)["both"]
    targets = {n.name: str(n.target) for n in program.graph.nodes}
    assert [targets[a.name] for a in found.inputs] == ["aten.add.Tensor"]
    assert targets[found.outputs[0].name] == "aten.sin.default"
    assert "getitem" in targets[found.outputs[1].name]
    torch.testing.assert_close(program.module()(X), Net()(X))


def test_an_unknown_path_is_refused_with_the_closest() -> None:
    with pytest.raises(UnknownModuleError, match=r"no submodule 'layer\.1'; did you mean 'layers"):
        export(Outer(), (X,), preserve_module_call_signature=("layer.1",))
    with pytest.raises(
        UnknownModuleError, match=r"no submodule 'zzz'; it has 'inner', 'inner\.lin"
    ):
        export(Outer(), (X,), preserve_module_call_signature=("zzz",))


def test_arguments_must_be_pytrees() -> None:
    class Odd:
        pass

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (self.inner(Odd()) is not None)

    export(Net(), (X,))
    with pytest.raises(TypeError, match=r"in a call of inner, .* is of type"):
        export(Net(), (X,), preserve_module_call_signature=("inner",))
