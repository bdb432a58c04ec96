"""What a call leaves in a module, wherever it hides: it is refused or reported, and restored."""

from __future__ import annotations

import copy
import functools
import random
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lostwax.capture import export
from lostwax.errors import CaptureError, UnsupportedFakeError

HERE = "tests/capture/state/test_kept.py"
X = torch.arange(4.0)


class Box:
    """An object that is no module."""

    def __init__(self, **held: Any) -> None:
        self.calls = 0
        self.total: Any = None
        vars(self).update(held)


class Slotted:
    __slots__ = ("__hidden", "calls", "total")

    def __init__(self) -> None:
        self.calls = 0

    def hide(self, value: Any) -> None:
        self.__hidden = value


class More(Slotted):
    """Slots, and other attributes."""


@dataclass
class Record:
    calls: int = 0
    total: Any = None
    history: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    history: list[Any] = field(default_factory=list)


class Bag(dict[str, Any]):
    """A container with attributes."""


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.total = 0, None


class Holding(nn.Module):
    """Has something of every kind."""

    def __init__(self, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.change = change
        self.inner = nn.Linear(4, 4)
        self.boxes = [Box(), {"deep": Box(inner=Box())}]
        self.box = Box(inner=Box(inner=SimpleNamespace(total=None, calls=0)))
        self.slotted, self.more = Slotted(), More()
        self.record, self.frozen = Record(), Frozen()
        self.bag, self.pair = Bag(), ([1, 2], {"a": Box()})
        self.hidden = [Hidden()]
        self.counts = {"a": [0, 1], "b": deque([3])}
        self.box.itself = self.box  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        found = self.change(self, x)
        return self.inner(x + found if isinstance(found, Tensor) else x)


def everything(value: Any, seen: dict[int, int] | None = None) -> Any:
    """All that is held, by identity and in order."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    found: list[Any] = [id(value), type(value)]
    if isinstance(value, Tensor):
        return [*found, value.tolist(), value.requires_grad, value.grad, value._version]
    if isinstance(value, (list, tuple, deque)):
        found += [everything(each, seen) for each in value]
    if isinstance(value, dict):
        found += [(k, everything(v, seen)) for k, v in value.items()]
    if type(value).__module__ == __name__ or isinstance(value, (nn.Module, SimpleNamespace)):
        names = ("_Slotted__hidden", "calls", "total", "history")
        found += [(n, everything(getattr(value, n), seen)) for n in names if hasattr(value, n)]
        found += [(k, everything(v, seen)) for k, v in getattr(value, "__dict__", {}).items()]
    return found


def test_everything_sees_a_change() -> None:
    module = Holding(lambda self, x: None)
    for change, _ in KEPT + GROWN + COUNTED:
        before = everything(module)
        assert everything(module) == before
        saved = copy.deepcopy(module)
        change(saved, X)
        assert everything(saved)[2:] != before[2:]


KEPT: list[tuple[Callable[[Any, Tensor], Any], str]] = [
    (lambda m, x: setattr(m.boxes[0], "total", x * 2), r"boxes\[0\]\.total"),
    (lambda m, x: setattr(m.boxes[1]["deep"].inner, "new", -x), r"boxes\[1\]\['deep'\].inner.new"),
    (lambda m, x: setattr(m.box.inner.inner, "total", x * 2), "box.inner.inner.total"),
    (lambda m, x: setattr(m.slotted, "total", x * 2), "slotted.total"),
    (lambda m, x: m.slotted.hide(x * 2), "slotted._Slotted__hidden"),
    (lambda m, x: setattr(m.more, "other", x * 2), "more.other"),
    (lambda m, x: setattr(m.record, "total", x * 2), "record.total"),
    (lambda m, x: setattr(m.bag, "total", x * 2), "bag.total"),
    (lambda m, x: m.bag.update(total=x * 2), r"bag\['total'\]"),
    (lambda m, x: setattr(m.pair[1]["a"], "total", x * 2), r"pair\[1\]\['a'\].total"),
    (lambda m, x: setattr(m.hidden[0], "total", x * 2), r"hidden\[0\].total"),
]  # fmt: skip
GROWN: list[tuple[Callable[[Any, Tensor], Any], str]] = [
    (lambda m, x: m.record.history.append(x * 2), r"record.history\[0\]"),
    (lambda m, x: m.frozen.history.append(x * 2), r"frozen.history\[0\]"),
    (lambda m, x: m.pair[0].append(x * 2), r"pair\[0\]\[2\]"),
]


def read(change: Callable[[Any, Tensor], Any], where: str) -> Callable[[Any, Tensor], Any]:
    """The same change in a call that reads what the last one left there."""
    path = "m." + where.replace("\\", "")

    def read_and_change(m: Any, x: Tensor) -> Any:
        try:
            found = eval(path, {"m": m})
        except (AttributeError, LookupError):
            found = None
        change(m, x)
        return found

    return read_and_change


def count(get: Callable[[Any], Any]) -> Callable[[Any, Tensor], None]:
    def change(module: Any, x: Tensor) -> None:
        get(module).calls += 1

    return change


def count_in(get: Callable[[Any], Any], at: Any) -> Callable[[Any, Tensor], None]:
    def change(module: Any, x: Tensor) -> None:
        get(module)[at] += 1

    return change


COUNTED: list[tuple[Callable[[Any, Tensor], Any], str]] = [
    (count(lambda m: m.boxes[0]), r"sets its attribute boxes\[0\].calls, which was 0, to 1"),
    (count(lambda m: m.box.inner.inner), "sets its attribute box.inner.inner.calls"),
    (count(lambda m: m.slotted), "sets its attribute slotted.calls, which was 0, to 1"),
    (count(lambda m: m.record), "sets its attribute record.calls"),
    (count(lambda m: m.hidden[0]), r"sets its attribute hidden\[0\].calls"),
    (count_in(lambda m: m.counts["a"], 0), r"its attribute counts\['a'\]\[0\], which was 0, to 1"),
    (count_in(lambda m: m.pair[0], 1), r"its attribute pair\[0\]\[1\], which was 2, to 3"),
    (lambda m, x: m.counts["b"].pop(), r"takes away counts\['b'\]\[0\], which was 3"),
    (lambda m, x: delattr(m.record, "calls"), "takes away record.calls, which was 0"),
]


@pytest.mark.parametrize(("change", "where"), KEPT)
def test_tensors_that_nothing_reads_are_told_of(
    change: Callable[[Any, Tensor], Any], where: str
) -> None:
    module = Holding(change)
    before = everything(module)
    with pytest.warns(UserWarning, match=rf"keeps a tensor in the attribute {where}[,;]"):
        export(module, (X,))
    assert everything(module) == before


@pytest.mark.parametrize(
    ("change", "where"), GROWN + [(read(change, where), where) for change, where in KEPT]
)
def test_tensors_are_refused(change: Callable[[Any, Tensor], Any], where: str) -> None:
    module = Holding(change)
    before = everything(module)
    with pytest.raises(CaptureError, match=rf"keeps a tensor in the attribute {where}\.\n  at "):
        export(module, (X,))
    assert everything(module) == before


@pytest.mark.parametrize(("change", "text"), COUNTED)
def test_numbers_are_told_of(change: Callable[[Any, Tensor], Any], text: str) -> None:
    module = Holding(change)
    before = everything(module)
    with pytest.warns(UserWarning, match=text):
        export(module, (X,))
    assert everything(module) == before


def test_after_a_failure_all_is_as_before() -> None:
    def change(module: Any, x: Tensor) -> None:
        for each, _ in [*COUNTED, *KEPT]:
            each(module, x)
        raise KeyError("on purpose")

    module = Holding(change)
    before = everything(module)
    with pytest.raises(KeyError):
        export(module, (X,))
    assert everything(module) == before


def test_another_container_of_the_same_tensors() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.held, self.pair, self.box = [self.weight], (self.weight, 1), Box(w=self.weight)

        def forward(self, x: Tensor) -> Tensor:
            self.held, self.pair, self.box = [self.weight], (self.weight, 1), Box(w=self.weight)
            return x * self.held[0]

    export(Net(), (X,))


def test_what_is_reached_twice_is_told_of_once(recwarn: pytest.WarningsRecorder) -> None:
    module = Holding(count(lambda m: m.inner.box))
    module.inner.box = module.box
    module.children_of_mine = [module.inner]
    export(module, (X,))
    assert [str(w.message)[:50] for w in recwarn] == [
        "the module sets its attribute box.calls, which was",
        "the module sets its attribute inner.box.calls, whi",
    ]


class Counting(nn.Module):
    calls = 0
    table: ClassVar[dict[str, Any]] = {}

    def __init__(self, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        self.change(self, x)
        return x * 2


class Inheriting(Counting):
    last: Any = None


def _counts(module: Any, x: Tensor) -> None:
    Counting.calls += 1
    Inheriting.made = 3  # type: ignore[attr-defined]


CLASSES: list[tuple[Callable[[Any, Tensor], Any], str]] = [
    (lambda m, x: setattr(Inheriting, "last", x * 2), "Inheriting.last"),
    (lambda m, x: m.table.update(a=x * 2), r"Counting.table\['a'\]"),
]


@pytest.mark.parametrize(("change", "where"), CLASSES)
def test_tensors_kept_by_a_class_are_refused(change: Any, where: str) -> None:
    before = [dict(vars(cls)) for cls in (Counting, Inheriting)]
    with pytest.raises(CaptureError, match=rf"attribute {where}\.[\s\S]*belongs to a class"):
        export(Inheriting(change), (X,))
    assert [dict(vars(cls)) for cls in (Counting, Inheriting)] == before
    assert Counting.table == {}


def test_what_a_class_counts_is_told_of_and_put_back() -> None:
    before = [dict(vars(cls)) for cls in (Counting, Inheriting)]
    with (
        pytest.warns(UserWarning, match=r"its attribute Counting\.calls, which was 0, to 1"),
        pytest.warns(UserWarning, match=r"its attribute Inheriting\.made, which was not there, to"),
    ):
        export(Inheriting(_counts), (X,))
    assert [dict(vars(cls)) for cls in (Counting, Inheriting)] == before
    with pytest.raises(KeyError):
        export(Inheriting(lambda m, x: (_counts(m, x), {}["a"])), (X,))
    assert [dict(vars(cls)) for cls in (Counting, Inheriting)] == before


def test_an_attribute_that_is_deleted_is_told_of() -> None:
    module = Holding(lambda m, x: delattr(m, "mode"))
    module.mode = "fast"
    with pytest.warns(UserWarning, match="takes away mode, which was 'fast'"):
        export(module, (X,))
    assert module.mode == "fast"


# ------------------------------------------------------------------------ tensors that are no state


def gives_data(module: Any, x: Tensor) -> None:
    module.constant.data = x * 2


def gives_a_gradient(module: Any, x: Tensor) -> None:
    module.boxes[0].total.grad = x * 2


def marks(module: Any, x: Tensor) -> None:
    module.constant.requires_grad_()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            gives_data,
            r"size \(4,\) is given other data .*\n  at \S+/test_kept.py:\d+ in gives_data: module",
        ),
        (gives_a_gradient, r"attribute boxes\[0\].total is given another gradient"),
        (marks, "attribute constant is told to require gradients"),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_tensors_that_are_no_state_stay_as_they_are(change: Any, text: str, fails: bool) -> None:
    def both(module: Any, x: Tensor) -> None:
        change(module, x)
        if fails:
            raise CaptureError(text.replace("\\", ""))  # another refusal

    module = Holding(both)
    module.constant = torch.ones(4)
    module.boxes[0].total = torch.ones(4)  # type: ignore[union-attr]
    before = everything(module)
    with pytest.raises((CaptureError, UnsupportedFakeError), match=text):
        export(module, (X,))
    assert everything(module) == before


APART = torch.zeros(4)


def test_no_tensor_is_left_without_memory() -> None:
    """Wherever it is held: reading it would crash the process."""
    weight = nn.Parameter(torch.ones(4))
    part, held = weight * 2, [torch.ones(4)]

    def forward(x: Tensor, target: Tensor) -> Tensor:
        target.data = x * 2
        return x + target

    for target in (APART, part, held[0]):
        before = target.detach().clone()
        with pytest.raises(UnsupportedFakeError, match=r"in forward: target\.data = x"):
            export(functools.partial(forward, target=target), (X,))
        torch.testing.assert_close(target.detach(), before)


def test_what_a_distribution_computes_once_is_put_back() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.normal = torch.distributions.MultivariateNormal(torch.zeros(4), torch.eye(4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.normal.precision_matrix

    module = Net()
    before = dict(vars(module.normal))
    program = export(module, (X,))
    torch.testing.assert_close(program.module()(X), module(X))
    module.normal.__dict__.pop("precision_matrix")
    assert vars(module.normal) == before


# ------------------------------------------------------------------------------ what functions hold


class Counter:
    def __init__(self) -> None:
        self.calls, self.seen = 0, []  # type: ignore[var-annotated]

    def count(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.append(x * 2)
        return x


def test_what_a_method_leaves_in_its_object() -> None:
    counter = Counter()
    with pytest.warns(UserWarning, match=r"its attribute self\.calls, which was 0, to 1"):
        export(counter.count, (X,))
    with pytest.raises(CaptureError, match=r"keeps a tensor in the attribute self\.seen\[0\]"):
        export(counter, (X,))
    assert (counter.calls, counter.seen) == (0, [])


def test_what_a_function_leaves_in_what_it_is_closed_over() -> None:
    seen: list[Any] = []
    box, hidden = Box(), Hidden()

    def forward(x: Tensor) -> Tensor:
        hidden.calls += 1
        box.total = x * 2
        seen.append(x * 3)
        return x

    with pytest.raises(CaptureError, match=r"in the attribute closure\['"):
        export(forward, (X,))
    assert (seen, box.total, hidden.calls) == ([], None, 0)


# ----------------------------------------------------------------------- containers of the caller's


def test_what_is_put_into_containers_of_the_callers_is_told_of() -> None:
    def forward(batch: dict[str, Any], rest: Any) -> Tensor:
        batch["y"] = batch["x"] * 2
        rest[0][1].append(3)
        return batch["y"]

    batch, rest = {"x": X}, ((X, [1, 2]),)
    with (
        pytest.warns(UserWarning, match="the module changes what is in batch, a dict of the"),
        pytest.warns(UserWarning, match=r"what is in rest\[0\]\[1\], a list of the caller"),
    ):
        export(forward, (batch, rest))
    assert (list(batch), rest[0][1]) == (["x"], [1, 2])


def test_containers_that_are_only_read_are_no_matter(recwarn: pytest.WarningsRecorder) -> None:
    export(lambda a, b: a[0] + b["x"], ([X], {"x": X}))
    assert not recwarn.list


# --------------------------------------------------------------------------- where it is, and what


class Hits:
    def __init__(self) -> None:
        self.calls = 0

    def hit(self) -> None:
        self.calls += 1  # in an object


class Values(nn.Module):
    """Leaves all kinds of plain values behind."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.none, self.number, self.kind, self.flag = 0, None, 3, torch.float32, 0
        self.items: list[Any] = []
        self.counts: dict[str, int] = {}
        self.seen: set[int] = set()
        self.pair, self.hits, self.same = (1, 2), Hits(), [1.5, "a"]

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1  # counted
        self.items.append(None)  # appended
        self.counts["a"] = self.counts.get("a", 0) + 1  # by key
        self.seen.add(3)  # in a set
        self.none = "text"  # type: ignore[assignment]  # from None
        self.number = None  # type: ignore[assignment]  # to None
        self.kind = torch.float64  # no number
        self.flag = False  # of another class
        self.pair = (1, 3)  # in a tuple
        self.hits.hit()
        self.same = [1.5, "a"]
        return x * self.n


VALUES = {
    "n, which was 0, to 1": "counted",
    "items[0], which was not there, to None": "appended",
    "counts['a'], which was not there, to 1": "by key",
    "seen[3], which was not there, to 3": "in a set",
    "none, which was None, to 'text'": "from None",
    "number, which was 3, to None": "to None",
    "kind, which was torch.float32, to torch.float64": "no number",
    "flag, which was 0, to False": "of another class",
    "pair[1], which was 2, to 3": "in a tuple",
    "hits.calls, which was 0, to 1": "in an object",
}


def test_values_are_told_of_with_their_line(recwarn: pytest.WarningsRecorder) -> None:
    module = Values()
    export(module, (X,))
    told = sorted(str(w.message) for w in recwarn)
    for (what, comment), text in zip(sorted(VALUES.items()), told, strict=True):
        assert text.startswith(f"the module sets its attribute {what} ({HERE}:")
        assert f"# {comment}); the program keeps no such state" in text
    assert (module.n, module.items, module.counts, module.hits.calls) == (0, [], {}, 0)


COUNT = 0
TABLE = {"n": 0}


def test_counts_outside_of_the_module_are_told_of(recwarn: pytest.WarningsRecorder) -> None:
    inner, kept = 0, torch.zeros(4)

    def forward(x: Tensor) -> Tensor:
        global COUNT
        nonlocal inner, kept
        COUNT += 1
        TABLE["n"] += 1
        inner += 1
        kept = kept + x
        return x * COUNT * TABLE["n"] * inner

    export(forward, (X,))
    told = sorted(str(w.message) for w in recwarn)
    for text, start in zip(
        told,
        (
            "the module keeps a tensor in kept, which test_counts",
            f"the module sets COUNT, a global of test_kept.py, from 0 to 1 ({HERE}:",
            f"the module sets TABLE['n'], a global of test_kept.py, from 0 to 1 ({HERE}:",
            "the module sets inner, which test_counts_outside_of_the_module_are_told_of.<locals>.",
        ),
        strict=True,
    ):
        assert text.startswith(start)
    assert type(kept) is Tensor


class Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = [torch.ones(2), torch.zeros(2)]

    def forward(self, x):
        self.held.append(self.held[0])
        return x * len(self.held)


def test_tensors_that_a_list_repeats_are_told_of() -> None:
    module = Moving()
    text = (
        r"a tensor that it holds into held\[2\], where it was not \(\S+/test_kept\.py:\d+ in forw"
    )
    with pytest.warns(UserWarning, match=text):
        export(module, (torch.ones(2),))
    assert len(module.held) == 2


def test_warnings_point_to_the_users_line() -> None:
    class Counts(nn.Module):
        n = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            return x * self.n * random.random()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export(Counts(), (torch.ones(2),))
    texts = [str(each.message) for each in caught]
    assert any("Counts" in text or ".n" in text for text in texts)
    assert any("draws from Python's random" in text for text in texts)
    assert {each.filename for each in caught} == {__file__}


FILLED: list[int] = []


def test_a_global_list_that_is_filled_by_slices_is_put_back() -> None:
    """(Python 3.12 has an instruction of its own for it.)"""

    def forward(x: Tensor) -> Tensor:
        FILLED[:] = [1, 2]
        return x * len(FILLED)

    torch.testing.assert_close(export(forward, (X,)).module()(X), X * 2)
    assert FILLED == []


def _cache_by_default(x: Tensor, seen: dict[str, Any] = {}) -> Tensor:  # noqa: B006
    if "x" not in seen:
        seen["x"] = x * 2
    return x + seen["x"]


def _list_by_default(x: Tensor, *, seen: list[Any] = []) -> Tensor:  # noqa: B006
    seen.append(x * 2)
    return x + seen[-1]


def _object_by_default(x: Tensor, box: Box = Box(), array: Any = np.zeros(1)) -> Tensor:  # noqa: B008
    box.total = x * 2
    return x + box.total


@pytest.mark.parametrize(
    ("function", "where"),
    [(_cache_by_default, "seen"), (_list_by_default, "seen"), (_object_by_default, "box.total")],
)
def test_what_an_argument_is_by_default(function: Any, where: str) -> None:
    """It is one object for all calls."""

    class Calling(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return function(x)

    said = f"keeps a tensor in {where}, which an argument of {function.__name__} is by default"
    for call in (function, Calling()):
        with pytest.warns(UserWarning, match=said):
            export(call, (X,))
    held = function.__defaults__ or (function.__kwdefaults__["seen"],)
    assert not held[0] if where == "seen" else held[0].total is None
    torch.testing.assert_close(function(X), X * 3)


def test_arrays_that_stay_as_they_are() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dates = np.array(["2020-01-01"], dtype="datetime64[D]")
            self.words = {"a": np.array(["a", None], dtype=object)}
            self.rows = np.zeros((4, 4))[:, ::2]
            self.fixed = np.broadcast_to(np.zeros(1), (3,))

        def forward(self, x: Tensor) -> Tensor:
            return x * len(self.dates) * len(self.words["a"]) + float(self.rows.sum())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = export(Reading(), (X,))
    torch.testing.assert_close(program.module()(X), X * 2)


class PutsBack(nn.Module):
    """As transformers' rope for long texts does: what is there already is put where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.long = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.register_buffer("rows", torch.zeros(3, 4))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.long = self.long.to(x.device)
        self.rows.index_copy_(0, at, x)
        return self.rows * self.long


def test_a_constant_that_is_put_where_it_is() -> None:
    args = torch.ones(1, 4), torch.tensor([1])
    module = PutsBack()
    before = module.long
    program = export(module, args)
    assert module.long is before
    torch.testing.assert_close(program.module()(*args), PutsBack()(*args))


def test_another_tensor_in_the_place_of_a_constant_is_refused() -> None:
    class Changes(PutsBack):
        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            self.long = self.long.to(x.device) * 2
            self.rows.index_copy_(0, at, x)
            return self.rows * self.long

    with pytest.raises(CaptureError, match="keeps a tensor in the attribute long"):
        export(Changes(), (torch.ones(1, 4), torch.tensor([1])))
