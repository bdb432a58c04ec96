"""Programs hold for all sizes: whatever the example's, the program is the same, and it does what
the module does at 0, 1, 2, a prime and a large size.

Also for what specialises elsewhere (`dynamic_models.py`), within a bounded number of steps of the
engine.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from examples.models import MODELS
from lostwax import Dim, export
from lostwax.errors import CaptureError, ConstraintViolationError, InputValueError
from lostwax.fake import FakeTensor
from lostwax.ir.program import ExportedProgram
from tests.capture.compare import differences, run
from tests.capture.shapes.dynamic_models import CASES, Case, grid

SIZES = (0, 1, 2, 13)
LARGE = 40
EXAMPLES = (1, 2, 7, 10)


def declared(dynamic: tuple[Any, ...]) -> tuple[Any, ...]:
    """Names as Dims; `4*height` is a multiple of one."""

    def dim(name: str) -> Any:
        factor, _, root = name.rpartition("*")
        return int(factor) * Dim(root) if factor else Dim(root)

    return tuple(dims and {d: dim(name) for d, name in dims.items()} for dims in dynamic)


def engine_steps(program: ExportedProgram) -> int:
    vals = [node.meta.get("val") for node in program.graph.nodes]
    fake = next(v for v in vals if isinstance(v, FakeTensor))
    assert fake.fake_mode.shape_env is not None
    return fake.fake_mode.shape_env.steps


def exports(case: Case) -> ExportedProgram:
    """The program, which must not depend on the example's sizes."""
    torch.manual_seed(0)
    model, spec = case.model().eval(), declared(case.dynamic)
    programs = [export(model, case.inputs(**s), dynamic_shapes=spec) for s in case.examples]
    programs[0].validate()
    texts = {str(program): sizes for program, sizes in zip(programs, case.examples, strict=True)}
    assert len(texts) == 1, "\n".join(f"{sizes}:\n{text}" for text, sizes in texts.items())
    assert engine_steps(programs[0]) <= case.steps
    return programs[0]


def generalises(case: Case) -> None:
    program = exports(case)
    compared = 0
    for sizes in case.sizes:
        torch.manual_seed(0)
        model = case.model().eval()
        inputs = case.inputs(**sizes)
        ours = pytree.tree_map_only(Tensor, torch.clone, inputs)
        module = program.module()
        try:
            want = run(model, inputs, 0)
        except (RuntimeError, IndexError, ValueError):
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                module(*ours)
            continue
        got = run(module, ours, 0)
        assert not (wrong := differences(got, want)), f"{sizes}: " + "\n".join(wrong)
        compared += 1
    assert compared > len(case.sizes) / 2


def of_example(name: str, more: bool) -> Case:
    """An example model as a case, at the sizes of its tiny form but for the dimensions that vary;
    those that `more` adds are too small at first, then two primes."""
    example = MODELS[name]
    dynamic = list(example.dynamic)
    if more:
        dynamic[0] = {**dynamic[0], **example.more}
    names = {d for dims in dynamic for d in dims.values()}
    sides = {d.rpartition("*")[2] for d in names} - {"batch"}

    def inputs(**sizes: int) -> tuple[Tensor, ...]:
        return tuple(
            resized(tensor, {d: size_of(n, sizes) for d, n in dims.items()})
            for tensor, dims in zip(example.tiny_inputs(), dynamic, strict=True)
        )

    if not sides:
        varied = tuple({"batch": n} for n in (*SIZES, LARGE))
        return Case(example.tiny, inputs, tuple(dynamic), grid(batch=EXAMPLES), varied, 10_000)
    batches: tuple[int, ...] = (0, 1, 2)
    rest: Any = dict.fromkeys(sorted(sides), (9, 12)) if more else dict.fromkeys(sides, SIZES)
    shown: Any = dict.fromkeys(sorted(sides), (8, 17)) if more else dict.fromkeys(sides, EXAMPLES)
    varied = (
        *grid(batch=batches, **rest),
        {"batch": 2, **dict.fromkeys(sides, 23 if more else 61)},
    )
    examples = tuple(
        {"batch": b, **{side: sizes[i] for side, sizes in shown.items()}}
        for i, b in enumerate((1, 7, 2, 10)[: 2 if more else 4])
    )
    return Case(example.tiny, inputs, tuple(dynamic), examples, varied, 10_000)


def size_of(name: str, sizes: dict[str, int]) -> int:
    factor, _, root = name.rpartition("*")
    return int(factor or 1) * sizes[root]


def resized(tensor: Tensor, sizes: dict[int, int]) -> Tensor:
    """Random data of the tensor's kind in another size."""
    shape = [sizes.get(d, s) for d, s in enumerate(tensor.shape)]
    if tensor.dtype.is_floating_point:
        return torch.randn(shape)
    return torch.randint(0, int(tensor.max()) + 1, shape).to(tensor.dtype)


@pytest.mark.parametrize("name", MODELS)
def test_examples(name: str) -> None:
    generalises(of_example(name, more=False))


@pytest.mark.parametrize("name", [n for n, example in MODELS.items() if example.more])
def test_examples_in_other_sides(name: str) -> None:
    generalises(of_example(name, more=True))


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    generalises(CASES[name])


# ---------------------------------------------------------------- views that eager takes at times


class Turned(nn.Module):
    """`x.mT.reshape(-1)` copies, unless a side of x is 1."""

    def __init__(self, writes: str) -> None:
        super().__init__()
        self.writes = writes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + 1
        y = x.mT.reshape(-1)
        if self.writes == "copy":
            y.mul_(2)
        if self.writes == "source":
            x.mul_(2)
        return x, y


def both(size: tuple[int, int], module: nn.Module, program: ExportedProgram) -> None:
    x = torch.randn(size)
    torch.testing.assert_close(program.module()(x), module(x))


@pytest.mark.parametrize("writes", ["copy", "source"])
def test_a_write_to_what_is_a_view_at_some_sizes_excludes_them(writes: str) -> None:
    module = Turned(writes)
    program = export(module, (torch.randn(3, 4),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
    for size in ((3, 4), (2, 5), (7, 2)):
        both(size, module, program)
    with pytest.raises(InputValueError, match=r"x\.shape\[0\]"):
        program.module()(torch.randn(1, 4))
    declared_dims = ({0: Dim("rows"), 1: Dim("columns")},)
    with pytest.raises(ConstraintViolationError, match=r"y = x\.mT\.reshape\(-1\)"):
        export(module, (torch.randn(3, 4),), dynamic_shapes=declared_dims)


def test_a_write_to_what_is_a_view_in_the_example_alone_is_refused() -> None:
    spec = ({0: Dim.AUTO, 1: Dim.AUTO},)
    with pytest.raises(CaptureError, match=r"shares memory[\s\S]*\.clone\(\)"):
        export(Turned("copy"), (torch.randn(1, 4),), dynamic_shapes=spec)


def test_without_writes_no_size_is_excluded() -> None:
    module = Turned("neither")
    spec = ({0: Dim("rows"), 1: Dim("columns")},)
    program = export(module, (torch.randn(1, 4),), dynamic_shapes=spec)
    for size in ((3, 4), (1, 4), (4, 1), (0, 3), (1, 1)):
        both(size, module, program)


def test_an_input_with_gaps_varies_too() -> None:
    def halves(x: Tensor) -> Tensor:
        x.add_(1)
        return x[:, 1:].relu() - x[:, :-1]

    whole = torch.randn(4, 10)
    spec = ({0: Dim("rows"), 1: Dim("columns", min=1)},)
    program = export(halves, (whole[:, :5],), dynamic_shapes=spec)
    for x in (whole[:3, :7], torch.randn(2, 3), torch.randn(5, 4).t(), torch.randn(0, 3)):
        y = x.clone()
        torch.testing.assert_close(program.module()(x), halves(y))
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("varying", [({0: Dim.AUTO}, None), (None, {0: Dim.AUTO})])
def test_inputs_share_memory_also_where_one_of_them_varies(varying: Any) -> None:
    def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a[0] += 1
        return b

    x = torch.randn(4)
    for other in (x[:1], x.view(2, 2)):
        with pytest.raises(CaptureError, match="is written to, and shares memory with another"):
            export(forward, (x, other), dynamic_shapes=varying)
