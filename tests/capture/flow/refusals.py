"""What is refused most likely, each with what the error says, and the program as the error's
`instead` has it, which exports and does what eager does.

(pytest changes the code of files with tests where they assert: these are not in one.)
"""

from __future__ import annotations

import contextlib
import enum
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class Refusal(NamedTuple):
    """A program, what the error says of it, a word of its fix, and the program with that."""

    program: Callable[..., Any]
    text: str
    fix: str
    fixed: Callable[..., Any]


REFUSALS: list[Refusal] = []


def refuse(text: str, fix: str, fixed: Callable[..., Any]) -> Callable[[Any], Any]:
    def keep(program: Any) -> Any:
        REFUSALS.append(Refusal(program, text, fix, fixed))
        return program

    return keep


# ------------------------------------------------------------------------- the sides do not agree


class Mode(enum.IntEnum):
    UP = 1
    DOWN = 2


def asks_before(x: Tensor) -> Any:
    y, k = x[1:].contiguous(), 1 + x.is_contiguous()
    while y.sum() > 1:
        y = y / 2
    return y * k


@refuse(
    "is_contiguous.. asks how a tensor lies in memory, and data decide that in `while y",
    "alike",
    asks_before,
)
def asks_after(x: Tensor) -> Any:
    y = torch.stack([x, x], 1)[:, 0]
    while y.sum() > 1:
        y = y / 2
    return y * (1 + y.is_contiguous())


def plain_sides(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x + 1, 1), lambda x: (x * 2, 1), (x,))


@refuse(r"<Mode.UP: 1>, a number\n.*<Mode.DOWN: 2>", "the same value from both", plain_sides)
def members_of_torch_cond(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x + 1, Mode.UP), lambda x: (x, Mode.DOWN), (x,))


def keeps_whether(x: Tensor) -> Tensor:
    held, is_there = nn.Identity(), x.sum() > 0
    held.best = x + 1 if is_there else torch.zeros_like(x)
    return held.best * 2 if is_there else x


@refuse("and None on the False side", "a second value that says", keeps_whether)
def keeps_a_tensor_or_none(x: Tensor) -> Tensor:
    held = nn.Identity()
    held.best = x + 1 if x.sum() > 0 else None  # type: ignore[assignment]
    return x if held.best is None else held.best * 2


def keeps_numbers_for_words(x: Tensor) -> Tensor:
    held = nn.Identity()
    held.kind = 1 if x.sum() > 0 else 0  # type: ignore[assignment]
    return x * 2 if held.kind == 1 else x


@refuse("is 'large' on the True side, and", "tensors in the places", keeps_numbers_for_words)
def keeps_words(x: Tensor) -> Tensor:
    held = nn.Identity()
    held.kind = "large" if x.sum() > 0 else "small"  # type: ignore[assignment]
    return x * 2 if held.kind == "large" else x


def same_keys(x: Tensor) -> dict[str, Tensor]:
    return {"a": x, "b": x + 1 if x.sum() > 0 else torch.zeros(3)}


@refuse("data decide which keys a dict has", "set the same keys", same_keys)
def other_keys(x: Tensor) -> dict[str, Tensor]:
    found = {"a": x}
    if x.sum() > 0:
        found["b"] = x + 1
    return found


def selects(x: Tensor) -> Tensor:
    return torch.stack([t for t in (*x, x[0].abs() + 1) if t > 0])


@refuse("the module returns a list", r"torch.stack\(list\)", selects)
def filters(x: Tensor) -> Any:
    return [t for t in x if t > 0]


# ------------------------------------------------------------------------------------------ errors


def does_it_there(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else x - 1


@refuse("raises ValueError, and that may be caught", "call it by its name", does_it_there)
def catches(x: Tensor) -> Tensor:
    def check(x: Tensor) -> Tensor:
        if x.sum() > 0:
            raise ValueError("too much")
        return x - 1

    try:
        (y,) = map(check, [x])
    except ValueError:
        y = x
    return y


class Scaled:
    def __init__(self, values: list[Tensor]) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._values[0] = self._values[0] * 2

    def __exit__(self, *error: object) -> None:
        self._values[0] = self._values[0] / 2


def chooses_what_it_enters(x: Tensor) -> Any:
    values = [x]
    with Scaled(values) if x.sum() > 0 else contextlib.nullcontext():
        y = values[0] + 1
    return y, values[0]


@refuse("stack has 1 elements on the True side", "choose what is entered", chooses_what_it_enters)
def enters_on_one_side(x: Tensor) -> Any:
    values = [x]
    with contextlib.ExitStack() as stack:
        if x.sum() > 0:
            stack.enter_context(Scaled(values))
        y = values[0] + 1
    return y, values[0]


def begins_with_a_tensor(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for t in x:
        if t > 0:
            total += t
    return total


@refuse("a tensor is written to, and the False side of", "return a copy", begins_with_a_tensor)
def begins_with_a_number(x: Tensor) -> Any:
    total: Any = 0
    for t in x:
        if t > 0:
            total += t
    return total


# -------------------------------------------------------------------------------------------- loops


def goes_on_with_a_part(x: Tensor) -> Tensor:
    found = [x]
    while x.sum() < 100:
        x = x + 1
        found.append(x)
    return torch.stack(found)[1:]


@refuse(
    "another element than the first or last",
    r"compute with torch.stack\(list\)",
    goes_on_with_a_part,
)
def pops(x: Tensor) -> Tensor:
    found = [x]
    while x.sum() < 100:
        x = x + 1
        found.append(x)
    found.pop(1)
    return torch.stack(found)


def begins_as_long(x: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    while h.sum() < 100:
        h = h + x.abs() + 1
    return h


@refuse("hands on, changes: the body gets", "or begin with that type", begins_as_long)
def begins_with_one(x: Tensor) -> Tensor:
    h = torch.zeros(1)
    while h.sum() < 100:
        h = h + x.abs() + 1
    return h


def begins_with_floats(x: Tensor) -> Tensor:
    n = torch.zeros(())
    while x.sum() < 10:
        n, x = n + 0.5, x + 1
    return x + n


@refuse("the body gets int64", "begin with that type", begins_with_floats)
def begins_with_integers(x: Tensor) -> Tensor:
    n = torch.zeros((), dtype=torch.int64)
    while x.sum() < 10:
        n, x = n + 0.5, x + 1  # type: ignore[assignment]
    return x + n


def copied_before_it_is_changed(x: Tensor) -> Tensor:
    held, n = {"x": x}, torch.zeros(())
    while n < 3:
        n = n + 1
        held = dict(held)
        held["x"] = held["x"] + n
    return held["x"]


@refuse(
    "held is changed, and is another dict in the next turn",
    "before it is changed",
    copied_before_it_is_changed,
)
def changed_and_then_copied(x: Tensor) -> Tensor:
    held, n = {"x": x}, torch.zeros(())
    while n < 3:
        n = n + 1
        held["x"] = held["x"] + n
        held = dict(held)
    return held["x"]


def computes_in_the_body(x: Tensor) -> Tensor:
    n = torch.ones(())
    while n < x.sum():
        x = x - 1
        n = n + 1
    return x + n


@refuse("the condition of a loop on data changes", "compute it in the body", computes_in_the_body)
def writes_in_the_condition(x: Tensor) -> Tensor:
    n = torch.zeros(())
    while n.add_(1) < x.sum():
        x = x - 1
    return x + n


def goes_over_a_list(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for t in list(x.unbind()):
        if total > 2:
            break
        total = total + t
    return total


@refuse("a loop over an iterator is left", "for x in list", goes_over_a_list)
def leaves_an_iterator(x: Tensor) -> Tensor:
    total = torch.zeros(())
    rows = enumerate(x.unbind())
    for _, t in rows:
        if total > 2:
            break
        total = total + t
    return total + next(rows)[1]


# --------------------------------------------------------------------------------- Python's objects


class CountsInABuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.n += 1
        return x + self.n


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.n += 1
        return x + self.n


refuse("data decide what is left in n", "register_buffer", CountsInABuffer())(Counts())


class KeepsACopy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("best", torch.zeros(3))
        self.register_buffer("current", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.current += x
        if x.sum() > 0:
            self.best = self.current.clone()
        return self.best * 1


class KeepsTheBest(KeepsACopy):
    def forward(self, x: Tensor) -> Tensor:
        self.current += x
        if x.sum() > 0:
            self.best = self.current
        return self.best * 1


refuse("the buffer best and the buffer current are one tensor", "clone it", KeepsACopy())(
    KeepsTheBest()
)


def _mark(x: Tensor) -> Any:
    y = x * 2
    if x.sum() > 0:
        y.is_positive = True
    return y


def marks_beside_it(x: Tensor) -> Tensor:
    y, is_positive = x * 2, bool(x.sum() > 0)
    return y + 1 if is_positive else y


@refuse("is_positive of a tensor was asked for", "in a variable beside the tensor", marks_beside_it)
def marks_the_tensor(x: Tensor) -> Any:
    y = _mark(x)
    return y + 1 if getattr(y, "is_positive", False) else y


def chooses_a_value(x: Tensor) -> Tensor:
    return x + (1 if x.sum() > 0 else 0)


@refuse("changes found, and that cannot be undone", "choose values", chooses_a_value)
def fills_an_array(x: Tensor) -> Tensor:
    found = np.zeros(2)
    if x.sum() > 0:
        found[0] = 1
    return x + float(found.sum())


def asks_before(x: Tensor) -> Tensor:
    items = iter([1, 2])
    first, second = next(items), next(items)
    return x + first + second if x.sum() > 0 else x + first


@refuse("changes items, and that cannot be undone", "change it before the `if`", asks_before)
def moves_an_iterator(x: Tensor) -> Tensor:
    items = enumerate([1, 2])
    y = x
    if x.sum() > 0:
        y = x + next(items)[1]
    return y + next(items)[1]


def yields_in_any_case(x: Tensor) -> Any:
    def positive() -> Iterator[Any]:
        for t in x:
            y = t if t > 0 else torch.zeros(())
            yield y

    return sum(positive())


@refuse("data decide whether a generator yields", "yield it in any case", yields_in_any_case)
def yields(x: Tensor) -> Any:
    def positive() -> Iterator[Any]:
        with torch.no_grad():
            for t in x:
                if t > 0:
                    yield t

    return sum(positive(), torch.zeros(()))


def writes_to_a_copy(x: Tensor) -> Any:
    c = x + 1
    while c.sum() < 0:
        c = c + 1
    c = c.clone()
    c.add_(1)
    return c


@refuse("a tensor is written to, and .*if it does not run once", r"x.clone\(\)", writes_to_a_copy)
def writes_to_what_a_loop_leaves(x: Tensor) -> Any:
    c = x + 1
    while c.sum() < 0:
        c = c + 1
    c.add_(1)
    return c


def is_a_loop(x: Tensor) -> Tensor:
    while x.sum() <= 10:
        x = x + 1
    return x


@refuse("a function calls itself, and data decide", "write it as a loop", is_a_loop)
def calls_itself(x: Tensor) -> Tensor:
    return x if x.sum() > 10 else calls_itself(x + 1)  # type: ignore[no-any-return]


def on_both_sides(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.cumsum(0).flip(0).argsort(descending=True)
    return x.cumsum(0).flip(0).argsort(descending=False)


@refuse("descending=SymBool", "call it on both sides of an `if`", on_both_sides)
def a_fixed_argument(x: Tensor) -> Tensor:
    return x.cumsum(0).flip(0).argsort(descending=bool(x.sum() > 0))


def sorts_a_tensor(x: Tensor) -> Tensor:
    return torch.sort(torch.stack([*x] * 6)).values


@refuse("18 values, of which data decide the order", r"torch.sort\(", sorts_a_tensor)
def sorts_one_by_one(x: Tensor) -> Tensor:
    return torch.stack(sorted([*x] * 6))


class Bag:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __bool__(self) -> bool:
        return bool(self.x.sum() > 0)

    def holds(self) -> Tensor:
        return self.x.sum() > 0


def asks_by_a_method(x: Tensor) -> Tensor:
    return x + 1 if Bag(x).holds() else x


@refuse("__bool__ should return bool", "a method of another name", asks_by_a_method)
def asks_an_object(x: Tensor) -> Tensor:
    return x + 1 if Bag(x) else x


# ------------------------------------------------------------------- what a number is looked up by


def _count(x: Tensor) -> Any:
    return (x > 0).sum().item() % 3


def asks_before_it_looks_up(x: Tensor) -> Any:
    found, i = {0: x, 1: x + 1}, _count(x)
    return found[i] if 0 <= i < len(found) else x * 2


@refuse("a concrete integer is needed", r"found\[i\] if 0 <= i < len", asks_before_it_looks_up)
def gets_from_a_dict(x: Tensor) -> Any:
    found = defaultdict(lambda: x, {0: x, 1: x + 1})
    return found.get(_count(x), x * 2)


class Scales:
    e0, e1 = 1.0, 2.0


def asks_before_it_reads(x: Tensor) -> Any:
    i = _count(x)
    return x * (getattr(Scales, f"e{i}") if 0 <= i < 2 else 0.0)


@refuse("a concrete integer is needed", "if 0 <= i < n else 0.0", asks_before_it_reads)
def reads_with_a_default(x: Tensor) -> Any:
    return x * getattr(Scales, f"e{_count(x)}", 0.0)


def makes_a_shorter_one(x: Tensor) -> Any:
    values, i = [x, x + 1, x + 2], _count(x)
    return [values[k] if k < i else values[k + 1] for k in range(len(values) - 1)]


@refuse("a concrete integer is needed", r"if k < i else values\[k \+ 1\]", makes_a_shorter_one)
def deletes_an_element(x: Tensor) -> Any:
    values, i = [x, x + 1, x + 2], _count(x)
    del values[i]
    return values


def takes_it_first(x: Tensor) -> Any:
    values, i = [x, x + 1, x + 2], _count(x)
    return values[i], [values[k] if k < i else values[k + 1] for k in range(len(values) - 1)]


@refuse("a concrete integer is needed", r"take it, values\[i\], and", takes_it_first)
def pops_an_element(x: Tensor) -> Any:
    values, i = [x, x + 1, x + 2], _count(x)
    return values.pop(i), values


def makes_a_longer_one(x: Tensor) -> Any:
    v, i = [x, x + 1, x + 2], _count(x)
    return [x * 7 if k == i else v[k] if k < i else v[k - 1] for k in range(len(v) + 1)]


@refuse("a concrete integer is needed", r"v\[k - 1\] for k in range", makes_a_longer_one)
def inserts_an_element(x: Tensor) -> Any:
    v, i = [x, x + 1, x + 2], _count(x)
    v.insert(i, x * 7)
    return v


def appends_it(x: Tensor) -> Any:
    outs = []
    for i in range(_count(x) + 1):
        outs.append(x + i)
    return torch.stack([*outs, x])


@refuse("something is put into the middle of a list", r"torch.stack\(list\)", appends_it)
def inserts_into_what_a_loop_appends(x: Tensor) -> Any:
    outs = []
    for i in range(_count(x) + 1):
        outs.append(x + i)
    outs.insert(1, x)
    return torch.stack(outs)


# ---------------------------------------------------------------------- numbers, and what is raised


def makes_a_tensor(x: Tensor) -> Tensor:
    return torch.tensor([(x > 0).sum().item()])


@refuse("numpy.object_", "with math or with torch", makes_a_tensor)
def makes_an_array(x: Tensor) -> Tensor:
    return torch.tensor(np.array([(x > 0).sum().item()]))


class Chosen:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __index__(self) -> Any:
        return _count(self.x)

    def place(self) -> Any:
        return _count(self.x)


def picks_by_a_method(x: Tensor) -> Any:
    return [x, x + 1, x + 2][Chosen(x).place()]


@refuse("__index__ returned non-int", r"xs\[obj.place\(\)\]", picks_by_a_method)
def picks_by_an_object(x: Tensor) -> Any:
    return [x, x + 1, x + 2][Chosen(x)]


def asks_before_it_divides(x: Tensor) -> Any:
    n = _count(x)
    return x + (6 // n if n != 0 else 1)


@refuse("raises ZeroDivisionError, and that is caught", "if n != 0", asks_before_it_divides)
def catches_a_division(x: Tensor) -> Any:
    try:
        return x + 6 // _count(x)
    except ZeroDivisionError:
        return x + 1


def asks_what_it_returns(x: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(torch.diag(x))
    return factor.contiguous() if failed == 0 else torch.eye(3)


@refuse("raises LinAlgError, and that is caught", "by what cholesky_ex", asks_what_it_returns)
def catches_a_matrix(x: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(torch.diag(x))
    except torch.linalg.LinAlgError:
        return torch.eye(3)


class Box:
    value: Any


def sets_it_on_both(x: Tensor) -> Tensor:
    box = Box()
    box.value = x + 1 if x.sum() > 0 else torch.zeros(3)
    return box.value  # type: ignore[no-any-return]


@refuse(r"box\['value'\] is on the True side only", "set the same keys and", sets_it_on_both)
def sets_it_on_one(x: Tensor) -> Tensor:
    box = Box()
    boxes = (box, box)
    if x.sum() > 0:
        box.value = x + 1
    return getattr(boxes[1], "value", torch.zeros(3))


# ------------------------------------------------------------------ transforms, and their gradients


def differentiates_a_choice(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    y = torch.where(x.sum() > 0, (x * x).sum(), (x * 3).sum()) + x.sum()
    return torch.autograd.grad(y, x)[0]


@refuse("gradients are taken of what a branch", r"torch.where\(", differentiates_a_choice)
def differentiates_a_branch(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    y = torch.cond(x.sum() > 0, lambda x: (x * x).sum(), lambda x: (x * 3).sum(), (x,)) + x.sum()
    return torch.autograd.grad(y, x)[0]


@refuse("gradients are taken of what a branch", r"torch.where\(", differentiates_a_choice)
def differentiates_a_loop(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    y = x
    while y.abs().sum() > 1:
        y = y / 2
    return torch.autograd.grad((y + x).sum(), x)[0]


def asks_before_it_maps(x: Tensor) -> Tensor:
    factor = 2 if x.sum() > 0 else 3
    return torch.vmap(lambda row: row * factor)(x)  # type: ignore[no-any-return]


@refuse("a branch or a loop on data reads a tensor of torch.vmap", "before", asks_before_it_maps)
def asks_while_it_maps(x: Tensor) -> Tensor:
    def scale(row: Tensor) -> Tensor:
        return row * 2 if x.sum() > 0 else row * 3

    return torch.vmap(scale)(x)  # type: ignore[no-any-return]


# ------------------------------------------------------- lists that change while a loop reads them


def goes_on_by_a_count(x: Tensor) -> Tensor:
    total = torch.ones(())
    while x[0] > 0 and total < 21:
        total = total + 10
    return total + x * 0


@refuse(
    "data decide what is appended to a list while a loop goes over it",
    "torch.stack",
    goes_on_by_a_count,
)
def appends_to_what_it_goes_over(x: Tensor) -> Tensor:
    todo, total = [1], 0
    for each in todo:
        total += each
        if x[0] > 0 and len(todo) < 3:
            todo.append(10)
    return x + total


class Stop(BaseException):
    """Not one of those that `except Exception` catches."""


def adds_where_it_stops(x: Tensor) -> Tensor:
    return x + 50 if x.sum() > 0 else x


@refuse("whether check raises Stop, and that may be caught", "call it by", adds_where_it_stops)
def catches_what_is_no_exception(x: Tensor) -> Tensor:
    def check(x: Tensor) -> Tensor:
        if x.sum() > 0:
            raise Stop
        return x

    try:
        (y,) = map(check, [x])
    except BaseException:
        y = x + 50
    return y
