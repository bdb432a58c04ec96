"""The kernels that the runtime has, and the form of their arguments.

The names stand in `kernels.txt`, made by `python -m tests.pte.list_kernels` from an installed
runtime. Must not know of programs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from lostwax.cache import cached

FILE = Path(__file__).parent / "kernels.txt"


@cached()
def kernel_names() -> frozenset[str]:
    """The kernels by name, `aten::add.out`."""
    lines = FILE.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


class Parameter(NamedTuple):
    """An argument of a kernel. `kind` is "tensor", "int", "float", "bool", "scalar", "str", or a
    list of one of these ("[int]", "[tensor]", "[tensor?]")."""

    name: str
    kind: str
    default: Any
    is_out: bool
    is_optional: bool = False


_KINDS = {
    "Tensor": "tensor",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "SymFloat": "float",
    "bool": "bool",
    "SymBool": "bool",
    "number": "scalar",
    "str": "str",
    "List[int]": "[int]",
    "List[SymInt]": "[int]",
    "List[float]": "[float]",
    "List[bool]": "[bool]",
    "List[Tensor]": "[tensor]",
    "List[Optional[Tensor]]": "[tensor?]",
}


@cached(4_000)
def kernel_parameters(name: str) -> tuple[Parameter, ...]:
    """The parameters of a kernel, outs included, by its operator's schema."""
    if name in _OWN:
        return _OWN[name]
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return tuple(
        Parameter(
            a.name,
            _kind_of(str(a.type)),
            a.default_value if a.has_default_value() else None,
            a.is_out,
            str(a.type).startswith("Optional["),
        )
        for a in operator._schema.arguments
    )


def _kind_of(text: str) -> str:
    inner = text.removeprefix("Optional[")
    return _KINDS[inner[:-1] if inner != text else text]


def _parameters(text: str, optional: tuple[str, ...] = ("dim_order",)) -> tuple[Parameter, ...]:
    pairs = (part.split(":") for part in text.split())
    return tuple(
        Parameter(name, kind, False if kind == "bool" else None, name == "out", name in optional)
        for name, kind in pairs
    )


EMBEDDINGS = tuple(f"quantized_decomposed::embedding_{n}.out" for n in ("byte", "4bit", "2bit"))
"""Kernels for tables of integers, of ExecuTorch's library for quantized programs."""

_OWN = {
    "dim_order_ops::_to_dim_order_copy.out": _parameters(
        "self:tensor non_blocking:bool dim_order:[int] out:tensor"
    ),
    "dim_order_ops::_clone_dim_order.out": _parameters(
        "self:tensor non_blocking:bool dim_order:[int] out:tensor"
    ),
    "dim_order_ops::_empty_dim_order.out": _parameters("size:[int] dim_order:[int] out:tensor"),
} | {
    name: _parameters(
        "weight:tensor weight_scales:tensor weight_zero_points:tensor weight_quant_min:int "
        "weight_quant_max:int indices:tensor out:tensor",
        optional=("weight_zero_points",),
    )
    for name in EMBEDDINGS
}
"""Kernels that are of no operator of torch's."""

_IN_PLACE = """
    abs.out add.out add.Scalar_out bitwise_not.out ceil.out clamp.out cos.out div.out
    div.Scalar_out elu.out erf.out exp.out expm1.out floor.out gelu.out hardtanh.out
    leaky_relu.out log.out log1p.out log2.out log10.out logical_not.out maximum.out minimum.out
    mul.out mul.Scalar_out neg.out pow.Tensor_Scalar_out pow.Tensor_Tensor_out reciprocal.out
    relu.out round.out rsqrt.out sigmoid.out sign.out sin.out sqrt.out sub.out sub.Scalar_out
    tanh.out trunc.out where.self_out
"""
ELEMENTWISE = frozenset(f"aten::{name}" for name in _IN_PLACE.split())
"""Kernels that read an element of each operand and write it to the same place: their result may
take the memory of an operand of the same size and dtype."""

_UNSIGNED = frozenset((torch.uint16, torch.uint32, torch.uint64))
REFUSED: dict[str, frozenset[torch.dtype]] = {
    "aten::_log_softmax.out": frozenset((torch.float64,)),
    "dim_order_ops::_clone_dim_order.out": _UNSIGNED,
    "dim_order_ops::_to_dim_order_copy.out": _UNSIGNED,
}
"""The dtypes that a kernel refuses when it runs, although the dialect allows them."""

HALVES = frozenset((torch.float16, torch.bfloat16))
LONG_INDEX = frozenset(
    f"aten::{name}"
    for name in ("gather.out", "scatter.src_out", "scatter.value_out", "scatter_add.out")
)
"""Kernels whose `index` has 64 bits, although the operator takes 32, too."""

BROADCASTING = frozenset(f"aten::{name}.out" for name in ("add", "div", "mul", "sub"))
"""Kernels that are fast if an operand is broadcast along one dimension, and slow along more."""
