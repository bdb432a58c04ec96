"""Programs on a GPU beside eager execution: what is compared, without a test framework.

Each case is a function that raises where they disagree and returns what it measured, the largest
difference relative to the largest value. Every one is a test (`test_gpu.py`) and a line of the
report (`python -m tests.gpu.report`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lostwax
from examples.models import MODELS
from tests.capture.patches.autocast_lists import EXPECTED, Lists
from tests.gpu import triton_cases

Case = Callable[[], float]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DEVICE = "cuda"
BOUND = {F32: 2e-4, torch.float64: 1e-10, BF16: 5e-2, F16: 1e-2}
"""How far results of these dtypes may be apart: kernels of attention sum in another order."""


class Disagreement(AssertionError):
    """A program and eager differ."""


def compared(ours: Any, eager: Any, bound: float | None = None, strides: bool = True) -> float:
    """The largest relative difference of two trees of tensors, which must be alike."""
    mine, structure = pytree.tree_flatten(ours)
    theirs, wanted = pytree.tree_flatten(eager)
    if structure != wanted:
        raise Disagreement(f"structure {structure} instead of {wanted}")
    worst = 0.0
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if not isinstance(b, Tensor):
            if a != b:
                raise Disagreement(f"result {i}: {a} instead of {b}")
            continue
        for what in ("shape", "dtype", "device"):
            if getattr(a, what) != getattr(b, what):
                raise Disagreement(
                    f"result {i}: {what} {getattr(a, what)} instead of {getattr(b, what)}"
                )
        if strides and b.numel() and a.stride() != b.stride():
            raise Disagreement(f"result {i}: strides {a.stride()} instead of {b.stride()}")
        off = _difference(a, b)
        if off > (bound or BOUND.get(b.dtype, 0.0)):
            raise Disagreement(f"result {i}, {b.dtype}: differs by {off:.2g}")
        worst = max(worst, off)
    return worst


def _difference(a: Tensor, b: Tensor) -> float:
    if not b.numel() or not (b.is_floating_point() or b.is_complex()):
        return float(not torch.equal(a, b))
    wide = torch.complex128 if b.is_complex() else torch.float64
    x, y = a.detach().to(wide), b.detach().to(wide)
    if not torch.equal(x.isfinite(), y.isfinite()):
        return float("inf")
    x, y = x.nan_to_num(0, 0, 0), y.nan_to_num(0, 0, 0)
    return ((x - y).abs().max() / y.abs().max().clamp(min=1e-3)).item()


@contextmanager
def flags(tf32: bool = False) -> Iterator[None]:
    """TF32 on or off, for products and convolutions."""
    of, conv = torch.backends.cuda.matmul, torch.backends.cudnn
    before = of.allow_tf32, conv.allow_tf32
    of.allow_tf32 = conv.allow_tf32 = tf32
    try:
        yield
    finally:
        of.allow_tf32, conv.allow_tf32 = before


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast(DEVICE, BF16)


# ------------------------------------------------------------------------------------------- models


class Inside(nn.Module):
    """A model under autocast, in its own forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        with autocast():
            return self.model(*args)


def prepared(name: str, train: bool = False) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    example = MODELS[name]
    model = example.tiny().to(DEVICE).train(train)
    for each in model.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0  # the numbers that kernels draw are their own
        if isinstance(each, nn.RNNBase):
            each.dropout = 0.0
    return model, tuple(x.to(DEVICE) for x in example.tiny_inputs())


def converted(tree: Any, dtype: torch.dtype) -> Any:
    def convert(t: Tensor) -> Tensor:
        return t.to(dtype) if t.is_floating_point() else t

    return pytree.tree_map_only(Tensor, convert, tree)


def outcome(model: nn.Module, args: Any, train: bool) -> Any:
    """The result; in training also the buffers after the call, and the gradients."""
    if not train:
        with torch.no_grad():
            return model(*args)
    out = model(*args)
    first = next(t for t in pytree.tree_leaves(out) if t.is_floating_point())
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(first.float().sum(), list(named.values()), allow_unused=True)
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    return out, buffers, [g for g in grads if g is not None]


def model_case(
    name: str,
    train: bool = False,
    dtype: torch.dtype = F32,
    cast: str = "",
    tf32: bool = False,
    channels_last: bool = False,
    bound: float | None = None,
) -> float:
    model, args = prepared(name, train)
    model, args = model.to(dtype), converted(args, dtype)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        args = tuple(x.contiguous(memory_format=torch.channels_last) for x in args)
    if cast == "inside":
        model = Inside(model)
    around = autocast if cast == "around" else nullcontext
    with flags(tf32), around():
        ours = lostwax.export(deepcopy(model), args).module()
        wanted = outcome(model, args, train)
        return compared(outcome(ours, args, train), wanted, bound, strides=not train)


IMAGES = ("resnet50", "unet", "efficientnet")


def model_cases() -> Iterator[tuple[str, Case]]:
    low = 0.1  # gradients through a few layers in low precision
    for name in MODELS:
        case = partial(model_case, name)
        yield f"{name}: float32, eval", case
        yield f"{name}: float32, train", partial(case, train=True, bound=5e-3)
        yield f"{name}: float64, train", partial(case, train=True, dtype=torch.float64, bound=1e-9)
        yield f"{name}: autocast in forward, eval", partial(case, cast="inside", bound=5e-2)
        yield f"{name}: autocast around, eval", partial(case, cast="around", bound=5e-2)
        yield (
            f"{name}: autocast in forward, train",
            partial(case, train=True, cast="inside", bound=low),
        )
        yield f"{name}: bfloat16", partial(case, dtype=BF16)
        if name != "bert":  # whose mask does not fit into float16
            yield f"{name}: float16", partial(case, dtype=F16, bound=5e-2)
        yield f"{name}: TF32", partial(case, tf32=True, bound=1e-2)
        if name in IMAGES:
            yield f"{name}: channels_last", partial(case, channels_last=True)
            yield (
                f"{name}: channels_last, train",
                partial(case, channels_last=True, train=True, bound=5e-3),
            )


def saved(name: str) -> float:
    """Through a file, and then on the GPU."""
    model, args = prepared(name)
    with flags(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        lostwax.save(lostwax.export(model, args), path)
        program = lostwax.load(path)
        ours = program.module()
        example, _ = program.example_inputs
        with torch.no_grad():
            ours(*example)  # it is where it was
            return compared(ours(*args), model(*args))


def moved(name: str) -> float:
    """Captured on the CPU, run on the GPU."""
    model, args = prepared(name)
    on_cpu = lostwax.export(deepcopy(model).cpu(), tuple(x.cpu() for x in args))
    with flags(), torch.no_grad():
        return compared(on_cpu.module().to(DEVICE)(*args), model(*args), strides=False)


def dynamic(name: str) -> float:
    """With a batch of another size."""
    model, args = prepared(name)
    dims = {k: lostwax.Dim(k) for k in ("batch", "length")}
    shapes = tuple({d: dims[n] for d, n in each.items()} for each in MODELS[name].dynamic)
    with flags(), torch.no_grad():
        ours = lostwax.export(model, args, dynamic_shapes=shapes).module()
        more = tuple(torch.cat([x, x]) for x in args)
        return compared(ours(*more), model(*more))


# ------------------------------------------------------------------------------------------- layers


def module_case(
    make: Callable[[], nn.Module],
    *sizes: tuple[int, ...],
    dtype: torch.dtype = F32,
    cast: bool = False,
    train: bool = False,
    bound: float | None = None,
    form: torch.memory_format | None = None,
) -> float:
    torch.manual_seed(0)
    model = make().to(DEVICE).to(dtype).train(train)
    args = tuple(torch.randn(s, device=DEVICE, dtype=dtype) for s in sizes)
    if form is not None:
        args = tuple(x.contiguous(memory_format=form) for x in args)
    subject = Inside(model) if cast else model
    with flags():
        ours = lostwax.export(deepcopy(subject), args).module()
        got = outcome(ours, args, train)
        return compared(got, outcome(subject, args, train), 5e-2 if cast else bound)


def convolved(conv: Any, norm: Any, back: Any) -> nn.Module:
    return nn.Sequential(conv(4, 8, 3, bias=False), norm(8), nn.ReLU(), back(8, 4, 3))


class Attended(nn.Module):
    def __init__(self, causal: bool = False, backend: SDPBackend | None = None) -> None:
        super().__init__()
        self.causal, self.backend = causal, backend

    def forward(self, x: Tensor) -> Tensor:
        attention = nn.functional.scaled_dot_product_attention
        with nullcontext() if self.backend is None else sdpa_kernel(self.backend):
            return attention(x, x, x, is_causal=self.causal)


def layer_cases() -> Iterator[tuple[str, Case]]:
    recurrent: dict[str, dict[str, Any]] = {
        "": {},
        " both ways": {"num_layers": 2, "bidirectional": True},
        " batch first": {"batch_first": True},
    }
    for layer in (nn.LSTM, nn.GRU, nn.RNN):
        for text, options in recurrent.items():
            make = partial(layer, 4, 8, **options)
            case = partial(module_case, make, (3, 5, 4))
            yield f"{layer.__name__}{text}", partial(case, bound=1e-3)
            yield f"{layer.__name__}{text}, train", partial(case, train=True, bound=5e-3)
            yield f"{layer.__name__}{text}, autocast", partial(case, cast=True)
            yield f"{layer.__name__}{text}, float16", partial(case, dtype=F16, bound=5e-2)
        cell = getattr(nn, f"{layer.__name__}Cell")
        case = partial(module_case, partial(cell, 4, 8), (3, 4))
        yield f"{layer.__name__}Cell", partial(case, bound=1e-3)
        yield f"{layer.__name__}Cell, autocast", partial(case, cast=True)
    yield (
        "LSTM with a projection",
        partial(module_case, partial(nn.LSTM, 4, 8, proj_size=3), (3, 5, 4), bound=1e-3),
    )
    for n, size in ((1, (2, 4, 8)), (2, (2, 4, 8, 8)), (3, (2, 4, 4, 8, 8))):
        conv, norm = getattr(nn, f"Conv{n}d"), getattr(nn, f"BatchNorm{n}d")
        back = getattr(nn, f"ConvTranspose{n}d")
        make = partial(convolved, conv, norm, back)
        forms = {"": None}
        if n > 1:
            forms[", channels_last"] = torch.channels_last if n == 2 else torch.channels_last_3d
        for text, form in forms.items():
            for dtype in (F32, BF16, F16):
                name = str(dtype).removeprefix("torch.")
                case = partial(module_case, make, size, form=form, dtype=dtype)
                yield f"conv{n}d and batch_norm, {name}{text}", partial(case, bound=5e-2)
            train = partial(module_case, make, size, form=form, train=True, bound=5e-3)
            yield f"conv{n}d and batch_norm, train{text}", train
    for dtype in (F32, BF16, F16):
        name = str(dtype).removeprefix("torch.")
        for causal in (False, True):
            case = partial(module_case, partial(Attended, causal), (2, 4, 16, 32), dtype=dtype)
            yield f"attention, {name}{', causal' if causal else ''}", case
    backends = (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION)
    for backend in backends:
        make = partial(Attended, backend=backend)
        yield f"attention by {backend.name}", partial(module_case, make, (2, 4, 16, 32))
    encoder = partial(nn.TransformerEncoderLayer, 32, 4, 64, dropout=0.0)
    yield "encoder", partial(module_case, encoder, (5, 2, 32), bound=1e-3)
    yield "encoder, autocast", partial(module_case, encoder, (5, 2, 32), cast=True)


# ------------------------------------------------------------------------------ autocast, settings


def lists() -> float:
    """The dtypes that tests on machines without a GPU expect are those of a GPU."""
    model, x = Lists().to(DEVICE), torch.randn(2, 3, 4, device=DEVICE)
    found = [t.dtype for t in model(x)]
    if found != EXPECTED:
        raise Disagreement(f"eager gives {found}")
    return compared(lostwax.export(model, (x,)).module()(x), model(x))


def tf32_is_read_when_it_runs() -> float:
    """A flag that is set after the capture has the effect that it has on eager."""
    model, x = nn.Linear(512, 512).to(DEVICE), torch.randn(64, 512, device=DEVICE)
    ours = lostwax.export(model, (x,)).module()
    results = {}
    for tf32 in (False, True):
        with flags(tf32):
            results[tf32] = compared(ours(x), model(x), 1e-6)
    with flags(True):
        low = ours(x)
    with flags(False):
        if torch.equal(low, ours(x)):
            raise Disagreement("TF32 changes nothing: nothing is shown")
    return max(results.values())


def around_the_call() -> float:
    model, x = nn.Linear(4, 4).to(DEVICE), torch.randn(2, 4, device=DEVICE)
    ours = lostwax.export(model, (x,)).module()
    try:
        with autocast():
            ours(x)
    except lostwax.errors.SettingsError:
        return 0.0
    raise Disagreement("autocast around the call is ignored")


def fake_strides(name: str) -> float:
    """What a fake mode says of a model's results."""
    model, args = prepared(name)
    eager = pytree.tree_leaves(outcome(model, args, train=False))
    mode = lostwax.FakeTensorMode()
    state = {k: mode.from_tensor(v) for k, v in model.state_dict(keep_vars=True).items()}
    state |= {k: mode.from_tensor(v) for k, v in model.named_buffers()}
    with mode, torch.no_grad():
        given = tuple(mode.from_tensor(x) for x in args)
        fakes = pytree.tree_leaves(torch.func.functional_call(model, state, given))
    for got, want in zip(fakes, eager, strict=True):
        seen = [(t.shape, t.dtype, t.stride(), t.device) for t in (got, want)]
        if seen[0] != seen[1]:
            raise Disagreement(f"the fake {seen[0]} instead of {seen[1]}")
    return 0.0


def cases() -> dict[str, Case]:
    found: dict[str, Case] = dict(model_cases())
    found |= {f"{name}: saved and loaded": partial(saved, name) for name in MODELS}
    found |= {f"{name}: captured on the CPU": partial(moved, name) for name in MODELS}
    found |= {f"{name}: dynamic": partial(dynamic, name) for name in MODELS}
    found |= {f"{name}: fakes": partial(fake_strides, name) for name in MODELS}
    found |= dict(layer_cases())
    found["Triton: an operator"] = triton_cases.stays_an_operator
    found["Triton: a launch"] = triton_cases.is_refused
    found["autocast: every list"] = lists
    found["autocast around the call"] = around_the_call
    found["TF32 is read when it runs"] = tf32_is_read_when_it_runs
    return found
