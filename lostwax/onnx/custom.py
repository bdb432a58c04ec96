"""Custom operators as operators of a domain of the user's, which a runtime is given separately.

Must not know of programs.
"""

from __future__ import annotations

from typing import Any

import torch

from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter
from lostwax.sym import Expr


def leave_to_runtime(name: str, *, domain: str, op_type: str = "") -> None:
    """Write calls of a custom operator as nodes of a domain: tensors become inputs, all else
    attributes by their names in the schema. The runtime must know the operator.

    `name` is "mylib::scale" or "mylib::scale.Tensor"; without `op_type` the node has its name.
    """
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    schema = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")._schema
    names = [each.name for each in schema.arguments]

    def write(on: OnnxWriter, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        inputs, attributes = [], {}
        for key, value in given.items():
            if isinstance(value, OnnxTensor):
                inputs.append(value)
            elif isinstance(value, list) and value and isinstance(value[0], OnnxTensor):
                inputs += value
            elif isinstance(value, Expr):
                raise NotWritten(f"{key!r} is a size that varies", "pass it as a tensor")
            else:
                attributes[key] = value
        kinds = on.out if isinstance(on.out, list) else [on.out]
        made = on.several(
            op_type or packet,
            *inputs,
            domain=domain,
            outputs=len(kinds),
            dtype=[each.dtype for each in kinds],
            **attributes,
        )
        return made if isinstance(on.out, list) else made[0]

    translation(name)(write)
