"""Functions with a variable that data make one thing or another."""

# mypy: ignore-errors

from __future__ import annotations

import enum
import math

import torch
from torch import nn


class Mode(enum.Enum):
    A = 1
    B = 2


def largest(x):
    """The last element that is larger than 1, or None."""
    for each in x.flip(0):
        if each > 1:
            return each
    return None


def is_there(value, x):
    if value is None:
        return x * 0
    return x + 1


def pair(x):
    if x.sum() > 0:
        return x.sum(), 2
    return None, 3


def to_a_function(x):
    best = None
    for each in x:
        if each > 1:
            best = each
    return is_there(best, x)


def to_a_list_and_a_dict(x):
    best = None
    for each in x:
        if each > 1:
            best = each
    held, named = [best], {"best": best}
    if held[0] is None or named["best"] is None:
        return x * 0
    return x + named["best"]


def its_truth(x):
    best = None
    for each in x:
        if each > 1:
            best = each
    return x + 1 if best else x


def its_class(x):
    best = 0
    for each in x:
        if each > 1:
            best = each
    if isinstance(best, torch.Tensor):
        return x + best
    return x - 1 if type(best) is int else x


def the_name_of_its_class(x):
    best = 0
    for each in x:
        if each > 1:
            best = each
    return x - 1 if type(best).__name__ == "int" else x + best


def written_into_a_text(x):
    name = "a"
    for each in x:
        if each > 1:
            name = "b"
    return x + len(f"{name}xx") + (3 if f"{name}!" == "b!" else 0)


def key_of_a_dict(x):
    name = "a"
    for each in x:
        if each > 1:
            name = "b"
    return x * {"a": 2.0, "b": 3.0}[name]


def longer_and_longer(x):
    text = ""
    for each in x:
        if each > 1:
            text = text + "b"
    return x * len(text)


def four_words(x):
    name = "a"
    for each in x:
        if each > 3:
            name = "d"
        elif each > 2:
            name = "c"
        elif each > 1:
            name = "b"
    return x * ("abcd".index(name) + 1) + (name in {"a", "q"}) * 2 + (name in ("b", "d"))


def two_words(x):
    name, other = "a", "b"
    for each in x:
        if each > 1:
            name = "b"
    return x + 1 if name == other else x + name.count("a")


def smallest_from_infinity(x):
    best = math.inf
    for each in x:
        if each < best:
            best = each
    return x - best if best < 0 else x


def largest_square(x):
    best, n = -math.inf, 0
    for each in x:
        if each * each > best:
            best, n = each * each, n + 1
    return best + x, n


def number_beside_half(x):
    x, best = x.half(), 0.1
    for each in x:
        if each > 1:
            best = each
    return x * best


def double_beside_a_number(x):
    best = 0.5
    for each in x:
        if each > 1:
            best = each.double()
    return (x[0] * best).float()


def pair_with_none(x):
    found = (None, -1)
    for i, each in enumerate(x):
        if each > 1:
            found = (each, i)
    best, at = found
    return x + at if best is None else x + best


def two_variables(x):
    best, word = None, "u"
    for each in x:
        if each > 0:
            if best is None:
                best = each
            else:
                word, best = "v", best * 2
        elif word == "v":
            best = None
    if best is None:
        return x
    return x + best if word == "u" else x - best


def returned_by_a_function(x):
    found = largest(x)
    if found is None:
        return x * 0
    return x + found


def handed_from_one_to_another(x):
    return is_there(largest(x), x)


def asked_twice(x):
    return torch.tanh(largest(x)) if largest(x) is not None else x


def asked_where_it_is_called(x):
    if largest(x) is None:
        return x - 1
    while largest(x) is not None:
        x = x / 2
    return x


def asked_in_a_lambda(x):
    is_none = lambda: largest(x) is None  # noqa: E731
    return x - 1 if is_none() else x


def asked_in_a_comprehension(x):
    return x + sum([1 for _ in range(2) if largest(x) is None])


def unpacked(x):
    value, factor = pair(x)
    return x if value is None else x + value * factor


def looked_for_again(x):
    best, turns = None, 0
    for each in x:
        if each > 1:
            best = each
    while best is None and turns < 3:
        turns += 1
        if turns == 2:
            best = x.sum()
    return x + best, turns


def member_of_an_enum(x):
    mode = Mode.A
    for each in x:
        if each > 1:
            mode = Mode.B
    return x if mode == Mode.A else x + mode.value


def member_that_a_function_returns(x):
    def choose():
        return Mode.A if x.sum() > 0 else Mode.B

    return x + 1 if choose() is Mode.A else x


def deleted(x):
    best = None
    for each in x:
        if each > 1:
            best = each
    found = x if best is None else x + best
    del best
    return found


def argument_by_name(x):
    factor, dim = 1, None
    for each in x:
        if each > 1:
            factor, dim = 2.5, 0
    return torch.add(x, x, alpha=factor) + x.reshape(2, 2).sum(dim=dim).sum()


class KeepsAState(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(1, 2)

    def forward(self, x):
        state = None
        for each in x:
            if each > 1:
                state = self.cell(each.reshape(1, 1), state)
        return torch.zeros(1, 2) if state is None else state


CAPTURED = [
    to_a_function, to_a_list_and_a_dict, its_truth, its_class, the_name_of_its_class,
    written_into_a_text, key_of_a_dict, longer_and_longer, four_words, two_words,
    smallest_from_infinity, largest_square, number_beside_half, double_beside_a_number,
    pair_with_none, two_variables, returned_by_a_function, asked_where_it_is_called,
    asked_in_a_lambda, asked_in_a_comprehension, handed_from_one_to_another, unpacked,
    looked_for_again, member_of_an_enum,
    member_that_a_function_returns, deleted, argument_by_name,
]  # fmt: skip


def kept_on_an_object(x):
    holder, best = nn.Identity(), None
    for each in x:
        if each > 1:
            best = each
    holder.best = best
    return x if holder.best is None else x + 1


def seen_by_a_lambda(x):
    best = None
    for each in x:
        if each > 1:
            best = each
    read = lambda: best  # noqa: E731
    return x * 0 if read() is None else x + read()


def default_of_a_function(x):
    best = None
    for each in x:
        if each > 1:
            best = each

    def add(value=best):
        return x if value is None else x + value

    return add()


def yielded(x):
    best = None
    for each in x:
        if each > 1:
            best = each

    def give():
        yield best

    return x if next(give()) is None else x + 1


def set_by_another_function(x):
    best = None

    def put(each):
        nonlocal best
        if each > 1:
            best = each

    for each in x:
        put(each)
    return x if best is None else x + best


FOUND = None


def set_as_a_global(x):
    global FOUND
    FOUND = None
    for each in x:
        if each > 1:
            FOUND = each
    return x if FOUND is None else x + 1


REFUSED = [
    kept_on_an_object, seen_by_a_lambda, default_of_a_function, yielded, set_by_another_function,
    set_as_a_global,
]  # fmt: skip
