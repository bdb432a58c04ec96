"""What Python asks of a tensor is baked into a program: in a call where the answer is another one,
the program says so, wherever it has been since; where it was not asked, nothing is checked."""

from __future__ import annotations

import builtins
import copy
import io
import operator
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from operator import is_not
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, is_grad_enabled, nn

import lostwax
from lostwax import Dim, export, unflatten
from lostwax.errors import (
    CaptureError,
    DynamicShapesError,
    InputValueError,
    LoadError,
    UnsupportedFakeError,
)
from lostwax.fake.tensor import new_fake
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.conditions.answers import GRADIENTS
from lostwax.pt2 import original


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


# ------------------------------------------------------------------------------------ which are one


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


# ------------------------------------------------------------------------------- wherever it is put


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
            InputValueError, match=r"x: requires_grad is True[\s\S]*test_python_questions\.py"
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
    text = rf"^\[LW0402\] \w+: {asked} is .* here, and was .*\n  at \S+/test_python_q\w+.py:\d+"
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


# ------------------------------------------------------------------------------- modes of torch's


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def switched(owner: Any, name: str) -> Callable[[], Any]:
    @contextmanager
    def other() -> Iterator[None]:
        before = getattr(owner, name)
        setattr(owner, name, not before)
        try:
            yield
        finally:
            setattr(owner, name, before)

    return other


@contextmanager
def other_kernels() -> Iterator[None]:
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def autocast() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


MODES: dict[str, tuple[Callable[[], bool], Callable[[], Any]]] = {
    "torch.is_grad_enabled()": (lambda: torch.is_grad_enabled(), torch.no_grad),
    "torch.is_grad_enabled() ": (lambda: is_grad_enabled(), torch.no_grad),
    "torch.is_inference_mode_enabled()": (
        lambda: torch.is_inference_mode_enabled(), torch.inference_mode,
    ),
    "torch.is_autocast_enabled('cpu')": (lambda: torch.is_autocast_enabled("cpu"), autocast),
    "torch.is_autocast_enabled('cpu') ": (lambda: torch.is_autocast_cpu_enabled(), autocast),
    "torch.get_default_dtype()": (lambda: torch.get_default_dtype() is torch.half, default_dtype),
    "torch.are_deterministic_algorithms_enabled()": (
        lambda: torch.are_deterministic_algorithms_enabled(), deterministic,
    ),
    "torch.backends.cudnn.benchmark": (
        lambda: torch.backends.cudnn.benchmark, switched(torch.backends.cudnn, "benchmark"),
    ),
    "torch.backends.cuda.matmul.allow_tf32": (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        switched(torch.backends.cuda.matmul, "allow_tf32"),
    ),
    "torch.backends.cuda.flash_sdp_enabled()": (
        lambda: torch.backends.cuda.flash_sdp_enabled(), other_kernels,
    ),
    "torch.utils.deterministic.fill_uninitialized_memory": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        switched(torch.utils.deterministic, "fill_uninitialized_memory"),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch.is_autocast_cpu_enabled:DeprecationWarning")
@pytest.mark.parametrize("is_on", [False, True])
@pytest.mark.parametrize("name", MODES)
def test_a_mode_that_is_asked_for_is_checked(
    name: str, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's own testing module, which other tests import, forbids such assignments for good.
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    ask, switched = MODES[name]
    as_captured, otherwise = (switched, nullcontext) if is_on else (nullcontext, switched)
    x = torch.ones(2)

    def forward(x: Tensor) -> Tensor:
        return x * 2 if ask() else x * 3

    captured = lostwax.capture(forward)
    with as_captured():
        program = export(forward, (x,))
        again = export(program.module(), (x,))
        torch.testing.assert_close(program.module()(x), forward(x))
        torch.testing.assert_close(captured(x), forward(x))
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    with otherwise():
        for each in (program, again, lostwax.load(file), program.run_decompositions()):
            with pytest.raises(InputValueError, match=re.escape(f"{name.strip()} is")):
                each.module()(x)
        torch.testing.assert_close(captured(x), forward(x))
    assert torch.is_grad_enabled is is_grad_enabled


def test_a_mode_that_a_module_switches_itself_is_not_checked() -> None:
    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x * 2 if torch.is_grad_enabled() else x * 3

    ours = export(forward, (torch.ones(2),)).module()
    for mode in (torch.no_grad, torch.inference_mode, nullcontext):
        with mode():
            torch.testing.assert_close(ours(torch.ones(2)), torch.full((2,), 3.0))


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
