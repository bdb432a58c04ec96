"""Views of state that a module keeps in plain attributes, containers and closures: they show what
is written to the state, by the program and by others."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

import lostwax
from lostwax.errors import CaptureError


class Keeping(nn.Module):
    """`keep` makes the views, `body` is the forward."""

    def __init__(self, keep: Callable[[Any], None], body: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("h", torch.arange(6.0))
        self.w = nn.Parameter(torch.arange(6.0).view(2, 3))
        self.body = body
        keep(self)

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


CASES: list[Any] = []
Keep, Body = Callable[[Any], None], Callable[[Any, Any], Any]


def case(keep: Keep) -> Callable[[Body], Body]:
    def add(body: Body) -> Body:
        CASES.append(pytest.param(keep, body, id=body.__name__))
        return body

    return add


def a_view(m: Any) -> None:
    m.v = m.h.view(2, 3)


def parts(m: Any) -> None:
    m.parts = [m.h[:2], m.h[2:]]


def of_parameter(m: Any) -> None:
    m.data, m.t = m.w.data, m.w.t()
    m.td, m.column, m.row = m.w.detach().t(), m.w.data[:, 1], m.w[0]


def several(m: Any) -> None:
    m.views = {"a": m.h[1:3], "b": (m.w[1], m.h[:1].expand(3)), "c": m.h.unfold(0, 2, 3)}


def beside(m: Any) -> None:
    flat = torch.arange(12.0)
    m.register_buffer("p", flat[:6])
    m.q, m.again = flat[6:], m.p[2:4]


def columns(m: Any) -> None:
    m.register_buffer("g", torch.arange(6.0).view(2, 3).t())  # dense, and not row-major
    m.part, m.whole = m.g[1], m.g.detach()


@case(a_view)
def read_after_a_write(m: Any, x: Any) -> Any:
    m.h.add_(1)
    return m.v * x


@case(a_view)
def written_through(m: Any, x: Any) -> Any:
    m.v.add_(x)
    m.v[0] *= 2
    return m.h * 1, m.v


@case(a_view)
def read_by_number(m: Any, x: Any) -> Any:
    m.h.add_(1)
    return x * m.v[0, 0].item()


@case(parts)
def in_a_list(m: Any, x: Any) -> Any:
    m.parts[0].add_(1)
    m.h.mul_(2)
    return m.parts[0] + 1, m.parts[1] * 2, m.parts


@case(of_parameter)
def data_of_a_parameter(m: Any, x: Any) -> Any:
    return x * m.data + m.w, m.column * 2


@case(of_parameter)
def views_with_gradients(m: Any, x: Any) -> Any:
    with torch.no_grad():
        y = m.row * 2
    return m.t * x.t(), m.td * 2, y, m.row * x


@case(several)
def in_containers(m: Any, x: Any) -> Any:
    m.h.add_(1)
    return m.views["a"].sum() * x, m.views["b"][0] * x, m.views["b"][1] + x, m.views["c"] * 2


@case(beside)
def in_one_storage(m: Any, x: Any) -> Any:
    m.p.add_(1)
    return m.q + 1, m.again * 2


@case(columns)
def of_a_transposed_buffer(m: Any, x: Any) -> Any:
    m.g.mul_(2)
    m.part.add_(1)
    return m.g + 1, m.part * 1, m.whole * 1


def _loaded(program: Any) -> nn.Module:
    file = io.BytesIO()
    lostwax.save(program, file)
    return lostwax.load(io.BytesIO(file.getvalue())).module()


def _by_torch(program: Any) -> Any:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@case(several)
def first_read_in_a_branch(m: Any, x: Any) -> Any:
    m.h.add_(1)
    y = torch.cond(x.sum() > 0, lambda: x * m.views["a"].sum(), lambda: x - m.views["a"].sum(), ())
    return y + m.views["a"].sum()


@case(parts)
def written_on_one_side(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.h.add_(1)
        x = x * m.parts[0].sum()
    return x + m.parts[1].sum()


@case(a_view)
def written_in_a_loop(m: Any, x: Any) -> Any:
    turns = torch.zeros(())
    while turns < x.abs().sum():
        m.h.add_(1)
        turns = turns + m.v.abs().sum() + 1
    return x * m.v + turns


WAYS: dict[str, Callable[[Any], Any]] = {
    "module": lambda program: program.module(),
    "decomposed": lambda program: program.run_decompositions().module(),
    "loaded": _loaded,
    "by_torch": _by_torch,
}


def _compare(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected)
    grads = [[t.requires_grad for t in pytree.tree_leaves(r)] for r in (found, expected)]
    assert grads[0] == grads[1]


def _gradient(m: nn.Module, out: Any) -> Any:
    leaves = [t for t in pytree.tree_leaves(out) if t.requires_grad]
    if not leaves:
        return ()
    return torch.autograd.grad(sum(t.sum() for t in leaves), m.get_parameter("w"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("keep", "body"), CASES)
def test_views_that_are_kept_show_the_state(keep: Keep, body: Body, way: str) -> None:
    eager = Keeping(keep, body)
    program = lostwax.export(Keeping(keep, body), (torch.ones(2, 3),))
    assert not any("lifted" in name for name in program.constants if body is not in_one_storage)
    module = WAYS[way](program)
    for _ in range(3):
        x = torch.randn(2, 3)
        _compare(module(x), eager(x))
    with torch.no_grad():  # as load_state_dict, or an optimizer, writes
        for each in (eager, module):
            for value in (*each.parameters(), *each.buffers()):
                value.mul_(3)
    x = torch.randn(2, 3)
    out, expected = module(x), eager(x)
    _compare(out, expected)
    _compare(_gradient(module, out), _gradient(eager, expected))


@pytest.mark.parametrize(("keep", "body"), CASES)
def test_programs_on_the_modules_own_state(keep: Keep, body: Body) -> None:
    eager, mine = Keeping(keep, body), Keeping(keep, body)
    captured = lostwax.capture(mine)
    for _ in range(3):
        x = torch.randn(2, 3)
        _compare(captured(x), eager(x))
        with torch.no_grad():
            eager.h += 1
            mine.h += 1


def test_views_in_globals_of_a_function() -> None:
    net = nn.Linear(3, 3)
    rows = [net.weight[0], net.weight.data[1]]

    def function(x: torch.Tensor) -> Any:
        return net(x) * rows[0] + rows[1]

    x = torch.randn(2, 3)
    program = lostwax.export(function, (x,))
    assert not program.constants
    with torch.no_grad():
        net.weight.mul_(2)
    torch.testing.assert_close(program.module()(x), function(x))


def _refused(keep: Keep, body: Body) -> str:
    with pytest.raises(CaptureError) as info:
        lostwax.export(Keeping(keep, body), (torch.ones(2, 3),))
    return str(info.value)


def test_what_shows_more_than_the_state_is_refused() -> None:
    def more(m: Any) -> None:
        m.flat = torch.zeros(12)
        m.register_buffer("p", m.flat[:6])

    text = _refused(more, lambda m, x: m.flat * 2)
    assert (
        "a tensor of size (12,), which is no parameter and no buffer, shares memory with the "
        in (text)
    )
    assert "the buffer p.\n  at tests/capture/aliasing/test_state_views.py" in text
    assert "why: it shows more than that" in text
    assert "instead: take the view where it is used, in forward, of self.p" in text


def test_other_dtypes_are_refused() -> None:
    def bits(m: Any) -> None:
        m.bits = m.h.view(torch.int32)

    assert "or has another dtype" in _refused(bits, lambda m, x: m.bits + 1)


def test_a_gradient_of_its_own_is_refused() -> None:
    def leaf(m: Any) -> None:
        m.others = [nn.Parameter(m.w.data)]

    text = _refused(leaf, lambda m, x: m.others[0] * x)
    assert "why: it has a gradient of its own, which is not that of the state" in text
    with torch.no_grad():
        lostwax.export(Keeping(leaf, lambda m, x: m.others[0] * x), (torch.ones(2, 3),))


def test_a_view_of_what_is_replaced_is_refused() -> None:
    def replaced(m: Any, x: Any) -> Any:
        m.h = m.h + 1
        return m.v * x

    text = _refused(a_view, replaced)
    assert "the buffer h is replaced by another tensor, and the program reads a view of it" in text
    assert "instead: write into it, self.h.copy_(...); or take the view in forward" in text


def a_list(m: Any) -> None:
    m.held = [m.h]


def test_state_a_list_is_not_what_replaces_it() -> None:
    def replaced(m: Any, x: Any) -> Any:
        m.h.data = x.flatten().clone()
        m.h = m.h.flip(0)
        return m.held[0] * 2

    text = _refused(a_list, replaced)
    assert "the buffer h is replaced by another tensor, and the program reads a view of it" in text
    assert "or the tensor itself from elsewhere: a list or another attribute" in text


@pytest.mark.parametrize("first", [True, False])
def test_state_a_list_gets_other_memory_with_its_own_place(first: bool) -> None:
    def moved(m: Any, x: Any) -> Any:
        before = m.held[0] * 2 if first else m.h * 2
        m.h.data = x.flatten() + before
        return before, m.held[0] * 2

    eager = Keeping(a_list, moved)
    ours = lostwax.export(Keeping(a_list, moved), (torch.ones(2, 3),)).module()
    for i in range(3):
        x = torch.full((2, 3), float(i))
        torch.testing.assert_close(ours(x), eager(x))


@pytest.mark.parametrize("read", [lambda v: v.numpy(), lambda v: v.tolist(), lambda v: v.detach()])
def test_reading_a_view_as_it_is_is_refused(read: Callable[[Any], Any]) -> None:
    text = _refused(a_view, lambda m, x: (read(m.v), x)[1] * 1)
    assert "the buffer h is reached past the module, and detached, or read as it is" in text


def test_registered_views_with_gradients_are_refused() -> None:
    def registered(m: Any) -> None:
        m.register_buffer("row", m.w[0])

    text = _refused(registered, lambda m, x: m.row * x)
    assert "the buffer row is a view of the parameter w, and has its gradient." in text
    assert "instead: take the view in forward, of self.w; or register it without" in text
    with torch.no_grad():
        lostwax.export(Keeping(registered, lambda m, x: m.row * x), (torch.ones(2, 3),))


class Switched(nn.Module):
    def __init__(self, wanting: bool) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 3), requires_grad=wanting)
        self.rows = self.w[1:]

    def forward(self, x):
        return self.rows @ x


def test_a_view_wants_gradients_as_when_it_was_made() -> None:
    x = torch.ones(3)
    frozen = Switched(True)
    frozen.w.requires_grad_(False)
    assert frozen(x).requires_grad
    with pytest.raises(CaptureError, match="requires gradients, as the state did once"):
        lostwax.export(frozen, (x,))
    thawed = Switched(False)
    thawed.w.requires_grad_(True)
    with torch.no_grad():
        unseen = Switched(True)
    for module in (thawed, unseen, Switched(True), Switched(False)):
        assert lostwax.export(module, (x,)).module()(x).requires_grad is module(x).requires_grad


def test_a_history_that_a_detached_tensor_would_keep_is_refused() -> None:
    class Detached(nn.Module):
        def __init__(self, quiet: bool) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.d = self.w.detach()
            self.quiet = quiet

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.d.add_(self.w.detach() if self.quiet else self.w)
            return self.d * x

    x = torch.ones(3)
    with pytest.raises(
        CaptureError, match=r"kept from before the call and is detached from the "
    ) as e:
        lostwax.export(Detached(quiet=False), (x,))
    assert "at tests/capture/aliasing/test_state_views.py" in str(e.value)
    assert "self.d.add_(" in str(e.value)
    eager, ours = Detached(quiet=True), lostwax.export(Detached(quiet=True), (x,)).module()
    for _ in range(2):
        torch.testing.assert_close(ours(x), eager(x))


FOREIGN: dict[str, tuple[Keep, Body]] = {
    "a tensor of numpy's memory": (
        lambda m: setattr(m, "same", torch.from_numpy(m.h.numpy())),
        lambda m, x: m.h.mul_(2).sum() * x + m.same.sum(),
    ),
    "an array": (
        lambda m: setattr(m, "same", m.h.numpy()),
        lambda m, x: m.h.mul_(2).sum() * x + float(m.same[0]),
    ),
    "part of an array, backwards": (
        lambda m: setattr(m, "same", m.w.detach().numpy()[::-1, 1:]),
        lambda m, x: m.w.data.mul_(2).sum() * x + torch.tensor(m.same.copy()).sum(),
    ),
    "a buffer of the same memory": (
        lambda m: m.register_buffer("same", torch.from_dlpack(m.h)[2:]),
        lambda m, x: m.h.mul_(2).sum() * x + m.same.sum(),
    ),
}


@pytest.mark.parametrize(("keep", "body"), FOREIGN.values(), ids=FOREIGN)
def test_memory_that_numpy_shows_is_refused_if_it_is_written(keep: Keep, body: Body) -> None:
    text = _refused(keep, body)
    assert "is written to, and shares memory with" in text
    assert "through numpy or DLPack" in text
    assert "instead: take both of the same tensor" in text


@pytest.mark.parametrize(
    ("keep", "body"), [(keep, lambda m, x: x * m.h) for keep, _ in FOREIGN.values()]
)
def test_memory_that_numpy_shows_is_not_asked_for_otherwise(keep: Keep, body: Body) -> None:
    module, x = Keeping(keep, body), torch.ones(6)
    torch.testing.assert_close(lostwax.export(module, (x,)).module()(x), module(x))
