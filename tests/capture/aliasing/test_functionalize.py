"""Writes, views and aliases, case by case: the program computes what the module does, and its
signature says what it writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lostwax import Dim
from lostwax.capture import export
from lostwax.errors import CaptureError, InputValueError
from lostwax.ir.program import ExportedProgram
from tests.capture.compare import exported


def module(forward: Callable[..., Any], **buffers: Tensor) -> nn.Module:
    """A module with this `forward` and these buffers."""
    made: nn.Module = type("Case", (nn.Module,), {"forward": forward})()
    for name, value in buffers.items():
        made.register_buffer(name, value)
    return made


def targets(program: ExportedProgram) -> list[str]:
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    return [str(n.target).removeprefix("aten.") for n in nodes]


def written_inputs(program: ExportedProgram) -> list[str]:
    return list(program.graph_signature.user_inputs_to_mutate.values())


def written_buffers(program: ExportedProgram) -> list[str]:
    return list(program.graph_signature.buffers_to_mutate.values())


def grid() -> Tensor:
    return torch.arange(20.0).reshape(4, 5)


# ------------------------------------------------------------------------------- writes to an input


def masked(x: Tensor) -> None:
    x[x > 3] = -1


def by_rows(x: Tensor) -> None:
    x[torch.tensor([0, 2])] = 7.0


def accumulated(x: Tensor) -> None:
    x.index_put_((torch.tensor([1, 1]),), torch.ones(5), accumulate=True)


def chain(x: Tensor) -> None:
    x.t()[1:4].transpose(0, 1)[::2].unsqueeze(0).mul_(10)


def overlapping_names(x: Tensor) -> None:
    top, whole = x[:2], x.view(-1)
    top.add_(1)
    whole[5:].mul_(2)
    top.sub_(3)


def pieces(x: Tensor) -> None:
    first, *_, last = x.split([1, 2, 1])
    first.copy_(last)
    for k, row in enumerate(x.unbind(1)):
        row.add_(k)
    x.chunk(2, dim=1)[1].zero_()


def through_data(x: Tensor) -> None:
    x.data.mul_(2)
    x.detach()[0] = 5


def operators_out(x: Tensor) -> None:
    torch.add(x, 1, out=x)
    torch.sin(x[0], out=x[1])


def as_integers(x: Tensor) -> None:
    x.view(torch.int32)[0].zero_()


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda x: x.add_(1).mul_(2).relu_(),
    "augmented": lambda x: x.__iadd__(3),
    "copy_ of a smaller tensor": lambda x: x.copy_(torch.ones(5)),
    "copy_ of another dtype": lambda x: x.copy_(torch.ones(4, 5, dtype=torch.int64)),
    "copy_ of a number": lambda x: x.copy_(2),
    "slice": lambda x: x[1:3, ::2].add_(1),
    "select": lambda x: x[2].fill_(9),
    "last": lambda x: x[..., -1].neg_(),
    "diagonal": lambda x: x.diagonal(1).zero_(),
    "fill_diagonal_": lambda x: x.fill_diagonal_(3),
    "as_strided": lambda x: x.as_strided((2, 2), (10, 2), 1).fill_(8),
    "as_strided of a view": lambda x: x[2:].as_strided((2,), (1,), 0).fill_(8),
    "unfold": lambda x: x.unfold(1, 2, 2).mul_(3),
    "overlapping windows": lambda x: x.unfold(1, 3, 1).fill_(3),
    "transpose": lambda x: x.t().cumsum_(0),
    "permute": lambda x: x.permute(1, 0)[0].add_(5),
    "view": lambda x: x.view(2, 10)[1].mul_(2),
    "expand of one": lambda x: x[:, :1].squeeze(1).add_(1),
    "chain": chain,
    "mask": masked,
    "masked_fill_": lambda x: x.masked_fill_(x > 4, 0.0),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 4, torch.zeros(20)),
    "rows": by_rows,
    "index_put_": accumulated,
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 5)),
    "scatter_": lambda x: x.scatter_(1, torch.zeros(4, 1, dtype=torch.int64), 4.0),
    "names that overlap": overlapping_names,
    "pieces": pieces,
    ".data": through_data,
    "out=": operators_out,
    "other element type": as_integers,
    "foreach": lambda x: torch._foreach_add_([x[0], x[1]], 2.0),
    "functional in place": lambda x: F.relu(x[1:], inplace=True),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_input_is_written(write: Callable[[Tensor], Any]) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        write(x)
        return x * 2

    program = exported(module(forward), grid())
    assert written_inputs(program) == ["x"]
    assert all("_." not in name and ".out" not in name for name in targets(program))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_buffer_is_written(write: Callable[[Tensor], Any]) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        before = self.state[0] + 0
        write(self.state)
        return before + x + self.state[1]

    program = exported(module(forward, state=grid(), other=torch.ones(5)), torch.ones(5))
    assert written_buffers(program) == ["state"]
    assert written_inputs(program) == []


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_tensor_of_its_own_is_written(write: Callable[[Tensor], Any]) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        mine = x.clone()
        write(mine)
        return mine

    program = exported(module(forward), grid())
    assert written_inputs(program) == []


# `as_strided` reads memory, wherever the tensor is in it.
LAID_OUT = {k: write for k, write in WRITES.items() if "as_strided" not in k}


@pytest.mark.parametrize("write", LAID_OUT.values(), ids=LAID_OUT)
def test_another_layout_is_written(write: Callable[[Tensor], Any]) -> None:
    """A transposed tensor inside a larger one."""

    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mine = torch.zeros(6, 8, dtype=x.dtype)[1:6, 2:6].t()
        mine.copy_(x)
        if is_written:
            write(mine)
        else:
            with contextlib.suppress(RuntimeError):
                write(mine)
        return mine, mine[1:].t()

    is_written = True
    try:
        forward(None, grid())
    except RuntimeError:  # some need another layout, in eager as here
        is_written = False
    exported(module(forward), grid())


def test_slice_of_a_slice_is_scattered_twice() -> None:
    program = exported(module(lambda self, x: x[1:][0].add_(1)), grid())
    assert targets(program).count("select_scatter.default") == 1
    assert targets(program).count("slice_scatter.default") == 1


# ----------------------------------------------------------------------------------------- metadata


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.t_(),
        lambda t: t.transpose_(0, 1),
        lambda t: t.unsqueeze_(0).squeeze_(0),
        lambda t: t.swapaxes_(0, 1).add_(1),
        lambda t: t.as_strided_((2, 2), (1, 2)),
        lambda t: t.detach_(),
    ],
)
def test_metadata_in_place(change: Callable[[Tensor], Tensor]) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mine = x + 1
        rows = mine[1:]
        change(mine)
        mine.mul_(2)
        return mine, rows

    exported(module(forward), grid())


def test_metadata_of_an_input_that_is_put_back() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x.t_()
        x[0].zero_()
        x.t_()
        return x

    assert written_inputs(exported(module(forward), grid())) == ["x"]


# ------------------------------------------------------------------------------------------ buffers


def test_reassigned_buffer() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return x * self.count

    program = exported(module(forward, count=torch.zeros(3)), torch.ones(3), times=3)
    assert written_buffers(program) == ["count"]


def test_buffers_that_change_places() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.last, self.now = self.now, self.now * 2 + x
        return self.now - self.last

    program = exported(
        module(forward, last=torch.zeros(3), now=torch.ones(3)), torch.ones(3), times=3
    )
    assert written_buffers(program) == ["last", "now"]


def test_reassigned_to_another_layout_keeps_its_own() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.state = self.state.t().contiguous().t() + x
        return self.state

    program = export(module(forward, state=torch.zeros(2, 3)), (torch.ones(3),))
    ran = program.module()
    assert ran(torch.ones(3)).stride() == (1, 2)
    assert ran.state.stride() == (3, 1)
    assert ran.state.sum() == 6


def test_reassigned_through_data() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.state.data = self.state.data * 2
        return self.state + x

    program = exported(module(forward, state=torch.ones(3)), torch.ones(3))
    assert written_buffers(program) == ["state"]


def test_parameter_is_written() -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.mul_(0.5)
            return x * self.weight

    program = exported(Averaging(), torch.ones(3))
    assert list(program.graph_signature.parameters_to_mutate.values()) == ["weight"]


@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_training(track: bool, affine: bool) -> None:
    norm = nn.BatchNorm2d(3, affine=affine, track_running_stats=track)
    program = exported(norm.train(), torch.randn(4, 3, 5, 5), times=3)
    if track:
        assert written_buffers(program) == ["running_mean", "running_var", "num_batches_tracked"]
        assert "_native_batch_norm_legit_functional.default" in targets(program)
    else:
        assert written_buffers(program) == []
        assert "_native_batch_norm_legit.no_stats" in targets(program)


def test_batch_norm_in_evaluation() -> None:
    program = exported(nn.BatchNorm1d(3).eval(), torch.randn(4, 3))
    assert written_buffers(program) == []
    assert targets(program)[0] == "_native_batch_norm_legit_no_training.default"


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("norm", "size"),
    [
        (nn.BatchNorm1d, (4, 3)),
        (nn.BatchNorm1d, (4, 3, 2)),
        (nn.BatchNorm2d, (4, 3, 2, 2)),
        (nn.BatchNorm3d, (2, 3, 2, 1, 2)),
    ],
)
def test_batch_norm_averages_over_all_batches(norm: Any, size: Any, affine: bool) -> None:
    program = exported(norm(3, momentum=None, affine=affine).train(), torch.randn(size), times=3)
    assert written_buffers(program) == ["running_mean", "running_var", "num_batches_tracked"]
    exported(norm(3, momentum=None, affine=affine).eval(), torch.randn(size))
    exported(norm(3, momentum=None, dtype=torch.float64), torch.randn(size).double())


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_gradients(training: bool, momentum: float | None) -> None:
    eager = nn.BatchNorm1d(3, momentum=momentum).train(training)
    ours = export(eager, (torch.randn(4, 3),)).module()
    x, y = (torch.randn(4, 3, generator=torch.manual_seed(1)).requires_grad_() for _ in "xy")
    deepcopy(eager)(x).pow(3).sum().backward()
    ours(y).pow(3).sum().backward()
    torch.testing.assert_close(y.grad, x.grad)


# ---------------------------------------------------------------------------------------- aliasing


RESULTS: dict[str, Callable[..., Any]] = {
    "the input": lambda self, x: x,
    "the input twice": lambda self, x: (x, x),
    "a view of the input": lambda self, x: x[1:].t(),
    "the written input": lambda self, x: x.add_(1),
    "a view of the written input": lambda self, x: (x[0].add_(1), x.t()),
    "a view made before the write": lambda self, x: (x.t(), x.add_(1))[0],
    "two views of one tensor": lambda self, x: ((y := x + 1)[0], y[1:], y),
    "a written view and its base": lambda self, x: (y := x + 1, y[0].mul_(2), y),
    "a buffer": lambda self, x: self.state,
    "a written buffer and a view": lambda self, x: (self.state.add_(1), self.state[0]),
    "pieces": lambda self, x: (x + 1).split(2),
    "expanded": lambda self, x: x[:1].expand(4, 5),
    "a layout": lambda self, x: (x.t() + 1, torch.empty_like(x.t()).copy_(x.t())),
    "contiguous already": lambda self, x: x.contiguous(),
    "the same dtype": lambda self, x: x.to(torch.float32),
    "detached": lambda self, x: x.detach(),
}


@pytest.mark.parametrize("forward", RESULTS.values(), ids=RESULTS)
def test_results_alias_as_in_eager(forward: Callable[..., Any]) -> None:
    exported(module(forward, state=grid()), grid())


def test_an_input_that_is_a_result_is_the_very_tensor() -> None:
    program = export(module(lambda self, x: (x, x.add_(1))), (grid(),))
    x = grid()
    first, second = program.module()(x)
    assert first is x
    assert second is x


# --------------------------------------------------------------------------------------- out=


def test_out_argument() -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        room = torch.empty(4, 5)
        back = torch.mul(x, 2, out=room)
        return room, back

    exported(module(forward), grid())


def test_out_argument_without_room() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        room = torch.empty(0)
        torch.mul(x, 2, out=room)
        return room + 1

    exported(module(forward), grid())


def test_out_decides_the_dtype_of_a_sum() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        room = torch.empty(5, dtype=torch.float64)
        return torch.sum(x, 0, out=room)

    exported(module(forward), grid())


def test_two_out_arguments() -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.empty(4), torch.empty(4, dtype=torch.int64)
        torch.max(x, 1, out=(values, places))
        return values, places

    exported(module(forward), grid())


# ---------------------------------------------------------------------------------------- refusals


CONSTANT = torch.ones(3)


def two_names() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.a = self.a + x
        return self.b

    made = module(forward, a=torch.ones(3))
    made.register_buffer("b", made.a)
    return made


def _assign(name: str, value: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        setattr(self, name, value(self, x))
        return x + 1

    return forward


def _vector(forward: Callable[..., Any]) -> nn.Module:
    return module(forward, state=torch.ones(3), other=torch.ones(3))


REFUSALS: dict[str, tuple[nn.Module, str]] = {
    "resize_": (_vector(lambda self, x: (x + 1).resize_(2)), "resize_ cannot be captured"),
    "resize_as_": (_vector(lambda self, x: (x + 1).resize_as_(x)), "resize_as_ cannot be captured"),
    "set_": (_vector(lambda self, x: (x + 1).set_(x)), "set_ cannot be captured"),
    "out= of another size": (
        _vector(lambda self, x: torch.add(x, 1, out=torch.empty(2))),
        "out= has size (2,), the result (3,): resizing cannot be captured",
    ),
    "a constant is written": (
        _vector(lambda self, x: CONSTANT.add_(x)),
        "the constant of size (3,) is written to, and is no state of the module",
    ),
    "a view of a constant is written": (
        _vector(lambda self, x: CONSTANT[1:].zero_()),
        "the constant of size (3,) is written to, and is no state of the module",
    ),
    "a constant is turned": (
        _vector(lambda self, x: CONSTANT.unsqueeze_(0)),
        "the constant of size (3,) gets other sizes or strides in place",
    ),
    "an input is turned": (
        _vector(lambda self, x: x.unsqueeze_(0)),
        "the input x leaves the program with size (1, 3)",
    ),
    "a buffer is turned": (
        _vector(lambda self, x: self.state.unsqueeze_(0) + x),
        "the buffer state leaves the program with size (1, 3)",
    ),
    "a buffer grows": (
        _vector(_assign("state", lambda self, x: torch.cat([self.state, x]))),
        "the buffer state is replaced by a tensor of size (6,)",
    ),
    "a buffer of another dtype": (
        _vector(_assign("state", lambda self, x: self.state.double())),
        "the buffer state is replaced by a tensor of size (3,) and torch.float64",
    ),
    "a buffer is taken away": (
        _vector(_assign("state", lambda self, x: None)),
        "the buffer state holds no tensor after the call",
    ),
    "two buffers become one": (
        _vector(_assign("state", lambda self, x: self.other)),
        "state and other share memory after the call",
    ),
    "one buffer becomes two": (two_names(), "the buffer a = b is one tensor by several names"),
    "a new attribute": (
        _vector(_assign("memory", lambda self, x: x + getattr(self, "memory", 1))),
        "the module keeps a tensor in the attribute memory",
    ),
    "memory beside the tensor": (
        _vector(lambda self, x: x.as_strided((2,), (1,), 2)),
        "as_strided((2,), (1,), 2) cannot be captured",
    ),
}


@pytest.mark.parametrize(("case", "text"), REFUSALS.values(), ids=REFUSALS)
def test_refused(case: nn.Module, text: str) -> None:
    room = torch.zeros(4)
    before = deepcopy(case.state_dict())
    with pytest.raises(CaptureError) as caught:
        export(case, (room[:3],))
    message = str(caught.value)
    assert text in message
    assert "why:" in message or "instead:" in message
    assert torch.equal(CONSTANT, torch.ones(3))
    assert CONSTANT.shape == (3,)
    torch.testing.assert_close(case.state_dict(), before)
    assert set(dict(case.named_buffers(remove_duplicate=False))) >= set(before)


def test_a_refusal_shows_the_line() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return (x + 1).resize_(2)  # here

    with pytest.raises(CaptureError, match=r"test_functionalize\.py:\d+ in forward: .*# here"):
        export(module(forward), (torch.ones(3),))


@pytest.mark.parametrize("second", [lambda x: x.view_as(x), lambda x: x[1:], lambda x: x.t()])
def test_inputs_that_share_memory(second: Callable[[Tensor], Tensor]) -> None:
    x = grid()
    exported(module(lambda self, x, y: x.sum() + y.sum()), x, second(x))
    with pytest.raises(CaptureError, match="the input x is written to, and shares memory"):
        export(module(lambda self, x, y: x.add_(1).sum() + y.sum()), (x, second(x)))


def test_one_input_in_two_places_is_written_to() -> None:
    def write(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * 2 + y

    x = grid()
    ours = export(write, (x, x)).module()
    got, want = grid(), grid()
    torch.testing.assert_close(ours(got, got), write(want, want))
    torch.testing.assert_close(got, want)
    with pytest.raises(InputValueError, match="x and y were one tensor at capture, and are two"):
        ours(grid(), grid())


def test_a_buffer_that_is_an_input_too() -> None:
    case = module(lambda self, x: self.state.add_(1).sum() + x.sum(), state=grid())
    ours = export(case, (case.state,)).module()
    for _ in range(2):
        torch.testing.assert_close(ours(ours.state), case(case.state))
    torch.testing.assert_close(ours.state, case.state)
    with pytest.raises(InputValueError, match=r"own state and x were one .*[\s\S]*module.state"):
        ours(grid())
    with pytest.raises(CaptureError, match="the buffer state is written to, and shares memory"):
        export(case, (case.state[1:],))


@pytest.mark.parametrize("dynamic", [None, {"x": {0: Dim.AUTO}}])
def test_elements_that_share_memory_are_not_written_to(dynamic) -> None:
    """Eager refuses it; the program would have left one of the values there."""
    for write in (
        lambda x: x.new_zeros(1).expand(x.shape[0]).add_(x),
        lambda x: x.new_zeros(1).expand(x.shape[0]).copy_(x),
        lambda x: torch.neg(x, out=x.new_zeros(1).expand(x.shape[0])),
    ):
        with pytest.raises(RuntimeError, match="single memory location"):
            write(torch.ones(3))
        with pytest.raises(
            CaptureError, match=r"share memory \(expand\).*\n  at .*\n(.*\n)?.*why.*\n.*clone"
        ):
            export(write, (torch.ones(3),), dynamic_shapes=dynamic)


@pytest.mark.parametrize(
    ("write", "cause"),
    [
        (lambda x: x[0].expand(3, 4)[1].add_(5), "part of a tensor of size (3, 4) .* (expand)"),
        (lambda x: x[0].expand(3, 4)[1:].fill_(5), "part of a tensor of size (3, 4) .* (expand)"),
        (lambda x: x[0].expand(3, 4).masked_fill_(x[:3] > 5, 7.0), "(3, 4) .* (expand)"),
        (lambda x: x.unfold(0, 2, 1).add_(1), "size (3, 4, 2) .* (unfold)"),
        (lambda x: x.unfold(0, 2, 1)[0].add_(1), "part of a tensor .* (unfold)"),
        (lambda x: x.as_strided((3, 3), (1, 1)).add_(1), "(as_strided)"),
    ],
)
def test_parts_that_share_memory_are_not_written_to(write, cause) -> None:
    """Eager writes to the places one after the other, in an order that nothing promises."""
    text = cause.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(CaptureError, match=text):
        export(lambda x: write(x).sum(), (torch.arange(16.0).reshape(4, 4),))


def test_windows_of_a_dynamic_size_that_overlap() -> None:
    dynamic = {"x": {0: Dim("n", min=4)}}
    with pytest.raises(CaptureError, match=r"\(unfold\)"):
        export(lambda x: x.unfold(0, 2, 1).add_(1).sum(), (torch.ones(6),), dynamic_shapes=dynamic)
    apart = export(lambda x: x.unfold(0, 2, 2).add_(1).sum(), (torch.ones(6),), None)
    assert apart.module()(torch.ones(6)) == 12


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.as_strided((2, 3), (3, 2)).add_(1),
        lambda x: x.as_strided((3, 3), (1, 1)).copy_(torch.tensor(3.0)),
        lambda x: x.unfold(0, 2, 1).transpose(0, 1).fill_(3),
        lambda x: x[0].expand(3, 4).zero_(),
    ],
)
def test_the_same_for_all_elements_is_written(write) -> None:
    exported(module(lambda self, x: write(x).sum()), torch.arange(16.0).reshape(4, 4))


def test_elements_that_may_share_memory_are_checked() -> None:
    program = export(
        lambda x: x.new_zeros(1).expand(x.shape[0]).add_(x),
        (torch.ones(1),),
        dynamic_shapes={"x": {0: Dim.AUTO}},
    )
    torch.testing.assert_close(program.module()(torch.ones(1)), torch.ones(1))
    with pytest.raises(ValueError, match=r"x.shape\[0\] == 1"):
        program.module()(torch.ones(2))


def _through_a_conjugate(x: Tensor) -> Any:
    y = x * 2
    conjugate = y.conj()
    conjugate.imag.mul_(3)
    first, copy = conjugate[0].imag, conjugate.resolve_conj()
    y.mul_(2)
    return y, conjugate.real, first, copy, x.mH.imag, x.conj().conj().imag


def test_conjugates_have_real_and_imaginary_parts() -> None:
    class Module(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return _through_a_conjugate(x)

    exported(Module(), torch.randn(2, 3, dtype=torch.complex64))


# ----------------------------------------------------------------- writes that read what they write


def square() -> Tensor:
    return torch.arange(36.0).reshape(6, 6) + 1


ORDERED: dict[str, Callable[[Tensor], Any]] = {
    "transposed": lambda a: a.add_(a.t()),
    "a row": lambda a: a.mul_(a[0]),
    "a number": lambda a: a.div_(a[0, 0]),
    "shifted rows": lambda a: a[1:].copy_(a[:-1]),
    "assigned": lambda a: a.__setitem__(slice(1, None), a[:-1]),
    "out": lambda a: torch.exp(a.t(), out=a),
    "out and parts": lambda a: torch.cat([a[:3], a[3:]], out=a),
    "scattered": lambda a: a.scatter_(0, torch.zeros(1, 6, dtype=torch.long), a),
    "added by index": lambda a: a.index_add_(0, torch.tensor([0, 1]), a[:2]),
    "put by index": lambda a: a.index_put_((torch.tensor([0, 1]),), a[1:3]),
    "several": lambda a: torch._foreach_add_([a[0], a[2:]], [a[1], a[1:-1]]),
    "bits": lambda a: a.view(torch.int32).add_(a.t().view(torch.int32)),
    "between": lambda a: a.addcmul_(a.t(), a),
}


@pytest.mark.parametrize("name", ORDERED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        ORDERED[name](square())
    place = "at tests/capture/aliasing/test_functionalize.py:"
    text = rf"reads the memory that it writes to.\n  {place}[\s\S]*x\.clone\(\)"
    with pytest.raises(CaptureError, match=text):
        export(ORDERED[name], (square(),))
    if name not in ("out and parts",):
        with pytest.raises(CaptureError, match="reads the memory"):
            export(ORDERED[name], (square(),), dynamic_shapes=({0: Dim("n", max=9), 1: Dim("m")},))


def shifted(a: Tensor) -> None:
    a[:, 1:] += a[:, :-1]


@pytest.mark.parametrize(
    "write",
    [
        shifted,
        lambda a: a.add_(a[:1].expand(6, 6)),
        lambda a: torch.sum(a, 0, out=a[0]),
        lambda a: torch.triu(a.t(), out=a),
        lambda a: a.masked_scatter_(a > 2, a),
    ],
)
def test_what_eager_computes_in_some_order_is_refused(write: Callable[[Tensor], Any]) -> None:
    a, whole = square(), square()
    write(a)
    with pytest.raises(CaptureError, match="reads the memory that it writes to"):
        export(write, (whole,))


@pytest.mark.parametrize(
    "write",
    [
        lambda a: F.batch_norm(torch.ones(3, 6), a[0], a[0], training=True),
        lambda a: torch._foreach_mul_([a[:2], a[1:]], 3.0),
        lambda a: torch.aminmax(
            torch.arange(12.0).view(2, 6), dim=0, out=(a[0], a[:2].view(-1)[1:7])
        ),
    ],
)
def test_writes_to_two_tensors_of_one_memory_are_refused(write: Callable[[Tensor], Any]) -> None:
    write(square())
    text = r"writes to two tensors that share memory[\s\S]*x\.clone\(\)"
    with pytest.raises(CaptureError, match=text):
        export(write, (square(),))


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a[:, :-1].copy_(a[:, 1:]),
        lambda a: a[:, ::2].add_(a[:, 1::2]),
        lambda a: a[:, 0].add_(a[0]),
        lambda a: a.diagonal().mul_(a[0]),
        lambda a: a[:3].sub_(a[3:]),
        lambda a: a.mul_(a.view(6, 6)).sub_(a),
        lambda a: torch.cumsum(a, 0, out=a),
        lambda a: a.masked_fill_(a > 3, a[1, 1]).fill_(a[2, 2]),
        lambda a: a.as_strided((2, 2), (6, 1)).add_(a.as_strided((2, 2), (6, 1), 14)),
    ],
)
def test_reads_that_are_in_nobodys_way(write: Callable[[Tensor], Any]) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        write(x)
        return x + 1

    exported(module(forward), square())


def test_out_arguments_that_torch_leaves_to_its_own_tensors() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        product, rank = torch.zeros(4, 4), torch.zeros((), dtype=torch.int64)
        torch.kron(x, x, out=product)
        torch.linalg.matrix_rank(x, out=rank)
        rows = [torch.zeros(2), self.state[0]]
        torch.unbind_copy(x, out=rows)
        return product, rank, rows

    exported(module(forward, state=torch.zeros(2, 2)), torch.randn(2, 2))
