"""Numbers of data where Python wants an integer: sizes, indexes, keys."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program


@program((draw(6), ints(1, 2, 3)), (draw(6), ints(2, 2, 2)), (draw(6), ints(4, 1, 1)))
def means_of_parts(x: Tensor, counts: Tensor) -> Tensor:
    return torch.stack([part.mean() for part in x.split(counts.tolist())])


@program((draw(6, 2), ints(1, 2, 3)), (draw(6, 2), ints(2, 2, 2)), (draw(6, 2), ints(4, 1, 1)))
def padded_parts(x: Tensor, lengths: Tensor) -> Tensor:
    parts = torch.split(x, lengths.tolist())
    return pad_sequence(parts, batch_first=True)


@program((draw(6), ints(1, 2, 3)), (draw(6), ints(2, 2, 2)), (draw(6), ints(6, 0, 0)))
def softmax_of_parts(x: Tensor, counts: Tensor) -> Tensor:
    return torch.cat([part.softmax(dim=0) for part in x.split(counts.tolist())])


@program((draw(6, 3), ints(0, 2, 6)), (draw(6, 3), ints(0, 5, 6)), (draw(6, 3), ints(0, 1, 6)))
def attention_of_packed(x: Tensor, bounds: Tensor) -> Tensor:
    out = []
    for i in range(1, len(bounds)):
        part = x[bounds[i - 1] : bounds[i]]
        out.append((part @ part.T).softmax(dim=-1) @ part)
    return torch.cat(out)


@program(number(3), number(1), number(8))
def positions_as_a_list(n: Tensor) -> Tensor:
    positions = list(range(n.item()))
    return torch.tensor(positions) * 2


@program((draw(8), number(3)), (draw(8), number(8)), (draw(8), number(1)))
def mask_of_lists(x: Tensor, length: Tensor) -> Tensor:
    n = length.item()
    mask = torch.tensor([1] * n + [0] * (8 - n))
    return x * mask


@program((draw(8), number(3)), (draw(8), number(8)), (draw(8), number(1)))
def mask_by_a_comprehension(x: Tensor, length: Tensor) -> Tensor:
    n = length.item()
    return x * torch.tensor([i < n for i in range(8)])


@program(ints(1, 2, 2, 3), ints(1, 1, 1, 1), ints(3, 0, 3, 0))
def most_common_word(ids: Tensor) -> Tensor:
    counts = Counter(ids.tolist())
    word, times = counts.most_common(1)[0]
    return torch.tensor([word, times])


@program((ints(1, 2, 2, 3), draw(5)), (ints(1, 1, 1, 1), draw(5)), (ints(3, 0, 3, 0), draw(5)))
def frequency_penalty(ids: Tensor, logits: Tensor) -> Tensor:
    counts = Counter(ids.tolist())
    for token in range(5):
        logits[token] -= 0.5 * counts[token]
    return logits


@lru_cache(maxsize=8)
def _window(n: int) -> Tensor:
    return torch.arange(8) < n


@program((draw(8), number(3)), (draw(8), number(8)), (draw(8), number(0)))
def window_from_a_cache(x: Tensor, length: Tensor) -> Tensor:
    return x.masked_fill(~_window(length.item()), 0.0)


@program((draw(5), number(3)), (draw(5), number(5)), (draw(5), number(1)))
def pad_to_a_power_of_two(x: Tensor, length: Tensor) -> Tensor:
    n = length.item()
    size = 1 << (n - 1).bit_length()
    return F.pad(x[:n], (0, size - n))


@program(
    (number(12), number(18)),
    (number(7), number(3)),
    (number(0), number(4)),
    (number(4), number(0)),
)
def common_stride(a: Tensor, b: Tensor) -> Tensor:
    stride = math.gcd(a.item(), b.item())
    return torch.arange(36) % stride


@program((draw(3), number(0)), (draw(3), number(1)), (draw(3), number(2)))
def activation_by_number(x: Tensor, kind: Tensor) -> Tensor:
    activations = {0: torch.relu, 1: torch.tanh, 2: torch.sigmoid}
    return activations[kind.item()](x)


@program((draw(3), number(1)), (draw(3), number(2)), (draw(3), number(7)))
def scale_by_number(x: Tensor, kind: Tensor) -> Tensor:
    scales = {1: 0.5, 2: 2.0}
    return x * scales.get(kind.item(), 1.0)


@program((draw(6), ints(1, 2, 3)), (draw(6), ints(2, 2, 2)), (draw(6), ints(3, 0, 3)))
def starts_of_parts(x: Tensor, lengths: Tensor) -> Tensor:
    starts = [0, *accumulate(lengths.tolist())]
    return torch.stack([x[a:b].sum() for a, b in zip(starts, starts[1:])])  # noqa: RUF007


@program((draw(6), ints(1, 2, 3)), (draw(6), ints(2, 2, 2)), (draw(6), ints(3, 0, 3)))
def starts_by_numpy(x: Tensor, lengths: Tensor) -> Tensor:
    ends = np.cumsum(lengths.tolist())
    return torch.stack([x[: int(end)].sum() for end in ends])


@program(
    ints([1, 2, 2], [1, 1, 3]),
    ints([2, 1, 1], [1, 2, 2]),
    ints([1, 1, 1], [3, 3, 1]),
)
def positions_of_grids(grids: Tensor) -> Tensor:
    positions = []
    for t, h, w in grids.tolist():
        rows = torch.arange(h)[:, None].expand(h, w).reshape(-1)
        columns = torch.arange(w)[None].expand(h, w).reshape(-1)
        positions.append(torch.stack([rows, columns], dim=-1).repeat(t, 1))
    return torch.cat(positions)


@program((draw(7), number(3)), (draw(7), number(7)), (draw(7), number(1)))
def first_half(x: Tensor, length: Tensor) -> tuple[Tensor, int]:
    n = length.item()
    k = max(1, math.ceil(n / 2))
    return x[:k].sum(), k


@program((draw(10), floats(0.35)), (draw(10), floats(1.0)), (draw(10), floats(0.01)))
def keep_a_share(x: Tensor, share: Tensor) -> Tensor:
    k = max(1, int(share.item() * len(x)))
    return x.topk(k).values


@program((draw(10), floats(0.34)), (draw(10), floats(1.0)), (draw(10), floats(0.05)))
def drop_a_share(x: Tensor, share: Tensor) -> Tensor:
    k = round(share.item() * 10)
    keep = torch.ones(10, dtype=torch.bool)
    keep[x.abs().argsort()[:k]] = False
    return x * keep


@program((draw(12), number(5)), (draw(12), number(12)), (draw(12), number(3)))
def whole_chunks(x: Tensor, length: Tensor) -> tuple[Tensor, int]:
    full, rest = divmod(length.item(), 4)
    return x[: full * 4].view(full, 4).sum(dim=0), rest


@program((draw(9), number(9)), (draw(9), number(4)), (draw(9), number(1)), (draw(9), number(5)))
def as_a_square(x: Tensor, length: Tensor) -> Tensor:
    side = math.isqrt(length.item())
    return x[: side * side].view(side, side).diagonal().sum()


@program(number(0), number(4), number(6))
def taylor(terms: Tensor) -> Tensor:
    x, total = torch.tensor(0.5), torch.zeros(())
    for k in range(terms.item()):
        total = total + x**k / math.factorial(k)
    return total


@program((draw(4), number(2)), (draw(4), number(0)), (draw(4), number(3)))
class FirstLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, depth: Tensor) -> Tensor:
        for layer in self.layers[: depth.item()]:
            x = torch.relu(layer(x))
        return x


@program((draw(4), number(2)), (draw(4), number(0)), (draw(4), number(3)))
class LayersUpToADepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, depth: Tensor) -> Tensor:
        for i in range(depth.item()):
            x = torch.relu(self.layers[i](x))
        return x


@program((draw(6), number(2)), (draw(6), number(3)), (draw(6), number(6)))
def pooled(x: Tensor, width: Tensor) -> Tensor:
    return F.avg_pool1d(x[None], kernel_size=width.item())[0]


@program((draw(1, 2, 4), number(2)), (draw(1, 2, 4), number(8)), (draw(1, 2, 4), number(5)))
def resized(x: Tensor, size: Tensor) -> Tensor:
    return F.interpolate(x, size=size.item(), mode="nearest")


@program((draw(6), number(2)), (draw(6), number(0)), (draw(6), number(-1)))
def rolled(x: Tensor, shift: Tensor) -> Tensor:
    return x + x.roll(shift.item())


@program(number(5), number(8), number(255))
def bits_as_text(n: Tensor) -> Tensor:
    return torch.tensor(bin(n.item()).count("1"))


@program(ints(1, 2, 2, 3), ints(1, 1, 1, 1), ints(3, 0, 1, 2))
def distinct_words(ids: Tensor) -> tuple[int, Tensor]:
    words = set(ids.tolist())
    has_padding = 0 in words
    return len(words), torch.tensor(has_padding)


@program((draw(3, 4), ints(4, 2, 1)), (draw(3, 4), ints(1, 1, 1)), (draw(3, 4), ints(2, 3, 4)))
def cut_to_the_longest(x: Tensor, lengths: Tensor) -> Tensor:
    longest = max(lengths.tolist())
    x = x[:, :longest]
    mask = torch.arange(longest)[None] < lengths[:, None]
    return (x * mask).sum(dim=1)


@program((draw(6), number(2)), (draw(6), number(4)), (draw(6), number(6)))
def chunks_of_a_size(x: Tensor, size: Tensor) -> Tensor:
    return torch.stack([part.sum() for part in x.split(size.item())]).max()


@program((draw(4, 3), number(1)), (draw(4, 3), number(0)), (draw(4, 3), number(2)))
def a_dimension_of_data(x: Tensor, column: Tensor) -> Tensor:
    index = [slice(None), column.item()]
    return x[tuple(index)]
