"""Which tensors of a recording share memory, and what each of them is a view of.

Every tensor belongs to a *root* (the tensor whose storage it views) and knows what it is a view of,
up to the root. A write gives the root a new value; the version of the root tells which of its views
have to be taken again when they are next read. Must not record: recorders do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch._ops import OpOverload

from lostwax.fake.tensor import FakeTensor
from lostwax.ir.trace.log import Step, Value, new_value
from lostwax.ops.registry import has_trait, operator
from lostwax.ops.traits import Trait
from lostwax.types import TensorType


class View(NamedTuple):
    """One link from a tensor to a view of it."""

    func: OpOverload
    args: tuple[Any, ...]
    """The arguments after the viewed tensor."""
    kwargs: dict[str, Any]
    position: int | None
    """Which of several outputs (`split`)."""
    grad: bool = True
    """Whether gradients flow through it."""
    history: Value | None = None
    """If it is detached, and was written to since: the value that has its gradient."""


class Tracked:
    """What a recorder knows of a fake; kept in `fake.tracked`."""

    __slots__ = ("base", "root", "seen", "type", "value", "view")

    value: Value
    root: Root
    type: TensorType
    """Its type to the user: places in memory count from the storage's start."""
    base: Tracked | None
    """What it is a view of; None: it is the root."""
    view: View | None
    seen: int
    """The root's version at which `value` was right."""

    def way(self) -> list[Tracked]:
        """From the root's own tensor to this view."""
        found = [self]
        while (base := found[-1].base) is not None:
            found.append(base)
        return found[::-1]


IN_LOOP = "the loop's own"
"""The kind of what a loop hands on, inside of it."""


class Root(Tracked):
    """A tensor that owns its storage: its value is the storage's functional content. Its values
    keep its type, which is their layout."""

    __slots__ = ("kind", "name", "others", "version")

    version: int
    """How often it was written."""
    others: bool
    """Another input shares this memory without being a view we know."""
    kind: str
    """What it is to the user, for a message: "" for what the program makes itself."""
    name: str

    def write(self, value: Value) -> None:
        self.value = value
        self.seen = self.version = self.version + 1


def make_root(
    fake: FakeTensor, step: Step | None, index: Any, kind: str = "", name: str = ""
) -> Root:
    """A new tensor, of a step or given to the program: its value, and its own root."""
    value = Value()
    value.step = step
    value.index = index
    value.type = t = fake.fake_type
    value.fake = fake
    value.is_literal = False
    root = Root()
    root.value = value
    root.root = fake.tracked = root
    root.type = t
    root.base = root.view = None
    root.seen = root.version = 0
    root.others = False
    root.kind = kind
    root.name = name
    return root


def track(fake: FakeTensor, value: Value) -> Root:
    """A fake that stands for a value: its own root."""
    root = make_root(fake, None, None)
    root.value = value
    return root


def track_view(fake: FakeTensor, value: Value, base: Tracked, view: View) -> None:
    tracked = fake.tracked = Tracked()
    tracked.value = value
    tracked.root = root = base.root
    tracked.type = fake.fake_type
    tracked.base = base
    tracked.view = view
    tracked.seen = root.version


def track_views(step: Step, base: Tracked, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
    """Give a step that views its first argument its results, which are views of the base."""
    func, rest = step.target, tuple(args[1:])
    if type(out) is FakeTensor:
        value = step.result = new_value(step, None, out.fake_type, out)
        track_view(out, value, base, View(func, rest, kwargs, None, step.grad))
        return out
    values = step.result = [new_value(step, i, o.fake_type, o) for i, o in enumerate(out)]
    for i, (fake, value) in enumerate(zip(out, values, strict=True)):
        track_view(fake, value, base, View(func, rest, kwargs, i, step.grad))
    return out


def is_scattered(tracked: Tracked) -> bool:
    """Is what is written to it copied on the way to its root?"""
    views = (each.view for each in tracked.way() if each.view is not None)
    return any(has_trait(view.func, Trait.SHOWS_PART) for view in views)


def is_blank(tracked: Tracked) -> bool:
    """Is it a tensor of the program's own that has no elements, so that nobody sees it resized?"""
    return tracked.base is None and not tracked.root.kind and 0 in tracked.type.size


def memory_of(value: Value) -> Value:
    """The value whose memory this one shows; itself, if it is no view."""
    *_, owner = walk_views(value)
    return owner


def walk_views(value: Value) -> Iterator[Value]:
    """The value, what it is a view of, and so on, up to the value that owns the memory."""
    yield value
    while (step := value.step) is not None and isinstance(step.target, OpOverload):
        record = operator(step.target)
        if not step.args or not isinstance(step.args[0], Value):
            return
        if record.kind != "view" and not (record.itself and record.itself(*_show_types(step))):
            return
        value = step.args[0]
        yield value


def _show_types(step: Step) -> list[Any]:
    """The arguments of a step, with types in the place of tensors."""
    return [a.type if isinstance(a, Value) else a for a in step.args]
