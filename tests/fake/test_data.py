"""Questions to the data of fakes: when two of them are the same."""

from __future__ import annotations

import gc
import weakref

import torch

from lostwax import FakeTensorMode
from lostwax.fake.tensor import FakeTensor
from lostwax.sym import ShapeEnv


def mode_and_tensor(*size: int) -> tuple[FakeTensorMode, FakeTensor]:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    return mode, mode.from_tensor(torch.randn(*size), static_shapes=True)


def test_tensors_that_are_gone_are_not_taken_for_new_ones() -> None:
    mode, x = mode_and_tensor(6)
    with mode:
        selected = {str(x.masked_select(x > i).shape[0]) for i in range(50)}
        indexed = {str(x[x > i].shape[0]) for i in range(50)}
        counted = {str(torch.nonzero(x > i).shape[0]) for i in range(50)}
    assert len(selected | indexed | counted) == 150


def test_a_real_mask_is_not_told_by_its_text() -> None:
    """The text of a large tensor leaves most of it out."""
    mode, x = mode_and_tensor(5000)
    masks = [torch.zeros(5000, dtype=torch.bool), torch.zeros(5000, dtype=torch.bool)]
    masks[1][2500] = True
    with mode:
        a, b = (x[mask].shape[0] for mask in masks)
        assert str(a) != str(b)
        assert str(a) == str(x[masks[0]].shape[0])


def test_all_that_the_answer_hangs_on_is_asked_for() -> None:
    mode, x = mode_and_tensor(4)
    n = x.long()
    with mode:
        found = [torch.bincount(n, minlength=k).shape[0] for k in (0, 1)]
        found.append(torch.bincount(n, weights=x).shape[0])
        found.append(torch.bincount(n, weights=x + 1).shape[0])
        found.append(torch.repeat_interleave(n).shape[0])
        again = [torch.bincount(n, minlength=k).shape[0] for k in (0, 1)]
    assert len({str(size) for size in found}) == 5
    assert list(map(str, again)) == list(map(str, found[:2]))


def test_a_mask_is_counted_once() -> None:
    mode, x = mode_and_tensor(4)
    with mode:
        mask, y = x > 0, x * 2
        sizes = [str(each[mask].shape[0]) for each in (x, y)]
        places = str(mask.nonzero().shape[0])
        pair = y.unsqueeze(0)[torch.tensor([True]), mask].shape
        mask.logical_not_()
        written, other = x[mask].shape[0], x[x > 0].shape[0]
    assert sizes[0] == sizes[1] == places
    assert len({sizes[0], str(written), str(other)}) == 3
    assert len(pair) == 1


def test_a_write_by_whatever_way_makes_it_another_question() -> None:
    mode, x = mode_and_tensor(4)
    n = x.long()
    ways = (
        lambda: n.add_(1),
        lambda: n[1:].zero_(),
        lambda: n.view(2, 2).t().fill_(3),
        lambda: n.detach().mul_(2),
        lambda: torch.mul(n, 2, out=n),
        lambda: torch._foreach_add_([n], 1),
        lambda: n.random_(),
        lambda: n.set_(x.long()),
        lambda: setattr(n, "data", x.long()),
        lambda: rising(n),
    )
    with mode:
        sizes, numbers = [n.nonzero().shape[0]], [n.sum().item()]
        first = n[:1]
        numbers.append(first.item())
        for write in ways:
            assert str(n.nonzero().shape[0]) == str(sizes[-1])
            write()
            sizes.append(n.nonzero().shape[0])
        numbers.append(first.item())
    assert len({str(each) for each in (*sizes, *numbers)}) == len(ways) + 4


@torch.library.custom_op("lostwax_test::rising", mutates_args=("n",))
def rising(n: torch.Tensor) -> None:
    n.copy_(torch.arange(4))


def test_what_was_asked_keeps_no_tensor() -> None:
    """A question is not the reason why a tensor lives, nor is it forgotten while it does."""
    mode, x = mode_and_tensor(4)
    masks = []
    gc.disable()
    try:
        with mode:
            mask = x > 0
            symbol = str(x[mask].shape[0])
            for i in range(300):
                temporary = x > i
                masks.append(weakref.ref(temporary))
                x[temporary].sum().item()
            del temporary
            assert str(x[mask].shape[0]) == symbol
        assert not any(each() is not None for each in masks)
    finally:
        gc.enable()


def test_a_constant_stays_one_where_constants_are_written_to_it() -> None:
    """Asks torch 2.11 of the numbers that `torch.quantile` is given."""
    with FakeTensorMode():
        x = torch.tensor([2.0, 3.0])
        x.mul_(torch.tensor(2.0))
        x += 1
        assert x.tolist() == [5.0, 7.0]
        whole = torch.tensor([5, 7])
        whole.sub_(1)
        assert whole.tolist() == [4, 6]


def test_a_constant_is_none_once_something_else_is_written_to_it() -> None:
    mode, unknown = mode_and_tensor(2)
    with mode:
        x = torch.tensor([2.0, 3.0])
        part = x[:1]
        part.add_(1)
        assert isinstance(part, FakeTensor)
        assert isinstance(x, FakeTensor)
        assert x.known_constant() is None
        assert part.known_constant() is not None
        x.add_(1)
        assert part.known_constant() is None
        y = torch.tensor([2.0, 3.0])
        y.add_(unknown)
        assert isinstance(y, FakeTensor)
        assert y.known_constant() is None
        y.copy_(torch.tensor([1.0, 1.0]))
        assert y.known_constant() is None
