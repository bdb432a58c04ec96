"""Lists whose length, or whose elements' sizes, data decide, against eager."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

import lostwax
from lostwax import Dim
from lostwax.errors import CaptureError

# ----------------------------------------------------------------------------------- as users write


def sizes_differ(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        found.append(x[: t + 1].sum(1))
    return torch.cat(found)


def data_decide_sizes(x: Tensor) -> Any:
    found = [row[row > 0] for row in x]
    lengths = [each.shape[0] for each in found]
    total = torch.zeros(())
    for each, length in zip(found, lengths, strict=True):
        total = total + each.sum() * length
    return torch.cat(found), total, found[-1]


def append_tuples(x: Tensor) -> Any:
    found = []
    for t in range(x.shape[0]):
        found.append((x[t], (t, x[t] + 1)))
    total = torch.zeros(3)
    for a, (t, b) in found:
        total = total + a * t - b
    return total, found[-1][0]


def append_numbers(x: Tensor) -> Any:
    counts, means, signs = [], [], []
    for row in x:
        counts.append((row > 0).sum().item())
        means.append(row.mean().item())
        signs.append((row.sum() > 0).item())
    total = torch.zeros(())
    for count, mean in zip(counts, means, strict=True):
        total = total + count * mean
    return total, counts[-1], means[0], len(signs)


def append_by_while(x: Tensor) -> Any:
    found, y = [], x[0]
    while y.sum() < 10:
        y = y + y.abs() + 1
        found.append(y)
    return torch.stack([*found, x[0]]), len(found)


def begin_with_one(x: Tensor) -> Any:
    found = [x[0]]
    while found[-1].sum() < 10:
        found.append(found[-1].abs() + 1)
    return torch.stack(found), found[-1], len(found), torch.stack(found[1:] + found[:1])


def read_inside(x: Tensor) -> Tensor:
    found = [torch.ones(3)]
    for t in range(x.shape[0]):
        found.append(x[t] * torch.stack(found).sum(0))
    return torch.stack(found)


def read_inside_a_while(x: Tensor) -> Tensor:
    found, y = [x[0]], x[0]
    while y.sum() < 10 and len(found) < 5:
        y = y.abs() + 1
        found.append(y + torch.stack(found).mean(0) + found[0])
    return torch.stack(found)


def leave_early(x: Tensor) -> Any:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
        if x[t].sum() > 3:
            break
    return torch.stack(found), len(found)


def append_sometimes(x: Tensor) -> Any:
    found, places = [x[0]], []
    for t, row in enumerate(x):
        if row.sum() > 0:
            found.append(row * 2)
            places.append(t)
    total = torch.zeros(())
    for place in places:
        total = total + place
    return torch.stack(found), total, found[-1], len(places)


def append_more_on_one_side(x: Tensor) -> Any:
    found = []
    for row in x:
        if row.sum() > 0:
            found.append(row[row > 1])
        else:
            found.append(row[:1])
            found.append(row[1:] * 2)
    return torch.cat(found)


def skip_some(x: Tensor) -> Tensor:
    found = [x[0]]
    for row in x:
        if row.sum() < 0:
            continue
        found.append(row)
    return torch.stack(found)


def two_loops(x: Tensor) -> Any:
    found = [x[0]]
    for row in x:
        while row.sum() > 0:
            row = row - 1
            found.append(row)
    return torch.stack(found)


def filter_rows(x: Tensor) -> Tensor:
    return torch.stack([x[0], *[row * 2 for row in x if row.sum() > 0]])


def pad_pieces(x: Tensor) -> Tensor:
    lengths = (x > 0).sum(1)
    return torch.stack([pad(row[:n], (0, 3 - n)) for row, n in zip(x, lengths, strict=True)])


def stack_pieces(x: Tensor) -> Tensor:
    found = [x[0][x[0] != 100], x[0][x[0] != 200]]
    for row in x:
        found.append(row[row != 300])
    return torch.stack(found)


WRITTEN = [
    sizes_differ,
    data_decide_sizes,
    append_tuples,
    append_numbers,
    append_by_while,
    begin_with_one,
    read_inside,
    read_inside_a_while,
    leave_early,
    append_sometimes,
    append_more_on_one_side,
    skip_some,
    two_loops,
    filter_rows,
    pad_pieces,
    stack_pieces,
]
ROWS = torch.tensor([[1.0, 2, 3], [-1, -2, -3], [2, 2, -2], [0.5, -1, 0], [-3, 4, 1]])
INPUTS = [ROWS, ROWS[:1], -ROWS, ROWS.abs(), -ROWS.abs(), ROWS[[4, 2]], ROWS.repeat(3, 1)]


@pytest.mark.parametrize("function", WRITTEN)
def test_one_program_serves_all_lengths(function: Any) -> None:
    sizes = ({0: Dim("n", min=1, max=1000)},)
    program = lostwax.export(function, (ROWS,), dynamic_shapes=sizes, control_flow="sizes")
    program.validate()
    run = program.module()
    for x in INPUTS:
        torch.testing.assert_close(run(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("function", WRITTEN)
def test_a_known_number_of_rows(function: Any) -> None:
    run = lostwax.export(function, (ROWS,)).module()
    for x in (ROWS, -ROWS, ROWS.abs(), -ROWS.abs(), ROWS[[4, 2, 2, 1, 3]]):
        torch.testing.assert_close(run(x), function(x), rtol=0, atol=0)


# ------------------------------------------------------------------------------------- suppression


def suppress(boxes: Tensor, scores: Tensor, least: float) -> Tensor:
    """Non-maximum suppression, as it is in every textbook."""
    keep = []
    order = scores.argsort(descending=True)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    while order.numel() > 0:
        i = order[0]
        keep.append(i)
        rest = order[1:]
        low = torch.maximum(boxes[rest, :2], boxes[i, :2])
        high = torch.minimum(boxes[rest, 2:], boxes[i, 2:])
        both = (high - low).clamp(min=0).prod(1)
        order = rest[both / (areas[rest] + areas[i] - both) <= least]
    return torch.stack(keep)


def make_boxes(count: int) -> Tensor:
    corners = torch.rand(count, 2)
    return torch.cat([corners, corners + 0.1 + torch.rand(count, 2) / 2], 1)


def test_suppression_of_any_number_of_boxes() -> None:
    torch.manual_seed(0)
    sizes = ({0: Dim("n", min=1)}, {0: Dim("n", min=1)}, None)
    program = lostwax.export(
        suppress, (make_boxes(8), torch.rand(8), 0.3), dynamic_shapes=sizes, control_flow="sizes"
    )
    file = BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    ways = [program.module(), program.run_decompositions().module()]
    ways.append(torch.export.load(file).module())
    kept = set()
    for count in (1, 2, 9, 30):
        boxes, scores = make_boxes(count), torch.rand(count)
        want = suppress(boxes, scores, 0.3)
        kept.add(len(want))
        for run in ways:
            torch.testing.assert_close(run(boxes, scores, 0.3), want)
    assert len(kept) > 2


# ------------------------------------------------------------------------ who else holds an element


def written_after_a_while(x: Tensor) -> Any:
    found, y = [], x[0] + 0
    while y.sum() < 10:
        y = y.abs() + 1
        found.append(y)
    y.zero_()
    return torch.stack([*found, x[1]])


def written_after_a_side(x: Tensor) -> Any:
    found, y = [x[1]], x[0] + 0
    for row in x:
        if row.sum() > 0:
            found.append(y)
    y.zero_()
    return torch.stack(found)


def an_element_is_written(x: Tensor) -> Any:
    found, y = [x[0] + 1], x[0] + 0
    while y.sum() < 10:
        y = y.abs() + 1
        found.append(y)
    found[-1].zero_()
    return torch.stack(found), y


def the_first_is_written(x: Tensor) -> Any:
    first = x[0] + 1
    found, y = [first], x[0] + 0
    while y.sum() < 10:
        y = y.abs() + 1
        found.append(y)
    last = found[-1]
    first.zero_()
    return torch.stack(found), last


def the_loop_writes(x: Tensor) -> Any:
    found, y = [], x[0] + 0
    while y.sum() < 10:
        y += y.abs() + 1
        found.append(y)
    return torch.stack([*found, x[1]])


@pytest.mark.parametrize(
    "function",
    [
        written_after_a_while,
        written_after_a_side,
        an_element_is_written,
        the_first_is_written,
        the_loop_writes,
    ],
)
def test_what_others_hold_is_not_written_to(function: Any) -> None:
    with pytest.raises(CaptureError, match="writ"):
        lostwax.export(function, (ROWS,))


def written_in_its_turn(x: Tensor) -> Any:
    found, y = [], x[0] + 0
    while y.sum() < 10:
        y = y.abs() + 1
        found.append(y)
        y[0] += 1
    return torch.stack([*found, x[1]]), y


def the_first_as_it_is(x: Tensor) -> Any:
    first = x[0] + 1
    found, y = [first], x[0] + 0
    while y.sum() < 10:
        y = y.abs() + 1
        found.append(y)
    found[0].mul_(2)
    return torch.stack(found), first


@pytest.mark.parametrize("function", [written_in_its_turn, the_first_as_it_is])
def test_writes_that_eager_shows(function: Any) -> None:
    run = lostwax.export(function, (ROWS,)).module()
    for x in (ROWS, -ROWS, ROWS.abs(), ROWS * 100):
        torch.testing.assert_close(run(x), function(x), rtol=0, atol=0)


# ---------------------------------------------------------------------------------------- refusals


def kinds_differ(x: Tensor) -> Tensor:
    found = []
    for row in x:
        found.append(row if row.sum() > 0 else (row, row))
    return found[0]


def several_types(x: Tensor) -> Tensor:
    found = []
    while x.sum() < 100:
        x = x + 1
        found.append(x)
        found.append(x[0].long())
    return torch.cat(found)


def cat_of_tensors_of_any_sizes(x: Tensor) -> Tensor:
    found = []
    for row in x:
        positive = row[row > 0]
        found.append(positive[:, None] * positive)
    return torch.cat(found)


def a_repeated_tensor_is_written(x: Tensor) -> Any:
    y = x[0] * 1
    for each in [y] * x.shape[0]:
        each.add_(1)
    return y


def a_row_of_numbers_is_changed(x: Tensor) -> Any:
    rows = x.tolist()
    rows[0][0] = 9.0
    return rows[0][0]


def a_layout_is_asked(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        found.append(x[:, : t % 3 + 1])
    return x * 2 if found[0].is_contiguous() else x * 3


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (kinds_differ, "do not agree"),
        (several_types, "tensors of several types are appended to found in each turn"),
        (cat_of_tensors_of_any_sizes, "a list of tensors that differ in several sizes to which"),
        (a_repeated_tensor_is_written, "a tensor is written to, and a list that repeats it"),
        (a_row_of_numbers_is_changed, "a list in x.tolist(), of which a size or data decide"),
        (a_layout_is_asked, "in the loop that appends it to a list"),
    ],
)
def test_it_is_refused_with_its_line(function: Any, text: str) -> None:
    sizes = ({0: Dim("n", min=1, max=1000)},)
    with pytest.raises(Exception, match=r"LW0") as error:
        lostwax.export(function, (ROWS,), dynamic_shapes=sizes, control_flow="sizes")
    told = "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert text in told
    assert f"in {function.__name__}" in told


def test_an_empty_list_cannot_be_stacked() -> None:
    def stack(x: Tensor) -> Tensor:
        found = []
        while x.sum() < 10:
            x = x.abs() + 1
            found.append(x)
        return torch.stack(found)

    run = lostwax.export(stack, (ROWS,)).module()
    torch.testing.assert_close(run(ROWS), stack(ROWS))
    with pytest.raises(RuntimeError, match="non-empty"):
        run(ROWS + 100)
