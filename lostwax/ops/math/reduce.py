"""Reductions over dimensions, and operators along one dimension that keep it (cumulative, softmax).

Whatever the layout of the operand, eager makes every result here row-major. A reduction without a
neutral element (`amax`, `argmax`) requires that there is something to reduce. Sorting and searching
are in `sorting.py`. Must not know of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch

from lostwax.ops.registry import Fresh, Rule, mark, mark_writing_forms, rule
from lostwax.ops.shapes import (
    Scalar,
    Sizes,
    TensorType,
    broadcast_sizes,
    category,
    fail,
    float_dtype,
    is_met,
    promote,
    real_dtype,
    require,
    require_same_sizes,
    show,
    wrap_dim,
    wrap_dims,
)
from lostwax.ops.spelling import (
    raise_not_implemented,
    require_floating,
    require_fractional,
    scalar_type,
)
from lostwax.ops.traits import Trait
from lostwax.sym import Size, decide, eq, maximum, ne
from lostwax.torch_version import DTYPE_ERROR, KIND_ERROR

Dims = Sequence[int] | int | None
Pair = tuple[TensorType, TensorType]


def reduce_dims(
    x: TensorType, dim: Dims, keepdim: bool = False, dtype: torch.dtype | None = None
) -> TensorType:
    """`x` without these dimensions (none given: all), or with size 1 in their place."""
    size = x.size
    if dim is None or (not dim and dim != 0):
        return TensorType((1,) * len(size) if keepdim else (), dtype or x.dtype, x.device)
    if len(size) > 64:
        fail("only tensors with up to 64 dims are supported")
    dims = wrap_dims(dim, len(size))
    if keepdim:
        left = tuple(1 if d in dims else s for d, s in enumerate(size))
    else:
        left = tuple(s for d, s in enumerate(size) if d not in dims)
    return TensorType(left, dtype or x.dtype, x.device)


def require_elements(name: str, x: TensorType, dim: Dims) -> None:
    """Raise, as eager does, if there is nothing to reduce."""
    if dim is None or (not dim and dim != 0):
        if not is_met(ne(x.numel(), 0)):
            fail(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument.",
                IndexError if name.startswith("arg") else RuntimeError,
            )
        return
    for named in (dim,) if isinstance(dim, int) else dim:
        d = wrap_dim(named, len(x.size))
        if not is_met(not x.size or ne(x.size[d], 0)):
            fail(f"{name}(): Expected reduction dim {d} to have non-zero size.", IndexError)


def sum_dtype(x: TensorType, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a sum or a product: int64 for integers and booleans."""
    if dtype is not None:
        return dtype
    return x.dtype if category(x.dtype) > 1 else torch.int64


# ------------------------------------------------------------------------------- sums and products


@rule("sum", "prod")
def sum_all(x: TensorType, *, dtype: torch.dtype | None = None) -> TensorType:
    return TensorType((), sum_dtype(x, dtype), x.device)


@rule("sum.dim_IntList", "prod.dim_int")
def sum_dims(
    x: TensorType, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorType:
    return reduce_dims(x, dim, keepdim, sum_dtype(x, dtype))


@rule("nansum")
def nansum(
    x: TensorType, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorType:
    if x.dtype.is_complex:
        fail("nansum on CPU does not support complex inputs", DTYPE_ERROR)
    return reduce_dims(x, dim, keepdim, sum_dtype(x, dtype))


@rule("mean")
def mean_all(x: TensorType, *, dtype: torch.dtype | None = None) -> TensorType:
    return _mean(x, None, False, dtype)


@rule("mean.dim")
def mean(
    x: TensorType, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorType:
    return _mean(x, dim, keepdim, dtype)


def _mean(x: TensorType, dim: Dims, keepdim: bool, dtype: torch.dtype | None) -> TensorType:
    out = dtype or x.dtype
    if category(out) < 2:
        which = "Input" if dtype is None else "Optional"
        fail(
            f"mean(): could not infer output dtype. {which} dtype must be either a floating point "
            f"or complex dtype. Got: {scalar_type(out)}",
            DTYPE_ERROR,
        )
    return reduce_dims(x, dim, keepdim, out)


@rule("trace")
def trace(x: TensorType) -> TensorType:
    if len(x.size) != 2:
        fail(f"trace: expected a matrix, but got tensor with dim {len(x.size)}")
    if x.dtype is torch.bool:
        raise_not_implemented("trace", x.dtype)
    return TensorType((), sum_dtype(x, None), x.device)


@rule("logsumexp")
def logsumexp(x: TensorType, dim: Dims, keepdim: bool = False) -> TensorType:
    return reduce_dims(x, dim, keepdim, float_dtype(x.dtype))


@rule("count_nonzero")
def count_nonzero(x: TensorType, dim: int | None = None) -> TensorType:
    return reduce_dims(x, dim, dtype=torch.int64)


@rule("count_nonzero.dim_IntList")
def count_nonzero_dims(x: TensorType, dim: Sequence[int]) -> TensorType:
    return reduce_dims(x, dim, dtype=torch.int64)


@rule("hash_tensor")
def hash_tensor(
    x: TensorType, dim: Dims = (), *, keepdim: bool = False, mode: int = 0
) -> TensorType:
    require_elements("hash_tensor", x, dim)
    return reduce_dims(x, dim, keepdim, torch.uint64)


# ------------------------------------------------------------------------------------- any and all


def _truth_dtype(x: TensorType) -> torch.dtype:
    return x.dtype if x.dtype is torch.uint8 else torch.bool


@rule("any", "all")
def any_all(x: TensorType) -> TensorType:
    return TensorType((), _truth_dtype(x), x.device)


mark(Trait.ASKS_ALL, "all")


@rule("any.dim", "all.dim")
def any_dim(x: TensorType, dim: int, keepdim: bool = False) -> TensorType:
    return reduce_dims(x, dim, keepdim, _truth_dtype(x))


@rule("any.dims", "all.dims")
def any_dims(x: TensorType, dim: Dims = None, keepdim: bool = False) -> TensorType:
    if dim is not None and not isinstance(dim, int) and not dim:
        return x.fresh(dtype=_truth_dtype(x))  # unlike elsewhere, an empty list means no dimension
    return reduce_dims(x, dim, keepdim, _truth_dtype(x))


@rule("_is_all_true", "_is_any_true")
def is_all_true(x: TensorType) -> TensorType:
    if x.dtype is not torch.bool:
        fail(f"expected a bool tensor, but got {scalar_type(x.dtype)}")
    return TensorType((), torch.bool, x.device)


mark(Trait.CHECKS_ALL, "_is_all_true")
mark(Trait.FAILS, "bincount")


# ------------------------------------------------------------------------------- largest, smallest


def _extreme_rule(name: str) -> Rule:
    def extreme(x: TensorType, dim: Dims = (), keepdim: bool = False) -> TensorType:
        require_elements(name, x, dim)
        if x.dtype.is_complex:
            raise_not_implemented(f"{name[1:]}_values_cpu", x.dtype)
        return reduce_dims(x, dim, keepdim)

    return extreme


def _extreme_of_all_rule(name: str) -> Rule:
    def extreme_of_all(x: TensorType) -> TensorType:
        require_elements(name, x, None)
        if x.dtype.is_complex:
            raise_not_implemented(f"{name}_all", x.dtype)
        return TensorType((), x.dtype, x.device)

    return extreme_of_all


def _value_and_index_rule(name: str, refused: frozenset[torch.dtype] = frozenset()) -> Rule:
    def value_and_index(x: TensorType, dim: int = -1, keepdim: bool = False) -> Pair:
        require_elements(name, x, dim)
        if x.dtype in refused or x.dtype.is_complex:
            raise_not_implemented(f"{name}_cpu", x.dtype)
        out = reduce_dims(x, dim, keepdim)
        return out, out.fresh(dtype=torch.int64)

    return value_and_index


def _index_rule(name: str) -> Rule:
    def index_only(x: TensorType, dim: int | None = None, keepdim: bool = False) -> TensorType:
        if x.dtype is torch.bool:
            fail(f"{name}(): does not support bool input", DTYPE_ERROR)
        if x.dtype.is_complex:
            fail(f"{name}(): does not support complex input", KIND_ERROR)
        require_elements(name, x, dim)
        return reduce_dims(x, dim, keepdim, torch.int64)

    return index_only


rule("amax")(_extreme_rule("amax"))
rule("amin")(_extreme_rule("amin"))
rule("max")(_extreme_of_all_rule("max"))
rule("min")(_extreme_of_all_rule("min"))
rule("max.dim")(_value_and_index_rule("max"))
rule("min.dim")(_value_and_index_rule("min"))
rule("median.dim")(_value_and_index_rule("median", frozenset({torch.bool})))
rule("nanmedian.dim")(_value_and_index_rule("nanmedian", frozenset({torch.bool})))
rule("mode")(_value_and_index_rule("mode"))
rule("argmax")(_index_rule("argmax"))
rule("argmin")(_index_rule("argmin"))


@rule("median", "nanmedian")
def median(x: TensorType) -> TensorType:
    """The median of no elements is NaN."""
    if x.dtype is torch.bool or x.dtype.is_complex:
        raise_not_implemented("median_cpu", x.dtype)
    return TensorType((), x.dtype, x.device)


@rule("aminmax")
def aminmax(x: TensorType, *, dim: int | None = None, keepdim: bool = False) -> Pair:
    return _aminmax(x, dim, keepdim)


@rule("_aminmax")
def aminmax_of_all(x: TensorType) -> Pair:
    return _aminmax(x, None, False)


@rule("_aminmax.dim")
def aminmax_dim(x: TensorType, dim: int, keepdim: bool = False) -> Pair:
    return _aminmax(x, dim, keepdim)


def _aminmax(x: TensorType, dim: int | None, keepdim: bool) -> Pair:
    if dim is None:
        require(
            ne(x.numel(), 0),
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no "
            "identity.",
        )
    else:
        require_elements("aminmax", x, dim)
    out = reduce_dims(x, dim, keepdim)
    return out, out


# ------------------------------------------------------------------------------ variance and norms


def _variance(x: TensorType, dim: Dims, keepdim: bool, names: str = "std and var") -> TensorType:
    if category(x.dtype) < 2:
        fail(f"{names} only support floating point and complex dtypes", DTYPE_ERROR)
    return reduce_dims(x, dim, keepdim, real_dtype(x.dtype))


@rule("var.correction", "std.correction")
def var(
    x: TensorType, dim: Dims = None, *, correction: Scalar = None, keepdim: bool = False
) -> TensorType:
    return _variance(x, dim, keepdim)


@rule("var.dim", "std.dim")
def var_dim(x: TensorType, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> TensorType:
    return _variance(x, dim, keepdim)


@rule("var", "std")
def var_all(x: TensorType, unbiased: bool = True) -> TensorType:
    return _variance(x, None, False)


@rule("var_mean.correction", "std_mean.correction")
def var_mean(
    x: TensorType, dim: Dims = None, *, correction: Scalar = None, keepdim: bool = False
) -> Pair:
    out = _variance(x, dim, keepdim, "std_mean and var_mean")
    return out, out.fresh(dtype=x.dtype)


def _norm_dtype(name: str, x: TensorType, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a norm, which is real; a caller asks for that of the computation."""
    if category(x.dtype) < 2:
        if name == "norm":
            fail(
                "norm(): input dtype should be either floating point or complex. "
                f"Got {scalar_type(x.dtype)} instead.",
                DTYPE_ERROR,
            )
        fail(
            f"{name}: Expected a floating point or complex tensor as input. "
            f"Got {scalar_type(x.dtype)}",
            DTYPE_ERROR,
        )
    if dtype is not None and category(dtype) != category(x.dtype):
        kind = "complex for complex" if x.dtype.is_complex else "real for real"
        fail(f"{name}: dtype should be {kind} inputs, but got {scalar_type(dtype)}")
    return real_dtype(dtype or x.dtype)


@rule("linalg_vector_norm", "linalg__powsum")
def vector_norm(
    x: TensorType,
    ord: Scalar = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorType:
    out = _norm_dtype("linalg.vector_norm", x, dtype)
    if ord in (inf, -inf) or (ord.__class__ in (int, float) and ord < 0):
        _require_norm_elements(x, ord, dim)
    return reduce_dims(x, dim, keepdim, out)


def _require_norm_elements(x: TensorType, ord: Scalar, dim: Dims) -> None:
    text = f"linalg.vector_norm cannot compute the {ord} norm on"
    identity = "because the operation does not have an identity"
    if dim is None or (not dim and dim != 0):
        if not is_met(ne(x.numel(), 0)):
            fail(f"{text} an empty tensor {identity}")
        return
    for d in wrap_dims(dim, len(x.size)) if x.size else ():
        if not is_met(ne(x.size[d], 0)):
            fail(
                f"{text} the dimension {d} because this dimension is empty and the operation "
                "does not "
                "have an identity"
            )


@rule("norm.Scalar", "native_norm")
def norm(x: TensorType, p: Scalar = 2) -> TensorType:
    return TensorType((), _norm_dtype("norm", x, None), x.device)


@rule("norm.ScalarOpt_dim")
def norm_dim(x: TensorType, p: Scalar, dim: Dims, keepdim: bool = False) -> TensorType:
    return reduce_dims(x, dim, keepdim, _norm_dtype("norm", x, None))


@rule("norm.ScalarOpt_dim_dtype")
def norm_dim_dtype(
    x: TensorType, p: Scalar, dim: Dims, keepdim: bool, *, dtype: torch.dtype
) -> TensorType:
    return reduce_dims(x, dim, keepdim, _norm_dtype("norm", x, dtype))


@rule("norm.ScalarOpt_dtype")
def norm_dtype(x: TensorType, p: Scalar, *, dtype: torch.dtype) -> TensorType:
    return TensorType((), _norm_dtype("norm", x, dtype), x.device)


@rule("dist")
def dist(a: TensorType, b: TensorType, p: Scalar = 2) -> TensorType:
    broadcast_sizes((a.size, b.size))
    return TensorType((), _norm_dtype("norm", a.replace(dtype=promote(a, b)), None), a.device)


@rule("renorm")
def renorm(x: TensorType, p: Scalar, dim: int, maxnorm: Scalar) -> TensorType:
    wrap_dim(dim, len(x.size))
    if len(x.size) < 2:
        fail(f"renorm: input needs at least 2 dimensions, got {len(x.size)} dimensions")
    return x.fresh()


# ------------------------------------------------------------------------------------- cumulative


@rule("cumsum", "cumprod")
def cumsum(x: TensorType, dim: int, *, dtype: torch.dtype | None = None) -> TensorType:
    wrap_dim(dim, len(x.size))
    return x.fresh(dtype=sum_dtype(x, dtype))


@rule("cummax", "cummin")
def cummax(x: TensorType, dim: int) -> Pair:
    wrap_dim(dim, len(x.size))
    if x.dtype.is_complex:
        raise_not_implemented("cummax_cpu", x.dtype)
    return x.fresh(), x.fresh(dtype=torch.int64)


@rule("logcumsumexp", "_logcumsumexp")
def logcumsumexp(x: TensorType, dim: int) -> TensorType:
    wrap_dim(dim, len(x.size))
    require_fractional(x.dtype, "logcumsumexp_out_cpu")
    return x.fresh()


# ---------------------------------------------------------------------------------------- softmax


@rule("_softmax", "_log_softmax")
def softmax(x: TensorType, dim: int, half_to_float: bool) -> TensorType:
    wrap_dim(dim, len(x.size))
    if not half_to_float:
        require_floating(x.dtype, "softmax_kernel_impl")
        return x.fresh()
    if x.device.type == "cpu":
        fail("softmax with half to float conversion is not supported on CPU")
    if x.dtype is not torch.float16:
        fail("conversion is supported for Half type only")
    return x.fresh(dtype=torch.float32)


@rule("_safe_softmax")
def safe_softmax(x: TensorType, dim: int, dtype: torch.dtype | None = None) -> TensorType:
    wrap_dim(dim, len(x.size))
    require_floating(dtype or x.dtype, "softmax_kernel_impl")
    return x.fresh(dtype=dtype)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(
    grad: TensorType, output: TensorType, dim: int, input_dtype: torch.dtype
) -> TensorType:
    wrap_dim(dim, len(grad.size))
    if grad.dtype is not input_dtype and input_dtype is torch.float16:
        if grad.device.type == "cpu":
            fail(f"expected scalar type {scalar_type(grad.dtype)} but found Half")
        return grad.fresh(dtype=input_dtype)
    return grad.fresh()


@rule("_masked_softmax")
def masked_softmax(x: TensorType, mask: TensorType, *_: object, **__: object) -> TensorType:
    if mask.dtype is not torch.bool:
        fail("Mask should be a boolean tensor")
    return x.fresh()


@rule("_masked_softmax_backward")
def masked_softmax_backward(grad: TensorType, *_: object, **__: object) -> TensorType:
    return grad.fresh()


# ------------------------------------------------------------------------------------- histograms


@rule("histc")
def histc(x: TensorType, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> TensorType:
    if x.device.type == "cuda" and not x.dtype.is_floating_point:
        if x.dtype is torch.bool or x.dtype.is_complex:
            raise_not_implemented("_th_histc", x.dtype)
        return x.fresh((bins,))
    return _histogram(x, bins)


def _histogram(x: TensorType, bins: int) -> TensorType:
    require_floating(x.dtype, "histogram_cpu")
    if bins <= 0:
        fail(f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0")
    return x.fresh((bins,))


@rule("histogram.bin_ct")
def histogram(
    x: TensorType, bins: int = 100, *_: object, weight: TensorType | None = None, **__: object
) -> Pair:
    _check_weight(x.size, weight)
    return _histogram(x, bins), x.fresh((bins + 1,))


@rule("histogram.bins_tensor")
def histogram_edges(
    x: TensorType, bins: TensorType, *, weight: TensorType | None = None, density: bool = False
) -> Pair:
    if len(bins.size) != 1:
        fail(
            f"torch.histogramdd(): bins tensor should have one dimension, but got {len(bins.size)}"
        )
    n = bins.size[0] - 1
    require(n > 0, f"torch.histogram(): bins must be > 0, but got {n} for dimension 0")
    _check_weight(x.size, weight)
    return x.fresh((n,)), bins.fresh()


def _check_bins(x: TensorType, count: int, weight: TensorType | None) -> None:
    text = "histogramdd: The size of bins must be equal to the innermost dimension of the input."
    require(eq(x.size[-1], count), text)
    _check_weight(x.size[:-1], weight)


def _check_weight(size: Sizes, weight: TensorType | None) -> None:
    if weight is None:
        return
    text = (
        "torch.histogramdd: if weight tensor is provided it should have the same shape as the "
        "input tensor excluding its innermost dimension, but got input with shape "
        f"{show(size)} and weight with shape {show(weight.size)}"
    )
    require_same_sizes(size, weight.size, text)


@rule("_histogramdd_bin_edges")
def histogramdd_bin_edges(
    x: TensorType, bins: Sequence[int], *_: object, weight: TensorType | None = None, **__: object
) -> list[TensorType]:
    _check_bins(x, len(bins), weight)
    return [x.fresh((n + 1,)) for n in bins]


@rule("_histogramdd_from_bin_cts")
def histogramdd(
    x: TensorType, bins: Sequence[int], *_: object, weight: TensorType | None = None, **__: object
) -> TensorType:
    _check_bins(x, len(bins), weight)
    return x.fresh(tuple(bins))


@rule("_histogramdd_from_bin_tensors")
def histogramdd_edges(
    x: TensorType,
    bins: Sequence[TensorType],
    *,
    weight: TensorType | None = None,
    density: bool = False,
) -> TensorType:
    text = f"torch.histogramdd: expected {x.size[-1]} sequences of bin edges for a "
    text += f"{x.size[-1]}-dimensional histogram but got {len(bins)}"
    require(eq(x.size[-1], len(bins)), text)
    _check_weight(x.size[:-1], weight)
    counts = tuple(edges.size[0] - 1 for edges in bins)
    for d, n in enumerate(counts):
        require(n > 0, f"torch.histogramdd(): bins must be > 0, but got {n} for dimension {d}")
    return x.fresh(counts)


@rule("bincount", data=True)
def bincount(
    fresh: Fresh, x: TensorType, weights: TensorType | None = None, minlength: Size = 0
) -> TensorType:
    """The largest value is the number of bins: only the data know it, and nothing bounds it."""
    if len(x.size) != 1 or category(x.dtype) != 1:
        fail("bincount only supports 1-d non-negative integral inputs.")
    dtype = torch.int64
    if weights is not None:
        text = "weights should be 1-d and have the same length as input"
        if len(weights.size) != 1:
            fail(text)
        require(eq(weights.size[0], x.size[0]), text)
        if not decide(eq(x.size[0], 0)):  # eager forgets the weights of an empty input
            dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    if isinstance(minlength, int):
        return TensorType((fresh.size(None, minlength),), dtype, x.device)
    return TensorType((maximum(fresh.size(), minlength),), dtype, x.device)


mark_writing_forms(Trait.READS_ELSEWHERE, "sum prod mean amax amin")
mark_writing_forms(Trait.EXACT_OUT, "amax amin aminmax")
mark_writing_forms(Trait.OUTS_APART, "aminmax")
mark_writing_forms(Trait.ROW_MAJOR_OUT, "quantile nanquantile")
