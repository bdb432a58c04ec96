"""What Python asks of a tensor is baked into a program: in a call where the answer is another one,
the program says so, wherever it has been since; where it was not asked, nothing is checked."""

from __future__ import annotations

import builtins
import copy
import io
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import export
from lostwax.errors import (
    InputValueError,
    UnsupportedFakeError,
)
from lostwax.fake.tensor import new_fake
from lostwax.ir.run.conditions.answers import GRADIENTS


def wanting(requires: bool = True) -> Tensor:
    return torch.ones(2, requires_grad=requires)


def computed() -> Tensor:
    return wanting() * 1


def with_gradient() -> Tensor:
    x = wanting()
    x.sum().backward()
    return x


def tagged(value: Any) -> Tensor:
    x = torch.ones(2)
    x.tag = value  # type: ignore[attr-defined]
    return x


def inferred() -> Tensor:
    with torch.inference_mode():
        return torch.ones(2)


def conjugated() -> Tensor:
    return torch.ones(2, dtype=torch.cfloat).conj()


TENSOR: Any = torch.Tensor


def _get(name: str) -> Callable[[Any], Any]:
    if name == "is_leaf":
        return lambda x: TENSOR.is_leaf.__get__(x)
    return lambda x: getattr(torch.Tensor, "requires_grad").__get__(x)  # noqa: B009


def _closed_over_type() -> Callable[[Any], Any]:
    of = type
    return lambda x: of(x) is torch.Tensor


KIND_OF = type
ASKED: dict[str, tuple[Callable[[Tensor], Any], Tensor, Tensor]] = {
    "requires_grad": (lambda x: x.requires_grad, torch.ones(2), wanting()),
    "requires_grad ": (lambda x: x.requires_grad, wanting(), torch.ones(2)),
    "is_leaf": (lambda x: x.is_leaf, torch.ones(2), computed()),
    "grad is None": (lambda x: x.grad is None, wanting(), with_gradient()),
    "grad_fn is None": (lambda x: x.grad_fn is None, torch.ones(2), computed()),
    "class": (lambda x: type(x) is torch.Tensor, torch.ones(2), nn.Parameter(torch.ones(2))),
    "class ": (lambda x: type(x) in (nn.Parameter,), nn.Parameter(torch.ones(2)), torch.ones(2)),
    "class   ": (lambda x: x.__class__ is torch.Tensor, torch.ones(2), nn.Parameter(torch.ones(2))),
    "class    ": (
        lambda x: builtins.type(x) is torch.Tensor, torch.ones(2), nn.Parameter(torch.ones(2)),
    ),
    "class     ": (
        lambda x: KIND_OF(x) is torch.Tensor, torch.ones(2), nn.Parameter(torch.ones(2)),
    ),
    "class      ": (
        lambda x, of=type: of(x) is torch.Tensor, torch.ones(2), nn.Parameter(torch.ones(2)),
    ),
    "class       ": (_closed_over_type(), torch.ones(2), nn.Parameter(torch.ones(2))),
    "class  ": (lambda x: isinstance(x, nn.Parameter), wanting(), nn.Parameter(torch.ones(2))),
    "is_inference()": (lambda x: x.is_inference(), torch.ones(2), inferred()),
    "is_inference() ": (lambda x: x.is_inference(), inferred(), torch.ones(2)),
    "is_conj()": (lambda x: x.is_conj(), torch.ones(2, dtype=torch.cfloat), conjugated()),
    "_is_view()": (lambda x: x._is_view(), torch.ones(4)[:2], torch.ones(2)),
    "_base is None": (lambda x: x._base is None, torch.ones(2), torch.ones(4)[:2]),
    "untyped_storage().nbytes()": (
        lambda x: x.untyped_storage().nbytes() == 8, torch.ones(2), torch.ones(4)[:2],
    ),
    "attribute tag": (lambda x: getattr(x, "tag", 0) == 5, torch.ones(2), tagged(5)),
    "attribute tag ": (lambda x: hasattr(x, "tag"), tagged(5), torch.ones(2)),
}  # fmt: skip


BY_CLASS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "requires_grad": (_get("requires_grad"), torch.ones(2), wanting()),
    "is_leaf": (_get("is_leaf"), torch.ones(2), computed()),
    "grad is None": (lambda x: TENSOR.grad.__get__(x) is None, wanting(), with_gradient()),
    "grad_fn is None": (lambda x: TENSOR.grad_fn.__get__(x) is None, torch.ones(2), computed()),
    "is_inference()": (lambda x: torch.Tensor.is_inference(x), torch.ones(2), inferred()),
    "is_inference() ": (lambda x: torch.is_inference(x), torch.ones(2), inferred()),
    "_is_view()": (lambda x: torch.Tensor._is_view(x), torch.ones(4)[:2], torch.ones(2)),
    "untyped_storage().nbytes()": (
        lambda x: torch.Tensor.untyped_storage(x).nbytes() == 8, torch.ones(2), torch.ones(4)[:2],
    ),
}  # fmt: skip
ASKED |= {f"{name}    ": asked for name, asked in BY_CLASS.items()}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_of_an_input_is_checked(name: str) -> None:
    ask, example, other = ASKED[name]

    def forward(x: Tensor) -> Tensor:
        return x * 2 if ask(x) else x * 3

    program = export(forward, (example,))
    program.validate()
    ours = program.module()
    torch.testing.assert_close(ours(example), forward(example))
    assert not torch.equal(forward(other).detach(), forward(example).detach())
    asked = re.escape(name.strip())
    text = rf"^\[LW0402\] x: {asked} is .* here, and was .* at capture, where the original "
    with pytest.raises(
        InputValueError, match=rf"{text}asks it\n  at tests/\S+test_python_questions\.py:\d+"
    ) as error:
        ours(other)
    assert "capture it again with such a tensor" in str(error.value)


def test_nothing_is_checked_that_is_not_asked() -> None:
    program = export(lambda x: x * 2, (torch.ones(2),))
    assert program.assumptions == ()
    ours = program.module()
    assert ours._runner.check_assumptions is None  # type: ignore[union-attr]
    for _, example, other in ASKED.values():
        for x in (example, other):
            if x.dtype is torch.float32:
                torch.testing.assert_close(ours(x), x * 2)


OTHERS = {
    "one": lambda x: isinstance(x, dict),
    "of a module": lambda x: isinstance(x, torch.fx.Proxy),
    "several": lambda x: isinstance(x + 1, (torch.fx.Proxy, dict, str)),
    "of tracing": lambda x: isinstance(x, getattr(torch, "_subclasses").FakeTensor),  # noqa: B009
    "a variable": lambda x, of=list: isinstance(x, of),
}


@pytest.mark.parametrize("name", OTHERS)
def test_whether_a_tensor_is_something_else_is_not_checked(name: str) -> None:
    """(That a function reads `__class__` makes all tensors show theirs.)"""

    class Named(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if OTHERS[name](x) else x * len(self.__class__.__name__)

    program = export(Named(), (torch.ones(2),))
    assert program.assumptions == ()
    x = nn.Parameter(torch.ones(2))
    torch.testing.assert_close(program.module()(x), Named()(x))


class Mine(Tensor):
    pass


@pytest.mark.parametrize("classes", [Mine, dict | Mine, (dict, Mine)])
def test_whether_a_tensor_is_of_a_class_of_tensors_is_checked(classes: Any) -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if isinstance(x, classes) else x * len(self.__class__.__name__)

    program = export(Named(), (torch.ones(2),))
    assert [each.what for each in program.assumptions or ()] == ["class"]


def test_what_torch_asks_itself_is_not_checked() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    ours = export(layer, (torch.ones(1, 3, 8),)).module()
    x = torch.randn(1, 3, 8, requires_grad=True)
    torch.testing.assert_close(ours(x), layer(x))


def test_what_is_asked_of_a_computed_value_hangs_on_what_it_is_computed_from() -> None:
    def forward(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x * 2 if (x * y + z.detach()).requires_grad else x * 3

    plain = (torch.ones(2), torch.zeros(2), torch.zeros(2) + 1)
    ours = export(forward, plain).module()
    torch.testing.assert_close(ours(*plain), forward(*plain))
    detached = (*plain[:2], wanting())
    torch.testing.assert_close(ours(*detached), forward(*detached))
    text = r"what is computed from x, y requires gradient here, and required none [\s\S]*_python"
    with pytest.raises(InputValueError, match=text):
        ours(plain[0], wanting(), plain[2])
    with torch.no_grad():
        given = (plain[0], wanting(), plain[2])
        torch.testing.assert_close(ours(*given), forward(*given))
    asking = export(forward, (plain[0], wanting(), plain[2])).module()
    with torch.no_grad(), pytest.raises(InputValueError, match="requires no gradient here"):
        asking(plain[0], wanting(), plain[2])


class Freezing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return (
            x * (self.weight if self.weight.requires_grad else 7) * (2 if x is self.weight else 3)
        )


def test_what_is_asked_of_state_is_checked() -> None:
    ours = export(Freezing(), (torch.ones(2),)).module()
    ours(torch.ones(2))
    ours.requires_grad_(False)
    text = (
        r"own weight: requires_grad is False here[\s\S]*fix: module\.weight\.requires_grad_\(True"
    )
    with pytest.raises(InputValueError, match=text):
        ours(torch.ones(2))


class Laid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(6.0).view(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.rows.float().is_contiguous() else x * 3


def test_the_layout_of_state_is_checked_where_it_was_asked() -> None:
    program = export(Laid(), (torch.ones(2),))
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    again = export(program.module(), (torch.ones(2),))
    for each in (program, program.run_decompositions(), lostwax.load(file), again):
        ours = each.module()
        ours.rows = torch.zeros(2, 3)
        torch.testing.assert_close(ours(torch.ones(2)), torch.full((2,), 2.0))
        ours.rows = torch.zeros(3, 2).t()
        with pytest.raises(InputValueError, match=r"own rows: stride\(\) .* is \(1, 2\) here"):
            ours(torch.ones(2))


def test_versions_are_refused() -> None:
    with pytest.raises(
        UnsupportedFakeError, match=r"_version of .*\n  at tests/\S+test_python_questions.py:\d+ .*"
    ):
        export(lambda x: x * x._version, (torch.ones(2),))


class WithViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(2, 3))
        self.views = [self.h[:1], self.h.view(-1)]


class OfView(WithViews):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.views[0] * self.views[0]._version


class NamesOwnVersion(WithViews):
    _version = 2

    def forward(self, x: Tensor) -> Tensor:
        return x * self.views[0] * self._version


def test_the_version_of_a_view_of_state_is_refused() -> None:
    text = r"_version of a tensor, .* view \(1, 3\) of h, was [\s\S]*at \S+/test_python\w+.py:\d+"
    with pytest.raises(UnsupportedFakeError, match=text):
        export(OfView(), (torch.ones(3),))
    x = torch.ones(3)  # that of the module is another thing
    torch.testing.assert_close(export(NamesOwnVersion(), (x,)).module()(x), NamesOwnVersion()(x))


def test_an_attribute_of_an_input_that_is_no_plain_value_is_refused() -> None:
    with pytest.raises(UnsupportedFakeError, match=r"attribute tag of an input[\s\S]*as an argu"):
        export(lambda x: x * x.tag[0], (tagged([1]),))


READ = [
    lambda x: x * copy.deepcopy(x).tag,
    lambda x: x * getattr(copy.deepcopy([x])[0], "tag", 5),
    lambda x: x * copy.deepcopy(copy.deepcopy(x)).tag,
    lambda x: x * (2 if hasattr(copy.deepcopy(x), "tag") else 3),
    lambda x: x * vars(x).get("tag", 5),
    lambda x: x * vars(copy.deepcopy(x)).get("tag", 5),
    lambda x: x * (1 + len(x.__dict__)),
    lambda x: x * (2 if "tag" in dir(x) else 3),
]


@pytest.mark.parametrize("forward", READ)
def test_attributes_of_inputs_that_are_read_otherwise_are_asked_for(
    forward: Any, tmp_path: Path
) -> None:
    program = export(forward, (tagged(4),))
    lostwax.save(program, tmp_path / "program.pt2")
    for run in (program.module(), lostwax.load(tmp_path / "program.pt2").module()):
        torch.testing.assert_close(run(tagged(4)), forward(tagged(4)))
        with pytest.raises(InputValueError, match=r"x: (attribute tag|all attributes).* the int 7"):
            run(tagged(7))
        with pytest.raises(InputValueError, match="at capture"):
            run(torch.ones(2))


def test_all_attributes_of_an_input_are_read_if_they_are_plain() -> None:
    with pytest.raises(UnsupportedFakeError, match=r"attribute tag of an input[\s\S]*as an argu"):
        export(lambda x: x * len(vars(x)), (tagged([1]),))
    forward = lambda x: copy.deepcopy(x) * 2  # noqa: E731 - asks for none
    torch.testing.assert_close(export(forward, (tagged([1]),)).module()(tagged(2)), tagged(2) * 2)


def test_type_is_as_ever_of_all_else_and_afterwards() -> None:
    class Made:
        pass

    def forward(x: Tensor) -> Tensor:
        made = type("Other", (Made,), {})
        assert issubclass(made, Made)
        assert isinstance(made, type)
        assert issubclass(type, type)
        assert (type(made), type(made())) == (type(int), made)
        assert type(x * 2) is type(x.view(-1)) is torch.Tensor
        assert isinstance(x, type(x))
        return x

    export(forward, (torch.ones(2),))
    assert "type" not in globals()


def test_classes_are_as_ever_of_all_else_and_afterwards() -> None:
    class Made:
        pass

    def forward(x: Tensor, of: Any = type) -> Tensor:
        assert Made().__class__ is of(Made()) is KIND_OF(Made()) is builtins.type(Made()) is Made
        assert (x + 1).__class__ is x.data.__class__ is torch.Tensor
        assert isinstance(x, torch.Tensor)
        assert not isinstance(x, (list, str))
        return x * 2

    export(forward, (torch.ones(2),))
    assert forward.__defaults__ == (type,)
    assert builtins.type is KIND_OF is Made.__class__
    assert builtins.__class__ is ModuleType


ON_COMPUTED: dict[str, Callable[[Tensor], Any]] = {
    "einsum": lambda x: torch.einsum("...i,...i->...", x, x)._base is None,
    "view_as": lambda x: x.mT.view_as(x.mT)._base is None,
    "expand": lambda x: x.expand(2, *x.shape)._base is None,
    "reshape": lambda x: x.reshape(-1)._is_view(),
    "contiguous": lambda x: (x * 2).contiguous()._is_view(),
}


@pytest.mark.parametrize("name", ON_COMPUTED)
def test_whether_something_computed_is_a_view_is_refused(name: str) -> None:
    ask = ON_COMPUTED[name]
    text = r"(_base|_is_view\(\)) of .* was asked for, which is computed"
    text += r"[\s\S]*at tests/capture/trace/test_python_questions.py:\d+"
    for x in (torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)):
        with pytest.raises(UnsupportedFakeError, match=text):
            export(lambda x: x * (1 if ask(x) else 2), (x,))


@pytest.mark.parametrize("what", ["conj", "neg"])
def test_copies_that_are_made_of_what_has_a_bit(what: str) -> None:
    def forward(x: Tensor) -> Tensor:
        resolved = x.resolve_conj() if what == "conj" else x.resolve_neg()
        resolved.add_(1)
        return x + 0

    def example(has_bit: bool) -> Tensor:
        x = torch.arange(3) * torch.ones((), dtype=torch.complex64)
        x = x.conj() if has_bit else x
        return x if what == "conj" else x.imag

    for at_capture in (False, True):
        program = export(forward, (example(at_capture),))
        for each in (program, program.run_decompositions()):
            got, want = each.module()(example(at_capture)), forward(example(at_capture))
            torch.testing.assert_close(got, want)
            with pytest.raises(InputValueError, match=f"is_{what}"):
                each.module()(example(not at_capture))


def test_what_a_capture_has_not_seen_is_not_noted() -> None:
    """A program that runs in a capture asks what is computed from fakes: the capture has not made
    this one."""

    def forward(x: Tensor) -> Tensor:
        fake: Any = x
        unknown = new_fake(fake.fake_mode, fake.fake_type)
        fake.fake_mode.observer.note_question_at("a line", GRADIENTS, [unknown], is_joint=True)
        return x * 2

    x = torch.ones(2)
    torch.testing.assert_close(export(forward, (x,)).module()(x), x * 2)


def test_data_is_assigned_where_the_class_is_named() -> None:
    """Who names `torch.Tensor` asks by the class; what a fake itself does so is its own."""

    def forward(x: Tensor) -> Tensor:
        y = x * 2 if type(x) is torch.Tensor else x
        y.data = x + 1
        return y

    program = export(forward, (torch.ones(3),))
    assert torch.equal(program.module()(torch.ones(3)), torch.full((3,), 2.0))
