"""What is done with dicts that have a key on one side of an `if` on data."""

# mypy: ignore-errors
# ruff: noqa: B007, B008, B905, C416, E741

from __future__ import annotations

from collections import OrderedDict, defaultdict

import torch


def hetero2(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = x
        else:
            d["b"] = x[:2]
    return d.get("a", x)


def nested(x):
    d = {"m": {}}
    for e in x:
        if e > 0:
            d["m"]["a"] = e
    return d["m"].get("a", x[0])


def list_of_dicts(x):
    ds = [{} for _ in range(2)]
    for n, e in enumerate(x):
        if e > 0:
            ds[n % 2]["a"] = e
    return ds[0].get("a", x[0]) - ds[1].get("a", x[1])


def helper(x):
    def put(d, e):
        if e > 0:
            d["a"] = e

    d = {}
    for e in x:
        put(d, e)
    return d.get("a", x[0])


def isinst(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    return x + 1 if isinstance(d, dict) and not isinstance(d, list) and type(d) is dict else x


def matched(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    match d:
        case {"a": v}:
            return v + 0
        case _:
            return x.sum()


def matched_seq(x):
    d = {"a": x[0]}
    for e in x:
        if e > 0:
            d["b"] = e
    match d:
        case [a]:
            return a
        case {"a": v}:
            return v * 2
    return x


def star_star(x):
    def f(a=torch.tensor(1.0), b=torch.tensor(2.0)):
        return a - b

    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    return f(**d)


def spread_d(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    f = {**d, "b": x[0]}
    return len(f)


def values_list(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e
    return torch.stack([*d.values(), x[0]])


def values_list2(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e
    l = list(d.values())
    l.append(x[0])
    return torch.stack(l)


def keys_list(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e
    return torch.tensor(list(d)) + 0 if x.sum() > -100 and len(d) > 0 else x


def max_by_get(x):
    d = {0: x[0], 1: x[1]}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e * 2
    return x * max(d, key=d.get)


def max_values(x):
    d = {0: x[0]}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e * 2
    return max(d.values()) + min(d.values())


def view_live(x):
    d = {}
    v = d.values()
    k = d.keys()
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e
    return len(v) + len(k) + (10 if 1 in k else 0)


def clear(x):
    d = {"a": x[0]}
    for n, e in enumerate(x):
        if e > 0:
            d.clear()
        d["b"] = e
    return len(d) + d.get("a", x[1])


def fl_numbers(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d["k"] = n
        elif e < -1:
            d["k"] = n + 10
    return x + d.get("k", -1)


def floats(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d["k"] = 0.5 * n
    return x + d.get("k", -1.5)


def int_or_float(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d["k"] = n
        elif e < -1:
            d["k"] = 0.5
    return x + d.get("k", -1)


def none_values(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d["k"] = None
    return x + 1 if "k" in d else x


def none_get(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d["k"] = e
    v = d.get("k")
    return x if v is None else x * v


def get_or(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d["k"] = n
    return x * (d.get("k") or 5)


def fromkeys(x):
    d = dict.fromkeys("ab", x[0])
    for e in x:
        if e > 0:
            d["c"] = e
    return d.get("c", x[0] * 2) + len(d)


def odict(x):
    d = OrderedDict(a=x[0], b=x[1], c=x[2])
    for k, e in zip("abc", x):
        if e > 0:
            d.move_to_end(k)
    k, v = d.popitem(last=False)
    return v


def odict2(x):
    d = OrderedDict(a=x[0], b=x[1], c=x[2])
    for k, e in zip("abc", x):
        if e > 0:
            d.move_to_end(k, last=False)
    return torch.stack(list(d.values()))


def dd_list(x):
    d = defaultdict(list)
    for n, e in enumerate(x):
        if e > 0:
            d["p"].append(e)
    return sum(d["p"], torch.zeros(()))


def dd_lambda(x):
    d = defaultdict(lambda: torch.ones(()))
    for n, e in enumerate(x):
        if e > 0:
            d["p"] = d["p"] * e
    return d["p"] + d["q"]


def dd_sideeffect(x):
    n = [0]

    def make():
        n[0] += 1
        return n[0]

    d = defaultdict(make)
    for e in x:
        if e > 0:
            d["p"] += 1
    return x + d["p"] + n[0]


def dd_in(x):
    d = defaultdict(int)
    for e in x:
        if e > 0:
            d["p"]
    return len(d) + (10 if "p" in d else 0)


def dict_comp(x):
    d = {k: e for k, e in zip("abc", x)}
    for k, e in zip("abc", x):
        if e > 0:
            del d[k]
    return {k: v for k, v in d.items()}.get("a", x[1])


def dict_comp_if(x):
    d = {n: e for n, e in enumerate(x) if e > 0}
    return len(d)


def grads_dict(x):
    d = {}
    for n, e in enumerate(x * 2):
        if e > 0:
            d[n] = e
    t = torch.zeros(())
    for v in d.values():
        t = t + v * v
    return t


def text(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = 1
    return x + len(str(d))


def sorted_items(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[3 - n] = e
    t = x.sum()
    for k in sorted(d):
        t = t * 2 + d[k]
    return t


def reversed_d(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e
    t = x.sum()
    for k in reversed(d):
        t = t * 2 + d[k]
    return t


def changed_in_loop(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e
    for k in list(d):
        if d[k] > 1:
            del d[k]
    return len(d)


def enumerate_items(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n * 10] = e
    t = x.sum()
    for n, (k, v) in enumerate(d.items()):
        t = t + n * v + k
    return t


def any_values(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e
    return torch.tensor(any(v > 1 for v in d.values()))


def both_sides_make(x):
    if x[0] > 0:
        d = {"a": x}
    else:
        d = {"b": x}
    return d.get("a", x * 2)


def made_in_side(x):
    t = x
    for e in x:
        if e > 0:
            d = {}
            if e > 1:
                d["z"] = e
            t = t + d.get("z", e * 10)
    return t


def while_loop(x):
    d = {}
    n = 0
    while x.sum() < 20:
        x = x.abs() * 2 + 1
        n += 1
        if n == 2:
            d["two"] = x.sum()
        d["last"] = x.sum()
    return d.get("two", torch.zeros(())) + d.get("last", torch.ones(()))


CAPTURED = [
    nested, list_of_dicts, helper, isinst, values_list, values_list2, max_by_get, max_values,
    view_live, clear, fl_numbers, floats, none_get, get_or, fromkeys, odict2, dd_lambda,
    dd_sideeffect, dd_in, dict_comp_if, grads_dict, sorted_items, reversed_d, changed_in_loop,
    enumerate_items, any_values, both_sides_make, made_in_side, while_loop,
]  # fmt: skip
REFUSED = [
    hetero2, matched, matched_seq, star_star, spread_d, keys_list, int_or_float, none_values,
    odict, dd_list, dict_comp, text,
]  # fmt: skip
