"""Programs as users write them, with sizes that vary: right at all of them, 0 and 1 included, where
eager is; raising where eager raises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lostwax import Dim, bytecode, export, torch_version
from lostwax.errors import (
    CaptureError,
    ConstraintViolationError,
    DataDependentError,
    InputValueError,
    LostwaxError,
    UnsupportedFakeError,
)
from lostwax.ir.program import ExportedProgram
from lostwax.torch_version import TORCH

randn = torch.randn
N, L, H, W = (Dim(name) for name in ("n", "l", "h", "w"))


def agrees(
    f: Callable[..., Any],
    make: Callable[..., tuple[Any, ...]],
    example: tuple[int, ...],
    shapes: Any,
    sizes: Iterable[tuple[int, ...]],
) -> ExportedProgram:
    """Export at the example's sizes, and compare with eager at the others."""
    torch.manual_seed(0)
    program = export(f, make(*example), dynamic_shapes=shapes)
    for size in (example, *sizes):
        args = make(*size)
        wanted, got = (outcome(g, args) for g in (deepcopy(f), program.module()))
        assert (wanted is None) == (got is None), f"at {size}"
        torch.testing.assert_close(got, wanted, equal_nan=True, msg=lambda m, s=size: f"{s}: {m}")
    return program


def outcome(f: Callable[..., Any], args: tuple[Any, ...]) -> list[Any] | None:
    """Results, the arguments afterwards, and their gradients; None if it raises."""
    args = deepcopy(args)
    torch.manual_seed(1)
    try:
        results = pytree.tree_leaves(f(*args))
    except (RuntimeError, ValueError, IndexError):
        return None
    if any(a.requires_grad for a in args):
        sum(r.sum() for r in results if r.requires_grad).backward()
    return [*results, *args, *(a.grad for a in args if a.grad is not None)]


def batched(*rest: int) -> Callable[[int], tuple[Tensor]]:
    return lambda n: (randn(n, *rest),)


BATCHES = [(0,), (1,), (2,), (5,)]

# -------------------------------------------------------------------------------------------- noise

DROPOUTS = {
    "dropout": (4, 5),
    "dropout1d": (4, 5),
    "dropout2d": (4, 5, 2),
    "dropout3d": (4, 5, 2, 2),
    "alpha_dropout": (4, 5),
    "feature_alpha_dropout": (4, 5),
}


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("in_place", [False, True])
def test_dropouts_in_training(name: str, in_place: bool) -> None:
    for p in (0.0, 0.4, 1.0):
        drop = partial(getattr(F, name), p=p, training=True, inplace=in_place)
        program = agrees(drop, batched(*DROPOUTS[name]), (3,), ({0: N},), BATCHES)
        assert not program.guards
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(inplace=True), nn.ReLU(inplace=True))
    assert not agrees(model, batched(4), (3,), ({0: N},), BATCHES).guards


def test_noise_is_drawn_as_in_eager_whatever_the_layout() -> None:
    shapes = ({0: N, 1: L},)
    sizes = [(1, 5), (2, 3), (3, 1)]
    agrees(
        lambda x: F.dropout(x.mT * 2, 0.5), lambda n, m: (randn(n, m, 4),), (2, 6), shapes, sizes
    )
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
    agrees(layer, lambda n, m: (randn(n, m, 4),), (2, 6), shapes, sizes)


# -------------------------------------------------------------------------------- forward gradients

DIFFERENTIATED: list[Callable[[Tensor], Any]] = [
    torch.sin,
    lambda x: torch.tanh(x) @ x.T,
    lambda x: F.gelu(F.linear(x, torch.ones(3, 4), torch.ones(3))).view(-1, 3),
    lambda x: torch.cat([x.cumsum(0), x.sort(1).values]) * 2,
    lambda x: (x * 1).mul_(2).sum(1),
]


@pytest.mark.parametrize("f", DIFFERENTIATED)
def test_jvp_keeps_size_0(f: Any) -> None:
    def pushed(x: Tensor, tangent: Tensor) -> Any:
        return torch.func.jvp(f, (x,), (tangent,))

    make = lambda n: (randn(n, 4), randn(n, 4))  # noqa: E731
    assert not agrees(pushed, make, (3,), ({0: N}, {0: N}), BATCHES).guards


@pytest.mark.skipif(TORCH < (2, 13), reason="not captured there: an internal assertion of torch")
def test_jvp_of_what_torch_differentiates_in_script() -> None:
    def pushed(x: Tensor, tangent: Tensor) -> Any:
        return torch.func.jvp(lambda x: F.layer_norm(x, (4,)), (x,), (tangent,))

    agrees(pushed, lambda n: (randn(n, 4), randn(n, 4)), (3,), None, [])
    with pytest.raises(ConstraintViolationError, match="a concrete integer was needed"):
        export(pushed, (randn(3, 4), randn(3, 4)), dynamic_shapes=({0: N}, {0: N}))


# ------------------------------------------------------------------------------------ distributions


def positive(*size: int) -> Tensor:
    return torch.rand(*size) + 0.1


LIKELIHOODS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]] = {
    "normal": (
        lambda m, s, x: D.Normal(m, s).log_prob(x),
        lambda n: (randn(n, 4), positive(n, 4), randn(n, 4)),
    ),
    "categorical": (
        lambda m, x: D.Categorical(logits=m).log_prob(x),
        lambda n: (randn(n, 4), torch.randint(0, 4, (n,))),
    ),
    "bernoulli": (
        lambda m, x: D.Bernoulli(logits=m).log_prob(x),
        lambda n: (randn(n, 4), torch.randint(0, 2, (n, 4)).float()),
    ),
    "multivariate": (
        lambda m, x: D.MultivariateNormal(m, torch.eye(4)).log_prob(x),
        lambda n: (randn(n, 4), randn(n, 4)),
    ),
    "gamma": (
        lambda a, b, x: D.Gamma(a, b).log_prob(x),
        lambda n: (positive(n, 4), positive(n, 4), positive(n, 4)),
    ),
    "beta": (
        lambda a, b, x: D.Beta(a, b).log_prob(x),
        lambda n: (positive(n, 4), positive(n, 4), torch.rand(n, 4)),
    ),
    "mixture": (
        lambda p, m, x: D.MixtureSameFamily(D.Categorical(logits=p), D.Normal(m, 1.0)).log_prob(x),
        lambda n: (randn(n, 4), randn(n, 4), randn(n)),
    ),
    "independent": (
        lambda m, x: D.Independent(D.Laplace(m, 1.0), 1).log_prob(x),
        lambda n: (randn(n, 4), randn(n, 4)),
    ),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_log_prob_of_a_batch(name: str) -> None:
    f, make = LIKELIHOODS[name]
    agrees(f, make, (3,), tuple({0: N} for _ in make(1)), BATCHES)


# ---------------------------------------------------------------------- what is raised is no choice


def checked(x: Tensor) -> Tensor:
    if x.shape[0] == 0 or x.shape[0] > 10:
        raise ValueError(f"{x.shape[0]} rows")
    if x.shape[0] == 3:
        raise ValueError
    return x * 2


def matched(x: Tensor, y: Tensor) -> Tensor:
    if x.shape[0] != 1 and y.shape[0] != 1 and x.shape[0] != y.shape[0]:
        raise ValueError("rows")
    return x.sum() + y.sum()


def caught(x: Tensor) -> Tensor:
    try:
        return checked(x)
    except ValueError:
        return x


def caught_here(x: Tensor) -> Tensor:
    try:
        if x.shape[0] > 10:
            raise ValueError
        return x * 2
    except ValueError:
        return x


def test_a_branch_that_raises_narrows_the_range() -> None:
    sizes = [(0,), (1,), (3,), (11,)]
    program = agrees(checked, batched(2), (4,), ({0: N},), sizes)
    assert {g.kind for g in program.guards} == {"check"}
    with torch.no_grad():
        agrees(checked, batched(2), (4,), ({0: N},), sizes)
    for layer in (nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))):
        assert agrees(layer, batched(4), (3,), ({0: N},), [(1,), (2,), (5,)]).guards
    agrees(
        nn.InstanceNorm1d(4), lambda n, m: (randn(n, 4, m),), (3, 5), ({2: L},), [(3, 1), (3, 2)]
    )


def checked_values(x: Tensor) -> Tensor:
    if x.sum().item() < 0:
        raise ValueError("negative")
    if x.isnan().any() or not x.max():
        raise ValueError("not a number, or zero")
    return x * 2


def counted(x: Tensor) -> Tensor:
    if not x.nonzero().shape[0]:  # a size, whose truth torch asks of a condition
        raise ValueError("nothing")
    return x * 2


ASSERTED: dict[str, Any] = {}
exec('def f(x):\n    assert not x.isnan().any(), "pytest rewrites its own"\n    return x', ASSERTED)


def test_data_on_which_it_would_raise_are_asserted() -> None:
    loss = nn.GaussianNLLLoss()
    program = export(loss, (randn(3), randn(3), torch.rand(3)))
    args = randn(3), randn(3), torch.rand(3)
    torch.testing.assert_close(program.module()(*args), loss(*args))
    with pytest.raises(RuntimeError, match="is required at"):
        program.module()(randn(3), randn(3), -torch.ones(3))

    program = export(checked_values, (torch.ones(4),), dynamic_shapes=({0: N},))
    for run in (program.module(), program.run_decompositions().module()):
        assert torch.equal(run(torch.ones(5)), torch.full((5,), 2.0))
        for bad, line in ((-1.0, "item"), (float("nan"), "isnan"), (0.0, "max")):
            text = (
                f"is required at .* in checked_values: .*{line}.*\\n  because the original raises"
            )
            with pytest.raises(RuntimeError, match=text):
                run(torch.full((5,), bad))

    run = export(counted, (torch.ones(4),)).module()
    assert torch.equal(run(torch.ones(4)), torch.full((4,), 2.0))
    with pytest.raises(RuntimeError, match=r"is required at .* in counted: .*\n  because the orig"):
        run(torch.zeros(4))

    run = export(ASSERTED["f"], (torch.ones(4),)).module()
    with pytest.raises(RuntimeError, match="is required at"):
        run(torch.full((4,), float("nan")))


def test_data_on_which_something_is_raised_and_caught_are_a_choice() -> None:
    def tried(x: Tensor) -> Tensor:
        try:
            return checked_values(x)
        except ValueError:
            return x

    with pytest.raises(DataDependentError, match="cannot decide"):
        export(tried, (torch.ones(4),), control_flow="refuse")
    run = export(tried, (torch.ones(4),)).module()
    for x in (torch.ones(4), -torch.ones(4)):
        assert torch.equal(run(x), tried(x))


class Timed:
    """Its `__exit__` never returns a truth; that of `Tolerant` does."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            return
        del trace


class Tolerant(Timed):
    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        return kind is ValueError


def within(manager: Callable[[], Any], x: Tensor) -> Tensor:
    with manager():
        return checked_values(x)
    return x


def suppressed(x: Tensor) -> Tensor:
    with contextlib.suppress(ValueError):
        return checked_values(x)
    return x


def timed(x: Tensor) -> Tensor:
    with torch.no_grad(), Timed(), torch.autograd.profiler.record_function("a"):
        return checked_values(x)


def tolerated(x: Tensor) -> Tensor:
    with Timed(), Tolerant():
        return checked_values(x)
    return x


class Positive:
    """Ends, is at its end or has no attribute where a sum is not positive."""

    def __init__(self, x: Tensor) -> None:
        self.rest = list(x)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Tensor:
        if not self.rest or self.rest[0] < 0:
            raise StopIteration
        return self.rest.pop(0)

    def __getitem__(self, i: int) -> Tensor:
        return self.at(i)

    def at(self, i: int) -> Tensor:
        if self.rest[i] < 0:
            raise IndexError(i)
        return self.rest[i]

    @property
    def first(self) -> Tensor:
        if self.rest[0] < 0:
            raise AttributeError("first")
        return self.rest[0]


WRITTEN: dict[str, Any] = {}
exec(
    "def f(g, x):\n    try:\n        return g(x)\n    except ValueError:\n        return x", WRITTEN
)


def test_data_on_which_something_is_suppressed_are_a_choice() -> None:
    with pytest.raises(LostwaxError, match="cannot decide"):
        export(suppressed, (torch.ones(4),), control_flow="refuse")
    run = export(suppressed, (torch.ones(4),)).module()
    for x in (torch.ones(4), -torch.ones(4)):
        assert torch.equal(run(x), suppressed(x))


@pytest.mark.parametrize(
    "function",
    [
        tolerated,
        partial(within, partial(contextlib.suppress, ValueError)),
        lambda x: WRITTEN["f"](checked_values, x),
        lambda x: sum(Positive(x)),
        lambda x: next(Positive(x), x),
        lambda x: Positive(x)[0],
        lambda x: getattr(Positive(x), "first", x),
    ],
)
def test_data_on_which_something_may_be_caught_are_a_choice(function: Any) -> None:
    with pytest.raises(LostwaxError, match="cannot decide"):
        export(function, (torch.ones(4),), control_flow="refuse")
    with pytest.raises(LostwaxError, match=r"raises \w+, and that may be caught"):
        export(function, (torch.ones(4),))


@pytest.mark.parametrize("function", [timed, lambda x: Positive(x).at(0) * 2])
def test_data_on_which_nothing_is_caught_are_asserted(function: Any) -> None:
    run = export(function, (torch.ones(4),)).module()
    assert torch.equal(run(torch.ones(4)), function(torch.ones(4)))
    with pytest.raises(RuntimeError, match="is required at"):
        run(-torch.ones(4))


def test_data_are_asserted_under_the_sizes_at_which_they_are_asked() -> None:
    def two_parts(x: Tensor) -> Tensor:
        if x.shape[0] != 3 and x[0] > 1:
            raise ValueError("large")
        return x * 2

    def three_parts(x: Tensor) -> Tensor:
        large = (x > 1).sum().item()
        n = x.shape[0]
        if n != 3 and n != 5 and large != 0:
            raise ValueError("large")
        return x * 2

    for function in (two_parts, three_parts):
        with pytest.raises(ConstraintViolationError, match=r"x.shape\[0\] != 3"):
            export(function, (torch.ones(4),), dynamic_shapes=({0: N},))
        run = export(function, (torch.ones(4),)).module()
        with pytest.raises(RuntimeError, match="is required at"):
            run(torch.full((4,), 2.0))


def test_a_part_of_a_condition_that_raises_costs_nothing() -> None:
    program = agrees(matched, lambda n: (randn(n, 2),) * 2, (4,), ({0: N}, {0: N}), BATCHES)
    assert not program.guards
    free = agrees(matched, lambda n: (randn(n, 2),) * 2, (4,), ({0: Dim.AUTO},) * 2, BATCHES)
    assert [g.predicate for g in free.guards] == ["x.shape[0] == y.shape[0]"]


@pytest.mark.parametrize("f", [caught, caught_here])
def test_a_branch_that_raises_to_be_caught_is_a_choice(f: Any) -> None:
    with pytest.raises(ConstraintViolationError, match="the trace follows the example"):
        export(f, (randn(4, 2),), dynamic_shapes=({0: N},))


# --------------------------------------------------------------------------- images and their grids


class SpatialTransformer(nn.Module):
    def __init__(self, align_corners: bool | None) -> None:
        super().__init__()
        self.align_corners = align_corners
        self.where = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 6)
        )

    def forward(self, x: Tensor) -> Tensor:
        theta = self.where(x).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.size()), align_corners=self.align_corners)
        return F.grid_sample(x, grid, align_corners=self.align_corners)


@pytest.mark.filterwarnings("ignore:Default grid_sample:UserWarning")
@pytest.mark.filterwarnings("ignore:Since version 1.3.0:UserWarning")
@pytest.mark.parametrize("align_corners", [False, True, None])
def test_spatial_transformer(align_corners: bool | None) -> None:
    model = SpatialTransformer(align_corners)
    agrees(model, batched(1, 6, 6), (3,), ({0: N},), BATCHES)
    sizes = [(1, 4, 9), (2, 1, 5), (0, 4, 4), (1, 1, 1), (1, 0, 3)]
    shapes = ({0: N, 2: H, 3: W},)
    agrees(model, lambda n, h, w: (randn(n, 1, h, w),), (3, 4, 5), shapes, sizes)


class Pyramid(nn.Module):
    """Five strides, joined from above, then attention over all of their places."""

    def __init__(self, by_factor: bool) -> None:
        super().__init__()
        self.by_factor = by_factor
        strided = partial(nn.Conv2d, kernel_size=3, stride=2, padding=1)
        self.stages = nn.ModuleList(strided(3 if i == 0 else 4, 4) for i in range(5))
        self.lateral = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(5))
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for stage in self.stages:
            x = stage(x).relu()
            levels.append(x)
        joined = [self.lateral[4](levels[4])]
        for i in (3, 2, 1, 0):
            up: Any = {"scale_factor": 2} if self.by_factor else {"size": levels[i].shape[-2:]}
            joined.append(self.lateral[i](levels[i]) + F.interpolate(joined[-1], **up))
        places = torch.cat([level.flatten(2).transpose(1, 2) for level in joined], 1)
        return self.encoder(places)


def images(n: int, h: int, w: int) -> tuple[Tensor]:
    return (randn(n, 3, h, w),)


def test_feature_pyramid() -> None:
    sizes = [(1, 32, 32), (1, 33, 47), (3, 1, 1), (0, 32, 32), (2, 31, 65)]
    program = agrees(Pyramid(False), images, (2, 64, 96), ({0: N, 2: H, 3: W},), sizes)
    assert [g.predicate for g in program.guards] == ["x.shape[2] >= 1", "x.shape[3] >= 1"]
    by_32 = ({0: N, 2: 32 * H, 3: 32 * W},)
    agrees(Pyramid(True), images, (2, 64, 96), by_32, [(1, 32, 32), (0, 32, 64)])
    with pytest.raises(ConstraintViolationError, match=r"at h = 65"):
        export(Pyramid(True), images(2, 64, 96), dynamic_shapes=({2: H, 3: W},))


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(affine: bool) -> None:
    norm = nn.GroupNorm(4, 8, affine=affine)
    sizes = [(0, 5), (1, 5), (3, 1), (2, 7), (3, 0), (0, 0), (1, 1)]
    make = lambda n, m: (randn(n, 8, m, requires_grad=True),)  # noqa: E731
    guards = agrees(norm, make, (3, 5), ({0: N, 2: L},), sizes).guards
    refuses_none = torch_version.GROUP_NORM_TAKES_ANY_STRIDES
    assert [str(g.cond) for g in guards] == (["w >= 1"] if refuses_none else [])
    model = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), norm, nn.ReLU(), nn.Conv1d(8, 2, 3))
    agrees(model, lambda n, m: (randn(n, 8, m),), (3, 5), ({0: N, 2: L},), sizes)
    image = nn.Sequential(norm, nn.Conv2d(8, 2, 3, padding=1))
    shapes = ({0: N, 2: H, 3: W},)
    agrees(image, lambda n, h: (randn(n, 8, h, h + 1),), (3, 5), shapes, sizes)


# ------------------------------------------------------------------------------------------- sounds


def round_trip(x: Tensor, window: Tensor | None, **how: Any) -> Tensor:
    spectrum = torch.stft(x, 16, 4, window=window, return_complex=True, **how)
    return torch.istft(spectrum * 0.5, 16, 4, window=window, **how)


SIGNALS = [(1, 64), (3, 65), (0, 64), (2, 33), (1, 9), (1, 8), (1, 3)]


@pytest.mark.parametrize(
    "how", [{}, {"center": False}, {"onesided": False}, {"normalized": True}], ids=str
)
def test_istft(how: dict[str, Any]) -> None:
    window = None if how.get("center") is False else torch.hann_window(16)
    f = partial(round_trip, window=window, **how)
    agrees(f, lambda: (randn(64),), (), None, [])
    agrees(f, lambda n, m: (randn(n, m),), (2, 64), None, [])
    agrees(f, lambda n, m: (randn(n, m, requires_grad=True),), (2, 64), ({0: N, 1: L},), SIGNALS)


class Enhancer(nn.Module):
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(12))
        self.mask = nn.Conv1d(9, 9, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        how = {"hop_length": 4, "win_length": 12, "window": self.window}
        spectrum = torch.stft(x, 16, return_complex=True, **how)
        masked = spectrum * self.mask(spectrum.abs()).sigmoid()
        return torch.istft(masked, 16, length=x.shape[-1], **how)


def test_istft_of_a_given_length() -> None:
    agrees(Enhancer(), lambda n, m: (randn(n, m),), (2, 64), ({0: N, 1: L},), SIGNALS)

    def cut_or_padded(spectrum: Tensor, like: Tensor) -> Tensor:
        return spectrum.istft(16, 4, window=torch.hann_window(16), length=like.shape[-1])

    make = lambda n, m: (randn(n, 9, 12, dtype=torch.complex64), randn(m))  # noqa: E731
    sizes = [(1, 20), (2, 44), (2, 52), (1, 70), (1, 200)]
    agrees(cut_or_padded, make, (2, 48), ({0: N}, {0: L}), sizes)


@pytest.mark.parametrize("frequencies", [9, 16])
def test_istft_of_frequencies_that_might_vary(frequencies: int) -> None:
    """Whether it is half a spectrum is asked, and so they are fixed."""

    def inverse(spectrum: Tensor) -> Tensor:
        return torch.istft(spectrum, 16, 4, window=torch.hann_window(16))

    make = lambda m: (randn(2, frequencies, m, dtype=torch.complex64),)  # noqa: E731
    agrees(inverse, make, (5,), ({1: Dim.AUTO, 2: L},), [(1,), (2,), (7,)])


def test_istft_asserts_that_windows_overlap() -> None:
    def apart(spectrum: Tensor) -> Tensor:
        return torch.istft(spectrum, 16, 16, window=torch.hann_window(16))

    spectrum = randn(2, 9, 5, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="window overlap add min"):
        apart(spectrum)
    with pytest.raises(RuntimeError, match="window overlap add min"):
        export(apart, (spectrum,)).module()(spectrum)


# ------------------------------------------------------------------------------------------- tables


class Grown(nn.Module):
    """Tables of angles, made again for a longer sequence."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("speed", 0.1 ** torch.arange(0, 4, 2).float(), persistent=False)
        self.grow(length)

    def grow(self, length: int) -> None:
        self.length = length
        angles = torch.outer(torch.arange(length).float(), self.speed).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length > self.length:
            self.grow(length)
        turned = torch.cat((-x[..., 2:], x[..., :2]), -1)
        return x * self.cos[:length] + turned * self.sin[:length]


class GrownFromNothing(Grown):
    def __init__(self, length: int) -> None:
        super().__init__(0)
        del self.cos, self.sin
        self.cos = self.sin = None

    def grow(self, length: int) -> None:
        self.length = length
        angles = torch.outer(torch.arange(length).float(), self.speed).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()


def sequences(n: int, length: int) -> tuple[Tensor]:
    return (randn(n, length, 4),)


def test_a_table_that_is_long_enough() -> None:
    with pytest.raises(ConstraintViolationError, match=r'l = Dim\("l", max=8\)'):
        export(Grown(8), sequences(2, 5), dynamic_shapes=({0: N, 1: L},))
    shapes = ({0: N, 1: Dim("l", max=8)},)
    agrees(Grown(8), sequences, (2, 5), shapes, [(1, 1), (0, 3), (3, 0), (2, 8)])
    free = ({0: N, 1: Dim.AUTO},)
    program = agrees(Grown(8), sequences, (2, 5), free, [(2, 8), (1, 0)])
    with pytest.raises(InputValueError, match=r"x.shape\[1\] <= 8"):
        program.module()(*sequences(2, 9))


@pytest.mark.parametrize("model", [Grown, GrownFromNothing])
def test_a_table_that_would_grow_in_the_program(model: Any) -> None:
    table = model(8)
    with pytest.raises(CaptureError, match="call the module once with the largest before exp"):
        export(table, sequences(2, 12), dynamic_shapes=({0: N, 1: Dim("l", min=9)},))
    table(*sequences(1, 20))  # as it says
    sizes = [(1, 1), (0, 3), (3, 0), (2, 20)]
    agrees(table, sequences, (2, 12), ({0: N, 1: Dim("l", max=20)},), sizes)


# ------------------------------------------------------------------------------- classes of tensors


class Marked(Tensor):
    pass


class Boxes(Tensor):
    @staticmethod
    def __new__(cls, data: Tensor) -> Boxes:
        return Tensor._make_subclass(cls, data)


class Pair(Tensor):
    """Two tensors of one size, on which operators work alike."""

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor) -> Pair:
        return Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device)

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def of(part: str) -> Any:
            take = lambda x: getattr(x, part)  # noqa: E731
            given = pytree.tree_map_only(Pair, take, (args, kwargs or {}))
            return func(*given[0], **given[1])

        return Pair(of("a"), of("b"))


def test_wrappers_made_inside() -> None:
    def paired(x: Tensor) -> Any:
        pair: Any = (Pair(x, x + 1) @ torch.ones(4, 2)).view(-1).relu()
        return pair.a, pair.b.mul_(2)

    assert not agrees(paired, batched(4), (3,), ({0: N},), BATCHES).guards


def caught_class(x: Tensor) -> Tensor:
    try:
        return (x.as_subclass(Marked) * 2).as_subclass(Tensor)
    except RuntimeError:
        return x


@pytest.mark.parametrize(
    ("f", "name"),
    [(lambda x: x.as_subclass(Marked) * 2, "Marked"), (lambda x: Boxes(x) * 2, "Boxes")],
)
def test_tensors_of_another_class_are_refused(f: Any, name: str) -> None:
    with pytest.raises(UnsupportedFakeError, match=f"becomes one of the class {name}") as raised:
        export(f, (randn(3, 4),))
    assert "test_ordinary.py:" in str(raised.value)
    with pytest.raises(CaptureError, match="the module's own code caught this error"):
        export(caught_class, (randn(3, 4),))
    agrees(lambda x: x.as_subclass(Tensor) * 2, batched(4), (3,), ({0: N},), BATCHES)


# ----------------------------------------------------------------------------------------- and more


def in_windows(x: Tensor) -> Tensor:
    """Attention within windows of four, with what is missing padded."""
    n, length, width = x.shape
    padded = F.pad(x, (0, 0, 0, (-length) % 4)).view(n, -1, 4, width)
    return ((padded @ padded.mT).softmax(-1) @ padded).flatten(1, 2)[:, :length]


def to_experts(x: Tensor) -> Tensor:
    rows = x.reshape(-1, 4)
    weight, chosen = rows.softmax(-1).topk(2, -1)
    out = torch.zeros_like(rows)
    for expert in range(4):
        row, slot = torch.where(chosen == expert)
        out.index_add_(0, row, rows[row] * (expert + 1) * weight[row, slot, None])
    return out.view_as(x)


SEQUENCES: dict[str, Callable[[Tensor], Any]] = {
    "windows": in_windows,
    "experts": to_experts,
    "similarity": lambda x: F.cosine_similarity(x[:, None], x[None], dim=-1),
    "wavelet": lambda x: x[:, 0::2][:, : x.shape[1] // 2] - x[:, 1::2],
    "halves": lambda x: torch.cat([x[:, 0::2], x[:, 1::2]], 1) + x,
    "causal": lambda x: (
        (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -1e9).softmax(-1)
    ),
    "normalized": lambda x: F.layer_norm(x, x.shape[1:]),
    "positions": lambda x: ((x[..., 0] > 0).long().cumsum(1) * (x[..., 0] > 0)).clamp(min=0),
    "spectrum": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=x.shape[1], dim=1),
    "pooled": lambda x: F.max_pool1d(x.mT, 2, ceil_mode=True),
    "pooled to two": lambda x: F.adaptive_max_pool1d(x.mT, 2),
    "scattered": lambda x: torch.zeros(x.shape[0], 3, 4).scatter_reduce(
        1, (x.abs() * 3).long().clamp(0, 2), x, "mean"
    ),
    "buckets": lambda x: torch.searchsorted(x.sort(-1).values, x),
    "sampled": lambda x: F.gumbel_softmax(x, hard=True),
}
IMAGES: dict[str, Callable[[Tensor], Any]] = {
    "folded": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1),
    "shuffled": lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
    "scaled": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "patches": lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3),
    "cropped": lambda x: x[..., x.shape[2] // 4 : 3 * x.shape[2] // 4, 1:-1],
    "brightest": lambda x: torch.stack([i // x.shape[3] for i in x.flatten(2).max(-1)]),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name: str) -> None:
    for example in ((3, 6), (1, 5)):
        sizes = [(0, 5), (1, 1), (2, 7), (2, 2), (3, 0)]
        agrees(SEQUENCES[name], sequences, example, ({0: N, 1: L},), sizes)


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    sizes = [(1, 5, 4), (0, 4, 4), (2, 1, 1), (1, 2, 3), (1, 0, 3)]
    agrees(IMAGES[name], images, (2, 6, 8), ({0: N, 2: H, 3: W},), sizes)


def warp(theta: Tensor) -> Tensor:
    return F.affine_grid(theta, [theta.shape[0], 3, 4, 5], align_corners=False)


def make_back(x: Tensor) -> Tensor:
    window = torch.hann_window(16)
    waves = torch.stft(x, 16, hop_length=4, window=window, return_complex=True)
    return torch.istft(waves, 16, hop_length=4, window=window, length=64)


def test_affine_grids_of_any_batch() -> None:
    program = export(warp, (torch.randn(2, 2, 3),), dynamic_shapes={"theta": {0: N}})
    for batch in (1, 2, 5):
        theta = torch.randn(batch, 2, 3)
        torch.testing.assert_close(program.module()(theta), warp(theta))
    with pytest.raises(ValueError, match="non-zero, positive output size"):
        warp(torch.randn(0, 2, 3))
    with pytest.raises(InputValueError, match="non-zero, positive output size"):
        program.module()(torch.randn(0, 2, 3))


def test_inverse_short_time_transforms() -> None:
    program = export(make_back, (torch.randn(2, 64),))
    x = torch.randn(2, 64)
    torch.testing.assert_close(program.module()(x), make_back(x))
    torch.testing.assert_close(program.module()(x), x)


def test_code_that_never_raises_is_not_disassembled(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    original = bytecode.dis.get_instructions
    monkeypatch.setattr(
        bytecode.dis, "get_instructions", lambda code: read.append(code) or original(code)
    )

    def asks(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] > 3 else x

    def raises(x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            raise ValueError
        return x + 1

    for function in (asks, raises):
        export(function, (torch.randn(5),), dynamic_shapes={"x": {0: Dim.AUTO}})
    # What runs is a copy of the code, which tells that it begins.
    assert [code.co_name for code in read] == ["raises"]  # once for all that is asked about it


def test_the_layout_of_what_may_be_empty_asks_nothing():
    """A stride `26*b` is larger than one of 5, whatever b is: where it is 0 there is no element."""

    def function(x, m):
        y = x.transpose(0, 1)[:, :, 1:].unflatten(2, (5, 5))[..., :3]
        return y * m, y.clone()

    m = torch.randn(5, 3)
    program = export(function, (torch.randn(4, 2, 26), m), dynamic_shapes={"x": {1: Dim("b")}})
    assert not program.guards
    for b in (0, 1, 2, 5):
        x = torch.randn(4, b, 26)
        for got, want in zip(program.module()(x, m), function(x, m), strict=True):
            assert torch.equal(got, want)
            assert got.stride() == want.stride()


def attend(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, is_causal=x.shape[2] > 2)


def attend_finally(x: Tensor) -> Tensor:
    try:
        return attend(x)
    finally:
        len("done")


def attend_or_not(x: Tensor) -> Tensor:
    try:
        return attend(x)
    except TypeError:
        return x


@pytest.mark.parametrize("function", [attend, attend_finally, attend_or_not])
def test_what_is_refused_in_a_handler_is_told_where_the_handler_has_no_line(function: Any) -> None:
    """What the compiler adds to a `finally` and to an `except` has none: the error was a TypeError
    about that."""
    with pytest.raises(
        LostwaxError, match="argument 'is_causal' must be bool, not SymBool"
    ) as told:
        export(function, (torch.ones(2, 2, 3, 4),), dynamic_shapes=({2: Dim.AUTO},))
    assert told.traceback[-1].lineno is not None
