"""The example models are what they say: they run and learn, they have the published size, and the
dimensions they call dynamic do vary; exported, they compute what eager computes."""

from __future__ import annotations

import copy

import pytest
import torch

from examples import demo
from examples.largest_batch import PeakMemory, largest, peak_bytes
from examples.models import MODELS, llama
from lostwax import FakeTensorMode, export

MILLION = 1_000_000

# Parameters of the published architectures. The decoder of sixteen layers is our own size.
PARAMETERS = {
    "resnet50": 25.6,
    "vit": 86.6,
    "bert": 109.5,
    "llama": 245.4,
    "unet": 31.0,
    "lstm": 20.7,
    "gpt2": 124.4,
    "efficientnet": 5.3,
    "swin": 28.3,
}


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def resized(inputs, dynamic, sizes):
    """The inputs cut or repeated to the given size of each named dimension."""
    out = []
    for tensor, dims in zip(inputs, dynamic, strict=True):
        for dim, name in dims.items():
            index = torch.arange(sizes[name]) % tensor.shape[dim]
            tensor = tensor.index_select(dim, index)
        out.append(tensor)
    return out


@pytest.fixture(params=MODELS)
def example(request):
    torch.manual_seed(0)
    return MODELS[request.param]


@torch.no_grad()
def test_the_tiny_model_runs(example):
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    result = model(*inputs)
    assert result.isfinite().all()
    assert result.std() > 0
    assert torch.equal(result, model(*inputs))


@torch.no_grad()
@pytest.mark.parametrize("sizes", [{"batch": 1, "length": 5}, {"batch": 3, "length": 7}])
def test_dynamic_dimensions_vary(example, sizes):
    model = example.tiny().eval()
    inputs = resized(example.tiny_inputs(), example.dynamic, sizes)
    result = model(*inputs)
    assert result.shape[0] == sizes["batch"]
    assert result.isfinite().all()


def test_the_tiny_model_learns(example):
    model = example.tiny().train()
    model(*example.tiny_inputs()).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_the_full_model_has_the_published_size(name):
    with torch.device("meta"):
        model = MODELS[name].full()
    assert count(model) / MILLION == pytest.approx(PARAMETERS[name], rel=0.01)


@pytest.mark.parametrize(("config", "billions"), [(llama.LLAMA_7B, 6.74), (llama.LLAMA_70B, 70.6)])
def test_the_large_decoders_have_the_published_size(config, billions):
    with torch.device("meta"):
        model = llama.Llama(config)
    assert count(model) / 1e9 == pytest.approx(billions, rel=0.01)


@torch.no_grad()
def test_attention_of_shifted_windows_keeps_to_the_image():
    """Cells that meet by the cyclic shift alone do not see each other."""
    from examples.models.swin import shift_mask

    mask = shift_mask(side=8, window=4, shift=2)
    assert mask.shape == (4, 16, 16)
    assert (mask[0] == 0).all()
    assert (mask[-1] != 0).any()
    assert (mask.diagonal(dim1=1, dim2=2) == 0).all()


# -------------------------------------------------------------------------------------- exported


def assert_same(ours, eager):
    assert ours.dtype == eager.dtype
    assert ours.shape == eager.shape
    assert ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)


def doubled(inputs):
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_the_exported_model_equals_eager(example, training):
    """Outputs and strides, buffers afterwards, gradients; and the original is untouched."""
    model, inputs = example.tiny().double().train(training), doubled(example.tiny_inputs())
    before = copy.deepcopy(model.state_dict())
    module = export(model, inputs).module()
    eager = copy.deepcopy(model)
    torch.manual_seed(1)
    expected = eager(*inputs)
    torch.manual_seed(1)
    result = module(*inputs)
    assert_same(result, expected)
    expected.square().mean().backward()
    result.square().mean().backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-7, atol=1e-9)
    buffers = dict(module.named_buffers())
    for name, buffer in eager.named_buffers():
        assert_same(buffers[name], buffer)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_exported_program_is_valid(example):
    program = export(example.tiny().eval(), example.tiny_inputs())
    program.validate()
    assert not any("_for_cpu" in str(node.target) for node in program.graph.nodes)


# --------------------------------------------------------------------------- the largest batch


@pytest.mark.parametrize("name", MODELS)
def test_a_fake_step_takes_the_memory_of_a_real_one(name):
    example = MODELS[name]
    real = peak_bytes(example.tiny, example.tiny_inputs, batch=3)
    with FakeTensorMode():
        fake = peak_bytes(example.tiny, example.tiny_inputs, batch=3)
    if name == "lstm":
        # `mkldnn_rnn_layer` returns more in eager than its fake: seen, and not explained here.
        assert 0 < fake < real
    elif name in ("bert", "swin"):
        # A few bytes of constants stay known to the mode after their end.
        assert real <= fake <= real + 64
    else:
        assert fake == real


def test_memory_counts_a_storage_once_and_until_its_end():
    with PeakMemory() as memory:
        x = torch.zeros(256)
        views = [x[:10], x.view(16, 16)]
        assert memory.live == memory.peak == 1024
        del x, views
        assert memory.live == 0
        assert memory.peak == 1024


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 1000])
def test_the_largest_that_fits(limit):
    asked = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= limit

    assert largest(fits) == limit
    assert len(asked) <= 2 * limit.bit_length() + 2


def test_a_model_too_large_for_its_memory_has_no_batch():
    example = MODELS["vit"]

    def fits(batch: int) -> bool:
        with FakeTensorMode(), torch.device("cuda"):
            return peak_bytes(example.tiny, example.tiny_inputs, batch) < 1000

    assert largest(fits) == 0


def test_the_demo_runs_to_its_end(capsys):
    demo.main(["--quick"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in MODELS)
    assert "torch.ops.aten.convolution.default(x, p_stem_0_0_weight" in shown
    assert shown.count("strides equal") == 2
    assert "70.6 billion parameters" in shown
    assert "float32[batch, length, 100]" in shown
    assert "torch._check(u0 >= 6)" in shown
