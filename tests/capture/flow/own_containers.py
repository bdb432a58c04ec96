"""Functions in which a side of an `if` changes a list, a dict or a small object that is not read
after it; and those in which somebody else has it."""

# mypy: ignore-errors

from __future__ import annotations

import functools
import weakref
from collections import deque
from types import SimpleNamespace

import torch


class Seen:
    def __init__(self):
        self.values, self.count = [], 0

    def add(self, value):
        self.values.append(value)
        self.count += 1


# ---------------------------------------------------------------------- nobody reads them after it


def memo_on_one_side(x):
    memo = {}
    if x.sum() > 0:
        memo["sin"] = x.sin()
        y = memo["sin"] * memo["sin"]
    else:
        memo["cos"] = x.cos()
        y = memo["cos"] * 3
    return y


def log_of_words(x):
    def add(x):
        log = ["in"]
        if x.sum() > 0:
            log.append("positive")
            return x * len(log)
        return x - len(log)

    return add(x) + 1


def taken_from(x):
    left = [0, 1]
    if x[0] > 0:
        i = left.pop()
        y = x[i]
    else:
        y = x[0]
    return y


def inside_of_each_other(x):
    left, log = [0, 1], {"n": []}
    if x[0] > 0:
        log["n"].append(1)
        if x[1] > 0:
            i = left.pop()
            log["n"].append("two")
            y = x[i]
        else:
            y = x[0] + len(log["n"])
    else:
        y = x[0]
    return y


def small_object(x):
    seen = Seen()
    seen.add(x)
    if x[0] > 0:
        seen.add(None)
        y = seen.values[0] * seen.count
    else:
        y = x
    return y


def queue(x):
    waiting = deque([x[0], "end"])
    if x[0] > 0:
        waiting.appendleft(None)
        y = waiting[1] + 1
    else:
        y = waiting.popleft()
    return y


def moved_out(x):
    groups, out = {"a": [1]}, []
    if x.sum() > 0:
        kept = groups.pop("a")
        kept.append(2)
        out.append(kept)
        del kept
    else:
        out.append([5, 6])
    return x * out[0][-1]


def moved_to_an_object(x):
    holder, groups = SimpleNamespace(kept=None), {"a": [1]}
    if x.sum() > 0:
        groups["a"].append(2)
        holder.kept = groups.pop("a")
    else:
        holder.kept = [7, 8]
    return x * holder.kept[1]


CAPTURED = [
    memo_on_one_side, log_of_words, taken_from, inside_of_each_other, small_object, queue,
    moved_out, moved_to_an_object,
]  # fmt: skip


# ------------------------------------------------------------------------------- others have them


def a_variable_read_later(x):
    one = {}
    other = one
    if x.sum() > 0:
        one["a"] = 1
    return x * len(other)


def a_variable_set_on_one_side(x):
    one, other = {}, {"b": 2}
    if x.sum() > 0:
        one["a"] = 1
        other = one
    return x * other.get("b", 7)


def a_tuple(x):
    one = {}
    pair = (one,)
    if x.sum() > 0:
        one["a"] = 1
    return x * len(pair[0])


def a_closure(x):
    one = {}

    def count():
        return len(one)

    if x.sum() > 0:
        one["a"] = 1
    return x * count()


def a_default(x):
    one = {}

    def count(given=one):
        return len(given)

    if x.sum() > 0:
        one["a"] = 1
    return x * count()


def a_bound_method(x):
    one = {"a": 1}
    take = one.popitem
    if x.sum() > 0:
        one["b"] = 2
    return x * take()[1]


def a_view(x):
    one = {}
    view = one.values()
    if x.sum() > 0:
        one["a"] = 1
    return x * len(view)


def a_partial(x):
    one = {}
    count = functools.partial(len, one)
    if x.sum() > 0:
        one["a"] = 1
    return x * count()


def the_caller(x):
    def fill(given):
        if x.sum() > 0:
            given["a"] = 1
        return x

    one = {}
    return fill(one) * len(one)


def the_callers_caller(x):
    def fill(given):
        if x.sum() > 0:
            given["a"] = 1
        return x

    return (lambda one: fill(one) * len(one))({})


HELD = []


def a_global(x):
    one = {}
    HELD[:] = [one]
    if x.sum() > 0:
        one["a"] = 1
    return x * len(HELD[0])


def an_object_that_one_side_changes(x):
    holder, one = SimpleNamespace(kept={}), {}
    if x.sum() > 0:
        one["a"] = 1
        holder.kept = one
    return x * len(holder.kept)


def the_attributes_of_an_object(x):
    seen = Seen()
    attributes = vars(seen)
    if x.sum() > 0:
        seen.more = 1
    return x * len(attributes)


def a_method_of_an_object(x):
    seen = Seen()
    add = seen.add
    if x.sum() > 0:
        seen.more = 1
    add(1)
    return x * len(vars(add.__self__))


def twice_in_a_list(x):
    inner = {}
    rows = [inner, inner]
    del inner
    if x.sum() > 0:
        rows[0]["a"] = 1
        rows.pop(0)
    else:
        rows.pop(0)
    return x * len(rows[0])


def something_weak(x):
    one = {1}
    known = weakref.ref(one)
    if x.sum() > 0:
        one.add(2)
    return x * len(known())


def a_generator(x):
    one = {"a": 1}
    values = (each for each in one.values())
    if x.sum() > 0:
        one["a"] = "b"
    return x * len(str(next(values)))


def a_finally(x):
    one, y = {}, x * 1
    try:
        if x.sum() > 0:
            one["a"] = 1
        y = x + 1
    finally:
        y = y * len(one)
    return y


def the_names_of_variables(x):
    one = {}
    if x.sum() > 0:
        one["a"] = 1
    return x * len(locals()["one"])


def the_next_turn(x):
    one, n = {}, 0
    for each in x:
        n += len(one)
        if each > 0:
            one["a"] = 1
    return x * n


def returned(x):
    one = {"a": x}
    if x.sum() > 0:
        one["b"] = torch.zeros(1)
    return one


OTHERS = [
    a_variable_read_later, a_variable_set_on_one_side, a_tuple, a_closure, a_default,
    a_bound_method, a_view, a_partial, the_caller, the_callers_caller, a_global,
    an_object_that_one_side_changes, the_attributes_of_an_object, a_method_of_an_object,
    twice_in_a_list, something_weak, a_generator, a_finally, the_names_of_variables, the_next_turn,
    returned,
]  # fmt: skip
