"""Type rules of products of matrices and vectors, and of pairwise distances.

In all of them the inner sizes must be equal, dtypes are never promoted, and the result is row-major
whatever the layout of the factors. `matmul` and `linear` are composites and never arrive here.
"""

from __future__ import annotations

import torch

from lostwax.ops.registry import mark, mark_writing_forms, rule
from lostwax.ops.shapes import (
    Scalar,
    broadcast_sizes,
    category,
    common_device,
    elementwise,
    fail,
    hint,
    is_met,
    is_one,
    is_same,
    promote,
    require,
    require_same_device,
    show,
    wrap_dim,
)
from lostwax.ops.spelling import (
    cpp_type,
    raise_not_implemented,
    require_floating,
    require_same_dtype,
    scalar_type,
)
from lostwax.ops.traits import Trait
from lostwax.sym import Size, decide, eq
from lostwax.types import Sizes, TensorType

# ------------------------------------------------------------------------------------- requirements


def require_expandable(x: Sizes, target: Sizes, dtype: torch.dtype) -> None:
    """Raise unless `x` can be expanded to `target`, as `beta * self` needs it."""
    if len(x) > len(target):
        fail(
            f"expand(torch.{scalar_type(dtype)}Tensor{{{show(x)}}}, size={show(target)}): the "
            "number "
            f"of sizes provided ({len(target)}) must be greater or equal to the number of "
            "dimensions "
            f"in the tensor ({len(x)})"
        )
    pad = len(target) - len(x)
    for d, (have, want) in enumerate(zip(x, target[pad:], strict=True)):
        if is_one(have) or is_same(have, want):
            continue
        if hint(have) == 1 != hint(want) and decide(eq(have, 1)):
            continue
        if not is_met(eq(have, want)):
            fail(
                f"The expanded size of the tensor ({want}) must match the existing size "
                f"({have}) at "
                f"non-singleton dimension {pad + d}.  Target sizes: {show(target)}.  "
                f"Tensor sizes: {show(x)}"
            )


def _require_inner(a: TensorType, b: TensorType) -> None:
    ok = eq(a.size[1], b.size[0])
    if ok is not True:
        (m, k), (k2, n) = a.size, b.size
        if not is_met(ok):
            fail(f"mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {k2}x{n})")


def _require_batches(a: TensorType, b: TensorType) -> None:
    if len(a.size) != 3:
        fail("batch1 must be a 3D tensor")
    if len(b.size) != 3:
        fail("batch2 must be a 3D tensor")
    for have, want in ((b.size[0], a.size[0]), (b.size[1], a.size[2])):
        ok = eq(have, want)
        if ok is not True:
            wanted = show((a.size[0], a.size[2]))
            if not is_met(ok):
                fail(
                    "Expected size for first two dimensions of batch2 tensor to be: "
                    f"{wanted} but got: {show(b.size[:2])}."
                )


def _require_arithmetic(dtype: torch.dtype, kernel: str) -> None:
    if dtype is torch.bool:
        raise_not_implemented(kernel, dtype)


# ----------------------------------------------------------------------------------------- matrices


@rule("mm")
def mm(self: TensorType, mat2: TensorType) -> TensorType:
    if len(self.size) != 2:
        fail("self must be a matrix")
    if len(mat2.size) != 2:
        fail("mat2 must be a matrix")
    _require_inner(self, mat2)
    if self.dtype is not mat2.dtype:
        fail(
            "expected m1 and m2 to have the same dtype, but got: "
            f"{cpp_type(self.dtype)} != {cpp_type(mat2.dtype)}"
        )
    _require_arithmetic(self.dtype, "addmm_impl_cpu_")
    device = require_same_device((self, mat2), "mm")
    return TensorType((self.size[0], mat2.size[1]), self.dtype, device)


@rule("addmm")
def addmm(
    self: TensorType, mat1: TensorType, mat2: TensorType, beta: Scalar = 1, alpha: Scalar = 1
) -> TensorType:
    if len(mat1.size) != 2:
        fail(f"mat1 must be a matrix, got {len(mat1.size)}-D tensor")
    if len(mat2.size) != 2:
        fail(f"mat2 must be a matrix, got {len(mat2.size)}-D tensor")
    _require_inner(mat1, mat2)
    if mat1.dtype is not mat2.dtype:
        _fail_dtypes("mat1", mat1, mat2)
    size = (mat1.size[0], mat2.size[1])
    require_expandable(self.size, size, self.dtype)
    if self.dtype is not mat2.dtype:
        _fail_dtypes("self", self, mat2)
    _require_arithmetic(self.dtype, "addmm_impl_cpu_")
    return TensorType(size, self.dtype, require_same_device((self, mat1, mat2), "addmm"))


def _fail_dtypes(name: str, a: TensorType, b: TensorType) -> None:
    fail(
        f"{name} and mat2 must have the same dtype, but got "
        f"{scalar_type(a.dtype)} and {scalar_type(b.dtype)}"
    )


@rule("_addmm_activation")
def addmm_activation(
    self: TensorType,
    mat1: TensorType,
    mat2: TensorType,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    use_gelu: bool = False,
) -> TensorType:
    out: TensorType = addmm(self, mat1, mat2, beta, alpha)
    return out


@rule("mm.dtype")
def mm_dtype(self: TensorType, mat2: TensorType, out_dtype: torch.dtype) -> TensorType:
    out: TensorType = mm(self, mat2)
    return out.replace(dtype=out_dtype)


@rule("addmm.dtype")
def addmm_dtype(
    self: TensorType,
    mat1: TensorType,
    mat2: TensorType,
    out_dtype: torch.dtype,
    beta: Scalar = 1,
    alpha: Scalar = 1,
) -> TensorType:
    out: TensorType = addmm(self.replace(dtype=mat1.dtype), mat1, mat2)
    return out.replace(dtype=out_dtype)


@rule("_int_mm")
def int_mm(self: TensorType, mat2: TensorType) -> TensorType:
    for name, x in (("self", self), ("mat2", mat2)):
        if len(x.size) != 2:
            fail(f"int_mm_out_cpu: Expected {name} to be of dimension 2 but got {len(x.size)}")
    if not is_met(eq(self.size[1], mat2.size[0])):
        fail(
            "int_mm_out_cpu: self.size(1) needs to match mat2.size(0) but got "
            f"{self.size[1]} and {mat2.size[0]}"
        )
    for name, x in (("self", self), ("mat2", mat2)):
        if x.dtype not in (torch.int8, torch.uint8):
            fail(
                f"int_mm_out_cpu: Expected {name} dtype to be int8 or uint8 "
                f"but got {cpp_type(x.dtype)}"
            )
    return self.fresh((self.size[0], mat2.size[1]), torch.int32)


@rule("_weight_int8pack_mm")
def weight_int8pack_mm(self: TensorType, mat2: TensorType, scales: TensorType) -> TensorType:
    require(eq(self.size[1], mat2.size[1]), "_weight_int8pack_mm: expect A.size(1) == B.size(1)")
    return self.fresh((self.size[0], mat2.size[0]))


# ------------------------------------------------------------------------------------------ batches


@rule("bmm")
def bmm(self: TensorType, mat2: TensorType) -> TensorType:
    _require_batches(self, mat2)
    require_same_dtype(self.dtype, mat2.dtype)
    _require_arithmetic(self.dtype, "bmm")
    size = (self.size[0], self.size[1], mat2.size[2])
    return TensorType(size, self.dtype, require_same_device((self, mat2), "bmm"))


@rule("bmm.dtype")
def bmm_dtype(self: TensorType, mat2: TensorType, out_dtype: torch.dtype) -> TensorType:
    out: TensorType = bmm(self, mat2)
    return out.replace(dtype=out_dtype)


@rule("baddbmm")
def baddbmm(
    self: TensorType, batch1: TensorType, batch2: TensorType, beta: Scalar = 1, alpha: Scalar = 1
) -> TensorType:
    _require_batches(batch1, batch2)
    size = (batch1.size[0], batch1.size[1], batch2.size[2])
    require_expandable(self.size, size, self.dtype)
    if self.dtype is not batch1.dtype:
        fail(
            f"Input dtypes must be the same, got: input {cpp_type(self.dtype)}, "
            f"batch1: {cpp_type(batch1.dtype)}, batch2: {cpp_type(batch2.dtype)}"
        )
    require_same_dtype(batch1.dtype, batch2.dtype)
    _require_arithmetic(self.dtype, "baddbmm")
    return TensorType(size, self.dtype, require_same_device((self, batch1, batch2), "baddbmm"))


mark(
    Trait.ROW_MAJOR,
    "mm addmm bmm baddbmm",
)


@rule("baddbmm.dtype")
def baddbmm_dtype(
    self: TensorType,
    batch1: TensorType,
    batch2: TensorType,
    out_dtype: torch.dtype,
    beta: Scalar = 1,
    alpha: Scalar = 1,
) -> TensorType:
    out: TensorType = baddbmm(self.replace(dtype=batch1.dtype), batch1, batch2)
    return out.replace(dtype=out_dtype)


@rule("addbmm")
def addbmm(
    self: TensorType, batch1: TensorType, batch2: TensorType, beta: Scalar = 1, alpha: Scalar = 1
) -> TensorType:
    if len(batch1.size) != 3:
        fail("batch1 must be a 3D tensor")
    wrap_dim(2, len(batch2.size))
    (b1, m, k), (b2, k2, n) = batch1.size, batch2.size
    if not is_met(eq(b1, b2)):
        fail(f"batch1 and batch2 must have same number of batches, got {b1} and {b2}")
    if not is_met(eq(k, k2)):
        fail(f"Incompatible matrix sizes for bmm ({m}x{k} and {k2}x{n})")
    require_expandable(self.size, (m, n), self.dtype)
    if self.dtype is not batch2.dtype:
        _fail_dtypes("self", self, batch2)
    if batch1.dtype is not batch2.dtype:
        _fail_dtypes("mat1", batch1, batch2)
    _require_arithmetic(self.dtype, "addmm_impl_cpu_")
    return self.fresh((m, n))


# ------------------------------------------------------------------------------------------ vectors


def _matrix_vector(
    input: Sizes, self_dtype: torch.dtype, mat: TensorType, vec: TensorType
) -> Sizes:
    if len(mat.size) != 2 or len(vec.size) != 1 or len(input) > 1:
        ranks = f"{len(input)}, {len(mat.size)}, {len(vec.size)}"
        fail(f"vector + matrix @ vector expected, got {ranks}")
    m, k = mat.size
    n = input[0] if input else 1
    text = f"size mismatch, got input ({n}), mat ({m}x{k}), vec ({vec.size[0]})"
    require(eq(k, vec.size[0]), text)
    if not (is_one(n) or (hint(n) == 1 != hint(m) and decide(eq(n, 1)))):
        require(eq(n, m), text)
    if not self_dtype is mat.dtype is vec.dtype:
        names = ", ".join(map(scalar_type, (self_dtype, mat.dtype)))
        fail(
            "addmv input tensors must have the same dtype, but got "
            f"{names}, and {scalar_type(vec.dtype)}"
        )
    _require_arithmetic(mat.dtype, "addmv_impl_cpu")
    return (m,)


@rule("mv")
def mv(self: TensorType, vec: TensorType) -> TensorType:
    size = _matrix_vector(self.size[:1], vec.dtype, self, vec)
    return TensorType(size, vec.dtype, require_same_device((self, vec), "mv"))


@rule("addmv")
def addmv(
    self: TensorType, mat: TensorType, vec: TensorType, beta: Scalar = 1, alpha: Scalar = 1
) -> TensorType:
    size = _matrix_vector(self.size, self.dtype, mat, vec)
    return TensorType(size, vec.dtype, require_same_device((self, mat, vec), "addmv"))


def _dot(self: TensorType, other: TensorType) -> TensorType:
    if len(self.size) != 1 or len(other.size) != 1:
        fail(f"1D tensors expected, but got {len(self.size)}D and {len(other.size)}D tensors")
    if self.dtype is not other.dtype:
        fail(
            "dot : expected both vectors to have same dtype, but found "
            f"{scalar_type(self.dtype)} and {scalar_type(other.dtype)}"
        )
    n, m = self.size[0], other.size[0]
    if not is_met(eq(n, m)):
        fail(
            f"inconsistent tensor size, expected tensor [{n}] and src [{m}] to have the same "
            "number of "
            f"elements, but got {n} and {m} elements respectively"
        )
    _require_arithmetic(self.dtype, "dot")
    return TensorType((), self.dtype, require_same_device((self, other), "dot"))


@rule("dot")
def dot(self: TensorType, tensor: TensorType) -> TensorType:
    return _dot(self, tensor)


@rule("vdot")
def vdot(self: TensorType, other: TensorType) -> TensorType:
    return _dot(self, other)


@rule("addr")
def addr(
    self: TensorType, vec1: TensorType, vec2: TensorType, beta: Scalar = 1, alpha: Scalar = 1
) -> TensorType:
    for name, v in (("vec1", vec1), ("vec2", vec2)):
        if len(v.size) != 1:
            fail(f"addr: Expected 1-D argument {name}, but got {len(v.size)}-D")
    size = (vec1.size[0], vec2.size[0])
    require_expandable(self.size, size, self.dtype)
    dtype = promote(self, vec1, vec2)
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if category(dtype) < 2 and isinstance(factor, float):
            fail(
                f"For integral input tensors, argument {name} must not be a floating point number."
            )
    column = TensorType((size[0], 1), vec1.dtype, vec1.device, (vec1.stride[0], 0))
    row = TensorType((1, size[1]), vec2.dtype, vec2.device, (0, vec2.stride[0]))
    device = common_device((self, vec1, vec2))
    return elementwise((_expand(self, size), column, row), dtype, device)


def _expand(x: TensorType, size: Sizes) -> TensorType:
    """A view of `x` at a larger size, in which broadcast dimensions have stride 0."""
    pad = len(size) - len(x.size)
    stride = [0] * pad + [
        0 if is_one(have) and not is_one(want) else step
        for have, want, step in zip(x.size, size[pad:], x.stride, strict=True)
    ]
    return TensorType(size, x.dtype, x.device, tuple(stride))


@rule("linalg_cross")
def linalg_cross(self: TensorType, other: TensorType, dim: int = -1) -> TensorType:
    if len(self.size) != len(other.size):
        fail("linalg.cross: inputs must have the same number of dimensions.")
    d = wrap_dim(dim, len(self.size))
    for x in (self, other):
        if not is_met(eq(x.size[d], 3)):
            fail(
                f"linalg.cross: inputs dimension {dim} must have length 3. "
                f"Got {self.size[d]} and {other.size[d]}"
            )
    size = broadcast_sizes((self.size, other.size))
    require_same_dtype(self.dtype, other.dtype)
    return TensorType(size, self.dtype, require_same_device((self, other), "linalg_cross"))


@rule("_trilinear")
def trilinear(
    i1: TensorType,
    i2: TensorType,
    i3: TensorType,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> TensorType:
    size = broadcast_sizes(
        [_insert_ones(x, e) for x, e in ((i1, expand1), (i2, expand2), (i3, expand3))]
    )
    return i1.fresh(tuple(s for d, s in enumerate(size) if d not in sumdim), promote(i1, i2, i3))


mark(Trait.PARTS_ARE_CAST, "_trilinear")


def _insert_ones(x: TensorType, dims: list[int]) -> Sizes:
    size = list(x.size)
    for d in sorted(dims):
        size.insert(d, 1)
    return tuple(size)


# --------------------------------------------------------------------------------- grouped products


@rule("_grouped_mm")
def grouped_mm(
    self: TensorType,
    mat2: TensorType,
    offs: TensorType | None = None,
    bias: TensorType | None = None,
    out_dtype: torch.dtype | None = None,
) -> TensorType:
    if not {len(self.size), len(mat2.size)} <= {2, 3}:
        fail("mat_a has to be 2 or 3d")
    ragged = len(self.size) == 2 or len(mat2.size) == 2
    if ragged != (offs is not None):
        fail(
            "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
        )
    require(eq(self.size[-1], mat2.size[-2]), "contraction dimension of mat_a and mat_b must match")
    for x in (self, mat2):
        _require_aligned(x)
    size = _grouped_size(self, mat2, offs)
    dtype = out_dtype or self.dtype
    # Rows start at multiples of 16 bytes.
    row = _round_up(size[-1], max(16 // dtype.itemsize, 1))
    stride: Sizes = (row, 1) if len(size) == 2 else (size[1] * row, row, 1)
    return TensorType(size, dtype, require_same_device((self, mat2), "_grouped_mm"), stride)


def _grouped_size(a: TensorType, b: TensorType, offs: TensorType | None) -> Sizes:
    m, n = a.size[-2], b.size[-1]
    if len(a.size) == 3 and len(b.size) == 3:
        require(eq(a.size[0], b.size[0]), "batched dimension has to match")
        return (a.size[0], m, n)
    assert offs is not None
    groups = offs.size[0]
    if len(a.size) == 2 and len(b.size) == 2:
        return (groups, m, n)
    three = a if len(a.size) == 3 else b
    require(eq(groups, three.size[0]), "matrix batch sizes have to match")
    return (m, n)


def _round_up(n: Size, unit: int) -> Size:
    return (n + (unit - 1)) // unit * unit


def _require_aligned(x: TensorType) -> None:
    inner = x.stride[-2] if is_same(x.stride[-1], 1) else x.stride[-1]
    require(eq(inner * x.dtype.itemsize % 16, 0), "strides should be multiple of 16 bytes")


# ---------------------------------------------------------------------------------------- distances


@rule("_cdist_forward")
def cdist_forward(x1: TensorType, x2: TensorType, p: float, compute_mode: int | None) -> TensorType:
    for name, x in (("X1", x1), ("X2", x2)):
        if len(x.size) < 2:
            fail(f"cdist only supports at least 2D tensors, {name} got: {len(x.size)}D")
    c1, c2 = x1.size[-1], x2.size[-1]
    if not is_met(eq(c1, c2)):
        fail(f"X1 and X2 must have the same number of columns. X1: {c1} X2: {c2}")
    for name, x in (("X1", x1), ("X2", x2)):
        if not x.dtype.is_floating_point:
            fail(f"cdist only supports floating-point dtypes, {name} got: {scalar_type(x.dtype)}")
    if p < 0:
        fail("cdist only supports non-negative p values")
    if (compute_mode or 0) not in (0, 1, 2):
        fail(f"possible modes: 0, 1, 2, but was: {compute_mode}")
    batch = broadcast_sizes((x1.size[:-2], x2.size[:-2]))
    require_same_dtype(x1.dtype, x2.dtype)
    return x1.fresh((*batch, x1.size[-2], x2.size[-2]))


@rule("_cdist_backward")
def cdist_backward(
    grad: TensorType, x1: TensorType, x2: TensorType, p: float, cdist: TensorType
) -> TensorType:
    batch = broadcast_sizes((x1.size[:-2], x2.size[:-2]))
    if batch == x1.size[:-2] or any(decide(eq(s, 0)) for s in (*x1.size, *x2.size)):
        return x1.fresh()  # where there is nothing, eager does not broadcast the gradient
    return x1.fresh((*batch, x1.size[-2], x1.size[-1]))


@rule("_pdist_forward")
def pdist_forward(self: TensorType, p: float = 2.0) -> TensorType:
    if not self.is_contiguous:
        fail("_pdist_forward requires contiguous input")
    require_floating(self.dtype, "pdist")
    n = self.size[0]
    return self.fresh((n * (n - 1) // 2,))


mark(Trait.READS_IN_ORDER, "_pdist_forward")


@rule("_pdist_backward")
def pdist_backward(grad: TensorType, self: TensorType, p: float, pdist: TensorType) -> TensorType:
    return self.fresh()


mark_writing_forms(Trait.READS_ELSEWHERE, "mm addmm bmm baddbmm addbmm mv addmv matmul")
