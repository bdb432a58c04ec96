"""Type rules of losses and their gradients.

Pointwise losses are pointwise operators followed by an optional reduction (0 none, 1 mean, 2 sum).
Losses over classes (nll, margins, CTC) have one value a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lostwax.ops.elementwise import new_like
from lostwax.ops.registry import Fresh, mark, rule
from lostwax.ops.shapes import (
    Scalar,
    broadcast_sizes,
    category,
    elementwise,
    fail,
    is_met,
    preserved_strides,
    promote,
    require,
    require_same_sizes,
    show,
)
from lostwax.ops.spelling import (
    raise_not_implemented,
    require_floating,
    require_same_dtype,
    scalar_type,
)
from lostwax.ops.traits import Trait
from lostwax.sym import BoolExpr, Size, eq
from lostwax.types import TensorType

Optional = TensorType | None
NONE, MEAN = 0, 1

# ---------------------------------------------------------------------------------------- pointwise


def _reduce(out: TensorType, reduction: int) -> TensorType:
    return out if reduction == NONE else out.fresh(())


def _plain_loss(self: TensorType, target: TensorType, reduction: int, kernel: str) -> TensorType:
    dtype = promote(self, target)
    out = elementwise((self, target), dtype)
    require_floating(dtype, kernel)
    return _reduce(out, reduction)


@rule("mse_loss")
def mse_loss(self: TensorType, target: TensorType, reduction: int = MEAN) -> TensorType:
    return _plain_loss(self, target, reduction, "mse_cpu")


@rule("smooth_l1_loss")
def smooth_l1_loss(
    self: TensorType, target: TensorType, reduction: int = MEAN, beta: float = 1.0
) -> TensorType:
    if beta < 0:
        fail("smooth_l1_loss does not support negative values for beta.")
    return _plain_loss(self, target, reduction, "smooth_l1_cpu")


@rule("huber_loss")
def huber_loss(
    self: TensorType, target: TensorType, reduction: int = MEAN, delta: float = 1.0
) -> TensorType:
    if delta <= 0:
        fail("huber_loss does not support non-positive values for delta.")
    out = elementwise((self, target), self.dtype)
    require_floating(promote(self, target), "huber_cpu")
    return _reduce(out, reduction)


@rule("soft_margin_loss")
def soft_margin_loss(self: TensorType, target: TensorType, reduction: int = MEAN) -> TensorType:
    out = elementwise((self, target), self.dtype)
    _require_storable(torch.get_default_dtype(), self.dtype)
    return _reduce(out, reduction)


def _require_storable(result: torch.dtype, output: torch.dtype) -> None:
    if category(output) < 2:
        fail(
            f"result type {scalar_type(result)} can't be cast to the desired output type "
            f"{scalar_type(output)}"
        )


@rule(
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward",
)
def row_major_gradient(
    grad_output: TensorType, self: TensorType, target: TensorType, *_: object, **__: object
) -> TensorType:
    return self.fresh()


@rule("soft_margin_loss_backward")
def soft_margin_loss_backward(
    grad_output: TensorType, self: TensorType, target: TensorType, reduction: int
) -> TensorType:
    return elementwise((self, target, grad_output), self.dtype)


@rule("binary_cross_entropy")
def binary_cross_entropy(
    self: TensorType, target: TensorType, weight: Optional = None, reduction: int = MEAN
) -> TensorType:
    out = elementwise((self, target), self.dtype)
    if target.dtype is not self.dtype:
        fail(f"Found dtype {scalar_type(target.dtype)} but expected {scalar_type(self.dtype)}")
    if weight is not None:
        broadcast_sizes((out.size, weight.size))
    require_floating(self.dtype, "binary_cross_entropy")
    return _reduce(out, reduction)


@rule("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: TensorType, self: TensorType, *_: object, **__: object
) -> TensorType:
    return new_like(self)


@rule("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: TensorType,
    target: TensorType,
    weight: Optional = None,
    pos_weight: Optional = None,
    reduction: int = MEAN,
) -> TensorType:
    """Eager computes in the memory of `1 - target`, which decides dtype and layout."""
    operands = [target, self] + [w for w in (weight, pos_weight) if w is not None]
    size = broadcast_sizes([o.size for o in operands])
    require_floating(self.dtype, "log_sigmoid_cpu")
    _require_storable(self.dtype, target.dtype)
    if len(size) != len(target.size):
        fail(
            f"output with shape {show(target.size)} doesn't match the broadcast shape {show(size)}"
        )
    for have, want in zip(target.size, size, strict=True):
        if not is_met(eq(have, want)):
            fail(
                f"output with shape {show(target.size)} doesn't match the broadcast shape "
                f"{show(size)}"
            )
    out = TensorType(size, target.dtype, target.device, preserved_strides(target))
    return _reduce(out, reduction)


# -------------------------------------------------------------------------- negative log likelihood


def _require_class_target(target: TensorType) -> None:
    if target.dtype not in (torch.int64, torch.uint8):
        fail(f"expected target dtype to be Long or Byte, but got {scalar_type(target.dtype)}")


def _check_nll(self: TensorType, target: TensorType, weight: Optional) -> None:
    if len(self.size) not in (1, 2):
        fail("input tensor should be 1D or 2D")
    if len(target.size) > 1:
        fail("0D or 1D target tensor expected, multi-target not supported")
    if len(self.size) == 1 and len(target.size) == 1:
        n = target.size[0]
        if not is_met(eq(n, 1)):
            fail(f"For 1D input, 1D target must have size 1, but got target size: {n}", ValueError)
    if len(self.size) == 2:
        text = f"size mismatch (got input: {show(self.size)}, target: {show(target.size)})"
        require(eq(self.size[0], target.size[0]) if target.size else False, text)
    if weight is not None:
        classes = self.size[-1]
        if not is_met(eq(weight.size[0], classes) if len(weight.size) == 1 else False):
            fail(
                f"weight tensor should be defined either for all {classes} classes or no "
                "classes but "
                "got "
                f"weight tensor of shape: {show(weight.size)}"
            )


@rule("nll_loss_forward")
def nll_loss_forward(
    self: TensorType, target: TensorType, weight: Optional, reduction: int, ignore_index: Size
) -> tuple[TensorType, TensorType]:
    _check_nll(self, target, weight)
    _require_class_target(target)
    require_floating(self.dtype, "nll_loss_out_frame")
    if weight is not None:
        require_same_dtype(self.dtype, weight.dtype)
    each = reduction == NONE and len(self.size) == 2
    return self.fresh((self.size[0],) if each else ()), self.fresh(())


@rule("nll_loss_backward")
def nll_loss_backward(
    grad_output: TensorType,
    self: TensorType,
    target: TensorType,
    weight: Optional,
    reduction: int,
    ignore_index: Size,
    total_weight: TensorType,
) -> TensorType:
    _check_nll(self, target, weight)
    if reduction == NONE and len(self.size) == 2:
        n = len(grad_output.size)
        have = grad_output.size[0] if n else 0
        if not is_met(eq(have, self.size[0]) if n == 1 else False):
            fail(
                f"Expected a tensor of dimension 1 and tensor.size[0] == {self.size[0]} but got: "
                f"dimension {n} and tensor.size[0] = {have}"
            )
    return self.fresh()


def _check_nll2d(self: TensorType, target: TensorType, weight: Optional) -> None:
    if len(target.size) != 3:
        fail(
            "only batches of spatial targets supported (3D tensors) but got targets of dimension: "
            f"{len(target.size)}"
        )
    if len(self.size) != 4:
        fail(
            "only batches of spatial inputs supported (4D tensors), but got input of dimension: "
            f"{len(self.size)}"
        )
    if weight is not None:
        require(
            eq(weight.size[0], self.size[1]) if len(weight.size) == 1 else False,
            "weight tensor should be defined either for all or no classes",
        )
    for have, want in zip((self.size[0], *self.size[2:]), target.size, strict=True):
        if not is_met(eq(have, want)):
            fail(f"size mismatch (got input: {show(self.size)} , target: {show(target.size)}")


@rule("nll_loss2d_forward")
def nll_loss2d_forward(
    self: TensorType, target: TensorType, weight: Optional, reduction: int, ignore_index: Size
) -> tuple[TensorType, TensorType]:
    _check_nll2d(self, target, weight)
    _require_class_target(target)
    require_floating(self.dtype, "nll_loss2d_forward_out_frame")
    return self.fresh(target.size if reduction == NONE else ()), self.fresh(())


@rule("nll_loss2d_backward")
def nll_loss2d_backward(
    grad_output: TensorType,
    self: TensorType,
    target: TensorType,
    weight: Optional,
    *_: object,
    **__: object,
) -> TensorType:
    _check_nll2d(self, target, weight)
    if not self.is_contiguous:
        fail("grad_input must be contiguous")
    return self.fresh()


# ------------------------------------------------------------------------------------------ margins


def _require_vector_or_matrix(x: TensorType) -> None:
    text = (
        "Expected non-empty vector or matrix with optional 0-dim batch size, "
        f"but got: {show(x.size)}"
    )
    if len(x.size) > 2:
        fail(text)
    if x.size:
        require(x.size[-1] >= 1, text)


@rule("multi_margin_loss")
def multi_margin_loss(
    self: TensorType,
    target: TensorType,
    p: Scalar = 1,
    margin: Scalar = 1,
    weight: Optional = None,
    reduction: int = MEAN,
) -> TensorType:
    if p not in (1, 2):
        fail("only p == 1 and p == 2 supported")
    _require_vector_or_matrix(self)
    batch = self.size[0] if len(self.size) == 2 else 1
    if len(target.size) > 1 or (target.size and not self.size):
        _fail_margin_target(self, target, batch)
    if target.size:
        require(eq(target.size[0], batch), _margin_target_text(self, target, batch))
    if weight is not None:
        classes = self.size[-1] if self.size else 1
        if not is_met(eq(weight.size[0], classes) if weight.size else False):
            fail(f"inconsistent weight size, expected {classes} but got {show(weight.size)}")
    require_same_dtype(torch.int64, target.dtype)
    require_floating(self.dtype, "multi_margin_loss_forward_out_frame")
    return self.fresh(target.size if reduction == NONE and target.size else ())


def _margin_target_text(self: TensorType, target: TensorType, batch: Size) -> str:
    return (
        "multi_margin_loss: target tensor should be 1-D with size equal to the number of input "
        f"samples (batch size). Expected target size [{batch}], but got {show(target.size)}. "
        f"Input has shape {show(self.size)}."
    )


def _fail_margin_target(self: TensorType, target: TensorType, batch: Size) -> None:
    fail(_margin_target_text(self, target, batch))


@rule("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(
    self: TensorType, target: TensorType, reduction: int
) -> tuple[TensorType, TensorType]:
    _require_vector_or_matrix(self)
    text = f"inconsistent target size: {show(target.size)} for input of size: {show(self.size)}"
    require_same_sizes(self.size, target.size, text)
    require_same_dtype(torch.int64, target.dtype)
    each = reduction == NONE and len(self.size) == 2
    return self.fresh((self.size[0],) if each else ()), self.fresh(target.size)


@rule(
    "multi_margin_loss_backward",
    "multilabel_margin_loss_backward",
)
def margin_gradient(
    grad_output: TensorType, self: TensorType, target: TensorType, *_: object, **__: object
) -> TensorType:
    return self.fresh()


# ---------------------------------------------------------------------------------------------- CTC


def _require_ctc(log_probs: TensorType, targets: TensorType, blank: int) -> None:
    where = "(while checking arguments for ctc_loss_allocate_outputs)"
    if len(log_probs.size) != 3:
        fail(
            f"Expected 3-dimensional tensor, but got {len(log_probs.size)}-dimensional tensor for "
            f"argument #1 'log_probs' {where}"
        )
    if targets.dtype not in (torch.int32, torch.int64):
        fail(
            "Expected tensor for argument #2 'targets' to have scalar type Int; but got "
            f"torch.{scalar_type(targets.dtype)}Tensor instead {where}"
        )
    if not log_probs.dtype.is_floating_point or log_probs.dtype.itemsize < 4:
        raise_not_implemented("ctc_loss_cpu", log_probs.dtype)
    if blank < 0:
        fail("blank must be in label range")
    require(log_probs.size[2] >= blank + 1, "blank must be in label range")


def _require_targets(
    targets: TensorType, dim: int, ok: bool | BoolExpr, wanted: Size | str
) -> None:
    if not is_met(ok):
        fail(
            f"Expected tensor to have size {wanted} at dimension {dim}, but got size "
            f"{targets.size[dim]} for argument #2 'targets' "
            "(while checking arguments for ctc_loss_allocate_outputs)"
        )


@rule("_ctc_loss")
def ctc_loss(
    log_probs: TensorType,
    targets: TensorType,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[TensorType, TensorType]:
    _require_ctc(log_probs, targets, blank)
    time, batch, _ = log_probs.size
    for name, lengths in (("input", input_lengths), ("target", target_lengths)):
        if not is_met(eq(batch, len(lengths))):
            fail(f"{name}_lengths must be of size batch_size")
    for n in input_lengths:
        if not is_met(time >= n):
            fail(
                f"Expected input_lengths to have value at most {time}, but got value {n} "
                "(while checking arguments for ctc_loss_allocate_outputs)"
            )
    longest = max(target_lengths, default=0)
    if len(targets.size) == 1:
        _require_targets(targets, 0, eq(targets.size[0], sum(target_lengths)), sum(target_lengths))
    else:
        _require_targets(targets, 0, eq(targets.size[0], batch), batch)
        _require_targets(targets, 1, targets.size[1] >= longest, f"at least {longest}")
    return log_probs.fresh((batch,)), log_probs.fresh((batch, time, 2 * longest + 1))


@rule("_ctc_loss.Tensor", data=True)
def ctc_loss_of_tensors(
    fresh: Fresh,
    log_probs: TensorType,
    targets: TensorType,
    input_lengths: TensorType,
    target_lengths: TensorType,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[TensorType, TensorType]:
    """Only the data know how long the longest target is."""
    _require_ctc(log_probs, targets, blank)
    time, batch, _ = log_probs.size
    if len(targets.size) == 2:
        _require_targets(targets, 0, eq(targets.size[0], batch), batch)
    longest = fresh.size(upper=targets.size[-1])
    return log_probs.fresh((batch,)), log_probs.fresh((batch, time, 2 * longest + 1))


@rule("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad: TensorType, log_probs: TensorType, *_: object, **__: object
) -> TensorType:
    return new_like(log_probs)


mark(
    Trait.FAILS,
    "nll_loss_forward nll_loss2d_forward multi_margin_loss binary_cross_entropy",
)
