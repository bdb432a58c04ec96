"""Programs are portable: no operator in them is one that a device's dispatch picks.

What stands in their place computes the same, gradients and layouts included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lostwax import Dim
from lostwax.capture import export
from lostwax.errors import CaptureError, InputValueError, NotYetError, UnsupportedFakeError
from tests.capture.compare import exported, run

PICKED = (
    "mkldnn", "cudnn", "miopen", "mps", "flash", "efficient_attention", "fused", "thnn",
    "slow_conv", "native_batch_norm.", "_transformer_encoder_layer", "_native_multi_head",
)  # fmt: skip


def targets(program: Any) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


def picked(program: Any) -> list[str]:
    return [t for t in targets(program) if any(word in t for word in PICKED)]


SEQUENCE, IMAGE = (2, 5, 16), (2, 4, 6, 6)
MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "batch norm, training": (nn.BatchNorm2d(4).train(), IMAGE),
    "batch norm, evaluation": (nn.BatchNorm2d(4).eval(), IMAGE),
    "instance norm": (nn.InstanceNorm2d(4), IMAGE),
    "instance norm with statistics": (nn.InstanceNorm2d(4, track_running_stats=True), IMAGE),
    "group norm": (nn.GroupNorm(2, 4), IMAGE),
    "convolution": (nn.Conv2d(4, 4, 3), IMAGE),
    "transposed convolution": (nn.ConvTranspose2d(4, 4, 3), IMAGE),
    "lstm": (nn.LSTM(16, 8, batch_first=True), SEQUENCE),
    "lstm, two ways": (nn.LSTM(16, 8, 2, bidirectional=True), SEQUENCE),
    "gru": (nn.GRU(16, 8), SEQUENCE),
    "gru, two ways": (nn.GRU(16, 8, 2, bidirectional=True, bias=False), SEQUENCE),
    "rnn": (nn.RNN(16, 8), SEQUENCE),
    "rnn, relu": (nn.RNN(16, 8, 2, nonlinearity="relu", batch_first=True), SEQUENCE),
    "encoder layer": (nn.TransformerEncoderLayer(16, 4, batch_first=True).eval(), SEQUENCE),
}


@pytest.mark.parametrize(("module", "size"), MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("grad", [True, False])
def test_modules(module: nn.Module, size: tuple[int, ...], grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        program = exported(module, torch.randn(size))
    assert picked(program) == []


@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_of_complex_numbers_are_made_of_real_ones(layer: Any, bias: bool) -> None:
    module = layer(2, 4, 3, stride=2, groups=2, bias=bias, dtype=torch.complex64)
    x = torch.randn((2,) + (5,) * len(module.kernel_size), dtype=torch.complex64)
    program = exported(module, x)
    ours = program.module()
    for each in (module, ours):
        each(x).abs().sum().backward()
    torch.testing.assert_close(ours.weight.grad, module.weight.grad)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_an_empty_batch_is_normalised(training: bool, affine: bool) -> None:
    layers = [nn.BatchNorm1d(3, affine=affine) for _ in range(2)]
    program = exported(nn.Sequential(*layers).train(training), torch.zeros(0, 3))
    x = torch.zeros(0, 3, requires_grad=True)
    program.module()(x).sum().backward()  # the kernel's backward would end the process
    assert x.grad is not None


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("zero_infinity", [True, False])
def test_lengths_of_sequences_may_be_lists(reduction: str, zero_infinity: bool) -> None:
    class Loss(nn.Module):
        def forward(self, probs: Tensor, targets: Tensor) -> Tensor:
            how = {"reduction": reduction, "zero_infinity": zero_infinity}
            return F.ctc_loss(probs.log_softmax(-1), targets, [6, 2], (3, 0), **how)  # type: ignore[arg-type]

    exported(Loss(), torch.randn(6, 2, 5), torch.tensor([[1, 2, 3], [1, 1, 4]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_is_dropped_wholly_keeps_its_type(dtype: torch.dtype) -> None:
    exported(nn.Dropout(1.0), torch.tensor(2.0, dtype=dtype))


class Beside(nn.Module):
    """Random numbers are drawn by a layer, whether it is read or not, and after it."""

    def __init__(self, layer: type[nn.RNNBase], is_read: bool) -> None:
        super().__init__()
        self.layer: Any = layer(4, 3, num_layers=3, dropout=0.5)
        self.is_read = is_read

    def forward(self, x: Tensor) -> Any:
        out, _ = self.layer(x)
        return out if self.is_read else x, torch.rand_like(x)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("length", [None, Dim("length", min=2)], ids=["fixed", "varies"])
def test_dropout_between_layers(layer: Any, is_read: bool, length: Any) -> None:
    module, x = Beside(layer, is_read), torch.randn(5, 2, 4)
    ours = export(module, (x,), dynamic_shapes=({0: length},)).module()
    torch.testing.assert_close(run(ours, (x,), 3).results, run(module, (x,), 3).results)


def test_dropout_of_packed_sequences_is_refused() -> None:
    layer = nn.GRU(4, 3, num_layers=2, dropout=0.5)

    def forward(x: Tensor) -> Any:
        sizes, hidden = torch.tensor([2, 2, 1]), torch.zeros(2, 2, 3)
        weights = [w.detach() for w in layer._flat_weights]
        return torch._VF.gru(x, sizes, hidden, weights, True, 2, 0.5, True, False)

    with pytest.raises(CaptureError, match="packed sequence cannot be captured with dropout"):
        export(forward, (torch.randn(5, 4),))


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


def rows(*size: int) -> Tensor:
    return torch.randn(size)


def time_major() -> Tensor:
    return torch.randn(2, 5, 4, 8).transpose(1, 2)


MASK = torch.tensor([[1, 0, 1, 1, 0, 0, 1]] * 2 + [[0] * 7] + [[0, 1, 1, 1, 1, 1, 1]] * 2) > 0
PACKED = torch.randn(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)
ATTENTION: dict[str, tuple[dict[str, Any], Tensor, Tensor, Tensor, Tensor | None]] = {
    "plain": ({}, rows(2, 4, 5, 8), rows(2, 4, 7, 8), rows(2, 4, 7, 8), None),
    "causal": ({"is_causal": True}, rows(2, 4, 5, 8), rows(2, 4, 7, 8), rows(2, 4, 7, 8), None),
    "scale": ({"scale": 0.3}, rows(2, 4, 5, 8), rows(2, 4, 7, 8), rows(2, 4, 7, 8), None),
    "mask": ({}, rows(2, 4, 5, 8), rows(2, 4, 7, 8), rows(2, 4, 7, 8), MASK),
    "added mask": (
        {}, rows(2, 4, 5, 8), rows(2, 4, 7, 8), rows(2, 4, 7, 8),
        torch.randn(5, 7).masked_fill(~MASK, float("-inf")),
    ),
    "time-major": ({"is_causal": True}, time_major(), time_major(), time_major(), None),
    "packed": ({}, PACKED[0], PACKED[1], PACKED[2], None),
    "grouped heads": (
        {"enable_gqa": True}, rows(2, 8, 5, 8), rows(2, 2, 5, 8), rows(2, 2, 5, 8), None,
    ),
    "three dimensions": ({}, rows(4, 5, 8), rows(4, 5, 8), rows(4, 5, 8), None),
    "wider values": ({}, rows(2, 4, 5, 8), rows(2, 4, 7, 8), rows(2, 4, 7, 16), None),
}  # fmt: skip


@pytest.mark.parametrize("case", ATTENTION.values(), ids=ATTENTION)
def test_attention(case: tuple[dict[str, Any], Tensor, Tensor, Tensor, Tensor | None]) -> None:
    options, *inputs = case
    program = exported(Attention(**options), *inputs)
    assert picked(program) == []
    assert not any("scaled_dot_product" in t for t in targets(program))
    gradients = []
    for module in (Attention(**options), program.module()):
        leaves = [x.detach().clone().requires_grad_() for x in inputs[:3] if x is not None]
        module(*leaves, inputs[3]).pow(2).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_in_half_precision_sums_in_single(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 4, 64, 32).to(dtype) for _ in "qkv")
    program = export(Attention(), (q, k, v, None))
    got, want = program.module()(q, k, v, None), Attention()(q, k, v, None)
    assert got.dtype is dtype
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


def test_attention_refuses_what_eager_refuses() -> None:
    q = rows(2, 4, 5, 8)
    with pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal=True"):
        export(Attention(is_causal=True), (q, q, q, torch.ones(5, 5, dtype=torch.bool)))


def padded(*lengths: int, more: Sequence[tuple[int, int]] = (), size: int = 5) -> Tensor:
    mask = torch.arange(size) >= torch.tensor(lengths)[:, None]
    for place in more:
        mask[place] ^= True
    return mask


PADDING = [
    padded(5, 5), padded(5, 3), padded(1, 2), padded(4, 3, more=[(0, 0)]),
    padded(5, 3, more=[(0, 2)]),
    padded(0, 4), padded(3, 2).float() * -1e9, padded(2, 7, 1, size=7),
]  # fmt: skip


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(8)])
def test_an_encoder_with_padding_goes_the_way_without_nested_tensors(
    check: bool, norm: nn.Module | None
) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm, mask_check=check).eval()
    sizes = {"src": {0: Dim("batch"), 1: Dim("length")}}
    sizes["src_key_padding_mask"] = sizes["src"]
    x, ours = torch.randn(2, 5, 8), {}
    with torch.no_grad():
        for mask in (PADDING[0], PADDING[-2]):
            call = {"src_key_padding_mask": mask}
            ours[mask.dtype] = export(encoder, (x,), call, dynamic_shapes=sizes).module()
        for mask in PADDING:
            x = torch.randn(*mask.shape, 8)
            want = encoder(x, src_key_padding_mask=mask)
            torch.testing.assert_close(ours[mask.dtype](x, src_key_padding_mask=mask), want)
    with pytest.raises(InputValueError, match="requires gradient here, and required none at capt"):
        ours[torch.bool](x, src_key_padding_mask=PADDING[-1])


@pytest.mark.parametrize("kind", ["nested", "sparse"])
def test_tensors_of_other_layouts_are_refused(kind: str) -> None:
    function = torch.nested.as_nested_tensor if kind == "nested" else torch.Tensor.to_sparse
    text = rf"{kind} tensors[\s\S]*test_nn_modules.py"
    with pytest.raises(UnsupportedFakeError, match=text) as e:
        export(lambda x: function([x] if kind == "nested" else x), (torch.ones(3),))
    assert "instead: a " in str(e.value)


def test_sequences_that_come_packed_are_refused_with_the_line() -> None:
    layer = nn.LSTM(3, 4, batch_first=True)
    place = r"at tests/capture/patches/test_nn_modules.py:\d+ in <lambda>"
    text = rf"packed sequences[\s\S]*{place}[\s\S]*why: [\s\S]*instead: pass them padded"
    given = pack_padded_sequence(torch.randn(2, 5, 3), torch.tensor([5, 2]), batch_first=True)
    for function in (lambda p: layer(p)[0].data, lambda p: pad_packed_sequence(p)[0]):
        with pytest.raises(CaptureError, match=text):
            export(function, (given,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torchscript_are_refused() -> None:
    made = nn.Linear(3, 3)
    for each in (torch.jit.script(made), torch.jit.trace(made, torch.randn(2, 3))):
        text = (
            r"the module {} is a \w+ of TorchScript .* of Linear\)[\s\S]*why[\s\S]*instead: export"
        )
        with pytest.raises(CaptureError, match=text.format("to export")):
            export(each, (torch.randn(2, 3),))
        with pytest.raises(CaptureError, match=text.format(r"1\.0")):
            export(nn.Sequential(made, nn.Sequential(each)), (torch.randn(2, 3),))
    scripted = torch.jit.script(made)
    with pytest.raises(CaptureError, match=r"a module that is called is a Rec[\s\S]*instead: call"):
        export(lambda x: scripted(x) + 1, (torch.randn(2, 3),))
    program = export(torch.jit.script(_doubled), (torch.randn(2, 3),))  # functions are looked into
    torch.testing.assert_close(program.module()(torch.ones(2, 3)), torch.ones(2, 3) * 2)


def _doubled(x: Tensor) -> Tensor:
    return x * 2


def test_devices_that_are_not_there() -> None:
    """What a program computes elsewhere is fake, with numbers of devices or without."""

    def forward(x: Tensor) -> Tensor:
        return (x.to("cuda:1") + 1).sum() + torch.ones(3, device="cuda:1").sum() * torch.tensor(2.0)

    program = export(forward, (torch.ones(3),))
    program.validate()
    export(lambda x: x.cuda() + torch.ones(3, device="cuda"), (torch.ones(3),)).validate()
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    assert {str(n.meta["val"].device) for n in calls} == {"cuda:1"}


def test_another_default_dtype_is_refused() -> None:
    def forward(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float32)  # as it is
        torch.set_default_dtype(torch.float64)
        return x + torch.ones(3)

    place = r"at tests/capture/patches/test_nn_modules.py:.*float64\)"
    text = rf"set_default_dtype\(torch.float64\)[\s\S]*{place}[\s\S]*instead: say"
    with pytest.raises(CaptureError, match=text):
        export(forward, (torch.randn(3),))
    assert torch.get_default_dtype() is torch.float32


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> Any:
        across = torch.zeros(3, 4).t().random_(2, 9)
        part = torch.zeros(6, 4, dtype=torch.long)[::2].random_(0, 5)
        like = torch.randint_like(x, 7) * x + torch.randint_like(x, 2, 7)
        shifted = part.clone()
        shifted <<= 2
        shifted >>= 1
        return across, part, like, shifted


def test_whole_numbers_are_drawn_and_shifted() -> None:
    x = torch.randn(3, 4)
    ours = export(Drawing(), (x.clone().requires_grad_(),)).module()
    ours_seen, seen = (run(each, (x,), 3).results for each in (ours, Drawing()))
    torch.testing.assert_close(ours_seen, seen)
    grads = []
    for each in (ours, Drawing()):
        given = x.clone().requires_grad_()
        torch.manual_seed(3)
        grads += torch.autograd.grad(each(given)[2].sum(), given)
    torch.testing.assert_close(grads[0], grads[1])
    text = r"random_\(3, None\)[\s\S]*at tests/capture/patches/test_nn_modules.py:"
    with pytest.raises(CaptureError, match=text):
        export(lambda x: x.random_(3, None), (torch.zeros(2),))


def test_an_operator_that_takes_functions_and_is_not_known_is_refused() -> None:
    def hinted(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.higher_order.hints_wrapper(lambda y: (y + 1,), (x,), {}, hints={})[0]

    told = r"hints_wrapper in a [\s\S]*test_nn_modules[\s\S]*nothing records the functions"
    with pytest.raises(NotYetError, match=f"{told}[\\s\\S]*call the functions themselves"):
        export(hinted, (torch.ones(3),))


def test_linearize_is_refused() -> None:
    def forward(x: Tensor) -> Any:
        return torch.func.linearize(torch.sin, x)[0]

    with pytest.raises(NotYetError, match=r"linearize[\s\S]*test_nn_modules[\s\S]*torch.func.jvp"):
        export(forward, (torch.randn(3),))


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Any:
        scale, zero = torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int32)
        return (
            torch.fake_quantize_per_tensor_affine((self.w * x).t(), 0.1, 0, -8, 7),
            torch.fake_quantize_per_tensor_affine(x[:, ::2], scale[0], zero[0], -8, 7),
            torch.fake_quantize_per_channel_affine(self.w, scale, zero, 1, -8, 7),
        )


def test_rounding_to_few_bits() -> None:
    module, x = Rounding(), torch.randn(3, 4)
    ours = exported(module, x).module()
    grads = []
    for each in (ours, module):
        given = x.clone().requires_grad_()
        total = sum((out * (out.detach() + 1)).sum() for out in each(given))
        grads.append(torch.autograd.grad(total, [given, each.w]))  # type: ignore[arg-type]
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_cross_entropy_may_vary_in_size(reduction: str) -> None:
    """torch 2.11 itself asks for their size as plain numbers."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.BCELoss(torch.rand(4), reduction=reduction)

        def forward(self, x: Tensor, y: Tensor, w: Tensor) -> Any:
            direct = F.binary_cross_entropy(x, y, weight=w, reduction=reduction)
            return self.loss(x, y), direct, F.binary_cross_entropy(x, y)

    module, batch = Loss(), Dim("batch")
    given = tuple(torch.rand(3, 4) for _ in range(3))
    ours = export(module, given, dynamic_shapes=({0: batch},) * 3).module()
    for n in (1, 3, 5):
        inputs = tuple(torch.rand(n, 4) for _ in range(3))
        torch.testing.assert_close(ours(*inputs), module(*inputs))
