"""Operators that compute each element of the result from the elements at the same place.

The rules say which dtype each operator returns and which it refuses; `elementwise.py` computes the
size and strides of results. Activations are in `activations.py`. Must not know of reductions.
"""

from __future__ import annotations

import torch

from lostwax.ops.elementwise import (
    BOOL_OR_COMPLEX,
    COMPLEX,
    FLOATS,
    FLOATS_OR_COMPLEX,
    NONE,
    NOT_FLOATS,
    NOT_INTEGERS,
    WHOLE,
    Dtypes,
    Operand,
    binary,
    cast,
    cast_operand,
    common_dtype,
    nary,
    nary_mixed,
    new_like,
    refuse_dtype,
    register_table,
    unary,
    unary_same_rule,
    with_scalar,
)
from lostwax.ops.registry import Rule, mark, mark_writing_forms, rule
from lostwax.ops.shapes import (
    Scalar,
    TensorType,
    broadcast_sizes,
    category,
    common_device,
    fail,
    float_dtype,
    promote,
    real_dtype,
    scalar_dtype,
)
from lostwax.ops.spelling import cpp_type, raise_not_implemented, scalar_type
from lostwax.ops.traits import Trait
from lostwax.torch_version import BOOL_ERROR, DTYPE_ERROR

# -------------------------------------------------------------------------------------------- unary


def _unary_float_rule(name: str, refused: Dtypes) -> Rule:
    def to_float(x: TensorType, *_: object, **__: object) -> TensorType:
        dtype = x.dtype
        if dtype in refused:
            refuse_dtype(name, dtype, x.device.type)
        return unary(x, dtype if dtype.is_floating_point else float_dtype(dtype))

    return to_float


def _unary_bool_rule(name: str, refused: Dtypes) -> Rule:
    def to_bool(x: TensorType, *_: object, **__: object) -> TensorType:
        if x.dtype in refused:
            refuse_dtype(name, x.dtype, x.device.type)
        return unary(x, torch.bool, x.dtype)

    return to_bool


def _unary_like_rule(name: str, refused: Dtypes) -> Rule:
    """Eager makes the result by `empty_like`."""

    def same_layout(x: TensorType, *_: object, **__: object) -> TensorType:
        if x.dtype in refused:
            refuse_dtype(name, x.dtype, x.device.type)
        return new_like(x)

    return same_layout


register_table(
    unary_same_rule,
    {
        "sgn": NONE,
        "frac round.decimals": NOT_FLOATS,
        "ceil floor round trunc": BOOL_OR_COMPLEX,
        "bitwise_not": FLOATS_OR_COMPLEX,
    },
)
register_table(
    _unary_like_rule,
    {
        "nan_to_num _conj_physical": NONE,
    },
)
register_table(
    _unary_float_rule,
    {
        "acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 log log10 log1p log2": NONE,
        "reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh": NONE,
        "digamma erf erfc erfinv i0 lgamma logit special_entr special_i0e special_i1": COMPLEX,
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0": COMPLEX,
        "special_bessel_y1 special_erfcx special_i1e special_log_ndtr special_ndtri": COMPLEX,
        "special_modified_bessel_i0 special_modified_bessel_i1": COMPLEX,
        "special_modified_bessel_k0 special_modified_bessel_k1": COMPLEX,
        "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1": COMPLEX,
        "special_spherical_bessel_j0": COMPLEX,
    },
)
register_table(
    _unary_bool_rule,
    {
        "isnan logical_not": NONE,
        "isneginf isposinf signbit": COMPLEX,
    },
)


@rule("abs")
def abs_(x: TensorType) -> TensorType:
    if x.dtype is torch.bool:
        refuse_dtype("abs", x.dtype, x.device.type)
    return new_like(x, real_dtype(x.dtype)) if x.dtype.is_complex else unary(x, x.dtype)


@rule("angle")
def angle(x: TensorType) -> TensorType:
    if x.dtype.is_complex:
        return x.fresh(dtype=real_dtype(x.dtype))
    return unary(x, float_dtype(x.dtype))


@rule("deg2rad", "rad2deg")
def degrees(x: TensorType) -> TensorType:
    if x.dtype.is_complex:
        fail("deg2rad and rad2deg are not supported for complex tensors.", DTYPE_ERROR)
    return new_like(x, float_dtype(x.dtype))


@rule("isinf")
def isinf(x: TensorType) -> TensorType:
    """abs(x) == inf; integers have no infinity, and only their layout is kept."""
    return (
        new_like(x, torch.bool) if x.dtype in WHOLE else with_scalar(unary(x, x.dtype), torch.bool)
    )


@rule("mvlgamma")
def mvlgamma(x: TensorType, p: int) -> TensorType:
    if x.dtype is torch.bool:
        fail("The input tensor may not be a boolean tensor.")
    if p < 1:
        fail("p has to be greater than or equal to 1")
    if x.dtype.is_complex:
        refuse_dtype("arange", x.dtype)
    return x.fresh(dtype=float_dtype(x.dtype))


@rule("neg")
def neg(x: TensorType) -> TensorType:
    if x.dtype is torch.bool:
        fail(
            "Negation, the `-` operator, on a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead.",
            BOOL_ERROR,
        )
    return unary(x, x.dtype)


@rule("sign")
def sign(x: TensorType) -> TensorType:
    if x.dtype.is_complex:
        fail(
            "Unlike NumPy, torch.sign is not intended to support complex numbers. "
            "Please use torch.sgn instead.",
            NotImplementedError,
        )
    return unary(x, x.dtype)


@rule("polygamma")
def polygamma(n: int, x: TensorType) -> TensorType:
    if n < 0:
        fail("polygamma(n, x) does not support negative n.")
    if x.dtype.is_complex:
        raise_not_implemented("polygamma", x.dtype)
    return unary(x, float_dtype(x.dtype))


@rule("frexp.Tensor")
def frexp(x: TensorType) -> tuple[TensorType, TensorType]:
    if not x.dtype.is_floating_point:
        fail(f"torch.frexp() only supports floating-point dtypes, but got {scalar_type(x.dtype)}")
    return new_like(x), new_like(x, torch.int32)


# ------------------------------------------------------------------------------------------- binary


def _binary_same_rule(name: str, refused: Dtypes) -> Rule:
    def promote_both(a: Operand, b: Operand, **_: object) -> TensorType:
        dtype = common_dtype(a, b)
        if dtype in refused:
            refuse_dtype(name, dtype)
        return binary(a, b, dtype)

    return promote_both


def _binary_float_rule(name: str, refused: Dtypes) -> Rule:
    def promote_to_float(a: Operand, b: Operand) -> TensorType:
        dtype = common_dtype(a, b)
        if dtype in refused:
            refuse_dtype(name, dtype)
        return binary(a, b, float_dtype(dtype))

    return promote_to_float


def _binary_bool_rule(name: str, refused: Dtypes) -> Rule:
    def compare_both(a: Operand, b: Operand) -> TensorType:
        dtype = common_dtype(a, b)
        if dtype in refused:
            refuse_dtype(name, dtype)
        return binary(a, b, torch.bool, dtype)

    return compare_both


_POLYNOMIALS = " ".join(
    f"special_{name} special_{name}.x_scalar special_{name}.n_scalar"
    for name in (
        *(f"{shifted}chebyshev_polynomial_{k}" for shifted in ("", "shifted_") for k in "tuvw"),
        "hermite_polynomial_h",
        "hermite_polynomial_he",
        "laguerre_polynomial_l",
        "legendre_polynomial_p",
    )
)

register_table(
    _binary_same_rule,
    {
        "mul.Tensor mul.Scalar": NONE,
        "maximum minimum fmax fmin": COMPLEX,
        "fmod.Tensor fmod.Scalar": BOOL_OR_COMPLEX,
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": BOOL_OR_COMPLEX,
        "floor_divide floor_divide.Scalar": BOOL_OR_COMPLEX,
        "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor": FLOATS_OR_COMPLEX,
        "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor": FLOATS_OR_COMPLEX,
        "bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor": FLOATS_OR_COMPLEX,
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar": NOT_INTEGERS,
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar": NOT_INTEGERS,
        "bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor": NOT_INTEGERS,
        "__lshift__.Tensor __lshift__.Scalar __rshift__.Tensor __rshift__.Scalar": NOT_INTEGERS,
        "gcd lcm": NOT_INTEGERS,
        "hypot nextafter igamma igammac logaddexp2": NOT_FLOATS,
        "logaddexp": WHOLE,
    },
)
register_table(
    _binary_float_rule,
    {
        "atan2 copysign.Tensor copysign.Scalar": COMPLEX,
        "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self": COMPLEX,
        "special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar": COMPLEX,
        "special_zeta special_zeta.other_scalar special_zeta.self_scalar": COMPLEX,
        _POLYNOMIALS: COMPLEX,
        "div.Tensor div.Scalar": NONE,
    },
)
register_table(
    _binary_bool_rule,
    {
        "eq.Tensor eq.Scalar ne.Tensor ne.Scalar logical_and logical_or logical_xor": NONE,
        "ge.Tensor ge.Scalar gt.Tensor gt.Scalar le.Tensor le.Scalar lt.Tensor lt.Scalar": COMPLEX,
    },
)


def _check_alpha(dtype: torch.dtype, alpha: Scalar) -> None:
    """Raise if the factor `alpha` is of a higher category than the result."""
    kind = category(scalar_dtype(alpha))
    if kind == 0 and dtype is not torch.bool:
        fail("Boolean alpha only supported for Boolean results.")
    if kind == 2 and category(dtype) < 2:
        fail("For integral input tensors, argument alpha must not be a floating point number.")
    if kind == 3 and category(dtype) < 3:
        fail("For non-complex input tensors, argument alpha must not be a complex number.")


@rule("add.Tensor", "add.Scalar")
def add(a: Operand, b: Operand, alpha: Scalar = 1) -> TensorType:
    dtype = common_dtype(a, b)
    if alpha.__class__ is not int:
        _check_alpha(dtype, alpha)
    return binary(a, b, dtype)


@rule("sub.Tensor", "sub.Scalar")
def sub(a: Operand, b: Operand, alpha: Scalar = 1) -> TensorType:
    return _subtract(a, b, alpha)


@rule("rsub.Tensor", "rsub.Scalar")
def rsub(a: Operand, b: Operand, alpha: Scalar = 1) -> TensorType:
    return _subtract(b, a, alpha)


def _subtract(a: Operand, b: Operand, alpha: Scalar) -> TensorType:
    dtype = common_dtype(a, b)
    if _is_bool(a) or _is_bool(b):
        fail(
            "Subtraction, the `-` operator, with a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead.",
            BOOL_ERROR,
        )
    if alpha.__class__ is not int:
        _check_alpha(dtype, alpha)
    return binary(a, b, dtype)


def _is_bool(a: Operand) -> bool:
    if a.__class__ is TensorType:
        return a.dtype is torch.bool
    return a.__class__ is not float and a.__class__ is not int and scalar_dtype(a) is torch.bool


@rule("div.Tensor_mode", "div.Scalar_mode")
def div_mode(a: Operand, b: Operand, *, rounding_mode: str | None) -> TensorType:
    dtype = common_dtype(a, b)
    if rounding_mode is None:
        return binary(a, b, float_dtype(dtype))
    if rounding_mode not in ("trunc", "floor"):
        fail(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' "
            f"but found '{rounding_mode}'"
        )
    if dtype in BOOL_OR_COMPLEX:
        refuse_dtype(f"div_{rounding_mode}", dtype)
    return binary(a, b, dtype)


@rule("pow.Tensor_Tensor")
def pow_tensors(base: Operand, exponent: Operand) -> TensorType:
    dtype = common_dtype(base, exponent)
    if dtype is torch.bool:
        refuse_dtype("pow", dtype)
    return binary(base, exponent, dtype)


@rule("pow.Tensor_Scalar")
def pow_tensor_scalar(base: TensorType, exponent: Scalar) -> TensorType:
    dtype = common_dtype(base, exponent)
    if exponent.__class__ is int and exponent < 0 and category(dtype) < 2:
        fail("Integers to negative integer powers are not allowed.")
    return unary(base, dtype)


@rule("pow.Scalar")
def pow_scalar_tensor(base: Scalar, exponent: TensorType) -> TensorType:
    return exponent.fresh(dtype=promote(base, exponent))


@rule("heaviside")
def heaviside(x: TensorType, values: TensorType) -> TensorType:
    if x.dtype is not values.dtype:
        fail("heaviside is not yet implemented for tensors with different dtypes.")
    if x.dtype.is_complex:
        fail("heaviside is not yet implemented for complex tensors.", DTYPE_ERROR)
    return binary(x, values, x.dtype)


@rule("ldexp.Tensor")
def ldexp(x: Operand, other: TensorType) -> TensorType:
    """Eager has a kernel for floats and integer exponents; else it computes x * 2.0 ** other."""
    power = TensorType(other.size, promote(2.0, other), other.device)
    if x.__class__ is TensorType and x.dtype in FLOATS:
        if other.dtype in WHOLE:
            if broadcast_sizes((x.size, other.size)) == x.size:
                return new_like(x)
            return nary_mixed((x, cast(other, torch.int32)), x.dtype)
        if x.dtype is not torch.float32:
            power = with_scalar(other, power.dtype)
    return binary(x, power, common_dtype(x, power))


@rule("complex")
def complex_(real: TensorType, imag: TensorType) -> TensorType:
    return _join_parts(real, imag)


@rule("polar")
def polar(magnitude: TensorType, phase: TensorType) -> TensorType:
    return _join_parts(magnitude, phase)


_COMPLEX_OF = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


def _join_parts(a: TensorType, b: TensorType) -> TensorType:
    dtype = _COMPLEX_OF.get(a.dtype)
    if dtype is None or b.dtype not in _COMPLEX_OF:
        fail(
            "Expected both inputs to be Half, Float or Double tensors but got "
            f"{scalar_type(a.dtype)} and {scalar_type(b.dtype)}",
            DTYPE_ERROR,
        )
    if a.dtype is not b.dtype:
        fail(
            f"Expected object of scalar type {scalar_type(a.dtype)} but got scalar type "
            f"{scalar_type(b.dtype)} for second argument"
        )
    return binary(a, b, dtype, a.dtype)


# --------------------------------------------------------------------------- more than two operands


@rule("where.self")
def where(condition: TensorType, a: Operand, b: Operand) -> TensorType:
    if condition.dtype is not torch.bool and condition.dtype is not torch.uint8:
        fail(
            "where expected condition to be a boolean tensor, but got a tensor with dtype "
            + scalar_type(condition.dtype)
        )
    dtype = common_dtype(a, b)
    return nary_mixed((condition, cast_operand(a, dtype), cast_operand(b, dtype)), dtype)


def _refuse_complex_clamp(dtype: torch.dtype) -> None:
    if dtype.is_complex:
        fail("clamp is not supported for complex types", NotImplementedError)


@rule("clamp")
def clamp(x: TensorType, min: Scalar = None, max: Scalar = None) -> TensorType:
    if min is None and max is None:
        fail("torch.clamp: At least one of 'min' or 'max' must not be None")
    dtype = common_dtype(x, max if min is None else min)
    if min is not None and max is not None and not dtype.is_floating_point:
        dtype = promote(x, min, max)
    _refuse_complex_clamp(dtype)
    return unary(x, dtype)


@rule("clamp_min", "clamp_max")
def clamp_one(x: TensorType, bound: Scalar) -> TensorType:
    dtype = common_dtype(x, bound)
    _refuse_complex_clamp(dtype)
    return unary(x, dtype)


@rule("clamp.Tensor")
def clamp_tensor(
    x: TensorType, min: TensorType | None = None, max: TensorType | None = None
) -> TensorType:
    bounds = [b for b in (min, max) if b is not None]
    if not bounds:
        fail("torch.clamp: At least one of 'min' or 'max' must not be None")
    dtype = promote(x, *bounds)
    _refuse_complex_clamp(dtype)
    if dtype is torch.bool and len(bounds) == 2:
        refuse_dtype("clamp", dtype)
    return nary((x, *bounds), dtype)


@rule("clamp_min.Tensor", "clamp_max.Tensor")
def clamp_one_tensor(x: TensorType, bound: TensorType) -> TensorType:
    dtype = common_dtype(x, bound)
    _refuse_complex_clamp(dtype)
    return binary(x, bound, dtype)


@rule("addcmul")
def addcmul(
    x: TensorType, tensor1: TensorType, tensor2: TensorType, *, value: Scalar = 1
) -> TensorType:
    dtype = promote(x, tensor1, tensor2)
    if dtype is torch.bool:
        refuse_dtype("addcmul", dtype)
    return nary((x, tensor1, tensor2), dtype)


@rule("addcdiv")
def addcdiv(
    x: TensorType, tensor1: TensorType, tensor2: TensorType, *, value: Scalar = 1
) -> TensorType:
    if category(promote(tensor1, tensor2)) < 2:
        fail(
            "Integer division with addcdiv is no longer supported: write "
            "(input + value * torch.trunc(tensor1 / tensor2)).to(input.dtype) for the old result, "
            "or (input + value * tensor1 / tensor2) for a true division."
        )
    return nary((x, tensor1, tensor2), promote(x, tensor1, tensor2))


@rule("lerp.Scalar", "lerp.Tensor")
def lerp(start: TensorType, end: TensorType, weight: Operand) -> TensorType:
    for name, o in (("end", end), ("weight", weight)):
        if o.__class__ is TensorType and o.dtype is not start.dtype:
            fail(f"expected dtype {start.dtype} for `{name}` but got dtype {o.dtype}")
    if start.dtype in WHOLE:
        refuse_dtype("lerp_kernel", start.dtype)
    if weight.__class__ is TensorType:
        return nary((start, end, weight), start.dtype)
    return binary(start, end, start.dtype)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: TensorType, mask: TensorType, value: Operand) -> TensorType:
    """Eager fills a row-major copy."""
    if mask.dtype is not torch.bool:
        fail(f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}")
    if value.__class__ is TensorType and value.size:
        fail(
            "masked_fill_ only supports a 0-dimensional value tensor, "
            f"but got tensor with {len(value.size)} dimension(s)."
        )
    if value.__class__ is complex and value.imag and not x.dtype.is_complex:
        fail(f"value cannot be converted to type {cpp_type(x.dtype)} without overflow")
    size = x.size if x.size == mask.size else broadcast_sizes((mask.size, x.size))
    return TensorType(size, x.dtype, common_device((x, mask)))


mark(Trait.FILLS, "masked_fill_.Tensor")
mark(Trait.SUBTRACTS, "sub.Tensor", "sub.Scalar")
mark(Trait.SUBTRACTS_FROM, "rsub.Tensor", "rsub.Scalar")


mark_writing_forms(Trait.READS_NUMBER_FIRST, "masked_fill")
mark_writing_forms(Trait.EXACT_OUT, "complex")
