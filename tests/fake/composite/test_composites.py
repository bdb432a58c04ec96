"""Composite operators taken apart by us: as eager in size, stride and aliasing, and without "
"guards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from examples.models import MODELS
from lostwax import Dim, export
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.symbolic.node import wrap
from lostwax.sym import ShapeEnv, current


def fakes_of(mode: FakeTensorMode, args: tuple[Any, ...]) -> list[Any]:
    return [
        mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a for a in args
    ]


def agree(call: Callable[..., Any], *args: Any) -> None:
    """The same sizes and strides, and the same answer to: is the result (a view of) an argument?"""
    mode = FakeTensorMode(shape_env=ShapeEnv())  # without a ShapeEnv C++ takes them apart
    fakes = fakes_of(mode, args)
    with torch.no_grad():
        want = call(*args)
        with mode:
            got = call(*fakes)
    outputs = zip(*(x if isinstance(x, (list, tuple)) else [x] for x in (want, got)), strict=True)
    for w, g in outputs:
        assert isinstance(g, FakeTensor)
        assert (g.shape, g.stride(), g.dtype) == (w.shape, w.stride(), w.dtype)
        for real, fake in zip(args, fakes, strict=True):
            if isinstance(real, torch.Tensor):
                shared = w.untyped_storage()._cdata == real.untyped_storage()._cdata
                assert (g.fake_storage is fake.fake_storage) == shared
                assert (g is fake) == (w is real)


def strided(rng: random.Random, *size: int) -> torch.Tensor:
    """A tensor of this size with its dimensions laid out in a random order."""
    order = list(range(len(size)))
    if rng.random() < 0.5:
        rng.shuffle(order)
    x = torch.randn([size[d] for d in order]).permute([order.index(d) for d in range(len(size))])
    return x.requires_grad_() if rng.random() < 0.4 else x


@pytest.mark.parametrize("seed", range(4))
def test_matmul(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        batch = [rng.choice([1, 2, 3]) for _ in range(2)]
        inner = rng.choice([0, 1, 3, 4])
        sides = []
        for right in (False, True):
            rank = rng.randint(1, 4)
            lead = [rng.choice([1, b]) for b in batch[4 - rank :]] if rank > 2 else []
            outer = [rng.choice([1, 2, 5])] if rank > 1 else []
            sides.append(lead + ([inner, *outer] if right else [*outer, inner]))
        agree(torch.matmul, *(strided(rng, *s) for s in sides))


@pytest.mark.parametrize("seed", range(4))
def test_reshape_flatten_and_linear(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        x = strided(rng, 2, 3, 4)
        shape = rng.choice([(6, 4), (2, 12), (-1,), (2, -1, 2), (4, 3, 2), (1, 24), (2, 3, 2, 2)])
        agree(lambda x, shape=shape: x.reshape(shape), x)
        first = rng.randint(0, 2)
        last = rng.randint(first, 2)
        agree(lambda x, a=first, b=last: x.flatten(a, b), x)
        agree(lambda x: x.contiguous(), x)
        agree(lambda x: x.to(torch.float64), x)
        agree(lambda x: x.to(torch.float32), x)
        agree(F.linear, x, strided(rng, 5, 4), strided(rng, 5) if rng.random() < 0.5 else None)
        pieces = rng.randint(1, 5)
        agree(lambda x, n=pieces: x.chunk(n, 1), x)


IMAGE = torch.randn(2, 6, 8, 8)
LAST = IMAGE.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("image", [IMAGE, LAST, IMAGE[0]], ids=["nchw", "nhwc", "unbatched"])
def test_images(image: torch.Tensor) -> None:
    weight = torch.randn(4, 3, 3, 3)
    agree(lambda x, w: F.conv2d(x, w, None, 2, 1, 1, 2), image, weight)
    agree(lambda x: F.max_pool2d(x, 3, 2, 1), image)
    agree(lambda x: F.adaptive_avg_pool2d(x, 1), image)
    agree(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), image)


@pytest.mark.parametrize("image", [IMAGE, LAST], ids=["nchw", "nhwc"])
def test_normalisation(image: torch.Tensor) -> None:
    six = torch.randn(6)
    agree(lambda x, a: F.batch_norm(x, a, a, a, a), image, six)
    agree(lambda x, a: F.batch_norm(x, a, a, weight=a, bias=a, training=True), image, six)
    agree(lambda x, a: F.group_norm(x, 3, a, a), image, six)
    agree(lambda x: F.layer_norm(x, (8, 8)), image)
    agree(lambda x: F.instance_norm(x), image)
    agree(lambda x: F.softmax(x, 1), image)
    agree(lambda x: F.log_softmax(x, 1, dtype=torch.float64), image)
    agree(lambda x: F.dropout(x, 0.5, training=False), image)
    agree(lambda x: F.dropout(x, 0.5, training=True), image)
    agree(lambda x: F.dropout(x, 0.0, training=True), image)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    q = torch.randn(2, 5, 4, 8).transpose(1, 2)
    k = torch.randn(2, 4, 7, 8)
    agree(lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=causal), q, k)
    agree(lambda q, k: F.scaled_dot_product_attention(q, k, k), q[0], k[0])
    agree(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, torch.randn(2, 4, 7, 3))
    for mask in (torch.ones(5, 7, dtype=torch.bool), torch.zeros(2, 1, 5, 7)):
        agree(lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m), q, k, mask)
    grouped = torch.randn(2, 2, 7, 8)
    agree(lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), q, grouped)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((1, 4, 3), (1, 0, 3), (1, 0, 3)),
        ((1, 2, 4, 3), (1, 2, 0, 3), (1, 2, 0, 5)),
        ((1, 2, 4, 0), (1, 2, 4, 0), (1, 2, 4, 0)),
    ],
)
def test_attention_of_integers_without_elements(dtype: Any, q: Any, k: Any, v: Any) -> None:
    given = [torch.zeros(size, dtype=dtype) for size in (q, k, v)]
    agree(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *given)
    ones = torch.ones(1, 2, 4, 3, dtype=dtype)
    with pytest.raises(RuntimeError):  # as in eager
        export(lambda x: F.scaled_dot_product_attention(x, x, x), (ones,))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ndim", [3, 4])
def test_attention_with_gradients_fixes_no_length(causal: bool, ndim: int) -> None:
    """torch 2.11's C++ would, where it takes attention apart for autograd."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    sizes = [(3, 4, 5, 8)[-ndim:], (3, 4, 7, 8)[-ndim:], (3, 4, 7, 8)[-ndim:]]
    q, k, v = (mode.from_tensor(torch.randn(size), static_shapes=False) for size in sizes)
    with mode:
        out = F.scaled_dot_product_attention(q.requires_grad_(), k, v, is_causal=causal)
    assert out.requires_grad
    for x in (q, k, v):  # which are all but the width of a head
        assert not any(isinstance(current(size), int) for size in x.fake_type.size[:-1])


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent_layers(cell: type[nn.RNNBase], both: bool) -> None:
    for batch_first in (False, True):
        layer = cell(4, 5, 2, bidirectional=both, batch_first=batch_first)
        names, values = zip(*layer.named_parameters(), strict=True)

        def run(x: torch.Tensor, *state: torch.Tensor) -> Any:
            out, h = torch.func.functional_call(layer, dict(zip(names, state, strict=True)), (x,))  # noqa: B023
            return [out, *h] if isinstance(h, tuple) else [out, h]

        agree(run, torch.randn(6, 3, 4), *values)


EAGER_NEEDS = {
    "bert": ["length >= 1"],  # it takes the first token
    "llama": ["length <= 64"],  # the rotary table's length
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_guard_only_what_eager_needs(name: str) -> None:
    example = MODELS[name]
    model, real = example.tiny().eval(), example.tiny_inputs()
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    fakes = {k: mode.from_tensor(v, static_shapes=True) for k, v in state.items()}
    symbols: dict[str, Any] = {}
    inputs = []
    for tensor, dims in zip(real, example.dynamic, strict=True):
        sizes: list[Any] = [None] * tensor.dim()
        for d, dim in dims.items():
            if dim not in symbols:
                symbols[dim] = wrap(env.symbol(dim, hint=tensor.shape[d]))
            sizes[d] = symbols[dim]
        inputs.append(mode.from_tensor(tensor, sizes=tuple(sizes)))
    with torch.no_grad(), mode:
        out = torch.func.functional_call(model, fakes, tuple(inputs))
    with torch.no_grad():
        want = model(*real)
    assert [s if isinstance(s, int) else s.node.value.hint for s in out.shape] == list(want.shape)
    assert [str(g.cond) for g in env.minimal_guards()] == EAGER_NEEDS.get(name, [])


# ------------------------------------------------------------------------------- where sizes vary


CELLS = [getattr(nn, kind)(4, 3) for kind in ("LSTMCell", "GRUCell", "RNNCell")]


SIZED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "tensor_split": (lambda x: x.tensor_split(3), (4,)),
    "tensor_split of 1": (lambda x: x.tensor_split(2, 1), (4, 5)),
    "broadcast_tensors": (lambda x: torch.broadcast_tensors(x[:, :1], x), (5,)),
    "diff": (lambda x: x.diff(dim=0), (4,)),
    "diff twice": (lambda x: x.diff(n=2, dim=0, prepend=x[:1]), (4,)),
    "diff of truths": (lambda x: (x > 0).diff(dim=0), (4,)),
    "take_along_dim": (lambda x: x.take_along_dim(x.argsort(0), 0), (4,)),
    "take_along_dim, one row": (lambda x: x.take_along_dim(x[:, :1].argsort(0), 0), (4,)),
    "take_along_dim, flat": (lambda x: x.take_along_dim(x.flatten().argsort()), (4,)),
    "tensordot": (lambda x: torch.tensordot(x, x, ([1, 2], [1, 2])), (3, 2)),
    "tensordot inside": (lambda x: torch.tensordot(x, x, ([0], [0])), (3,)),
    "kron": (lambda x: torch.kron(x, x[:1]), (3,)),
    "kron of another rank": (lambda x: torch.kron(x[:, 0], x), (3,)),
    "pad_sequence": (lambda x: pad_sequence([x[2:], x, x[:4]]), (3,)),
    "pad_sequence on the left": (
        lambda x: pad_sequence([x[:, 0], x[:5, 0]], True, 2.5, padding_side="left"), (2,),
    ),
    "pad_sequence of truths": (lambda x: pad_sequence([x[:3] > 0, x > 0], True, 1.0), (2, 2)),
    "cdist": (lambda x: torch.cdist(x, x), (3,)),
    "cdist, p = 1": (lambda x: torch.cdist(x, x, p=1.0), (3,)),
    "lstm_cell": (CELLS[0], (4,)),
    "gru_cell": (CELLS[1], (4,)),
    "rnn_cell": (CELLS[2], (4,)),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], 2, dtype=torch.int64)), (3, 2),
    ),
    "cross_entropy, each": (
        lambda x: F.cross_entropy(
            x, torch.zeros(x.shape[0], 2, dtype=torch.int64), reduction="none"
        ),
        (3, 2),
    ),
    "stft": (lambda x: torch.stft(x.T, 8, return_complex=True, window=torch.hann_window(8)), (2,)),
    "stft of one": (
        lambda x: torch.stft(
            x[:, 0], 8, 3, 5, center=False, normalized=True, onesided=False, return_complex=True,
            window=torch.hann_window(5),
        ),
        (2,),
    ),
    "one_hot": (lambda x: F.one_hot(torch.arange(x.shape[0]), x.shape[0]), (2,)),
    "arange of floats": (lambda x: torch.arange(0.0, x.shape[0] / 2, 0.3), (2,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZED)
def test_taken_apart_for_every_size(name: str) -> None:
    function, rest = SIZED[name]
    program = export(function, (torch.randn(12, *rest),), dynamic_shapes=({0: Dim("n")},))
    module = program.module()
    for n in (0, 1, 2, 7, 30):
        x = torch.randn(n, *rest)
        try:
            want = function(x)
        except (RuntimeError, IndexError):
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                module(x)
        else:
            torch.testing.assert_close(module(x), want, equal_nan=True)
