"""Sizes that only data know: each question has its own symbol, and the same question the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lostwax
from lostwax import Dim, export
from lostwax.errors import (
    CaptureError,
    ConstraintViolationError,
    DataDependentError,
    InputValueError,
)


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


def test_what_a_mask_selects_joins_a_matrix_only_if_that_is_nothing() -> None:
    def function(x):
        return torch.cat([x[x > 0], x])

    some, none = torch.tensor([[1.0, -2], [3, 4]]), -torch.ones(2, 2)
    for example in (some, none):
        program = export(function, (example,))
        for each in (program, program.run_decompositions()):
            check(each, function, [none, none * 2])
            with pytest.raises(RuntimeError, match="Tensors must have same number of dimensions"):
                function(some)
            with pytest.raises(RuntimeError, match="cat"):
                each.module()(some)


def test_the_same_mask_selects_as_many(capsys: Any) -> None:
    def function(x, y):
        mask = x > 0
        a, b = x[mask], x[mask]
        c, d = torch.masked_select(y, mask), torch.masked_select(y, mask)
        total = x.sum()
        for one, other in ((a, b), (c, d), (mask.nonzero(), mask.nonzero())):
            print(one.shape[0], other.shape[0])
        print(total.item(), total.item())
        print(a.sum().item(), b.sum().item())
        return torch.stack([a, b], 1) @ torch.stack([a, b]), (c + d).view(a.shape[0], -1)

    export(function, (DATA[0], DATA[1]))
    *same, others = (line.split() for line in capsys.readouterr().out.splitlines())
    assert len(same) == 4
    assert all(one == other for one, other in same)
    assert others[0] != others[1]


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


# ------------------------------------------------------------------------------ comparisons of data


COMPARED = {
    "torch.tensor": lambda x, a, b: torch.tensor(a > b),
    "of a dtype": lambda x, a, b: torch.tensor(a > b, dtype=torch.float32),
    "with options that say nothing": lambda x, a, b: torch.tensor(a > b, requires_grad=False),
    "in lists": lambda x, a, b: torch.tensor([[a > b, True], [b >= a, a == b]]),
    "as_tensor": lambda x, a, b: torch.as_tensor(a > b, dtype=torch.int32),
    "new_tensor": lambda x, a, b: (x.new_tensor(a > b), x.new_tensor([a, b, 1])),
    "scalar_tensor": lambda x, a, b: torch.scalar_tensor(a > b),
    "full": lambda x, a, b: (torch.full((2,), a > b), x.new_full((2,), a > b)),
    "where": lambda x, a, b: torch.where(torch.tensor(a > b), x, -x),
    "where of truths": lambda x, a, b: torch.where(x > 0, a > b, False),
    "arithmetic": lambda x, a, b: (x * (a > b), x + (a <= b), x - (a != b) * 2),
    "written": lambda x, a, b: (x.clone().fill_(a > b), x.masked_fill(x > 0, a > b)),
    "joined": lambda x, a, b: torch.tensor((a > b) & (a > 0) | torch.sym_not(b < 0)),
    "sym_float": lambda x, a, b: x * torch.sym_float(a > b),
    "sym_ite": lambda x, a, b: x * torch.sym_ite(a > b, 2, x.shape[0]),
    "sym_ite of truths": lambda x, a, b: torch.tensor(torch.sym_ite(a > b, a > 1, b > 1)),
    "with sizes": lambda x, a, b: torch.tensor((x > 0).nonzero().shape[0] > a),
    "returned": lambda x, a, b: a > b,
}


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_of_items(name: str) -> None:
    def function(x):
        return COMPARED[name](x, x[0].item(), x[1].item())

    program = export(function, (DATA[0],), dynamic_shapes={"x": {0: Dim.DYNAMIC}})
    check(program, function, [*DATA, OTHERS[0], torch.ones(3)])
    check(program.run_decompositions(), function, DATA)


def test_a_comparison_among_tensors_of_one_number() -> None:
    def mixed(x):
        return torch.tensor([x[0].item() > 1, x[0]]), torch.tensor(
            [[x[1].double(), 2], [len(x), x[0]]]
        )

    check(export(mixed, (DATA[0],)), mixed, [*DATA])


def test_what_cannot_be_made_of_a_comparison_is_refused_with_the_line() -> None:
    def mixed(x):
        return torch.tensor([x[0].item() > 1, x[:1]])

    with pytest.raises(CaptureError, match="among others than numbers") as error:
        export(mixed, (DATA[0],))
    assert "return torch.tensor([x[0].item() > 1, x[:1]])" in str(error.value)
    assert "instead: compare tensors, a > b, without item()" in str(error.value)
    with pytest.raises(DataDependentError, match=r"cannot decide `f0 > 1\.0` while tracing"):
        export(lambda x: x * int(x[0].item() > 1), (DATA[0],), control_flow="refuse")


# ------------------------------------------------------------------------- a choice between numbers


CHOSEN = {
    "halves": lambda n, m: torch.sym_ite(n > 3, n // 2, math.ceil(n / 3)),
    "rounded": lambda n, m: torch.sym_ite(n > m, round(n * 0.7), round(m / 3)),
    "roots": lambda n, m: torch.sym_ite(n % 2 == 0, math.floor(n**0.5), math.ceil(math.sqrt(m))),
    "a number": lambda n, m: torch.sym_ite(n > 3, round(n / 2), 7),
    "two numbers": lambda n, m: torch.sym_ite(n / m > 1.3, 2, 7),
    "what is certain": lambda n, m: torch.sym_ite(n >= 0, round(n / 2), 7),
    "of a choice": lambda n, m: round(
        torch.sym_ite(n * 2 > m * 3, n // (m + 1), torch.sym_ite(n > m, n % 3, round(m / 2))) / 2
    ),
    "a long one": lambda n, m: _long_choice(n, m),
}


def _long_choice(n, m):
    a = torch.sym_ite(2 * n > 3 * m, n - n // (m + 1), n // 2 + 1)
    b = torch.sym_ite(2 * n > 3 * m, m - 1, n - m * (n // 2) + n % 2)
    return round(abs(a * b) / 2) + abs(a * b) // 2  # its polynomial has more terms than 16


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("shapes", [Dim.AUTO, Dim.DYNAMIC])
def test_a_choice_between_sizes(name: str, shapes) -> None:
    def function(x, y):
        size = CHOSEN[name](x.shape[0], y.shape[0])
        return x.new_ones(size), torch.zeros(size, 2).view(-1), x * size

    program = export(
        function,
        (torch.ones(6), torch.ones(1)),
        dynamic_shapes={"x": {0: shapes}, "y": {0: shapes}},
    )
    module = program.module()
    for n, m in ((6, 1), (5, 4), (1, 1), (2, 9), (9, 2)):
        call = torch.ones(n), torch.ones(m)
        torch.testing.assert_close(module(*call), function(*call))


FLOATS = {
    "numbers": lambda n: torch.sym_ite(n > 4, 1.5, 2.5),
    "of a size": lambda n: torch.sym_ite(n > 4, n / 2, 2.5),
    "of sizes": lambda n: torch.sym_ite(n > 4, n / 2, n * 1.5),
}


@pytest.mark.parametrize("name", FLOATS)
def test_a_choice_between_floats_is_a_branch(name: str) -> None:
    def function(x):
        return x + FLOATS[name](x.shape[0])

    with pytest.raises(ConstraintViolationError, match=r"only where x.shape\[0\] >= 5"):
        export(function, (torch.ones(6),), dynamic_shapes={"x": {0: Dim("n")}})
    at_least_5 = export(function, (torch.ones(6),), dynamic_shapes={"x": {0: Dim("n", min=5)}})
    found = export(function, (torch.ones(6),), dynamic_shapes={"x": {0: Dim.AUTO}})
    for each in (at_least_5, found):
        check(each, function, [torch.ones(5), torch.ones(9)])
        with pytest.raises(InputValueError, match="5"):
            each.module()(torch.ones(4))


# ----------------------------------------------------------------------- sizes from own operators


@torch.library.custom_op("lostwax_test::parted", mutates_args=())
def parted(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x[x > 0].clone(), [x[x <= 0].clone(), x[x > 0].repeat(2)]


@parted.register_fake
def _(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    n, m = (torch.library.get_ctx().new_dynamic_size() for _ in range(2))
    return x.new_empty(n), [x.new_empty(m), x.new_empty(2 * n)]


@torch.library.custom_op("lostwax_test::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("lostwax_test::ended", mutates_args=("log",))
def ended(x: Tensor, log: Tensor) -> Tensor:
    log.add_(1)
    return torch.cat([x[x > 0], x.new_zeros(3)]).repeat(2)


@ended.register_fake
def _(x: Tensor, log: Tensor) -> Tensor:
    return x.new_empty(2 * torch.library.get_ctx().new_dynamic_size() + 6)


@torch.library.custom_op("lostwax_test::squared", mutates_args=())
def squared(x: Tensor) -> Tensor:
    return torch.outer(x[x > 0], x[x <= 0]).flatten()


@squared.register_fake
def _(x: Tensor) -> Tensor:
    context = torch.library.get_ctx()
    return x.new_empty(context.new_dynamic_size() * context.new_dynamic_size())


def of_two_sizes(x):
    a, (b, c) = parted(x)
    torch._check(a.shape[0] <= x.shape[0])
    n, m = a.shape[0], b.shape[0]
    sizes = torch.zeros(n, m) + torch.outer(a, b), torch.arange(m), x.new_full((n,), n)
    return *sizes, c.view(-1, 2), c.view(2, n), a + torch.ones(n), x[:n], b * m, torch.eye(n)


def of_a_multiple(x):
    log = torch.zeros(())
    y = ended(x, log)
    return (
        y.view(2, -1),
        torch.zeros(y.shape[0]) + y,
        y[: y.shape[0] // 2],
        x.new_ones(y.numel()),
        log,
    )


def of_one_after_the_other(x):
    a = positive(x)
    b = positive(a - 2)
    return torch.zeros(a.shape[0], b.shape[0]), *counted(a, b, b[b > 1])


@pytest.mark.parametrize("function", [of_two_sizes, of_a_multiple, of_one_after_the_other])
def test_sizes_that_fake_kernels_ask_for(function, tmp_path: Path) -> None:
    program = export(function, (DATA[0],))
    program.validate()
    lostwax.save(program, tmp_path / "p.pt2")
    for each in (program, program.run_decompositions(), lostwax.load(tmp_path / "p.pt2")):
        check(each, function, DATA)


def test_a_size_that_no_result_tells_is_refused() -> None:
    def function(x):
        return torch.zeros(squared(x).shape[0])

    with pytest.raises(CaptureError, match="needs the number u0, and nothing in it gives") as error:
        export(function, (DATA[0],))
    assert "u0 comes from lostwax_test::squared" in str(error.value)
    assert "return it, or a tensor with that size" in str(error.value)


def test_sizes_of_what_is_kept_whole() -> None:
    def function(x):
        found = torch.argwhere(x > 0)
        return torch.zeros(found.shape[0]) + found[:, 0]

    program = export(function, (DATA[0],), keep=[torch.ops.aten.argwhere.default])
    targets = [node.target for node in program.graph.nodes]
    assert torch.ops.aten.argwhere.default in targets
    check(program, function, DATA)


def test_a_size_that_would_have_to_be_two_is_refused() -> None:
    def forward(x, mask):
        some = x[x > 1]
        return torch.outer(some, some).masked_select(mask)

    with pytest.raises(DataDependentError, match="one of them depends on data") as error:
        export(forward, (torch.ones(4), torch.ones(2, 3, 4) > 0))
    assert "test_data.py" in str(error.value)
    assert "instead: if it is always 1, state it" in str(error.value)


def test_what_fails_only_for_the_sizes_that_were_assumed_says_so() -> None:
    def forward(x, row, is_one):
        some = x[x > 1]
        if is_one:
            torch._check(some.shape[0] == 1)
        wide = row + some  # 3 of them, or 1
        return torch.meshgrid(some, wide, indexing="ij")[0].view(-1)

    x, row = torch.tensor([2.0, 0.0, 0.0]), torch.ones(3)
    with pytest.raises(DataDependentError, match="view size is not compatible") as error:
        export(forward, (x, row, False))
    assert "u0 == 3, at tests/capture/trace/test_data.py" in str(error.value)
    assert "wide = row + some" in str(error.value)
    ours = export(forward, (x, row, True)).module()
    torch.testing.assert_close(ours(x, row, True), forward(x, row, True))


def test_an_error_of_the_users_stays_as_it_is() -> None:
    def forward(x, row):
        wide = row + x[x > 1]
        raise RuntimeError(f"no {wide.ndim}")

    with pytest.raises(RuntimeError, match=r"^no 1\n") as error:
        export(forward, (torch.ones(2), torch.ones(3)))
    assert type(error.value) is RuntimeError


def test_what_is_written_to_has_the_size_of_what_is_written() -> None:
    def forward(x):
        rows = torch.unique(x, dim=0)  # one or two
        return (rows * 2).add_(x)

    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    ours = export(forward, (x,)).module()
    torch.testing.assert_close(ours(x), forward(x))
    with pytest.raises(RuntimeError):
        forward(torch.ones(2, 2))
    with pytest.raises(RuntimeError):
        ours(torch.ones(2, 2))


def test_a_constant_that_is_written_to_is_still_known() -> None:
    def forward(x: Tensor) -> Tensor:
        count = torch.tensor(2.0)
        count.add_(1)
        count *= torch.tensor(2.0)
        return x + 1 if count.item() == 6 else x

    x = torch.randn(3)
    torch.testing.assert_close(export(forward, (x,)).module()(x), x + 1)


def test_quantiles() -> None:
    """torch 2.11 asks whether they lie between 0 and 1."""

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.quantile(x, 0.5), torch.nanquantile(x, torch.tensor([0.1, 0.7]), dim=0)

    x = torch.randn(4, 3)
    torch.testing.assert_close(export(forward, (x,)).module()(x), forward(x))


def test_a_fake_kernel_has_its_context_also_after_the_capture() -> None:
    """The fakes of a program know the capture's mode, which evaluates operators on them as ever."""
    x = torch.ones(3)
    program = export(lambda x: x + 1, (x,))
    fake = next(node for node in program.graph.nodes if node.op == "placeholder").meta["val"]
    with fake.fake_mode:
        (size,) = positive(fake).shape
    assert isinstance(size, torch.SymInt)


def _shift(x: Tensor, ends: Tensor) -> Tensor:
    """As relative positions are aligned in Funnel and Transformer-XL."""
    places = torch.arange(ends[0].item(), ends[1].item())
    z = torch.stack([x[:, :, None] * places, x[:, :, None] + places]).transpose(0, 1)
    b, k, s, n = z.shape
    z = z.reshape(b, k, n, s)[:, :, 1:].reshape(b, k, s, n - 1)[..., :s]
    return z * torch.ones(s, s)[:, : z.shape[-1]]


@pytest.mark.parametrize("step", [1, 2])
def test_strides_with_sizes_that_are_differences(step: int) -> None:
    """The order of `n - 1`, `b*s*n` and `s*n` where n is a difference of two items."""

    def function(x: Tensor, ends: Tensor) -> Tensor:
        return _shift(x[:, ::step], ends)

    dims = {0: Dim("b"), 1: Dim("s", min=2)}, None
    program = export(function, (torch.randn(2, 6), torch.tensor([3, 20])), dynamic_shapes=dims)
    for *size, low, high in ((2, 6, 3, 20), (1, 4, 0, 9), (3, 2, 5, 9), (2, 5, -20, -2)):
        x, ends = torch.randn(size), torch.tensor([low, high])
        found, expected = program.module()(x, ends), function(x, ends)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
