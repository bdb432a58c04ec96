"""The operators that are not core and stay whole all the same, each with the reason."""

from __future__ import annotations

WHOLE: dict[str, str] = {}
"""Name of the overload → why nothing takes it apart."""


def _whole(reason: str, names: str) -> None:
    for name in names.split():
        WHOLE[f"aten.{name}" if "." in name else f"aten.{name}.default"] = reason


_whole("it stops a gradient: nothing else does", "detach")
_whole("it is a check of the program", "_assert_scalar _assert_tensor_metadata _assert_async.msg")
_whole(
    "it draws random numbers: other operators would draw others",
    "bernoulli bernoulli.p bernoulli.Tensor multinomial randint randint.low randint_like "
    "randint_like.low_dtype cauchy exponential geometric log_normal normal.Tensor_Tensor "
    "normal.Tensor_float normal.float_Tensor normal.float_float normal_functional uniform poisson "
    "binomial _standard_gamma _sample_dirichlet rrelu_with_noise_functional",
)
