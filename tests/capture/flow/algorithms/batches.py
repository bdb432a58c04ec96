"""Batches whose parts have lengths of their own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, ints, number, program


@program((draw(3, 4), ints(4, 2, 1)), (draw(3, 4), ints(0, 0, 0)), (draw(3, 4), ints(4, 4, 4)))
def ragged_means(x: Tensor, lengths: Tensor) -> Tensor:
    means = []
    for row, length in zip(x, lengths):
        if length == 0:
            means.append(torch.zeros(()))
        else:
            means.append(row[:length].mean())
    return torch.stack(means)


@program((draw(3, 4), ints(4, 2, 1)), (draw(3, 4), ints(0, 0, 0)), (draw(3, 4), ints(4, 4, 4)))
def ragged_sums(x: Tensor, lengths: Tensor) -> Tensor:
    out = torch.zeros(3)
    for i in range(3):
        for j in range(lengths[i]):
            out[i] += x[i, j]
    return out


@program((draw(3, 2), number(5)), (draw(3, 2), number(3)), (draw(3, 2), number(1)))
def pad_or_cut(x: Tensor, length: Tensor) -> Tensor:
    n = length.item()
    if n > x.shape[0]:
        padding = torch.zeros(n - x.shape[0], 2)
        return torch.cat([x, padding])
    return x[:n]


@program((draw(3, 2), number(5)), (draw(3, 2), number(3)), (draw(3, 2), number(1)))
def pad_row_by_row(x: Tensor, length: Tensor) -> Tensor:
    while len(x) < length:
        x = torch.cat([x, torch.zeros(1, 2)])
    return x


@program(draw(5), draw(5, seed=1) - 9, draw(5).abs())
def compact(x: Tensor) -> tuple[Tensor, Tensor]:
    kept = x[x > 0]
    if kept.numel() == 0:
        return torch.zeros(1), torch.tensor(0)
    return kept.cumsum(0), kept.argmax()


@program(ints(1, 2, 0, 0), ints(0, 0, 0, 0), ints(1, 2, 3, 4))
def trim_padding(ids: Tensor) -> tuple[Tensor, int]:
    end = len(ids)
    while end > 0 and ids[end - 1] == 0:
        end -= 1
    return ids[:end], end


@program(
    (draw(4, 2), ints(0, 1, 0, 2)), (draw(4, 2), ints(2, 2, 2, 2)), (draw(4, 2), ints(3, 3, 3, 3))
)
def group_means(x: Tensor, groups: Tensor) -> Tensor:
    out = []
    for g in range(3):
        members = x[groups == g]
        if len(members) > 0:
            out.append(members.mean(dim=0))
        else:
            out.append(torch.zeros(2))
    return torch.stack(out)


@program((draw(2, 5, 3), ints(5, 2)), (draw(2, 5, 3), ints(1, 1)), (draw(2, 5, 3), ints(3, 5)))
class RaggedRecurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        outputs = []
        for sequence, length in zip(x, lengths):
            h = torch.zeros(1, 3)
            for t in range(length.item()):
                h = self.cell(sequence[t][None], h)
            outputs.append(h)
        return torch.cat(outputs)


@program((draw(4, 3), number(2)), (draw(4, 3), number(0)), (draw(4, 3), number(9)))
def split_at(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    k = min(at.item(), 4)
    left, right = x[:k], x[k:]
    if k == 0:
        return torch.zeros(3), right.sum(dim=0)
    return left.sum(dim=0), right.sum(dim=0)


@program((draw(6), number(3)), (draw(6), number(1)), (draw(6), number(6)))
def sum_of_chunks(x: Tensor, count: Tensor) -> Tensor:
    total = torch.zeros(())
    size = (6 + count - 1) // count
    for start in range(0, 6, size.item()):
        total = total + x[start : start + size].prod()
    return total


@program((draw(3), ints(2, 0, 1)), (draw(3), ints(1, 1, 1)), (draw(3), ints(0, 0, 0)))
def repeat_each(x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    total = counts.sum()
    if total == 0:
        return torch.zeros(0), total
    return torch.repeat_interleave(x, counts), total


@program(
    (draw(4), draw(4, seed=1)), (torch.ones(4), torch.zeros(4)), (torch.zeros(4), torch.ones(4))
)
def choose_by_name(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    found = {"both": x + y}
    if x.sum() > y.sum():
        found["larger"] = x
        found["margin"] = x.sum() - y.sum()
    else:
        found["larger"] = y
        found["margin"] = y.sum() - x.sum()
    return found


@program(
    (draw(2, 3), ints(1, 0)),
    (draw(2, 3), ints(0, 0)),
    (draw(2, 3), ints(1, 1)),
    (draw(2, 3), ints(0, 1)),
)
def optional_parts(x: Tensor, present: Tensor) -> Tensor:
    first = x[0] if present[0] else None
    second = x[1] if present[1] else None
    if first is None and second is None:
        return torch.zeros(3)
    if first is None:
        return second
    if second is None:
        return first
    return first + second
