"""Dicts, sets and counters of which data decide the keys: a key on one side of an `if`, numbers of
data as keys. Each is equal to eager whichever way it goes, or refused with the user's line."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import LostwaxError
from tests.capture.flow import keys_held_twice, keys_looked_at, keys_of_data, keys_on_one_side
from tests.whole import sampled

XS = tuple(
    torch.tensor(each)
    for each in (
        [1.0, 2.0, -3.0],
        [5.0, -2.0, -3.0],
        [-1.0, -2.0, 3.0],
        [1.0, 1.0, 1.0],
        [-1.0, -1.0, -1.0],
    )
)
IDS = tuple(
    torch.tensor(each)
    for each in ([1, 2, 1, 0], [0, 0, 0, 0], [3, 2, 1, 0], [-1, 2, -1, 2], [2, 2, 3, 3])
)
CAPTURED = [
    *((each, XS) for each in (*keys_on_one_side.CAPTURED, *keys_looked_at.CAPTURED)),
    *((each, XS) for each in keys_held_twice.CAPTURED),
    *((each, IDS) for each in keys_of_data.CAPTURED),
]
REFUSED = [
    *((each, XS) for each in (*keys_on_one_side.REFUSED, *keys_looked_at.REFUSED)),
    *((each, XS) for each in keys_held_twice.REFUSED),
    *((each, IDS) for each in keys_of_data.REFUSED),
]


def _name(each: Any) -> str:
    return getattr(each[0], "__name__", type(each[0]).__name__)


def _call(run: Any, x: torch.Tensor) -> Any:
    """What it returns and leaves in its argument; None, if it raises."""
    given = deepcopy(x)
    try:
        return run(given), given
    except (KeyError, RuntimeError):
        return None


def _check(function: Any, calls: tuple[torch.Tensor, ...]) -> None:
    run = lostwax.export(function, (calls[0].clone(),)).module()
    for x in calls:
        got, want = _call(run, x), _call(function, x)
        assert (got is None) == (want is None)
        if want is not None:
            assert type(got[0]) is type(want[0])
            torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("program", sampled(CAPTURED[::2], CAPTURED), ids=_name)
def test_it_equals_eager_whichever_way_it_goes(program: Any) -> None:
    _check(*program)


@pytest.mark.parametrize("program", sampled(REFUSED[::2], REFUSED), ids=_name)
def test_what_is_refused_says_where(program: Any) -> None:
    function, calls = program
    with pytest.raises(LostwaxError) as error:
        lostwax.export(function, (calls[0].clone(),))
    assert "/keys_" in str(error.value)
    assert any(each in str(error.value) for each in ("instead:", "fix:", "why:"))


def test_a_key_may_come_in_a_loop_of_any_length() -> None:
    run = lostwax.export(keys_of_data.bfs, (IDS[0],)).module()
    for seed in range(20):
        ids = torch.randint(0, 4, (4,), generator=torch.Generator().manual_seed(seed))
        assert run(ids).tolist() == keys_of_data.bfs(ids).tolist()


def test_gradients_go_through_a_dict() -> None:
    def square(x: torch.Tensor) -> torch.Tensor:
        found: dict[int, torch.Tensor] = {}
        for n, each in enumerate(x * 2):
            if each > 0:
                found[n] = each
        total = x.sum()
        for value in found.values():
            total = total + value * value
        return total

    run = lostwax.export(square, (XS[0],)).module()
    for x in XS:
        xs = [x.clone().requires_grad_() for _ in range(2)]
        got, want = run(xs[0]), square(xs[1])
        torch.testing.assert_close(got, want, equal_nan=True)
        torch.testing.assert_close(*(torch.autograd.grad(y, x) for y, x in zip((got, want), xs)))  # noqa: B905


def test_which_keys_a_returned_dict_has_is_known() -> None:
    with pytest.raises(LostwaxError, match="data decide which keys a dict has") as error:
        lostwax.export(keys_on_one_side.returned, (XS[0],))
    assert "it is made at tests/capture/flow/keys_on_one_side.py:" in str(error.value)
    assert "set the same keys on all ways" in str(error.value)
