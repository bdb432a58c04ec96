"""Whether two tensors are one is baked into a program, too: in a call where it is otherwise, the
program says so, if it was asked and matters."""

import operator
from collections.abc import Callable
from operator import is_not
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.errors import (
    CaptureError,
    DynamicShapesError,
    InputValueError,
)
from tests.capture.trace.test_python_questions import Freezing
from tests.capture.trace.test_questions_survive import everywhere


def compare(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if x is y else x * 3


def by_id(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if id(x) == id(y) else x * 3


def in_a_set(x: Tensor, y: Tensor) -> Tensor:
    return x * len({x, y})


def in_a_list(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if any(each is y for each in [x]) else x * 3


def in_a_nested_function(x: Tensor, y: Tensor) -> Tensor:
    def is_one() -> bool:
        return y is not x

    return x * 2 if is_one() else x * 3


def in_a_while(x: Tensor, y: Tensor) -> Tensor:
    n = 2
    while x is not y and n < 3:
        n += 1
    return x * n


def beside_data(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2 if x.sum() > 0 else x + 1
    return z * (5 if x is y else 7)


def on_one_side(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * (5 if x is y else 7)
    return x


def in_a_chain(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if x is y is not None else x * 3


def by_operator(x: Tensor, y: Tensor) -> Tensor:
    return x * (2 if operator.is_(x, y) and not is_not(x, y) else 3)


# Its source is not there, so that it cannot tell of what it compares.
COMPILED: dict[str, Any] = {}
exec(compile("def sourceless(x, y): return x * (2 if x is y else 3)", "/gone.py", "exec"), COMPILED)


ASKING = [
    compare, by_id, in_a_set, in_a_list, in_a_nested_function, in_a_while, beside_data, on_one_side,
    in_a_chain, by_operator, lambda x, y: x * (2 if x is y else 3), COMPILED["sourceless"],
]  # fmt: skip


@pytest.mark.parametrize("forward", ASKING)
def test_one_tensor_in_two_places(forward: Callable[..., Tensor]) -> None:
    x, y = torch.ones(2), torch.ones(2)
    for example, other, text in (
        ((x, x), (x, y), "x and y were one tensor at capture, and are two here\n  why: .*`a is b`"),
        (
            (x, y),
            (x, x),
            "x and y are one tensor here, and were two at capture, where the original asks it, "
            "`a is b`\n  at .*.py:.* in .*",
        ),
    ):
        ours = export(forward, example, strict=forward is compare).module()
        torch.testing.assert_close(ours(*example), forward(*example))
        with pytest.raises(InputValueError, match=rf"^\[LW0402\] {text}.*\n  fix: pass "):
            ours(*other)


def test_the_ways_out_work() -> None:
    x = torch.ones(2)
    ours = export(compare, (x, torch.ones(2))).module()
    for y in (x.clone(), x.view_as(x), x.detach()):
        torch.testing.assert_close(ours(x, y), compare(x, y))


def test_where_it_does_not_matter_either_will_do() -> None:
    x, y, z = torch.ones(2), torch.ones(2), torch.ones(2)
    for example in ((x, x, x), (x, y, z), (x, x, z)):
        ours = export(lambda x, y, z: (x * y).sin() + z, example).module()
        assert ours._runner.check_assumptions is None  # type: ignore[union-attr]
        for call in ((x, x, x), (x, y, z), (x, x, z), (x, y, y)):
            torch.testing.assert_close(ours(*call), (call[0] * call[1]).sin() + call[2])


def warns(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    if x is y:
        print("one tensor, and it does not matter")
    return x + y * z


def asks_of_two(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * 2 + z if x is y else x * 3 + y * z


def asks_classes(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x + y if type(x) is type(z) and z.dtype is x.dtype else z


def asks_what_is_computed(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    w = x + y
    for each in (x, y, z):
        if each is w or w is each:
            return each
    return w * z


@pytest.mark.parametrize(
    ("forward", "refused"),
    [(warns, 0), (asks_of_two, 2), (asks_classes, 0), (asks_what_is_computed, 0)],
)
def test_only_what_is_asked_and_matters_is_a_condition(
    forward: Callable[..., Tensor], refused: int
) -> None:
    x, y, z = torch.ones(2), torch.full((2,), 2.0), torch.full((2,), 3.0)
    count = 0
    for ours in everywhere(export(forward, (x, y, z))):
        count = 0
        for call in ((x, y, z), (x, y, x), (x, z, z), (x, x, z), (x, x, x)):
            try:
                torch.testing.assert_close(ours(*call), forward(*call))
            except InputValueError:
                count += 1
        assert count == refused


def test_constants_are_asked_too() -> None:
    def forward(x: Tensor) -> Tensor:
        return x * 2 if x is CONSTANT else x * 3

    ours = export(forward, (torch.ones(2),)).module()
    torch.testing.assert_close(ours(torch.ones(2)), torch.full((2,), 3.0))
    with pytest.raises(InputValueError, match="own lifted_tensor_0 and x are one tensor here"):
        ours(CONSTANT)


def test_tensors_that_cannot_be_one_are_not_checked() -> None:
    ours = export(lambda x, y: x.sum() + y.sum(), (torch.ones(2), torch.ones(3))).module()
    assert ours._runner.check_assumptions is None  # type: ignore[union-attr]


def test_sizes_of_one_tensor_in_two_places() -> None:
    x = torch.ones(4, 3)
    auto = {0: Dim.AUTO}
    ours = export(compare, (x, x), dynamic_shapes=(auto, auto)).module()
    other = torch.ones(7, 3)
    torch.testing.assert_close(ours(other, other), other * 2)
    dims = ({0: Dim("a")}, {0: Dim("b")})
    free = export(lambda x, y: (x.sum(), y * 2), (x, x), dynamic_shapes=(auto, auto)).module()
    torch.testing.assert_close(free(other, x), (other.sum(), x * 2))
    with pytest.raises(
        DynamicShapesError, match=r"x\.shape\[0\] is .*a.*y\.shape\[0\] is [\s\S]*on"
    ):
        export(compare, (x, x), dynamic_shapes=dims)
    export(compare, (x, x.clone()), dynamic_shapes=dims)


def test_state_that_is_an_argument_too() -> None:
    net = Freezing()
    ours = export(net, (net.weight,)).module()
    torch.testing.assert_close(ours(ours.weight), net(net.weight))
    with pytest.raises(InputValueError, match="own weight and x were one tensor at capture"):
        ours(torch.ones(2))
    ours = export(net, (torch.ones(2),)).module()
    with pytest.raises(InputValueError, match="own weight and x are one tensor here, and were"):
        ours(ours.weight)
    torch.testing.assert_close(ours(ours.weight.view(2)), net(net.weight.view(2)))


CONSTANT = torch.ones(2)


def test_an_input_that_the_module_has_for_itself_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"the input x of the example is also a [\s\S]*x.clone"):
        export(lambda x: x + CONSTANT, (CONSTANT,))
    ours = export(lambda x: x + CONSTANT, (CONSTANT.clone(),)).module()
    torch.testing.assert_close(ours(torch.zeros(2)), CONSTANT)


@pytest.mark.parametrize("same", ["one", "keys and values", "three"])
def test_attention_asks(same: str) -> None:
    q, k, v = (torch.randn(2, 5, 8) for _ in range(3))
    calls = {"one": (q, q, q), "keys and values": (q, k, k), "three": (q, k, v)}
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    ours = export(layer, calls[same]).module()
    torch.testing.assert_close(ours(*calls[same]), layer(*calls[same]), rtol=0, atol=0)
    for call in calls.values():
        if len({*call}) <= len({*calls[same]}):  # it chooses a faster way, and computes the same
            torch.testing.assert_close(ours(*call), layer(*call))
        else:
            with pytest.raises(InputValueError, match=r"(query|key) and (key|value) were one"):
                ours(*call)
