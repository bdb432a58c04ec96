"""Random programs whose sizes vary: those of `programs.py`, and lines that compute with sizes, make
sizes of data, and check them.

Numbers of a program are written as expressions over shapes, so that it means something at sizes
other than the example's; there eager may still refuse it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.capture.programs import KINDS, Growing, Kind, Program

_RANDOM = ("uniform_", "bernoulli", "rand_like", "dropout")


class Sized(Growing):
    """A program under way, mostly without state, whose sizes would stay what they are."""

    def _state(self) -> None:
        if self.rng.random() < 0.2:
            super()._state()

    def kinds(self) -> tuple[Kind, ...]:
        return _KINDS

    def grown(self) -> bool:
        before, scope = len(self.lines), dict(self.scope)
        if not super().grown():
            return False
        # Which place in memory gets which random number depends on the layout.
        if any(word in line for line in self.lines[before:] for word in _RANDOM):
            del self.lines[before:]
            self.scope = scope
            return False
        return True

    def size(self, t: Tensor, name: str, d: int) -> str:
        """A number that has to do with a size."""
        n = f"{name}.shape[{d}]"
        return self.rng.choice(
            (n, n, n, f"{n} // 2", f"{n} + 1", f"{n} - 1", f"2 * {n}", f"max({n}, 2)",
             f"min({n}, 3)", f"-{n}", f"({n} + 3) // 4 * 4", f"{name}.numel()", "2", "3"),
        )  # fmt: skip

    def numbers(self) -> list[str]:
        return [k for k, v in self.scope.items() if k.startswith("k") and isinstance(v, int)]

    def number(self, t: Tensor, name: str) -> str:
        """A size, or a number of data."""
        known = self.numbers()
        if known and self.rng.random() < 0.5:
            return self.rng.choice(known)
        return self.size(t, name, self.dim(t)) if t.dim() else "2"


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Sized(seed).program()


def _picked(g: Growing, least: int = 1) -> tuple[str, Tensor] | None:
    name = g.pick(lambda t: t.dim() >= least and t.dtype is not torch.bool)
    return None if name is None else (name, g.value(name))


def _shaped(g: Any) -> str | None:
    """A tensor in other sizes, or made from a size."""
    found = _picked(g)
    if found is None:
        return None
    x, t = found
    d, n = g.dim(t), g.number(t, x)
    rest = f"*{x}.shape[1:]"
    text = g.rng.choice(
        (
            f"{x}.view({x}.shape[0], -1)", f"{x}.reshape({x}.shape[0], -1)", f"{x}.reshape(-1)",
            f"{x}.reshape(-1, {x}.shape[-1])", f"{x}.view(-1, {x}.shape[-1])",
            f"{x}.transpose(0, -1).reshape({x}.shape[-1], -1)", f"{x}.flatten()",
            f"{x}.reshape({x}.shape[0] // 2, 2, {rest})", f"{x}.reshape(1, {x}.shape[0], {rest})",
            f"{x}.mT.reshape(-1)", f"{x}.transpose(0, -1).contiguous()",
            f"{x}[:{n}]", f"{x}[{n}:]", f"{x}[::2]", f"{x}[-{n}:]" if "-" not in n else None,
            f"{x}[..., :{n}]", f"{x}.narrow({d}, 0, {n})", f"{x}[1:] - {x}[:-1]",
            f"torch.zeros({n}, 2)", f"torch.arange({n})", f"{x}.new_ones({x}.shape[0])",
            f"torch.ones({x}.shape)", f"torch.full(({n},), 2.0)", f"torch.eye({n})",
            f"F.pad({x}, (0, {n}))", f"F.pad({x}, (1, {x}.shape[-1] % 2))",
            f"torch.cat([{x}, {x}[:1]])", f"torch.cat([{x}, torch.zeros_like({x})], {d})",
            f"{x}.expand(2, *{x}.shape)", f"{x}.unsqueeze(0).expand({n}, *{x}.shape)",
            f"{x}.repeat({', '.join(['2'] * t.dim())})", f"{x} * {x}.shape[{d}]",
            f"{x}.float() / {n}", f"{x}.sum({d}) / {x}.shape[{d}]", f"{x}[{x}.shape[0] - 1]",
            f"{x}.chunk(2, {d})[0]", f"{x}.split({n}, {d})[0]", f"{x}.tensor_split(2, {d})[-1]",
            f"{x}.float() @ {x}.float().mT", f"{x}.roll({n}, {d})", f"{x}.unfold({d}, 2, 1)",
            f"{x}.tril()", f"{x}.diagonal()" if t.dim() > 1 else None, f"{x}.cumsum({d})",
            f"torch.where(torch.arange({x}.shape[-1]) < {n}, {x}, 0)", f"{x}.index_select({d}, "
            f"torch.arange({x}.shape[{d}]))", f"{x}.flip({d})", f"{x}.squeeze({d})",
            f"{x}.max({d})[0]", f"{x}.float().mean()", f"{x}[None, ..., :1] + {x}",
            f"{x}.as_strided({x}.shape, {x}.stride())", f"torch.stack([{x}, {x}], {d})",
            f"{x}.sort({d})[0]", f"{x}.float().softmax({d})", f"{x}.float().std({d})",
            f"torch.outer({x}.flatten(), {x}.flatten())", f"{x}.movedim(0, -1)",
            f"{x}.expand_as({x} + {x}[:1])", f"torch.broadcast_to({x}[:1], {x}.shape)",
        )
    )  # fmt: skip
    return text and f"{g.new()} = {text}"


def _computed(g: Any) -> str | None:
    """Floats of sizes, tensors of sizes, and operators that look at sizes in C++."""
    found = _picked(g)
    if found is None:
        return None
    x, t = found
    d, n = g.dim(t), g.number(t, x)
    m, row = f"{x}.shape[{d}]", f"{x}.float().flatten()[None]"
    text = g.rng.choice(
        (
            f"{x}.float() * {m} ** 0.5", f"{x}.float() / max({m}, 1) ** 0.5",
            f"torch.zeros(int({m} * 0.7))", f"torch.ones(round({m} / 3))",
            f"torch.ones(-(-{m} // 3), 2)", f"torch.ones(-{m} % 3)", f"torch.ones(({m} + 1) >> 1)",
            f"torch.ones({m} & 3)", f"torch.ones(divmod({m}, 3))", f"torch.full((2,), {m} / 3)",
            f"torch.tensor([{n}, 2])", f"torch.tensor({n}) + {x}", f"torch.tensor({x}.shape)",
            f"torch.linspace(0, 1, {m})", f"torch.linspace(0, {m}, 3)",
            f"F.one_hot(torch.arange({m}), {m} + 1)", f"torch.arange(0, {m}, 2)",
            f"torch.arange({m}, -1, -2)", f"torch.arange(0.0, {m} / 2, 0.5)",
            f"{x}.new_zeros({x}.stride({d}))", f"torch.ones(len({x}))",
            f"torch.ones(sum({x}.shape))",
            f"torch.ones(max({x}.shape))", f"{x}.new_zeros({x}.shape[::-1])",
            f"{x}.tensor_split(3, {d})[1]", f"{x}.tensor_split([1, {m} // 2], {d})[1]",
            f"{x}.diff(dim={d})", f"torch.kron({x}.flatten(), {x}.flatten()[:2])",
            f"{x}.take_along_dim({x}.argsort({d}), {d})", f"{x}.unflatten({d}, (-1, 2))",
            f"torch.tensordot({x}.float(), {x}.float(), ([{d}], [{d}]))",
            f"torch.cdist({x}.float(), {x}.float())" if t.dim() > 1 else None,
            f"F.interpolate({row}[None], scale_factor=1.5)",
            f"F.interpolate({row}[None], size={m})",
            f"F.avg_pool1d({row}, 2, ceil_mode=True)", f"F.max_pool1d({row}, 3, 2, 1)",
            f"F.adaptive_avg_pool1d({row}, 3)", f"F.conv1d({row}, torch.ones(2, 1, 3), padding=1)",
            f"F.pad({row}, (1, 1), mode='reflect')", f"F.pad({row}, (0, -{m} % 4))",
            f"{x}.repeat_interleave(2, {d})", f"{x}.repeat_interleave({m}, 0)",
            f"torch.einsum('...i,...i->...', {x}, {x})", f"{x}.select({d}, {m} // 2)",
            f"{x}.topk(2, {d})[0]", f"{x}.kthvalue(1, {d})[0]", f"{x}.view(-1, 2)",
            f"{x}.reshape(2, -1)", f"torch.meshgrid({x}.flatten(), torch.arange({m}))[1]",
            f"F.layer_norm({x}.float(), {x}.shape[-1:])", f"F.glu({x}.float(), {d})",
            f"torch.searchsorted({x}.flatten().sort()[0], {x})", f"{x}.unbind({d})[0]",
            f"{x}.index_add({d}, torch.arange({m}), {x})", f"{x}.tril({m} // 2)",
            f"{x}.narrow({d}, {m} // 3, {m} // 2)", f"{x}[..., {m} // 2:]", f"{x}.nansum({d})",
            f"{x}.gather({d}, {x}.argsort({d}).flip({d}))", f"{x}.float().logsumexp({d})",
            f"torch.stack([{x}[:1].squeeze(0), {x}[-1]])", f"{x}.cummax({d})[0]",
            f"F.scaled_dot_product_attention({x}.float(), {x}.float(), {x}.float())"
            if t.dim() > 1 else None,
        )
    )  # fmt: skip
    return text and f"{g.new()} = {text}"


def _unbacked(g: Any) -> str | None:
    """Sizes and numbers that lie in data."""
    found = _picked(g)
    if found is None:
        return None
    x, t = found
    g.count += 1
    new, k = f"t{g.count}", f"k{g.count}"
    return g.rng.choice(  # type: ignore[no-any-return]
        (
            f"{new} = {x}[{x} > 0]",
            f"{new} = {x}.nonzero()",
            f"{new} = torch.nonzero({x} > 0)[:, 0]",
            f"{new} = {x}[{x}.flatten(1).sum(1) > 0]" if t.dim() > 1 else f"{new} = {x}[{x} < 1]",
            f"{k} = ({x} > 0).sum().item()",
            f"{k} = ({x} > 0).sum().tolist()",
            f"{k} = {x}.flatten().abs().long().sum().item() % 4",
            f"{k} = {x}.nonzero().shape[0]",
            f"{k} = torch.count_nonzero({x}).item()\n{new} = torch.zeros({k}, 2)",
            f"{k} = ({x}[0] > 0).sum().item()\n"
            f"torch._check({k} <= {x}.shape[0])\n{new} = {x}[:{k}]",
            f"{k} = ({x} > 0).sum().item()\ntorch._check({k} >= 1)\n{new} = torch.ones({k})",
            f"{k} = ({x} > 0).sum().item()\n"
            f"torch._check({k} != 2)\n{new} = torch.ones({k} + 1)[1:]",
            f"{new} = torch.repeat_interleave(torch.arange({x}.shape[0]), "
            f"({x}.flatten(1).sum(1) > 0).long())"
            if t.dim() > 1
            else f"{new} = torch.repeat_interleave({x}, ({x} > 0).long())",
            f"{new} = {x}.flatten().unique()",
            f"{k}, k_{g.count} = [({x} > 0).sum(), ({x} <= 0).sum()]\n"
            f"{new} = {x}.flatten().split([{k}.item(), k_{g.count}.item()])[0]",
            f"{k}, k_{g.count} = torch.stack([({x} > 0).sum(), ({x} > 1).sum()]).tolist()\n"
            f"{new} = torch.zeros({k}, k_{g.count})",
            f"{new} = torch.masked_select({x}, {x} < 0)",
            f"{new} = {x}.flatten()[torch.where({x}.flatten() > 0)[0]]",
            f"{new} = {x}[{x} > 0].sort()[0].cumsum(0)",
            f"{new} = {x}[{x} > 0].float().softmax(0)",
            f"{new} = torch.outer({x}[{x} > 0], {x}.flatten())",
            f"{new} = torch.cat([{x}[{x} > 0], {x}.flatten()]).flip(0)",
            f"{new} = {x}[{x} > 0]\n{new} = {new}.view(-1, 1) + torch.arange({new}.shape[0])",
            f"{new} = {x}[{x} > 0]\n{new} = F.pad({new}, (0, {x}.numel() - {new}.shape[0]))"
            f".view({x}.shape)",
            f"{new} = {x}[{x} > 0][:1] + torch.arange(4)",
            f"{new} = F.conv1d({x}[{x} > 0].float()[None], torch.ones(2, 1, 3), padding=1)",
            f"{new} = torch.linspace(0, 1, {x}[{x} > 0].shape[0])",
            f"{new} = {x}.roll(({x} > 0).sum().item(), 0)",
            f"{new} = {x}.flatten().tensor_split([({x} > 0).sum().item()])[1]",
            f"{new} = torch.tensor([({x} > 0).sum().item(), {x}.shape[0]])",
            f"{new} = {x}.flatten()[({x} > 9).sum().item()]",
        )
    )


def _checked(g: Any) -> str | None:
    """What the program demands, or asks, of a number."""
    found = _picked(g)
    if found is None:
        return None
    x, t = found
    n, c = g.number(t, x), g.rng.randint(0, 4)
    return g.rng.choice(  # type: ignore[no-any-return]
        (
            f"torch._check({n} >= {c})",
            f"torch._check({n} <= {c} + 8)",
            f"torch._check({n} != {c} + 9)",
            f"if {x}.shape[0] > {c}:\n    {x} = {x} + 1",
            f"if {x}.shape[0] == {x}.shape[-1]:\n    {x} = {x} * 2",
            f"if {x}.numel() % 2 == 0:\n    {x} = {x} - 1",
            f"{g.new()} = {x} + ({n})",
            f"{g.new()} = {x} if {x}.is_contiguous() else {x} + 2",
            f"if {x}.shape[0] * 0.3 > {c} / 2:\n    {x} = {x} + 1",
            f"if {x}.shape[0] ** 0.5 <= {c}:\n    {x} = {x} + 1",
            f"if {x}.shape[0] in ({c}, {c} + 1):\n    {x} = {x} * 2",
            f"if {x}.shape == ({c}, 3):\n    {x} = {x} * 2",
            f"{g.new()} = {{{c}: {x} + 1}}.get({x}.shape[0], {x})",
            f"for i in range({x}.shape[0] // 3):\n    {x} = {x} + i",
        )
    )


def _written(g: Any) -> str | None:
    """A write to a part that a size says."""
    x = g.target()
    if x is None or not (t := g.value(x)).dim() or x.startswith("self."):
        return None
    n = g.number(t, x)
    new = g.new()
    return g.rng.choice(  # type: ignore[no-any-return]
        (
            f"{x}[:{n}] = 1",
            f"{x}[{n}:].mul_(2)",
            f"{x}[..., :{n}] += 1",
            f"{new} = {x}.reshape(-1)\n{new}.add_(1)",
            f"{new} = {x}.transpose(0, -1).reshape(-1)\n{new}.mul_(2)",
            f"{new} = {x}.mT.reshape({x}.shape[-1], -1)\n{new} += 1",
            f"{new} = {x}.mT.contiguous()\n{new}.add_(1)",
            f"{new} = {x}.transpose(0, -1).flatten()\n{x}.add_(1)",
            f"{new} = {x}[:1].reshape(-1)\n{new}.zero_()",
            f"{new} = {x}.reshape({x}.shape[0], -1)\n{new}[:, 0] = 3",
            f"{x}.index_fill_(0, torch.arange({x}.shape[0])[::2], 5)",
            f"{x}[{x}.nonzero(as_tuple=True)] = 4",
            f"{x}.copy_({x}[:1])",
            f"{x}.copy_(torch.arange({x}.shape[-1]))",
            f"{x}.scatter_(0, torch.zeros_like({x}, dtype=torch.int64)[:1], 3)",
        )
    )


_KINDS: tuple[Kind, ...] = (
    *KINDS, *(_shaped,) * 14, *(_computed,) * 7, *(_unbacked,) * 6, *(_checked,) * 3,
    *(_written,) * 5,
)  # fmt: skip


# -------------------------------------------------------------------------------------- other sizes


def resized(program: Program, sizes: dict[int, int]) -> tuple[Any, ...]:
    """Inputs like the program's in which each size is another: equal ones stay equal, and the
    order in which dimensions lie in memory stays."""
    seen: dict[int, Tensor] = {}
    return tuple(
        seen.setdefault(id(a), _like(a, sizes)) if isinstance(a, Tensor) else a
        for a in program.args
    )


def _like(t: Tensor, sizes: dict[int, int]) -> Tensor:
    shape = [sizes.get(s, s) for s in t.shape]
    order = sorted(range(t.dim()), key=lambda d: (-t.stride(d), d))
    back = sorted(range(t.dim()), key=order.__getitem__)
    made = (torch.randn([shape[d] for d in order]) * 3).to(t.dtype)
    return made.permute(back)


def state_of(program: Program) -> nn.Module:
    return program.fresh()[0]
