"""Functions that go over generators, which data leave or let yield: side effects, `finally`, two
loops over one generator, and all else that tells a generator from one that is written out."""

# ruff: noqa: B007
# mypy: ignore-errors

import contextlib
from types import SimpleNamespace

import torch


def halves(x, log=None):
    try:
        for i in range(4):
            x = x / 2
            yield x
    finally:
        if log is not None:
            log.append(i)


def with_finally(x):
    log = []
    for v in halves(x, log):
        if v.abs().sum() < 1:
            break
    return v, torch.tensor(log).sum()


def finally_order(x):
    log = []
    for v in halves(x, log):
        if v.abs().sum() < 1:
            log.append(10)
            break
    log.append(7)
    return (
        v,
        torch.tensor(log[-1]),
    )


def effects_between(x):
    log = [0]

    def gen():
        for i in range(4):
            log[0] += 1
            yield i
            log[0] += 10

    for i in gen():
        if x[i] < 0:
            break
    return x + log[0]


def yields_if(x):
    def kept(x):
        for each in x:
            if each > 0:
                yield each

    total = x.sum() * 0
    for v in kept(x):
        total = total + v * 2
    return total


def yields_if_and_break(x):
    def kept(x):
        for i, each in enumerate(x):
            if each > 0:
                yield i, each

    total = x.sum() * 0
    n = 0
    for i, v in kept(x):
        total = total + v * i
        n += 1
        if total > 2:
            break
    else:
        n += 100
    return total, n


def list_of(x):
    def kept(x):
        for each in x:
            if each > 0:
                yield each * 2

    values = list(kept(x))
    return sum(values, torch.zeros(()))


def sum_of(x):
    def kept(x):
        for each in x:
            if each > 0:
                yield each * 2

    return sum(kept(x), torch.zeros(()))


def comp_of(x):
    def kept(x):
        for each in x:
            if each > 0:
                yield each * 2

    return sum([v + 1 for v in kept(x)], torch.zeros(()))


def sum_genexp(x):
    def kept(x):
        for each in x:
            if each > 0:
                yield each * 2

    return sum((v + 1 for v in kept(x)), torch.zeros(()))


def any_of(x):
    def scores(x):
        for each in x:
            if each > 0:
                yield each * 2

    return x + 1 if any(v > 2 for v in scores(x)) else x - 1


def any_plain(x):
    def scores(x):
        for each in x:
            if each > 0:
                yield each > 1

    return x + 1 if any(scores(x)) else x - 1


def max_of(x):
    def scores(x):
        yield x[0]
        for each in x[1:]:
            if each > 0:
                yield each * 2

    return max(scores(x))


def yield_from_it(x):
    def inner(a):
        for each in a:
            if each > 0:
                yield each

    def outer(x):
        yield from inner(x[:2])
        yield x[0] * 100
        yield from inner(x[2:])

    total = x.sum() * 0
    for v in outer(x):
        total = total * 2 + v
        if total > 50:
            break
    return total


def tree_walk(x):
    tree = ((0, 1), ((2,), 3))

    def walk(node):
        if isinstance(node, int):
            yield x[node]
        else:
            for each in node:
                yield from walk(each)

    total = x.sum() * 0
    for v in walk(tree):
        if v < 0:
            break
        total = total * 2 + v
    return total


def two_loops_one_generator(x):
    g = halves(x)
    for v in g:
        if v.abs().sum() < 1:
            break
    for w in g:
        v = v + w
    return v


def next_then_loop(x):
    g = halves(x)
    first = next(g)
    for v in g:
        if v.abs().sum() < 1:
            break
    return first + v


def loop_then_next(x):
    g = halves(x)
    for v in g:
        if v.abs().sum() < 1:
            break
    return v + next(g, torch.zeros(4))


def held_in_a_variable(x):
    g = halves(x)
    for v in g:
        if v.abs().sum() < 1:
            break
    return v


def held_by_an_object(x):
    h = SimpleNamespace(g=halves(x))
    for v in h.g:
        if v.abs().sum() < 1:
            break
    return v


def passed_on(x):
    def first_small(values):
        for v in values:
            if v.abs().sum() < 1:
                return v
        return x

    return first_small(halves(x))


def passed_through_two(x):
    def doubled(values):
        for v in values:
            yield v * 2

    def shifted(values):
        for v in values:
            yield v + 1

    for v in doubled(shifted(halves(x))):
        if v.sum() < 12:
            break
    return v


def genexp_over_gen(x):
    for v in (v * 2 for v in halves(x) if v.sum() > -3):
        if v.sum() < 3:
            break
    else:
        v = x * 7
    return v


def stored_genexp(x):
    g = (v * 2 for v in halves(x))
    for v in g:
        if v.sum() < 3:
            break
    return v


def raises_in_body(x):
    log = []
    try:
        for v in halves(x, log):
            if v.abs().sum() < 1:
                raise ValueError
            x = x + 1
    except ValueError:
        x = x * 3
    return x


def catches_in_generator(x):
    def gen(x):
        for i in range(4):
            x = x / 2
            try:
                yield x
            except ValueError:
                yield x * 100

    try:
        for v in gen(x):
            if v.abs().sum() < 1:
                break
    except ValueError:
        v = x
    return v


def catches_exit(x):
    log = []

    def gen(x):
        try:
            for i in range(4):
                x = x / 2
                yield x
        except GeneratorExit:
            log.append(1)
            raise

    for v in gen(x):
        if v.abs().sum() < 1:
            break
    return v + len(log)


def within_with(x):
    log = []

    @contextlib.contextmanager
    def noting():
        try:
            yield
            log.append(1)
        except GeneratorExit:
            log.append(2)
            raise

    def gen(x):
        with noting():
            for i in range(4):
                x = x / 2
                yield x

    for v in gen(x):
        if v.abs().sum() < 1:
            break
    return v + sum(log)
