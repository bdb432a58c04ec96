"""Generators with more in them than loops."""

# ruff: noqa: B007, B023, UP028
# mypy: ignore-errors

import functools

import torch
from torch import nn


def nonlocal_in_gen(x):
    n = 0

    def gen():
        nonlocal n
        for i in range(4):
            n += 1
            yield x[i] * n

    total = x.sum() * 0
    for v in gen():
        if v < 0:
            break
        total = total + v * n
    return total, n


def default_args(x):
    def gen(a, b=2, *, c=x * 3):
        yield a
        yield a * b
        yield c

    for v in gen(x):
        if v.sum() > 30:
            break
    return v


def while_else(x):
    def gen():
        i = 0
        while i < 3:
            yield x[i]
            i += 1
        else:
            yield x.sum()

    for v in gen():
        if v > 5:
            break
    return v


def closures_late(x):
    def gen():
        for i in range(3):
            yield lambda: x[i]

    out = x.sum() * 0
    for f in gen():
        if f() < 0:
            break
        out = out + f()
    return out


def rebinding_target(x):
    def gen():
        for i in range(4):
            yield i

    i = 10
    for i in gen():
        i = i * 2
        if x[i // 2] < 0:
            break
    return i, x[0]


def del_in_body(x):
    def gen():
        for i in range(4):
            yield x[i]

    s = x.sum() * 0
    for v in gen():
        w = v * 2
        if w < 0:
            break
        s = s + w
        del w
    return s


def conditional_first(x):
    def gen():
        if x.sum() > 0:
            yield x * 2
        yield x * 3

    for v in gen():
        break
    return v


def conditional_both(x):
    def gen():
        if x.sum() > 0:
            yield x * 2
        else:
            yield x * 3
            yield x * 4

    s = x * 0
    for v in gen():
        s = s * 2 + v
    return s


def data_while(x):
    def gen(x):
        while x.abs().sum() > 1:
            x = x / 2
            yield x

    s = x * 0
    n = 0
    for v in gen(x):
        s = s + v
        n += 1
        if n == 5:
            break
    return s, n


def data_while_continue(x):
    def gen(x):
        while x.abs().sum() > 1:
            x = x / 2
            yield x

    s = x * 0
    for v in gen(x):
        if v.sum() < 2:
            continue
        s = s + v
    return s


def in_comprehension_if(x):
    def gen():
        for i in range(4):
            if x[i] > 1:
                yield i

    return torch.tensor(len([i for i in gen() if x[i] < 5]))


def max_default(x):
    def gen():
        for v in x:
            if v > 100:
                yield v

    return max(gen(), default=torch.tensor(-5.0))


def all_gen(x):
    def gen():
        for v in x:
            if v != 0:
                yield v > 0

    return x if all(gen()) else -x


def contains(x):
    def gen():
        for i in range(4):
            if x[i] > 1:
                yield i

    return x if 2 in gen() else -x


def unpack(x):
    def gen():
        yield x[0]
        if x[1] > 0:
            yield x[1]
        else:
            yield x[2]

    a, b = gen()
    return a + b


def star_call(x):
    def gen():
        for v in x:
            if v > 0:
                yield v

    return torch.tensor(max(0, *[1 for _ in gen()]))


class Mod(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.n = 0

    def stages(self, x):
        for i in range(4):
            self.seen += 1
            x = x / 2
            yield x

    def forward(self, x):
        for v in self.stages(x):
            if v.abs().sum() < 1:
                break
        return v, self.seen.clone()


def module(x):
    return Mod()(x)


class Mod2(Mod):
    def stages(self, x):
        for i in range(4):
            self.n += 1
            x = x / 2
            yield x


def attribute(x):
    m = Mod2()
    for v in m.stages(x):
        if v.abs().sum() < 1:
            break
    return v, m.n


def finally_value(x):
    log = [0]

    def gen():
        i = -1
        try:
            for i in range(4):
                yield x[i]
        finally:
            log[0] = i

    s = x.sum() * 0
    for v in gen():
        if v < 0:
            break
        s = s + v
    return s, log[0]


def two_finallys(x):
    log = []

    def inner():
        try:
            for i in range(4):
                yield x[i]
        finally:
            log.append(1)

    def outer():
        try:
            for v in inner():
                yield v * 2
        finally:
            log.append(2)

    for v in outer():
        if v < 0:
            break
    return v + log[0] * 10 + log[1]


def nested_def_in_body(x):
    def gen():
        for i in range(4):
            yield x[i]

    s = x.sum() * 0
    for v in gen():

        def f(t):
            return t * v

        if f(2) < 0:
            break
        s = s + f(3)
    return s


def same_gen_twice(x):
    def gen(x):
        for i in range(3):
            x = x / 2
            yield x

    for v in gen(x):
        if v.abs().sum() < 5:
            break
    for w in gen(v):
        if w.abs().sum() < 1:
            break
    return v + w


def gen_in_gen_loop_break(x):
    def inner(a):
        for i in range(3):
            yield a + i

    def outer():
        for each in x:
            for v in inner(each):
                if v > 3:
                    break
            yield v

    s = x.sum() * 0
    for v in outer():
        s = s * 2 + v
        if v < 0:
            break
    return s


def locals_seen(x):
    def gen():
        for i in range(3):
            yield x[i]

    g = gen()
    for v in g:
        if v < 0:
            break
    return v, len(locals())


def exhausted_then_asked(x):
    def gen():
        for i in range(3):
            if x[i] > 0:
                yield x[i]

    g = gen()
    s = x.sum() * 0
    for v in g:
        s = s + v
    return s, len(list(g))


def recursion(x):
    def walk(d, v):
        if d == 0:
            if v > 0:
                yield v
            return
        yield from walk(d - 1, v)
        yield from walk(d - 1, v + x[d])

    s = x.sum() * 0
    for v in walk(2, x[0]):
        s = s * 2 + v
        if s > 20:
            break
    return s


def reduce_gen(x):
    def gen():
        for v in x:
            if v > 0:
                yield v

    return functools.reduce(lambda a, b: a * 2 + b, gen(), torch.zeros(()))


def str_join(x):
    def gen():
        for v in x:
            if v > 0:
                yield "a"

    return x + len("".join(gen()))


def writes_arg(x):
    out = torch.zeros(4)

    def gen():
        for i in range(4):
            if x[i] > 0:
                yield i

    for i in gen():
        out[i] = x[i] * 2
    return out


def appends(x):
    out = [x[0]]

    def gen():
        for i in range(4):
            if x[i] > 0:
                yield i

    for i in gen():
        out.append(x[i] * 2)
        if x[i] > 5:
            break
    return torch.stack(out)


def gen_arg_gen_list(x):
    def numbers(n):
        for i in range(n):
            yield i

    def doubled(g):
        for v in g:
            yield v * 2

    s = 0
    for v in doubled(numbers(4)):
        if x[v // 2] < 0:
            break
        s += v
    return x + s
