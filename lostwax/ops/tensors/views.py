"""Views: the result shows the storage of the argument in another size, stride or offset.

The rules give exactly eager's strides if sizes are ints. If they are symbolic, no rule asks what
only chooses a layout; whether the view exists at all is a requirement or a real branch. Views of
parts of a dimension are in `view_parts.py`, the `*_copy` twins and the in-place forms in
`view_forms.py`; `view_inverses.py` says how a write through a view gets back into its base. Must
not know of storages: the fake layer checks whether `as_strided` stays inside one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lostwax.errors import DataDependentError
from lostwax.ops.registry import mark, refuse_operators, rule
from lostwax.ops.shapes import (
    always_broadcasts,
    fail,
    hint,
    is_met,
    is_one,
    is_same,
    must_be_one,
    real_dtype,
    require,
    show,
    wrap_dim,
    wrap_dims,
)
from lostwax.ops.spelling import scalar_type
from lostwax.ops.traits import OperatorRefusal, Trait
from lostwax.sym import BoolExpr, Size, decide, eq, expect, known, learn, matches, ne, quotient
from lostwax.torch_version import DTYPE_ERROR, KIND_ERROR
from lostwax.types import Sizes, TensorType, contiguous_strides, product

Condition = bool | BoolExpr


def make_view(
    x: TensorType, size: Sizes, stride: Sizes | None, offset: Size | None = None
) -> TensorType:
    """A view of `x` with this size and stride; by default row-major."""
    return TensorType(size, x.dtype, x.device, stride, x.offset if offset is None else offset)


# --------------------------------------------------------------------------------------------- view


def infer_size(size: Sequence[Size], numel: Size) -> Sizes:
    """The target size of a view with its -1 replaced."""
    hole: int | None = None
    rest: Size = 1
    for d, s in enumerate(size):
        if s.__class__ is not int:
            s = _asked_size(s, d, size)
        if s.__class__ is int and s < 0:
            if s != -1:
                fail(f"invalid shape dimension {s} at index {d} of shape {show(size)}")
            if hole is not None:
                fail("only one dimension can be inferred")
            hole = d
        else:
            rest = rest * s
    if hole is None:
        if rest != numel and not is_met(eq(rest, numel)):
            fail(f"shape '{show(size)}' is invalid for input of size {numel}")
        return tuple(size)
    return (*size[:hole], _missing_size(size, rest, numel), *size[hole + 1 :])


def _asked_size(s: Size, d: int, size: Sequence[Size]) -> Size:
    """A symbolic size given by the user. It may turn out to be -1, which then means "infer"."""
    if known(s >= 0) is True:
        return s
    if hint(s) == -1 and decide(eq(s, -1)):
        return -1
    if not is_met(s >= 0):
        fail(f"invalid shape dimension {s} at index {d} of shape {show(size)}")
    return s


def _missing_size(size: Sequence[Size], rest: Size, numel: Size) -> Size:
    """What -1 stands for: numel / rest, if that is defined and whole."""
    invalid = not is_met(ne(rest, 0))
    if invalid and (numel == 0 or rest.__class__ is not int):
        fail(
            f"cannot reshape tensor of 0 elements into shape {show(size)} because the "
            "unspecified dimension size -1 can be any value and is ambiguous"
        )
    exact = None if invalid else quotient(numel, rest)
    if exact is not None:
        learn(exact >= 0)  # it is a size, although that may not show in the expression
        return exact
    if invalid or not is_met(eq(numel % rest, 0)):
        fail(f"shape '{show(size)}' is invalid for input of size {numel}")
    return numel // rest


def view_strides(x: TensorType, size: Sizes, *, must: bool = True) -> Sizes | None:
    """Strides that show `x` in this size without a copy; None if there are none.

    First the strides must be provable. If that fails, and the result `must` be a view (`reshape`
    may copy instead), the example decides, but a size that is 1 in the example is not taken for a
    1; last, the questions become real branches.
    """
    numel = x.numel()
    if not x.size or is_zero_int(numel):
        return x.stride if size == x.size else contiguous_strides(size)
    found = find_strides(lambda c: known(c) is True, x, size)
    if found is None and must and (x.is_symbolic or any(s.__class__ is not int for s in size)):
        found = find_strides(matches, x, size)
        if found is None:
            if hint(numel) == 0 and decide(eq(numel, 0)):
                return contiguous_strides(size)
            found = find_strides(decide, x, size)
    return found


def is_zero_int(n: Size) -> bool:
    return n.__class__ is int and n == 0


def find_strides(yes: Callable[[Condition], bool], x: TensorType, size: Sizes) -> Sizes | None:
    """Strides that show `x` in this size; `yes` answers the questions about its layout."""
    out: list[Size] = [0] * len(size)
    d = len(size) - 1
    for numel, step in _runs(yes, x):
        filled: Size = 1
        while d >= 0 and (not yes(eq(filled, numel)) or yes(eq(size[d], 1))):
            out[d] = filled * step
            filled = filled * size[d]
            d -= 1
        if not yes(eq(filled, numel)):
            return None
    return tuple(out) if d < 0 else None


def _runs(yes: Callable[[Condition], bool], x: TensorType) -> list[tuple[Size, Size]]:
    """(elements, step) of each run of dimensions that lie evenly in memory, innermost first."""
    runs: list[tuple[Size, Size]] = []
    numel: Size = 1
    step = x.stride[-1]
    for d in range(len(x.size) - 1, -1, -1):
        numel = numel * x.size[d]
        outer = d - 1
        if outer < 0:
            runs.append((numel, step))
        elif not yes(eq(x.size[outer], 1)) and not yes(eq(x.stride[outer], numel * step)):
            runs.append((numel, step))
            numel, step = 1, x.stride[outer]
    return runs


@rule("view", "_unsafe_view")
def view(self: TensorType, size: Sequence[Size]) -> TensorType:
    numel = product(self.size)
    new = infer_size(size, numel)
    if self.is_contiguous and (not self.size or self.stride[-1] == 1) and numel != 0:
        return TensorType(new, self.dtype, self.device, None, self.offset)
    stride = view_strides(self, new)
    if stride is None:
        fail(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return make_view(self, new, stride)


mark(Trait.NEEDS_STRIDES, "view")
mark(Trait.SHARES_STORAGE, "_unsafe_view")
mark(
    Trait.VIEW_OR_COPY,
    "reshape reshape_as flatten.using_ints ravel",
)
mark(Trait.COPIES_GAPS, "ravel")


@rule("_reshape_alias")
def reshape_alias(self: TensorType, size: Sequence[Size], stride: Sequence[Size]) -> TensorType:
    return make_view(self, tuple(size), tuple(stride))


@rule(
    "alias detach lift_fresh lift _conj _neg_view",
)
def identity(self: TensorType) -> TensorType:
    return self


mark(Trait.DETACHES, "detach", "detach_")
mark(Trait.STOPS_GRADIENT, "detach", "view.dtype")
mark(Trait.LITERAL, "lift_fresh", "lift")
mark(Trait.CONJUGATES, "_conj")
mark(Trait.RESOLVES_CONJUGATE, "resolve_conj")
mark(Trait.RESOLVES_NEGATIVE, "resolve_neg")
mark(
    Trait.NOT_ITS_BASE,
    "detach _fw_primal _make_dual _conj conj resolve_conj _neg_view resolve_neg",
)
refuse_operators(
    OperatorRefusal(
        "dual numbers (torch.autograd.forward_ad) cannot be captured",
        why="a tensor carries its tangent unseen, and a program shows all that it computes",
        instead="torch.func.jvp(function, (x,), (tangent,)), which returns it",
    ),
    "_make_dual",
    "_unpack_dual",
)


# ---------------------------------------------------------------------------------------- broadcast


@rule("expand")
def expand(self: TensorType, size: Sequence[Size], *, implicit: bool = False) -> TensorType:
    new = len(size) - len(self.size)
    if new < 0:
        fail(
            f"expand(torch.{scalar_type(self.dtype)}Tensor{{{show(self.size)}}}, "
            f"size={show(size)}): the number of sizes provided ({len(size)}) must be greater or "
            f"equal to the number of dimensions in the tensor ({len(self.size)})"
        )
    out_size: list[Size] = list(size)
    out_stride: list[Size] = [0] * len(size)
    inner: Size = 1
    for d in range(len(size) - 1, -1, -1):
        want = size[d]
        if d < new:
            _check_leading(want, d)
            out_stride[d] = inner if is_one(want) and self.size else 0
        else:
            have, step = self.size[d - new], self.stride[d - new]
            if have is want or have == want:
                out_stride[d] = step
            else:
                out_size[d], out_stride[d] = _expand_dim(have, step, want, d, size, self.size)
        inner = out_size[d] * out_stride[d]
    return make_view(self, tuple(out_size), tuple(out_stride))


def _check_leading(want: Size, d: int) -> None:
    if (want.__class__ is not int or want < 0) and not is_met(want >= 0):
        fail(
            f"The expanded size of the tensor ({want}) isn't allowed in a leading, "
            f"non-existing dimension {d}"
        )


def _expand_dim(
    have: Size, step: Size, want: Size, d: int, size: Sequence[Size], own: Sizes
) -> tuple[Size, Size]:
    """Size and stride of one dimension shown as `want`: kept, or a 1 repeated with stride 0."""
    if want == -1 or is_same(have, want):
        return have, step
    if (
        want.__class__ is not int
        and known(want >= 0) is not True
        and hint(want) == -1
        and decide(eq(want, -1))
    ):
        return have, step
    # The example broadcasts a 1, which is sound only if that size is always 1.
    always = is_one(have) or (known(have <= 1) is True and always_broadcasts(have, want))
    # If that size is 0 there are no elements, and strides address nothing.
    if always or (hint(have) == 1 != hint(want) and decide(eq(have, 1))):
        step, fits = 0, is_met(want >= 0)
    elif must_be_one(have, want):
        step, fits = 0, is_met(eq(have, 1))
    else:
        fits = is_met(eq(have, want))
    if not fits:
        fail(
            f"The expanded size of the tensor ({want}) must match the existing size ({have}) at "
            f"non-singleton dimension {d}.  Target sizes: {show(size)}.  "
            f"Tensor sizes: {show(own)}"
        )
    return want, step


# ------------------------------------------------------------------------- order and number of dims


@rule("permute")
def permute(self: TensorType, dims: Sequence[int]) -> TensorType:
    size, stride = self.size, self.stride
    n = len(size)
    if len(dims) != n:
        fail(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {n} is not equal to "
            f"len(dims) = {len(dims)}"
        )
    order = [wrap_dim(d, n) for d in dims]
    if len(set(order)) != n:
        fail("permute(): duplicate dims are not allowed.")
    return make_view(self, tuple([size[d] for d in order]), tuple([stride[d] for d in order]))


def transpose(self: TensorType, dim0: int, dim1: int) -> TensorType:
    n = len(self.size)
    a, b = wrap_dim(dim0, n), wrap_dim(dim1, n)
    if a == b:
        return self
    size, stride = list(self.size), list(self.stride)
    size[a], size[b] = size[b], size[a]
    stride[a], stride[b] = stride[b], stride[a]
    return make_view(self, tuple(size), tuple(stride))


def transpose_matrix(self: TensorType) -> TensorType:
    """`t()`: it transposes a matrix, and leaves a vector or a 0-d tensor as it is."""
    n = len(self.size)
    if n > 2:
        fail(f"t() expects a tensor with <= 2 dimensions, but self is {n}D")
    return make_view(self, self.size[::-1], self.stride[::-1])


def drop_dims(x: TensorType, dims: Sequence[int]) -> TensorType:
    """`x` without those of these dimensions whose size is 1."""
    gone = {d for d in dims if _is_singleton(x.size[d])}
    if not gone:
        return x
    keep = [d for d in range(len(x.size)) if d not in gone]
    return make_view(x, tuple([x.size[d] for d in keep]), tuple([x.stride[d] for d in keep]))


def _is_singleton(s: Size) -> bool:
    """Is the size 1? The number of dimensions depends on it, so this is a branch, and refused if
    data decide. One that is at most 1 (`x[:1]`) is required to be 1."""
    if isinstance(s, int):
        return s == 1
    if s.unbacked and known(s <= 1) is True:
        return expect(eq(s, 1))
    if s.unbacked and known(eq(s, 1)) is None:
        raise DataDependentError.here(
            f"squeeze() of the size {s}, which depends on data: if it is 1, there is one dimension "
            "less",
            instead="name the dimensions that are 1 whatever data say, x.squeeze(-1); or state "
            "before that line which it is, torch._check(x.shape[0] != 1)",
        )
    return decide(eq(s, 1))


def squeeze(self: TensorType) -> TensorType:
    return drop_dims(self, range(len(self.size)))


def squeeze_dim(self: TensorType, dim: int) -> TensorType:
    d = wrap_dim(dim, len(self.size))
    return drop_dims(self, (d,)) if self.size else self


def squeeze_dims(self: TensorType, dim: Sequence[int]) -> TensorType:
    dims = wrap_dims(dim, len(self.size)) if dim else ()
    return drop_dims(self, dims) if self.size else self


def unsqueeze(self: TensorType, dim: int) -> TensorType:
    size, stride = self.size, self.stride
    d = wrap_dim(dim, len(size) + 1)
    step = size[d] * stride[d] if d < len(size) else 1
    return make_view(self, (*size[:d], 1, *size[d:]), (*stride[:d], step, *stride[d:]))


rule("transpose.int")(transpose)
rule("t")(transpose_matrix)
rule("squeeze")(squeeze)
rule("squeeze.dim")(squeeze_dim)
rule("squeeze.dims")(squeeze_dims)
rule("unsqueeze")(unsqueeze)


# ---------------------------------------------------------------------------- strides given; dtypes


def as_strided(
    self: TensorType,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> TensorType:
    if len(size) != len(stride):
        fail("mismatch in length of strides and shape")
    for s, step in zip(size, stride, strict=True):
        if not is_met(step >= 0):
            fail(
                "as_strided: Negative strides are not supported at the moment, "
                f"got strides: {show(stride)}"
            )
        if not is_met(s >= 0):
            fail(
                f"Storage size calculation overflowed with sizes={show(size)} and "
                f"strides={show(stride)}"
            )
    if storage_offset is not None and not is_met(storage_offset >= 0):
        fail(f"Tensor: invalid storage offset {storage_offset}")
    return make_view(self, tuple(size), tuple(stride), storage_offset)


rule("as_strided")(as_strided)
mark(Trait.VIEWS_STORAGE, "as_strided")


@rule("view.dtype")
def view_dtype(self: TensorType, dtype: torch.dtype) -> TensorType:
    old, new = self.dtype.itemsize, dtype.itemsize
    if old == new:
        return self.replace(dtype=dtype)
    names = f"to view {scalar_type(self.dtype)} as {scalar_type(dtype)} (different element sizes)"
    if not self.size:
        fail(f"self.dim() cannot be 0 {names}")
    last = self.stride[-1]
    if not is_met(eq(last, 1)):
        fail(f"self.stride(-1) must be 1 {names}, but got {last}")
    if new < old:
        k = old // new
        size, stride = self.size[-1] * k, [s * k for s in self.stride[:-1]]
        offset = self.offset * k
    else:
        k = new // old
        if self.is_symbolic:  # if it is empty, its strides are not what they seem
            require(ne(self.numel(), 0), f"a tensor without elements {names}")
        size = _divide_exactly(self.size[-1], k, "self.size(-1)", names)
        offset = _divide_exactly(self.offset, k, "self.storage_offset()", names)
        stride = [
            _divide_exactly(s, k, f"self.stride({d})", names)
            for d, s in enumerate(self.stride[:-1])
        ]
    return TensorType((*self.size[:-1], size), dtype, self.device, (*stride, 1), offset)


def _divide_exactly(n: Size, k: int, what: str, names: str) -> Size:
    if not is_met(eq(n % k, 0)):
        fail(f"{what} must be divisible by {k} {names}, but got {n}")
    return n // k


@rule("view_as_real")
def view_as_real(self: TensorType) -> TensorType:
    if not self.dtype.is_complex:
        fail("view_as_real is only supported for complex tensors", KIND_ERROR)
    stride = (*[s * 2 for s in self.stride], 1)
    return TensorType((*self.size, 2), real_dtype(self.dtype), self.device, stride, self.offset * 2)


_COMPLEX = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


@rule("view_as_complex")
def view_as_complex(self: TensorType) -> TensorType:
    if self.dtype not in _COMPLEX:
        fail(
            "view_as_complex is only supported for half, float and double tensors, but got a "
            f"tensor of scalar type: {scalar_type(self.dtype)}",
            DTYPE_ERROR,
        )
    if not self.size:
        fail("Input tensor must have one or more dimensions")
    require(eq(self.size[-1], 2), "Tensor must have a last dimension of size 2")
    require(eq(self.stride[-1], 1), "Tensor must have a last dimension with stride 1")
    for n, s in zip(self.size[:-1], self.stride[:-1], strict=True):
        if is_one(n):
            continue
        require(eq(s % 2, 0), "Tensor must have a stride divisible by 2 for all but last dimension")
    require(eq(self.offset % 2, 0), "Tensor must have a storage_offset divisible by 2")
    stride = tuple([s // 2 for s in self.stride[:-1]])
    return TensorType(self.size[:-1], _COMPLEX[self.dtype], self.device, stride, self.offset // 2)


mark(
    Trait.OTHER_ELEMENTS,
    "view.dtype view_as_real view_as_complex _conj _neg_view",
)
mark(Trait.READS_BITS, "view.dtype")
mark(Trait.NOT_OF_CONJUGATE, "view_as_real")
mark(Trait.REAL_OF_CONJUGATE, "real")
mark(Trait.NEGATIVE_OF_CONJUGATE, "imag")
