"""Dicts, sets and counters whose keys are numbers of data."""

# mypy: ignore-errors
# ruff: noqa: B007, B905, C406, RUF015, RUF051, SIM118

from __future__ import annotations

from collections import Counter, defaultdict

import torch


def count_plain(ids):
    c = {}
    for t in ids:
        k = int(t)
        c[k] = c.get(k, 0) + 1
    s = 0
    for k, v in c.items():
        s = s * 3 + k * v
    return s


def count_in(ids):
    c = {}
    for t in ids.tolist():
        if t in c:
            c[t] += 1
        else:
            c[t] = 1
    return len(c), torch.tensor(max(c.values()))


def count_dd(ids):
    c = defaultdict(int)
    for t in ids.tolist():
        c[t] += 1
    return torch.tensor([c[k] for k in range(3)])


def count_item(ids):
    c = defaultdict(int)
    for t in ids:
        c[t.item()] += 1
    return len(c)


def counter_update(ids):
    c = Counter()
    c.update(ids.tolist())
    c.update([0, 1])
    return torch.tensor([c[0], c[1], c[2]])


def counter_inc(ids):
    c = Counter()
    for t in ids.tolist():
        c[t] += 1
    w, n = c.most_common(1)[0]
    return torch.tensor([w, n, c.total(), len(c)])


def counter_most2(ids):
    c = Counter(ids.tolist())
    (a, b) = c.most_common()[0], c.most_common()[-1]
    return torch.tensor([*a, *b])


def counter_items(ids):
    c = Counter(ids.tolist())
    s = 0
    for k, v in c.items():
        s = s * 5 + k * v
    return s


def counter_maxget(ids):
    c = Counter(ids.tolist())
    return torch.tensor(max(c, key=c.get)), torch.tensor(max(c.values())), sum(c.values())


def counter_words(ids):
    c = Counter("a" if t > 0 else "b" for t in ids)
    return torch.tensor([c["a"], c["b"], c["z"]])


def counter_add(ids):
    c = Counter(ids.tolist()) + Counter([1, 2])
    return c[1]


def counter_sub(ids):
    c = Counter(ids.tolist())
    c.subtract([1])
    return c[1]


def counter_eq(ids):
    return torch.tensor(Counter(ids[:2].tolist()) == Counter(ids[2:].tolist()))


def counter_del(ids):
    c = Counter(ids.tolist())
    del c[0]
    return len(c)


def counter_float(ids):
    c = Counter((ids * 0.5).tolist())
    return len(c)


def set_len(ids):
    return len(set(ids.tolist())), torch.tensor(len(set(ids.tolist())) == len(ids))


def set_in(ids):
    s = set()
    n = 0
    for t in ids.tolist():
        if t in s:
            n += 1
        s.add(t)
    return torch.tensor(n)


def set_dedup(ids):
    s = set()
    out = []
    for t in ids.tolist():
        if t not in s:
            s.add(t)
            out.append(t)
    return torch.tensor(out)


def set_one_side(ids):
    s = set()
    for n, t in enumerate(ids):
        if t > 1:
            s.add(n)
    return len(s) + (10 if 1 in s else 0)


def set_words(ids):
    s = set()
    for n, t in enumerate(ids):
        s.add("big" if t > 1 else "small") if n else None
    return len(s)


def set_words2(ids):
    s = set()
    for n, t in enumerate(ids):
        if t > 1:
            s.add("big")
        else:
            s.add("small")
    return len(s) + (10 if "big" in s else 0)


def set_iter(ids):
    s = set(ids.tolist())
    t = 0
    for k in s:
        t = t * 3 + k
    return t


def set_sorted(ids):
    t = 0
    for k in sorted(set(ids.tolist())):
        t = t * 5 + k
    return t


def set_sorted_rev(ids):
    t = 0
    for k in sorted(set(ids.tolist()), reverse=True):
        t = t * 5 + k
    return t


def set_minmax(ids):
    s = set(ids.tolist())
    return torch.tensor([min(s), max(s), sum(s)])


def set_key(ids):
    s = set(ids.tolist())
    return max(s, key=lambda v: v * v)


def set_ops(ids):
    a = set(ids[:2].tolist())
    b = set(ids[2:].tolist())
    return torch.tensor([len(a & b), len(a | b), len(a - b), len(a ^ b)]), torch.tensor(
        [a <= b, a == b, a.isdisjoint(b), a != b]
    )


def set_ops_plain(ids):
    a = set(ids.tolist())
    b = {0, 1}
    return torch.tensor([len(a & b), len(a | b), len(b - a), len(b | a), len(b & a)])


def set_plain_le(ids):
    a = set(ids.tolist())
    return torch.tensor([{0, 1} <= a, a <= {0, 1, 2}, {0, 1, 2, 3} >= a, {1} == a])


def set_remove(ids):
    a = set(ids.tolist())
    a.discard(0)
    a.discard(7)
    return len(a)


def set_remove_err(ids):
    a = set(ids.tolist())
    a.remove(1)
    return len(a)


def set_pop(ids):
    a = set(ids.tolist())
    return a.pop()


def set_list(ids):
    return list(set(ids.tolist()))[0]


def set_returned(ids):
    return set(ids.tolist())


def set_update(ids):
    a = {5}
    a.update(ids.tolist())
    a |= {1, 9}
    return len(a)


def set_lit(ids):
    a = {int(ids[0]), int(ids[1])}
    return len(a)


def set_comp(ids):
    a = {int(t) for t in ids}
    return len(a)


def dict_comp(ids):
    d = {int(t): n for n, t in enumerate(ids)}
    return d.get(1, -1)


def frozen(ids):
    return len(frozenset(ids.tolist()))


def dict_pairs(ids):
    d = dict(zip(ids.tolist(), range(4)))
    return torch.tensor([d.get(1, -1), d.get(0, -1)])


def dict_pairs2(ids):
    d = dict([(int(ids[0]), 1), (int(ids[1]), 2)])
    return torch.tensor([d.get(1, -1), d.get(0, -1), len(d)])


def index_of(ids):
    seen = {}
    for n, t in enumerate(ids.tolist()):
        if t not in seen:
            seen[t] = n
    return torch.tensor([seen.get(k, -1) for k in range(4)])


def two_sum(ids):
    seen = {}
    for n, t in enumerate(ids.tolist()):
        if 3 - t in seen:
            return torch.tensor([seen[3 - t], n])
        seen[t] = n
    return torch.tensor([-1, -1])


def two_sum_while(ids):
    seen = {}
    n = 0
    while n < len(ids):
        t = int(ids[n])
        if 3 - t in seen:
            break
        seen[t] = n
        n += 1
    return torch.tensor([n, len(seen)])


def bfs(ids):
    dist = {0: 0}
    queue = [0]
    while queue:
        v = queue.pop(0)
        w = int(ids[v].abs() % 4)
        if w not in dist:
            dist[w] = dist[v] + 1
            queue.append(w)
    return torch.tensor([dist.get(k, -1) for k in range(4)])


def visited(ids):
    seen = set()
    v = 0
    while v not in seen:
        seen.add(v)
        v = int(ids[v].abs() % 4)
    return torch.tensor([v, len(seen)])


def memo(ids):
    memo = {0: 0, 1: 1}

    def fib(n):
        if n not in memo:
            memo[n] = fib(n - 1) + fib(n - 2)
        return memo[n]

    return fib(int(ids[0].abs())) if ids[0] > 1 else memo[1]


def collatz(ids):
    seen = set()
    n = int(ids[0].abs()) + 1
    while n not in seen and n < 1000:
        seen.add(n)
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return len(seen)


def dictvals_tensor(ids):
    d = {}
    for n, t in enumerate(ids.tolist()):
        d[t] = torch.ones(2) * n
    return d.get(1, torch.zeros(2)), torch.stack(list(d.values())).sum(0)


def setdefault_data(ids):
    d = {}
    for n, t in enumerate(ids.tolist()):
        d.setdefault(t, n)
    return torch.tensor([d.get(k, -1) for k in range(4)])


def pop_data(ids):
    d = {0: 10, 1: 11, 2: 12, 3: 13}
    for t in ids.tolist():
        d.pop(t, None)
    return len(d) + sum(d.values())


def del_data(ids):
    d = {0: 10, 1: 11, 2: 12, 3: 13}
    k = int(ids[0])
    if k in d:
        del d[k]
    return len(d) + sum(d.values())


def mixed_keys(ids):
    d = {"a": 1}
    d[int(ids[0])] = 2
    return len(d)


def tuple_data(ids):
    d = {}
    d[int(ids[0]), int(ids[1])] = 2
    return len(d)


def bool_data(ids):
    d = {}
    d[bool(ids[0] > 0)] = 5
    return d.get(True, 0)


def bool_lookup(ids):
    d = {}
    for t in ids.tolist():
        d[t] = t + 5
    return d.get(True, 0) + d.get(0.0, 0) + d.get(False, 0)


def str_of(ids):
    d = {}
    d[str(int(ids[0]))] = 5
    return d.get("1", 0)


def keys_view_ops(ids):
    d = {}
    for t in ids.tolist():
        d[t] = 1
    return len(d.keys() & {0, 1})


def view_in(ids):
    d = {}
    for t in ids.tolist():
        d[t] = t * 2
    return torch.tensor([1 in d.keys(), 4 in d.values(), (1, 2) in d.items()])


def pytree_d(ids):
    import torch.utils._pytree as pytree

    d = {}
    for t in ids:
        if t > 1:
            d["a"] = t
    return sum(pytree.tree_leaves(d), torch.zeros(()))


def pytree_closed(ids):
    import torch.utils._pytree as pytree

    d = {}
    for t in ids:
        if t > 1:
            d["a"] = t
        else:
            d["a"] = -t
        d["b"] = t
    m = pytree.tree_map(lambda v: v * 2, d)
    return m["a"] + m["b"]


def torch_fn(ids):
    d = {}
    for n, t in enumerate(ids):
        if t > 1:
            d[n] = t
    return torch.stack(tuple(d.values())).sum() if len(d) > 0 else ids.sum()


def inverted(ids):
    d = {}
    for n, t in enumerate(ids.tolist()):
        d[t] = n
    e = {v: k for k, v in d.items()}
    return e.get(0, -9)


def sorted_by_val(ids):
    c = Counter(ids.tolist())
    return torch.tensor(sorted(c.items(), key=lambda kv: -kv[1])[0])


def loop_update_while_iter(ids):
    d = {}
    for n, t in enumerate(ids.tolist()):
        d[t] = n
    for k in d:
        d[k] += 1
    return sum(d.values())


def loop_insert_while_iter(ids):
    d = {}
    for n, t in enumerate(ids.tolist()):
        d[t] = n
    for k in d:
        d[k + 10] = 1
    return sum(d.values())


CAPTURED = [
    count_plain, count_in, count_dd, count_item, counter_update, counter_inc, counter_most2,
    counter_items, counter_maxget, counter_del, set_len, set_in, set_dedup,
    set_one_side, set_words, set_words2, set_sorted, set_sorted_rev, set_minmax, set_ops,
    set_ops_plain, set_plain_le, set_remove, set_remove_err, set_update, dict_pairs,
    dict_pairs2, index_of, two_sum, two_sum_while, bfs, visited, collatz, dictvals_tensor,
    setdefault_data, pop_data, mixed_keys, bool_lookup, pytree_closed, torch_fn, sorted_by_val,
]  # fmt: skip
REFUSED = [
    counter_words, counter_add, counter_sub, counter_eq, counter_float, set_iter, set_key, set_pop,
    set_list, set_returned, set_lit, set_comp, dict_comp, frozen, memo, del_data, tuple_data,
    bool_data, str_of, keys_view_ops, view_in, pytree_d, inverted, loop_update_while_iter,
    loop_insert_while_iter,
]  # fmt: skip
