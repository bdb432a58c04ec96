"""What is said of an error that the module itself raises on the example, as it would in eager: why,
and what to write instead. Python shows it below the error's own text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tensors = Mapping[str, Any]


def explain_error(error: BaseException, inputs: Tensors, state: Tensors) -> None:
    """Add notes. `inputs` are the tensors of the example, `state` the module's, by name."""
    text = str(error)
    if "device" in text or "CUDA" in text:
        why, instead = _explain_devices(inputs, state)
    elif "dtype" in text or ("type" in text and "but" in text):
        why, instead = _explain_dtypes(inputs, state)
    else:
        why, instead = _explain_call(inputs)
    for note in (f"  why: {why}", f"  instead: {instead}"):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def _explain_devices(inputs: Tensors, state: Tensors) -> tuple[str, str]:
    (given, x), (held, weight) = _first(inputs), _first(state)
    if weight is not None and x is not None and weight.device != x.device:
        why = f"{given} is on {x.device}, and the module's {held} is on {weight.device}"
        if weight.device.type == "meta":
            return (
                f"{why}, where tensors have no data: it was made under torch.device('meta')",
                f"give the module weights, module.to_empty(device='{x.device}') and "
                f"load_state_dict(...); or pass {given}.to('meta')",
            )
        return why, f"pass {given}.to('{weight.device}'), or move the module, .to('{x.device}')"
    where = "the inputs" if x is None else f"{given}, which is on {x.device}"
    return (
        f"a tensor is made or moved on this line that is on another device than {where}",
        f"make it where the inputs are, device={given}.device; or keep it in a buffer, "
        "register_buffer(...), which moves with the module",
    )


def _explain_dtypes(inputs: Tensors, state: Tensors) -> tuple[str, str]:
    weights = {name: each for name, each in state.items() if each.is_floating_point()}
    held, weight = _first(weights)
    others = [(n, t) for n, t in inputs.items() if weight is not None and t.dtype != weight.dtype]
    others.sort(key=lambda item: not item[1].is_floating_point())
    if weight is None or not others:
        return (
            "an operator on this line is given tensors of several dtypes, and converts none",
            "convert one of them, y.to(x.dtype)",
        )
    given, x = others[0]
    also = f", or convert the module, .to({x.dtype})" if x.is_floating_point() else ""
    return (
        f"{given} is of {x.dtype}, and the module's {held} is of {weight.dtype}",
        f"pass {given}.to({weight.dtype}){also}",
    )


def _explain_call(inputs: Tensors) -> tuple[str, str]:
    shown = ", ".join(f"{name} of size {tuple(each.shape)}" for name, each in inputs.items())
    called = f"the example, {shown}" if shown else "the example"
    return (
        f"the module itself raises this for {called}, with lostwax or without",
        "call the module with the example, module(*args), and mend this line, or the example",
    )


def _first(tensors: Tensors) -> tuple[str, Any]:
    return next(iter(tensors.items()), ("x", None))
