"""Python that parts tensors by lengths, or reads numbers of them, one for each row of a batch:
one program for all batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lostwax import Dim
from tests.capture.flow.algorithms.program import draw, floats, ints, program

SIZES: Any = {"dynamic_shapes": ({0: Dim("total")}, {0: Dim("parts")}), "control_flow": "sizes"}
EACH = (
    (draw(6, 2), ints(2, 1, 3)),
    (draw(4, 2), ints(4)),
    (draw(5, 2), ints(0, 5)),
    (draw(5, 2), ints(1, 0, 2, 1, 1)),
    (draw(5, 2), ints(3, 3)),
    (draw(5, 2), ints(6, -1)),
)
ALONG: Any = {"dynamic_shapes": ({1: Dim("total")}, {0: Dim("parts")}), "control_flow": "sizes"}
EACH_ALONG = tuple((x.T.contiguous(), n) for x, n in EACH)
ROWS: Any = {"dynamic_shapes": ({0: Dim("rows", min=1)},), "control_flow": "sizes"}


@program(*EACH, **SIZES)
def sums_within_parts(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([part.cumsum(0) for part in x.split(lengths.tolist())])


@program(*EACH, **SIZES)
def sums_of_parts(x: Tensor, lengths: Tensor) -> Tensor:
    sums = []
    for part in torch.split(x, lengths.tolist()):
        sums.append(part.sum(0))
    return torch.stack(sums)


@program(*EACH, **SIZES)
def first_and_last_part(x: Tensor, lengths: Tensor) -> Tensor:
    parts = torch.split(x, split_size_or_sections=lengths.tolist(), dim=0)
    assert isinstance(parts, tuple)
    return parts[0].sum(0) - parts[-1].sum(0) * len(parts)


@program(*EACH_ALONG, **ALONG)
def attention_within_parts(x: Tensor, lengths: Tensor) -> Tensor:
    parts = [torch.split(each, lengths.tolist(), dim=1) for each in (x, x + 1, x * 2)]
    outs = [v @ (q.T @ k).softmax(-1) for q, k, v in zip(*parts)]
    return torch.cat(outs, dim=1)


@program(*EACH_ALONG, **ALONG)
def joined_by_a_loop(x: Tensor, lengths: Tensor) -> Tensor:
    found = []
    for part in x.split(lengths.tolist(), dim=-1):
        found.append(part.flip(1))
        found.append(part[:, :1])
    return torch.cat(found, 1)


@program(ints([2, 3], [1, 4], [0, 2]), ints([5, 1]), ints([1, 1], [1, 2], [2, 1], [3, 3]), **ROWS)
def areas(grid: Tensor) -> Tensor:
    return torch.cat([torch.arange(h * w) + h for h, w in grid.tolist()])


@program(floats(0.1, 2, -3), floats(1), floats(0.3, 0, 7, 8), **ROWS)
def numbers_as_python_has_them(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tensor(x.tolist()), torch.tensor([each * 2 for each in (x > 0).tolist()])


@program(draw(3, 2), draw(1, 2), draw(5, 2), **ROWS)
def told_sizes(x: Tensor) -> Tensor:
    torch._check(x.numel() % 2 == 0, lambda: f"{x.size()[:-1].numel()} rows")
    return x * x.shape.numel() + x.size()[1:].numel()


@program(
    (draw(3, 2, 4, 5), ints([2, 3], [4, 5], [0, 1])),
    (draw(1, 2, 4, 5), ints([1, 1])),
    (draw(4, 2, 4, 5), ints([4, 1], [1, 5], [2, 2], [3, 3])),
    dynamic_shapes=({0: Dim("images", min=1)}, {0: Dim("images", min=1)}),
    control_flow="sizes",
)
def images_without_padding(images: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    cropped = [image[..., : size[0], : size[1]] for image, size in zip(images, sizes)]
    pixels = torch.cat([image.flatten(1).T for image in cropped])
    places = []
    for image in cropped[:]:
        rows, columns = torch.meshgrid(
            torch.arange(image.shape[-2]), torch.arange(image.shape[-1]), indexing="ij"
        )
        places.append(torch.stack([rows.flatten(), columns.flatten()], -1))
    return pixels, torch.cat(places)


@program(draw(3, 4), draw(1, 4), draw(5, 4, seed=2), **ROWS)
def products_in_two_loops(x: Tensor) -> Tensor:
    found = []
    for row in x:
        positive = row[row > 0]
        found.append(positive[:, None] * positive)
        found.append(row[:, None] + positive)
        found.append(x[:2])
    total = torch.zeros(())
    for i, each in enumerate(found):
        total = total + each.sum() * (i + each.shape[0] - each.shape[1])
    return total


@program(draw(3, 4), draw(1, 4), draw(5, 4, seed=2), **ROWS)
def squares_of_some(x: Tensor) -> Tensor:
    found = [x]
    for row in x:
        if row.sum() > 0:
            positive = row[row > 0]
            found.append(positive[:, None] * positive)
    return found[-1].sum() * len(found)


class Found:
    pass


@program(*EACH, **SIZES)
def parts_of_computed_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    found = Found()
    found.parts = torch.split(x, [length * 1 for length in lengths])
    return torch.cat([part.flip(0) for part in found.parts])
