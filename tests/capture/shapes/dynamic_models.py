"""Small models of the kinds that lose their dynamic sizes elsewhere: they loop over a length, pad
to a window, split into blocks, grow a cache.

Each is a `Case`: the model, its inputs for given sizes, and which dimensions vary. Plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Sizes = dict[str, int]


class Case(NamedTuple):
    """A model and what varies in its inputs."""

    model: Callable[[], nn.Module]
    inputs: Callable[..., tuple[Any, ...]]
    """By the names of the sizes: `inputs(batch=2, length=5)`."""
    dynamic: tuple[dict[int, str] | None, ...]
    """For each input its dimensions by name; `4*height` is a multiple."""
    examples: tuple[Sizes, ...]
    """Sizes to export at; the program must be the same."""
    sizes: tuple[Sizes, ...]
    """Sizes to compare at."""
    steps: int
    """What the engine may cost: about twice what it did when this was written."""


# -------------------------------------------------------------------------------------- recurrence


class Tagger(nn.Module):
    """A recurrent layer over a length that varies, and its last state."""

    def __init__(self, layer: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = layer(4, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, state = self.rnn(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(out).softmax(-1), last[-1] + out[:, -1, :6]


class Mamba(nn.Module):
    """A selective scan, h[t] = exp(-dt[t] * a) * h[t-1] + dt[t] * b[t] * x[t], as cumulated sums in
    place of a loop; after a causal convolution."""

    def __init__(self, width: int = 4, state: int = 3, kernel: int = 3) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, kernel, groups=width, padding=kernel - 1)
        self.step, self.choice = nn.Linear(width, width), nn.Linear(width, 2 * state)
        self.rate = nn.Parameter(torch.rand(width, state))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        u, gate = self.into(x).chunk(2, dim=-1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :length].transpose(1, 2))
        dt = F.softplus(self.step(u))
        b, c = self.choice(u).chunk(2, dim=-1)
        decay = torch.cumsum(-dt[..., None] * self.rate, dim=1)
        fed = (dt * u)[..., None] * b[:, :, None]
        h = torch.exp(decay) * torch.cumsum(fed * torch.exp(-decay), dim=1)
        y = (h * c[:, :, None]).sum(-1) + self.skip * u
        return self.out(y * F.silu(gate))


# --------------------------------------------------------------------------------- window attention


def to_windows(x: Tensor, window: int) -> Tensor:
    batch, height, width, channels = x.shape
    x = x.view(batch, height // window, window, width // window, window, channels)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window * window, channels)


def from_windows(x: Tensor, window: int, height: int, width: int) -> Tensor:
    batch = x.shape[0] // (height * width // window // window)
    x = x.view(batch, height // window, width // window, window, window, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(batch, height, width, -1)


class Window(nn.Module):
    """Attention within shifted windows of an image of any size: padded to the window, its mask made
    at run time, as detection backbones do it."""

    def __init__(self, width: int, window: int, shift: int, heads: int = 2) -> None:
        super().__init__()
        self.window, self.shift, self.heads = window, shift, heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def mask(self, height: int, width: int) -> Tensor:
        regions = torch.zeros(1, height, width, 1)
        bands = (
            slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None)
        )  # fmt: skip
        count = 0
        for rows in bands:
            for columns in bands:
                regions[:, rows, columns, :] = count
                count += 1
        cells = to_windows(regions, self.window).squeeze(-1)
        apart = cells.unsqueeze(1) - cells.unsqueeze(2)
        return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        windows, cells, width = x.shape
        qkv = self.qkv(x).reshape(windows, cells, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1)
        if mask is not None:
            count = mask.shape[0]
            scores = scores.view(windows // count, count, self.heads, cells, cells)
            scores = scores + mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, self.heads, cells, cells)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(windows, cells, width))

    def forward(self, x: Tensor) -> Tensor:
        _, height, width, _ = x.shape
        y = self.norm(x)
        right, below = -width % self.window, -height % self.window
        y = F.pad(y, (0, 0, 0, right, 0, below))
        padded_height, padded_width = y.shape[1:3]
        mask = None
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), dims=(1, 2))
            mask = self.mask(padded_height, padded_width)
        y = self.attend(to_windows(y, self.window), mask)
        y = from_windows(y, self.window, padded_height, padded_width)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), dims=(1, 2))
        return x + y[:, :height, :width, :].contiguous()


class Merge(nn.Module):
    """Four neighbours become one, the image padded to even sides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(torch.cat(corners, -1))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 2, stride=2)
        self.first = nn.Sequential(Window(8, 3, 0), Window(8, 3, 1))
        self.merge = Merge(8)
        self.second = nn.Sequential(Window(16, 3, 0), Window(16, 3, 1))

    def forward(self, image: Tensor) -> Tensor:
        _, _, height, width = image.shape
        image = F.pad(image, (0, width % 2, 0, height % 2))
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = x.view(-1, (height + 1) // 2, (width + 1) // 2, 8)
        return self.second(self.merge(self.first(x))).permute(0, 3, 1, 2)


# ------------------------------------------------------------------------------------------- caches


class Decoder(nn.Module):
    """One step of decoding: the new keys and values go behind those of the cache."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, new, width = x.shape
        qkv = self.qkv(x).view(batch, new, 3, self.heads, width // self.heads)
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)

    def joined(self, y: Tensor) -> Tensor:
        return self.out(y.transpose(1, 2).flatten(2))


class GrowingCache(Decoder):
    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.split(x)
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        new, total = x.shape[1], keys.shape[2]
        at = torch.arange(total - new, total)
        mask = torch.arange(total)[None] <= at[:, None]
        return self.joined(F.scaled_dot_product_attention(q, keys, values, mask)), keys, values


class StaticCache(Decoder):
    """The cache is state of a fixed size; the new part is written where `position` says."""

    keys: Tensor
    values: Tensor

    def __init__(self, longest: int = 32) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, longest, 4))
        self.register_buffer("values", torch.zeros(1, 2, longest, 4))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.split(x)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        mask = torch.arange(self.keys.shape[2])[None] <= position[:, None]
        return self.joined(F.scaled_dot_product_attention(q, self.keys, self.values, mask))


# ----------------------------------------------------------------------------- padding and blocking


class PixelDecoder(nn.Module):
    """Padding as in Mask2Former: images to a multiple of the stride with a mask of what is real,
    positions counted over the mask, levels joined at the size of the finest."""

    def __init__(self, width: int = 8, stride: int = 4) -> None:
        super().__init__()
        self.stride = stride
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.side, self.query = nn.Conv2d(width, width, 1), nn.Parameter(torch.randn(5, width))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        batch, _, height, width = image.shape
        below, right = -height % self.stride, -width % self.stride
        mask = F.pad(torch.ones(batch, height, width), (0, right, 0, below))
        fine = F.relu(self.stem(F.pad(image, (0, right, 0, below))))
        coarse = F.relu(self.down(fine))
        real = F.interpolate(mask[:, None], size=coarse.shape[-2:])[:, 0] > 0.5
        rows = real.cumsum(1, dtype=torch.float32)
        rows = rows / (rows[:, -1:] + 1e-6)
        coarse = (coarse + rows[:, None].sin()) * real[:, None]
        up = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        fused = self.side(fine) + up
        masks = torch.einsum("qc,bchw->bqhw", self.query, fused)
        masks = F.interpolate(masks, size=image.shape[-2:], mode="bilinear", align_corners=False)
        return masks, real.flatten(1).sum(1)


class BlockAttention(nn.Module):
    """Blocks as in BigBird: padded to whole blocks, each sees itself, its neighbours and the first
    block; padding is masked."""

    def __init__(self, width: int = 8, block: int = 4) -> None:
        super().__init__()
        self.block = block
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def blocks(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1] // self.block, self.block, -1)

    def seen(self, x: Tensor) -> Tensor:
        """For each block the rows that it sees, side by side."""
        first = x[:, :1].expand_as(x)
        return torch.cat([first, x.roll(1, 1), x, x.roll(-1, 1)], dim=2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        more = (self.block - length % self.block) % self.block
        padded, real = F.pad(x, (0, 0, 0, more)), F.pad(mask, (0, more), value=False)
        q, k, v = map(self.blocks, self.qkv(padded).split(width, dim=-1))
        k, v = self.seen(k), self.seen(v)
        allowed = self.seen(self.blocks(real[..., None])).squeeze(-1)
        scores = torch.einsum("bnqd,bnkd->bnqk", q, k).masked_fill(~allowed[:, :, None], -1e4)
        y = torch.einsum("bnqk,bnkd->bnqd", scores.softmax(-1), v)
        return self.out(y.reshape(batch, length + more, width)[:, :length])


class Buckets(nn.Module):
    """Relative positions in logarithmic buckets, as in T5, and rotary ones over a length that
    varies."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.table = nn.Embedding(8, heads)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        apart = torch.arange(length)[None] - torch.arange(length)[:, None]
        far = 4 + (apart.abs().clamp(min=1).float() / 4).log().clamp(min=0).long()
        bias = self.table(torch.where(apart.abs() < 4, apart.abs(), far.clamp(max=7)))
        angle = torch.outer(torch.arange(length).float(), 1e4 ** -torch.arange(0, 1, 0.5))
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        x = x * angle.cos().repeat_interleave(2, -1) + turned * angle.sin().repeat_interleave(2, -1)
        scores = x[:, None] @ x[:, None].transpose(-1, -2) + bias.permute(2, 0, 1)
        return (scores.softmax(-1) @ x[:, None]).mean(1)


# -------------------------------------------------------------------------------------------- cases


def grid(**sizes: tuple[int, ...]) -> tuple[Sizes, ...]:
    """All combinations."""
    found: list[Sizes] = [{}]
    for name, values in sizes.items():
        found = [{**sized, name: v} for sized in found for v in values]
    return tuple(found)


SEQUENCE: Any = ({0: "batch", 1: "length"},)
SEQUENCE_EXAMPLES = (
    {"batch": 1, "length": 1},
    {"batch": 7, "length": 2},
    {"batch": 2, "length": 10},
)
SEQUENCE_SIZES = (*grid(batch=(0, 1, 2), length=(0, 1, 2, 13)), {"batch": 3, "length": 131})
IMAGE: Any = ({0: "batch", 2: "height", 3: "width"},)


def sequence(batch: int, length: int, width: int = 4) -> tuple[Tensor, ...]:
    return (torch.randn(batch, length, width),)


def image(batch: int, height: int, width: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, height, width),)


def _recurrent(layer: type[nn.RNNBase], **options: Any) -> Case:
    def model() -> nn.Module:
        return Tagger(layer, **options)

    return Case(model, sequence, SEQUENCE, SEQUENCE_EXAMPLES, SEQUENCE_SIZES, 200)


CASES: dict[str, Case] = {
    "lstm": _recurrent(nn.LSTM),
    "lstm both ways": _recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "gru": _recurrent(nn.GRU),
    "rnn": _recurrent(nn.RNN, nonlinearity="relu", bias=False),
    "mamba": Case(
        Mamba, sequence, SEQUENCE, SEQUENCE_EXAMPLES,
        # eager's convolution takes an empty length, but only of an empty batch
        tuple(s for s in SEQUENCE_SIZES if any(s.values())), 2000,
    ),
    "swin": Case(
        Swin,
        image,
        IMAGE,
        ({"batch": 1, "height": 12, "width": 12}, {"batch": 2, "height": 23, "width": 40}),
        (*grid(batch=(0, 1, 2), height=(5, 24), width=(6, 13)),
         {"batch": 1, "height": 41, "width": 64}),
        400_000,
    ),
    "growing cache": Case(
        GrowingCache,
        lambda batch, new, past: (
            torch.randn(batch, new, 8), torch.randn(batch, 2, past, 4),
            torch.randn(batch, 2, past, 4),
        ),
        ({0: "batch", 1: "new"}, {0: "batch", 2: "past"}, {0: "batch", 2: "past"}),
        ({"batch": 1, "new": 1, "past": 1}, {"batch": 2, "new": 3, "past": 7}),
        (*grid(batch=(0, 1, 2), new=(0, 1, 3), past=(0, 1, 5)),
         {"batch": 3, "new": 17, "past": 113}),
        2000,
    ),
    "static cache": Case(
        StaticCache,
        lambda new: (torch.randn(1, new, 8), torch.randperm(32)[:new]),
        ({1: "new"}, {0: "new"}),
        grid(new=(1, 2, 7)),
        grid(new=(0, 1, 2, 13, 32)),
        1000,
    ),
    "padding": Case(
        PixelDecoder,
        image,
        IMAGE,
        ({"batch": 1, "height": 8, "width": 7}, {"batch": 2, "height": 13, "width": 16}),
        (*grid(batch=(1, 2), height=(1, 4, 13), width=(1, 8, 11)),
         {"batch": 1, "height": 32, "width": 47}),
        30_000,
    ),
    "blocks": Case(
        BlockAttention,
        lambda batch, length: (torch.randn(batch, length, 8), torch.rand(batch, length) > 0.3),
        ({0: "batch", 1: "length"}, {0: "batch", 1: "length"}),
        SEQUENCE_EXAMPLES,
        SEQUENCE_SIZES,
        5000,
    ),
    "buckets": Case(Buckets, sequence, SEQUENCE, SEQUENCE_EXAMPLES, SEQUENCE_SIZES, 2000),
}  # fmt: skip
