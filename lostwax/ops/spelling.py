"""How torch spells dtypes in its error messages, so that ours read the same.

Text only: no checks of sizes, no knowledge of operators.
"""

from __future__ import annotations

from typing import NoReturn

import torch

_SCALAR_TYPE = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.bool: "Bool",
    torch.bfloat16: "BFloat16",
}

_CPP_TYPE = {
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short int",
    torch.int32: "int",
    torch.int64: "long int",
    torch.float16: "c10::Half",
    torch.float32: "float",
    torch.float64: "double",
    torch.complex32: "c10::complex<c10::Half>",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
    torch.bool: "bool",
    torch.bfloat16: "c10::BFloat16",
}


def scalar_type(dtype: torch.dtype) -> str:
    """`Float` for float32, as in "expected scalar type Float but found Double"."""
    return _SCALAR_TYPE.get(dtype) or str(dtype).removeprefix("torch.").capitalize()


def cpp_type(dtype: torch.dtype) -> str:
    """`float` for float32, as in "expected m1 and m2 to have the same dtype, but got: float != "
    "double"."""
    return _CPP_TYPE.get(dtype) or scalar_type(dtype)


def raise_not_implemented(kernel: str, dtype: torch.dtype) -> NoReturn:
    raise NotImplementedError(f"\"{kernel}\" not implemented for '{scalar_type(dtype)}'")


def require_floating(dtype: torch.dtype, kernel: str) -> None:
    """Check a dtype for a kernel that exists for real floating dtypes only."""
    if not dtype.is_floating_point:
        raise_not_implemented(kernel, dtype)


def require_fractional(dtype: torch.dtype, kernel: str) -> None:
    """Check a dtype for a kernel that exists for floating and complex dtypes only."""
    if not (dtype.is_floating_point or dtype.is_complex):
        raise_not_implemented(kernel, dtype)


def require_same_dtype(expected: torch.dtype, *others: torch.dtype) -> None:
    for dtype in others:
        if dtype is not expected:
            raise RuntimeError(
                f"expected scalar type {scalar_type(expected)} but found {scalar_type(dtype)}"
            )


__all__ = [
    "cpp_type",
    "raise_not_implemented",
    "require_floating",
    "require_fractional",
    "require_same_dtype",
    "scalar_type",
]
