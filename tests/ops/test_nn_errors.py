"""What neural-network operators refuse, and in which words: eager's class and eager's text.

Every call here raises in eager; the type rule must raise the same class, and its text must be part
of eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

from lostwax.ops.registry import operator
from lostwax.sym import ShapeEnv
from lostwax.torch_version import GROUP_NORM_TAKES_ANY_STRIDES, TORCH
from lostwax.types import TensorType
from tests.ops.ours import truth, value
from tests.ops.shadow import type_of

aten = torch.ops.aten
Case = tuple[OpOverload, tuple[Any, ...]]
WORDED = (2, 13)
"""The torch whose words ours are; other versions say some of it otherwise."""


def f(*size: int) -> torch.Tensor:
    return torch.rand(*size)


def d(*size: int) -> torch.Tensor:
    return torch.rand(*size, dtype=torch.float64)


def n(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=torch.int64)


def conv(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    transposed: bool = False,
    extra: int = 0,
    groups: int = 1,
) -> Case:
    how = ([stride], [padding], [dilation], transposed, [extra], groups)
    return aten.convolution.default, (x, w, bias, *how)


def cases(overload: OpOverload, *arguments: tuple[Any, ...]) -> list[Case]:
    return [(overload, a) for a in arguments]


MATMUL = [
    *cases(aten.mm.default, (f(2, 3), f(4, 5)), (f(2), f(2, 2)), (f(2, 3), f(3))),
    *cases(aten.mm.default, (f(2, 3), d(3, 4)), (f(2, 3), n(3, 4)), (f(2, 3).bool(),) * 2),
    *cases(aten.addmm.default, (f(4), f(2, 3), f(4, 5)), (f(4), f(2, 3), f(3, 5))),
    *cases(aten.addmm.default, (d(5), f(2, 3), f(3, 5)), (f(5), d(2, 3), f(3, 5))),
    *cases(aten.addmm.default, (f(5), f(3), f(3, 5)), (f(1, 2, 5), f(2, 3), f(3, 5))),
    *cases(aten.bmm.default, (f(2, 3, 4), d(2, 4, 6)), (f(2, 3, 4), f(4, 6)), (f(2, 3), f(4, 5))),
    *cases(aten.bmm.default, (f(2, 3, 4), f(2, 5, 6)), (f(2, 3, 4), f(3, 4, 6))),
    *cases(aten.baddbmm.default, (f(7), f(2, 3, 4), f(2, 4, 6)), (d(6), f(2, 3, 4), f(2, 4, 6))),
    *cases(aten.addbmm.default, (f(6), f(2, 3, 4), f(3, 4, 6)), (f(1), f(2, 3, 4), f(2, 5, 6))),
    *cases(aten.mv.default, (f(2, 3), f(4)), (f(2), f(4)), (f(2, 3), d(3))),
    *cases(aten.addmv.default, (f(3), f(2, 3), f(3)), (f(2, 2), f(2, 3), f(3))),
    *cases(aten.dot.default, (f(2), f(3)), (f(2, 2), f(3)), (f(2), d(2))),
    *cases(aten.addr.default, (f(2, 3), f(2), f(4)), (f(3), f(2, 2), f(3))),
    *cases(aten._int_mm.default, (f(2, 3), f(3, 4)), (f(2).char(), f(4, 4).char())),
    *cases(aten._cdist_forward.default, (f(3, 4), f(3, 5), 2.0, None), (f(3), f(5, 4), 2.0, None)),
    *cases(
        aten._cdist_forward.default, (f(3, 4), f(5, 4), -2.0, None), (n(3, 4), f(5, 4), 2.0, None)
    ),
    *cases(aten.linalg_cross.default, (f(2, 3), f(3)), (f(2, 4), f(2, 4)), (f(4, 3), f(5, 3))),
    *cases(aten._grouped_mm.default, (f(8, 16), f(4, 16, 32)), (f(4, 8, 16), f(4, 8, 32))),
]

CONV = [
    conv(f(1, 3, 8, 8), f(4, 2, 3, 3)),
    conv(f(1, 3, 8, 8), f(4, 3, 3)),
    conv(f(3, 8, 8), f(4, 3, 3, 3)),
    conv(f(1, 3, 2, 2), f(4, 3, 3, 3)),
    conv(f(1, 3, 2), f(4, 3, 3)),
    conv(f(1, 3, 8, 8), f(4, 3, 3, 3), f(5)),
    conv(f(1, 3, 8, 8), d(4, 3, 3, 3)),
    conv(f(1, 4, 8, 8), f(5, 2, 3, 3), groups=2),
    conv(f(1, 4, 8, 8), f(4, 2, 3, 3), groups=0),
    conv(f(1, 3, 8, 8), f(4, 3, 3, 3), stride=0),
    conv(f(1, 3, 8, 8), f(4, 3, 3, 3), padding=-1),
    conv(f(1, 3, 8, 8), f(4, 3, 3, 3), dilation=0),
    conv(f(1, 3, 0, 8), f(4, 3, 3, 3), padding=2),
    conv(f(1, 3), f(4, 3)),
    conv(f(1, 3, 8, 8), f(4, 4, 3, 3), transposed=True),
    conv(f(1, 3, 8, 8), f(3, 4, 3, 3), transposed=True, stride=2, extra=2),
    conv(f(1, 4, 8, 8), f(4, 2, 3, 3), f(3), transposed=True, groups=2),
    conv(f(1, 3, 1, 1), f(3, 4, 3, 3), transposed=True, padding=3),
]

POOL = [
    *cases(aten.max_pool2d_with_indices.default, (f(8, 8), [2]), (f(1, 3, 8, 8), [2, 2, 2])),
    *cases(
        aten.max_pool2d_with_indices.default, (f(1, 3, 8, 8), [2], [], [2]), (f(1, 3, 1, 1), [3])
    ),
    *cases(aten.max_pool2d_with_indices.default, (f(1, 3, 8, 8), [2], [0]), (f(1, 0, 8, 8), [2])),
    *cases(aten.max_pool2d_with_indices.default, (f(1, 3, 8, 8), [2], [], [0], [0])),
    *cases(aten.max_pool2d_with_indices.default, (f(1, 3, 8, 8).bool(), [2])),
    *cases(aten.avg_pool2d.default, (f(8, 8), [2]), (f(1, 3, 8, 8), [2], [1, 1, 1])),
    *cases(aten.avg_pool2d.default, (f(1, 3, 8, 8), [2], [2], [0], False, True, 0)),
    *cases(aten.max_pool3d_with_indices.default, (f(8, 8), [2]), (f(1, 3, 1, 1, 1), [3])),
    *cases(aten.max_pool3d_with_indices.default, (f(1, 0, 8, 8, 8), [2])),
    *cases(aten.avg_pool3d.default, (f(1, 3, 8, 8, 8), [2, 2]), (f(1, 3, 1, 1, 1), [3])),
    *cases(aten.avg_pool3d.default, (f(1, 3, 1, 1, 1), [2], [], [1])),
    *cases(aten._adaptive_avg_pool2d.default, (f(8, 8), [2, 2]), (f(1, 3, 0, 8), [2, 2])),
    *cases(aten._adaptive_avg_pool2d.default, (f(1, 3, 8, 8), [2]), (n(1, 3, 8, 8), [2, 2])),
    *cases(aten.adaptive_max_pool2d.default, (f(8, 8), [2, 2]), (f(1, 3, 8, 8), [-1, 2])),
    *cases(aten.fractional_max_pool2d.default, (f(1, 3, 8, 8), [2, 2], [8, 8], f(1, 3, 2))),
    *cases(aten.max_unpool2d.default, (f(1, 3, 4, 4), n(1, 3, 4, 5), [8, 8])),
    *cases(aten.max_unpool2d.default, (f(1, 3, 4, 4), f(1, 3, 4, 4), [8, 8])),
    *cases(aten.upsample_bilinear2d.default, (f(3, 4, 4), [8, 8], False)),
    *cases(aten.upsample_bilinear2d.default, (f(1, 3, 4, 4), [0, 8], False)),
    *cases(aten.upsample_nearest1d.default, (f(1, 3, 0), [8]), (f(1, 0, 3), [8])),
    *cases(aten.upsample_nearest2d.default, (n(1, 3, 4, 4), [8, 8]), (f(1, 3, 4, 4), [8])),
    *cases(aten.grid_sampler_2d.default, (f(1, 3, 4, 4), f(2, 5, 6, 2), 0, 0, False)),
    *cases(aten.grid_sampler_2d.default, (f(1, 3, 4, 4), f(1, 5, 6, 3), 0, 0, False)),
    *cases(aten.affine_grid_generator.default, (f(2, 2, 3), [3, 3, 4, 5], False)),
    *cases(aten.im2col.default, (f(1, 3, 1, 1), [2, 2], [1, 1], [0, 0], [2, 2])),
    *cases(aten.im2col.default, (f(1, 3, 8, 8), [2, 2], [1, 1], [0, 0], [0, 2])),
    *cases(aten.col2im.default, (f(1, 13, 16), [8, 8], [2, 2], [1, 1], [0, 0], [2, 2])),
    *cases(aten.col2im.default, (f(1, 12, 15), [8, 8], [2, 2], [1, 1], [0, 0], [2, 2])),
    *cases(aten.pixel_shuffle.default, (f(1, 7, 2, 2), 2), (f(2, 2), 2), (f(1, 8, 2, 2), 0)),
    *cases(aten.pixel_unshuffle.default, (f(1, 2, 3, 4), 2)),
    *cases(aten.channel_shuffle.default, (f(1, 7, 2, 2), 2), (f(2, 2), 2)),
]

NORM = [
    *cases(aten.native_batch_norm.default, (d(2, 4), f(4), f(4), f(4), f(4), False, 0.1, 1e-5)),
    *cases(aten.native_batch_norm.default, (n(2, 4), None, None, None, None, True, 0.1, 1e-5)),
    *cases(aten.native_batch_norm.default, (f(0, 4), f(4), f(4), f(4), f(4), True, 0.1, 1e-5)),
    *cases(aten.native_layer_norm.default, (f(2, 3, 4), [5], f(5), f(5), 1e-5)),
    *cases(aten.native_layer_norm.default, (f(2, 3, 4), [], None, None, 1e-5)),
    *cases(aten.native_layer_norm.default, (f(2, 3, 4), [4], f(5), None, 1e-5)),
    *cases(aten.native_layer_norm.default, (n(2, 4), [4], None, None, 1e-5)),
    *cases(aten.native_group_norm.default, (f(2, 4, 9), f(4), f(4), 2, 4, 9, 3, 1e-5)),
    *cases(aten.native_group_norm.default, (f(2, 4, 9), f(5), f(4), 2, 4, 9, 2, 1e-5)),
]

_flash = aten._scaled_dot_product_flash_attention_for_cpu.default
_mha = aten._native_multi_head_attention.default
_weights = (f(24, 8), f(24), f(8, 8), f(8))
ATTENTION = [
    *cases(_flash, (f(2, 3, 5, 8), f(2, 3, 7, 8), f(2, 3, 7, 4)), (f(3, 5, 8),) * 3),
    *cases(_flash, (f(2, 3, 5, 8), f(2, 3, 7, 8), d(2, 3, 7, 8)), (n(2, 3, 5, 8),) * 3),
    *cases(_flash, (f(2, 3, 5, 8), f(2, 3, 7, 8), f(2, 3, 7, 8), 0.5)),
    *cases(_mha, (f(2, 5, 8), f(2, 7, 8), f(2, 7, 8), 8, 2, *_weights)),
    *cases(_mha, (f(2, 5, 8),) * 3 + (8, 3, *_weights), (f(5, 8),) * 3 + (8, 2, *_weights)),
]

LOSS = [
    *cases(aten.nll_loss_forward.default, (f(3, 5), n(4), None, 1, -100)),
    *cases(aten.nll_loss_forward.default, (f(3, 5, 2), n(3), None, 1, -100)),
    *cases(aten.nll_loss_forward.default, (f(3, 5), f(3), None, 1, -100)),
    *cases(aten.nll_loss_forward.default, (f(3, 5), n(3), f(4), 1, -100)),
    *cases(aten.nll_loss_forward.default, (f(5), n(5), None, 1, -100)),
    *cases(aten.nll_loss2d_forward.default, (f(2, 5, 3, 4), n(2, 3, 5), None, 1, -100)),
    *cases(aten.mse_loss.default, (f(3, 4), f(3, 5)), (n(3, 4), n(3, 4))),
    *cases(aten.huber_loss.default, (n(3, 4), n(3, 4))),
    *cases(aten.binary_cross_entropy.default, (f(3, 4), d(3, 4)), (f(3, 4), f(3, 5))),
    *cases(aten.binary_cross_entropy_with_logits.default, (f(3, 4), n(3, 4)), (f(3, 4), f(4))),
    *cases(aten.multi_margin_loss.default, (f(3, 4), n(4)), (f(3, 4), n(3), 3), (f(2, 3, 4), n(3))),
    *cases(aten.multilabel_margin_loss_forward.default, (f(3, 4), n(3, 5), 1)),
    *cases(aten._ctc_loss.default, (f(10, 3, 6), n(3, 4), [10, 10], [4, 3, 2])),
    *cases(aten._ctc_loss.default, (f(10, 3, 6), n(3, 4), [10, 10, 11], [4, 3, 2])),
    *cases(aten._ctc_loss.default, (f(10, 3, 6), n(3, 3), [10] * 3, [4, 3, 2])),
    *cases(aten._ctc_loss.default, (f(10, 3, 6), n(8), [10] * 3, [4, 3, 2])),
]

LINALG = [
    *cases(aten._linalg_svd.default, (f(3),), (n(3, 3),)),
    *cases(aten.linalg_qr.default, (f(3, 3), "x"), (f(3),)),
    *cases(aten._linalg_eigh.default, (f(5, 3),), (f(3, 3), "X")),
    *cases(aten.linalg_eig.default, (f(5, 3),)),
    *cases(aten.linalg_cholesky_ex.default, (f(5, 3),), (n(3, 3),), (f(3),)),
    *cases(aten.linalg_inv_ex.default, (f(5, 3),)),
    *cases(aten._linalg_solve_ex.default, (f(3, 3), f(4, 2)), (f(3, 3), d(3, 2)), (f(5, 3), f(5))),
    *cases(aten.linalg_lu_factor_ex.default, (f(3),)),
    *cases(aten.linalg_lu_solve.default, (f(2, 3, 3), n(1, 3).int(), f(2, 3, 4))),
    *cases(aten._linalg_det.default, (f(5, 3),)),
    *cases(aten.linalg_lstsq.default, (f(5, 3), f(6, 4)), (f(5, 3), f(2, 5, 4)), (f(3), f(3))),
    *cases(aten.linalg_householder_product.default, (f(3, 5), f(3)), (f(5, 3), f(4))),
    *cases(aten.triangular_solve.default, (f(5, 4), f(3, 3)), (f(3), f(3, 3))),
    *cases(aten.cholesky_solve.default, (f(5, 4), f(3, 3))),
    *cases(aten.ormqr.default, (f(5, 3), f(3), f(4, 4)), (f(5, 3), f(4), f(5, 4))),
    *cases(aten._fft_c2c.default, (f(4), [0], 0, True)),
    *cases(aten._fft_r2c.default, *[(f(0, 4), [1], 0, True)] * torch.backends.mkl.is_available()),
    *cases(aten._fft_r2c.default, (n(4), [0], 0, True)),
]

BY_VERSION = [
    *([] if TORCH < (2, 12) else cases(aten.addmv.default, (d(2), f(2, 3), f(3)))),
    *(
        []
        if GROUP_NORM_TAKES_ANY_STRIDES
        else cases(aten.native_group_norm.default, (f(2, 9, 4).mT, f(4), f(4), 2, 4, 9, 2, 1e-5))
    ),
]
"""What not every torch refuses: 2.11 multiplies matrices of other dtypes."""
FAMILIES = {
    "matmul": MATMUL,
    "conv": CONV,
    "pool": POOL,
    "norm": NORM,
    "attention": ATTENTION,
    "loss": LOSS,
    "linalg": LINALG,
    "version": BY_VERSION,
}


def refusal(call: Callable[[], Any], what: str) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    pytest.fail(f"{what} was not refused")


@pytest.mark.parametrize(
    ("overload", "arguments"),
    [
        pytest.param(overload, arguments, id=f"{family}-{i}-{overload._schema.name[6:]}")
        for family, table in FAMILIES.items()
        for i, (overload, arguments) in enumerate(table)
    ],
)
def test_refused_as_eager_refuses(overload: OpOverload, arguments: tuple[Any, ...]) -> None:
    rule = operator(overload).rule
    assert rule is not None
    types = pytree.tree_map_only(torch.Tensor, type_of, arguments)
    eager = refusal(lambda: overload(*arguments), "eager")
    ours = refusal(lambda: rule(*types), f"by the rule {types}")
    assert type(ours) is type(eager)
    if TORCH == WORDED:
        assert str(ours) in str(eager)


def symbolic(*hints: int, dtype: torch.dtype = torch.float32) -> TensorType:
    env = ShapeEnv()
    size = tuple(env.symbol(hint=h) for h in hints)
    return TensorType(size, dtype, torch.device("cpu"))


def test_a_symbolic_size_mismatch_is_refused_by_name() -> None:
    env = ShapeEnv()
    a, b, c = (env.symbol(name, hint=h) for name, h in (("a", 3), ("b", 4), ("c", 5)))
    x, y = (TensorType(s, torch.float32, torch.device("cpu")) for s in ((a, b), (c, a)))
    rule = operator(aten.mm.default).rule
    assert rule is not None
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied \(axb and cxa\)"):
        rule(x, y)


def test_a_symbolic_image_smaller_than_the_kernel_is_refused() -> None:
    rule = operator(aten.convolution.default).rule
    assert rule is not None
    x, w = symbolic(1, 3, 2, 2), type_of(f(4, 3, 3, 3))
    with pytest.raises(RuntimeError, match=r"Kernel size can't be greater than actual input size"):
        rule(x, w, None, [1], [0], [1], False, [0], 1)


@pytest.mark.parametrize("how", [(2, 3, 1), (3, 2, 1), (2, 3, 0), (1, 4, 0), (5, 2, 2)])
def test_symbolic_ceil_mode_is_exact_at_every_size(how: tuple[int, int, int]) -> None:
    """One symbolic answer, compared with eager at every size that its guards admit."""
    kernel, stride, padding = ([v] for v in how)
    env = ShapeEnv()
    side = env.symbol("side", hint=8)
    (symbol,) = side.symbols()
    rule = operator(aten.max_pool2d_with_indices.default).rule
    assert rule is not None
    x = TensorType((1, 1, side, side), torch.float32, torch.device("cpu"))
    out, _ = rule(x, kernel, stride, padding, [1], True)
    for n in range(1, 20):
        if all(truth(g.cond, {symbol: n}) for g in env.guards):
            eager = aten.max_pool2d_with_indices(f(1, 1, n, n), kernel, stride, padding, [1], True)
            assert value(out.size[2], {symbol: n}) == eager[0].shape[2]
