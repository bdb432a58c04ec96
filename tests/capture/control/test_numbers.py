"""Numbers that a branch or a body reads off tensors: `n.item()`, also of tensors from outside."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch._higher_order_ops as operators

import lostwax
from tests.capture.control.compare import agree

YES, NO = torch.tensor(True), torch.tensor(False)
X = torch.linspace(0.1, 1.7, 12).view(4, 3)
N = torch.tensor(2)


def times(self: Any, p: Any, x: Any, n: Any) -> Any:
    return torch.cond(p, lambda x, n: x * n.item(), lambda x, n: x.clone(), (x, n))


def both(self: Any, p: Any, x: Any, n: Any) -> Any:
    y = torch.cond(p, lambda x, n: x * n.item(), lambda x, n: x + n.item(), (x, n))
    return y - n.item()


def returned(self: Any, p: Any, x: Any, n: Any) -> Any:
    return x + torch.cond(p, lambda n: n.item(), lambda n: n.item() + 1, (n,))


def size(self: Any, p: Any, x: Any, n: Any) -> Any:
    return torch.cond(p, lambda n: torch.ones(n.item()), lambda n: torch.zeros(n.item()), (n,))


def in_inner_branch(self: Any, p: Any, x: Any, n: Any) -> Any:
    def true(x: Any) -> Any:
        k = n.item()
        return torch.cond(x.sum() > 0, lambda x: x * n.item(), lambda x: x - k, (x,))

    return torch.cond(p, true, lambda x: x.clone(), (x,))


def written_in_one(self: Any, p: Any, x: Any, n: Any) -> Any:
    n, before = n.clone(), n.item()

    def true(x: Any) -> Any:
        n.add_(1)
        return x * n.item()

    y = torch.cond(p, true, lambda x: x + n.item(), (x,))
    return y * n.item() + before


def counted(self: Any, p: Any, x: Any, n: Any) -> Any:
    n, before = n.clone(), n.item()

    def body(i: Any, x: Any) -> Any:
        y = x * n.item()
        n.add_(1)
        return i + 1, y

    start = torch.zeros((), dtype=torch.int64)
    _, x = operators.while_loop(lambda i, x: i < 3, body, (start, x))
    return x * n.item() + before


def map_times(self: Any, p: Any, x: Any, n: Any) -> Any:
    return operators.map(lambda row, n: row * n.item() + row[0].item(), x, n)


def nonzero_in_both(self: Any, p: Any, x: Any, n: Any) -> Any:
    def find(x: Any) -> Any:
        return x.nonzero().shape[0] + x

    return torch.cond(p, find, lambda x: find(x) * 2, (x,)) + x.nonzero().shape[0]


@pytest.mark.parametrize(
    "program",
    [
        times, both, returned, size, in_inner_branch, written_in_one, counted, map_times,
        nonzero_in_both,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_numbers_as_python(program: Any) -> None:
    inputs = [(p, x, n) for p in (YES, NO) for x, n in ((X, N), (-X, N + 3))]
    with torch.no_grad():
        exported = agree(program, *inputs)
        done = exported.run_decompositions().module()
        stream = io.BytesIO()
        lostwax.save(exported, stream)
        stream.seek(0)
        theirs = torch.export.load(stream).module()
        for args in inputs:
            want = exported.module()(*args)
            torch.testing.assert_close(done(*args), want)
            torch.testing.assert_close(theirs(*args), want)


def test_number_is_read_in_its_branch() -> None:
    def program(self: Any, p: Any, x: Any, n: Any) -> Any:
        return torch.cond(p, lambda x: x * n.item(), lambda x: x + 1, (x,))

    args = (YES, X, torch.tensor([2.5]))
    exported = agree(program, args, (NO, *args[1:]))
    assert all("local_scalar" not in str(node.target) for node in exported.graph.nodes)


def test_check_of_a_number_in_a_branch() -> None:
    """It is made where the branch is taken."""

    def program(self: Any, p: Any, x: Any, n: Any) -> Any:
        def true(x: Any) -> Any:
            torch._check(n.item() > 1)
            return x * 2

        return torch.cond(p, true, lambda x: x.clone(), (x,))

    run = agree(program, (YES, X, N), (NO, X, N), (NO, X, N - 5)).module()
    with pytest.raises(RuntimeError):
        run(YES, X, N - 5)
