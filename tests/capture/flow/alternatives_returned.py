"""Functions that return what data make one thing or another, and what is done with it: only a
function that is called by the one that asks hands it on; Python asks nobody for `x is None`."""

# mypy: ignore-errors

from __future__ import annotations

import functools
import inspect
import operator

import torch
from torch import nn


def pick(x):
    """The last element that is larger than 1, or None."""
    best = None
    for each in x:
        if each > 1:
            best = each
    return best


def leave(x):
    for each in x:
        if each > 1:
            return each
    return None


def same(value):
    return value


def end(value, x):
    return x * 0 if value is None else x + 1


# ----------------------------------------------------------------------------- who asks, has called


def a_variable_gets_it(x):
    found = pick(x)
    return x * 0 if found is None else x + 1


def two_variables_get_it(x):
    found = other = pick(x)
    third = other
    return x * 0 if third is None or found is None else x + 1


def asked_at_once(x):
    return x * 0 if pick(x) is None else x + 1


def asked_with_its_name(x):
    return x * 0 if (found := pick(x)) is None else x + found


def handed_to_a_function(x):
    return end(pick(x), x)


def handed_by_name(x):
    return end(value=pick(x), x=x)


def handed_through(x):
    return end(same(pick(x)), x)


def through_a_lambda(x):
    find = lambda y: (lambda z: pick(z))(y)  # noqa: E731
    return end(find(x), x)


def through_functions(x):
    def first(y):
        return second(y)

    def second(y):
        return leave(y)

    found = first(x)
    return x * 0 if found is None else x + 1


def decorate(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


decorated = decorate(pick)


def through_a_decorator(x):
    found = decorated(x)
    return x * 0 if found is None else x + 1


def through_a_recursion(x):
    def search(y, depth):
        return pick(y) if depth == 0 else search(y, depth - 1)

    found = search(x, 3)
    return x * 0 if found is None else x + 1


def call_watched(x):
    found = pick(x)
    return x * 0 if found is None else x + 1


def in_a_function_named_like_ours(x):
    return call_watched(x)


def through_a_partial(x):
    found = functools.partial(pick, x)()
    return x * 0 if found is None else x + 1


class Search:
    def __init__(self, x):
        self.x = x

    def find(self):
        return pick(self.x)

    @classmethod
    def find_in(cls, x):
        return pick(x)

    def __call__(self, x):
        return pick(x)

    @property
    def best(self):
        return pick(self.x)

    def __getitem__(self, index):
        return pick(self.x)

    def __add__(self, other):
        return pick(self.x)

    def __enter__(self):
        return pick(self.x)

    def __exit__(self, *error):
        return None

    def __iter__(self):
        return self

    def __next__(self):
        return pick(self.x)

    def __getattr__(self, name):
        if name != "made_up":
            raise AttributeError(name)
        return pick(self.x)


def from_methods(x):
    search = Search(x)
    one, two, three = search.find(), Search.find_in(-x), search(x)
    return x * 0 if one is None or three is None else x + (1 if two is None else 2)


def in_a_finally(x):
    def search(y):
        try:
            return pick(y)
        finally:
            y.sum()

    return end(search(x), x)


def in_a_comprehension(x):
    return sum(x * 0 if each is None else x + each for each in [pick(x), pick(-x)])


def in_a_match(x):
    found = pick(x)
    match found:
        case None:
            return x * 2
        case _:
            return x + 1


def its_type(x):
    found = same(pick(x))
    return x * 2 if type(found) is type(None) or found in (None,) else x + 1


def exchanged(x):
    one = other = None
    for each in x:
        if each > 1:
            one = each
        if each < -1:
            other = each
    one, other = other, one
    third = one
    return x * 0 if third is None else x + (1 if other is None else 2)


def as_an_index(x):
    found = pick(x)
    return (x + 1, x * 0)[found is None]


class Finds(nn.Module):
    def forward(self, x):
        return pick(x)


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.finds = Finds()

    def forward(self, x):
        return end(self.finds(x), x)


class CallsItsParent(Finds):
    def forward(self, x):
        found = super().forward(x)
        return x * 0 if found is None else x + 1


WEIGHTS = {"first": 1.0, "second": 2.0, "last": -3.0}


def score(x):
    return {"first": x[0], "second": x[1], "last": x[-1]}


def by_the_largest_name(x):
    scores = score(x)
    return x * WEIGHTS[max(scores, key=scores.get)]


def by_the_smallest_pair(x):
    name, least = min(score(x).items(), key=lambda pair: pair[1])
    return least * WEIGHTS[name]


def by_a_name_in_a_text(x):
    scores = score(x)
    name = f"{max(scores, key=scores.get)}"
    return x + 1 if name == "first" else x * len(name)


def by_the_best_function(x):
    pairs = zip(x, [torch.sin, torch.cos, torch.abs, torch.neg], strict=False)
    return max(pairs, key=lambda pair: pair[0])[1](x)


def best_of(x):
    scores = score(x)
    return max(scores, key=scores.get)


def by_the_name_of_a_function(x):
    return x * WEIGHTS[best_of(x)] + WEIGHTS[best_of(-x)]


def by_next_with_its_default(x):
    values = iter(x)
    for each in x[:2]:
        if each > 0:
            next(values)
            next(values)
    found = next(values, None)
    return x * 0 if found is None else x + found


CAPTURED = [
    a_variable_gets_it, two_variables_get_it, asked_at_once, asked_with_its_name,
    handed_to_a_function, handed_by_name, handed_through, through_a_lambda, through_functions,
    through_a_decorator, through_a_recursion, in_a_function_named_like_ours, through_a_partial,
    from_methods, in_a_finally,
    in_a_match, its_type, exchanged, as_an_index, Calls(), CallsItsParent(),
    by_the_largest_name, by_the_smallest_pair, by_a_name_in_a_text, by_the_best_function,
    by_the_name_of_a_function, by_next_with_its_default,
]  # fmt: skip


# ---------------------------------------------------------------------- others would ask, or see it


def in_a_list_by_map(x):
    return x * 0 if list(map(pick, [x]))[0] is None else x + 1  # noqa: RUF015


def in_a_list_that_takes_more(x):
    found = []
    found.extend(map(leave, [x]))
    return x * 0 if found[0] is None else x + 1


def unpacked_from_map(x):
    one, other = map(pick, [x, -x])
    return x * 0 if one is None or other is None else x + 1


def gone_over_by_map(x):
    for found in map(pick, [x]):
        x = x * 0 if found is None else x + 1
    return x


def next_of_map(x):
    found = next(map(same, map(pick, [x])))
    return x * 0 if found is None else x + 1


def arguments_by_map(x):
    return same(end(*map(pick, [x]), x))


def asked_and_handed_back(x):
    def look(value):
        seen.append(value is None)
        return value

    seen = []
    found = look(*map(pick, [x]))
    return x * 0 if seen[0] or found is None else x + 1


def after_an_exception(x):
    def fail(*args):
        raise ValueError

    try:  # noqa: SIM105
        pick(fail(x))
    except ValueError:
        pass
    for found in map(pick, [x]):
        x = x * 0 if found is None else x + 1
    return x + (0 if same(found) is None else 1)


def by_reduce(x):
    found = functools.reduce(lambda y, each: pick(each) if y is not None else y, [x, x, x])
    return x * 0 if found is None else x + 1


def by_a_key(x):
    return sorted([x], key=lambda each: 0 if pick(each) is None else 1)[0] + len(
        [each for each in map(pick, [x]) if each is not None]
    )


def by_a_cache(x):
    found = functools.lru_cache(pick)(x)
    return x * 0 if found is None else x + 1


def by_an_operator(x):
    found = operator.methodcaller("find")(Search(x))
    return x * 0 if found is None else x + 1


def by_a_property(x):
    return x * 0 if Search(x).best is None else x + 1


def by_an_attribute(x):
    found = Search(x).made_up
    return x * 0 if found is None else x + 1


def by_getattr(x):
    found = getattr(Search(x), "best", None)
    return x * 0 if found is None else x + 1


def by_an_item(x):
    found = Search(x)[0]
    return x * 0 if found is None else x + 1


def by_a_sum(x):
    found = Search(x) + 1
    return x * 0 if found is None else x + 1


def by_a_with(x):
    with Search(x) as found:
        return x * 0 if found is None else x + 1


def by_an_iterator(x):
    for found in Search(x):  # noqa: B007
        break
    return x * 0 if found is None else x + 1


def without_gradients(x):
    found = torch.no_grad()(pick)(x)
    return x * 0 if found is None else x + 1


def among_the_variables(x):
    best = None
    for each in x:
        if each > 1:
            best = each
    return x * 0 if locals()["best"] is None else x + 1


def evaluated(x):
    best = None
    for each in x:
        if each > 1:
            best = each  # noqa: F841
    return x * 0 if eval("best") is None else x + 1


def in_the_frame(x):
    best = None
    for each in x:
        if each > 1:
            best = each  # noqa: F841
    return x * 0 if inspect.currentframe().f_locals["best"] is None else x + 1


class AsksInAHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.finds = Finds()
        self.finds.register_forward_hook(lambda module, args, found: end(found, args[0]))

    def forward(self, x):
        return self.finds(x)


class ReplacedByAHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Identity()
        self.plain.register_forward_hook(lambda module, args, result: pick(args[0]))

    def forward(self, x):
        return self.plain(x) + x


class HandsOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Sequential(Finds(), Ends())

    def forward(self, x):
        return self.both(x) + x


class Ends(nn.Module):
    def forward(self, found):
        return torch.zeros(4) if found is None else torch.ones(4)


def largest_names_by_map(x):
    scores = score(x)
    (name,) = map(lambda _: max(scores, key=scores.get), [0])  # noqa: C417
    return x * WEIGHTS[name]


class KeepsTheLargestName(nn.Module):
    def forward(self, x):
        scores = score(x)
        self.last = max(scores, key=scores.get)
        return x * WEIGHTS[self.last]


REFUSED = [
    largest_names_by_map, KeepsTheLargestName(),
    in_a_list_by_map, in_a_list_that_takes_more, unpacked_from_map, gone_over_by_map, next_of_map,
    arguments_by_map, asked_and_handed_back, after_an_exception, by_reduce, by_a_key, by_a_cache,
    by_an_operator, by_a_property, by_an_attribute, by_getattr, by_an_item, by_a_sum, by_a_with,
    by_an_iterator, without_gradients, among_the_variables, evaluated,
    in_the_frame, in_a_comprehension, AsksInAHook(), ReplacedByAHook(), HandsOn(),
]  # fmt: skip
