"""Programs that return one thing or another."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

PROGRAMS: list[Any] = []


def results(program: Any) -> Any:
    PROGRAMS.append(program)
    return program


class Mode(enum.IntEnum):
    UP = 1
    DOWN = 2


class Pair(NamedTuple):
    a: Any
    b: Any = None


@dataclass
class Record:
    value: Any
    count: int = 0

    def get(self) -> int:
        return self.count


class Node:
    def __init__(self, value: Tensor, rest: Node | None) -> None:
        self.value, self.rest = value, rest


# ------------------------------------------------------------------------------------------ results


@results
def a_pair_or_one(x: Tensor) -> Any:
    if x.sum() > 0:
        return x, x
    return x


@results
def two_dtypes(x: Tensor) -> Any:
    return x.double() if x.sum() > 0 else x + 1


@results
def two_dtypes_of_a_product(x: Tensor) -> Any:
    best = 0.5
    for each in x:
        if each > 1:
            best = each.double()
    return x[0] * best


@results
def words_in_a_tuple(x: Tensor) -> Any:
    return x, "large" if x.sum() > 0 else "small"


@results
def the_name_of_the_largest(x: Tensor) -> Any:
    scores = {"a": x[0], "b": x[1], "c": x[2] + 1}
    return max(scores, key=lambda name: scores[name])


@results
def a_member(x: Tensor) -> Any:
    mode = Mode.UP
    while x.abs().sum() < 9:
        x = x + 3 if mode is Mode.UP else x + 1
        mode = Mode.DOWN if x.sum() > 3 else Mode.UP
    return x, mode


@results
def a_number_if_it_does_not_run(x: Tensor) -> Any:
    total = 0
    while x.abs().sum() > 1:
        total, x = total + x.max(), x / 2  # type: ignore[assignment]
    return total


@results
def the_number_before(x: Tensor) -> Any:
    best = -1
    while x.sum() > 0:
        best, x = x.sum(), x - 1  # type: ignore[assignment]
    return best


@results
def nothing_added(x: Tensor) -> Any:
    return sum(t for t in x if t > 0)


@results
def three(x: Tensor) -> Any:
    if x.sum() > 0:
        return x
    return x.sum() if x.sum() < -3 else None


@results
def an_integer_a_float_a_truth(x: Tensor) -> Any:
    if x.sum() > 5:
        return 1
    return 0.5 if x.sum() > 0 else False


@results
def of_a_size_that_data_decide(x: Tensor) -> Any:
    return x[x > 1] if x.sum() > 0 else None


@results
def a_number_or_a_tensor(x: Tensor) -> Any:
    return x.sum().item() if x.sum() > 0 else x.sum()


@results
def the_other_way_round(x: Tensor) -> Any:
    return (x, None) if x.sum() > 0 else (None, x)


@results
def the_same_twice(x: Tensor) -> Any:
    found = None
    if x.sum() > 0:
        found = x + 1
    return [found, {"a": (found, 3)}]


@results
def a_dtype_or_a_size(x: Tensor) -> Any:
    return x.dtype if x.sum() > 0 else x.shape


@results
def an_empty_tuple(x: Tensor) -> Any:
    return () if x.sum() > 0 else x


@results
def written_to(x: Tensor) -> Any:
    if x.sum() > 0:
        x.add_(1)
        return x
    return None


@results
def other_keys(x: Tensor) -> Any:
    return {"a": x, "b": None} if x.sum() > 0 else {"a": x * 2}


@results
def lists_of_two_lengths(x: Tensor) -> Any:
    return [x, x + 1] if x.sum() > 0 else [x]


@results
def a_named_tuple(x: Tensor) -> Any:
    return Pair(x * 2, 1) if x.sum() > 0 else Pair(x)


@results
class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(3))
            self.layer.bias.zero_()

    def forward(self, x: Tensor) -> Any:
        h = self.layer(x)
        self.count += 1
        return (h, None) if h.sum() > 0 else (None, h.sum())


# ------------------------------------------------------------------------- objects, lists and dicts


@results
def seen_by_a_method(x: Tensor) -> Any:
    record: Any = None
    read: Callable[[], int] | None = None
    if x.sum() > 0:
        record = Record(x, 1)
        read = record.get
    if record is None or read is None:
        return x
    record.count = 7
    return x * read()


@results
def seen_by_a_method_on_the_other_side(x: Tensor) -> Any:
    record: Any = None
    read: Callable[[], int] | None = None
    if not x.sum() > 0:
        record = Record(x, 1)
        read = record.get
    if record is None or read is None:
        return x
    record.count = 7
    return x * read()


@results
def under_two_names(x: Tensor) -> Any:
    record: Any = None
    other: Any = None
    if x.sum() > 0:
        record = other = Record(x, 1)
    if record is None:
        return x
    record.count, record.value = 7, x * 3
    return x * other.count + other.value


@results
def in_a_list_as_well(x: Tensor) -> Any:
    record, records = None, list[Any]()
    if x.sum() > 0:
        record = Record(x, 1)
        records = [record]
    if record is None:
        return x
    record.count = 7
    return x * records[0].count


@results
def made_anew_in_turns(x: Tensor) -> Any:
    record = first = Record(x, 1)
    for each in x:
        if each > 0:
            record = Record(each * x, record.count + 1)
        else:
            record.value = record.value * 2
    return record.value, record.count, first.value


@results
def appended_to_by_another_name(x: Tensor) -> Any:
    values = [x]
    if x.sum() > 0:
        values = [x, x * 2]
    others = values
    others.append(x * 3)
    return torch.stack(values).sum(0), len(others)


@results
def written_in_place(x: Tensor) -> Any:
    y = x + 0
    values = [y]
    if x.sum() > 0:
        values = [y, y]
    values[0].add_(1)
    return y, values[-1]


@results
def written_in_place_under_two_names(x: Tensor) -> Any:
    y = z = None
    if x.sum() > 0:
        y = z = x + 1
    if y is not None:
        y.add_(1)
    return x if z is None else z


@results
def a_chain(x: Tensor) -> Any:
    head: Node | None = None
    for each in x:
        if each > 0:
            head = Node(each, head)
    total = torch.zeros(())
    while head is not None:
        total, head = total * 10 + head.value, head.rest
    return total


@results
def in_itself(x: Tensor) -> Any:
    record = None
    if x.sum() > 0:
        record = Record(x)
        record.value = record
    return x if record is None else x * 2


@results
def one_or_another_by_identity(x: Tensor) -> Any:
    one = Record(x, 1)
    other = one if x.sum() > 0 else Record(x * 2, 5)
    other.count += 1
    return one.count, other.value, other is one


@results
def gone_over(x: Tensor) -> Any:
    values: dict[str, Tensor] = {}
    if x.sum() > 0:
        values = {"a": x, "b": x * 2}
    total = x * 0
    for each in values.values():
        total = total + each
    return total, len(values), values.get("b", 1)


# ------------------------------------------------------------------ numbers of two kinds, in a loop


@results
def an_integer_becomes_a_float(x: Tensor) -> Any:
    scale, places = 1, torch.arange(3)
    while (x * scale).norm() > 2:
        scale = scale * 0.5  # type: ignore[assignment]
    return x * scale, scale, places * scale, isinstance(scale, int)


@results
def an_integer_again(x: Tensor) -> Any:
    scale = 2
    while (x * scale).norm() > 2:
        scale = scale / 2 if x.sum() > 5 else 0  # type: ignore[assignment]
    return scale, x * scale


@results
def halved_by_either_division(x: Tensor) -> Any:
    scale = 8
    while (x * scale).norm() > 2:
        scale = scale // 2 if x[0] > 2 else scale / 2  # type: ignore[assignment]
    return scale, x * scale, scale // 3, scale % 3, -scale, abs(scale)


@results
def beyond_what_floats_can_tell(x: Tensor) -> Any:
    big = 2**60
    while x.norm() > 2:
        big = big / 2 if x.sum() > 5 else big + 1  # type: ignore[assignment]
        x = x / 2
    return big, big > 2**60


@results
def a_truth_becomes_an_integer(x: Tensor) -> Any:
    flag = True
    while (x * flag).norm() > 2:
        flag = 0  # type: ignore[assignment]
    return flag


@results
def an_integer_becomes_a_truth(x: Tensor) -> Any:
    flag = 0
    while (x * (1 - flag)).norm() > 2:
        x = x / 2
        flag = x.norm() > 9 or x[0] > 1  # type: ignore[assignment]
        flag = bool(flag)
    return flag, x


@results
def a_float_becomes_an_integer(x: Tensor) -> Any:
    step = 0.5
    for _ in range(int(x[0].abs())):
        step, x = 1, x + step
    return x + step, step


@results
def none_and_then_counted(x: Tensor) -> Any:
    count = None
    while x.sum() > 1:
        count = 1 if count is None else count + 1
        x = x / 2
    return x if count is None else x * count


@results
def tensors_are_made_of_it(x: Tensor) -> Any:
    scale = 1
    while x.norm() > 2:
        scale, x = scale * 0.5, x / 2  # type: ignore[assignment]
    return torch.full((2,), scale), torch.tensor(scale), torch.tensor([scale, 1])


# --------------------------------------------------------------------------- a number or a tensor


@results
def promoted_as_it_is(x: Tensor) -> Any:
    best = 0
    for each in x:
        if each > 1:
            best = each  # type: ignore[assignment]
    one = torch.ones((), dtype=torch.int32)
    return best * x.double().sum(), best + one, best * torch.arange(3), torch.arange(3) / (best + 1)


@results
def compared(x: Tensor) -> Any:
    best = 0
    for each in x:
        if each > 1:
            best = each  # type: ignore[assignment]
    return best == 0, best is None, best != 3, best > 2


@results
def made_a_tensor_or_a_number(x: Tensor) -> Any:
    best = -1
    for each in x:
        if each > 1:
            best = each  # type: ignore[assignment]
    least = torch.minimum(torch.as_tensor(best), x.sum())
    return least, torch.stack([torch.as_tensor(best, dtype=x.dtype)]), float(best), int(best)


@results
def the_least_of_a_loop(x: Tensor) -> Any:
    best = float("inf")
    while x.norm() > 2:
        loss = (x - 7).abs().sum()
        best = min(best, loss)  # type: ignore[assignment,type-var]
        x = x / 2
    return best, x


# ------------------------------------------------------------------------------- exits of one kind


class Found:
    def __init__(self, value: Tensor, count: int) -> None:
        self.value, self.count, self.values = value, count, [value]


@results
def one_of_many_exits(x: Tensor) -> Any:
    def solve(x: Tensor) -> Found:
        for step in range(20):
            if x.norm() < 1:
                return Found(x, step)
            x = x / 1.5
        return Found(x, -1)

    found = solve(x)
    found.count += 1
    found.values[0] = found.values[0] + 1
    return found.value, found.count, found.values


@results
def a_dict_at_many_exits(x: Tensor) -> Any:
    for step in range(12):
        if x.norm() < 1:
            return {"x": x, "steps": step}
        x = x / 1.5
    return {"x": x, "steps": -1}


def exits_that_somebody_keeps(x: Tensor) -> Any:
    kept = list[Found]()

    def solve(x: Tensor) -> Found:
        for step in range(3):
            found = Found(x, step)
            kept.append(found)
            if x.norm() < 1:
                return found
            x = x / 1.5
        return Found(x, -1)

    found = solve(x)
    found.count += 10
    return [each.count for each in kept[:1]], found.count


@results
def its_attributes_are_seen(x: Tensor) -> Any:
    found = Found(x, 1)
    seen = found.__dict__
    for each in x:
        if each > 0:
            found = Found(each * x, found.count + 1)
        else:
            found.count += 5
    return found.value, seen["count"], found.count


@results
def goes_to_another_name(x: Tensor) -> Any:
    found, last = Found(x, 1), None
    for each in x:
        if each > 0:
            last, found = found, Found(each * x, found.count + 1)
        else:
            found.count += 5
    if last is not None:
        last.count = 100
    return found.count, 0 if last is None else last.count


@results
def a_sum_of_what_is_given(x: Tensor) -> Any:
    def positive() -> Iterator[Tensor]:
        for t in x:
            if t > 0:
                yield t

    return sum(positive())


@results
def a_sum_of_a_list(x: Tensor) -> Any:
    return sum([t for t in x if t > 0])


@results
def a_number_becomes_an_integer(x: Tensor) -> Any:
    n = 0.5
    while x.sum() < 10:
        n, x = 1, x + n
    return x + n, n
