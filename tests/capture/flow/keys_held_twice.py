"""Dicts and sets of which data decide the keys, that have two names or are changed in place, and
loops that change them."""

# mypy: ignore-errors
# ruff: noqa: B007, B905, E741, RUF051, SIM911

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque

import torch


def write_read_after_data_key(x):
    y = x * 1
    d = {0: y}
    k = int(x[0])
    d[k] = x * 3
    d[0].add_(1)
    return y


def write_src_after_data_key(x):
    y = x * 1
    d = {0: y}
    k = int(x[0])
    d[k] = x * 3
    y.add_(1)
    return d[0]


def write_after_pop(x):
    y = x * 1
    d = {0: y, 1: x * 2}
    k = int(x[0])
    if k in d:
        v = d.pop(k)
        v.add_(1)
    return y


def write_after_move(x):
    y = x * 1
    d = OrderedDict([(0, y), (1, x * 2)])
    for e in x:
        if e > 0:
            d.move_to_end(0)
    d[0].mul_(2)
    return y + d[1]


def two_dicts(x):
    y = x * 1
    d = {}
    f = {}
    if x[0] > 0:
        d["a"] = y
        f["a"] = y
    else:
        d["b"] = y
        f["c"] = y
    v = d.get("a", x)
    w = f.get("a", x)
    return v + w + len(d)


def same_object_two_names(x):
    d = {}
    e = {"in": d}
    for t in x:
        if t > 0:
            e["in"]["a"] = t
    return d.get("a", x[0]) + len(d)


def closure(x):
    d = {}

    def add(k, v):
        d[k] = v

    for n, t in enumerate(x):
        if t > 0:
            add(n, t)
    return len(d)


def loop_fresh(x):
    t = x.sum()
    n = 0
    while n < 3:
        d = {}
        if t > n:
            d["a"] = t
        t = t + d.get("a", torch.tensor(-1.0))
        n = n + 1
    return t


def while_hetero(x):
    d = {}
    n = 0
    while n < int(x.abs().sum()):
        d[n % 3] = x * n
        n = n + 1
    return sum(d.values(), torch.zeros(3))


def while_pop(x):
    d = {0: 1, 1: 2, 2: 3}
    n = int(x[0].abs())
    while n < 3:
        if n in d:
            del d[n]
        n += 1
    return torch.tensor([len(d), sum(d.values())])


def while_break(x):
    d = {}
    n = 0
    while True:
        k = int(x[n % 3])
        if k in d or n > 5:
            break
        d[k] = n
        n += 1
    return torch.tensor([n, len(d), d.get(1, -7)])


def order_reinsert(x):
    d = {1: 10, 2: 20, 3: 30}
    for k, e in zip((1, 2, 3), x):
        if e > 0:
            v = d.pop(k)
            d[k] = v + 1
    t = 0
    for k, v in d.items():
        t = t * 100 + k * v
    return t


def overwrite_keeps_order(x):
    d = {}
    for k, e in zip((3, 1, 2), x):
        if e > 0:
            d[k] = 1
    for k in (1, 2, 3):
        d[k] = 5
    t = 0
    for k in d:
        t = t * 10 + k
    return t


def list_keys(x):
    d = {}
    for k, e in zip((3, 1, 2), x):
        if e > 0:
            d[k] = 1
    l = list(d.keys())
    l.append(9)
    return torch.tensor(l).sum()


def zip_dict(x):
    d = {}
    for k, e in zip((3, 1, 2), x):
        if e > 0:
            d[k] = e
    t = x.sum()
    for k, v in zip(d.keys(), d.values()):
        t = t * 2 + k * v
    return t


def next_iter(x):
    d = {7: x[0]}
    for k, e in zip((3, 1, 2), x):
        if e > 0:
            d[k] = e
    return d[next(iter(d))] + next(iter(d.values()))


def compare_views(x):
    d = {}
    for k, e in zip((3, 1, 2), x):
        if e > 0:
            d[k] = e
    return x + 1 if d.keys() == {3, 1} else x


def set_in_loop(x):
    s = set()
    n = 0
    while n < 4:
        s.add(int(x[n % 3]))
        n += 1
    return torch.tensor([len(s), 1 in s, 5 in s])


def set_two_sides(x):
    if x[0] > 0:
        s = {1, 2}
    else:
        s = {3}
    return len(s)


def set_two_sides2(x):
    s = {1}
    if x[0] > 0:
        s |= {2, 3}
    else:
        s -= {1}
    return torch.tensor([len(s), sum(s)])


def set_iand(x):
    s = {1, 2, 3}
    r = s
    if x[0] > 0:
        s &= {2, 3}
    return torch.tensor([len(s), len(r)])


def set_isub_alias(x):
    s = {1, 2, 3}
    r = s
    for e in x:
        if e > 0:
            s.discard(int(e))
    s -= {3}
    return torch.tensor([len(s), len(r)])


def set_ixor_alias(x):
    s = {1, 2, 3}
    r = s
    for e in x:
        if e > 0:
            s.discard(int(e))
    s ^= {3, 8}
    s &= {8, 1}
    return torch.tensor([len(s), len(r)])


def set_method_more(x):
    s = set()
    for e in x:
        if e > 0:
            s.add(int(e))
    s.intersection_update({1, 2})
    return len(s)


def set_difference_update(x):
    s = set()
    for e in x:
        if e > 0:
            s.add(int(e))
    return len(s.difference({1}, {2})) + len(s.union({5}, {6}))


def set_lt(x):
    s = set()
    for e in x:
        if e > 0:
            s.add(int(e))
    return x + 1 if s < {1, 2, 3, 5, 9} else x


def set_copy(x):
    s = set()
    for e in x:
        if e > 0:
            s.add(int(e))
    r = s.copy()
    r.add(77)
    q = set(s)
    q.add(78)
    return torch.tensor([len(s), len(r), len(q)])


def set_clear(x):
    s = {1}
    for e in x:
        if e > 0:
            s.clear()
        s.add(int(e))
    return len(s)


def counter_or(x):
    c = Counter()
    for e in x:
        c[int(e)] += 1
    c.update({1: 5})
    c.update(a=1) if False else None
    return torch.tensor([c[1], c[0], c[-3]])


def counter_neg_most(x):
    c = Counter({0: 0})
    for e in x:
        c[int(e)] -= int(e)
    w, n = c.most_common(1)[0]
    return torch.tensor([w, n, len(c)])


def counter_minus_assign(x):
    c = Counter()
    for e in x:
        c[int(e)] += 1
    c -= Counter([1])
    return c[1]


def counter_plus(x):
    c = Counter()
    for e in x:
        c[int(e)] += 1
    c = +c
    return c[1]


def counter_missing_kind(x):
    c = Counter()
    for e in x:
        c[int(e)] += 0.5
    return c[1] + c[99]


def queue_isinst(x):
    q = deque([x])
    n = 0
    while q and n < 3:
        y = q.popleft()
        n += 1
        if y.sum() > 0:
            q.append(y - 1)
    return x + 1 if isinstance(q, list) else x + len(q)


def iter_nested(x):
    inner = []
    it = iter([inner, [1]])
    if x[0] > 0:
        next(it).append(1)
    return x + len(inner)


def factory_dict(x):
    d = defaultdict(dict)
    for n, e in enumerate(x):
        if e > 0:
            d["p"][n] = e
    return len(d)


def requires_grad_val(x):
    d = {}
    y = x.clone().requires_grad_()
    for e in y:
        if e > 0:
            d["a"] = e * 2
    (g,) = torch.autograd.grad(d.get("a", y.sum()), y)
    return g


def d_as_arg_default(x):
    def f(a, d=None):
        d = {} if d is None else d
        if a > 0:
            d["k"] = a
        return d

    return f(x[0]).get("k", x[1]) + f(x[1], {"k": x[2]})["k"]


def key_from_both(x):
    d = {1: 10, 2: 20}
    k = 1 if x[0] > 0 else 2
    d[k] = 99
    d[k + 1] = 7
    return torch.tensor([d[1], d[2], len(d)])


def get_default_computed(x):
    d = {}
    for e in x:
        if e > 0:
            d[int(e)] = e
    return d.get(1, d.get(2, x.sum()))


def nan_values(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d[n] = e * float("nan")
        else:
            d[n] = -0.0 * e
    return 1 / torch.stack(list(d.values()))


def dtype_mix(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d["a"] = e.double()
        else:
            d["a"] = e
    return d["a"]


def dtype_mix2(x):
    d = {}
    for n, e in enumerate(x):
        if e > 0:
            d["a"] = e.double()
        else:
            d["b"] = e
    return d.get("a", x[0].double())


CAPTURED = [
    two_dicts, same_object_two_names, closure, loop_fresh, while_hetero, while_break,
    order_reinsert, overwrite_keeps_order, list_keys, zip_dict, set_in_loop, set_two_sides,
    set_two_sides2, set_iand, set_isub_alias, set_ixor_alias, set_method_more,
    set_difference_update, set_lt, set_copy, set_clear, counter_or, counter_neg_most,
    queue_isinst, iter_nested, d_as_arg_default, key_from_both, get_default_computed,
    nan_values,
]  # fmt: skip


REFUSED = [
    write_read_after_data_key, write_src_after_data_key, write_after_pop, write_after_move,
    while_pop, next_iter, compare_views, counter_minus_assign, counter_plus,
    counter_missing_kind, factory_dict, requires_grad_val, dtype_mix, dtype_mix2,
]  # fmt: skip
