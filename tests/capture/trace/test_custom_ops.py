"""Custom operators of users: single nodes, functional, and refused with the line."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lostwax.capture import export
from lostwax.errors import CaptureError, MissingFakeRuleError
from tests.capture.compare import exported
from tests.capture.small import Of, X, same, targets


@torch.library.custom_op("lostwax_test::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@scaled.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lostwax_test::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("lostwax_test::bump", mutates_args={"x"})
def bump(x: torch.Tensor, by: torch.Tensor) -> None:
    x.add_(by)


@torch.library.custom_op("lostwax_test::told", mutates_args=())
def told(x: torch.Tensor) -> None:
    pass


@torch.library.custom_op("lostwax_test::halve", mutates_args={"x", "more"})
def halve(x: torch.Tensor, more: list[torch.Tensor], factor: float = 0.5) -> torch.Tensor:
    for each in (x, *more):
        each.mul_(factor)
    return x.sum()


@halve.register_fake
def _(x: torch.Tensor, more: list[torch.Tensor], factor: float = 0.5) -> torch.Tensor:
    return x.new_empty(())


def _writes(self: Any, x: torch.Tensor) -> Any:
    bump(x, x * 2)
    y = x * 3
    bump(y[0], x[1])
    total = halve(self.state, [x[1:], y])
    return y, total, self.state * 1


def test_custom_operators_that_write_are_functional() -> None:
    module = nn.Module()
    module.register_buffer("state", torch.ones(4))
    module.forward = _writes.__get__(module)  # type: ignore[method-assign]
    program = exported(module, X.clone())
    program.validate()
    assert targets(program).count("auto_functionalized") == 3
    assert "aten.clone" not in targets(program)
    again = export(program.module(), (X.clone(),))
    ours, eager = X.clone(), X.clone()
    torch.testing.assert_close(again.module()(ours), copy.deepcopy(module)(eager))
    torch.testing.assert_close(ours, eager)


@torch.library.custom_op("lostwax_test::shift_", mutates_args={"x"})
def shift_in_place(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("lostwax_test::shift", mutates_args=())
def shift(x: torch.Tensor) -> torch.Tensor:
    return x - 1


@shift.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_names_of_custom_operators_say_nothing_of_each_other() -> None:
    """torch's own `add_` computes what `add` does; a user's `shift_` need not."""

    def both(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        shift_in_place(y)
        return y + shift(x)

    same(Of(lambda self, x: both(x)), X)


def test_custom_operators_that_see_their_writes_are_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        bump(x[:2], x[:2].t())
        return x

    text = r"memory that its arguments x and by share[\s\S]*test_custom_ops.py[\s\S]*clone"
    with pytest.raises(CaptureError, match=text):
        export(forward, (torch.ones(4, 2),))

    def apart(x: torch.Tensor) -> torch.Tensor:
        bump(x[:2], x[2:])
        return x * 1

    same(Of(lambda self, x: apart(x.clone())), torch.ones(4, 2))


def test_a_custom_operator_that_returns_nothing_needs_no_fake_kernel() -> None:
    program = export(lambda x: (told(x), x + 1)[1], (X,))
    torch.testing.assert_close(program.module()(X), X + 1)


def test_custom_operators_are_single_nodes() -> None:
    program = same(Of(lambda self, x: scaled(x + 1, 2.0)), X)
    assert targets(program) == ["aten.add.Tensor", "lostwax_test.scaled"]
    with pytest.raises(MissingFakeRuleError, match="lostwax_test::unknown") as error:
        export(Of(lambda self, x: unknown(x)), (X,))
    assert "test_custom_ops.py" in str(error.value)


LIBRARY = torch.library.Library("lostwax_test", "FRAGMENT")
LIBRARY.define("first(Tensor(a) x) -> Tensor(a)")
LIBRARY.define("second(Tensor x, Tensor(a) y) -> Tensor(a)")
for _key in ("CPU", "Meta"):
    LIBRARY.impl("first", lambda x: x[0], _key)
    LIBRARY.impl("second", lambda x, y: y[0], _key)


def test_custom_operators_that_return_views() -> None:
    """They are views in the program, too; nothing says how a write would get back."""
    ops = torch.ops.lostwax_test

    def forward(self: Any, x: torch.Tensor) -> Any:
        y = ops.first(x)
        x.add_(1)
        return y, y * 2

    program = exported(Of(forward), X.clone())
    program.validate()
    assert targets(program).count("lostwax_test.first") >= 1
    assert "aten.select.int" not in targets(program)
    with pytest.raises(CaptureError, match=r"a write through lostwax_test.first.*cannot be capt"):
        export(lambda x: ops.first(x).add_(1), (X.clone(),))
    with pytest.raises(CaptureError, match=r"a view of an argument that is not its first"):
        export(lambda x: ops.second(x, x), (X.clone(),))


@torch.library.custom_op("lostwax_test::both", mutates_args=())
def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x + 2


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda x: torch.empty_like(x), "returns Tensor, and"),
        (lambda x: (torch.empty_like(x),), "returns (Tensor), and"),
        (lambda x: (torch.empty_like(x), None), "returns (Tensor, NoneType), and"),
        (lambda x: None, "returns NoneType, and"),
    ],
)
def test_a_fake_kernel_that_returns_something_else_is_refused(returned: Any, text: str) -> None:
    both.register_fake(returned)  # torch itself crashes on the first of them
    with pytest.raises(CaptureError) as caught:
        export(lambda x: both(x)[0], (X,))
    assert text in str(caught.value)
    assert "lostwax_test::both" in str(caught.value)
    assert "(Tensor, Tensor)" in str(caught.value)
    assert "test_custom_ops.py" in str(caught.value)
    both.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
    same(Of(lambda self, x: both(x)), X)


@torch.library.custom_op("lostwax_test::counted", mutates_args=())
def counted(x: torch.Tensor) -> int:
    return int(x.sum())


@torch.library.custom_op("lostwax_test::both_counted", mutates_args=())
def both_counted(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x + 1, int(x.sum())


def test_operators_that_return_numbers() -> None:
    with pytest.raises(MissingFakeRuleError, match=r"return .*get_ctx\(\).new_dynamic_size\(\)\n"):
        export(lambda x: x * counted(x), (X,))
    counted.register_fake(lambda x: torch.library.get_ctx().new_dynamic_size())
    both_counted.register_fake(
        lambda x: (torch.empty_like(x), torch.library.get_ctx().new_dynamic_size())
    )

    def forward(self: Any, x: torch.Tensor) -> Any:
        y, n = both_counted(x)
        return y * counted(x), torch.ones(n), n + 1

    program = same(Of(forward), X.abs())
    assert {"lostwax_test.both_counted", "lostwax_test.counted"} <= set(targets(program))
    out = program.module()(torch.full_like(X, 3.0))
    assert out[1].numel() == out[2] - 1 == 3 * X.numel()
    again = export(program.module(), (X.abs(),)).run_decompositions()
    torch.testing.assert_close(again.module()(X.abs()), forward(None, X.abs()))


def test_triton_kernels_stay_in_operators() -> None:
    """As `torch.library.triton_op` has them: its fake kernel is the function that launches."""
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    def launched(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        triton_kernel_wrapper_mutation(
            kernel_idx=0,
            constant_args_idx=0,
            grid=[(1, 1, 1)],
            tma_descriptor_metadata={},
            kwargs={"x": x, "out": out},
        )
        return out

    @torch.library.custom_op("lostwax_test::launched", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    operator.register_fake(launched)
    program = same(Of(lambda self, x: operator(x.sin())), X)
    assert "lostwax_test.launched" in targets(program)
    with pytest.raises(CaptureError, match=r"Triton kernel[\s\S]*test_custom_op[\s\S]*triton_op"):
        export(Of(lambda self, x: launched(x)), (X,))


@torch.library.custom_op("lostwax_test::made_of_nothing", mutates_args=())
def made_of_nothing() -> torch.Tensor:
    return torch.ones(3)


@made_of_nothing.register_fake
def _() -> torch.Tensor:
    return torch.empty(3)


def test_python_asks_something_of_what_is_made_of_nothing() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        made = made_of_nothing()
        return x if made.is_conj() or made.is_neg() or made.is_inference() else x + made

    program = export(forward, (torch.ones(3),))
    assert torch.equal(program.module()(torch.ones(3)), torch.full((3,), 2.0))
