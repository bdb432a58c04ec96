"""A dtype that an operator refuses: the error is of the class that the torch at hand raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lostwax.fake import FakeTensorMode

BOOL, INT, COMPLEX = torch.bool, torch.int32, torch.complex64


@pytest.mark.parametrize(
    ("of", "dtype"),
    [
        (torch.neg, BOOL),
        (lambda x: x - x, BOOL),
        (lambda x: torch.complex(x, x), INT),
        (torch.deg2rad, COMPLEX),
        (lambda x: torch.heaviside(x, x), COMPLEX),
        (lambda x: torch.isin(x, x), COMPLEX),
        (torch.view_as_complex, INT),
        (torch.var_mean, INT),
        (torch.std, INT),
        (torch.argmax, BOOL),
        (torch.argmax, COMPLEX),
        (torch.sort, COMPLEX),
        (lambda x: torch.topk(x, 1), COMPLEX),
        (torch.view_as_real, INT),
        (torch.nansum, COMPLEX),
        (torch.linalg.inv, torch.float16),
        (torch.linalg.eigh, torch.float16),
        (torch.linalg.vector_norm, INT),
        (torch.linalg.matrix_exp, INT),
        (torch.linalg.svd, BOOL),
        (lambda x: torch.dist(x, x), INT),
        (F.relu, BOOL),
        (F.hardtanh, BOOL),
    ],
)
def test_the_class_is_eager_s(of: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.ones(2, 2, dtype=dtype)
    with pytest.raises((RuntimeError, TypeError)) as eager:
        of(x)
    with FakeTensorMode() as mode, pytest.raises(eager.type):
        of(mode.from_tensor(x))
