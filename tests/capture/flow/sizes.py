"""Programs with sides that ask sizes, which the example does not take.

(pytest changes the code of files with tests where they assert: these are not in one.)
"""

from __future__ import annotations

import torch
from torch import Tensor


def ends_of_sides(x: Tensor) -> Tensor:
    if x.shape[0] > 3:
        return x[1:, 0]
    return x[1:, 0]  # empty, if x is: that is of this side alone


def asserted_after_a_return(x: Tensor) -> Tensor:
    n = x.shape[0]
    if n > 2:
        return x * 2
    assert n == 1
    return x + 1


def fits_other_sizes(x: Tensor) -> Tensor:
    if x.shape[0] > 3:
        return x.sum()
    return (x @ torch.ones(x.shape[0], 2).t()[:, :3].t()).sum()  # where there are 3


def divided(x: Tensor) -> Tensor:
    n = x.shape[0]
    return x.sum() * (6 // (n - 4)) if n != 4 else x.sum()


def picked(x: Tensor) -> Tensor:
    n = x.shape[0]
    return x.sum() * [5, 6, 7][n] if n < 3 else x.sum()


def asserted_in_a_side_on_data(x: Tensor) -> Tensor:
    if x.sum() > 100:
        assert x.shape[0] == 1
    return x * 2


PROGRAMS = (
    ends_of_sides,
    asserted_after_a_return,
    fits_other_sizes,
    divided,
    picked,
    asserted_in_a_side_on_data,
)
