"""Gradients that a program takes itself, of what branches on data compute: on each side of its own,
or they are refused (`refusals.py`). And those of what branches and loops only hand through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax import export
from lostwax.errors import CaptureError


def differentiated(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    if x.sum() > 0:
        y = (x * x).sum()
    else:
        y = (x * 3).sum()
    return torch.autograd.grad(y + x.sum(), x)[0]


def differentiated_in_a_side(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    y = (x * w * w).sum()
    return torch.autograd.grad(y, w)[0] if x.sum() > 0 else x * 0


def differentiated_beside(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    scale = x * 2 if x.sum() > 0 else x * 3
    return torch.autograd.grad((scale * w).sum(), w)[0]


def asked_for_one(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    y = x * 2 if x.sum() > 0 else x * 3
    return x.detach() + y.requires_grad


def leaf_of_a_side(x: Tensor) -> Tensor:
    if x.sum() > 0:
        w = x.detach().requires_grad_()
        (w * w).sum().backward()
        return w.grad.clone()  # type: ignore[union-attr]
    return x.detach()


def gradient_that_there_is(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    (w * x).sum().backward()
    if x.sum() > 0:
        (w * w).sum().backward()
    else:
        w.grad.zero_()  # type: ignore[union-attr]
    w.requires_grad_()
    return w.grad  # type: ignore[return-value]


def chosen_leaf(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True) if x.sum() > 0 else torch.ones(3)
    v = w if x[0] > 0 else torch.zeros(3).requires_grad_()
    return x * 2 if w.requires_grad and v.is_leaf else x + v.requires_grad


def chosen_parameter(x: Tensor) -> Tensor:
    w = nn.Parameter(torch.ones(3)) if x.sum() > 0 else torch.ones(3)
    return x * 2 if isinstance(w, nn.Parameter) else x


@pytest.mark.parametrize(
    "program",
    [
        *(differentiated, differentiated_in_a_side, differentiated_beside, asked_for_one),
        *(leaf_of_a_side, gradient_that_there_is, chosen_leaf, chosen_parameter),
    ],
)
def test_gradients_that_a_program_takes_of_branches(program: Callable[[Tensor], Tensor]) -> None:
    run = export(program, (torch.tensor([1.0, 2, 3]),)).module()
    for x in ([1.0, 2, 3], [-1.0, -2, 1], [0.0, 0, 0]):
        found, wanted = run(torch.tensor(x)), program(torch.tensor(x))
        torch.testing.assert_close(found, wanted)
        assert found.requires_grad == wanted.requires_grad


def required_on_one_side(x: Tensor) -> Tensor:
    y = x.detach()
    if x.sum() > 0:
        y.requires_grad_()
    return y * 2 if y.requires_grad else y * 3


def required_no_more(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    while x.sum() > 0:
        y.requires_grad = False
        x = x - 1
    return x if y.requires_grad else x * 2


def gradient_on_one_side(x: Tensor) -> Tensor:
    w = torch.ones(3)
    if x.sum() > 0:
        w.grad = x
    return x if w.grad is None else x * 2


def gradient_taken_away(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    (w * x).sum().backward()
    if x.sum() > 0:
        w.grad = None
    return x if w.grad is None else x * 2


def backward_on_one_side(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    if x.sum() > 0:
        (w * x * x).sum().backward()
    return x if w.grad is None else x * 2


def backward_in_each_turn(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    while x.sum() > 0:
        (w * x).sum().backward()
        x = x - 1
    return x


@pytest.mark.parametrize(
    "program",
    [
        *(required_on_one_side, required_no_more, gradient_on_one_side, gradient_taken_away),
        *(backward_on_one_side, backward_in_each_turn),
    ],
)
def test_what_a_side_tells_autograd_of_a_tensor_from_outside(program: Any) -> None:
    with pytest.raises(CaptureError, match="tells a tensor from outside to require grad") as error:
        export(program, (torch.tensor([1.0, 2, 3]),))
    assert f"in {program.__name__}" in str(error.value)
    assert "instead: make a tensor there, y = x.detach().requires_grad_()" in str(error.value)


def data_on_one_side(x: Tensor) -> Tensor:
    y, z = x.long() * 2, x.long() * 3
    if x.sum() > 0:
        y.data = z
    return y


def data_in_each_turn(x: Tensor) -> Tensor:
    y, z, n = x * 2, x * 3, 0
    while n < 2 and x.sum() > n:
        y.data = z
        n += 1
    return y


def data_in_a_program_that_differentiates(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    (g,) = torch.autograd.grad((w * w).sum(), w)
    y, z = x * 2, x * 3
    if x.sum() > 0:
        y.data = z
    return y + g


@pytest.mark.parametrize(
    "program", [data_on_one_side, data_in_each_turn, data_in_a_program_that_differentiates]
)
def test_data_that_a_side_gives_to_a_tensor_from_outside(program: Any) -> None:
    with pytest.raises(CaptureError, match="gives other sizes, strides or data to a ten") as error:
        export(program, (torch.tensor([1.0, 2, 3]),))
    assert f"in {program.__name__}: y.data = z" in str(error.value)


def test_data_that_a_side_gives_to_a_tensor_of_its_own() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = x * 2
            y.data = x * 3
            return y
        return x

    run = export(program, (torch.ones(2),)).module()
    for x in (torch.ones(2), -torch.ones(2)):
        torch.testing.assert_close(run(x), program(x))


class Weights(nn.Module):
    def __init__(self, ask: Callable[[Any], bool], is_swapped: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(3))
        self.ask, self.is_swapped = ask, is_swapped

    def forward(self, x: Tensor) -> Tensor:
        if self.is_swapped:
            w = self.scale if x.sum() > 0 else self.weight
        else:
            w = self.weight if x.sum() > 0 else x
        return x * 2 if self.ask(w) else x


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    "ask",
    [lambda w: isinstance(w, nn.Parameter), lambda w: type(w) is nn.Parameter, lambda w: w.is_leaf],
)
def test_what_a_chosen_weight_is(ask: Callable[[Any], bool], is_swapped: bool) -> None:
    module = Weights(ask, is_swapped)
    run = export(module, (torch.ones(3),)).module()
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(run(x), module(x))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Any) -> Tensor:
        ctx.k, ctx.size = k, x.shape
        return x[: max(1, int(k))] * k

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        out = grads[0].new_zeros(ctx.size)
        out[: grads[0].shape[0]] = grads[0] * ctx.k * 3
        return out, None


def scaled_by_a_chosen_number(x: Tensor) -> Any:
    k = 1 if x.sum() > 0 else 2
    return Scale.apply(x, k)  # type: ignore[no-untyped-call]


def scaled_by_a_chosen_float(x: Tensor) -> Any:
    k = 1.5 if x.sum() > 0 else 2.5
    return Scale.apply(x, k)  # type: ignore[no-untyped-call]


def scaled_by_the_turns_of_a_loop(x: Tensor) -> Any:
    k = 0
    while k < 3 and x.detach().sum() > k:
        k += 1
    return Scale.apply(x, k)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "program",
    [scaled_by_a_chosen_number, scaled_by_a_chosen_float, scaled_by_the_turns_of_a_loop],
)
def test_a_backward_of_the_users_computes_with_a_number_that_data_chose(program: Any) -> None:
    run = export(program, (torch.ones(3, requires_grad=True),)).module()
    for x in ([1.0, 2, 3], [-1.0, -2, 1], [0.5, 0.25, 0]):
        one, other = (torch.tensor(x, requires_grad=True) for _ in range(2))
        found, wanted = run(one), program(other)
        torch.testing.assert_close(found, wanted)
        (found * found).sum().backward()
        (wanted * wanted).sum().backward()
        torch.testing.assert_close(one.grad, other.grad)


# ------------------------------------------------------- what is handed through keeps its gradient

Two = tuple[Tensor, Tensor]


def chosen(x: Tensor, y: Tensor) -> Two:
    z = x * y
    with torch.no_grad():
        z = z - x if x.sum() > 1 else z
        w = x if y.sum() > 1 else y
    return z * x, w * 2


def matched(x: Tensor, y: Tensor) -> Two:
    z = {"a": x * y}
    with torch.no_grad():
        match bool(x.sum() > 1):
            case True:
                z["a"] = y
            case False:
                x = z["a"]
    return z["a"] * x, x * 2


@torch.no_grad()
def left_early(x: Tensor, y: Tensor) -> Two:
    if x.sum() > 1:
        return x, x * y
    return x * y, y


def chosen_in_a_side(x: Tensor, y: Tensor) -> Two:
    u = x * 1
    if x.sum() > 0:
        with torch.no_grad():
            if y.sum() > 1:
                u = u + 1
    else:
        u = y * y
    return u * u, y * 2


def switched_on_in_a_side(x: Tensor, y: Tensor) -> Two:
    with torch.no_grad():
        if x.sum() > 1:
            with torch.enable_grad():
                u = x * y
        else:
            u = x * 3
    return u * u, y * 2


def written_on_one_side(x: Tensor, y: Tensor) -> Two:
    u = x * 1
    with torch.no_grad():
        if x.sum() > 1:
            u.mul_(y)
        else:
            y = u + 1
    return u * u, y * 2


def turns_of_data(x: Tensor, y: Tensor) -> Two:
    k, a = torch.zeros(()), torch.stack([x, y]).t()  # which lies otherwise in memory
    with torch.no_grad():
        while k < x.sum():
            k = k + 1
            if k > 2:
                break
            x, y = y, x
            a = a + 1
    return x * y, a[:, 0] * a[:, 1] * x


def no_turn_hands_on_more(x: Tensor, y: Tensor) -> Two:
    a, b, c = x * 1, y * 1, x * y
    with torch.no_grad():
        for _ in range(int(y.abs().sum()) % 3):
            a, b, c = b, c, c + 1
    return a * 2 + b * 3, c * y


def appended(x: Tensor, y: Tensor) -> Two:
    rows = []
    z, more = x.repeat(4, 1), [x]
    with torch.no_grad():
        for i in range(int(y.abs().sum()) % 3 + 1):
            rows.append(z[i])
            rows.append(x)
        if x.sum() > 1:
            more.append(y)
    return torch.stack(rows).sum(0) * 2, torch.stack(more).sum(0) * y


def read_from_lists(x: Tensor, y: Tensor) -> Two:
    rows = [x * (i + 2) for i in range(int(y.abs().sum().long()))]
    with torch.no_grad():
        last, others = rows[-1], rows[1:][::-1]
        of_both = torch.stack(rows).sum(0)
        for each in rows:
            y = each
    return last + y * of_both, others[0] * 2


HANDED_THROUGH = [
    chosen, matched, left_early, chosen_in_a_side, switched_on_in_a_side, written_on_one_side,
    turns_of_data, no_turn_hands_on_more, appended, read_from_lists,
]  # fmt: skip


def differentiate(run: Callable[..., Two], x: list[float], y: list[float]) -> Any:
    given = [torch.tensor(each, requires_grad=True) for each in (x, y)]
    results = run(*given)
    found = [(each * torch.tensor([1.0, 3])).sum() for each in results if each.requires_grad]
    loss = sum(found, torch.zeros((), requires_grad=True))
    return results, torch.autograd.grad(loss, given, materialize_grads=True)


@pytest.mark.parametrize("program", HANDED_THROUGH)
@pytest.mark.parametrize("is_asked", [True, False])
def test_what_is_handed_through_under_no_grad(program: Callable[..., Two], is_asked: bool) -> None:
    """`is_asked`: the example requires gradients, too."""
    if program is written_on_one_side and not is_asked:
        return  # a call with gradients is refused
    example = torch.tensor([1.0, 2]), torch.tensor([3.0, 4])
    run = export(program, tuple(each.requires_grad_(is_asked) for each in example)).module()
    for x in ([1.0, 2], [-1.0, -2], [0.2, 0.3]):
        for y in ([3.0, 4], [-2.0, 1.5]):
            torch.testing.assert_close(differentiate(run, x, y), differentiate(program, x, y))


def test_what_is_handed_through_in_a_program_that_differentiates() -> None:
    def program(x: Tensor) -> Tensor:
        z = x * 2
        with torch.no_grad():
            if x.sum() > 1:
                z = z + 1
        return torch.autograd.grad((x * x).sum(), x)[0] * z

    with pytest.raises(CaptureError, match="in a program that computes gradients itself") as error:
        export(program, (torch.ones(2, requires_grad=True),))
    assert "if x.sum() > 1:" in str(error.value)
    assert "give it detached tensors, x.detach()" in str(error.value)


# ------------------------------------------------------- values that are written to past autograd


class Holding(nn.Module):
    """Keeps `self.w.data`, whose writes autograd does not count."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.w, self.body = nn.Parameter(torch.tensor([0.5, 2.0, 3.0])), body
        self.register_buffer("u", torch.tensor([1.0, 2.0, 3.0]))
        self.part = self.w.data[:1]

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def read_by_an_operator(m: Any, x: Tensor) -> Tensor:
    y = torch.cond(x.sum() > 1, lambda a: a * 2, lambda a: a * m.part, (x,))
    with torch.no_grad():
        m.w.mul_(0.5)
    return y  # type: ignore[no-any-return]


def read_in_a_side(m: Any, x: Tensor) -> Tensor:
    y = x * 2 if x.sum() > 1 else x * m.part
    with torch.no_grad():
        m.w.mul_(0.5)
    return y


def read_in_a_loop(m: Any, x: Tensor) -> Tensor:
    n = x.sum()
    while n < 4:
        x, n = x * m.part, n + 3
    with torch.no_grad():
        m.w.add_(1)
    return x


def written_in_a_side(m: Any, x: Tensor) -> Tensor:
    y = x * m.part * m.u
    if x.sum() > 1:
        with torch.no_grad():
            m.w.mul_(0.5)
        m.u.data.add_(1)
    return y


def written_in_a_loop(m: Any, x: Tensor) -> Tensor:
    y, n = x * m.u, x.sum()
    while n < 4:
        m.u.data.add_(1)
        y, n = y * m.u.data, n + 3
    return y


@pytest.mark.parametrize(
    ("body", "truth"),
    [
        (read_by_an_operator, read_in_a_side),  # eager compiles the operator, which takes long
        *((each, each) for each in (read_in_a_side, read_in_a_loop)),
        *((each, each) for each in (written_in_a_side, written_in_a_loop)),
    ],
)
def test_a_backward_reads_what_the_forward_has_read(body: Any, truth: Any) -> None:
    """Eager would read what was written since; here it keeps copies."""
    saving = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)
    module, examples = (
        Holding(truth),
        (torch.ones(3), -torch.ones(3), torch.tensor([3.0, 0.0, 1.0])),
    )
    run = export(Holding(body), (examples[0].clone().requires_grad_(),)).module()
    for example in (*examples, *examples):
        x, again = (example.clone().requires_grad_() for _ in range(2))
        with saving:
            want = module(x)
        got = run(again)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(
            torch.autograd.grad(got.sum(), again), torch.autograd.grad(want.sum(), x)
        )


class Counts(nn.Module):
    """Keeps numbers in buffers, which autograd is not to see."""

    def __init__(self, count: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("sum", torch.zeros(3))
        self.w = nn.Parameter(torch.tensor([1.0, 2, 3]))
        self.count = count

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.count(self, x)
        return x * self.n * self.w + self.sum


def count_up(self: Any, x: Tensor) -> None:
    while self.n < 3:
        self.n += 1


def count_and_sum(self: Any, x: Tensor) -> None:
    while self.n < 3:
        self.n += 1
        self.sum.add_(self.w * x)


def count_or_not(self: Any, x: Tensor) -> None:
    while self.n < 3:
        self.n += 1
        if x.sum() > self.n:
            self.sum += x


def count_items(self: Any, x: Tensor) -> None:
    for _ in range(int(x.sum())):
        self.n += 1


@pytest.mark.parametrize("count", [count_up, count_and_sum, count_or_not, count_items])
def test_a_loop_that_autograd_does_not_see(count: Callable[[Any, Tensor], None]) -> None:
    eager = Counts(count)
    program = export(Counts(count), (torch.ones(3),)).module()
    for values in ([1.0, 2, 3], [-1.0, 0, 2], [0.0, 0, 0]):
        one, other = (torch.tensor(values, requires_grad=True) for _ in range(2))
        wanted, found = eager(one), program(other)
        torch.testing.assert_close(found, wanted)
        wanted.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(other.grad, one.grad)
        torch.testing.assert_close(dict(program.named_buffers()), dict(eager.named_buffers()))
    torch.testing.assert_close(program.w.grad, eager.w.grad)
