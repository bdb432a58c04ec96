"""torchao's PT2E quantization of programs with `keep="composite"`: it finds what it finds in
torch.export's programs, and the result is the same to the last bit."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from examples.models import MODELS
from tests.whole import WHOLE

pytest.importorskip("torchao")
pytestmark = pytest.mark.filterwarnings("ignore")


def make_convnet() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )
    for _ in range(3):
        model(torch.randn(8, 3, 16, 16))  # the statistics of batch norm
    return model.eval(), [(torch.randn(2, 3, 16, 16),) for _ in range(4)]


def make_transformer() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    example = MODELS["vit"]
    return example.tiny().eval(), [example.tiny_inputs() for _ in range(4)]


def quantize_by_inductor(module: Any, batches: Sequence[tuple[Tensor, ...]]) -> Any:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    return quantize(module, batches, quantizer)


def quantize_by_xnnpack(module: Any, batches: Sequence[tuple[Tensor, ...]]) -> Any:
    xnnpack = pytest.importorskip("executorch.backends.xnnpack.quantizer.xnnpack_quantizer")
    quantizer = xnnpack.XNNPACKQuantizer()
    quantizer.set_global(xnnpack.get_symmetric_quantization_config())
    return quantize(module, batches, quantizer)


def quantize(module: Any, batches: Sequence[tuple[Tensor, ...]], quantizer: Any) -> Any:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(module, quantizer)
    for batch in batches:
        prepared(*batch)
    return convert_pt2e(prepared)


def count_quantizations(module: Any) -> int:
    return sum("quantize_per" in str(node.target) for node in module.graph.nodes)


@pytest.mark.parametrize(
    ("make", "quantized"),
    [
        (make_convnet, quantize_by_inductor),
        (make_transformer, quantize_by_inductor),
        (make_convnet, quantize_by_xnnpack),
    ],
)
def test_post_training_quantization(make: Any, quantized: Any) -> None:
    torch.manual_seed(0)
    model, batches = make()
    program = lostwax.export(model, batches[0], keep="composite")
    ours = quantized(program.module(), batches)
    theirs = quantized(torch.export.export(copy.deepcopy(model), batches[0]).module(), batches)
    assert count_quantizations(ours) == count_quantizations(theirs) > 10
    for batch in batches:
        got, want = ours(*batch), model(*batch)
        assert torch.equal(got, theirs(*batch))
        assert (got - want).norm() < 0.15 * want.norm()
    again = lostwax.export(ours, batches[0], keep="composite")
    torch.testing.assert_close(again.module()(*batches[0]), ours(*batches[0]))


# ------------------------------------------------------------------- quantization aware training


def make_training_net(*, is_norm_shared: bool = False) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), norm, nn.ReLU()),
        *(nn.Conv2d(4, 4, 5), norm if is_norm_shared else nn.BatchNorm2d(4)),
        *(nn.Flatten(), nn.Linear(64, 5)),
    ).train()


def test_what_is_quantized_while_it_is_trained_is_torchs() -> None:
    """torchao goes by the calls and by what they are called with: it finds in ours what it finds in
    torch's."""
    model, x = make_training_net(), torch.randn(2, 3, 8, 8)
    ours: Any = lostwax.export(model, (x,), keep="composite").module()
    theirs = torch.export.export(model, (x,)).module()
    found = []
    for module in (ours, theirs):
        calls = [n for n in module.graph.nodes if n.op == "call_function"]
        # The ninth of `batch_norm` is whether cuDNN may be used, which torch notes as False.
        found.append([(str(n.target), [_tell(a, calls) for a in n.args[:8]]) for n in calls])
    assert found[0] == found[1]


def _tell(value: Any, calls: list[Any]) -> Any:
    """An argument: of a call which one, of an attribute its name."""
    if isinstance(value, (list, tuple)):
        return [_tell(each, calls) for each in value]
    if not isinstance(value, torch.fx.Node):
        return value
    return calls.index(value) if value in calls else str(value.target)


@pytest.mark.skipif(not WHOLE, reason="torchao takes most of a minute for it: make fuzz")
def test_quantization_aware_training() -> None:
    """torchao finds the layers, trains, and folds the batch norms. (What it makes of torch's module
    is the same to the last bit; it takes half a minute for each.)"""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    model, x = make_training_net(), torch.randn(2, 3, 8, 8)
    config = x86.get_default_x86_inductor_quantization_config(is_qat=True)
    module: Any = lostwax.export(model, (x,), keep="composite").module()
    prepared = prepare_qat_pt2e(module, x86.X86InductorQuantizer().set_global(config))
    optimizer = torch.optim.SGD([*prepared.parameters(), *model.parameters()], 0.01)
    for batch in torch.randn(3, 2, 3, 8, 8):
        optimizer.zero_grad()
        (prepared(batch).square().mean() + model(batch).square().mean()).backward()
        optimizer.step()
    quantized = convert_pt2e(prepared)
    assert "aten.batch_norm.default" not in list_calls(quantized)
    assert count_quantizations(quantized) > 5
    got, want = quantized(x), model.eval()(x)
    assert (got - want).norm() < 0.1 * want.norm()


def list_calls(module: Any) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.op == "call_function"]


def test_batch_norm_in_training_is_one_node_of_the_module() -> None:
    """The program shows what it writes; its module has the nodes that torch's module has, from a
    file and captured again, too, and run as a graph it trains as the original does."""
    model, x = make_training_net(is_norm_shared=True), torch.randn(2, 3, 8, 8)
    program = lostwax.export(model, (x,), keep="composite")
    assert len(program.graph_signature.buffers_to_mutate) == 3
    assert not any("batch_norm.default" in str(n.target) for n in program.graph.nodes)
    calls = list_calls(torch.export.export(copy.deepcopy(model), (x,)).module())
    again = lostwax.export(program.module(), (x,), keep="composite")
    third = lostwax.export(load_again(again).module(), (x,), keep="composite")
    for each in (program, load_again(program), again, third):
        module, original = each.module(), copy.deepcopy(model)
        assert list_calls(module) == calls
        module.recompile()  # the graph runs
        for _ in range(2):
            torch.testing.assert_close(module(x), original(x))
        for name, buffer in original.named_buffers():
            torch.testing.assert_close(module.get_buffer(name), buffer)


def load_again(program: lostwax.ExportedProgram) -> lostwax.ExportedProgram:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)


class ReadsItsStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.norm.running_mean * 1  # type: ignore[operator]
        return self.norm(x), before


def test_statistics_that_something_else_reads_are_written_at_the_end() -> None:
    model, x = ReadsItsStatistics(), torch.randn(4, 3)
    module = lostwax.export(model, (x,), keep="composite").module()
    assert "aten.batch_norm.default" not in list_calls(module)
    module.recompile()
    for _ in range(2):
        torch.testing.assert_close(module(x), model(x))
    torch.testing.assert_close(module.get_buffer("norm.running_var"), model.norm.running_var)
