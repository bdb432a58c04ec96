"""Programs as torch's own, in memory: its consumers take them, and none is traced again."""

from __future__ import annotations

import io
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from examples.models import MODELS
from lostwax import export
from lostwax.interop import from_torch, to_torch
from tests.inductor import QUICKLY
from tests.pt2.compare import assert_identical, assert_runs_alike, assert_same
from tests.pt2.peer_programs import cases


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(6, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, y):
        h = torch.relu(self.l(x)) + y.sum()
        return {"h": h, "n": x.shape[0] * 2}


class Counting(Net):
    def forward(self, x, y):
        self.count += 1
        return torch.relu(self.l(x)) * self.count + y.sum()


ARGS = (torch.randn(3, 6), torch.randn(5))
DYNAMIC = {"x": {0: lostwax.Dim("b", min=2, max=64)}, "y": {0: lostwax.Dim.AUTO}}


@pytest.fixture(scope="module")
def program() -> Any:
    return lostwax.export(Net(), ARGS, dynamic_shapes=DYNAMIC)


def test_to_torch(program: Any) -> None:
    theirs = to_torch(program)
    assert isinstance(theirs, torch.export.ExportedProgram)
    theirs.validate()
    assert theirs.state_dict["l.weight"] is program.state_dict["l.weight"]
    for x in (ARGS[0], torch.randn(7, 6)):
        assert_runs_alike(program.module(), theirs.module(), (x, torch.randn(9)), {})
    with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|Expected input"):
        theirs.module()(torch.randn(65, 6), torch.randn(5))
    assert_same(theirs.example_inputs, program.example_inputs)


def test_there_and_back(program: Any) -> None:
    again = from_torch(to_torch(program))
    again.validate()
    assert str(again) == str(program)
    for name in ("cond", "trees", "symbolic", "item"):
        case = cases()[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = torch.export.export(
                case.module, case.args, case.kwargs, dynamic_shapes=case.dynamic
            )
        ours = from_torch(theirs)
        ours.validate()
        assert_runs_alike(ours.module(), theirs.module(), case.args, case.kwargs)
        assert_identical(from_torch(to_torch(ours)), ours)


def test_writes(program: Any) -> None:
    ours = lostwax.export(Counting(), ARGS)
    assert_runs_alike(ours.module(), to_torch(ours).module(), ARGS, {}, times=3)


def test_fake_weights() -> None:
    with lostwax.FakeTensorMode():
        module = Net()
    ours = lostwax.export(module, (torch.randn(3, 6), torch.randn(5)))
    theirs = to_torch(ours)
    weight = theirs.state_dict["l.weight"]
    assert isinstance(weight, torch._subclasses.FakeTensor)
    assert isinstance(weight, nn.Parameter)
    back = from_torch(theirs)
    assert isinstance(back.state_dict["l.weight"], lostwax.FakeTensor)


def test_values_are_lists_where_torchs_are() -> None:
    """Converters tell by it how many results an operator has: IREE refuses a tuple."""

    class Run(nn.Module):
        def forward(self, x):
            first = torch.cond(x.sum() > 0, lambda x: x.split(2)[0] * 2, lambda x: x[:2] + 1, (x,))
            return first, x.unbind(0)[1], x.split(4, 1)[0], torch.topk(x, 2)[0]

    def list_classes(program: Any) -> list[tuple[str, type]]:
        graphs = [part.graph for _, part in program.graph_module.named_modules()]
        nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
        values = [(str(node.target), type(node.meta["val"])) for node in nodes]
        return sorted({each for each in values if each[1] in (list, tuple)}, key=str)

    args = (torch.randn(4, 6),)
    found = list_classes(to_torch(lostwax.export(Run(), args)))
    assert found == list_classes(torch.export.export(Run(), args))
    assert {kind for _, kind in found} == {list, tuple}


def test_results_that_nobody_reads_are_not_taken() -> None:
    """Converters refuse statistics of `native_layer_norm` that they do not compute: coremltools."""
    norm, args = nn.LayerNorm(4), (torch.randn(2, 4),)
    ours = to_torch(lostwax.export(norm, args))
    theirs = torch.export.export(norm, args).run_decompositions()
    assert len(ours.graph.nodes) == len(theirs.graph.nodes)
    assert_same(ours.module()(*args), norm(*args))


def test_what_torch_cannot_save_is_taken() -> None:
    class Ceil(nn.Module):
        def forward(self, x):
            import math

            return x + 1, math.ceil(x.shape[0] / 4)

    theirs = torch.export.export(
        Ceil(), (torch.randn(9),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    ours = from_torch(theirs)
    ours.validate()
    for n in (9, 5, 4):
        assert_same(ours.module()(torch.ones(n)), Ceil()(torch.ones(n)))


# -------------------------------------------------------------------------------- torch's consumers
# onnx, onnxscript and executorch are in the extra `test`: without them these tests fail.


def test_save(program: Any) -> None:
    buffer = io.BytesIO()
    torch.export.save(to_torch(program), buffer)
    assert_runs_alike(
        torch.export.load(io.BytesIO(buffer.getvalue())).module(), program.module(), ARGS, {}
    )


def test_decompositions_and_unflatten(program: Any) -> None:
    core = to_torch(program).run_decompositions()
    assert_runs_alike(core.module(), program.module(), ARGS, {})
    nested = torch.export.unflatten(to_torch(program))
    assert isinstance(nested.l, nn.Module)
    assert_same(nested(*ARGS), program.module()(*ARGS))


@pytest.mark.filterwarnings("ignore")
def test_onnx_of_composites_is_that_of_torchs_programs() -> None:
    """Of operators that were taken apart more is left (twice as many `Reshape`)."""
    example = MODELS["vit"]
    model, inputs = example.tiny().eval(), example.tiny_inputs()

    def count_operators(program: Any) -> Counter[str]:
        made = torch.onnx.export(program, (), dynamo=True, verbose=False)
        assert made is not None
        return Counter(node.op_type for node in made.model.graph)

    ours = count_operators(to_torch(export(model, inputs, keep="composite")))
    assert ours == count_operators(torch.export.export(model, inputs))
    assert count_operators(to_torch(export(model, inputs)))["Reshape"] > ours["Reshape"]


@pytest.mark.filterwarnings("ignore")
def test_onnx() -> None:
    from onnx.reference import ReferenceEvaluator

    ours = lostwax.export(Counting(), ARGS)
    made = torch.onnx.export(to_torch(ours), dynamo=True, verbose=False)
    assert {"Gemm", "Relu"} <= {node.op_type for node in made.model.graph}
    x = torch.randn(3, 6)
    (found, *_) = ReferenceEvaluator(made.model_proto).run(
        None, {"x": x.numpy(), "y": ARGS[1].numpy()}
    )
    torch.testing.assert_close(torch.from_numpy(found), ours.module()(x, ARGS[1]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_aot_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(nn.Module):
        def forward(self, x):
            return torch.relu(x) + 1

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    ours = lostwax.export(Small(), (torch.randn(3),), dynamic_shapes=({0: lostwax.Dim.AUTO},))
    path = torch._inductor.aoti_compile_and_package(
        to_torch(ours), package_path=str(tmp_path / "small.pt2"), inductor_configs=QUICKLY
    )
    run = torch._inductor.aoti_load_package(path)
    x = torch.randn(9)
    torch.testing.assert_close(run(x), ours.module()(x))


@pytest.mark.filterwarnings("ignore")
def test_executorch() -> None:
    from executorch.exir import to_edge

    ours = lostwax.export(Counting(), ARGS)
    edge = to_edge(to_torch(ours))
    assert "edge" in str(edge.exported_program().graph)
    assert len(edge.to_executorch().buffer) > 1000


def test_programs_that_are_not_converted_are_refused(tmp_path: Path) -> None:
    """As docs/consumers.md lists it; what we can say names what to pass."""
    program = export(nn.Linear(3, 2), (torch.randn(1, 3),))
    for function in (
        lambda: torch.export.save(program, tmp_path / "file.pt2"),  # type: ignore[arg-type]
        lambda: torch.onnx.export(program, (), dynamo=True, verbose=False),  # type: ignore[arg-type]
        lambda: torch._inductor.aoti_compile_and_package(program),  # type: ignore[arg-type]
    ):
        with pytest.raises(Exception, match=r"ExportedProgram|export"):
            function()
    with pytest.raises(AttributeError, match=r"interop\.to_torch\(program\)"):
        torch.export.unflatten(program)  # type: ignore[arg-type]
    for name in ("meta", "code", "recompile", "named_modules"):
        with pytest.raises(AttributeError, match=r"program\.module\(\) is a GraphModule"):
            getattr(program, name)
        assert hasattr(program.module(), name)
    with pytest.raises(AttributeError, match=r"'something'$"):
        program.something  # noqa: B018
