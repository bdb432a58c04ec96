"""Programs as ONNX models: `onnx.checker` takes them, and onnxruntime computes what eager does."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lostwax
from examples.models import MODELS
from lostwax import Dim
from lostwax.errors import OnnxError
from tests.onnx.running import OPSETS, Session, compare
from tests.whole import sampled


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def export_mlp(**options: Any) -> Any:
    return lostwax.export(
        Mlp(), (torch.randn(2, 6),), dynamic_shapes=({0: Dim("batch")},), **options
    )


def test_a_small_model_has_no_nodes_that_it_does_not_need() -> None:
    session = Session(export_mlp())
    assert session.nodes == ["Gemm", "Relu", "Gemm"]
    assert [x.name for x in session.model.graph.inputs] == ["x"]
    assert str(session.model.graph.inputs[0].shape) == "[batch,6]"
    assert {"first.weight", "first.bias"} <= set(session.model.graph.initializers)


def test_nodes_say_where_they_come_from() -> None:
    first = next(iter(export_mlp().to_onnx().graph))
    assert first.metadata_props["namespace"] == "/first"
    assert "in forward" in first.metadata_props["source"]
    assert "relu(self.first(x))" in first.metadata_props["source"]


FEW = [("resnet50", 23, ""), ("llama", 23, "composite"), ("gpt2", 18, ""), ("unet", 26, "")]
ALL = [(name, opset, keep) for name in MODELS for opset in OPSETS for keep in ("", "composite")]


@pytest.mark.parametrize(("name", "opset", "keep"), sampled(FEW, ALL))
def test_bundled_models_at_other_sizes(name: str, opset: int, keep: Any) -> None:
    torch.manual_seed(0)
    example = MODELS[name]
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    shapes = tuple({d: Dim(n) for d, n in each.items()} for each in example.dynamic)
    program = lostwax.export(model, inputs, dynamic_shapes=shapes, keep=keep or ())
    session = Session(program, opset)
    compare(session, model, inputs)
    for batch, length in ((1, 5), (3, 7)):
        sizes = {"batch": batch, "length": length}
        call = []
        for x, dims in zip(inputs, example.dynamic, strict=True):
            size = [sizes[dims[d]] if d in dims else n for d, n in enumerate(x.shape)]
            call.append(
                torch.ones(size, dtype=x.dtype)
                if not x.dtype.is_floating_point
                else torch.randn(size)
            )
        compare(session, model, call)


def test_weights_are_referred_to_and_tied_ones_are_held_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embed(ids))

    module = Tied()
    program = lostwax.export(module, (torch.tensor([[1, 2]]),))
    session = Session(program)
    large = [v for v in session.model.graph.initializers.values() if v.const_value.size > 4]
    assert len(large) == 1
    assert large[0].const_value.raw.data_ptr() == program.state_dict["embed.weight"].data_ptr()
    compare(session, module, (torch.tensor([[3, 6]]),))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x
        return x / self.total


def test_state_comes_in_and_goes_out() -> None:
    session = Session(lostwax.export(Counter(), (torch.ones(2),)))
    assert json.loads(session.model.metadata_props["lostwax.state"]) == {"total": "total.next"}
    eager = Counter()
    for i in range(1, 4):
        compare(session, eager, (torch.full((2,), float(i)),))


def test_a_state_that_is_called_like_an_input() -> None:
    """The model tells of both by the names that they have there."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("x", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2)
            self.x += x
            return self.x * 2

    session = Session(lostwax.export(Counter(), (torch.ones(2),)))
    pairs = json.loads(session.model.metadata_props["lostwax.state"])
    assert sorted(pairs) == ["x", "x_1"]
    eager = Counter()
    for i in range(1, 4):
        assert session(torch.full((2,), float(i)))[-1].equal(eager(torch.full((2,), float(i))))


def test_an_input_that_is_written_goes_out_too() -> None:
    def double(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    session = Session(lostwax.export(double, (torch.ones(2),)))
    found = session.session.run(None, {"x": torch.full((2,), 3.0).numpy()})
    assert [each.tolist() for each in found] == [[6, 6], [7, 7]]


def test_results_that_are_inputs_constants_numbers_or_given_twice() -> None:
    def f(x: Tensor) -> Any:
        y = x + 1
        return x, y, y, x.shape[0], torch.tensor([1, 2]), 3, None

    session = Session(lostwax.export(f, (torch.ones(2),), dynamic_shapes=({0: Dim("n")},)))
    found = session(torch.ones(4))
    want = [torch.ones(4), torch.ones(4) + 1, torch.ones(4) + 1, 4, torch.tensor([1, 2]), 3]
    assert all(torch.equal(a, torch.as_tensor(b)) for a, b in zip(found, want, strict=True))


def test_what_assertions_read_is_left_out() -> None:
    def f(x: Tensor) -> Tensor:
        torch._check(x.sum().item() > 0)
        return x * 2

    assert Session(lostwax.export(f, (torch.ones(2),))).nodes == ["Mul"]


# ------------------------------------------------------------------------------- refusals


def test_all_missing_operators_are_named_at_once() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.linalg.qr(x)[0]
        return torch.linalg.eigvalsh(y @ y.T) + torch.linalg.qr(y)[0]

    with pytest.raises(OnnxError) as error:
        lostwax.export(f, (torch.eye(3),)).to_onnx()
    text = str(error.value)
    assert text.startswith("[LW0602] 2 operators of the program have no form in ONNX:")
    assert "aten::linalg_qr, 2 times, at " in text
    assert "aten::_linalg_eigh, 1 time, at " in text
    assert "code: y = torch.linalg.qr(x)[0]" in text
    assert '@lostwax.onnx.translation("aten::linalg_qr")' in text


def test_all_calls_that_cannot_be_written_are_told_at_once() -> None:
    def f(x: Tensor) -> Any:
        y = x.as_strided((2, 2), (1, 1)) * 2
        return y + x.as_strided((2, 2), (2, 1)), F.conv1d(x.long()[None, None], ONE), x.nonzero()

    with pytest.raises(OnnxError) as error:
        lostwax.export(f, (torch.ones(4),)).to_onnx()
    text = str(error.value)
    assert text.startswith("[LW0602] 2 calls of operators cannot be written in ONNX:")
    assert "  aten.as_strided.default, 2 times, at " in text
    assert "    why: ONNX has no memory to walk through by strides" in text
    assert "ONNX convolves floats" in text
    assert text.count("instead: ") == 2


ONE = torch.ones(1, 1, 2, dtype=torch.int64)

REFUSED: dict[str, tuple[Any, Any, str]] = {
    "strides": (
        lambda x: x.as_strided((2, 2), (1, 1)),
        torch.ones(4),
        "ONNX has no memory to walk through by strides",
    ),
    "complex results": (
        lambda x: torch.complex(x, x) * 2,
        torch.ones(4),
        "aten::complex, 1 time",
    ),
    "complex inputs": (lambda x: x * 2, torch.ones(2, dtype=torch.complex64), "torch.complex64"),
    "integers convolved": (
        lambda x: nn.functional.conv1d(x, torch.ones(1, 1, 2, dtype=torch.int64)),
        torch.ones(1, 1, 4, dtype=torch.int64),
        "ONNX convolves floats",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_words(name: str) -> None:
    function, x, text = REFUSED[name]
    with pytest.raises(OnnxError) as error:
        lostwax.export(function, (x,)).to_onnx()
    assert text in str(error.value)
    assert "instead: " in str(error.value)


@pytest.mark.parametrize("opset", [17, 99])
def test_an_opset_that_is_not_known(opset: int) -> None:
    with pytest.raises(OnnxError, match=f"opset={opset} cannot be written"):
        export_mlp().to_onnx(opset=opset)


def test_another_object() -> None:
    with pytest.raises(TypeError, match="to_onnx takes a program of lostwax"):
        lostwax.onnx.to_onnx(Mlp())  # type: ignore[arg-type]


def test_weights_are_held_as_they_are_read() -> None:
    layer = nn.Linear(4, 2, bias=False)
    program = lostwax.export(layer, (torch.ones(3, 2, 4),), keep="composite")
    session = Session(program)
    assert session.nodes == ["MatMul"]
    (held,) = session.model.graph.initializers.values()
    assert held.name == "weight.transposed"
    assert held.const_value.raw.data_ptr() == layer.weight.data_ptr()
    compare(session, layer, (torch.randn(3, 2, 4),))
