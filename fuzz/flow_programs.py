"""Random Python with control flow on data: what its statements are, and how they are put together.

A kind of programs is a table of texts. In a text `<c>` is a condition, `<v>` a value like x, `<t>`
a tensor that there is, `<o>` one that is closed over, `<w>` one of x, y and z, `<i>` a small
number, `<own>` a name of the statement's own; `<c2>` and `<c3>` are conditions that are a truth
and a tensor. A line `...` is a block of statements. Must not run anything.

    plain       nested `if`, loops, early exits, lists, dictionaries, objects, writes in place
    identity    `is` on truths and numbers that data decide
    patterns    `match` on these, on tuples and objects of them
    numbers     what Python computes of truths and numbers
    enums       numbers that are more than numbers, chosen by data
    attributes  Python attributes of tensors
    ties        buffers that become one tensor; the best so far; what Python counts beside them
    cache       a dictionary argument that carries state from call to call
    operators   torch.cond and its like over closures, and the gradients through them
    errors      exceptions that data raise, and the module catches
    pinned      numbers of rows that data decide, and that are known inside of a branch
    beside      `and` and `or` whose sides append and pop
    memos       functions with a cache, and what users keep in its place
    unwinding   exceptions of all classes, and what `finally` and `with` do about them
    iterators   iterators that sides advance, and generators that are left
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What is in programs of one kind beside what is in all of them."""

    first: tuple[str, ...] = ()
    """Statements before all others."""
    values: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    helpers: str = ""
    """Functions beside the module's."""
    share: float = 0.6
    """So often it is taken rather than what is in all of them."""


_FIRST = ("z = x * y", "l = [x]", "n = 0", "k = 'a'", "flag = False", "b = Box(y)", "d = {'k': z}")
_TENSORS = ("x", "y", "z", "b.v", "self.t", "l[0]")
_CLOSED_OVER = ("x", "y", "z", "u", "h", "self.w", "self.t", "self.u")
_VALUES = {
    **dict.fromkeys(
        (
            "x + y", "y * 2", "z - x", "x.cos()", "x + 1", "y - z", "z * 0.5", "l[-1] + x", "b.v + y",
            "d['k'] - x", "self.t + x", "x + n", "x.clone()", "y",
        ), 5.6,
    ),
    "<v> if <c> else <v>": 10,
    "sum([t if t[0] > 0 else <v> for t in (x, y)])": 2,
    "x * max(<t>.sum(), y[0])": 2,
    "x + (<t>.sum() > 0 and y[0] > 0)": 2,
    "x * (not <c>)": 2,
    "(lambda t: t + y if t[0] > <i> else <v>)(<v>)": 0.6,
    "x + sum(1 for t in x if t > <i>) + len([t for t in y if t > <i>])": 0.6,
    "x + next((t for t in y if t > <i>), z[0])": 0.6,
    "x * max(*y, z[0]) - min(x, key=lambda t: -t)": 0.6,
    "torch.stack(sorted(x))": 0.6,
    "<v> + sum(t if t > <i> else x[0] for t in y)": 0.6,
    "torch.stack([*map(lambda t: t if t > <i> else -t, x)]) + <v>": 0.6,
}  # fmt: skip
_CONDITIONS = {
    "<t>.sum() > <i>": 24, "<t>.sum() < <i>": 22, "not <t>.sum() > <i>": 8,
    "n % 2 == 0": 4, "n > 1": 4, "len(l) > 1": 4, "k == 'a'": 4, "flag": 4,
    "<c> and <c>": 7, "<c> or <c>": 7, "-1 < <t>.sum() < 1": 2, "-1 < <t>.sum() < x[0]": 2,
    "any(t[0] > n for t in (x, y, z))": 2, "all(t[0] > n for t in (x, y, z))": 2,
    "torch.equal(x, y)": 1, "x.allclose(z, atol=1)": 1, "torch.is_nonzero(z[0])": 1,
}  # fmt: skip
_STATEMENTS = {
    "<w> = <v>": 34, "l[0] = <v>": 5, "b.v = <v>": 3, "d['k'] = <v>": 3, "self.t = <v>": 3,
    "n += 1": 2, "k = 'a'": 2, "k = 'b'": 1, "flag = not flag": 2,
    "<w> = <w>.clone()\n<w>.add_(1)": 1.4, "<w> = <w>.clone()\n<w>.mul_(2)": 1.4,
    "<w> = <w>.clone()\n<w>[0] = 3.0": 1.4,
    "if <c>:\n    ...": 12, "if <c>:\n    ...\nelse:\n    ...": 12,
    "for <own> in range(<i>):\n    ...": 5, "for <own> in range(<i>):\n    ...\nelse:\n    ...": 1,
    "<own> = torch.zeros(())\nwhile <own> < 3:\n    <own> = <own> + 1\n    ...": 1,
    "<own> = torch.zeros(())\nwhile <own> < x.sum():\n    <own> = <own> + 1\n    if <own> > 6: break\n    ...": 2,
    "for t in (u if u > 0 else y[0] for u in x):\n    x = <v> + t": 0.5,
    "match n:\n    case 0 if <c>:\n        ...\n    case k0 if <c>:\n        ...": 0.5,
    "with torch.no_grad():\n    ...": 1, "return <v>, l, n": 4, "x, y = y, x": 2,
}  # fmt: skip
_OUTSIDE_LOOPS = {"l.append(<v>)": 1}
_INSIDE_LOOPS = {"break": 1, "continue": 1}

_ASKED = (
    "p = bool(<t>.sum() > <i>)", "q = (<t>[0] > <i>).item()", "c = int(<t>.sum())",
    "r = <t>.sum().item()",
)  # fmt: skip
"""Truths and numbers that data decide."""
_AGAIN = (
    "p = bool(<c>)", "q = <t>.max().item() > <i>", "c = c + 1", "c = int(<t>[-1])", "p = not p",
    "p, q = q, p", "p = p and q", "c = 1 if <c> else c", "r = r * 0.5", "p = True", "p = c > <i>",
    "if <c>:\n    p = <c2>\nelse:\n    q = <c2>",
)  # fmt: skip

KINDS = {
    "plain": Kind(results=("l", "b.v", "d", "self.t", "k", "flag"), share=0),
    "identity": Kind(
        first=(*_ASKED, "last = -1"),
        conditions=(
            "p is True", "p is not True", "p is False", "p is not False", "p is q", "q is not p", "p is None",
            "(<c>) is True", "bool(<c>) is True", "bool(<c>) is not False", "c is 1", "c is not 0", "c is last",
            "last is not c", "p in [True]", "p in (None, False)", "q not in [False]", "c in [0, 1]", "p is (not q)",
            "(p, q) == (True, False)", "[p, q] == [q, p]", "type(p) is bool", "isinstance(c, int)", "p == True",
            "any(v is True for v in (p, q))", "all(v is not False for v in [p, q])", "(c > 0) is True",
            "{True: q, False: p}[p] is True", "(lambda v: v is True)(p)", "(p and q) is True", "(c == 1) is not False",
            "(not p) is True", "next((v for v in (p, q) if v is not False), None) is True", "is_true(q)",
            "[p, q].count(True) == 1", "self.is_true(p)", "b.v is y", "z is x", "n is 1", "self.last is p",
            "(p or None) is None", "(q if p else None) is True", "p is not None and q is True", "r is c", "(p is True) is q",
            "c is n", "[*map(is_true, (p, q))] == [True, False]", "p is q is True", "operator.is_(p, True)",
            "True in {p, q}", "[v for v in (p, q) if v is True] == [True]", "d.get('p') is True", "id(p) == id(True)",
        ),
        values=(
            "x + (p is True)", "x * (1 if q is not False else 2)", "y if p is q else x", "x * (c is 1)", "x + c",
            "x + [v is True for v in (p, q)].count(True)", "x + sum(v is True for v in (p, q))", "x + is_true(p)",
            "x if (v := bool(<c>)) is True else y + v", "x * [1, 2][p is True]", "y - (c is not last)",
        ),
        statements=(
            *_AGAIN, "last = c", "last = 1", "self.last = p", "assert p is not None", "d['p'] = p",
            "if p is True:\n    ...\nelse:\n    ...", "if c is 0:\n    ...\nelif c is 1:\n    ...",
            "while c is not 3:\n    c = c + 1 if c < 3 else 3\n    ...", "found = None\nfor v in (p, q):\n    if v is True: found = v\nif found is True:\n    ...",
            "while p is True:\n    p = bool(x.sum() > 9)\n    ...",
            "for <own> in range(3):\n    if (x[0] > <own>) is True or bool(x[0] > <own>) is True: break\n    ...",
            "if q is not False: return <v>, l, n", "v = None if <c> else 1\nif v is None:\n    ...",
        ),
        results=("p", "q", "c"),
        helpers="def is_true(v):\n    if v is True:\n        return True\n    return False\n",
    ),
    "patterns": Kind(
        first=(*_ASKED, "s = Pair(p, c)"),
        conditions=("match_truth(p) == 1", "match_pair(p, q) > 2", "match_number(c) == 1", "match_object(s) == 1"),
        values=(
            "x + match_truth(p)", "x * match_pair(p, q)", "y + match_number(c)", "x - match_object(s)",
            "x + match_truth(<c2>)", "z * match_number(r)", "x + match_number(p)",
        ),
        statements=(
            *_AGAIN, "s = Pair(q, c)", "s.one = p",
            "match p:\n    case True:\n        ...\n    case False:\n        ...",
            "match p:\n    case False:\n        ...\n    case _:\n        ...",
            "match p, q:\n    case (True, False):\n        ...\n    case (False, True):\n        ...\n    case _:\n        ...",
            "match [p, q]:\n    case [True, *_]:\n        ...\n    case [_, True]:\n        ...",
            "match c:\n    case 0 | 1:\n        ...\n    case -1:\n        ...\n    case int(v) if v > 2:\n        ...\n    case _:\n        ...",
            "match {'a': p, 'b': c}:\n    case {'a': True, 'b': 1}:\n        ...\n    case {'a': False}:\n        ...",
            "match s:\n    case Pair(one=True):\n        ...\n    case Pair(one=False, other=1):\n        ...",
            "match s:\n    case Pair(True, 1):\n        ...\n    case Pair(v, 0 | 2):\n        x = x + v",
            "match bool(<c>):\n    case True if p is True:\n        ...\n    case False:\n        ...",
            "match (x, p):\n    case (t, True):\n        x = t + 1\n    case (t, v):\n        x = t * 2 + v",
            "match p:\n    case bool():\n        ...\n    case None:\n        ...", "match p:\n    case 1:\n        ...\n    case 0:\n        ...",
            "match r:\n    case 0.0 | 1.0:\n        ...\n    case float(v):\n        x = x + v",
            "match None if <c> else c:\n    case None:\n        ...\n    case 1:\n        ...",
            "for v in (p, q):\n    match v:\n        case True:\n            ...\n        case False:\n            ...",
        ),
        results=("p", "c"),
        helpers="""
def match_truth(v):
    match v:
        case True:
            return 1
        case False | None:
            return 2
    return 3

def match_pair(v, w):
    match (v, w):
        case (True, True):
            return 4
        case (True, False):
            return 3
        case (False, _):
            return 2
    return 1

def match_number(v):
    match v:
        case 0 | 2:
            return 1
        case True:
            return 2
        case int() if v > 3:
            return 3
        case float():
            return 4
    return 5

def match_object(v):
    match v:
        case Pair(True, _):
            return 1
        case Pair(one=False, other=0):
            return 2
        case _:
            return 3
""",
    ),
    "numbers": Kind(
        first=_ASKED,
        conditions=(
            "p ^ q", "p & q", "p | q", "(p ^ q) is True", "c & 1", "~c < -1", "-p < q", "c % 3 == 1", "divmod(c, 2)[1]", "p > q",
            "pow(c, 2, 5) > 1", "math.isclose(r, c)", "math.floor(r) == c", "c.bit_length() > 1", "r.is_integer()",
            "math.copysign(1, r) > 0", "round(r) == c", "abs(c) > 1", "min(c, 2) == 2", "sum([p, q]) == 1", "c << 1 > 2",
            "max(p, q)", "range(3).count(c)", "c in range(3)", "sorted([c, 1])[0] == 1", "bool(c)", "math.isnan(r)", "c == r", "0 < c <= 2",
        ),
        values=(
            "x + -p", "x * ~p", "x + (p ^ q)", "x + (p | q)", "x * (p + q)", "x + pow(c, 3, 11)", "x + math.sqrt(abs(r))", "x * np.sqrt(abs(c))",
            "x + math.floor(r)", "x + round(r)", "x + c // 2", "x + c % 3", "x + math.gcd(c, 6)", "x + float(c)", "x + int(r)", "x * (c ** 2)",
            "x + math.trunc(r)", "x + math.hypot(r, 1)", "x + math.comb(abs(c), 1)", "x + np.clip(c, 0, 2)", "x + max(c, 1)", "x + min(r, c)",
            "x + abs(r)", "x + sum([c, p, 1])", "x + divmod(c, 2)[0]", "x + c.bit_length()", "x + r.__abs__()", "x + (c << 1)", "x + (c >> 1)",
            "x + (c & 3)", "x + (c | 1)", "x + (c ^ 1)", "x + ~c", "x + torch.tensor(c)", "x * torch.tensor([c, 1])", "x + torch.tensor(np.array([c]))",
            "x + np.float64(r)", "x * np.minimum(c, 2)", "x[: c % 3].sum() + y", "x + [1, 2, 3][c % 3]", "x + len(range(c))", "x + math.prod([c, 2])",
            "x + statistics.mean([c, 1])", "x * (r > 0) + p", "x + sum(itertools.islice(x, c % 3))", "x + operator.index(c)", "x * complex(r, 0).real",
            "x + Fraction(c, 2)", "x + float(Decimal(c))", "x + len(json.dumps(c)) * 0", "x + torch.full((2,), c)", "x.roll(c)", "x + torch.arange(2) * c",
            "x * math.exp(min(r, 1))", "x + (+p)", "x + (p - q)", "x + p * 2", "x + math.fsum([r, 1])", "x + int(f'{c}')", "x + math.ceil(r)",
        ),
        statements=(*_AGAIN, "c -= 1", "r = r + c", "c = c * 2 % 5", "c |= 1", "p ^= q", "p &= q", "r = float(c)", "c = round(r)", "r /= 2"),
        results=("p", "c", "r"),
    ),
    "enums": Kind(
        first=(
            "m, f, e, g, p, q = Mode.IDLE, Flags.A, Color.RED, Count(1), True, False", *_ASKED,
            "m = Mode.UP if <c> else Mode.DOWN",
        ),
        conditions=(
            "m is Mode.UP", "m == Mode.UP", "m is not Mode.DOWN", "m.name == 'UP'", "m.value == 1", "m > 0", "m in (Mode.UP, Mode.IDLE)", "m != 2",
            "isinstance(m, Mode)", "type(m) is Mode", "Flags.B in f", "f & Flags.A", "f == Flags.A", "e is Color.RED", "e == Color.BLUE", "m is p",
            "self.mode is Mode.UP", "self.mode == m", "m.is_moving()", "type(g) is Count", "g > 1", "g.twice() > 2", "isinstance(f, Flags)", "m is self.mode",
            "Mode(m) is m", "e.name == 'RED'", "next_of(m) is Mode.UP", "match_mode(m) == 1", "m in {Mode.UP: 1}", "str(m) == str(Mode.UP)",
        ),
        values=(
            "{Mode.UP: x, Mode.DOWN: y, Mode.IDLE: z}[m]", "x * m", "x + m.value", "x + (m + 1)", "x + f", "x + f.value", "x + g", "x * g.twice()",
            "x + len(m.name)", "[x, y, z][m]", "x + (m is Mode.UP)", "x + next_of(m)", "x + match_mode(m)", "x + Mode(m)", "{Color.RED: x, Color.BLUE: y}[e]",
            "x + e.value", "x + [Mode.UP, Mode.DOWN].index(m)", "x + sum(v is m for v in Mode)", "torch.full((2,), m)", "x + int(m)", "x + (f | Flags.B)",
            "x + np.float64(1.5 if p else 2.5)", "getattr(self, m.name.lower())(x)",
        ),
        statements=(
            *_AGAIN, "m = Mode.UP", "m = Mode.DOWN", "m = Mode.IDLE if <c> else m", "m = next_of(m)", "m = Mode(int(<c2>))", "m = Mode(c % 3)", "m = Mode.UP if m is Mode.IDLE else m",
            "f = f | Flags.B", "f = f ^ Flags.A", "f = Flags.B if <c> else f", "e = Color.BLUE if <c> else e", "e = Color.BLUE", "g = Count(2) if <c> else g", "g = Count(g + 1)",
            "self.mode = m", "self.mode = Mode.UP", "m = self.mode", "f |= Flags.B", "m = [Mode.UP, Mode.DOWN, Mode.IDLE][c % 3]",
            "match m:\n    case Mode.UP:\n        ...\n    case Mode.DOWN:\n        ...\n    case _:\n        ...", "match e:\n    case Color.RED:\n        ...\n    case Color.BLUE:\n        ...",
            "if m is Mode.UP:\n    m = Mode.DOWN\n    ...\nelif m is Mode.DOWN:\n    m = Mode.IDLE\n    ...",
            "while m is not Mode.IDLE:\n    m = Mode.DOWN if m is Mode.UP else Mode.IDLE\n    ...",
            "for <own> in range(2):\n    m = Mode.UP if x[<own>] > 0 else m\n    if m is Mode.UP: break",
        ),
        results=("m", "int(m)"),
        helpers="""
def next_of(m):
    if m is Mode.UP:
        return Mode.DOWN
    return Mode.IDLE if m is Mode.DOWN else Mode.UP

def match_mode(m):
    match m:
        case Mode.UP:
            return 1
        case Mode.DOWN:
            return 2
        case Mode():
            return 3
    return 4
""",
    ),
    "attributes": Kind(
        first=("x.scale = 1", "y.scale = 2.0", "z.scale = 3", "w = x"),
        conditions=(
            "w.scale > 1", "getattr(w, 'on', False)", "hasattr(w, 'on')", "x.scale == 2", "getattr(z, 'scale', 0) > 1", "hasattr(z, 'scale')",
            "getattr(self.t, 'on', False)", "hasattr(b.v, 'scale')", "w.__dict__.get('scale') == 1", "w is x", "getattr(self.w, 'lr', 1) > 1",
        ),
        values=(
            "x * w.scale", "x * x.scale", "y + y.scale", "x * getattr(z, 'scale', 5)", "x * scale_of(w)", "x + scale_of(<t>)", "x * scale_of(l[-1])",
            "x * (2 if getattr(w, 'on', False) else 3)", "x * getattr(self.t, 'scale', 4)", "x + sum(scale_of(t) for t in (x, y, z))",
            "x + getattr(w, 'other', x)", "x * getattr(self.w, 'lr', 1)", "x + len(vars(w))",
        ),
        statements=(
            "w = x if <c> else y", "w = y", "w.scale = <i>", "x.scale = 7", "y.scale = 0.5", "z.on = True", "w.on = <c2>", "w.scale += 1",
            "if <c>:\n    w.scale = 4", "if <c>:\n    x.scale = 5\nelse:\n    y.scale = 6", "if <c>:\n    w.on = True\n    ...", "<w>.scale = scale_of(<t>)",
            "setattr(w, 'on', not getattr(w, 'on', False))", "if hasattr(w, 'on'): del w.on", "self.t.scale = 2", "if <c>: self.t.on = True", "w.other = <v>",
            "if <c>:\n    w.other = <v>\nelse:\n    w.other = x", "if <c>:\n    z = x\n    z.scale = 9", "w = <w>", "b.v.scale = 3", "self.w.lr = 2", "if <c>: self.w.lr = 3",
            "for t in (x, y):\n    if t[0] > 0: t.scale = 8", "w.scale = int(<t>.sum())", "w.scale = x.sum() if <c> else y.sum()", "w = w * 1", "mark(w, <c2>)",
            "if <c>:\n    w = <v> + 1\n    w.scale = 7\nelse:\n    w = <v> * 2\n    w.scale = 3", "if <c>:\n    w = <v> * 1\n    w.on = True", "w = made(<v>, 7) if <c> else made(y, 2)",
            "w = made(<v>, <i>)\nif <c>:\n    w = made(w, 5)", "w = made_by(<v>)", "for <own> in range(2):\n    w = made(w, <own> + 1) if <c> else w", "z = made(x, 3) if <c> else z",
            "<own> = torch.zeros(())\nwhile <own> < 2:\n    <own> = <own> + 1\n    w = made(w, 4)", "b.v = made(<v>, 6) if <c> else b.v", "if <c>: l[0] = made(<v>, 8)",
        ),
        results=("w", "x * scale_of(w)"),
        helpers="""
def scale_of(t):
    return getattr(t, 'scale', 1)

def mark(t, c):
    if c:
        t.on = True
        t.scale = 3

def made(t, scale):
    t = t * 1
    t.scale = scale
    return t

def made_by(t):
    if t.sum() > 0:
        return made(t, 2)
    return made(t + 1, 9)
""",
    ),
    "ties": Kind(
        first=("score = x.sum()",),
        conditions=(
            "score > self.score", "self.t.sum() > self.best.sum()", "self.best.sum() > <i>", "self.best is self.t", "self.count > 1", "self.count % 2", "self.is_warm",
            "self.u.sum() < <i>", "len(self.steps) > 2", "self.n > 2", "self.best is not self.u", "self.n == self.count",
        ),
        values=(
            "self.best + x", "self.u * 2", "self.best", "self.u - self.t", "x * self.score", "x + self.n", "x * self.count", "x + len(self.steps)", "self.best[0] + y",
        ),
        statements=(
            "self.best = self.t", "if <c>: self.best = self.t", "if <c>:\n    self.best = self.t\n    self.score = score", "self.t = self.u", "if <c>: self.u = self.best",
            "self.t, self.u = self.u, self.t", "if <c>: self.t, self.best = self.best, self.t", "self.best = self.t.clone()", "if <c>: self.best = self.u.clone()",
            "if score > self.score:\n    self.score = score\n    self.best = self.t", "if score > self.score:\n    self.score.copy_(score)\n    self.best.copy_(x)",
            "self.t.add_(1)", "self.best.mul_(0.5)", "self.u += x", "self.t = self.t + 1", "self.u[0] = 2.0", "self.best += self.t", "self.t.copy_(<v>)", "if <c>: self.t.add_(x)",
            "self.best = x", "if <c>: self.best = x", "self.best = self.t.detach()", "self.best = self.t[:]", "if <c>: self.u = self.t.view(2)", "self.score = torch.maximum(self.score, score)",
            "self.count += 1", "self.count += 1\nself.n += self.count", "self.n += 1", "if <c>: self.count += 1", "if <c>: self.count = 0", "self.is_warm = True", "self.steps.append(<i>)",
            "self.n.add_(self.count)", "if self.count > 1: self.n += 2", "self.count = self.count + int(<c2>)", "self.n += len(self.steps)", "held = self.t\nself.t = <v>\nheld.add_(1)",
            "for <own> in range(2):\n    if <c>: self.best = self.t\n    self.t = self.t * 0.5 + x", "held = self.best if <c> else self.t\nheld.add_(1)", "b.v = self.t", "if <c>: b.v = self.best",
            "b.v.add_(1)", "<w> = self.t", "while self.n < 3:\n    self.n += 1\n    if <c>: self.best = self.t", "l[0] = self.u", "self.keep(<v>)", "self.keep(self.t)",
        ),
        results=("self.best", "self.t", "self.u", "self.score"),
    ),
    "cache": Kind(
        first=("at = 0",),
        conditions=(
            "cache['k'].sum() > <i>", "cache['at'] > 1", "cache['v'][0] > 0", "'new' in cache", "cache['at'].item() >= 3", "cache['k'][0, 0] == 0", "len(cache) > 3", "cache['v'] is x",
        ),
        values=("cache['v'] + x", "cache['k'][:, 0] * 2", "cache['k'].sum(1)", "cache['v']", "x + cache['at']", "cache['k'][:, at] + y", "x * cache.get('new', 2)", "cache['k'][0, :2]"),
        statements=(
            "cache['v'] = <v>", "cache['v'].add_(1)", "cache['v'] += x", "cache['at'] += 1", "cache['at'] = cache['at'] + 1", "cache['k'] = cache['k'].roll(1, 1)",
            "cache['k'][:, 0] = x", "cache['k'][:, at] = y", "at = int(cache['at']) % 3", "at = (cache['at'] % 4).item()", "cache['k'][:, at:at + 2] = x[:, None]",
            "if <c>: cache['k'] = cache['k'].roll(-1, 1)", "if <c>:\n    cache['k'] = torch.roll(cache['k'], -1, 1)\n    at = 2", "cache['k'][:, cache['at'].clamp(max=3)] = x",
            "if <c>: cache['v'] = x", "if <c>: cache['v'].mul_(2)", "if <c>: cache['at'] = torch.zeros((), dtype=torch.int64)", "cache['new'] = <v>", "if <c>: cache['new'] = x", "cache.pop('new', None)",
            "cache.update(v=<v>)", "cache['k'] = torch.cat([cache['k'][:, 1:], x[:, None]], 1)", "cache['v'], cache['k'][:, 1] = y, x", "k0 = cache['k']\nk0[:, 1] = <v>",
            "cache['k'] = cache['k'] * 0.5\ncache['k'][:, at:at + 1] = x[:, None]", "if cache['at'] >= 3:\n    cache['k'] = cache['k'].roll(-1, 1)\nelse:\n    cache['at'] = cache['at'] + 1",
            "cache = dict(cache)", "cache['k'] = cache['k'].clone()", "cache['k'].index_copy_(1, cache['at'].clamp(max=3)[None], x[:, None])", "cache['k'][:, at] += 1", "write(cache, <v>)", "at = at + 1 if <c> else 0",
        ),
        results=("cache['v']", "at"),
        helpers="def write(cache, v):\n    if v.sum() > 0:\n        cache['v'] = v\n    else:\n        cache['k'][:, 0] = v\n",
    ),
    "operators": Kind(
        first=("u = self.w * 1", "h = self.w[:1]"),
        values=(
            "cond(<c3>, lambda a: a * <o>, lambda a: a.sin() + <o>, (<t>,))", "cond(<c3>, lambda: x * <o>, lambda: y + <o>, ())", "cond(<c3>, lambda a, b: a + b * 2, lambda a, b: a * b, (x, <t>))",
            "while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * <o>), (torch.tensor(0), <t>))[1]",
            "while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * <o>), (0, <t>))[1]", "while_loop(lambda a, b: a.sum() < 4, lambda a, b: (a + b.abs() + 1, b * <o>), (<t>, <t> * 1))[0]",
            "while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + <o> * x), (torch.tensor(0), <t> * 1))[1]",
            "while_loop(lambda i, a: a.sum() < 5, lambda i, a: (i + 1, a.abs() + <o>.abs() + 1), (torch.tensor(0), <t> * 1))[1]",
            "while_loop(lambda i, a: (i < 2) & (a.sum() < 9), lambda i, a: (i + 1, a * y + x), (torch.tensor(0), <t> * 1))[1]",
            "while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, {'r': a['r'] * <o>}), (torch.tensor(0), {'r': <t> * 1}))[1]['r']",
            "while_loop(lambda i, a: i < x.sum().clamp(max=3), lambda i, a: (i + 1, a * self.w), (torch.zeros(()), <t> * 1))[1]",
            "scan(lambda c, r: (c * 0.5 + r, c * r), <t>[0] * 1, x)[1]", "scan(lambda c, r: (c + r * <o>[0], c * 1), y[0] * 1, <t>)[1]", "scan(lambda c, r: (c * self.w.sum() + r, r + c), <t>.sum(), x)[1]",
            "scan(lambda c, r: (c + r, c * <o>), <t> * 1, torch.stack([x, y]))[0]", "scan(lambda c, r: (c * r, c + <o>), u * 1, torch.stack([x, z]))[1].sum(0)",
            "map_rows(lambda r: r * 2 + <o>[0], <t>)", "map_rows(lambda r: r * <o>.sum(), x)", "map_rows(lambda r, a: r * a[0], x, <t>)", "map_rows(lambda r: r * <o>, torch.stack([x, y])).sum(0)",
            "cond(<c3>, lambda a: cond(a.sum() > 1, lambda a: a * <o>, lambda a: a - <o>, (a,)), lambda a: a * 3, (<t>,))", "cond(<c3>, lambda a: map_rows(lambda r: r * <t>[1], a), lambda a: a * 1, (<t>,))",
            "cond(<c3>, lambda a: (a * <o>, a + 1), lambda a: (a - 1, a * self.w), (<t>,))[0]", "cond(<c3>, lambda a: {'r': a * <o>}, lambda a: {'r': a + h}, (<t>,))['r']",
            "accumulate(torch.add, <t> * <o>)", "accumulate(lambda a, b: a * b, torch.stack([x, <t>, y]))[1:].sum(0)",
            "x * u", "h * x", "self.w + x", "cond(<c3>, lambda a: a.detach() * <o>, lambda a: a * 2, (<t>,))", "cond(<c3>, lambda a: a[:1] + <o>, lambda a: <o> * a, (<t>,))",
            "while_loop(lambda a: a.sum() < 4, lambda a: (a.exp() + <o>.abs(),), (<t>.abs(),))[0]", "cond(<c3>, twice, lambda a: a * <o>, (<t>,))", "cond(<c3>, self.scaled, twice, (<t>,))",
            "cond(<c3>, lambda a: self.count_and(a), lambda a: a * 1, (<t>,))", "torch.where(x > 0, <o>, y)",
        ),
        statements=(
            "u = u * x", "u = u + 1", "h = u[:1]", "if <c>:\n    u = u * <v>\nelse:\n    u = u + x", "while u.abs().sum() < 2:\n    u = u * 2 + x.abs() + 0.1",
            "for <own> in range(2):\n    u = u + x * u if <c> else u", "<own> = torch.zeros(())\nwhile <own> < 3:\n    <own> = <own> + 1\n    x = x * <o>", "with torch.no_grad():\n    u = u + x",
            "def f(a):\n    return a * <o> if a.sum() > 0 else a + u\nx = f(<v>)", "with torch.no_grad():\n    self.w.mul_(0.5)", "h = self.w[1:]", "u = u.detach() if <c> else u", "h = self.part", "h = self.piece",
            "if <c>:\n    with torch.no_grad():\n        self.w.add_(1)", "self.piece.add_(1)", "self.u.mul_(0.5)", "if <c>: self.u = self.u + x",
        ),
        results=("u",),
        helpers="def twice(a):\n    return a * 2\n",
        share=0.75,
    ),
    "errors": Kind(
        first=("c = int(<t>.sum())", "r = <t>.sum().item()"),
        values=("x * divide(c)", "x + pick(l, c)", "x * root(r)", "x + checked(<t>)", "x + c"),
        statements=(
            "try:\n    x = x * (1 / c)\nexcept ZeroDivisionError:\n    ...", "try:\n    v = 5 // c\nexcept ZeroDivisionError as error:\n    v = 0\nx = x + v", "try:\n    v = 5 % int(<t>.sum())\nexcept ArithmeticError:\n    v = 7\nx = x + v",
            "try:\n    <w> = [x, y][c]\nexcept IndexError:\n    ...", "try:\n    <w> = (x, y, z)[int(<t>[0])]\nexcept (IndexError, KeyError):\n    <w> = <v>", "try:\n    v = {0: 1.0, 1: 2.0}[c]\nexcept KeyError:\n    v = 3.0\nx = x + v",
            "try:\n    v = math.sqrt(r)\nexcept ValueError:\n    v = 0.0\nx = x + v", "try:\n    v = math.log(r)\nexcept ValueError:\n    ...\nelse:\n    x = x + v", "try:\n    v = math.acos(r)\nexcept ValueError:\n    v = -1.0\nfinally:\n    n += 1\nx = x + v",
            "try:\n    z = torch.linalg.cholesky(torch.diag(<t>))[0]\nexcept RuntimeError:\n    ...", "try:\n    z = torch.linalg.inv(torch.diag(<t>))[1]\nexcept torch.linalg.LinAlgError:\n    z = <v>", "try:\n    z = torch.linalg.solve(torch.diag(x), y)\nexcept RuntimeError:\n    z = y * 1",
            "try:\n    if <c>: raise ValueError('large')\n    ...\nexcept ValueError:\n    ...", "try:\n    assert <c>\n    ...\nexcept AssertionError:\n    ...", "try:\n    x = check(x)\nexcept ValueError:\n    x = <v>", "try:\n    x = x + next(t for t in x if t > 1)\nexcept StopIteration:\n    ...",
            "try:\n    x = x[c:c + 2] + y\nexcept RuntimeError:\n    x = y * 2", "try:\n    x = x + torch.stack([t for t in y if t > 0]).sum()\nexcept RuntimeError:\n    x = <v>", "try:\n    z = z + x[int(y[0])]\nexcept IndexError:\n    ...", "try:\n    x = x + [3, 4].index(c)\nexcept ValueError:\n    x = x - 1",
            "with contextlib.suppress(ZeroDivisionError):\n    x = x + 1 / c", "with contextlib.suppress(IndexError):\n    x = x + [1, 2][c]", "for <own> in (1, 0):\n    try:\n        x = x + <own> // c\n    except ZeroDivisionError:\n        break", "c = c - 1", "c = int(<t>[0])", "r = r - 1",
            "try:\n    x = x + max(t for t in x if t > 0)\nexcept ValueError:\n    ...", "try:\n    v = int(str(c))\nexcept ValueError:\n    v = 0\nx = x + v", "try:\n    x = x.view(c, 2).sum(0)\nexcept RuntimeError:\n    x = <v>", "try:\n    x = x + math.factorial(c)\nexcept (ValueError, OverflowError):\n    x = x - 1",
            "try:\n    x = x + Mode(c)\nexcept ValueError:\n    ...", "try:\n    x = x * (x.sum() / y.sum()).item()\n    x = x + 2 ** c\nexcept (ZeroDivisionError, OverflowError):\n    ...",
        ),
        results=("c",),
        helpers="""
def divide(c):
    try:
        return 6 / c
    except ZeroDivisionError:
        return 9

def pick(l, c):
    try:
        return l[c]
    except IndexError:
        return l[0]

def root(r):
    try:
        return math.sqrt(r)
    except ValueError:
        return 0.5

def check(t):
    if t.sum() > 1:
        raise ValueError("too large")
    return t + 1

def checked(t):
    try:
        return check(t)
    except ValueError:
        return t - 1
""",
    ),
    "pinned": Kind(
        first=(
            "e = torch.cat([x, y])", "e = torch.stack([e[e > 0], e[e > 0] * 2], 1)", "m = e.shape[0]", "c = int(y.sum())",
            "g = torch.arange(8.0).view(2, 4)[:, : max(min(c, 4), 0)]", "s = []",
        ),
        conditions=(
            "m == 1", "m == 2", "m <= 1", "m != 0", "m % 2 == 0", "m in (1, 3)", "2 * m == 4", "m == g.shape[1]",
            "g.shape[1] == 4", "c >= 4", "c == 2", "e.numel() == 2", "max(m, 1) == 1", "min(m, 2) == 2", "len(e) == 3",
            "g.numel() == 2 * m", "m < 3", "m & 1", "e.t().shape[1] == m", "g.shape == e.t().shape",
        ),
        values=(
            "x + e.t().shape[1]", "x * e.sum()", "y + g.reshape(-1).sum()", "x + e.t().contiguous().view(-1)[m:].sum()",
            "x + e.t().reshape(2, m).sum(1)", "y + torch.ones(m, 2).t().shape[1]", "y * e.t().numel()", "z + e.permute(1, 0).size(1)",
            "x + torch.cat([e, e]).shape[0]", "x + (e.t() @ e).sum()", "y + g.contiguous().view(-1)[:2].sum()", "x + g.ravel().sum()",
            "x + (g * 1).flatten().shape[0]", "x + torch.arange(m).sum()", "x + count(e)", "y + count(e.t())",
            "z + e.unsqueeze(0).expand(2, m, 2).sum()", "x + (e * e[:, :1]).sum(0)", "x + torch.ones(m).roll(1).numel()", "y + len(e[:1])",
            "x + torch.ones(m, m).diagonal().sum()", "x + sum(t.numel() for t in s)", "z + m", "x + torch.nn.functional.pad(e, (0, 0, 1, m)).shape[0]",
            "y * e.narrow(0, 0, min(m, 2)).t().sum()", "x + e.t().clone().shape[1]", "x + torch.full((m, 2), 2.0).t().sum(1)",
        ),
        statements=(
            "if m == <i>:\n    ...\nelse:\n    ...", "if g.shape[1] == 4:\n    ...\nelif c > 1:\n    ...", "e = e * 2", "g = g * 2",
            "h = e.t().contiguous()\nx = x + h.shape[1]", "h = (g * 1)[:, : max(m, 1)]\nh.add_(1)\ny = y + h.sum()",
            "match m:\n    case 1:\n        ...\n    case 2 | 3:\n        ...\n    case _:\n        ...", "s = [e.t()]", "s = [e.t(), g.contiguous()]",
            "for <own> in range(m):\n    if <own> == 0: x = x + e[: <own>].numel()\n    else: x = x + e[<own>]", "m = e.t().shape[1]",
            "for <own> in range(m):\n    ...", "b.v = y + e.t().sum(1)", "c = c + 1 if m == 1 else c", "self.u.add_(e.shape[0])",
            "try:\n    if m == 1: raise ValueError\n    x = x + e.t().shape[1]\nexcept ValueError:\n    y = y + e.t().shape[1]",
            "h = g.contiguous()\nh = h * 1\nx = x + h.view(-1).sum()", "x = x + sum([e.t().shape[1] for _ in range(2) if m == 2])",
        ),
        results=("m", "c", "e", "g", "e.t().numel()"),
        helpers="def count(t):\n    return t.reshape(-1).shape[0] + t.shape[0] * 10\n",
    ),
    "beside": Kind(
        first=("q = [1.0, 2.0, 3.0, 4.0]", "s = [x]", "w = {'n': 0}"),
        conditions=(
            "<c> and q.append(1.0) is None", "<c> or q.append(2.0)", "<c> and len(q) > 1 and q.pop() > 2", "<c> or (q and q.pop() < 3)", "not (<c> and q.append(5.0))",
            "<c> and put(q, 1.0) and <c>", "put(q, 2.0) and <c> and put(q, 3.0)", "<c> or put(s, y)", "(put(q, 1.0) if <c> else put(q, 2.0) and put(q, 3.0))", "<c> and (m := len(q)) > 2",
            "any(put(q, 1.0) for t in x if t > 0)", "all(t > 0 and put(q, 1.0) for t in x)", "0 < x[0] < (q.append(1.0) or y[0])", "len(q) > 3 and <c> and q.pop(0)", "<c> or w.pop('k', None)", "<c> and w.setdefault('k', 1)",
            "<c> and bump(w) > 1", "bump(w) and <c>", "<c> or not put(q, 7.0)", "(<c> or put(q, 1.0)) and (<c> or put(q, 2.0))", "sum(put(q, 1.0) for t in (x, y) if t.sum() > 0) > 1", "len(s) > 1 and s.pop().sum() > 0", "<c> and not s.append(z)",
        ),
        values=(
            "x * len(q)", "x + (q[-1] if q else 0)", "y + sum(q)", "(x if <c> and put(q, 1.0) else y) + len(q)", "x * (<c> and len(q))", "s[-1] + x", "torch.stack(s).sum(0)", "x + w['n']", "x + bump(w)", "x * (len(q) > 2 or <c>)",
            "(<c> and x) if <c2> else y", "x + (len(q) if <c> or q.append(1.0) else 0)",
        ),
        statements=(
            "<c> and q.append(1.0)", "<c> or q.append(2.0)", "<c> and q and q.pop()", "x = x + 1 if <c> and put(q, 1.0) else x - len(q)", "if <c> and put(q, 4.0):\n    ...\nelse:\n    ...", "if <c> or put(q, 4.0): ...",
            "while len(q) > 2 and <c>:\n    q.pop()", "while q and q.pop() > 2: x = x + 1", "for <own> in (1, 2):\n    <c> and put(q, <own>)", "assert q or not q.append(1.0)", "q = q[1:] if <c> and len(q) > 1 else q + [1.0]",
            "if not q or (<c> and q.pop()): y = y + len(q)", "<own> = <c> and put(s, x)\nx = x + len(s)", "bump(w) if <c> and bump(w) else put(q, 1.0)", "q.append(1.0) if <c> else q.pop() if q else None", "n = n + (put(q, 1.0) if <c> else 0)",
            "<own> = [put(q, 1.0) for t in x if t > 0]\nx = x + len(q)", "x = x + sum(1 for t in x if t > 0 or put(q, 1.0))", "d['k'] = <v> if <c> and put(q, 1.0) else d['k']", "if <c> and (m := len(q)) > 1: x = x + m", "l.append(y) if <c> and put(q, 1.0) else put(l, x)", "w['n'] = len(q) if <c> or put(q, 1.0) else 9",
        ),
        results=("len(q)", "w['n']", "sum(q)"),
        share=0.35,
        helpers="def put(q, v):\n    q.append(v)\n    return True\n\ndef bump(w):\n    w['n'] += 1\n    return w['n']\n",
    ),
    "memos": Kind(
        first=(
            "m = [1]", "g = functools.lru_cache(None)(lambda k: m.append(k) or k)", "h = functools.lru_cache(2)(lambda k: m.append(k) or k + len(m))", "c = functools.cache(lambda k: k * 2 + 1)", "r = functools.lru_cache(4)(lambda k: torch.arange(2.0) * k)",
            "e = Lazy(m)", "u = memo(lambda k: m.append(k) or k)", "a = functools.lru_cache(None, typed=True)(lambda k, j=2: [k, j, m[0]])",
        ),
        conditions=("g(1) == 1 and <c>", "<c> and g(2)", "<c> or h(1) > 1", "len(m) > 2", "c(1) > 2 and <c>", "u(1) and <c>", "<c> and e.p", "r(1)[1] > x[0]", "<c> and a(1)[0] == 1"),
        values=(
            "x * g(1)", "x + g(2)", "x + h(1)", "y * h(2)", "y + h(3)", "x * c(1)", "x - c(2)", "x * r(2)", "y + r(1)", "x + len(m)", "x + u(1)", "y + u(2)", "x * e.p", "x + a(1)[1]", "x + sum(a(1, j=3))", "x * fib(4)", "y + fib(2)", "x + rows(2)", "y * rows(1)",
            "x * self.scaled(x).sum()", "<v> + e.n", "x + g.__wrapped__(3)", "(x if <c> else r(2)) + g(1)",
        ),
        statements=(
            "g(1)", "h(1)", "h(2)", "h(3)", "u(1)", "e.p", "c(1)", "a(1)", "a(1).append(7)", "r(2)", "m[0] = 5", "m[0] = len(m)", "g.cache_clear()", "if <c>:\n    g(1)\n    ...", "if <c>: h(1)\nelse: h(2)", "x = x + r(2) if <c> else x - r(2)", "for <own> in (1, 2):\n    if <c>: x = x + g(<own>)",
            "r(1).add_(1)", "if <c>: r(1).mul_(2)", "for <own> in x:\n    if <own> > 0: x = x + c(1)", "while x.sum() < 3:\n    x = x + c(1)", "while x.sum() < 3:\n    x = x + g(1)", "z = rows(2)", "<own> = rows(2)\nif <c>: <own> = <own> + 1\nx = x + <own>", "if <c>: e = Lazy(m)", "if <c>: del e.p" , "x = x + fib(3)", "b.v = r(1) if <c> else b.v",
            "<own> = a(1)\nif <c>: <own>.append(3)\nx = x + len(a(1))", "if <c>: c = functools.cache(lambda k: k + 3)",
        ),
        results=("len(m)", "e.n", "sum(m)"),
        helpers="""
@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@functools.lru_cache(8)
def rows(n):
    return torch.ones(2) * n

def memo(function):
    seen = {}

    def call(k):
        if k not in seen:
            seen[k] = function(k)
        return seen[k]

    return call

class Lazy:
    def __init__(self, m):
        self.m, self.n = m, 0

    @functools.cached_property
    def p(self):
        self.m.append(1)
        self.n += 1
        return 3
""",
    ),
    "unwinding": Kind(
        first=("log = []",),
        values=("x * risky(<t>, log)", "x + guarded(<t>, log)", "x + len(log)", "y + swallow(<t>, log)", "x * safe(<t>)"),
        conditions=("len(log) > 1", "guarded(<t>, log) > 1", "safe(<t>) > 1"),
        statements=(
            "try:\n    if <c>: raise Stop\n    ...\nexcept Stop:\n    ...", "try:\n    if <c>: raise Stop(2.0)\n    ...\nexcept BaseException as error:\n    x = x + len(error.args)", "try:\n    if <c>: raise KeyboardInterrupt\n    ...\nexcept KeyboardInterrupt:\n    ...",
            "try:\n    if <c>: raise GeneratorExit\n    log.append(1)\nexcept BaseException:\n    log.append(2)\n    log.append(3)", "try:\n    if <c>: raise SystemExit\n    ...\nfinally:\n    log.append(1)", "try:\n    ...\nfinally:\n    if <c>: x = x + 1",
            "try:\n    if <c>: raise ValueError(<v>)\n    ...\nexcept ValueError as error:\n    y = error.args[0] + 1", "try:\n    if <c>: raise ValueError\n    if <c>: raise Stop\n    ...\nexcept ValueError:\n    ...\nexcept Stop:\n    ...\nelse:\n    ...\nfinally:\n    log.append(0)",
            "try:\n    try:\n        if <c>: raise Stop\n        ...\n    finally:\n        log.append(4)\nexcept Stop:\n    ...", "try:\n    try:\n        if <c>: raise ValueError\n    except ValueError:\n        if <c>: raise Stop\n        log.append(1)\nexcept Stop:\n    ...",
            "for <own> in range(2):\n    try:\n        if <c>: break\n        ...\n    finally:\n        log.append(<own>)", "for <own> in range(2):\n    try:\n        if <c>: continue\n        x = x + 1\n    finally:\n        y = y + 1", "for <own> in x:\n    try:\n        if <own> > 1: raise Stop\n        log.append(1)\n    except Stop:\n        x = x * 2",
            "with Noting(log) as <own>:\n    if <c>: raise Stop\n    ...", "with Noting(log):\n    ...\n    if <c>: raise ValueError", "with contextlib.suppress(Stop):\n    log.append(1)\n    if <c>: raise Stop\n    log.append(2)", "with contextlib.ExitStack() as <own>:\n    if <c>: <own>.callback(log.append, 1)\n    <own>.callback(log.append, 2)", "with noting(log):\n    if <c>: raise Stop",
            "x = x + guarded(x, log)", "try:\n    x = x + risky(y, log)\nexcept Stop:\n    x = x - 1", "while x.sum() < 4:\n    try:\n        x = x + 1\n        if <c>: break\n    finally:\n        y = y + 1", "try:\n    assert <c>, 'no'\nexcept AssertionError as error:\n    x = x + len(str(error))",
            "try:\n    if <c>: raise Stop from ValueError(1)\nexcept Stop as error:\n    x = x + (error.__cause__ is not None)", "<own> = None\ntry:\n    if <c>: raise Stop\nexcept Stop as error:\n    <own> = error\nx = x + (<own> is None)",
        ),
        results=("len(log)",),
        share=0.4,
        helpers="""
Stop = KeyboardInterrupt

class Noting:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append(10)
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(20 if kind is None else 30)
        return True

@contextlib.contextmanager
def noting(log):
    log.append(5)
    try:
        yield
    except Stop:
        log.append(6)
        log.append(7)
    finally:
        log.append(8)

def risky(t, log):
    try:
        if t.sum() > 1:
            raise Stop
        return 2.0
    finally:
        log.append(1)

def guarded(t, log):
    try:
        return risky(t, log)
    except Stop:
        log.append(2)
        return 3.0

def swallow(t, log):
    for i in range(2):
        try:
            if t[i] > 0:
                return 1.0
        finally:
            log.append(i)
            if t[0] > 2:
                continue
    return 5.0

def safe(t):
    try:
        if t.sum() > 0:
            return 1.0
    finally:
        if t[0] > 1:
            return 4.0
    return 2.0
""",
    ),
    "iterators": Kind(
        first=("it = iter([1.0, 2.0, 3.0, 4.0, 5.0])", "log = []", "g = steps(log)", "k2 = itertools.count(1)", "e = enumerate([3.0, 4.0, 5.0])", "cy = itertools.cycle([1.0, 2.0])"),
        values=(
            "x + next(it, 9.0)", "x * next(k2)", "y + next(cy)", "x + next(g, 7.0)", "x + next(e, (0, 6.0))[1]", "x + len(log)", "x + sum(it)", "y + len(list(it))", "x + sum(itertools.islice(k2, 2))", "x + sum(t for t in it if t > 2)", "x + next((t for t in it if t > 3), 0.0)", "x + sum(i * t for i, t in zip(it, (1.0, 2.0)))",
            "x + g.send(None)", "y + max(itertools.takewhile(lambda t: t < 3, it), default=0.0)", "x + (next(it, 1.0) if <c> else next(it, 2.0))",
        ),
        conditions=("next(it, 0.0) > 2", "<c> and next(it, 0.0) > 1", "<c> or next(k2) > 2", "next(k2) % 2 == 0", "3.0 in it", "any(t > 2 for t in it)"),
        statements=(
            "if <c>: next(it, None)", "if <c>: next(k2)", "if <c>:\n    next(g, None)\n    ...", "if <c>: next(cy)", "for <own> in it:\n    if <c>: break\n    x = x + <own>", "for <own>, t in enumerate(x):\n    if t > 0: x = x + next(it, 0.0)", "for <own>, t in zip(x, it):\n    if <own> > 0: break\n    y = y + t",
            "for <own> in g:\n    if <c>: break\n    x = x + <own>", "for <own> in steps(log):\n    if <c>: break", "for <own>, t in zip(it, (1.0, 2.0)):\n    x = x + <own> * t", "for <own> in itertools.islice(it, 2):\n    x = x * <own>", "g.close()", "if <c>: g.close()", "it = iter([7.0, 8.0]) if <c> else it", "it = itertools.chain(it, [6.0])",
            "it = iter(list(it))", "while next(it, 0.0) > 2: x = x + 1", "while x.sum() < 4: x = x + next(k2)", "for <own> in x:\n    if <own> > 0: next(k2)", "for <own> in iter(lambda: next(k2), 4):\n    x = x + <own>", "<own>, *rest = it\nx = x + len(rest)\nit = iter([1.0, 2.0])", "for <own> in e:\n    if <c>: break\nelse:\n    x = x + 1", "a1, a2 = itertools.tee(x)\nif <c>: next(a1)\nx = x + next(a1) + next(a2)",
            "for <own> in reversed([1.0, 2.0, 3.0]):\n    if <c>: break\n    x = x + <own>", "<own> = map(lambda t: t * 2, it)\nif <c>: next(<own>, 0.0)\nx = x + next(<own>, 5.0)", "<own> = (t for t in x if t > 0)\nx = x + next(<own>, y[0])", "<own> = iter({'a': 1.0, 'b': 2.0}.items())\nif <c>: next(<own>)\nx = x + next(<own>)[1]",
        ),
        results=("len(log)", "next(it, 11.0)", "next(k2)"),
        helpers="""
def steps(log):
    try:
        for i in range(4):
            log.append(i)
            yield float(i)
    finally:
        log.append(9)
""",
    ),
}  # fmt: skip


class Writer:
    """Writes the program of a seed."""

    def __init__(self, seed: int, kind: str) -> None:
        self.rng = random.Random(f"{kind} {seed}")
        self.kind = kind
        self._lines: list[str] = []
        self._nested = 0
        self._owned = 0

    def write(self) -> str:
        kind = KINDS[self.kind]
        has_cache = self.kind == "cache"
        self._emit(0, f"def forward(self, x, y{', cache' if has_cache else ''}):")
        for each in (*_FIRST, *kind.first):
            self._emit(1, self._fill(each))
        for _ in range(self.rng.randint(2, 5 if self.kind == "plain" else 4)):
            self._statement(3 if self.kind == "plain" else 2, 1, in_loop=False, on_data=False)
        self._emit(1, f"return {', '.join(('x', 'y', 'z', 'n', *kind.results))}")
        return kind.helpers + "".join(self._lines)

    def _emit(self, indent: int, text: str) -> None:
        self._lines.append("    " * indent + text + "\n")

    def _draw(self, known: dict[str, float], own: tuple[str, ...]) -> str:
        """One of the kind's own texts, or of those that are in all programs."""
        if own and self.rng.random() < KINDS[self.kind].share:
            return self.rng.choice(own)
        return self.rng.choices([*known], [*known.values()])[0]

    def _fill(self, text: str) -> str:
        return re.sub(r"<(\w+)>", lambda found: self._place(found[1]), text)

    def _place(self, name: str) -> str:
        if name == "t":
            return str(self.rng.choice(_TENSORS))
        if name == "w":
            return self.rng.choice("xyz")
        if name == "i":
            return str(self.rng.choice((0, 1, 1, 2, 3)))
        if name == "o":
            return str(self.rng.choice(_CLOSED_OVER))
        if name == "c3":
            return f"{self.rng.choice(('x', 'y', 'z', 'u'))}.sum() > {self.rng.choice((0, 1, -2))}"
        self._nested += 1
        if name == "v":
            found = self._draw(_VALUES, KINDS[self.kind].values)
            found = "y * 2" if self._nested > 2 and re.search("<[cv]", found) else self._fill(found)
        else:
            found = self._draw(_CONDITIONS, KINDS[self.kind].conditions)
            is_deep = self._nested > 2 and "<c" in found
            found = "x.sum() > 0" if is_deep else self._fill(found)
            found = f"bool({found})" if name == "c2" else found
        self._nested -= 1
        return found

    def _block(self, depth: int, indent: int, **around: bool) -> None:
        for _ in range(self.rng.randint(1, 3 if self.kind == "plain" else 2)):
            self._statement(depth, indent, **around)

    def _statement(self, depth: int, indent: int, in_loop: bool, on_data: bool) -> None:
        text = self._draw(_STATEMENTS, KINDS[self.kind].statements)
        if not on_data and self.rng.random() < 0.04:
            text = self.rng.choice([*_OUTSIDE_LOOPS])
        if in_loop and self.rng.random() < 0.04:
            text = self.rng.choice([*_INSIDE_LOOPS])
        if depth <= 0 and "..." in text:
            text = "<w> = <v>"
        self._owned += 1
        text = text.replace("<own>", f"w{self._owned}")
        inside = {"in_loop": in_loop, "on_data": on_data}
        for line in text.split("\n"):
            stripped = line.lstrip()
            at = indent + (len(line) - len(stripped)) // 4
            if at == indent:
                is_loop, is_while = stripped.startswith(("for ", "while ")), "while " in stripped
                inside = {"in_loop": in_loop or is_loop, "on_data": on_data or is_while}
            if stripped == "...":
                self._block(depth - 1, at, **inside)
            else:
                self._emit(at, self._fill(stripped))


def write_program(seed: int, kind: str) -> str:
    return Writer(seed, kind).write()


def choose_kind(seed: int, kinds: Any = tuple(KINDS)) -> str:
    """The kinds take turns."""
    return str(kinds[seed % len(kinds)])
