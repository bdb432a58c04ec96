"""Functions whose loops on data hand on a variable that is one thing or another."""

# mypy: ignore-errors

from __future__ import annotations


def best_so_far(x):
    best, n = None, 0
    while n < 3 and x.sum() > -50:
        x, n = x - 1, n + 1
        if best is None or x.sum() > best:
            best = x.sum() * 1
    return x if best is None else x + best


def may_not_run(x):
    best = None
    while x.sum() > 4:
        best = x.sum()
        x = x - 1
    return x * 0 if best is None else x + best


def machine(x):
    state, n = "a", 0
    while state != "stop" and n < 9:
        n += 1
        if state == "a":
            x = x * 2
            if x.max() > 4:
                state = "b"
        elif state == "b":
            x = x - 3
            state = "c" if x.sum() < 0 else "a"
        else:
            state = "stop"
    return x, n


def word_of_the_turn(x):
    word = "none"
    for i in range(int(x.abs().sum())):
        if i == 2:
            word = "two"
        elif i == 5:
            word = None
    if word is None:
        return x
    return x + len(word)


def begins_with_none(x):
    state = None
    while x.sum() > 0:
        x = x - 1
        state = x * 2 if state is None else state + x
    return x if state is None else state


def set_in_a_loop_within(x):
    best = None
    while x.sum() > 0:
        x = x - 1
        for each in x:
            if each > 1:
                best = each
    return x if best is None else x + best


def loop_within_a_loop(x):
    best, n = float("inf"), 0
    while n < 3 and x.sum() > -100:
        left = x.sum() - n
        n += 1
        while left > 0:
            left = left - 2
        if left < best:
            best = left
    return x + best


CAPTURED = [
    best_so_far, may_not_run, machine, word_of_the_turn, begins_with_none, set_in_a_loop_within,
    loop_within_a_loop,
]  # fmt: skip


def exchanged(x):
    one, other, n = None, x.sum(), 0
    while n < 4 and x.sum() > -100:
        one, other = other, one
        x, n = x - 1, n + 1
    return x + 1 if one is None else x + one


REFUSED = [exchanged]
