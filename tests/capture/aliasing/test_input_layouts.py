"""Inputs with other strides than the example's: the program is right, or says what it needs."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax.capture import export
from lostwax.errors import InputValueError
from tests.capture.small import Rounded
from tests.whole import sampled

ROWS = torch.randn(3, 4)
COLUMNS = torch.randn(4, 3).t()
INSIDE = torch.randn(9, 4)[4:7]

ANY_LAYOUT: dict[str, Callable[[Tensor], Any]] = {
    "elementwise": lambda x: (x * 2).sum(0),
    "contiguous": lambda x: x.contiguous() + 1,
    "a product": lambda x: (x @ x.t()).as_strided((2, 2), (3, 1)),
    "a write": lambda x: x.add_(1).t(),
    "a write to a copy that nobody misses": lambda x: (x * 2)[:, 1:].reshape(-1).add_(1),
    "a write to a copy": lambda x: x.clone()[1:].add_(1),
}


@pytest.mark.parametrize("name", ANY_LAYOUT)
@pytest.mark.parametrize("example", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_right_for_every_layout(name: str, example: Tensor) -> None:
    function = ANY_LAYOUT[name]
    module = export(function, (deepcopy(example),)).module()
    for given in (ROWS, COLUMNS, INSIDE):
        ours, eager = deepcopy(given), deepcopy(given)
        torch.testing.assert_close(module(ours), function(eager))
        torch.testing.assert_close(ours, eager)


def _branch(x: Tensor) -> Tensor:
    return x * 2 if x.is_contiguous() else x * 3


ONE_LAYOUT: dict[str, Callable[[Tensor], Any]] = {
    "as_strided": lambda x: (x + 1).as_strided((2, 2), (4, 1)),
    "stride()": lambda x: x * x.stride(0),
    "is_contiguous()": _branch,
    "a write to the result of contiguous()": lambda x: x.contiguous().add_(1),
    "stride() ": lambda x: x * torch.Tensor.stride(x)[0],
    "is_contiguous() ": lambda x: x * (2 if getattr(Tensor, "is_contiguous")(x) else 3),  # noqa: B009
    "a write to the result of contiguous() ": lambda x: torch.Tensor.contiguous(x).add_(1),
    "a write to the result of contiguous()  ": lambda x: torch.ops.aten.contiguous(x).add_(1),
}


@pytest.mark.parametrize("name", ONE_LAYOUT)
@pytest.mark.parametrize("example", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_the_layout_that_counts_is_asked_for(name: str, example: Tensor) -> None:
    function = ONE_LAYOUT[name]
    program = export(function, (deepcopy(example),))
    program.validate()
    module = program.module()
    torch.testing.assert_close(module(deepcopy(example)), function(deepcopy(example)))
    other = COLUMNS if example is ROWS else ROWS
    with pytest.raises(RuntimeError, match=r"input x must have strides \(.*as at capture") as error:
        module(deepcopy(other))
    message = str(error.value)
    assert f"because of {name.strip()} at tests/capture/aliasing/test_input_layouts.py" in message
    assert ("pass x.contiguous()" in message) == (example is ROWS)


def _seen_by_both(x: Tensor) -> Any:
    y = x * 2
    return y.flatten().add_(1), y.t()


WRITTEN: dict[str, Callable[[Tensor], Any]] = {
    "reshape()": lambda x: x.reshape(-1).add_(1),
    "flatten()": _seen_by_both,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_views_or_copies_that_are_written_to(name: str) -> None:
    function = WRITTEN[name]
    with pytest.raises(InputValueError, match="takes a view that these do not allow"):
        export(function, (deepcopy(ROWS),)).module()(deepcopy(COLUMNS))
    copied = export(function, (deepcopy(COLUMNS),)).module()
    with pytest.raises(
        RuntimeError, match=r"must have strides[\s\S]*a write to the result of"
    ) as e:
        copied(deepcopy(ROWS))
    assert name in str(e.value)


def test_group_norm_of_other_strides() -> None:
    norm, x = torch.nn.GroupNorm(2, 4), torch.randn(2, 4, 3, 5)
    ours = export(norm, (x,)).module()
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours(last), norm(last))
    turned = torch.randn(2, 4, 5, 3).transpose(2, 3)
    torch.testing.assert_close(ours(turned), norm(turned))


def test_the_place_in_memory_counts_for_as_strided() -> None:
    module = export(lambda x: x.as_strided((2, 2), (4, 1)), (ROWS,)).module()
    torch.testing.assert_close(module(ROWS), ROWS[:2, :2])
    with pytest.raises(RuntimeError, match=r"and storage offset 0[\s\S]*pass x.clone\(\)"):
        module(INSIDE)


def test_a_view_that_other_strides_do_not_allow() -> None:
    module = export(lambda x: x.reshape(-1) * 2, (ROWS,)).module()
    torch.testing.assert_close(module(INSIDE), INSIDE.reshape(-1) * 2)
    torch.testing.assert_close(module(COLUMNS), COLUMNS.reshape(-1) * 2)
    torch.testing.assert_close(module(ROWS), ROWS.reshape(-1) * 2)


def test_a_view_that_fails_counts() -> None:
    def forward(x: Tensor) -> Tensor:
        try:
            return x.view(-1)
        except RuntimeError:
            return x.reshape(-1) + 1

    module = export(forward, (COLUMNS,)).module()
    torch.testing.assert_close(module(COLUMNS), forward(COLUMNS))
    with pytest.raises(
        RuntimeError, match=r"must have strides \(1, 3\)[\s\S]*view.default that fails"
    ):
        module(ROWS)


def test_all_that_is_asked_of_one_input_is_checked() -> None:
    """Not only what is asked first."""

    def forward(x: Tensor) -> Tensor:
        x.add_(1)
        return x * (x.is_contiguous() + x.storage_offset())

    ours = export(forward, (torch.ones(2),)).module()
    torch.testing.assert_close(ours(torch.ones(2)), forward(torch.ones(2)))
    with pytest.raises(RuntimeError, match=r"storage offset 0, as at[\s\S]*of storage_offset\(\)"):
        ours(torch.ones(3)[1:])


def test_strides_of_dimensions_of_size_one() -> None:
    def forward(x: Tensor) -> Tensor:
        return x * x.stride(0)

    example, other = torch.ones(1, 2), torch.ones(3, 4)[1:2, :2]
    ours = export(forward, (example,)).module()
    torch.testing.assert_close(ours(example), forward(example))
    text = r"must have strides \(2, 1\)[\s\S]*pass x.clone\(memory_format=torch.contiguous_format\)"
    with pytest.raises(RuntimeError, match=text):
        ours(other)
    other = other.clone(memory_format=torch.contiguous_format)
    torch.testing.assert_close(ours(other), forward(other))


# ------------------------------------------------------------------- views or copies, by strides

MAYBE_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda x: x.reshape(-1),
    "rows": lambda x: x.reshape(x.shape[0], -1),
    "flatten": lambda x: x.flatten(),
    "ravel": lambda x: x.ravel(),
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "to": lambda x: x.to(torch.float32, memory_format=torch.contiguous_format),
    "permuted": lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], -1),
    "part": lambda x: x.reshape(-1).chunk(2)[0],
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
}


def _laid_out(kind: str) -> Tensor:
    if kind == "rows":
        return torch.arange(48.0).view(2, 2, 3, 4)
    if kind == "channels last":
        return torch.arange(48.0).view(2, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    if kind == "columns":
        return torch.arange(48.0).view(4, 3, 2, 2).permute(3, 2, 1, 0)
    return torch.arange(96.0).view(2, 2, 3, 8)[..., ::2]


LAYOUTS = ["rows", "channels last", "columns", "with gaps"]
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "to the result": lambda x, y: (y.add_(1), x * 1),
    "to the input": lambda x, y: (x.add_(1), y * 1),
    "over the result": lambda x, y: (y.copy_(torch.ones(y.shape)), x * 1),
    "over the input": lambda x, y: (x.copy_(torch.ones(x.shape)), y * 1),
    "over the input, twice": lambda x, y: (x.copy_(torch.ones(x.shape)).mul_(2), y * 1),
    "nowhere": lambda x, y: (y, x * 1),
}
SOURCES: dict[str, Callable[[Tensor], Tensor]] = {
    "the input": lambda x: x,
    "a result": lambda x: x * 1,
    "overwritten": lambda x: torch.zeros_like(x).copy_(torch.full(x.shape, 3.0)),
}


COMBINED = [*product(MAYBE_VIEWS, WRITES, SOURCES)]


@pytest.mark.parametrize(("view", "write", "source"), sampled(COMBINED[::5], COMBINED))
def test_what_is_written_is_right_at_all_strides(view: str, write: str, source: str) -> None:
    """Or the call is refused. (Whether a result shares memory with an input is not promised.)"""

    def forward(x: Tensor) -> Any:
        seen = SOURCES[source](x)
        return WRITES[write](seen, MAYBE_VIEWS[view](seen))

    done = 0
    for captured in LAYOUTS:
        module = export(forward, (_laid_out(captured),)).module()
        if source == "the input":  # the module is captured in its turn
            module = export(module, (_laid_out(captured),)).module()
        for given in LAYOUTS:
            mine, eager = _laid_out(given), _laid_out(given)
            expected = forward(eager)
            try:
                found = module(mine)
            except (RuntimeError, ValueError) as error:
                assert given != captured
                assert "strides" in str(error)  # noqa: PT017
                continue
            done += 1
            torch.testing.assert_close((found, mine), (expected, eager))
    assert done >= len(LAYOUTS)


def test_nothing_is_written_where_a_view_fails() -> None:
    """The view of what was written is one of the strides at capture alone; the write waits for it,
    and is not repeated where the program is tried once more."""

    def forward(x: Tensor) -> Any:
        x.copy_(x + 1)
        return x.view(-1), x[1:].view(2, 4)

    program = export(forward, (ROWS.clone(),))
    for module in (program.module(), lostwax.unflatten(program)):
        given = COLUMNS.clone()
        with pytest.raises(InputValueError, match=r"x has strides \(1, 3\), but .* takes a view"):
            module(given)
        torch.testing.assert_close(given, COLUMNS)
        given = ROWS.clone()
        seen, part = module(given)
        torch.testing.assert_close(given, ROWS + 1)
        assert seen.data_ptr() == given.data_ptr()
        assert part.data_ptr() == given[1:].data_ptr()


# ------------------------------------------------------------------------- views that are read


class Convolved(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.linear = torch.nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(self.conv(x)).flatten(1))


IMAGE = torch.randn(2, 3, 4, 4)
IMAGES = {
    "rows": IMAGE,
    "channels last": IMAGE.contiguous(memory_format=torch.channels_last),
    "turned": torch.randn(2, 3, 4, 4).transpose(2, 3),
    "gaps": torch.randn(2, 3, 8, 8)[:, :, ::2, ::2],
}
READ: dict[str, Callable[[Tensor], Any]] = {
    "reshape": lambda x: x.reshape(2, -1).sum(1),
    "returned": lambda x: (x.reshape(-1), x + 1),
    "unflatten": lambda x: x.unflatten(1, (1, 3)).flatten(2, 3).softmax(-1),
    "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
    "tokens": lambda x: x.flatten(2).transpose(1, 2) @ x.flatten(2),
    "instance_norm": torch.nn.functional.instance_norm,
    "written before": lambda x: (x * 2).relu_().flatten(1) * 3,
    "custom gradient": lambda x: Rounded.apply(x.flatten(1)) * 2,
}


@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("name", READ)
def test_views_that_are_only_read(name: str, layout: str) -> None:
    function, given = READ[name], IMAGES[layout]
    program = export(function, (IMAGE,))
    buffer = io.BytesIO()
    lostwax.save(program, buffer)
    loaded = lostwax.load(io.BytesIO(buffer.getvalue()))
    for each in (program, loaded, program.run_decompositions()):
        torch.testing.assert_close(each.module()(given), function(given))
        torch.testing.assert_close(lostwax.unflatten(each)(given), function(given))


@pytest.mark.parametrize("layout", IMAGES)
def test_modules_in_channels_last(layout: str) -> None:
    model, given = Convolved(), IMAGES[layout]
    program = export(model, (IMAGE,))
    last = deepcopy(model).to(memory_format=torch.channels_last)
    for made in (program.module(), lostwax.unflatten(program)):
        torch.testing.assert_close(made(given), model(given))
        moved = deepcopy(made).to(memory_format=torch.channels_last)
        assert moved.conv.weight.stride() == last.conv.weight.stride()
        torch.testing.assert_close(moved(given), last(given))


def test_numbers_are_drawn_once_in_any_layout() -> None:
    def forward(x: Tensor) -> Tensor:
        noise = torch.rand(2, 48)
        return torch.nn.functional.dropout(x.flatten(1) + noise)

    module = export(forward, (IMAGE,)).module()
    for given in IMAGES.values():
        torch.manual_seed(0)
        want = forward(given)
        torch.manual_seed(0)
        torch.testing.assert_close(module(given), want)
