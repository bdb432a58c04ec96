"""What Python asked of a tensor is checked wherever the program has been since: copied, decomposed,
saved, exported again."""

import copy
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import export, unflatten
from lostwax.errors import (
    InputValueError,
    LoadError,
)
from lostwax.ir.program import ExportedProgram
from lostwax.pt2 import original
from tests.capture.trace.test_python_questions import ASKED, Freezing, wanting


def loaded(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)  # type: ignore[no-any-return]


def everywhere(program: ExportedProgram) -> Iterator[Any]:
    yield copy.deepcopy(program).module()
    yield copy.deepcopy(program.module())
    yield program.run_decompositions().module()
    yield loaded(program).module()
    yield loaded(program.run_decompositions()).run_decompositions().module()
    yield unflatten(program)


def test_all_of_it_survives() -> None:
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * (2 if x is y else 3) * (5 if x.requires_grad else 7)

    x, y = torch.ones(2), torch.ones(2)
    for ours in everywhere(export(forward, (x, y))):
        torch.testing.assert_close(ours(x, y), forward(x, y))
        with pytest.raises(
            InputValueError, match=r"x: requires_grad is True[\s\S]*test_questions_survive\.py"
        ):
            ours(wanting(), y)
        with pytest.raises(InputValueError, match="x and y are one tensor here"):
            ours(x, x)
    for ours in everywhere(export(forward, (x, x))):
        torch.testing.assert_close(ours(x, x), forward(x, x))
        with pytest.raises(InputValueError, match="x and y were one tensor at capture"):
            ours(x, y)
    net = Freezing()
    for ours in everywhere(export(net, (net.weight,))):
        torch.testing.assert_close(ours(ours.weight), net(net.weight))
        with pytest.raises(InputValueError, match="own weight and x were one tensor"):
            ours(torch.ones(2))


@pytest.mark.parametrize(
    "asks",
    [
        {"same": [[]], "questions": []},
        {"same": [[0, -1]], "questions": []},
        {"same": [], "questions": [{"what": "__class__"}]},
        {"same": 3},
        [],
    ],
)
def test_a_damaged_record_is_refused(asks: Any) -> None:
    program = export(lambda x: x * 2, (torch.ones(2),))
    with pytest.raises(LoadError, match="what the original asks of tensors is damaged"):
        original.read({"training": None, "arguments": None, "asks": asks}, program)


def again(program: ExportedProgram, *args: Any) -> nn.Module:
    return export(program.module(), args).module()


@pytest.mark.parametrize("name", ASKED)
def test_a_program_that_is_exported_asks_what_it_asked(name: str) -> None:
    ask, example, other = ASKED[name]

    def forward(x: Tensor) -> Tensor:
        return x * 2 if ask(x) else x * 3

    ours = again(export(forward, (example,)), example)
    torch.testing.assert_close(ours(example), forward(example))
    asked = re.escape(name.strip())
    text = rf"^\[LW0402\] \w+: {asked} is .* here, and was .*\n  at \S+/test_\w*questions\w*.py:\d+"
    with pytest.raises(InputValueError, match=text):
        ours(other)


def test_a_program_that_is_exported_asks_of_what_is_computed() -> None:
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 if (x * y).requires_grad else x * 3

    plain, wants = torch.ones(2), wanting()
    ours = again(export(forward, (plain, plain + 1)), plain, plain + 1)
    torch.testing.assert_close(ours(plain, plain + 1), forward(plain, plain + 1))
    for given in ((wants, plain), (plain, wants)):
        with pytest.raises(InputValueError, match="computed from x, y requires gradient here"):
            ours(*given)
        with torch.no_grad():
            torch.testing.assert_close(ours(*given), forward(*given))
    asking = again(export(forward, (plain, wants)), plain, wants)
    torch.testing.assert_close(asking(wants, plain), forward(wants, plain))
    with torch.no_grad(), pytest.raises(InputValueError, match="requires no gradient here"):
        asking(plain, wants)


def test_a_program_inside_of_a_module_asks_what_it_asked() -> None:
    def forward(x: Tensor) -> Tensor:
        return x * 2 if x.requires_grad else x * 3

    inner = export(forward, (torch.ones(2),)).module()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + 1)

    ours = export(Outer(), (torch.ones(2),)).module()
    torch.testing.assert_close(ours(torch.ones(2)), forward(torch.ones(2) + 1))
    with pytest.raises(InputValueError, match="what is computed from x requires gradient here"):
        ours(wanting())


def doubled_flat(x: Tensor) -> Tensor:
    x *= 2
    return x.reshape(-1)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a write": doubled_flat,
    "strides": lambda x: x * x.stride(0),
    "a place": lambda x: x * 2 + x.storage_offset(),
    "as_strided": lambda x: x.as_strided((2, 2), (2, 1)) + 1,
    "none": lambda x: x * 2,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_program_that_is_exported_relies_on_the_layouts_it_relied_on(name: str) -> None:
    forward, example = LAYOUTS[name], torch.randn(4, 3)
    first = export(forward, (example.clone(),))
    ours = export(first.module(), (example.clone(),)).module()
    torch.testing.assert_close(ours(example.clone()), forward(example.clone()))
    for other in (torch.randn(3, 4).mT, torch.randn(5, 3)[1:], torch.randn(4, 6)[:, ::2]):
        try:
            expected = first.module()(copy.deepcopy(other))
        except RuntimeError as error:
            assert "as at capture: the program relies on them" in str(error)  # noqa: PT017
            with pytest.raises(RuntimeError, match="as at capture: the program relies on them"):
                ours(copy.deepcopy(other))
        else:
            torch.testing.assert_close(ours(copy.deepcopy(other)), expected)
