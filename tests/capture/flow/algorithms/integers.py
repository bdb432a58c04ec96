"""Whole numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.capture.flow.algorithms.program import ints, number, program


@program(
    (number(12), number(18)),
    (number(7), number(13)),
    (number(0), number(5)),
    (number(9), number(0)),
)
def gcd(a: Tensor, b: Tensor) -> Tensor:
    while b != 0:
        a, b = b, a % b
    return a


@program((number(12), number(18)), (number(17), number(5)), (number(4), number(0)))
def gcd_of_items(a: Tensor, b: Tensor) -> int:
    m, n = a.item(), b.item()
    while n:
        m, n = n, m % n
    return m


@program(number(6), number(27), number(1), number(7))
def collatz(n: Tensor) -> tuple[Tensor, int]:
    steps = 0
    highest = n
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        highest = torch.maximum(highest, n)
        steps += 1
    return highest, steps


@program((number(3), number(5)), (number(2), number(0)), (number(5), number(10)))
def power_by_squaring(base: Tensor, exponent: Tensor) -> Tensor:
    result = torch.ones_like(base)
    while exponent > 0:
        if exponent % 2 == 1:
            result = result * base
        base = base * base
        exponent = exponent // 2
    return result


@program(number(91), number(97), number(1), number(4))
def is_prime(n: Tensor) -> bool:
    if n < 2:
        return False
    d = 2
    while d * d <= n:
        if n % d == 0:
            return False
        d += 1
    return True


@program(number(0), number(1), number(10), number(30))
def fibonacci(n: Tensor) -> Tensor:
    a, b = torch.tensor(0), torch.tensor(1)
    for _ in range(n):
        a, b = b, a + b
    return a


@program(number(0), number(5), number(255), number(1023))
def count_bits(n: Tensor) -> int:
    value = n.item()
    bits = 0
    while value > 0:
        bits += value & 1
        value >>= 1
    return bits


@program(number(12345), number(7), number(90))
def sum_of_digits(n: Tensor) -> Tensor:
    total = torch.zeros_like(n)
    while n > 0:
        total += n % 10
        n = torch.div(n, 10, rounding_mode="floor")
    return total


@program(number(16), number(17), number(1), number(99))
def integer_square_root(n: Tensor) -> Tensor:
    low, high = torch.tensor(0), n + 1
    while high - low > 1:
        middle = (low + high) // 2
        if middle * middle <= n:
            low = middle
        else:
            high = middle
    return low


@program(number(10), number(2), number(30))
def sieve(limit: Tensor) -> Tensor:
    is_prime = torch.ones(31, dtype=torch.bool)
    is_prime[:2] = False
    for p in range(2, 6):
        if is_prime[p] and p * p <= limit:
            is_prime[p * p :: p] = False
    return is_prime & (torch.arange(31) <= limit)


@program(number(1994), number(4), number(0), number(49))
def roman_numerals(n: Tensor) -> Tensor:
    values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
    counts = torch.zeros(13, dtype=torch.int64)
    for i, value in enumerate(values):
        while n >= value:
            n = n - value
            counts[i] += 1
    return counts


@program(number(13), number(1), number(100))
def fizz_buzz(n: Tensor) -> Tensor:
    fizz = buzz = other = 0
    for i in range(1, n.item() + 1):
        if i % 3 == 0:
            fizz += 1
        elif i % 5 == 0:
            buzz += 1
        else:
            other += 1
    return torch.stack([torch.as_tensor(fizz), torch.as_tensor(buzz), torch.as_tensor(other)])


@program(ints(3, 5, 7), ints(0, 0, 0), ints(5, 5, 1))
def nim_winning_move(heaps: Tensor) -> Tensor:
    balance = heaps[0] ^ heaps[1] ^ heaps[2]
    if balance == 0:
        return torch.tensor([-1, 0])
    for i in range(3):
        target = heaps[i] ^ balance
        if target < heaps[i]:
            break
    return torch.stack([torch.tensor(i), heaps[i] - target])


@program((number(240), number(46)), (number(5), number(0)), (number(7), number(7)))
def extended_euclid(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    old_r, r = a, b
    old_s, s = torch.tensor(1), torch.tensor(0)
    old_t, t = torch.tensor(0), torch.tensor(1)
    while r != 0:
        q = old_r // r
        old_r, r = r, old_r - q * r
        old_s, s = s, old_s - q * s
        old_t, t = t, old_t - q * t
    return old_r, old_s, old_t


@program(number(2020), number(1900), number(2000), number(2023))
def is_leap_year(year: Tensor) -> Tensor:
    if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return torch.tensor(366)
    return torch.tensor(365)
