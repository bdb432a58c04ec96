"""`x.grad = y`, `x.requires_grad_()` and the like: of the program's own tensors they are right, and
of what the caller holds they are refused, so that nothing is lost unseen."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import lostwax
from lostwax.capture import export
from lostwax.errors import CaptureError, UnsupportedFakeError

X = torch.arange(3.0)


class Net(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(3))
        self.run = forward

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def gives(get: Callable[[Net, Tensor], Tensor]) -> Callable[[Net, Tensor], Tensor]:
    def forward(net: Net, x: Tensor) -> Tensor:
        get(net, x).grad = x * 2
        return net.weight * x

    return forward


def marks(get: Callable[[Net, Tensor], Tensor], value: bool) -> Callable[[Net, Tensor], Tensor]:
    def forward(net: Net, x: Tensor) -> Tensor:
        get(net, x).requires_grad = value
        return net.weight * x

    return forward


def for_a_while(net: Net, x: Tensor) -> Tensor:
    net.weight.requires_grad_(False)
    y = net.weight * x
    net.weight.requires_grad_(True)
    return y + net.weight


def the_input(net: Net, x: Tensor) -> Tensor:
    return x


def the_weight(net: Net, x: Tensor) -> Tensor:
    return net.weight


def the_buffer(net: Net, x: Tensor) -> Tensor:
    return net.scale


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        (gives(the_input), "input x is given a gradient"),
        (gives(the_weight), "parameter weight is given a gradient"),
        (gives(the_buffer), "buffer scale is given a gradient"),
        (marks(the_input, True), "input x, which requires no gradient, is told otherwise"),
        (marks(the_buffer, True), "buffer scale, which requires no gradient, is told otherwise"),
        (marks(the_weight, False), "parameter weight, which requires a gradient, is told"),
        (for_a_while, "parameter weight, which requires a gradient, is told"),
        (lambda net, x: net.weight.detach_() * x, "weight, which requires a gradient, is detached"),
        (lambda net, x: (net.weight * x).requires_grad_(False), "only leaves can be told so"),
    ],
)
def test_what_the_caller_holds_keeps_its_gradients(forward: Any, text: str) -> None:
    net, x = Net(forward), X.clone()
    with pytest.raises(
        CaptureError, match=rf"{text}[\s\S]*at tests/\S+test_grad_marks.py:\d+[\s\S]*instead"
    ):
        export(net, (x,))
    assert net.weight.grad is net.scale.grad is x.grad is None
    assert net.weight.requires_grad
    assert not net.scale.requires_grad
    assert not x.requires_grad


def test_the_line_of_backward_is_told() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        loss = (net.weight * x).sum()
        loss.backward()
        return loss

    net = Net(forward)
    line = forward.__code__.co_firstlineno + 2
    with pytest.raises(
        CaptureError, match=rf"weight is given a gradient[\s\S]*py:{line} in .*loss.backward\(\)"
    ):
        export(net, (X,))
    assert net.weight.grad is None


def test_a_gradient_that_was_there_is_not_lost() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.zero_grad()
        return net.weight * x

    net = Net(forward)
    export(net, (X,))  # there is nothing to lose
    net.weight.grad = before = torch.ones(3)
    with pytest.raises(CaptureError, match=r"weight loses its gradient[\s\S]*net.zero_grad\(\)"):
        export(net, (X,))
    assert net.weight.grad is before
    net.run = lambda net, x: net.weight.grad * x
    with pytest.raises(CaptureError, match=r"a gradient \(x.grad\), which is no part of a program"):
        export(net, (X,))


def test_what_is_true_already_may_be_said() -> None:
    def forces(net: Net, x: Tensor) -> Any:
        x.requires_grad_()
        net.weight.requires_grad_(True)
        energy = (net.weight * x**2).sum()
        return energy, *torch.autograd.grad(energy, x, create_graph=True)

    program = export(Net(forces), (X.clone().requires_grad_(),))
    grads = []
    for each in (program.module(), Net(forces)):
        x = X.clone().requires_grad_()
        energy, force = each(x)
        (energy + 2 * force.sum()).backward()
        grads.append((x.grad, each.weight.grad))
    torch.testing.assert_close(grads[0], grads[1])


def test_leaves_of_the_programs_own() -> None:
    def forward(net: Net, x: Tensor) -> Any:
        leaf = (x * 2).detach().requires_grad_()
        y = leaf * 3
        return y, [t.requires_grad for t in (x, leaf, y, y.detach())]

    bare = nn.Module()
    program = export(lambda x: forward(bare, x), (X,))  # type: ignore[arg-type]
    assert program.module()(X)[1] == forward(bare, X)[1]  # type: ignore[arg-type]
    program = export(Net(lambda net, x: torch.zeros(3, requires_grad=True) * net.weight), (X,))
    assert program.module()(X).requires_grad
    with pytest.raises(CaptureError, match=r"is returned, and was told to require[\s\S]*detach"):
        export(Net(lambda net, x: x.detach().requires_grad_()), (X,))
    with torch.no_grad():
        export(Net(lambda net, x: x.detach().requires_grad_()), (X,))


def test_another_leaf_in_the_place_of_a_parameter() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.weight = nn.Parameter(net.weight.detach() * 2)
        return net.weight * x

    with pytest.raises(CaptureError, match=r"parameter weight is replaced by another[\s\S]*copy_"):
        export(Net(forward), (X,))
    with torch.no_grad():  # there the values are all
        module = export(Net(forward), (X,)).module()
        torch.testing.assert_close((module(X), module(X)), (X * 2, X * 4))

    def freezes(net: Net, x: Tensor) -> Tensor:
        net.weight = nn.Parameter(net.weight.detach() * 2, requires_grad=False)
        return net.weight * x

    with pytest.raises(
        CaptureError, match=r"another leaf, which has gradients of its own, or none"
    ):
        export(Net(freezes), (X,))


def test_what_made_a_tensor_is_not_known() -> None:
    asked = Net(lambda net, x: (net.weight * x, (net.weight * x).grad_fn is None))
    with pytest.raises(
        UnsupportedFakeError, match=r"grad_fn of [\s\S]*test_grad_marks[\s\S]*x.is_leaf"
    ):
        export(asked, (X,))
    with torch.no_grad():
        assert export(asked, (X,)).module()(X)[1] is True
    of_leaves = Net(lambda net, x: (x.grad_fn is None, net.weight.grad_fn is None, (x * 2).grad_fn))
    assert export(of_leaves, (X,)).module()(X) == (True, True, None)


def test_one_tensor_in_two_places() -> None:
    x = X.clone().requires_grad_()
    program = export(lambda x, y: (x + y, y.requires_grad), (x, x))
    assert program.module()(x, x)[1] is True

    def differentiates(x: Tensor, y: Tensor) -> Tensor:
        return torch.autograd.grad((x * 2 + y * 3).sum(), x)[0]

    ours = export(differentiates, (x, x)).module()
    torch.testing.assert_close(ours(x, x), differentiates(x, x))  # 5: it is one tensor


@pytest.mark.filterwarnings("error")
def test_the_gradient_of_an_input_that_is_no_leaf() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x.detach().requires_grad_()
        return torch.autograd.grad((y**3).sum(), y)[0] + x

    x = torch.ones(3, requires_grad=True) * 2
    torch.testing.assert_close(export(forward, (x,)).module()(x), forward(x))

    def giving(x: Tensor) -> Tensor:
        x.grad = torch.ones(3)
        return x * 2

    with pytest.raises(CaptureError, match="the input x is given a gradient"):
        export(giving, (x,))


# ---------------------------------------------------------------------------- attributes of tensors


def test_attributes_of_tensors_are_read() -> None:
    def forward(net: Net, x: Tensor) -> Any:
        return x * net.weight * net.weight.scale * net.scale.shift, hasattr(x, "nothing")

    net = Net(forward)
    net.weight.scale, net.scale.shift = 2.0, torch.arange(3.0)  # type: ignore[attr-defined]
    ours = export(net, (X,)).module()
    torch.testing.assert_close(ours(X), net(X))


@pytest.mark.parametrize("name", ["x", "weight", "scale"])
def test_attributes_that_are_left_on_tensors_are_refused_or_told_of(name: str) -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        tensor = x if name == "x" else getattr(net, name)
        tensor.tag = x * 2
        return x + tensor.tag

    net, x = Net(forward), X.clone()
    text = rf"{name} is given the attribute tag"
    if name == "x":
        with pytest.warns(UserWarning, match=text):
            export(net, (x,))
    else:
        with pytest.raises(CaptureError, match=rf'{text}[\s\S]*register_buffer\("tag"'):
            export(net, (x,))
    assert not any(map(vars, (net.weight, net.scale, x)))


def test_results_of_leaves_that_only_the_program_has() -> None:
    """They require gradients in eager, and of nothing that anybody could ask for them."""

    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.members = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            state = torch.func.stack_module_state(list(self.members))

            def one(parameters: Any, buffers: Any, x: Tensor) -> Any:
                return torch.func.functional_call(self.members[0], (parameters, buffers), (x,))

            return torch.vmap(one, in_dims=(0, 0, None))(*state, x)

    def forces(x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        energy = x**3
        return energy, energy[0], *torch.autograd.grad(energy.sum(), x)

    x = torch.randn(4, 2)
    for module in (Ensemble(), forces, lambda x: (x, x.detach().requires_grad_() * 2)):
        program = export(module, (x,))
        buffer = io.BytesIO()
        lostwax.save(program, buffer)
        again = lostwax.load(io.BytesIO(buffer.getvalue()))
        for each in (program, program.run_decompositions(), again):
            got, want = (pytree.tree_leaves(m(x)) for m in (each.module(), module))
            torch.testing.assert_close(got, want)
            assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
            sum(t.sum() for t in got).backward()
    with torch.no_grad():
        assert "where" not in str(export(Ensemble(), (x,)))


def _written_leaf(x: Tensor) -> Tensor:
    weight = nn.Parameter(torch.empty(3))
    nn.init.constant_(weight, 2.0)
    return x * weight


def _asked(x: Tensor) -> Tensor:
    y = x * torch.ones(3, requires_grad=True)
    return x * (2 if y.requires_grad else 3)


OWN_LEAVES: dict[str, Callable[[Tensor], Any]] = {
    "parameter": lambda x: x * nn.Parameter(torch.ones(3)),
    "parameter that is written": _written_leaf,
    "told when it is made": lambda x: x * torch.ones(3, requires_grad=True),
    "told at once": lambda x: x * torch.ones(3).requires_grad_(),
    "literal": lambda x: x * torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
    "detached before": lambda x: x * torch.ones(3, requires_grad=True).detach(),
    "asked": _asked,
    "without gradients": torch.no_grad()(lambda x: x * nn.Parameter(torch.ones(3))),
    "layer": lambda x: nn.init.ones_(nn.Linear(3, 3).weight) @ x,
}


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("forward", OWN_LEAVES.values(), ids=OWN_LEAVES)
def test_leaves_that_are_made_in_forward(forward: Callable[[Tensor], Any], needs: bool) -> None:
    x = torch.arange(3.0).requires_grad_(needs)
    program = export(forward, (x,))
    for each in (program, program.run_decompositions()):
        got, want = each.module()(x), forward(x)
        torch.testing.assert_close(got, want)
        assert got.requires_grad == want.requires_grad


def _marked_on_one_side(x: Tensor) -> Tensor:
    w = x.detach().clone().requires_grad_()
    y = w.detach() if x.sum() > 0 else w
    return y * 2


def _made_on_one_side(x: Tensor) -> Tensor:
    return x * nn.Parameter(torch.ones(3)) if x.sum() > 0 else x


def _marked_and_looped(x: Tensor) -> Tensor:
    w, y = torch.ones(3, requires_grad=True), x
    while y.sum() < 4:
        y = y + w
    return y


@pytest.mark.parametrize("forward", [_marked_on_one_side, _made_on_one_side, _marked_and_looped])
def test_leaves_that_a_way_makes_are_refused(forward: Callable[[Tensor], Tensor]) -> None:
    """Where they would have to be marked is known to nobody before the program runs."""
    x = torch.arange(3.0)
    with pytest.raises(CaptureError, match=r"by a branch or a loop on data(.|\n)*test_grad_marks"):
        export(forward, (x,))
    run = export(lambda x: forward(x).detach(), (x,)).module()  # as the error says
    for each in (x, -x):
        torch.testing.assert_close(run(each), forward(each).detach())
        assert not run(each).requires_grad


def test_a_leaf_beside_a_way_is_kept() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x.detach() if x.sum() > 0 else x
        return y + torch.ones(3, requires_grad=True)

    run = export(forward, (torch.ones(3),)).module()
    assert run(torch.ones(3)).requires_grad
    assert run(-torch.ones(3)).requires_grad


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_are_those_of_the_way(sign: int) -> None:
    def forward(x: Tensor) -> Tensor:
        w = x.clone().requires_grad_()
        y = w.detach() if x.sum() > 0 else w * w
        return y * 2

    run = export(forward, (torch.ones(3).requires_grad_(),)).module()
    x, other = (torch.full((3,), 2.0 * sign).requires_grad_() for _ in "ab")
    got, want = run(x), forward(other)
    assert got.requires_grad is want.requires_grad is (sign < 0)
    if sign < 0:
        got.sum().backward(), want.sum().backward()
        torch.testing.assert_close(x.grad, other.grad)


def test_what_the_caller_holds_is_not_marked() -> None:
    def forward(x: Tensor) -> Tensor:
        return x.copy_(x.detach().clone().requires_grad_() * 2)

    with pytest.raises(CaptureError, match=r"only because of a tensor that the module itself"):
        export(forward, (torch.randn(3),))


def test_state_that_is_left_with_a_gradient() -> None:
    def unseen(net: Net, x: Tensor) -> Tensor:
        net.scale.data.mul_(2)
        result = x + net.scale
        net.scale.copy_(net.weight)
        return result

    def seen(net: Net, x: Tensor) -> Tensor:
        net.scale.mul_(2)
        result = x + net.scale
        net.scale.copy_(net.weight)
        return result

    def detached(net: Net, x: Tensor) -> Tensor:
        net.scale.data.mul_(2)
        result = x + net.scale
        net.scale.copy_(net.weight.detach())
        return result

    with pytest.raises(CaptureError, match=r"the buffer scale is written to where[\s\S]*detach"):
        export(Net(unseen), (X,))
    for forward in (seen, detached):
        ours, net = export(Net(forward), (X,)).module(), Net(forward)
        for _ in range(3):
            got, want = ours(X), net(X)
            torch.testing.assert_close(got, want)
            assert got.requires_grad == want.requires_grad
    with torch.no_grad():
        export(Net(unseen), (X,))


def test_statistics_have_no_gradient() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Any:
            with torch.no_grad():
                teacher = self.norm(self.linear(x))
            return self.norm(self.linear(x)) - teacher, self.norm.running_mean.requires_grad  # type: ignore[union-attr]

    net, x = Twice(), torch.randn(4, 3)
    ours = export(net, (x,)).module()
    for _ in range(2):
        torch.testing.assert_close(ours(x), net(x))
        assert not ours.norm.running_mean.requires_grad
