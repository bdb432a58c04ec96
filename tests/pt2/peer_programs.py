"""Programs that real `torch.export` captures, one for each part of the format: what its `save`
writes of them is what we must read.
"""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim


class Case(NamedTuple):
    """A module, an example call, and what `torch.export.export` is told beside it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None = None
    dynamic: Any = None
    options: dict[str, Any] | None = None


Pair = namedtuple("Pair", ["a", "b"])
pytree._register_namedtuple(Pair, serialized_type_name="lostwax.tests.Pair")


@dataclass
class Parts:
    u: Tensor
    v: Tensor
    w: Tensor | None = None


torch.export.register_dataclass(Parts, serialized_type_name="lostwax.tests.Parts")


@torch.library.custom_op("lostwax_pt2::twice", mutates_args=())
def twice(x: Tensor, k: int = 2) -> Tensor:
    return x * k


@twice.register_fake
def _(x: Tensor, k: int = 2) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lostwax_pt2::inc_", mutates_args=("x",))
def inc_(x: Tensor) -> None:
    x.add_(1)


@inc_.register_fake
def _(x: Tensor) -> None:
    return None


class Of(nn.Module):
    """A module of one function, with state that its maker gives it."""

    def __init__(self, function: Callable[..., Any], **state: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in state.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)


class Unary(Of):
    def forward(self, x):
        return self.function(self, x)


class Binary(Of):
    def forward(self, x, y):
        return self.function(self, x, y)


def _sizes(m, x, y):
    n = x.shape[0]
    return x.reshape(n * 2, -1)[:n], y.sum(0) + n, torch.zeros(n + 1, 2 * n)


def _symbolic(m, x, y):
    a, b = x.shape[0], y.shape[0]
    f = torch.sym_float(a) / b
    torch._check(a * b < 5000)
    sizes = torch.zeros(torch.sym_max(a, b) + torch.sym_min(a, b)), torch.ones(a + 2 * b - 1)
    numbers = a % 3, (a + b) ** 2, -a, a * 1.5
    return *sizes, *numbers, x * f, x * torch.sym_sqrt(a), x[::2], x[: a // 3]


def _count_and_branch(m, x):
    m.c.add_(1)
    return torch.cond(x.sum() > 0, lambda x: m.l(x) + m.c, lambda x: (x - 1).clone(), (x,))


def _branch_on_size(m, x):
    a, b = torch.cond(x.shape[0] > 4, lambda x: (x + 1, x.sum()), lambda x: (x - 1, x.mean()), (x,))
    return a + b


def _loop(m, x, y):
    return while_loop(lambda x, y: x.sum() > 0, lambda x, y: (x - 1, y * 2), (x, y))


def _scan(m, x, y):
    return scan(lambda c, x: (c + x, (c * 2).clone()), x, y)


class Trees(nn.Module):
    def forward(self, d, seq, *, kw, opt=None):
        p = d["p"]
        return {
            "o": OrderedDict([("z", p.a + 1), ("y", seq[0])]),
            "n": None,
            "t": (p.b * kw, [seq[1][0]]),
            "c": 3,
            "f": 2.5,
            "parts": Parts(p.a, kw),
            "pair": Pair(p.a, p.b),
            "deque": deque([p.a]),
        }


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t = torch.arange(3.0)
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.register_buffer("unused", torch.ones(5))

    def forward(self, x, n, f, b, s, none):
        t = torch.tensor([1.0, 2.0, 3.0])
        return (x + self.t * n + f + self.passing + t if b else x), torch.tensor(4)


def _item(m, x, y):
    n = y.item()
    torch._check(n >= 2)
    torch._check(n <= 10)
    return x[:n] + 1, torch.ones(n * 2), n


def _nonzero(m, x):
    found = torch.nonzero(x)
    return found + 1, found.shape[0]


def _float_item(m, x):
    f = x.sum().item()
    return x * f, f


def _several(m, x):
    a, _ = torch.max(x, dim=1)
    parts = torch.split(x, [1, 2], dim=1)
    return a, parts[1], torch.topk(x, 1)[0], F.layer_norm(x, (3,)), torch.aminmax(x)[1]


def _arguments(m, x, y):
    return (
        x[y, None, :],
        torch.cat([x, x]),
        x.to(torch.bfloat16).to(memory_format=torch.contiguous_format),
        torch.full((2, 2), float("inf"), dtype=torch.float64, device="cpu"),
        F.interpolate(x[None, None], scale_factor=2.0, mode="nearest"),
        F.gelu(x, approximate="tanh"),
        x.sum(dtype=torch.float64),
        torch.ops.aten.index_put.default(x, [None, y], torch.zeros(())),
        torch.empty_like(x, layout=torch.strided).fill_(float("nan")),
        torch.fft.fftn(x) * (1 + 2j),
    )


def _custom(m, x):
    y = torch.ops.lostwax_pt2.twice(x, 3)
    z = x.clone()
    torch.ops.lostwax_pt2.inc_(z)
    return y + z


def _modes(m, x):
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ x
    return y + z


def _asserts(m, x):
    torch.ops.aten._assert_async.msg(x.sum() > -1e9, "bad")
    return x + 1


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        base = torch.randn(4, 5)
        self.w = nn.Parameter(base)
        self.tied = self.w
        self.register_buffer("rows", base[1:3])
        self.register_buffer("turned", base.t())
        self.register_buffer("steps", torch.randn(6, 6)[::2, 1:4])
        self.register_buffer("last", torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("scalar", torch.tensor(3, dtype=torch.int8))
        self.register_buffer("brain", torch.randn(3).bfloat16())
        self.register_buffer("bits", torch.tensor([True, False]))
        self.register_buffer("small", torch.randn(3).to(torch.float8_e4m3fn))
        self.register_buffer("pairs", torch.randn(2, dtype=torch.complex64))
        self.register_buffer("spread", torch.randn(3, 1).expand(3, 4))
        self.register_buffer("raw", base.view(torch.int32))

    def forward(self, x):
        sums = self.rows.sum() + self.turned.sum() + self.steps.sum() + self.empty.sum()
        parts = self.last * 1, self.brain + self.bits.sum(), self.small.float(), self.pairs * 1
        return x @ self.w + x @ self.tied, sums + self.scalar, *parts, self.spread + 0, self.raw + 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x, *, k):
        return {"r": self.l(x) * k}


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b1, self.b2 = Block(), Block()

    def forward(self, x):
        return self.b1(x, k=x)["r"] + self.b2(x, k=x)["r"]


def _annotated(m, x):
    with torch.fx.traceback.annotate({"tag": 1}):
        return x * 2


class Open(nn.Module):
    def forward(self, *xs, **kw):
        return xs[0] + xs[1] * kw["k"]


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.zeros(1))

    def forward(self):
        self.c.add_(1)
        return self.c + 1


def _writes_parameter(m, x):
    with torch.no_grad():
        m.w.add_(1)
    return x + m.w


def _writes_input(m, x, y):
    x.add_(1)
    return x + y


@torch.compiler.nested_compile_region
def _region(x):
    return torch.sin(x) + 1


def _choice(m, x, y):
    a, b = x.shape[0], y.shape[0]
    return torch.zeros(torch.sym_ite(a > 3, a, b)), a // 2


def cases() -> dict[str, Case]:
    """All of them, made again: weights and inputs from one seed."""
    torch.manual_seed(0)
    r = torch.randn
    b = Dim("b", min=3, max=20)
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    branch = Unary(_count_and_branch, l=nn.Linear(3, 3), c=torch.zeros(3))
    trees = ({"p": Pair(r(2), r(2)), "q": r(1)}, [r(2), (r(3),)])
    batch = Dim("batch", min=2, max=64)
    mixed = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    return {
        "linear": Case(nn.Linear(3, 4), (r(2, 3),)),
        "sizes": Case(Binary(_sizes), (r(4, 6), r(4, 6)), None, ({0: batch}, {0: batch})),
        "derived": Case(
            Binary(lambda m, x, y: x + y[1:]), (r(4), r(5)), None, ({0: b}, {0: b + 1})
        ),
        "symbolic": Case(Binary(_symbolic), (r(7), r(5)), None, mixed),
        "choice": Case(Binary(_choice), (r(7), r(5)), None, mixed),
        "int input": Case(
            Binary(lambda m, x, y: (x + y, y + 1)), (r(3), 7), None, (None, Dim.DYNAMIC)
        ),
        "batch norm": Case(conv, (r(2, 3, 8, 8),)),
        "cond": Case(branch, (r(2, 3),), None, ({0: Dim("b", max=32)},)),
        "cond on size": Case(Unary(_branch_on_size), (r(6, 3),), None, ({0: batch},)),
        "while_loop": Case(Binary(_loop), (torch.tensor(3), r(2, 3))),
        "map": Case(Binary(lambda m, x, y: torch_map(lambda x, y: x + y, x, y)), (r(3, 4), r(4))),
        "scan": Case(Binary(_scan), (torch.zeros(4), r(3, 4))),
        "trees": Case(Trees(), trees, {"kw": r(2)}),
        "constants": Case(Constants(), (r(3), 7, 2.5, True, "hello", None)),
        "item": Case(Binary(_item), (r(12), torch.tensor(4))),
        "nonzero": Case(Unary(_nonzero), (torch.tensor([1, 0, 2]),)),
        "float item": Case(Unary(_float_item), (r(3),)),
        "several": Case(Unary(_several), (r(2, 3),)),
        "arguments": Case(Binary(_arguments), (r(3, 3), torch.tensor([0, 2]))),
        "custom": Case(Unary(_custom), (r(3),)),
        "modes": Case(Unary(_modes), (r(3, 3),)),
        "asserts": Case(Unary(_asserts), (r(3),)),
        "shared": Case(Shared(), (r(2, 4),)),
        "call signatures": Case(
            Blocks(), (r(2, 3),), None, None, {"preserve_module_call_signature": ("b1", "b2")}
        ),
        "strict": Case(Blocks(), (r(2, 3),), None, None, {"strict": True}),
        "strict sizes": Case(
            Binary(lambda m, x, y: x + y),
            *((r(4), r(4)), None, ({0: b}, {0: b}), {"strict": True}),
        ),
        "annotated": Case(Unary(_annotated), (r(3),)),
        "open": Case(Open(), (r(3), r(3)), {"k": r(3)}),
        "no inputs": Case(Nothing(), ()),
        "no results": Case(Unary(lambda m, x: None), (r(3),)),
        "parameter": Case(Unary(_writes_parameter, w=nn.Parameter(torch.zeros(3))), (r(3),)),
        "input": Case(Binary(_writes_input), (r(3), r(3))),
        "region": Case(Unary(lambda m, x: _region(_region(x))), (r(4, 3),)),
        "encoder": Case(encoder, (r(2, 5, 8),), None, ({1: Dim("t", max=100)},)),
    }
