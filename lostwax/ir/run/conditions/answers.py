"""What tensors and torch answer when Python asks them: `x.requires_grad`, `x.stride()`,
`torch.is_grad_enabled()`. A program keeps a question by its text, and the answer.

Must not know who asks: a capture notes it, `questions.py` asks again when a program is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from lostwax.fake.asked_tensor import ATTRIBUTES, read_attributes, select_attributes
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import Answer, Program, Ref

LAYOUT_ASKED = "as at capture: the program relies on them"
"""The end of an assertion that an input is laid out as it was."""


def _has_no_gradient(tensor: torch.Tensor) -> bool:
    """(If the tensor is no leaf, reading `grad` makes torch warn.)"""
    return tensor.grad is None if tensor.is_leaf or tensor.retains_grad else True


def _has_no_grad_fn(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is None


def _class_name(tensor: torch.Tensor) -> str:
    cls = type(tensor)
    if cls is FakeTensor:
        kinds = {"Parameter": torch.nn.Parameter, "Buffer": torch.nn.Buffer}
        return next((name for name, cls in kinds.items() if isinstance(tensor, cls)), "Tensor")
    return cls.__qualname__


def _requires_grad(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad


def _strides(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.stride()))


def _visible_strides(tensor: torch.Tensor) -> str:
    sizes, strides = tensor.shape, tensor.stride()
    seen = [st for s, st in zip(sizes, strides, strict=True) if s != 1] if tensor.numel() else []
    return str(tuple(seen))


def _list_attributes(tensor: torch.Tensor) -> str:
    found = select_attributes(read_attributes(tensor))
    return ", ".join(f"{name}: {_describe(value)}" for name, value in found) or "none"


def _describe(value: Any) -> str:
    is_plain = type(value) in PLAIN
    return f"the {type(value).__name__} {value!r}" if is_plain else f"a {type(value).__name__}"


ONE = "one tensor"
"""Whether two tensors are one, `a is b`."""
VALUE = "value"
"""The elements of an input that was declared to be a constant: `values.py` reads them."""
GRADIENTS = "has a gradient"
"""Whether tensors require gradients: what the capture itself asks if what it records depends on
it."""
STRIDES, OFFSET = "stride()", "storage_offset()"
VISIBLE_STRIDES = "stride() of dimensions that are not of size 1"
LAYOUTS = (STRIDES, VISIBLE_STRIDES, OFFSET)
QUESTIONS: dict[str, Callable[[Any], Answer]] = {
    "requires_grad": _requires_grad,
    GRADIENTS: _requires_grad,
    "is_leaf": lambda tensor: tensor.is_leaf,
    "grad is None": _has_no_gradient,
    "grad_fn is None": _has_no_grad_fn,
    "is_inference()": lambda tensor: tensor.is_inference(),
    "is_conj()": lambda tensor: tensor.is_conj(),
    "is_neg()": lambda tensor: tensor.is_neg(),
    "_is_view()": lambda tensor: tensor._is_view(),
    "_base is None": lambda tensor: tensor._base is None,
    "untyped_storage().nbytes()": lambda tensor: tensor.untyped_storage().nbytes(),
    "class": _class_name,
    STRIDES: _strides,
    VISIBLE_STRIDES: _visible_strides,
    OFFSET: lambda tensor: tensor.storage_offset(),
    ATTRIBUTES: _list_attributes,
}
"""The questions, and how a tensor answers each. All others are for attributes that somebody has set
on a tensor."""
ATTRIBUTE = "attribute "
"""The prefix of a question for such an attribute; its name follows."""


def answer(what: str, tensor: Any) -> Answer:
    """What a tensor answers, in a form that a program can keep."""
    if not what.startswith(ATTRIBUTE):
        return QUESTIONS[what](tensor)
    found = getattr(tensor, what.removeprefix(ATTRIBUTE), _NOTHING)
    return ABSENT if found is _NOTHING else _describe(found)


ABSENT = "not there"
"""The answer about an attribute that nobody has set."""
_NOTHING = object()
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
"""The classes of attributes whose values are kept."""


def same_pairs(program: Program) -> set[tuple[Ref, Ref]]:
    """The pairs of tensors that must be one tensor in each call."""
    groups = [a.of for a in program.assumptions or () if a.what == ONE and a.answer]
    return {(a, b) for group in groups for i, a in enumerate(group) for b in group[i + 1 :]}


MODES = (
    "is_grad_enabled", "is_inference_mode_enabled", "get_default_dtype", "get_default_device",
    "is_autocast_enabled", "is_autocast_cache_enabled", "get_autocast_dtype",
    "are_deterministic_algorithms_enabled", "is_deterministic_algorithms_warn_only_enabled",
    "get_deterministic_debug_mode", "get_float32_matmul_precision", "is_anomaly_enabled",
    "is_anomaly_check_nan_enabled", "get_num_threads", "get_num_interop_threads",
)  # fmt: skip
"""The functions of torch that return its modes."""
_FLAGS = {
    "cudnn": ("enabled", "benchmark", "deterministic", "allow_tf32", "fp32_precision"),
    "mkldnn": ("enabled", "deterministic", "allow_tf32", "fp32_precision"),
    "cuda.matmul": (
        "allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation",
        "allow_fp16_reduced_precision_reduction_split_k", "fp32_precision",
        "allow_bf16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction_split_k",
    ),
    "cuda": (
        "flash_sdp_enabled()", "mem_efficient_sdp_enabled()", "math_sdp_enabled()",
        "cudnn_sdp_enabled()", "fp16_bf16_reduction_math_sdp_allowed()",
    ),
    "miopen": ("immediate",),
    "quantized": ("engine",),
}  # fmt: skip
FLAGS = frozenset(
    (
        *(f"torch.backends.{where}.{name}" for where, names in _FLAGS.items() for name in names),
        "torch.backends.fp32_precision",
        "torch.utils.deterministic.fill_uninitialized_memory",
    )
)
"""Settings of torch that are read as attributes."""


def is_mode(what: str) -> bool:
    return what in FLAGS or _match_mode(what) is not None


def _match_mode(what: str) -> re.Match[str] | None:
    return re.fullmatch(rf"torch\.({'|'.join(MODES)})\((?:'(\w+)')?\)", what)


def mode_answer(what: str) -> Answer:
    """What torch answers now, in a form that a program can keep."""
    found = _match_mode(what)
    if found is None:
        try:
            value = attrgetter(what.removeprefix("torch.").removesuffix("()"))(torch)
        except AttributeError:  # in this version
            return ABSENT
        value = value() if what.endswith("()") else value
    else:
        function, device = getattr(torch, found[1]), found[2]
        value = function() if device is None else function(device)
    return value if type(value) in (bool, int, str) else str(value)
