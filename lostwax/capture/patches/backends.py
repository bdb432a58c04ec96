"""Settings of torch that kernels read when they run (TF32, cuDNN, determinism, the default device):
a module that changes one while it is captured would change it for the capture alone, and for every
thread. So that is refused; what sets it to what it is, is nothing.

Which kernels attention may use is not among them: a program has no such kernels, and computes the
same. Nor is a block of `with torch.backends.cudnn.flags(...)`, which puts back what it sets: it
acts as in eager while it is captured, and the program's kernels read what is set around its call.
Must not set anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import torch

from lostwax.capture.patches.swap import CodeSwap, NameSwap, stand_for
from lostwax.capture.threads import is_capturing
from lostwax.errors import SettingsError

_C: Any = torch._C
_ABSENT = object()
_flush_denormal: Any = torch.set_flush_denormal
_NAMES = {
    "_set_cublas_allow_tf32": "torch.backends.cuda.matmul.allow_tf32",
    "_set_cublas_allow_bf16_reduced_precision_reduction": (
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction"
    ),
    "_set_cublas_allow_fp16_reduced_precision_reduction": (
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction"
    ),
    "_set_cublas_allow_fp16_accumulation": "torch.backends.cuda.matmul.allow_fp16_accumulation",
    "_set_cpu_allow_fp16_reduced_precision_reduction": "torch.backends.cpu",
    "_set_cudnn_enabled": "torch.backends.cudnn.enabled",
    "_set_cudnn_benchmark": "torch.backends.cudnn.benchmark",
    "_set_cudnn_deterministic": "torch.backends.cudnn.deterministic",
    "_set_cudnn_allow_tf32": "torch.backends.cudnn.allow_tf32",
    "_set_mkldnn_enabled": "torch.backends.mkldnn.enabled",
    "_set_mkldnn_deterministic": "torch.backends.mkldnn.deterministic",
    "_set_onednn_allow_tf32": "torch.backends.mkldnn.allow_tf32",
    "_set_nnpack_enabled": "torch.backends.nnpack",
    "_set_qengine": "torch.backends.quantized.engine",
    "_set_blas_preferred_backend": "torch.backends.cuda.preferred_blas_library",
    "_set_linalg_preferred_backend": "torch.backends.cuda.preferred_linalg_library",
    "_set_math_sdp_allow_fp16_bf16_reduction": (
        "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp"
    ),
    "_set_float32_matmul_precision": "torch.set_float32_matmul_precision",
    "_set_fp32_precision_setter": "torch.backends.fp32_precision",
    "_set_deterministic_algorithms": "torch.use_deterministic_algorithms",
    "_set_deterministic_fill_uninitialized_memory": (
        "torch.utils.deterministic.fill_uninitialized_memory"
    ),
    "_set_default_tensor_type": "torch.set_default_tensor_type",
}
"""What torch's Python sets, by the function of C++ that it calls."""
_GETTERS: dict[str, Callable[..., Any]] = {
    "_set_deterministic_algorithms": lambda mode: (_C._get_deterministic_algorithms(),),
    "_set_fp32_precision_setter": lambda backend, op, value: (
        backend,
        op,
        _C._get_fp32_precision_getter(backend, op),
    ),
    "_set_default_tensor_type": lambda kind: _ABSENT,
}
"""How their arguments would be if they changed nothing, where that is not what `_get_` gives."""


_blocks: Any = (torch.backends.cudnn.flags, torch.backends.mkldnn.flags)
_MANAGERS = frozenset(each.__wrapped__.__code__ for each in _blocks)
"""The code of those that set something and put it back."""


def _make_checked(name: str) -> NameSwap | None:
    function = getattr(_C, name, None)
    if function is None:
        return None
    getter = _GETTERS.get(name) or _make_getter(name.replace("_set_", "_get_", 1))

    def call(*args: Any, **kwargs: Any) -> Any:
        changes = kwargs.get("warn_only") or getter(*args) != args
        if is_capturing() and changes and not _is_put_back(sys._getframe(1)):
            _refuse(_NAMES[name], args[-1] if args else kwargs)
        return function(*args, **kwargs)

    return NameSwap(_C, name, stand_for(function, call))


def _is_put_back(frame: FrameType | None) -> bool:
    """Is it a manager that sets it, directly or by `set_flags`?"""
    above = None if frame is None else frame.f_back
    return any(each is not None and each.f_code in _MANAGERS for each in (frame, above))


def _make_getter(name: str) -> Callable[..., Any]:
    def current(*args: Any) -> Any:
        return (getattr(_C, name)(),)

    return current


def _check_assignment(plain: Any, prop: Any, owner: Any, value: Any) -> None:
    """`torch.backends.cudnn.benchmark = True` and its like."""
    if prop.getter() != value and prop.setter.__module__ != "torch.backends.opt_einsum":
        name = next((n for n, p in vars(type(owner)).items() if p is prop), "")
        _refuse(f"{owner.__name__}.{name}", value)
    plain(prop, owner, value)


def _check_device(plain: Any, device: Any) -> None:
    """`torch.set_default_device`."""
    if device is None or torch.device(device) != torch.get_default_device():
        _refuse("torch.set_default_device", device, "with torch.device(...): around what makes "
                "tensors, or device= where they are made")  # fmt: skip
    plain(device)


def _check_denormal(mode: bool) -> Any:
    if is_capturing():
        _refuse("torch.set_flush_denormal", mode)
    return _flush_denormal(mode)


def _refuse(what: str, value: Any, instead: str = "") -> NoReturn:
    raise SettingsError.here(
        f"{what} is set to {value!r} in a program to be captured",
        why="it is read when operators run, and a program has nothing to set it with",
        instead=f"{instead or 'set it before the export and before calls of the program'}",
    )


_Property: Any = torch.backends.ContextProp
CODE_SWAPS = [
    CodeSwap(_Property.__set__, _check_assignment),
    CodeSwap(torch.set_default_device, _check_device),
]
NAME_SWAPS = [each for name in _NAMES if (each := _make_checked(name)) is not None]
NAME_SWAPS.append(
    NameSwap(torch, "set_flush_denormal", stand_for(_flush_denormal, _check_denormal))
)
