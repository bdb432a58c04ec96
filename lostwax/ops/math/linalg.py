"""Type rules of linear algebra: factorisations, eigenvalues, solvers.

LAPACK works on columns: its results are row-major batches of column-major matrices. `info` and
pivots are int32. `solve`, `inv`, `cholesky` and the like are composites of the `_ex`
forms here.
"""

from __future__ import annotations

import torch

from lostwax.ops.registry import mark, mark_overloads, mark_writing_forms, rule
from lostwax.ops.shapes import (
    broadcast_sizes,
    contiguous_strides,
    fail,
    is_met,
    is_zero,
    real_dtype,
    require,
    show,
)
from lostwax.ops.spelling import scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import Size, decide, eq, maximum, minimum
from lostwax.torch_version import DTYPE_ERROR
from lostwax.types import Sizes, TensorType

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}

# ------------------------------------------------------------------------------ matrices and checks


def _new_columns(x: TensorType, size: Sizes, dtype: torch.dtype | None = None) -> TensorType:
    """A new batch of column-major matrices."""
    stride = list(contiguous_strides(size))
    stride[-2] = 1
    rows = size[-2]
    stride[-1] = max(rows, 1) if isinstance(rows, int) else rows
    return TensorType(size, dtype or x.dtype, x.device, tuple(stride))


def _new_info(x: TensorType) -> TensorType:
    return x.fresh(x.size[:-2], torch.int32)


def _require_matrix(x: TensorType, name: str) -> None:
    if len(x.size) < 2:
        fail(f"{name}: The input tensor A must have at least 2 dimensions.")


def _require_fractional(x: TensorType, name: str) -> None:
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        fail(
            f"{name}: Expected a floating point or complex tensor as input. "
            f"Got {scalar_type(x.dtype)}",
            DTYPE_ERROR,
        )
    if x.dtype in (torch.bfloat16, torch.float16):
        dtype = scalar_type(x.dtype)
        fail(f"{name}: Low precision dtypes not supported. Got {dtype}", NotImplementedError)


def _require_square(x: TensorType, name: str) -> None:
    _require_matrix(x, name)
    m, n = x.size[-2:]
    if not is_met(eq(m, n)):
        fail(f"{name}: A must be batches of square matrices, but they are {m} by {n} matrices")


def _smaller_side(x: TensorType) -> Size:
    return minimum(*x.size[-2:])


# ----------------------------------------------------------------------------------- factorisations


@rule("_linalg_svd")
def svd(
    A: TensorType,
    full_matrices: bool = False,
    compute_uv: bool = True,
    driver: str | None = None,
) -> tuple[TensorType, TensorType, TensorType]:
    _require_matrix(A, "linalg.svd")
    _require_fractional(A, "linalg.svd")
    *batch, m, n = A.size
    k = _smaller_side(A)
    values = A.fresh((*batch, k), real_dtype(A.dtype))
    if not compute_uv:
        return A.fresh((0,)), values, A.fresh((0,))
    u = _new_columns(A, (*batch, m, m if full_matrices else k))
    size = (*batch, n if full_matrices else k, n)
    # cuSOLVER computes the columns of V, which are the rows of Vh.
    return u, values, A.fresh(size) if A.device.type == "cuda" else _new_columns(A, size)


@rule("linalg_qr")
def qr(A: TensorType, mode: str = "reduced") -> tuple[TensorType, TensorType]:
    _require_matrix(A, "linalg.qr")
    _require_fractional(A, "linalg.qr")
    if mode not in ("reduced", "r", "complete"):
        fail(
            f"qr received unrecognized mode '{mode}' but expected one of "
            "'reduced' (default), 'r', or 'complete'"
        )
    *batch, m, n = A.size
    k = m if mode == "complete" else _smaller_side(A)
    r = _new_columns(A, (*batch, k, n))
    return A.fresh((0,)) if mode == "r" else _new_columns(A, (*batch, m, k)), r


@rule("geqrf")
def geqrf(self: TensorType) -> tuple[TensorType, TensorType]:
    if len(self.size) < 2:
        fail("torch.geqrf: input must have at least 2 dimensions.")
    return _new_columns(self, self.size), self.fresh((*self.size[:-2], _smaller_side(self)))


@rule("linalg_lu_factor_ex")
def lu_factor_ex(
    A: TensorType, pivot: bool = True, check_errors: bool = False
) -> tuple[TensorType, TensorType, TensorType]:
    if len(A.size) < 2:
        fail(
            "torch.lu_factor: Expected tensor with 2 or more dimensions. "
            f"Got size: {show(A.size)} instead"
        )
    _require_pivoting(A, pivot)
    pivots = A.fresh((*A.size[:-2], _smaller_side(A)), torch.int32)
    return _new_columns(A, A.size), pivots, _new_info(A)


def _require_pivoting(x: TensorType, pivot: bool) -> None:
    if not pivot and x.device.type == "cpu":
        fail("linalg.lu_factor: LU without pivoting is not implemented on the CPU")


def _triangles(x: TensorType) -> tuple[TensorType, TensorType]:
    *batch, m, n = x.size
    k = _smaller_side(x)
    return x.fresh((*batch, m, k)), x.fresh((*batch, k, n))


@rule("linalg_lu")
def lu(A: TensorType, pivot: bool = True) -> tuple[TensorType, TensorType, TensorType]:
    if len(A.size) < 2:
        fail(
            "linalg.lu: Expected tensor with 2 or more dimensions. "
            f"Got size: {show(A.size)} instead"
        )
    _require_pivoting(A, pivot)
    *batch, m, _ = A.size
    return A.fresh((*batch, m, m) if pivot else (0,)), *_triangles(A)


@rule("lu_unpack")
def lu_unpack(
    LU_data: TensorType,
    LU_pivots: TensorType,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[TensorType, TensorType, TensorType]:
    if unpack_pivots and LU_pivots.dtype is not torch.int32:
        fail(
            "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 "
            "dtype.\nNote: this function is intended to be used with the output produced by "
            "torch.linalg.lu_factor"
        )
    *batch, m, _ = LU_data.size
    nothing = LU_data.fresh((0,))
    permutation = LU_data.fresh((*batch, m, m)) if unpack_pivots else nothing
    return permutation, *(_triangles(LU_data) if unpack_data else (nothing, nothing))


@rule("linalg_ldl_factor_ex")
def ldl_factor_ex(
    self: TensorType, hermitian: bool = False, check_errors: bool = False
) -> tuple[TensorType, TensorType, TensorType]:
    _require_square(self, "torch.linalg.ldl_factor_ex")
    _require_fractional(self, "torch.linalg.ldl_factor_ex")
    return _new_columns(self, self.size), self.fresh(self.size[:-1], torch.int32), _new_info(self)


@rule("linalg_cholesky_ex")
def cholesky_ex(self: TensorType, *_: object, **__: object) -> tuple[TensorType, TensorType]:
    _require_square(self, "linalg.cholesky")
    _require_fractional(self, "linalg.cholesky")
    return _new_columns(self, self.size), _new_info(self)


@rule("cholesky")
def cholesky(self: TensorType, upper: bool = False) -> TensorType:
    _require_square(self, "cholesky")
    if is_zero(self.numel()):
        return self.fresh()
    return _new_columns(self, self.size)


@rule("cholesky_inverse")
def cholesky_inverse(self: TensorType, upper: bool = False) -> TensorType:
    _require_square(self, "cholesky_inverse")
    return _new_columns(self, self.size)


@rule("linalg_householder_product")
def householder_product(input: TensorType, tau: TensorType) -> TensorType:
    name = "torch.linalg.householder_product"
    if len(input.size) < 2:
        fail(f"{name}: input must have at least 2 dimensions.")
    m, n = input.size[-2:]
    if not is_met(m >= n):
        fail(f"{name}: input.shape[-2] must be greater than or equal to input.shape[-1]")
    if len(input.size) - len(tau.size) != 1:
        fail(
            f"{name}: Expected tau to have one dimension less than input, but got tau.ndim equal "
            "to "
            f"{len(tau.size)} and input.ndim is equal to {len(input.size)}"
        )
    if not is_met(n >= tau.size[-1]):
        fail(f"{name}: input.shape[-1] must be greater than or equal to tau.shape[-1]")
    if tau.dtype is not input.dtype:
        fail(
            f"{name}: tau dtype {scalar_type(tau.dtype)} does not match input dtype "
            f"{scalar_type(input.dtype)}"
        )
    return _new_columns(input, input.size)


@rule("ormqr")
def ormqr(
    self: TensorType,
    input2: TensorType,
    input3: TensorType,
    left: bool = True,
    transpose: bool = False,
) -> TensorType:
    tau, other = input2, input3
    if len(self.size) < 2:
        fail("torch.ormqr: input must have at least 2 dimensions.")
    if len(other.size) != len(self.size):
        fail(
            "torch.ormqr: Expected other to have the same number of dimensions as input, but got "
            f"other.ndim equal to {len(other.size)} and input.ndim is equal to {len(self.size)}"
        )
    side = -2 if left else -1
    if not is_met(eq(other.size[side], self.size[-2])):
        fail(f"torch.ormqr: other.shape[{side}] must be equal to input.shape[-2]")
    if not is_met(eq(tau.size[-1], minimum(other.size[side], self.size[-1]))):
        fail(
            f"torch.ormqr: tau.shape[-1] must be equal to min(other.shape[{side}], input.shape[-1])"
        )
    for what, batch in (("tau", tau.size[:-1]), ("other", other.size[:-2])):
        text = (
            f"torch.ormqr: Expected batch dimensions of {what} to be equal to input.shape[:-2], "
            f"but got {show(batch)}"
        )
        if len(batch) != len(self.size) - 2:
            fail(text)
        for a, b in zip(batch, self.size, strict=False):
            require(eq(a, b), text)
    if other.dtype is not self.dtype:
        fail(
            "torch.ormqr: Expected input and other to have the same dtype, but input has dtype"
            f"{scalar_type(self.dtype)} and other has dtype {scalar_type(other.dtype)}"
        )
    return _new_columns(other, other.size)


# ------------------------------------------------------------------------ eigenvalues, determinants


@rule("_linalg_eigh")
def eigh(A: TensorType, UPLO: str = "L", compute_v: bool = True) -> tuple[TensorType, TensorType]:
    _require_square(A, "linalg.eigh")
    _require_fractional(A, "linalg.eigh")
    if UPLO.upper() not in ("L", "U"):
        fail(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    vectors = _new_columns(A, A.size) if compute_v else A.fresh((0,))
    return A.fresh(A.size[:-1], real_dtype(A.dtype)), vectors


@rule("linalg_eig")
def eig(self: TensorType) -> tuple[TensorType, TensorType]:
    dtype = _COMPLEX.get(self.dtype)
    is_cuda = self.device.type == "cuda"
    vectors = self.fresh(self.size, dtype) if is_cuda else _new_columns(self, self.size, dtype)
    return eigvals(self), vectors


@rule("_linalg_eigvals")
def eigvals(self: TensorType) -> TensorType:
    _require_square(self, "linalg.eig")
    _require_fractional(self, "linalg.eig")
    return self.fresh(self.size[:-1], _COMPLEX.get(self.dtype))


@rule("_linalg_det")
def det(A: TensorType) -> tuple[TensorType, TensorType, TensorType]:
    _require_square(A, "linalg.det")
    _require_fractional(A, "linalg.det")
    pivots = A.fresh(A.size[:-1], torch.int32)
    return A.fresh(A.size[:-2]), _new_columns(A, A.size), pivots


@rule("_linalg_slogdet")
def slogdet(A: TensorType) -> tuple[TensorType, TensorType, TensorType, TensorType]:
    _require_square(A, "linalg.slogdet")
    _require_fractional(A, "linalg.slogdet")
    batch = A.size[:-2]
    pivots = A.fresh(A.size[:-1], torch.int32)
    return (
        A.fresh(batch),
        A.fresh(batch, real_dtype(A.dtype)),
        _new_columns(A, A.size),
        pivots,
    )


@rule("linalg_matrix_exp")
def matrix_exp(self: TensorType) -> TensorType:
    _require_square(self, "linalg.matrix_exp")
    if not (self.dtype.is_floating_point or self.dtype.is_complex):
        _require_fractional(self, "linalg.matrix_exp")
    return self.fresh()


@rule("_compute_linear_combination")
def compute_linear_combination(input: TensorType, coefficients: TensorType) -> TensorType:
    return input.fresh((coefficients.size[0], *input.size[1:]))


@rule("linalg_inv_ex")
def inv_ex(A: TensorType, check_errors: bool = False) -> tuple[TensorType, TensorType]:
    _require_square(A, "linalg.inv")
    _require_fractional(A, "linalg.inv")
    return _new_columns(A, A.size), _new_info(A)


@rule("linalg_pinv.atol_rtol_tensor")
def pinv(
    self: TensorType,
    atol: TensorType | None = None,
    rtol: TensorType | None = None,
    hermitian: bool = False,
) -> TensorType:
    _require_matrix(self, "linalg.pinv")
    if hermitian:
        _require_square(self, "linalg.eigh")
    *batch, m, n = self.size
    return self.fresh((*batch, n, m))


mark(Trait.PARTS_ARE_CAST, "linalg_pinv.atol_rtol_tensor")
mark_overloads(Trait.DROPS_OUT, "kron linalg_matrix_rank", out=True)


@rule("_linalg_check_errors")
def check_errors(info: TensorType, api_name: str, is_matrix: bool) -> None:
    """It checks data, of which a type knows nothing."""


mark(
    Trait.FAILS_TO_FACTOR,
    "_linalg_check_errors _linalg_eigh _linalg_svd linalg_eig _linalg_eigvals linalg_lstsq",
    "cholesky cholesky_inverse",
)


# ------------------------------------------------------------------------------------------ solvers


def _is_vector(a: TensorType, b: TensorType) -> bool:
    """Is the right-hand side a vector, or a batch of them, by numpy's rule?"""
    if len(b.size) == 1:
        return True
    return len(a.size) - 1 == len(b.size) and all(
        decide(eq(x, y)) for x, y in zip(a.size[:-1], b.size, strict=True)
    )


def _require_solvable(a: Sizes, b: Sizes, left: bool, name: str) -> None:
    equation = "AX = B" if left else "XA = B"
    if not is_met(eq(a[-2], b[-2] if left else b[-1])):
        fail(
            f"{name}: Incompatible shapes of A and B for the equation {equation} "
            f"({a[-2]}x{a[-1]} and {b[-2]}x{b[-1]})"
        )


def _broadcast_solution(a: TensorType, b: TensorType) -> Sizes:
    return (*broadcast_sizes((a.size[:-2], b.size[:-2])), *b.size[-2:])


@rule("_linalg_solve_ex")
def solve_ex(
    A: TensorType, B: TensorType, left: bool = True, check_errors: bool = False
) -> tuple[TensorType, TensorType, TensorType, TensorType]:
    name = "linalg.solve"
    _require_fractional(A, name)
    if A.dtype is not B.dtype:
        _fail_dtypes(name, "A", A, B)
    _require_square(A, name)
    vector = _is_vector(A, B)
    _require_solvable(A.size, (*B.size, 1) if vector else B.size, left or vector, name)
    size = B.size if vector else _broadcast_solution(A, B)
    result = _new_columns(B, size) if left and len(size) > 1 else B.fresh(size)
    pivots = A.fresh(A.size[:-1], torch.int32)
    return result, _new_columns(A, A.size), pivots, _new_info(A)


def _fail_dtypes(name: str, first: str, a: TensorType, b: TensorType) -> None:
    fail(
        f"{name}: Expected {first} and B to have the same dtype, but found {first} of type "
        f"{scalar_type(a.dtype)} and B of type {scalar_type(b.dtype)} instead"
    )


@rule("linalg_lu_solve")
def lu_solve(
    LU: TensorType,
    pivots: TensorType,
    B: TensorType,
    left: bool = True,
    adjoint: bool = False,
) -> TensorType:
    name = "linalg.lu_solve"
    if LU.dtype is not B.dtype:
        _fail_dtypes(name, "LU", LU, B)
    if pivots.dtype is not torch.int32:
        fail(f"{name}: pivots should be a Tensor of scalar type torch.int32")
    _require_square(LU, name)
    _require_solvable(LU.size, B.size, left, name)
    if not is_met(eq(LU.size[-1], pivots.size[-1])):
        fail(f"{name}: Number of pivots per batch should be same as the dimension of the matrix")
    text = (
        f"{name}: Expected LU.shape[:-1] and pivots.shape to be the same, "
        f"but got pivots with shape {show(pivots.size)} instead"
    )
    if len(pivots.size) != len(LU.size) - 1:
        fail(text)
    for a, b in zip(LU.size, pivots.size, strict=False):
        require(eq(a, b), text)
    size = _broadcast_solution(LU, B)
    return _new_columns(B, size) if left else B.fresh(size)


@rule("linalg_ldl_solve")
def ldl_solve(
    LD: TensorType, pivots: TensorType, B: TensorType, hermitian: bool = False
) -> TensorType:
    _require_square(LD, "torch.linalg.ldl_solve")
    if len(B.size) < 2:
        fail(
            "torch.linalg.ldl_solve: Expected B to have at least 2 dimensions, "
            f"but it has {len(B.size)} dimensions instead"
        )
    if pivots.dtype.is_floating_point or pivots.dtype is torch.bool:
        fail(
            "torch.linalg.ldl_solve: Expected pivots to be integers. "
            f"Got {scalar_type(pivots.dtype)}"
        )
    _require_legacy_solvable(B, LD, "torch.linalg.ldl_solve")
    return _new_columns(B, _broadcast_solution(LD, B))


def _require_legacy_solvable(b: TensorType, a: TensorType, name: str) -> None:
    if a.dtype is not b.dtype:
        fail(
            "Expected b and A to have the same dtype, but found b of type "
            f"{scalar_type(b.dtype)} and A of type {scalar_type(a.dtype)} instead."
        )
    if not is_met(eq(a.size[-2], a.size[-1])):
        fail(
            f"A must be batches of square matrices, but they are {a.size[-2]} by {a.size[-1]} "
            "matrices"
        )
    if not is_met(eq(a.size[-1], b.size[-2])):
        fail(
            f"Incompatible matrix sizes for {name}: each A matrix is {a.size[-1]} by "
            f"{a.size[-1]} but "
            f"each b matrix is {b.size[-2]} by {b.size[-1]}"
        )


@rule("linalg_solve_triangular")
def solve_triangular(
    self: TensorType,
    B: TensorType,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> TensorType:
    name = "linalg.solve_triangular"
    _require_matrix(self, name)
    _require_matrix(B, name)
    _require_square(self, name)
    _require_solvable(self.size, B.size, left, name)
    return _new_columns(B, _broadcast_solution(self, B), self.dtype)


@rule("triangular_solve")
def triangular_solve(
    self: TensorType, A: TensorType, *_: object, **__: object
) -> tuple[TensorType, TensorType]:
    for name, x in (("b", self), ("A", A)):
        if len(x.size) < 2:
            fail(
                f"torch.triangular_solve: Expected {name} to have at least 2 dimensions, "
                f"but it has {len(x.size)} dimensions instead"
            )
    _require_legacy_solvable(self, A, "triangular_solve")
    batch = broadcast_sizes((self.size[:-2], A.size[:-2]))
    clone = _new_columns(A, (*batch, *A.size[-2:]))
    return _new_columns(self, (*batch, *self.size[-2:])), clone


@rule("cholesky_solve")
def cholesky_solve(self: TensorType, input2: TensorType, upper: bool = False) -> TensorType:
    for name, x in (("b", self), ("u", input2)):
        if len(x.size) < 2:
            fail(
                f"{name} should have at least 2 dimensions, "
                f"but has {len(x.size)} dimensions instead"
            )
    _require_legacy_solvable(self, input2, "cholesky_solve")
    return _new_columns(self, _broadcast_solution(input2, self))


@rule("_cholesky_solve_helper")
def cholesky_solve_helper(self: TensorType, A: TensorType, upper: bool) -> TensorType:
    return _new_columns(self, self.size)


_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@rule("linalg_lstsq")
def lstsq(
    self: TensorType, b: TensorType, rcond: float | None = None, driver: str | None = None
) -> tuple[TensorType, TensorType, TensorType, TensorType]:
    """Only tall matrices of full rank have residuals; full rank is assumed here."""
    driver = driver or "gelsy"
    vector = _require_least_squares(self, b, driver)
    m, n = self.size[-2:]
    batch = broadcast_sizes([self.size[:-2], b.size[:-1] if vector else b.size[:-2]])
    columns = () if vector else (b.size[-1],)
    tall = driver != "gelsy" and decide(m > n)
    residuals = (*batch, *(columns or (1,))) if tall else (0,)
    # The solution is the top of the array that held `b`.
    room = _new_columns(b, (*batch, maximum(m, n), b.size[-1] if columns else 1))
    stride = room.stride if columns else room.stride[:-1]
    solution = TensorType((*batch, n, *columns), b.dtype, b.device, stride)
    return (
        solution,
        self.fresh(residuals, real_dtype(self.dtype)),
        self.fresh((0,) if driver == "gels" else tuple(batch), torch.int64),
        self.fresh(
            (*batch, _smaller_side(self)) if driver in ("gelsd", "gelss") else (0,),
            real_dtype(self.dtype),
        ),
    )


def _require_least_squares(a: TensorType, b: TensorType, driver: str) -> bool:
    """Check the arguments, and tell whether the right-hand side is a batch of vectors."""
    name = "torch.linalg.lstsq"
    if len(a.size) < 2:
        fail(f"{name}: input must have at least 2 dimensions.")
    if len(b.size) < 1:
        fail(f"{name}: other must have at least 1 dimension.")
    if a.dtype is not b.dtype:
        fail(
            f"{name}: Expected input and other to have the same dtype, but got input's dtype "
            f"{scalar_type(a.dtype)} and other's dtype {scalar_type(b.dtype)}"
        )
    if not 0 <= len(a.size) - len(b.size) <= 1:
        fail(
            f"{name}: input.dim() must be greater or equal to other.dim() and "
            "(input.dim() - other.dim()) <= 1"
        )
    if driver not in _DRIVERS:
        fail(f"{name}: parameter `driver` should be one of ({', '.join(_DRIVERS)})")
    vector = len(b.size) == len(a.size) - 1
    at = -1 if vector else -2
    if not is_met(eq(a.size[-2], b.size[at])):
        fail(f"{name}: input.size(-2) should match other.size({at})")
    return vector


mark_writing_forms(
    Trait.ROW_MAJOR_OUT,
    "cholesky cholesky_solve linalg_matrix_power linalg_matrix_norm linalg_tensorinv",
)
mark_writing_forms(
    Trait.RELAYS_FIRST_OUT,
    "ormqr geqrf cholesky_inverse linalg_eigvals linalg_householder_product linalg_lstsq",
)
mark_writing_forms(Trait.RELAYS_TWO_OUTS, "triangular_solve linalg_eig")
