"""Generators that loops go over in all the ways that Python has."""

# ruff: noqa: B007, B023, B905, C417, UP028
# mypy: ignore-errors

import itertools

import torch

from tests.capture.flow.generators import halves


def sends(x):
    def gen(x):
        while True:
            y = yield x
            if y is None:
                y = 1
            x = x / 2 + y * 0

    for v in gen(x):
        if v.abs().sum() < 1:
            break
    return v


def closure_changed(x):
    scale = 1.0

    def gen():
        for i in range(4):
            yield x * scale

    for v in gen():
        if v.abs().sum() < 1:
            break
        scale = scale / 2
    return v, scale


def nested_loops(x):
    def rows():
        for i in range(2):
            yield x[2 * i : 2 * i + 2]

    def cells(row):
        for each in row:
            yield each

    total = x.sum() * 0
    for row in rows():
        for c in cells(row):
            if c < 0:
                break
            total = total + c
        else:
            total = total + 10
        if total > 15:
            break
    return total


def return_inside(x):
    def cells():
        for i, each in enumerate(x):
            yield i, each

    for i, c in cells():
        if c < 0:
            return i, c * 2
        if c > 5:
            continue
        x = x + 1
    return -1, x.sum()


def return_within_two(x):
    def rows():
        for i in range(2):
            yield x[2 * i : 2 * i + 2]

    for row in rows():
        for c in iter(lambda: row[0], 5):
            if c < 0:
                return c
            break
    return x.sum()


def endless_count(x):
    def steps():
        n = 0
        while True:
            yield n
            n += 1

    for n in steps():
        if x.abs().sum() < 1:
            break
        x = x / 2
    return x, n


def zip_with(x):
    for v, w in zip(halves(x), (1, 2, 3)):
        if v.abs().sum() < 1:
            break
    return v * w


def zip_before(x):
    log = []

    def gen():
        for i in range(4):
            log.append(i)
            yield x / (i + 1)

    for w, v in zip((1, 2), gen()):
        if v.abs().sum() < 1:
            break
    return v * w + len(log)


def zip_after(x):
    log = []

    def gen():
        for i in range(4):
            log.append(i)
            yield x / (i + 1)

    for v, w in zip(gen(), (1, 2)):
        if v.abs().sum() < 1:
            break
    return v * w + len(log)


def islice_of(x):
    for v in itertools.islice(halves(x), 1, 3):
        if v.abs().sum() < 1:
            break
    return v


def takewhile_of(x):
    total = x * 0
    for v in itertools.takewhile(lambda v: v.abs().sum() > 1, halves(x)):
        total = total + v
    return total


def chain_of(x):
    for v in itertools.chain(halves(x), [x * 9], halves(x * 2)):
        if v.abs().sum() < 1:
            break
    return v


def filter_of(x):
    for v in filter(lambda v: v.sum() > 0, halves(x)):
        if v.abs().sum() < 1:
            break
    else:
        v = x * 5
    return v


def map_of(x):
    for v in map(lambda v: v + 1, halves(x)):
        if v.sum() < 5:
            break
    return v


class Iter:
    def __init__(self, x):
        self.x, self.n = x, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 4:
            raise StopIteration
        self.n += 1
        self.x = self.x / 2
        return self.x


def by_hand(x):
    it = Iter(x)
    for v in it:
        if v.abs().sum() < 1:
            break
    return v, it.n


def by_hand_goes_on(x):
    it = Iter(x)
    for v in it:
        if v.abs().sum() < 1:
            break
    for w in it:
        v = v + w
    return v


class Bar:
    def __init__(self, values):
        self.values, self.n = values, 0

    def __iter__(self):
        for v in self.values:
            yield v
            self.n += 1

    def __len__(self):
        return len(self.values)


def bar_enumerated(x):
    bar = Bar(range(5))
    for i, _ in enumerate(bar):
        x = x / 2
        if x.abs().sum() < 1:
            break
    return x, i, bar.n


def bar_over_rows(x):
    bar = Bar(x)
    total = x.sum() * 0
    for v in bar:
        if v < 0:
            continue
        total = total + v
        if total > 3:
            break
    return total, bar.n


def lists_made(x):
    out = []
    for v in halves(x):
        out.append(v.sum())
        if v.abs().sum() < 1:
            break
    return torch.stack(out)


def locals_kept(x):
    for v in halves(x):
        y = v * 2
        z = y + 1
        if z.sum() < 5:
            break
    return z


def inplace_in_generator(x):
    buf = x.clone()

    def gen():
        for i in range(4):
            buf.mul_(0.5)
            yield buf

    for v in gen():
        if v.abs().sum() < 1:
            break
    return buf, v.sum()


def inplace_in_body(x):
    def gen(t):
        for i in range(4):
            yield t
            t.add_(1)

    t = x.clone()
    for v in gen(t):
        v.mul_(0.5)
        if v.abs().sum() < 1:
            break
    return t


def star_args(x):
    def gen(*parts, **named):
        for p in parts:
            yield p * named["k"]

    for v in gen(x, x / 2, x / 8, k=3):
        if v.abs().sum() < 1:
            break
    return v


def lambda_in_body(x):
    fs = []
    for v in halves(x):
        fs.append(lambda: v)
        if v.abs().sum() < 1:
            break
    return fs[0]()


def returns_a_value(x):
    def gen(x):
        for i in range(4):
            x = x / 2
            if i == 3:
                return x
            yield x

    for v in gen(x):
        if v.abs().sum() < 1:
            break
    return v


def stop_iteration_inside(x):
    def gen(x):
        rows = iter((1.0, 2.0))
        while True:
            yield x * next(rows)

    try:
        for v in gen(x):
            if v.abs().sum() < 1:
                break
    except RuntimeError:
        return x * 77
    return v


def method_super(x):
    class A:
        def stages(self, x):
            for i in range(3):
                x = x / 2
                yield x

    class B(A):
        def stages(self, x):
            for v in super().stages(x):
                yield v + 1

        def run(self, x):
            for v in self.stages(x):
                if v.sum() < 4:
                    break
            return v

    return B().run(x)


def tuple_unpacked(x):
    def gen():
        for i in range(4):
            yield i, (x[i], x[i] * 2)

    for i, (a, b) in gen():
        if a < 0:
            break
    return i, a, b


def in_a_while(x):
    n = 0
    while x.abs().sum() > 1:
        for v in halves(x):
            n += 1
            if v.abs().sum() < 20:
                break
        x = v
    return x, n


def in_if(x):
    n = 0
    if x.sum() > 0:
        for v in halves(x):
            n += 1
            if v.abs().sum() < 20:
                break
    else:
        v = x
    return v, n


def walrus(x):
    for v in halves(x):
        if (s := v.abs().sum()) < 1:
            break
    return v, s


def reraised(x):
    def gen():
        for i in range(4):
            if x[i] < 0:
                raise ValueError("negative")
            yield x[i]

    total = x.sum() * 0
    try:
        for v in gen():
            total = total + v
    except ValueError:
        total = total - 1
    return total


def two_generators(x):
    def a():
        for i in range(4):
            yield x[i]

    def b():
        for i in range(4):
            yield x[3 - i]

    total = x.sum() * 0
    for p, q in zip(a(), b()):
        if p < 0:
            break
        total = total + q
    return total


def random_inside(x):
    def gen():
        for i in range(3):
            yield x + torch.rand(4) * 0

    for v in gen():
        if v.abs().sum() < 1:
            break
    return v


def global_names(x):
    for v in _global_gen(x):
        if v.abs().sum() < LIMIT:
            break
    return v


LIMIT = 1
COUNT = 0


def _global_gen(x):
    for i in range(4):
        x = x / 2
        yield x


def list_then_loop(x):
    vs = list(halves(x))
    for v in vs:
        if v.abs().sum() < 1:
            break
    return v, len(vs)


def tuple_gets(x):
    def kept(x):
        for each in x:
            if each > 0:
                yield each * 2

    vs = tuple(kept(x))
    return torch.tensor(len(vs))


def sorted_gets(x):
    def kept(x):
        for each in x:
            if each > 0:
                yield each * 2

    return torch.stack([x[0], *sorted(kept(x))]).sum()


def dict_of(x):
    def gen(x):
        for i, each in enumerate(x):
            if each > 0:
                yield i, each

    total = x.sum() * 0
    for k, v in dict(gen(x)).items():
        total = total + v * k
    return total


def held_finally_later(x):
    log = []
    g = halves(x, log)
    for v in g:
        if v.abs().sum() < 1:
            break
    return v + len(log)


def dunder_next(x):
    g = halves(x)
    while True:
        try:
            v = g.__next__()
        except StopIteration:
            break
        if v.abs().sum() < 1:
            break
    return v


def next_of_gen_default(x):
    def small(x):
        for v in halves(x):
            if v.abs().sum() < 1:
                yield v

    return next(small(x), x)


def loop_in_unhooked_helper(x):
    def total(values):
        s = 0.0
        for v in values:
            s = s + v.sum()
        return s

    def kept(x):
        for each in x:
            if each > 0:
                yield each * 2

    return total(kept(x)) + x.sum()


class Endless:
    def __init__(self, x):
        self.x, self.n = x, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        self.x = self.x / 2
        return self.x


def endless_by_hand(x):
    it = Endless(x)
    for v in it:
        if v.abs().sum() < 1:
            break
    return v, it.n


def goes_on(x):
    it = Endless(x)
    for v in it:
        if v.abs().sum() < 1:
            break
    return v + next(it), it.n


def nested_def(x):
    def outer():
        a = 0

        def inner():
            nonlocal a
            a += 1

        if x.sum() > 0:
            inner()
        return a

    return outer()


a = 7


def not_mine(x):
    if x.sum() > 0:

        def outer():
            a = 0

            def inner():
                nonlocal a
                a += 1

            inner()
            return a

        y = outer()
    else:
        y = a
    return y + a


def over_map(x):
    def f(v):
        return v + 1

    for v in map(f, halves(x)):
        if v.sum() < 5:
            break
    return v


def genexp2(x):
    for v in (v * 2 for v in halves(x)):
        if v.sum() < 5:
            break
    return v


def genexp3(x):
    for i, v in enumerate(v * 2 for v in halves(x)):
        if v.sum() < 5:
            break
    return v, i


def any_map(x):
    def f(v):
        return v > 2

    return x + 1 if any(map(f, x)) else x


def any_map2(x):
    return x + 1 if any(map(lambda v: v > 2, x)) else x


def all_map(x):
    def gen():
        for v in x:
            if v > 0:
                yield v

    return x + 1 if all(map(lambda v: v > 2, gen())) else x


def ctx(x):
    class M:
        def __enter__(self):
            return self

        def __exit__(self, *a):
            return True

    def gen(x):
        with M():
            for i in range(3):
                x = x / 2
                yield x

    for v in gen(x):
        if v.sum() < 5:
            break
    return v


def no_grad(x):
    def gen(x):
        with torch.no_grad():
            for i in range(3):
                x = x / 2
                yield x

    for v in gen(x):
        if v.sum() < 5:
            break
    return v


def any_of_all(x):
    def gen():
        for each in x:
            yield each * 2

    return x + 1 if any(t > 2 for t in gen()) else x


def leaves_from_a_function(x):
    log = []

    def first_small(values):
        for v in values:
            if v.abs().sum() < 1:
                return v
        return x

    v = first_small(halves(x, log))
    return v + len(log)


def leaves_within_finally(x):
    log, order = [], []

    def first_small(values):
        try:
            for v in values:
                if v.abs().sum() < 1:
                    return v
            return x
        finally:
            order.append(len(log))

    v = first_small(halves(x, log))
    return v + order[0]
