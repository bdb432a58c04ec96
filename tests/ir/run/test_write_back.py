"""Results that are kept over several calls, of modules with state: at the end all are compared with
eager's, values, gradients required, and which of them share memory with which, and with the state.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

import lostwax
from lostwax import passes


class Kept(nn.Module):
    """State of some kinds; `body` is the forward."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("h", torch.zeros(2, 3))
        self.register_buffer("g", torch.ones(2, 3))
        self.register_buffer("n", torch.zeros((), dtype=torch.long), persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("h", torch.zeros(2, 3))
        self.w = nn.Parameter(torch.full((2, 3), 0.5))

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def reassigned(m: Any, x: Any) -> Any:
    m.h = m.h * 0.5 + x
    return m.h


def reassigned_views(m: Any, x: Any) -> Any:
    m.h = m.h * 0.5 + x
    return {"row": m.h[0], "all": [m.h.view(6), (m.h.t(), m.h)], "other": m.h * 2}


def reassigned_deep(m: Any, x: Any) -> Any:
    m.inner.h = m.inner.h * 0.5 + x
    m.n = m.n + 1
    return m.inner.h, m.n


def reassigned_detached(m: Any, x: Any) -> Any:
    h = m.h * m.w + x
    m.h = h.detach()
    return h


def reassigned_and_detached_returned(m: Any, x: Any) -> Any:
    m.h = m.h * 0.5 + x * m.w.detach()
    return m.h.detach(), m.h


def reassigned_unreturned(m: Any, x: Any) -> Any:
    m.h = m.h + x
    return x * 2


def in_place(m: Any, x: Any) -> Any:
    m.h.mul_(0.5).add_(x)
    return m.h


def in_place_views(m: Any, x: Any) -> Any:
    m.h.mul_(0.5)
    m.h[0] += x[0]
    return [m.h[1], {"all": m.h, "flat": m.h.view(-1)}], m.h * 1


def in_place_without_gradients(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.h.mul_(0.5).add_(x * m.w)
    return m.h * m.w, m.h, m.h.detach()


def copied_in(m: Any, x: Any) -> Any:
    y = x * 2
    m.h.copy_(y)
    m.g[:] = y
    return y, m.h


def both(m: Any, x: Any) -> Any:
    m.h.add_(x)
    m.g = m.g + m.h
    return m.h, m.g


def old_and_new(m: Any, x: Any) -> Any:
    before = m.h
    m.h = m.h + x
    return before, m.h


def input_kept(m: Any, x: Any) -> Any:
    before = m.h
    m.h = x
    return x - before, x


def swapped(m: Any, x: Any) -> Any:
    m.h, m.g = m.g, m.h
    return m.h + x, m.g


def rotated(m: Any, x: Any) -> Any:
    m.h, m.g, m.inner.h = m.g, m.inner.h, m.h + x
    return m.h, m.g * 2


def same_twice(m: Any, x: Any) -> Any:
    m.h = y = m.h + x
    return y, y, [y]


def part_of_result(m: Any, x: Any) -> Any:
    out = torch.stack([m.h + x, m.h - x])
    m.h = out[0]
    return out


def transposed(m: Any, x: Any) -> Any:
    m.h = (m.h.t() + x.t()).t()
    return m.h


def data_reassigned(m: Any, x: Any) -> Any:
    y = m.h + x
    m.h.data = y
    return y


def data_written(m: Any, x: Any) -> Any:
    m.h.data.copy_(x + m.h)
    return m.h, m.h[0]


def parameter_written(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.w.mul_(0.5)
    return m.w * x, m.w.detach()


def parameter_data(m: Any, x: Any) -> Any:
    y = m.w.detach() * 0.5
    m.w.data = y
    return x * 2, y


def written_and_reassigned(m: Any, x: Any) -> Any:
    m.h.mul_(0.5)
    m.h = m.h + x
    return m.h * 2


def written_and_swapped(m: Any, x: Any) -> Any:
    m.h.add_(x)
    m.h, m.g = m.g, m.h
    return m.h + m.g


def literal_reassigned(m: Any, x: Any) -> Any:
    y = m.h + x
    m.h = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    return y, m.h


def literal_data(m: Any, x: Any) -> Any:
    y = m.h + x
    m.h.data = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    return y


BODIES = [
    reassigned, reassigned_views, reassigned_deep, reassigned_detached,
    reassigned_and_detached_returned, reassigned_unreturned, in_place, in_place_views,
    in_place_without_gradients, copied_in, both, old_and_new, input_kept, swapped, rotated,
    same_twice, part_of_result, transposed, data_reassigned, data_written, parameter_written,
    parameter_data, literal_reassigned, literal_data,
]  # fmt: skip

Run = Callable[[torch.Tensor], Any]
Way = Callable[[Kept, tuple[Any, ...]], tuple[Run, nn.Module]]


def _module(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    made = lostwax.export(m, args).module()
    return made, made


def _copied_program(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    made = copy.deepcopy(lostwax.export(m, args)).module()
    return made, made


def _copied_module(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    made = copy.deepcopy(lostwax.export(m, args).module())
    return made, made


def _decomposed(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    made = lostwax.export(m, args).run_decompositions().module()
    return made, made


def _passed(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    program = lostwax.export(m, args)
    made = passes.CommonSubexpressions()(passes.NoOps()(program)).module()
    return made, made


def _again(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    made = lostwax.export(lostwax.export(m, args).module(), args).module()
    return made, made


def _loaded(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    file = io.BytesIO()
    lostwax.save(lostwax.export(m, args), file)
    made = lostwax.load(io.BytesIO(file.getvalue())).module()
    return made, made


def _live(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    return lostwax.capture(m), m


def _unflattened(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    made = lostwax.unflatten(lostwax.export(m, args))
    return made, made


def _read_by_torch(m: Kept, args: tuple[Any, ...]) -> tuple[Run, nn.Module]:
    file = io.BytesIO()
    lostwax.save(lostwax.export(m, args), file)
    file.seek(0)
    made: Any = torch.export.load(file).module()
    return made, made


WAYS = [
    _module, _copied_program, _copied_module, _decomposed, _passed, _again, _loaded, _live,
    _unflattened,
]  # fmt: skip
NOT_BY_TORCH = [
    in_place_views, in_place_without_gradients, data_written, parameter_written, parameter_data,
]  # fmt: skip
"""Torch's reader returns no views of its state, and writes no parameters."""


def _tensors(results: list[Any], m: nn.Module) -> list[torch.Tensor]:
    found = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    return [*found, *(t for _, t in sorted(m.named_buffers())), m.get_parameter("w")]


def _sharing(tensors: list[torch.Tensor]) -> list[int]:
    """For each the first that it shares memory with."""
    memories = [t.untyped_storage().data_ptr() for t in tensors]
    return [memories.index(each) for each in memories]


def _calls(run: Run, m: nn.Module, seen: Callable[[Any], Any] = lambda t: t) -> list[Any]:
    """The results of some calls, and the state as it was seen between them."""
    torch.manual_seed(0)
    results = []
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = run(torch.randn(2, 3))
        results.append([out, seen(m.get_buffer("h"))])
    return results


def _check(body: Callable[..., Any], way: Way, exactly: bool) -> None:
    eager, mine = Kept(body), Kept(body)
    run, holder = way(mine, (torch.ones(2, 3),))
    seen: Any = (lambda t: t) if exactly else torch.clone
    expected = _tensors(_calls(eager, eager, seen), eager)
    found = _tensors(_calls(run, holder, seen), holder)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(a, b, msg=lambda text, i=i: f"tensor {i}: {text}")  # type: ignore[misc]
    if exactly:
        assert _sharing(found) == _sharing(expected)


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_kept_results_are_those_of_eager(body: Callable[..., Any], way: Way) -> None:
    _check(body, way, exactly=True)


BY_TORCH = [body for body in BODIES if body not in NOT_BY_TORCH]


@pytest.mark.parametrize("body", [reassigned, swapped, data_reassigned], ids=lambda f: f.__name__)
def test_torch_captures_the_module_of_a_program(body: Callable[..., Any]) -> None:
    """It looks out for tensors that are put in the place of others."""
    x = torch.ones(2, 3)
    eager, module = Kept(body), lostwax.export(Kept(body), (x,)).module()
    peer = torch.export.export(module, (x,), strict=False).module()
    for _ in range(3):
        torch.testing.assert_close(peer(x), eager(x))


def test_torch_replaces_the_state_of_a_program() -> None:
    """For one call alone, also what is put in its place by the program."""
    x = torch.ones(2, 3)
    module = lostwax.export(Kept(reassigned), (x,)).module()
    out = torch.func.functional_call(module, {"h": torch.full((2, 3), 4.0)}, (x,))
    assert (out == 3).all()
    assert (module.h == 0).all()


@pytest.mark.parametrize("body", BY_TORCH, ids=lambda f: f.__name__)
def test_torch_reads_state_that_is_right(body: Callable[..., Any]) -> None:
    _check(body, _read_by_torch, exactly=False)


@pytest.mark.parametrize("body", [written_and_reassigned, written_and_swapped])
def test_what_is_replaced_after_a_write_computes_as_eager(body: Callable[..., Any]) -> None:
    """No result shows the old tensor, so none tells that it was not written to."""
    x = torch.ones(2, 3)
    eager, module = Kept(body), lostwax.export(Kept(body), (x,)).module()
    for _ in range(3):
        torch.testing.assert_close(module(x), eager(x))
    torch.testing.assert_close(module.state_dict(), eager.state_dict())


def test_a_literal_in_the_place_of_state_is_new_in_each_call() -> None:
    x = torch.ones(2, 3)
    eager, module = Kept(literal_reassigned), lostwax.export(Kept(literal_reassigned), (x,))
    run: Any = module.module()
    for m in (eager, run):
        m(x)
        m.h.zero_()
        m(x)
    torch.testing.assert_close(run(x), eager(x))


# -------------------------------------------------------------- the old tensor, where it is seen on


def _refused(body: Callable[..., Any]) -> str:
    with pytest.raises(lostwax.errors.CaptureError) as caught:
        lostwax.export(Kept(body), (torch.ones(2, 3),))
    return str(caught.value)


def _written_and_returned(m: Any, x: Any) -> Any:
    m.h.mul_(0.5)
    m.h = m.h + x
    return m.h


def _written_and_view_returned(m: Any, x: Any) -> Any:
    m.h[0] += 1
    m.h = m.h + x
    return x, [m.h[0]]


def _written_and_input_kept(m: Any, x: Any) -> Any:
    m.h.mul_(0.5)
    m.h = x
    return x + 1


def _written_and_swapped_returned(m: Any, x: Any) -> Any:
    m.h.add_(x)
    m.h, m.g = m.g, m.h
    return m.h


def _written_and_turned(m: Any, x: Any) -> Any:
    m.h.add_(x)
    m.h = m.h.view(3, 2).t()
    return m.h


def _written_and_memory_returned(m: Any, x: Any) -> Any:
    m.h.add_(x)
    m.h.data = y = m.h * 2
    return y


def _memory_and_tensor_returned(m: Any, x: Any) -> Any:
    m.h.data = m.h.clone()
    m.h *= 2
    m.h = m.h + x
    return m.h


def _written_and_literal_returned(m: Any, x: Any) -> Any:
    m.h.add_(x)
    m.h = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    return m.h


@pytest.mark.parametrize(
    "body",
    [
        _written_and_returned, _written_and_view_returned, _written_and_input_kept,
        _written_and_swapped_returned, _written_and_turned, _written_and_memory_returned,
        _written_and_literal_returned, _memory_and_tensor_returned,
    ],
    ids=lambda f: f.__name__[1:],
)  # fmt: skip
def test_a_write_into_what_was_returned_before_is_refused(body: Callable[..., Any]) -> None:
    """In eager the write in place changes what the call before has returned, or was given."""
    text = _refused(body)
    assert "the buffer h is written in place, and then replaced by another tensor" in text
    assert "do one of both, self.h.copy_(...) or self.h = ...; or return, or assign, a copy" in text


def test_a_result_whose_memory_is_replaced_is_refused() -> None:
    def body(m: Any, x: Any) -> Any:
        m.h.data = m.h + x
        return x, m.h

    text = _refused(body)
    assert "the buffer h gets another memory, self.h.data = ..., and is itself a result" in text
    assert "instead: return self.h.clone(); or write into it, self.h.copy_(...)" in text


@pytest.mark.parametrize("shown", [lambda t: t.view(-1), lambda t: t[0], lambda t: t.detach()])
def test_a_result_that_shows_the_memory_before_is_refused(shown: Callable[[Any], Any]) -> None:
    """In eager it shares that with what the call before has returned."""

    def body(m: Any, x: Any) -> Any:
        before = shown(m.h)
        m.h.data = y = m.h + x
        return before, y

    text = _refused(body)
    assert "the buffer h gets another memory, self.h.data = ..., and a result shows the" in text
    assert "instead: return a copy (x.clone()); or write into it, self.h.copy_(...)" in text


@pytest.mark.parametrize("read", [lambda t: t, lambda t: t * 1, lambda t: t[0]])
@pytest.mark.parametrize("first", [True, False])
def test_state_that_is_held_elsewhere_and_replaced_is_refused(
    read: Callable[[Any], Any], first: bool
) -> None:
    """A list goes on to hold the tensor that was there at first."""

    def body(m: Any, x: Any) -> Any:
        seen = read(m.all["h"][0]) if first else None
        m.h = m.h + x
        return seen if first else read(m.all["h"][0])

    mine = Kept(body)
    mine.all = {"h": [mine.h]}
    with pytest.raises(lostwax.errors.CaptureError, match="or the tensor itself from elsewhere"):
        lostwax.export(mine, (torch.ones(2, 3),))


def test_state_that_is_held_elsewhere_and_written_is_one() -> None:
    def body(m: Any, x: Any) -> Any:
        m.h.add_(x)
        return m.all[0] * 1, m.h

    x = torch.ones(2, 3)
    eager, mine = Kept(body), Kept(body)
    eager.all, mine.all = [eager.h], [mine.h]
    module = lostwax.export(mine, (x,)).module()
    for _ in range(3):
        torch.testing.assert_close(module(x), eager(x))


def _swapped_with_constant(m: Any, x: Any) -> Any:
    m.h, m.plain = m.plain, m.h + x
    return x * 1


def _constant_returned(m: Any, x: Any) -> Any:
    before = m.plain
    m.plain = m.h + x
    return before


@pytest.mark.parametrize("body", [_swapped_with_constant, _constant_returned])
@pytest.mark.parametrize("of", [lambda m: torch.ones(2, 3), lambda m: m.w.detach().view(2, 3)])
def test_a_plain_attribute_that_is_handed_on_and_replaced_is_refused(
    body: Callable[..., Any], of: Callable[[Any], Any]
) -> None:
    """No operator reads it: it is put in the place of state, or returned."""
    mine = Kept(body)
    mine.plain = of(mine)
    with pytest.raises(lostwax.errors.CaptureError, match="keeps a tensor in the attribute plain"):
        lostwax.export(mine, (torch.ones(2, 3),))


def test_state_is_in_the_order_of_the_original() -> None:
    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(1), persistent=False)
            self.inner = nn.ModuleDict({"x": nn.BatchNorm1d(3), "y": nn.Module()})
            self.inner["y"].register_buffer("n", torch.zeros(1), persistent=False)
            self.register_buffer("b", torch.zeros(1))
            self.register_buffer("c", torch.zeros(1), persistent=False)
            self.last = nn.Linear(3, 3)
            self.last.register_buffer("d", torch.zeros(1), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.inner["x"](x)) + self.a

    eager = Ordered().eval()
    module = lostwax.export(eager, (torch.ones(2, 3),)).module()
    assert [n for n, _ in module.named_buffers()] == [n for n, _ in eager.named_buffers()]
    assert [n for n, _ in module.named_parameters()] == [n for n, _ in eager.named_parameters()]
    assert list(module.state_dict()) == list(eager.state_dict())


def test_a_copy_of_a_program_shares_memory_as_the_program_does() -> None:
    """Torch's copy of a parameter has a memory of its own."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(3))
            self.b = nn.Parameter(self.a.data[:2], requires_grad=False)
            self.register_buffer("c", self.a.data[1:])
            self.d = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> Any:
            return self.a * x, self.b + 1, self.c, self.d

    program = lostwax.export(Shared(), (torch.ones(3),))
    copied = copy.deepcopy(program)
    first: Any = program.module()
    module: Any = copied.module()
    assert module.b.data_ptr() == module.a.data_ptr() != first.a.data_ptr()
    assert module.c.data_ptr() == module.a.data_ptr() + 4
    assert module.d.data_ptr() != first.d.data_ptr()
    assert [p.requires_grad for p in module.parameters()] == [True, False, True]
    with torch.no_grad():
        module.a.mul_(3)
    torch.testing.assert_close(module(torch.ones(3))[1], torch.full((2,), 4.0))
    torch.testing.assert_close(first(torch.ones(3))[1], torch.full((2,), 2.0))


@pytest.mark.parametrize("persistent", [False, True])
def test_loaded_state_that_shares_memory_is_replaced_alone(persistent: bool) -> None:
    """Also where one is in the state_dict, and the other not: they are not one tensor."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.ones(3), persistent=persistent)
            self.register_buffer("b", self.a.detach())

        def forward(self, x: torch.Tensor) -> Any:
            self.b = self.b + 1
            return x + self.a, self.b * 1

    x = torch.ones(3)
    eager, file = Shared(), io.BytesIO()
    lostwax.save(lostwax.export(Shared(), (x,)), file)
    file.seek(0)
    loaded = lostwax.load(file).module()
    assert loaded.get_buffer("a").data_ptr() == loaded.get_buffer("b").data_ptr()
    for _ in range(3):
        torch.testing.assert_close(loaded(x), eager(x))


def test_a_program_whose_example_has_a_history_is_copied() -> None:
    x = torch.ones(2, requires_grad=True) * 2
    program = lostwax.export(lambda x: x * 3, (x,))
    assert copy.deepcopy(program).module()(x).tolist() == [6.0, 6.0]
