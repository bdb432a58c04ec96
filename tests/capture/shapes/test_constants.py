"""Inputs that are declared to be constants: what Python computes of them is concrete, calls with
others are refused, and that holds wherever the program goes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lostwax
from lostwax.errors import ConstantsError, InputValueError
from lostwax.interop import to_torch

LENGTHS = torch.tensor([2, 3])
GRID = torch.tensor([[1, 4, 6], [2, 2, 4]])
X = torch.arange(80.0).reshape(40, 2)


def parts(x: Tensor, lengths: Tensor) -> list[Tensor]:
    return [part.sum(0) for part in x.split(lengths.tolist())]


def rows_of_grid(x: Tensor, grid: Tensor) -> Any:
    out, at = [], 0
    for t, h, w in grid.tolist():
        rows = torch.arange(h).unsqueeze(1).expand(-1, w).flatten().repeat(t)
        out.append(x[at : at + t * h * w] * rows[:, None])
        at += t * h * w
    ends = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(0)
    ends = F.pad(ends, (1, 0), value=0)
    return torch.cat(out), [part.mean(0) for part in x.split((ends[1:] - ends[:-1]).tolist())]


def windows_of_grid(x: Tensor, grid: Tensor) -> Any:
    found, ends, at = [], [0], 0
    for t, h, w in grid:
        places = F.pad(
            torch.arange(t * h * w).reshape(t, h, w), (0, 4 - w % 4, 0, 4 - h % 4), value=-1
        )
        high, wide = places.shape[1] // 4, places.shape[2] // 4
        places = places.reshape(t, high, 4, wide, 4).permute(0, 1, 3, 2, 4)
        lengths = (places != -1).sum([3, 4]).reshape(-1)
        places = places.reshape(-1)
        found.append(places[places != -1] + at)
        ends.extend((lengths.cumsum(0) + ends[-1]).tolist())
        at += (t * h * w).item()
    return x[torch.cat(found)], torch.unique_consecutive(torch.tensor(ends))


def by_numpy(x: Tensor, lengths: Tensor) -> Tensor:
    return x[: int(lengths.numpy().max())] * np.asarray(lengths)[0]


def branch(x: Tensor, n: Tensor) -> Tensor:
    return x * 2 if n.item() > 2 else x - 1


def written(x: Tensor, n: Tensor) -> Tensor:
    n.add_(1)
    return x[: int(n[0])]


def written_in_part(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    n[1] = 4
    return x[: n[1].item()], x[: n[0].item()]


def masked(x: Tensor, mask: Tensor) -> Any:
    """Whose elements are taken is known, not which they are."""
    taken = x[mask]
    return taken.reshape(len(taken) * 2), x.T[:, mask].sum(0), [x[i] for i in range(len(x[~mask]))]


def overwritten(x: Tensor, n: Tensor) -> Tensor:
    n.copy_(x[:2, 0].long())
    return x[: n.tolist()[1]]


CASES = [
    (parts, X[:5], LENGTHS),
    (rows_of_grid, X, GRID),
    (windows_of_grid, X, GRID),
    (by_numpy, X, LENGTHS),
    (branch, X, torch.tensor(3)),
    (written, X, LENGTHS),
    (written_in_part, X, LENGTHS),
    (overwritten, X, LENGTHS),
    (masked, X[:4], torch.tensor([True, False, True, True])),
]


@pytest.mark.parametrize(
    ("function", "x", "value"), CASES, ids=lambda c: getattr(c, "__name__", "")
)
def test_equals_eager_and_refuses_others(
    function: Callable[..., Any], x: Tensor, value: Tensor
) -> None:
    name = list(function.__annotations__)[1]
    program = lostwax.export(function, (x, value.clone()), constants={name})
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    loaded = lostwax.load(file)
    for each in (program, loaded, program.run_decompositions()):
        for scale in (1, 0):  # of the data, which stay open
            want, mine = value.clone(), value.clone()
            torch.testing.assert_close(each.module()(x * scale, mine), function(x * scale, want))
            assert torch.equal(mine, want)
        with pytest.raises(InputValueError, match=f"{name} is .* was declared to be the constant"):
            each.module()(x, value + 1 if value.dtype is not torch.bool else ~value)


def test_sizes_are_static() -> None:
    program = lostwax.export(rows_of_grid, (X, GRID), constants={"grid"})
    values = [n.meta["val"] for n in program.graph.nodes]
    assert all(isinstance(s, int) for v in values if isinstance(v, Tensor) for s in v.shape)


def test_error_shows_both_values() -> None:
    program = lostwax.export(parts, (X[:5], LENGTHS), constants={"lengths"})
    with pytest.raises(InputValueError) as raised:
        program.module()(X[:5], torch.tensor([3, 2]))
    text = str(raised.value)
    assert "lengths is [3, 2], and was declared to be the constant [2, 3]" in text
    assert "export again with this one" in text
    assert raised.value.path == "lengths"


def test_torch_checks_it_too() -> None:
    program = lostwax.export(parts, (X[:5], LENGTHS), constants={"lengths"})
    theirs = to_torch(program)
    torch.testing.assert_close(theirs.module()(X[:5], LENGTHS), parts(X[:5], LENGTHS))
    for each in (theirs, theirs.run_decompositions()):
        with pytest.raises(RuntimeError, match="lengths is not the constant that was declared"):
            each.module()(X[:5], torch.tensor([3, 2]))


def test_a_gpu_takes_the_text() -> None:
    """Its kernel takes up to 254 bytes."""

    def chosen(places: Tensor, x: Tensor) -> Tensor:
        torch._assert((x > 0).all(), "größer " * 60)
        return x[places.tolist()]

    places, x = torch.arange(90) % 3, torch.ones(3)
    program = lostwax.export(chosen, (places, x), constants={"places"})
    texts = [
        node.args[1]
        for node in program.graph.nodes
        if node.target is torch.ops.aten._assert_async.msg
    ]
    assert len(texts) == 2
    assert all(200 < len(str(text).encode()) < 255 for text in texts)
    with pytest.raises(RuntimeError, match=r"größer größer .* \.\.\."):
        program.module()(places, -x)


def test_capture_of_the_program_keeps_it() -> None:
    program = lostwax.export(parts, (X[:5], LENGTHS), constants={"lengths"})
    again = lostwax.export(program.module(), (X[:5], LENGTHS)).module()
    torch.testing.assert_close(again(X[:5], LENGTHS), parts(X[:5], LENGTHS))
    with pytest.raises(RuntimeError, match="lengths is not the constant that was declared"):
        again(X[:5], torch.tensor([3, 2]))


def test_executable_keeps_the_input() -> None:
    program = lostwax.export(parts, (X[:5], LENGTHS), constants={"lengths"})
    with pytest.warns(UserWarning, match="lengths is not the constant that was declared"):
        executable = lostwax.to_edge_transform_and_lower(program).to_executable()
    assert lostwax.check(executable, program.module())


def test_names_of_parts() -> None:
    def nested(batch: dict[str, Any], *more: Tensor, flag: bool = True) -> Any:
        return batch["x"][: batch["sizes"][0].item()], more[0][: more[1].item()]

    args = {"x": X, "sizes": [torch.tensor(2)]}, X, torch.tensor(3)
    for names in ({"batch['sizes']", "more_1"}, {'batch["sizes"][0]', "more"}, {"batch", "more"}):
        module = lostwax.export(nested, args, constants=names).module()
        torch.testing.assert_close(module(*args), nested(*args))
        with pytest.raises(InputValueError, match=r"batch\['sizes'\]\[0\] is 4"):
            module({"x": X, "sizes": [torch.tensor(4)]}, *args[1:])


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.bool]
)
def test_values_are_compared_as_bits(dtype: torch.dtype) -> None:
    value = torch.tensor([0.5, float("nan"), -0.0]).to(dtype)
    other = torch.tensor([0.5, float("nan"), 0.0 if dtype is not torch.bool else 1.0]).to(dtype)
    module = lostwax.export(lambda x, s: x * 2, (X, value), constants={"s"}).module()
    module(X, value.clone())
    with pytest.raises(InputValueError, match="s is"):
        module(X, other)


def test_many_elements() -> None:
    value = torch.arange(5000)
    module = lostwax.export(lambda x, n: x[: n[3].item()], (X, value), constants={"n"}).module()
    assert module(X, value).shape == (3, 2)
    with pytest.raises(InputValueError, match=r"\(5000,\) of \[0, 1, .*sha256"):
        module(X, value.flip(0).flip(0) + (value == 4999))


def test_empty() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    module = lostwax.export(parts, (X[:0], nothing), constants={"lengths"}).module()
    assert module(X[:0], nothing) == []


def test_numpy_cannot_write() -> None:
    def write(x: Tensor, n: Tensor) -> Tensor:
        n.numpy()[0] = 7
        return x * n[0]

    with pytest.raises(ValueError, match="read-only"):
        lostwax.export(write, (X, LENGTHS), constants={"n"})


def test_beside_sizes_that_vary() -> None:
    columns = lostwax.Dim("columns")
    call = (X[:5], LENGTHS)
    shapes: Any = {"x": {1: columns}, "lengths": {0: lostwax.Dim.AUTO}}
    module = lostwax.export(parts, call, dynamic_shapes=shapes, constants={"lengths"}).module()
    wide = torch.ones(5, 7)
    torch.testing.assert_close(module(wide, LENGTHS), parts(wide, LENGTHS))
    shapes = {"x": None, "lengths": {0: lostwax.Dim("count")}}
    with pytest.raises(ConstantsError, match="dynamic_shapes lets it vary: count"):
        lostwax.export(parts, call, dynamic_shapes=shapes, constants={"lengths"})


def test_refused() -> None:
    with pytest.raises(ConstantsError) as raised:
        lostwax.export(parts, (X[:5], LENGTHS), constants={"length"})
    assert "did you mean 'lengths'?" in str(raised.value)
    assert "its inputs: x, lengths" in str(raised.value)
    with pytest.raises(ConstantsError, match="on meta, and has no data to read"):
        lostwax.export(parts, (X[:5], LENGTHS.to("meta")), constants={"lengths"})
    with pytest.raises(ConstantsError, match="it has 131072 elements"):
        lostwax.export(parts, (X[:5], torch.zeros(1 << 17)), constants="lengths")


def test_one_tensor_in_two_places() -> None:
    def both(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return x[: a.item()] + x[: b.item()]

    n = torch.tensor(2)
    module = lostwax.export(both, (X, n, n), constants={"b"}).module()
    torch.testing.assert_close(module(X, n, n), both(X, n, n))


def test_state_is_not_known_by_it() -> None:
    """A buffer that is also passed: what is declared is the argument's value."""

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.tensor(2))

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            return x[: n.item()] * self.n

    holder = Holder()
    module = lostwax.export(holder, (X, holder.n), constants={"n"}).module()
    torch.testing.assert_close(module(X, module.n), holder(X, holder.n))
    module.n.fill_(5)
    with pytest.raises(InputValueError, match="n is 5"):
        module(X, module.n)


def test_what_only_constants_decide_may_be_kept() -> None:
    class Keeps(nn.Module):
        positions: Tensor | None = None

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            torch._check((x.sum() < 1e9).item())
            if self.positions is None:
                self.positions = torch.arange(n.item()) + n
            return x[self.positions]

    n = torch.tensor(3)
    module = lostwax.export(Keeps(), (X, n), constants={"n"}).module()
    torch.testing.assert_close(module(X, n), Keeps()(X, n))
    with pytest.raises(lostwax.errors.LostwaxError):
        lostwax.export(Keeps(), (X, n))


def test_draft_and_report() -> None:
    program = lostwax.draft_export(parts, (X[:5], LENGTHS), constants={"lengths"})
    torch.testing.assert_close(program.module()(X[:5], LENGTHS), parts(X[:5], LENGTHS))
    found = lostwax.report(by_numpy, (X, LENGTHS), constants={"lengths"})
    assert not found.findings
