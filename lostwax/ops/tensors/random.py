"""Random tensors: factories, fillings, samples of distributions, dropout.

Must not know which numbers come out, nor that two calls differ: the rules give sizes and dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.ops.elementwise import new_like
from lostwax.ops.registry import mark, mark_overloads, mark_writing_forms, rule
from lostwax.ops.shapes import (
    Scalar,
    broadcast_sizes,
    elementwise,
    fail,
    is_met,
    promote,
    require,
    require_same_sizes,
    show,
)
from lostwax.ops.spelling import raise_not_implemented, scalar_type
from lostwax.ops.tensors.factory import new_tensor, new_tensor_like
from lostwax.ops.traits import Trait
from lostwax.sym import Size
from lostwax.types import TensorType

Generator = torch.Generator | None


def _require_fractional(dtype: torch.dtype, kernel: str) -> None:
    if not (dtype.is_floating_point or dtype.is_complex):
        raise_not_implemented(kernel, dtype)


# ---------------------------------------------------------------------------------------- factories

_KERNEL = {"rand": "check_uniform_bounds", "randn": "normal_kernel_cpu"}


def _random_rule(kernel: str) -> Any:
    def random(size: Sequence[Size], **options: Any) -> TensorType:
        out = new_tensor(size, **options)
        _require_fractional(out.dtype, kernel)
        return out

    return random


def _random_like_rule(kernel: str) -> Any:
    def random_like(self: TensorType, **options: Any) -> TensorType:
        out = new_tensor_like(self, **options)
        _require_fractional(out.dtype, kernel)
        return out

    return random_like


for _name, _kernel in _KERNEL.items():
    rule(f"{_name} {_name}.generator")(_random_rule(_kernel))
    rule(f"{_name}_like {_name}_like.generator")(_random_like_rule(_kernel))


def _check_interval(low: Size, high: Size) -> None:
    if not is_met(low < high):
        fail(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")


@rule("randint randint.generator")
def randint(high: Size, size: Sequence[Size], **options: Any) -> TensorType:
    _check_interval(0, high)
    return _new_integers(size, **options)


@rule("randint.low randint.low_generator")
def randint_low(low: Size, high: Size, size: Sequence[Size], **options: Any) -> TensorType:
    _check_interval(low, high)
    return _new_integers(size, **options)


def _new_integers(
    size: Sequence[Size], *, dtype: torch.dtype | None = None, **options: Any
) -> TensorType:
    return new_tensor(size, dtype or torch.int64, **options)


@rule("randint_like randint_like.generator randint_like.Tensor randint_like.Tensor_generator")
def randint_like(self: TensorType, high: Any, **options: Any) -> TensorType:
    if not isinstance(high, TensorType):
        _check_interval(0, high)
    return new_tensor_like(self, **options)


@rule("randint_like.low_dtype randint_like.low_generator_dtype")
def randint_like_low(self: TensorType, low: Size, high: Size, **options: Any) -> TensorType:
    _check_interval(low, high)
    return new_tensor_like(self, **options)


@rule("randperm randperm.generator")
def randperm(n: Size, **options: Any) -> TensorType:
    return _new_integers((n,), **options)


# -------------------------------------------------------- a tensor filled again, keeping its layout


@rule("uniform")
def uniform(self: TensorType, *bounds: float, generator: Generator = None) -> TensorType:
    _require_fractional(self.dtype, "check_uniform_bounds")
    low, high = (*bounds, *(0.0, 1.0)[len(bounds) :])
    if low > high:
        fail(f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}")
    return new_like(self)


@rule("normal_functional normal_")
def normal_filled(self: TensorType, mean: float = 0.0, std: float = 1.0, **_: object) -> TensorType:
    _check_std(std)
    _require_fractional(self.dtype, "normal_kernel_cpu")
    return new_like(self)


def _check_std(std: float) -> None:
    if std < 0:
        fail(f"normal expects std >= 0.0, but found std {std:g}")


@rule("exponential")
def exponential(self: TensorType, lambd: float = 1.0, **_: object) -> TensorType:
    if not self.dtype.is_floating_point:
        fail(
            "Exponential distribution is a continuous probability distribution. dtype must be a "
            f"floating point but you specified {scalar_type(self.dtype)}"
        )
    if lambd <= 0:
        fail(f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
    return new_like(self)


@rule("cauchy")
def cauchy(self: TensorType, median: float = 0.0, sigma: float = 1.0, **_: object) -> TensorType:
    if sigma <= 0:
        fail(f"cauchy_ expects sigma > 0.0, but found sigma={sigma:g}")
    return new_like(self)


@rule("log_normal")
def log_normal(self: TensorType, mean: float = 1.0, std: float = 2.0, **_: object) -> TensorType:
    if std <= 0:
        fail(f"log_normal_ expects std > 0.0, but found std={std:g}")
    return new_like(self)


@rule("geometric")
def geometric(self: TensorType, p: float, **_: object) -> TensorType:
    if not 0 < p < 1:
        fail(f"geometric_ expects p to be in (0, 1), but got p={p:g}")
    return new_like(self)


@rule("random")
def random(self: TensorType, **_: object) -> TensorType:
    return new_like(self)


@rule("random.to")
def random_to(self: TensorType, to: Size, **_: object) -> TensorType:
    _check_interval(0, to)
    return new_like(self)


@rule("random.from")
def random_from(self: TensorType, low: Size, to: Size | None, **_: object) -> TensorType:
    if to is not None:
        _check_interval(low, to)
    return new_like(self)


# ------------------------------------------------------------------------- samples of distributions


@rule("bernoulli")
def bernoulli(self: TensorType, **_: object) -> TensorType:
    if not self.dtype.is_floating_point:
        raise_not_implemented("bernoulli_tensor_cpu_p_", self.dtype)
    return self.fresh()


@rule("bernoulli.p")
def bernoulli_p(self: TensorType, p: float = 0.5, **_: object) -> TensorType:
    _check_probability(p)
    return self.fresh()


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        fail(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")


@rule("bernoulli.Tensor")
def bernoulli_tensor(self: TensorType, p: TensorType, **_: object) -> TensorType:
    if p.size != self.size:
        size = broadcast_sizes((self.size, p.size))
        if len(size) != len(self.size):
            fail(
                f"The expanded size of the tensor must match the existing size.  Target sizes: "
                f"{show(self.size)}.  Tensor sizes: {show(p.size)}"
            )
    return new_like(self)


@rule("poisson _standard_gamma _sample_dirichlet")
def sample(self: TensorType, **_: object) -> TensorType:
    return self.fresh()


@rule("binomial")
def binomial(count: TensorType, prob: TensorType, **_: object) -> TensorType:
    if count.dtype is not prob.dtype:
        fail(f"Found dtype {scalar_type(prob.dtype)} but expected {scalar_type(count.dtype)}")
    return elementwise((count, prob), count.dtype).fresh()


@rule("_standard_gamma_grad _dirichlet_grad")
def gamma_grad(*operands: TensorType) -> TensorType:
    return elementwise(operands, promote(*operands)).fresh()


@rule("normal.Tensor_Tensor")
def normal_tensors(mean: TensorType, std: TensorType, **_: object) -> TensorType:
    return mean.fresh(broadcast_sizes((mean.size, std.size)))


@rule("normal.Tensor_float")
def normal_mean(mean: TensorType, std: float = 1.0, **_: object) -> TensorType:
    _check_std(std)
    return mean.fresh()


@rule("normal.float_Tensor")
def normal_std(mean: float, std: TensorType, **_: object) -> TensorType:
    return std.fresh()


@rule("normal.float_float")
def normal_sized(mean: float, std: float, size: Sequence[Size], **options: Any) -> TensorType:
    _check_std(std)
    return new_tensor(size, **options)


@rule("multinomial")
def multinomial(
    self: TensorType, num_samples: Size, replacement: bool = False, **_: object
) -> TensorType:
    if len(self.size) not in (1, 2):
        fail("prob_dist must be 1 or 2 dim")
    if not self.dtype.is_floating_point:
        fail(
            "multinomial only supports floating-point dtypes for input, got: "
            f"{scalar_type(self.dtype)}"
        )
    require(num_samples > 0, "cannot sample n_sample <= 0 samples")
    require(self.size[-1] <= 1 << 24, "number of categories cannot exceed 2^24")
    if not replacement:
        require(
            num_samples <= self.size[-1],
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement",
        )
    return self.fresh((*self.size[:-1], num_samples), torch.int64)


# ------------------------------------------------------------------------------------ noise in nets


@rule("native_dropout")
def native_dropout(
    input: TensorType, p: float, train: bool | None
) -> tuple[TensorType, TensorType]:
    if (train is None or train) and not 0 <= p <= 1:
        _check_probability(1 - p)
    if not (input.dtype.is_floating_point or input.dtype.is_complex):
        fail(
            f"result type Float can't be cast to the desired output type {scalar_type(input.dtype)}"
        )
    out = new_like(input)
    return out, out.replace(dtype=torch.bool)


@rule("native_dropout_backward")
def native_dropout_backward(grad_output: TensorType, mask: TensorType, scale: float) -> TensorType:
    return elementwise((grad_output, mask), promote(grad_output, scale))


def _check_noise(x: TensorType, noise: TensorType) -> None:
    text = (
        "noise tensor shape must match self tensor shape. "
        f"Got self.shape = {show(x.size)} noise.shape = {show(noise.size)}"
    )
    require_same_sizes(x.size, noise.size, text)


@rule("rrelu_with_noise rrelu_with_noise_")
def rrelu_with_noise(
    self: TensorType,
    noise: TensorType,
    lower: Scalar = 0.125,
    upper: Scalar = 1 / 3,
    training: bool = False,
    generator: Generator = None,
) -> TensorType:
    _check_noise(self, noise)
    return self.fresh() if training else elementwise((self,), self.dtype)


@rule("rrelu_with_noise_functional")
def rrelu_with_noise_functional(
    self: TensorType, noise: TensorType, *_: object, **__: object
) -> tuple[TensorType, TensorType]:
    _check_noise(self, noise)
    return new_like(self), new_like(noise)


mark(Trait.DRAWS_FACTORS, "rrelu_with_noise", "rrelu_with_noise_")
mark(
    Trait.DRAWS_IN_ORDER,
    "bernoulli_.float uniform_ exponential_",
)
mark(Trait.DRAWS_BETWEEN, "random_.from")
mark(
    Trait.UNDERIVED,
    "normal_functional bernoulli.p randint_like randint_like.low_dtype",
)
mark_overloads(Trait.FACTORY, "rand randn randint randperm rand_like randn_like randint_like")


mark_writing_forms(Trait.EXACT_OUT, "multinomial")


mark(Trait.FAILS, "multinomial")
