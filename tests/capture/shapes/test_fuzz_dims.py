"""Random programs that ask about their sizes, under random declarations: what the error suggests is
applied until the program exports, and then it must do at every size what eager does, or refuse it.

A size that is declared may be refused only if eager raises there too.
"""

from __future__ import annotations

import linecache
import random
from typing import Any

import pytest
import torch

from lostwax import Dim, export, refine_dynamic_shapes_from_suggested_fixes
from lostwax.capture.shapes.dims import Auto, Dynamic, Static
from lostwax.capture.shapes.spec import resolve_spec
from lostwax.errors import ConstraintViolationError, DynamicShapesError, InputValueError
from tests.whole import sampled

SEEDS = range(sampled(10, 30))
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 24, 32)
LINES = """
x = x + y if x.shape == y.shape else x * 2
x = x * 2 if x.shape[0] > K else x - 1
x = x * 2 if y.shape[0] <= K else x - 1
x = x * 2 if x.shape[0] % K == 0 else x - 1
x = x * 2 if (x.shape[0] * x.shape[1]) % K == 0 else x - 1
x = x * 2 if x.shape[0] + y.shape[0] > 2 * K else x - 1
x = x * 2 if x.shape[0] == y.shape[0] else x - 1
x = x * 2 if x.shape[0] == 2 * y.shape[0] else x - 1
x = x * 2 if x.shape[0] == y.shape[0] + K else x - 1
x = x * 2 if x.shape[0] // K >= y.shape[0] else x - 1
x = x * 2 if x.shape[0] != K else x - 1
x = x[K:] * 2
x = x[:K] * 2
x = x[::K] * 2
x = torch.cat([x, x]) * 2
x = torch.cat([x, y], 0) if x.shape[1] == y.shape[1] else x
x = x.reshape(-1, x.shape[1])
x = x.reshape(x.shape[0] // K, -1) if x.shape[0] % K == 0 and x.shape[0] > 0 else x
x = x.flatten()[: x.shape[0]].unsqueeze(1)
for i in range(x.shape[0] // K): x = x + i
x = torch.nn.functional.pad(x, (0, 0, 0, K))
x = x @ x.t() if x.shape[1] > K else x
x = x.unfold(0, K, 1).sum(-1) if x.shape[0] >= K else x
x = x + torch.zeros(x.shape[0], 1)
torch._check(x.shape[0] >= K)
x = x.chunk(2)[0]
x = x * 2 if x.shape[0] * 0.3 > K else x - 1
x = x * 2 if x.shape[0] ** 0.5 > K / 2 else x - 1
x = x[: int(x.shape[0] * 0.7)] * 2
x = x * (x.shape[0] / (x.shape[1] + 1))
x = x.new_ones(round(x.shape[0] / 3) + 1, 2)
x = x * 2 if x.shape[0] in (K, K + 1) else x - 1
x = {K: x + 1}.get(x.shape[0], x)
x = x * 2 if K <= x.shape[0] < 3 * K else x
x = x[: max(x.shape[0] - K, 0)]
x = x[: min(x.shape[0], y.shape[0])]
x = torch.cat(list(x.tensor_split(K)))
x = x.roll(x.shape[0] // 2, 0)
x = x * len(y)
x = x[-K:]
x = x[x.shape[0] // 2].unsqueeze(0)
x = x.unflatten(0, (-1, K)).sum(1)
x = x.view(-1, K) if x.is_contiguous() else x
x = x * 2 if x.numel() > 4 * K else x
x = x * 2 if abs(x.shape[0] - y.shape[0]) < K else x
x = x * 2 if x.shape[0] % K == x.shape[1] % K else x
x = x * 2 if -x.shape[0] % K > 1 else x
x = x * 2 if (x.shape[0] >> 1) & 1 else x
x = torch.nn.functional.interpolate(x[None], scale_factor=1.5)[0]
x = torch.nn.functional.avg_pool1d(x[None], K, ceil_mode=True)[0]
x = torch.nn.functional.pad(x, (0, -x.shape[1] % K))
x = x.repeat_interleave(K, 0)[: x.shape[0]]
x = torch.stack(x.unbind(0)) if x.shape[0] < K else x
x = x.expand(x.shape) + torch.linspace(0, 1, x.shape[1])
x = torch.einsum("ij,kj->ik", x, y) if x.shape[1] == y.shape[1] else x
x = x + y.sum() if max(x.shape[0], y.shape[0]) <= 2 * K else x
""".strip().splitlines()


def program(choose: random.Random) -> Any:
    lines = (choose.choice(LINES) for _ in range(choose.randint(1, 4)))
    body = [line.replace("K", str(choose.choice([1, 2, 3, 4, 8]))) for line in lines]
    source = "def f(x, y):\n    " + "\n    ".join(body) + "\n    return x\n"
    name = f"<{choose.random()}>.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names: dict[str, Any] = {"torch": torch}
    exec(compile(source, name, "exec"), names)
    return names["f"]


def declared(choose: random.Random, name: str, size: int) -> Any:
    least, most = max(0, size - choose.randint(0, 3)), size + choose.randint(0, 8)
    dims = [Dim.AUTO, Dim.DYNAMIC, None, Dim(name, min=least), Dim(name, max=most), Dim(name)]
    return choose.choices(dims, [3, 2, 2, 3, 3, 7])[0]


def inputs(sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(sizes[0], sizes[1]), torch.randn(sizes[2], sizes[3])


def attempted(function: Any, args: Any) -> Any:
    try:
        return function(*(a.clone() for a in args))
    except Exception as error:
        return error


def exported(function: Any, args: Any, shapes: Any) -> tuple[Any, Any, list[str]]:
    """The program, once the suggested fixes have been applied; at most twice."""
    constraints: list[str] = []
    for left in (2, 1, 0):
        try:
            found = export(function, args, dynamic_shapes=shapes, constraints=constraints)
        except ConstraintViolationError as error:
            if not left:
                raise
            shapes = refine_dynamic_shapes_from_suggested_fixes(error, shapes)
            constraints = error.constraints
        else:
            break
    return found, shapes, constraints


def is_promised(shapes: Any, function: Any, args: Any, constraints: list[str]) -> bool:
    entries = [entry for given in shapes.values() for entry in given or ()]
    if any(isinstance(entry, Auto | Dynamic) for entry in entries):
        return False
    try:
        resolve_spec(shapes, function, args, {}, constraints)
    except DynamicShapesError:
        return False
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_suggested_fixes_lead_to_a_right_program(seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    function = program(choose)
    sizes = [choose.randint(1, 12) for _ in range(4)]
    sizes[2:] = choose.choice([sizes[:2], sizes[2:], [sizes[0], sizes[3]], [sizes[2], sizes[1]]])
    a, b, c, d = (declared(choose, name, n) for name, n in zip("abcd", sizes, strict=True))
    args = inputs(sizes)
    if isinstance(attempted(function, args), Exception):
        return
    program_, shapes, constraints = exported(function, args, {"x": (a, b), "y": (c, d)})
    module = program_.module()
    fixed = [
        isinstance(e, Static | int | None)
        for given in shapes.values()
        for e in given or (None, None)
    ]
    for _ in range(40):
        trial = [
            n if stays or choose.random() < 0.3 else choose.choice(SIZES)
            for n, stays in zip(sizes, fixed, strict=True)
        ]
        args = inputs(trial)
        expected, got = attempted(function, args), attempted(module, args)
        if isinstance(got, Exception):
            promised = is_promised(shapes, function, args, constraints)
            assert isinstance(expected, Exception) or not promised, (trial, got)
            assert isinstance(expected, Exception) or isinstance(got, InputValueError), got
        else:
            assert not isinstance(expected, Exception), (trial, expected)
            torch.testing.assert_close(got, expected)
