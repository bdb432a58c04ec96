"""Numbers that a module leaves in Python beside tensors that it keeps: if the next call computes
with them, the program would part from eager at the second call, and is refused. And caches in
containers of the caller's, of which a part is written to and a part replaced."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.errors import CaptureError

X = torch.tensor([1.0, 2.0, 3.0])
CALLS = (X, -X, X * 5, X)
Program = Callable[[Any, Any], Any]
COUNT = 0
ARRAY = np.zeros(1)


class Box:
    def __init__(self) -> None:
        self.n = 0


class Counting(nn.Module):
    def __init__(self, body: Program) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("total", torch.zeros(3))
        self.count, self.last, self.rows = 0, 0.0, None
        self.counts, self.box, self.inner = [0], Box(), nn.Linear(3, 3)
        self.turns, self.once = itertools.count(), iter([1])
        self.array, self.bytes = np.zeros(1), {"a": bytearray(1)}

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


def _beside_a_branch(m: Any, x: Any) -> Any:
    m.count += 1
    m.total += m.count
    return m.total + x if x.sum() > 0 else m.total - x


def _without_a_branch(m: Any, x: Any) -> Any:
    m.count += 1
    m.total += m.count
    return m.total + x


def _on_both_sides(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.count += 1
        m.total += m.count
    else:
        m.count += 1
        m.total -= m.count
    return m.total * 1


def _beside_a_loop(m: Any, x: Any) -> Any:
    while m.total.sum() < 3:
        m.total += 1
    m.count += 1
    m.total += m.count
    return m.total * 1


def _in_a_list(m: Any, x: Any) -> Any:
    m.counts.append(0)
    m.total += len(m.counts)
    return m.total * 2 if x.sum() > 0 else m.total * 1


def _in_an_object(m: Any, x: Any) -> Any:
    m.box.n += 1
    m.total += m.box.n
    return m.total * 2 if x.sum() > 0 else m.total * 1


def _in_a_global(m: Any, x: Any) -> Any:
    global COUNT
    COUNT += 1
    m.total += COUNT
    return m.total * 1


def _at_first(m: Any, x: Any) -> Any:
    if m.rows is None:
        m.total.copy_(x)
        m.rows = 3
    return m.total + x


def _of_data(m: Any, x: Any) -> Any:
    m.total += m.last
    m.last = x.sum().item()
    return m.total * 1


def _into_an_argument(m: Any, x: Any) -> Any:
    m.count += 1
    x.add_(m.count)
    return x * 1


def _each_third_time(m: Any, x: Any) -> Any:
    m.count += 1
    m.total += 1
    if m.count % 3 == 0:
        m.total += 5
    return m.total * 1 if x.sum() > 0 else m.total * 2


def _after_some_time(m: Any, x: Any) -> Any:
    m.count = min(m.count + 1, 5)
    m.total += x
    return m.total * 1 if m.count <= 2 else m.total * 2


def _raises_later(m: Any, x: Any) -> Any:
    if m.count:
        raise ValueError("once")
    m.count = 1
    m.total += 1
    return m.total * 1


def _of_an_iterator(m: Any, x: Any) -> Any:
    m.total += next(m.turns)
    return m.total * 1


def _of_one_that_ends(m: Any, x: Any) -> Any:
    m.total += next(m.once)
    return m.total * 1


def _in_an_array(m: Any, x: Any) -> Any:
    m.array[0] += 1
    m.total += m.array[0].item()
    return m.total * 1


def _in_bytes(m: Any, x: Any) -> Any:
    m.bytes["a"].append(1)
    m.total += len(m.bytes["a"])
    return m.total * 1


def _by_default(m: Any, x: Any, counts: list[int] = [0], *, more: Any = ARRAY) -> Any:  # noqa: B006
    counts[0] += 1
    m.total += counts[0]
    return m.total * 1


READ: list[tuple[Program, str]] = [
    (_beside_a_branch, r"sets its attribute count, which was 0, to 1 \(.*m\.count \+= 1\)"),
    (_without_a_branch, "sets its attribute count, which was 0, to 1"),
    (_on_both_sides, "sets its attribute count, which was 0, to 1"),
    (_beside_a_loop, "sets its attribute count, which was 0, to 1"),
    (_in_a_list, r"sets its attribute counts\[1\], which was not there, to 0"),
    (_in_an_object, r"sets its attribute box\.n, which was 0, to 1"),
    (_in_a_global, "sets COUNT, a global of test_counting.py, from 0 to 1"),
    (_at_first, "sets its attribute rows, which was None, to 3"),
    (_of_data, "sets its attribute last, which was 0.0, to"),
    (_into_an_argument, "sets its attribute count, which was 0, to 1"),
    (_each_third_time, "sets its attribute count, which was 0, to 1"),
    (_after_some_time, "sets its attribute count, which was 0, to 1"),
    (_raises_later, "sets its attribute count, which was 0, to 1"),
    (_of_an_iterator, "takes a value from its attribute turns, a count"),
    (_of_one_that_ends, "takes a value from its attribute once, a list_iterator"),
    (_in_an_array, "changes its attribute array, a ndarray, in place"),
    (_in_bytes, r"changes its attribute bytes\['a'\], a bytearray, in place"),
    (_by_default, r"sets counts\[0\], which an argument of _by_default is by default, from 0 to 1"),
]


@pytest.mark.filterwarnings("ignore:the module (sets|takes|changes)")
@pytest.mark.parametrize(("body", "pattern"), READ)
def test_a_number_that_the_next_call_reads_is_refused(body: Program, pattern: str) -> None:
    module = Counting(body)
    before = deepcopy(vars(module.box)), [*module.counts], {**vars(module)}
    with pytest.raises(
        CaptureError, match=f"{pattern}[\\s\\S]*a later call is another program"
    ) as e:
        export(module, (X,))
    assert "keep it in a buffer, self.register_buffer" in str(e.value)
    assert "call the module once before it is exported" in str(e.value)
    assert (vars(module.box), module.counts, vars(module)) == before
    assert COUNT == 0


def test_a_module_that_its_first_call_prepares() -> None:
    """As RWKV divides its weights once: after that call it is exported."""

    class Prepared(Counting):
        def __init__(self) -> None:
            super().__init__(_prepare)
            self.weight = nn.Parameter(torch.ones(2))

    def _prepare(m: Any, x: Any) -> Any:
        if not m.count:
            with torch.no_grad():
                m.weight.div_(2)
            m.count = 1
        return m.weight.sum() * x

    module = Prepared()
    with (
        pytest.warns(UserWarning, match="sets its attribute count"),
        pytest.raises(CaptureError, match="call the module once before it is exported"),
    ):
        export(module, (X,))
    module(X)
    program = export(module, (X,)).module()
    for _ in range(2):
        torch.testing.assert_close(program(X), module(X))


def _nothing_reads_it(m: Any, x: Any) -> Any:
    m.count += 1
    m.total += x
    return m.total * 2 if x.sum() > 0 else m.total * 1


def _told_from_time_to_time(m: Any, x: Any) -> Any:
    m.count += 1
    if m.count % 2 == 0:
        TOLD.append(m.count)
    m.total += x
    return m.total * 1


def _there_and_back(m: Any, x: Any) -> Any:
    m.count = 1 - m.count
    m.total += x * (2 if m.count in (0, 1) else 3)
    return m.total * 1


TOLD: list[int] = []


def _set_before_it_is_read(m: Any, x: Any) -> Any:
    m.rows = x.shape[0]
    m.last = x.sum().item()
    m.total += m.rows + m.last
    return m.total * 1


SET: list[Program] = [
    _nothing_reads_it, _told_from_time_to_time, _there_and_back, _set_before_it_is_read,
]  # fmt: skip


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("body", SET)
def test_a_number_that_the_next_call_does_not_read_is_told_of(
    body: Program, is_dynamic: bool
) -> None:
    module = Counting(body)
    sizes = ({0: Dim("rows", max=99)},) if is_dynamic and body is _set_before_it_is_read else None
    if sizes is not None:
        module.total = torch.zeros(())
    with pytest.warns(UserWarning, match="the program keeps no such state"):
        run = export(deepcopy(module), (X,), dynamic_shapes=sizes).module()
    for x in CALLS if sizes is None else (X, torch.ones(5), X[:2]):
        torch.testing.assert_close(run(x), module(x))
        torch.testing.assert_close(run.get_buffer("total"), module.total)


# --------------------------------------------------------------------- containers of the caller's


def _rolled(x: Tensor, cache: Any) -> Tensor:
    if x.sum() > 0:
        cache["k"] = cache["k"].roll(-2, 1)
    n = int(cache["n"])
    cache["k"][:, n : n + 2] = x
    return cache["k"] * 1


def _written_and_replaced(x: Tensor, cache: Any) -> Tensor:
    cache["k"][:, 1:3] = x
    cache["k"] = cache["k"].roll(-2, 1)
    return cache["k"] * 1


def _counted(x: Tensor, cache: Any) -> Tensor:
    cache["k"][:, :2] = x
    cache["n"] = cache["n"] + 1
    return cache["k"] * cache["n"]


def _numbered(x: Tensor, cache: Any) -> Tensor:
    n = cache.setdefault("at", {"n": 0})["n"]
    cache["k"][:, n : n + 2] = x
    cache["at"]["n"] = n + 2
    return cache["k"] * 1


def _in_place(x: Tensor, cache: Any) -> Tensor:
    if x.sum() > 0:
        cache["k"].copy_(cache["k"].roll(-2, 1))
        cache["n"] += 1
    n = cache["n"].item()
    cache["k"][:, n : n + 2] = x
    return cache["k"] * 1


def new_cache() -> dict[str, Tensor]:
    return {"k": torch.zeros(1, 6), "n": torch.tensor(0)}


PAIRS = [torch.tensor([pair]) for pair in ((1.0, 2.0), (-3.0, 1.0), (4.0, 5.0))]


@pytest.mark.parametrize("function", [_rolled, _written_and_replaced, _counted])
def test_a_cache_that_is_written_to_and_replaced_is_refused(function: Any) -> None:
    pattern = (
        r"puts another value into cache\['(k|n)'\], a dict of the caller's, and writes to the "
        r"tensor in cache\['k'\]\.\n  at .*: cache\[.*\] = .*\n[\s\S]*"
        r"instead: write into the tensor that is there"
    )
    with pytest.raises(CaptureError, match=pattern):
        export(function, (PAIRS[0], new_cache()))


def test_a_cache_with_a_number_is_refused() -> None:
    pattern = r"another value into cache\['at'\]\['n'\].*\n[\s\S]*keep a number in a tensor"
    with pytest.raises(CaptureError, match=pattern):
        export(_numbered, (PAIRS[0], {**new_cache(), "at": {"n": 0}}))


def test_a_cache_that_is_written_to() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = export(_in_place, (PAIRS[0], new_cache())).module()
    caches = new_cache(), new_cache()
    for x in PAIRS:
        torch.testing.assert_close(run(x, caches[0]), _in_place(x, caches[1]))
        torch.testing.assert_close(*caches)
