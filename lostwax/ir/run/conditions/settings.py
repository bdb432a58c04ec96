"""Settings of torch around a call: autocast, the default dtype, the default device, and process
groups (`groups.py`). The original reads them in each call; in a program they are fixed by its
capture.

Autocast has become casts in the graph, so a program runs without it; a call is allowed if autocast
is off, or set as at capture. A call is refused if the other settings differ from the capture and
would matter. Kernels read all other settings (TF32, cuDNN, determinism, attention) in a program's
call as in the original's. Must not know how a capture runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from lostwax.classes import list_nested
from lostwax.errors import SettingsError
from lostwax.fake import autocast
from lostwax.fake.devices import concrete_device
from lostwax.ir.data import Program, Settings
from lostwax.ir.graph.lookup import all_nodes

_C: Any = torch._C


def settings_now() -> Settings:
    on = tuple((d, _name(torch.get_autocast_dtype(d))) for d in autocast.find_enabled())
    return Settings(on, _name(torch.get_default_dtype()), str(torch.get_default_device()))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def hold_to_settings(program: Program) -> Callable[..., Any]:
    """Make a function that calls the program's `forward` if torch is set as at capture, and refuses
    the call otherwise."""
    captured = program.settings
    dtype = None if captured is None else getattr(torch, captured.dtype)
    is_common = captured is None or captured.device == "cpu"

    @cache
    def devices() -> frozenset[str]:
        return frozenset(_castable_devices(program))

    @cache
    def makes_numbers() -> bool:
        return dtype is not None and _makes_numbers(program, dtype)

    @cache
    def makes_tensors() -> bool:
        return captured is not None and _makes_tensors(program, captured.device)

    def run(forward: Callable[..., Any], *values: Any) -> Any:
        if captured is not None:
            if captured.groups:
                from lostwax.ir.run.conditions.groups import check_groups

                check_groups(captured.groups)
            if torch.get_default_dtype() is not dtype and makes_numbers():
                _refuse("the default dtype", _name(torch.get_default_dtype()), captured.dtype,
                        f"torch.set_default_dtype(torch.{captured.dtype})")  # fmt: skip
            if (not is_common or _C._len_torch_function_stack()) and makes_tensors():
                found = str(torch.get_default_device())
                if found != captured.device:
                    _refuse("the default device", found, captured.device,
                            f"with torch.device({captured.device!r})")  # fmt: skip
        if not _C._is_any_autocast_enabled():
            return forward(*values)
        on = settings_now().autocast
        if captured is None or on != captured.autocast:
            _check_autocast([each for each in on if each[0] in devices()], captured)
        with autocast.without_autocast():
            return forward(*values)

    return run


def _check_autocast(on: list[tuple[str, str]], captured: Settings | None) -> None:
    was = dict(captured.autocast) if captured is not None else {}
    for device, dtype in on:
        if was.get(device) != dtype:
            before = f"was torch.{was[device]}" if device in was else "was off"
            raise SettingsError.here(
                f"torch.autocast({device!r}, torch.{dtype}) is on around the call of a program, "
                f"and {before} at capture",
                why="which operators autocast changes is decided while capturing; the program has "
                "other operators by now",
                instead="capture it again inside of that autocast; or switch that off around the "
                f"call, torch.autocast({device!r}, enabled=False)",
            )


def _refuse(what: str, found: str, captured: str, instead: str) -> None:
    raise SettingsError.here(
        f"{what} is {found} around the call of a program, and was {captured} at capture",
        why="the original would make other tensors; those of the program are as at capture",
        instead=f"capture it again; or around the call, {instead}",
    )


def _castable_devices(program: Program) -> Iterator[str]:
    """The types of devices on which a program computes values that autocast may cast."""
    for node in all_nodes(program.graph_module):
        for value in list_nested([node.meta.get("val")], torch.Tensor):
            if value.dtype in autocast.CASTABLE:
                yield value.device.type


def _makes_tensors(program: Program, device: str) -> bool:
    """Does the program create tensors on this device? Its code may have meant the default device.
    So may a constant, which is what a capture makes of `torch.tensor(1.0)`."""
    nodes = all_nodes(program.graph_module)
    made = [n for n in nodes if n.op == "call_function" and not _reads_tensor(n)]
    given = [n.meta.get("val") for n in made] + list(program.constants.values())
    meant = concrete_device(torch.device(device))
    return any(t.device == meant for t in list_nested(given, torch.Tensor))


def _makes_numbers(program: Program, dtype: torch.dtype) -> bool:
    """Does the program create tensors of the default dtype, or compute them from integers?"""
    made = [n.meta.get("val") for n in all_nodes(program.graph_module) if _is_of_integers(n)]
    given = [*made, *program.constants.values()]
    kinds = (dtype, dtype.to_complex())
    return any(t.dtype in kinds for t in list_nested(given, torch.Tensor))


def _is_of_integers(node: Node) -> bool:
    read = list_nested([n.meta.get("val") for n in node.all_input_nodes], torch.Tensor)
    return node.op == "call_function" and not any(t.is_floating_point() for t in read)


def _reads_tensor(node: Node) -> bool:
    return any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes)
