"""The statements of random programs for executables.

An expression is a text with places for operands. Sharp ones (a floor, a comparison) need operands
that are exact in every runtime; soft ones make results that are exact in none. Must not run
anything.
"""

from __future__ import annotations

import random
from typing import Any

import torch

PLAIN = """
{a} + {b}
{a} - {b}
{a} * {b}
{a} * {s}
{a} + {s}
{s} - {a}
-{a}
{a}.abs()
{a}.relu()
{a}.clamp({i}, 3)
{a}.t()
{a}.transpose(0, -1)
{a}.reshape(-1)
{a}.reshape(3, -1)
{a}.unsqueeze({d})
{a}.squeeze()
{a}.flip({d})
{a}.roll({i}, {d})
{a}[1:]
{a}[:-1]
{a}[::2]
{a}[..., ::2]
{a}[..., 1:]
{a}[..., -1]
{a}[0]
{a}[-1:]
{a}[:, None]
{a}[:, [2, 0]]
{a}[[0, 0]]
{a}.expand(2, *{a}.shape)
{a}.repeat(2, 1)
{a}.repeat_interleave(2, {d})
{a}.permute(*reversed(range({a}.dim())))
{a}.chunk(2, {d})[0]
{a}.split(2, {d})[-1]
{a}.unbind({d})[0]
{a}.diagonal()
{a}.tril()
{a}.unfold({d}, 2, 1)
{a}.narrow({d}, 1, 1)
torch.cat([{a}, {b}], {d})
torch.stack([{a}, {b}], {d})
F.pad({a}, (1, {i}))
F.pad({a}, (0, 1, {i}, 1), value={i})
torch.where({m}, {a}, {b})
torch.where({m}, {a}, {s})
{a}.masked_fill({m}, {i})
torch.maximum({a}, {b})
torch.minimum({a}, {b})
{a}.amax({d})
{a}.amin({d}, keepdim=True)
{a}.max()
{a}.sum({d})
{a}.sum({d}, keepdim=True)
{a}.sum()
{a}.cumsum({d})
{a}.float()
{a}.double()
{a}.to(torch.int32)
{a}.half()
{a}.clone()
{a}.contiguous()
{a}.detach()
{a}.gather({d}, {a}.long() * 0)
{a}.index_select({d}, torch.tensor([1, 0]))
{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64), {a})
{a}.index_put((torch.tensor([0, 1]),), {a}[0])
{a}.new_zeros(2, 3) + {i}
torch.full_like({a}, {i})
torch.ones_like({a})
torch.arange({a}.shape[0])
torch.zeros({a}.shape) + 1
torch.einsum('i...->...i', {a})
torch.add({a}, {b}, alpha={i})
{a}.as_strided((2, 2), (1, 1))
{a}.movedim(0, -1)
{a}.mT
{a} ** 2
self.table + {a}
self.table[1:3]
self.table.t()
self.total * {i}
self.count + 1
torch.tensor([1.5, 2.0, -1.0])
x
""".strip().splitlines()

SHARP_ONES = """
{a} > {b}
{a} <= {i}
{a} == {b}
{a} // 2
{a} % 3
torch.div({a}, 2, rounding_mode='trunc')
torch.div({a}, {b}, rounding_mode='floor')
torch.fmod({a}, {i})
{a}.floor()
{a}.round()
{a}.ceil()
{a}.sign()
{a}.argmax({d})
{a}.argmin()
{a}.max({d})[1]
{a}.sort({d})[0]
{a}.topk(1, {d})[0]
{a}.long()
{a}.to(torch.int8)
{a}.abs().to(torch.uint8)
{a}.bool()
{a}.any({d})
{a}.all()
~({a} > 0)
({a} > 0) & ({b} > 0)
({a} > 0) ^ {m}
{a}.prod({d})
{a}.isnan()
{a}.logical_not()
{a} >> 1 if {a}.dtype == torch.int64 else {a}
F.one_hot({a}.long().abs() % 4, 5)
cond({a}.sum() > 0, lambda a: a + 1, lambda a: a * 2, ({a},))
cond({a}.sum() > 0, lambda a, b: (a + b, a * 1), lambda a, b: (b + a, a * b), ({a}, {b}))[0]
while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + i), (torch.tensor(0), {a}))[1]
""".strip().splitlines()

SOFT_ONES = """
{a} / {b}
{a} / 3
1 / ({a}.abs() + 1)
{a} * 0.1
{a} ** 3
{a}.abs() ** 0.5
{a}.exp()
({a}.abs() + 1).log()
{a}.sigmoid()
{a}.tanh()
{a}.mean({d})
{a}.mean()
{a}.var({d}, correction=0)
{a}.softmax({d})
{a}.log_softmax({d})
{a}.logsumexp({d})
{a}.norm()
F.gelu({a})
F.silu({a})
F.elu({a})
F.layer_norm({a}, {a}.shape[-1:])
self.layer({a})
{a} @ {b}
{a} @ {b}.t()
{a}.mT @ {b}
torch.addmm({a}, {b}, {b}.t())
F.linear({a}, {b})
F.normalize({a}, dim={d})
{a}.bfloat16()
F.scaled_dot_product_attention({a}[None], {a}[None], {a}[None])
F.conv1d({a}[None], torch.ones(2, {a}.shape[0], 2))
F.conv1d({a}.t()[None], self.table[:2, :, None], padding=1)
F.avg_pool1d({a}[None], 2, 1)
F.max_pool1d({a}[None], 2, 1)
F.interpolate({a}[None, None], scale_factor=2.0)
F.embedding({a}.long().abs() % 4, self.table)
torch.outer({a}.reshape(-1)[:3], {b}.reshape(-1)[:2])
map_rows(lambda r: r * 2 + 1, {a})
scan(lambda c, r: (c + r, c * 1), self.total * 1, {a})[1]
{a}.std({d})
torch.atan2({a}, {b})
""".strip().splitlines()

OF_SIZES = """
{a} * {a}.shape[0]
{a} + {a}.shape[-1]
torch.arange({a}.shape[0]) * 2 - 3
torch.zeros({a}.shape[0], 2)
torch.full(({a}.shape[0] + 1,), {i})
{a}.reshape({a}.shape[0], -1)
{a}.reshape(-1, {a}.shape[0])
{a}[: {a}.shape[0] // 2]
{a}[{a}.shape[0] // 2 :]
{a}.sum(0) / ({a}.shape[0] + 1)
{a}.expand({a}.shape[0], *{a}.shape)
torch.ones({a}.shape[0], {a}.shape[0]).triu(1)
{a}.view({a}.numel())
torch.cat([{a}, {a}], 0)[{a}.shape[0] :]
""".strip().splitlines()

WRITES = """
{n} = {a}.clone(); {n}[0] = {i}
{n} = {a}.clone(); {n}[..., -1] += 1
{n} = {a} + 0; {n}.t().mul_(2)
{n} = {a} * 1; {n}[1:].add_({i})
{n} = {a} * 1; {n}.view(-1)[::2] = 0
{n} = {a} * 1; {n}[:, 1:].copy_({n}[:, :-1].clone())
{n} = {a} * 1; {n}[{m}] = {i}
self.total.add_({a}.float().sum(0)); {n} = self.total
self.total.mul_(0.5); {n} = self.total + 1
self.total += 1; {n} = self.total.clone(); self.total += {a}.sum()
self.count += 1; {n} = {a} * self.count
self.table[1] = self.table[0]; {n} = self.table
self.table[:, 0] += 1; {n} = self.table.t()
self.table.copy_(self.table.flip(0)); {n} = self.table[1:]
{n} = self.total; self.total = self.total + 1
""".strip().splitlines()

SHARP, SOFT, DYNAMIC = "sharp", "soft", "dynamic"
_KINDS = {SHARP: SHARP_ONES, SOFT: SOFT_ONES, DYNAMIC: OF_SIZES}


def draw(
    rng: random.Random,
    values: dict[str, Any],
    exact: set[str],
    kind: str | None,
    number: int,
    is_dynamic: bool,
) -> tuple[str, str, bool]:
    """A statement, the name that it makes, and whether that is exact; "" if none fits."""
    tensors = [n for n, v in values.items() if isinstance(v, torch.Tensor)]
    masks = [n for n in tensors if values[n].dtype is torch.bool]
    pool = [n for n in tensors if n in exact] if kind == SHARP else tensors
    if not pool or not masks:
        return "", "", False
    is_write = kind is None and rng.random() < 0.2
    text = rng.choice(WRITES if is_write else _KINDS.get(kind or "", PLAIN))
    name = f"v{number}"
    a, b = (rng.choice(pool[-3:] if rng.random() < 0.5 else pool) for _ in range(2))
    filled = text.format(
        a=a,
        b=b,
        m=rng.choice(masks),
        n=name,
        d=rng.choice((0, -1, 1)),
        i=rng.choice((-2, -1, 1, 2)),
        s=rng.choice((2, -1, 0.5, 1.5, True)),
    )
    is_exact = a in exact and b in exact and kind != SOFT and "half" not in text
    return filled if is_write else f"{name} = {filled}", name, is_exact
