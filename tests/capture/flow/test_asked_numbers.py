"""Numbers and truths that are asked of tensors and of sizes, in what Python, math and numpy do with
numbers: it is as in eager for other data, or it is refused with its line."""

from __future__ import annotations

import datetime
import decimal
import fractions
import itertools
import json
import math
import operator
import statistics
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lostwax
from lostwax import Dim
from lostwax.errors import CaptureError, InputValueError, LostwaxError

DATA = [torch.tensor(n) for n in (3, 5, 0, -2, 1)]
XS = [1, 2, 3, 4, 5, 6]
TABLE = {0: 7, 1: 5}


class Place:
    def __init__(self, n: Any) -> None:
        self.n = n

    def __index__(self) -> Any:
        return self.n


class Hashed(Place):
    def __hash__(self) -> Any:
        return self.n


def picks(n: Any) -> Any:
    return XS[(n > 2) ^ (n > 0)], XS[-(n > 2)], TABLE[n > 2]


WORKS: dict[str, Callable[[Any], Any]] = {
    "negated": lambda n: (-(n > 2), +(n > 2), abs(n > 2)),
    "inverted": lambda n: ~((n > 2) * 1),
    "xor": lambda n: ((n > 2) ^ (n > 0), (n > 2) ^ True, True ^ (n > 2), (n > 2) ^ 4),
    "bits": lambda n: ((n > 2) & 3, 3 & (n > 2), (n > 2) | 4, (n > 2) << 2, (n > 2) >> 1),
    "compared": lambda n: ((n > 2) < (n > 0), (n > 2) >= (n > 0), (n > 2) != (n > 0), (n > 2) != 1),
    "divided": lambda n: ((n > 2) / 2, (n > 2) // 2, (n > 2) % 2, divmod(n > 2, 2), (n > 2) ** 2),
    "rounded": lambda n: (round(n > 2), math.floor(n > 2), math.trunc(n > 2)),
    "of reals": lambda n: ((n / 2 > 1) ^ (n > 2), (n / 2 > 1) + 0.5),
    "parts": lambda n: (n.real, n.imag, n.numerator, n.denominator, (n > 2).real, (n / 2).real),
    "islice": lambda n: (sum(itertools.islice(XS, abs(n))), sum(XS[: abs(n)]), sum(XS[:n])),
    "divisors": lambda n: (math.gcd(n, 6), math.gcd(4, n, 2), math.lcm(n, 4), math.lcm(n)),
    "roots": lambda n: (math.isqrt(abs(n)), math.isqrt(n * n + 1), math.isqrt(n * n * 10**17)),
    "products": lambda n: (math.factorial(abs(n)), math.factorial(n + 4)),
    "digits": lambda n: (n.bit_length(), n.bit_count(), (n * 1000).bit_length()),
    "shifts": lambda n: (1 << abs(n), -5 << (n + 2), 1000 >> abs(n), n >> n + 2, 2 ** abs(n)),
    "bits of two": lambda n: (n & (n - 1), n | (n + 4), n ^ (n * 3), 12 & n),
    "power": lambda n: (pow(n, 3, 11), pow(n, 2, -5), pow(n, 2), pow(2, 5, n * n + 1)),
    "extremes": lambda n: (max(n > 2, n > 0), min(n > 2, 2), sum([n > 2, n > 0, True])),
    "decides": lambda n: 5 if (n > 2) ^ (n > 0) else 6,
    "decides by order": lambda n: 5 if -(n > 2) < 0 else 6,
    "root": lambda n: math.sqrt(n > 2),
    "picks": picks,
    "a mask": lambda n: (torch.arange(6).view(2, 3)[n > 2], torch.arange(2)[~(n > 2) + 2 > 0]),
    "filled": lambda n: (torch.full((3,), (n > 2) ^ (n > 0)), torch.full((3,), -(n > 2))),
    "numpy's numbers": lambda n: (abs(n + np.int64(2)) * 2, np.floor(n / 2)),
    "an object": lambda n: torch.arange(14).view(7, 2)[Place(n % 5)],
    "objects in slices": lambda n: torch.arange(7)[Place(n % 2) : Place(n % 5), None],
}


@pytest.mark.parametrize("name", WORKS)
def test_of_data_it_is_as_in_eager(name: str) -> None:
    def program(x: Tensor) -> Any:
        return WORKS[name](x.item())

    run = lostwax.export(program, (DATA[0],)).module()
    for x in DATA:
        torch.testing.assert_close(run(x), program(x))


OF_SIZES: dict[str, Callable[[Any], Any]] = {
    **{name: WORKS[name] for name in ("negated", "xor", "bits", "compared", "parts", "power")},
    "rounded by numpy": lambda n: (int(np.ceil(n / 2)), torch.full((2,), np.floor(n / 2))),
    "numpy's product": lambda n: torch.zeros(int(np.prod([n, 2])), int(abs(np.int64(2) * n))),
    "another root": lambda n: torch.full((2,), float(np.sqrt(n))),
    "a rounding number": lambda n: float(n * np.float32(0.1)),
    "digits": lambda n: (n.bit_count(), n.bit_length(), len(n.to_bytes(2, "big"))),
    "islice": lambda n: list(itertools.islice(XS, n)),
    "repeat": lambda n: list(itertools.repeat(2, n)),
    "three for pow": lambda n: (pow(3, n, 7), pow(2, 5, n)),
    "common divisor": lambda n: (math.gcd(n, 6), math.comb(n, 2), math.isqrt(n), hex(n), chr(n)),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_of_sizes_it_is_as_in_eager(name: str) -> None:
    """Or the size is fixed, and other ones are not taken."""

    def program(x: Tensor) -> Any:
        return OF_SIZES[name](x.shape[0])

    run = lostwax.export(program, (torch.ones(3),), dynamic_shapes=({0: Dim.AUTO},)).module()
    assert repr(run(torch.ones(3))) == repr(program(torch.ones(3)))
    for n in (1, 2, 4, 5):
        with suppress(InputValueError):
            assert repr(run(torch.ones(n))) == repr(program(torch.ones(n)))


def test_numpy_rounds_sizes_that_vary() -> None:
    def halves(x: Tensor) -> Tensor:
        return torch.zeros(torch.sym_int(np.ceil(x.shape[0] / 2)))

    sizes = ({0: Dim("n", max=64)},)
    run = lostwax.export(halves, (torch.ones(3),), dynamic_shapes=sizes).module()
    assert [len(run(torch.ones(n))) for n in (1, 4, 7)] == [1, 2, 4]


REFUSED: dict[str, Callable[[Any], Any]] = {
    "numpy's root": np.sqrt,
    "numpy's exponential": lambda n: np.exp(n) + 1,
    "of two": lambda n: np.hypot(n, 3),
    "truths are added otherwise": lambda n: np.add(n > 2, n > 0),
    "another class of floats": lambda n: n * np.float32(0.1),
    "an array": lambda n: torch.tensor(np.array([n])),
    "a product of an array": lambda n: torch.from_numpy(np.array([1.0, 2.0]) * n),
    "not a number": np.isnan,
    "Decimal": lambda n: int(decimal.Decimal(n)),
    "Fraction": fractions.Fraction,
    "a sum with a Fraction": lambda n: int((n + fractions.Fraction(1, 3)) * 3),
    "mean": lambda n: statistics.mean([n, 2]),
    "JSON": json.dumps,
    "JSON inside": lambda n: json.dumps({"a": [n]}, indent=1),
    "repeat": lambda n: sum(itertools.repeat(2, n)),
    "permutations": lambda n: len([*itertools.permutations(XS, n)]),
    "the exponent": lambda n: pow(3, n, 7),
    "ldexp": lambda n: math.ldexp(1.0, n),
    "comb": lambda n: math.comb(n, 2),
    "digits": lambda n: len(n.to_bytes(2, "big")),
    "hex": hex,
    "complex": lambda n: (n + 1j).real,
    "deque": lambda n: len(deque(XS, n)),
    "timedelta": lambda n: datetime.timedelta(seconds=n).seconds,
    "a method of int": lambda n: int.__add__(n, 1),
    "an object as an index": lambda n: XS[Place(n)],
    "an object as a size": lambda n: torch.zeros(Place(n)),
    "an object as a count": lambda n: sum(itertools.islice(XS, Place(n))),
    "an object as a number": lambda n: operator.index(Place(n)),
    "an object as a key": lambda n: hash(Hashed(n)),
    "a flag of an operator": lambda n: torch.ones(2, 2).sum(0, keepdim=n > 2),
    "text": lambda n: "ab"[n > 2],
    "a list": lambda n: [1] * (n > 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_number_is_refused_with_its_line(name: str) -> None:
    def program(x: Tensor) -> Any:
        n = x.item()
        return REFUSED[name](n)

    with pytest.raises(LostwaxError) as refused:
        lostwax.export(program, (DATA[0],))
    text = str(refused.value)
    assert "test_asked_numbers.py:" in text
    assert "instead:" in text or "fix:" in text


def caught(x: Tensor) -> int:
    try:
        return pow(3, int(x.item()), 7)
    except Exception:
        return 0


def caught_from_c(x: Tensor) -> int:
    try:
        return sum(itertools.islice(iter(XS), int(x.item())))
    except ValueError:
        return 0


@pytest.mark.parametrize("program", [caught, caught_from_c])
def test_a_refusal_that_is_caught_is_one(program: Callable[[Tensor], int]) -> None:
    with pytest.raises(CaptureError, match="the module's own code caught this error"):
        lostwax.export(program, (DATA[0],))


def test_what_eager_raises_is_raised() -> None:
    def nothing(x: Tensor) -> Any:
        return x.item().nothing  # type: ignore[attr-defined]

    def told(x: Tensor) -> Any:
        n = x.item()
        raise ValueError(f"not {n > 2}")

    with pytest.raises(AttributeError, match="'int' object has no attribute 'nothing'"):
        lostwax.export(nothing, (DATA[0],))
    with pytest.raises(ValueError, match=r"^not "):
        lostwax.export(told, (DATA[0],))


def test_a_side_that_meets_such_a_number_is_refused() -> None:
    def sided(x: Tensor) -> Any:
        n = x.item()
        return x + len(json.dumps(n)) if x > 1 else x

    with pytest.raises(CaptureError, match="depends on data or on a size"):
        lostwax.export(sided, (DATA[0],))


@pytest.mark.parametrize(
    "meet",
    [
        lambda n: fractions.Fraction(3) == n,
        lambda n: n != decimal.Decimal(3),
        lambda n: operator.eq(3 + 0j, n),
        lambda n: {"a": n == 3 + 0j},
        lambda n: n * fractions.Fraction(1, 2),
        lambda n: n + 1j,
        lambda n: (n > 2) == fractions.Fraction(1),
        lambda n: n / 2 == decimal.Decimal("1.5"),
    ],
)
def test_beside_numbers_of_other_kinds_they_are_refused(meet: Any) -> None:
    text = r"a number that depends on data or on a size meets a (Fraction|Decimal|complex)\."
    for forward in (lambda x: meet(int(x.sum())), lambda x: meet(x.shape[0])):
        with pytest.raises(CaptureError, match=text) as e:
            lostwax.export(forward, (torch.ones(3),), dynamic_shapes=({0: Dim("n", min=2)},))
        assert "test_asked_numbers.py:" in str(e.value)
        assert "instead: convert the other one, int(...) or float(...)" in str(e.value)
