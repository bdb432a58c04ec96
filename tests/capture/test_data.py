"""Sizes that only data know: each question has its own symbol, and the same question the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lostwax
from lostwax import Dim, export


def counted(*found: Tensor) -> list[Tensor]:
    """Each times its number of rows: wrong, if that is taken for the number of another."""
    return [each * each.shape[0] for each in found]


def two_masks(x):
    positive, negative = x[x > 0], x[x <= 0]
    halves = positive.sum() / (positive.shape[0] + 1), negative.sum() / (negative.shape[0] + 1)
    return *halves, x.new_ones(positive.shape[0]), x.new_ones(negative.shape[0])


def temporary_masks(x):
    return counted(*(x[x > i] for i in range(-3, 4)))


def temporary_masks_selected(x):
    return counted(*(torch.masked_select(x, x > i) for i in range(-3, 4)))


def masks_by_keyword(x):
    return counted(*(torch.masked_select(input=x, mask=x > i) for i in range(-3, 4)))


def one_mask_written(x):
    mask = x > 0
    first = x[mask]
    mask.logical_not_()
    second = x[mask]
    torch.logical_not(mask, out=mask)
    mask[1:3].fill_(True)  # through a view
    third = x[mask]
    mask.detach().zero_()
    return counted(first, second, third, x[mask])


def one_mask_of_other_memory(x):
    mask, other = x > 0, x <= 0
    first = x[mask]
    mask.data = other
    return counted(first, x[mask])


def one_mask_of_other_sizes(x):
    mask = torch.stack([x > 0, x < 1, x > 2])
    first = mask.nonzero()
    mask.t_()
    return counted(first, mask.nonzero())


def masks_along_a_dimension(x):
    rows = torch.stack([x, -x], 1)
    return counted(rows[x > 0], rows[x <= 0], rows[rows > 1], *(x[m] for m in (rows > 0).unbind(1)))


def masks_of_masked(x):
    a = x[x > -3]
    b = a[a < 3]
    return counted(a, b, b[b != 1])


def writes_through_masks(x):
    out = []
    for i in range(-3, 4):
        y = x.clone()
        y[x > i] = y[x > i] * 2
        out.append(y.index_put((x < i,), x[x < i], accumulate=True))
    return out


def places(x):
    found = [(x > i).nonzero() for i in range(-3, 4)]
    return counted(*found, *(torch.where(x > i)[0] for i in range(-3, 4)))


def distinct(x):
    out = []
    for i in range(-3, 4):
        out += torch.unique(x.clamp(max=i), return_inverse=True, return_counts=True)
        out += torch.unique_consecutive(x.clamp(max=i), return_counts=True)
        out.append(torch.unique(torch.stack([x.clamp(max=i), x]), dim=1).T)
    return counted(*out)


def numbered(x):
    out = []
    for i in range(1, 4):
        n = x.clamp(min=0, max=i).long()
        out += [torch.bincount(n), torch.bincount(n, minlength=i), torch.repeat_interleave(n)]
        out.append(torch.repeat_interleave(x, n))
    return counted(*out)


def negated(x):
    """Views that have the memory and the type of what they show otherwise."""
    c = torch.complex(x, x)
    found = (c.imag, c.conj().imag, torch._neg_view(x), x)
    return counted(*(torch.unique(each.relu()) for each in found))


def items(x):
    number = x.clamp(min=0).long().sum()
    first = number.item()
    number.add_(2)
    second = number.item()
    number.data = x.clamp(max=0).abs().long().sum()
    return x * first, x * second, x * number.item(), x.new_zeros(number.item() % 3)


PROGRAMS = (
    two_masks, temporary_masks, temporary_masks_selected, masks_by_keyword, one_mask_written,
    one_mask_of_other_memory, one_mask_of_other_sizes, masks_along_a_dimension, masks_of_masked,
    writes_through_masks, places, distinct, numbered, negated, items,
)  # fmt: skip


OF_TWO = {
    "einsum": lambda q, k: torch.einsum("id,jd->ij", q, k),
    "einsum of vectors": lambda q, k: torch.einsum("i,j->ij", q[:, 0], k[:, 1]),
    "einsum, a batch": lambda q, k: torch.einsum("bid,bjd->bij", q[None], k[None]),
    "tensordot": lambda q, k: torch.tensordot(q, k, dims=([1], [1])),
    "tensordot of vectors": lambda q, k: torch.tensordot(q[:, 0], k[:, 1], dims=0),
    "outer": lambda q, k: torch.outer(q[:, 0], k[:, 1]),
    "meshgrid": lambda q, k: torch.meshgrid(q[:, 0], k[:, 1], indexing="ij"),
    "kron": lambda q, k: torch.kron(q, k),
    "cartesian_prod": lambda q, k: torch.cartesian_prod(q[:, 0], k[:, 1]),
    "cdist": torch.cdist,
    "broadcast": lambda q, k: q[:, None] * k[None],
    "matmul": lambda q, k: q @ k.T,
    "bmm": lambda q, k: torch.bmm(q[None], k.T[None]),
    "linear": lambda q, k: F.linear(q, k),
    "attention": lambda q, k: F.scaled_dot_product_attention(q[None], k[None], k[None]),
    "attention by hand": lambda q, k: (q @ k.T).softmax(-1) @ k,
    "cat": lambda q, k: torch.cat([q, k]),
}

DATA = [
    torch.tensor(values)
    for values in ([1.0, -2, 3, 4, -5], [-1.0, -2, -3, 4, -5], [-1.0] * 5, [1.0, 2, 3, 2, 1])
]
"""Also without any positive one, and without any other."""
OTHERS = [torch.tensor([2.0, -1, 0, 3, -4, 5, 1]), torch.zeros(0), torch.ones(1)]


def check(program, function, calls) -> None:
    module = program.module()
    for x in calls:
        torch.testing.assert_close(module(x.clone()), function(x.clone()), equal_nan=True)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_each_question_has_its_own_answer(function) -> None:
    program = export(function, (DATA[0],))
    program.validate()
    check(program, function, DATA)
    check(program.run_decompositions(), function, DATA)


@pytest.mark.parametrize("function", [two_masks, temporary_masks, one_mask_written, distinct])
def test_sizes_of_inputs_may_vary_as_well(function, tmp_path: Path) -> None:
    program = export(function, (DATA[0],), dynamic_shapes={"x": {0: Dim.DYNAMIC}})
    check(program, function, [*DATA, *OTHERS])
    lostwax.save(program, tmp_path / "p.pt2")
    check(lostwax.load(tmp_path / "p.pt2"), function, [*DATA, *OTHERS])


@pytest.mark.parametrize("name", OF_TWO)
def test_operators_over_two_masks(name: str) -> None:
    def function(x):
        mask, rows = x > 0, torch.stack([x, x * 2, x + 1, x - 1], 1)
        return OF_TWO[name](rows[mask], rows[~mask])

    check(export(function, (DATA[0],)), function, DATA)


def test_the_same_mask_selects_as_many() -> None:
    def function(x, y):
        mask = x > 0
        a, b = x[mask], x[mask]
        c, d = torch.masked_select(y, mask), torch.masked_select(y, mask)
        total = x.sum()
        asked = [(a, b), (c, d), (mask.nonzero(), mask.nonzero())]
        assert all(str(one.shape[0]) == str(other.shape[0]) for one, other in asked)
        assert str(total.item()) == str(total.item())
        assert str(a.sum().item()) != str(b.sum().item())
        return torch.stack([a, b], 1) @ torch.stack([a, b]), (c + d).view(a.shape[0], -1)

    export(function, (DATA[0], DATA[1]))


@torch.library.custom_op("lostwax_test::flip", mutates_args=("mask",))
def flip(mask: Tensor) -> None:
    mask.logical_not_()


def test_a_mask_written_by_the_users_operator() -> None:
    def function(x):
        mask = x > 0
        first = x[mask]
        flip(mask)
        return counted(first, x[mask])

    check(export(function, (DATA[0],)), function, DATA)
