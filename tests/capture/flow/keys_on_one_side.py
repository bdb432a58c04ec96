"""Dicts that have a key on one side of an `if` on data."""

# mypy: ignore-errors
# ruff: noqa: B905, RUF059

from __future__ import annotations

import copy

import torch
from torch import nn


def len_d(x):
    d = {}
    for k, e in zip("abc", x):
        if e > 0:
            d[k] = e
    return len(d)


def sum_values(x):
    d = {}
    for k, e in zip("abc", x):
        if e > 0:
            d[k] = e
    return sum(d.values(), torch.zeros(()))


def order_ints(x):
    d = {}
    for k, e in enumerate(x):
        if e > 0:
            d[k] = e
    for k, e in enumerate(x):
        if e < 2:
            d[k] = e * 2
    t = torch.zeros(())
    for k, v in d.items():
        t = t * 3 + v * (k + 1)
    return t


def order_words(x):
    d = {}
    for k, e in zip("abc", x):
        if e > 0:
            d[k] = e
    t = torch.zeros(())
    for k, v in d.items():
        t = t * 3 + v * len(k)
    return t


def returned(x):
    d = {}
    for k, e in zip("abc", x):
        if e > 0:
            d[k] = e
    return d


def returned_known(x):
    d = {}
    for k, e in zip("abc", x):
        if e > 0:
            d["z"] = e
        else:
            d["z"] = -e
        d[k] = e * 2
    return d


def keyerror(x):
    d = {}
    if x[0] > 0:
        d["a"] = x
    return d["a"] + 1 if x[0] > -5 else x


def keyerror_caught(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    try:
        return d["a"]
    except KeyError:
        return x.sum()


def keyerror_caught2(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    try:
        v = d["a"]
    except KeyError:
        v = x.sum()
    return v + 1


def del_caught(x):
    d = {"b": x[0]}
    for e in x:
        if e > 0:
            d["a"] = e
    try:
        del d["a"]
    except KeyError:
        return x * 0
    return x + len(d)


def eq_dict(x):
    d = {}
    if x[0] > 0:
        d["a"] = 1
    else:
        d["b"] = 1
    e = {}
    if x[1] > 0:
        e["a"] = 1
    else:
        e["b"] = 1
    return x + 1 if d == e else x


def ne_dict(x):
    d = {"a": 1}
    for k in x:
        if k > 0:
            d["b"] = 2
    return x + 1 if d != {"a": 1} else x


def delete(x):
    d = {"a": x[0], "b": x[1], "c": x[2]}
    for k, e in zip("abc", x):
        if e > 0:
            del d[k]
    return len(d) + sum(d.values(), torch.zeros(()))


def popd(x):
    d = {"a": x[0], "b": x[1]}
    t = torch.zeros(())
    for k, e in zip("ab", x):
        if e > 0:
            t = t + d.pop(k)
    return t + d.pop("a", torch.tensor(100.0)) + len(d)


def popnone(x):
    d = {"a": x[0], "b": x[1]}
    for k, e in zip("ab", x):
        if e > 0:
            del d[k]
    v = d.pop("a", None)
    return x if v is None else x + v


def upd(x):
    d = {"a": x[0]}
    for k, e in zip("ab", x):
        if e > 0:
            d.update({k: e * 2, "c": e})
    return len(d) + d["a"] + d.get("c", torch.tensor(7.0))


def upd_kw(x):
    d = {}
    for e in x:
        if e > 0:
            d.update(a=e)
    return d.get("a", torch.tensor(7.0))


def ior(x):
    d = {}
    for e in x:
        if e > 0:
            d |= {"a": e}
    return d.get("a", torch.tensor(7.0))


def union(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    f = d | {"b": x[0]}
    return f["b"]


def copied(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    f = d.copy()
    g = dict(d)
    h = copy.copy(d)
    if x[0] > 0:
        f["b"] = x[0]
    return len(d) * 100 + len(f) * 10 + len(g) + len(h)


def deepcopied(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    f = copy.deepcopy(d)
    if x[0] > 0:
        f["b"] = x[0]
    return len(d) * 100 + len(f) * 10


def aliased(x):
    d = {}
    f = d
    for e in x:
        if e > 0:
            d["a"] = e
    return len(f) + f.get("a", torch.tensor(3.0))


def alias_is(x):
    d = {}
    f = d
    g = {}
    for e in x:
        if e > 0:
            d["a"] = e
    return x + 1 if f is d and g is not d else x


class InSelf(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = {}

    def forward(self, x):
        self.d.clear()
        for e in x:
            if e > 0:
                self.d["a"] = e
        return self.d.get("a", x[0])


class InSelf2(nn.Module):
    def forward(self, x):
        d = {}
        self.d = d
        for e in x:
            if e > 0:
                d["a"] = e
        return d.get("a", x[0])


def bool_keys(x):
    d = {1: x[0]}
    for e in x:
        if e > 0:
            d[True] = e
    return d[1] + d[1.0] + len(d)


def bool_keys2(x):
    d = {}
    for e in x:
        if e > 0:
            d[True] = e
        else:
            d[0] = e
    return d.get(1, x[0]) + d.get(False, x[1])


def float_keys(x):
    d = {}
    for e in x:
        if e > 0:
            d[0.5] = e
    return d.get(0.5, x[0])


def neg_keys(x):
    d = {}
    for e in x:
        if e > 0:
            d[-1] = e
        else:
            d[-2] = e
    return d.get(-1, x[0]) * 2 + d.get(-2, x[1])


def none_key(x):
    d = {}
    for e in x:
        if e > 0:
            d[None] = e
    return d.get(None, x[0])


def tuple_key(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n, 0] = e
    return d.get((1, 0), x[0])


def tensor_key(x):
    d = {}
    y = x * 2
    for e in x:
        if e > 0:
            d[y] = e
    return d.get(y, x[0]) + (5 if x in d else 0)


def in_and_notin(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    y = x + 1 if "a" in d else x
    return y * 2 if "a" not in d else y


def contains_bool(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    return torch.tensor("a" in d), torch.tensor(bool(d)), torch.tensor(not d)


def truth(x):
    d = {}
    for e in x:
        if e > 0:
            d["a"] = e
    if d:
        return x + 1
    return x


def while_d(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e
    t = torch.zeros(())
    while d:
        k, v = d.popitem()
        t = t * 2 + v
    return t


def inplace_after(x):
    d = {}
    y = x * 1
    if x[0] > 0:
        d["a"] = y
    y.add_(1)
    return d.get("a", x)


def inplace_read(x):
    d = {}
    y = x * 1
    for e in x:
        if e > 0:
            d["a"] = y
    z = d.get("a", x * 2)
    z.add_(1)
    return y


def inplace_read2(x):
    y = x * 1
    d = {"b": y}
    for e in x:
        if e > 0:
            d["a"] = x * 3
    d["b"].add_(1)
    return y


def identity(x):
    y = x * 1
    d = {"b": y}
    for e in x:
        if e > 0:
            d["a"] = x * 3
    return x + 1 if d["b"] is y else x


def hetero(x):
    d = {}
    if x[0] > 0:
        d["a"] = x
    if x[1] > 0:
        d["b"] = 1
    return len(d)


CAPTURED = [
    len_d, sum_values, order_ints, returned_known, keyerror, eq_dict, ne_dict, delete, popd,
    popnone, upd, upd_kw, ior, union, copied, aliased, alias_is, InSelf2(), bool_keys,
    float_keys, neg_keys, none_key, tuple_key, tensor_key, in_and_notin, truth, while_d,
    inplace_after, hetero,
]  # fmt: skip
REFUSED = [
    order_words, returned, keyerror_caught, keyerror_caught2, del_caught, deepcopied, InSelf(),
    bool_keys2, contains_bool, inplace_read, inplace_read2, identity,
]  # fmt: skip
