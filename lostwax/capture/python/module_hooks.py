"""What a hook of a module leaves as it is where it returns None: `register_forward_hook`,
`register_forward_pre_hook`.

Must not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from torch.nn.modules import module as _of_modules

_CALLING = [
    each
    for each in _of_modules.Module._call_impl.__code__.co_consts
    if isinstance(each, CodeType) and each.co_name == "inner"
]
"""The code of torch's that calls hooks."""
_CALL = "__call__"


class KeptByHook:
    """What the caller of a hook goes on with if that returns None."""

    def __init__(self, value: Any, is_arguments: bool) -> None:
        self.value = value
        self._is_arguments = is_arguments

    def take(self, returned: Any) -> Any:
        """What the caller goes on with."""
        if returned is None:
            return self.value
        is_one = self._is_arguments and not isinstance(returned, tuple)
        return (returned,) if is_one else returned


def find_kept(frame: FrameType) -> KeptByHook | None:
    """What is kept, if the function that runs is a hook which a module's call runs."""
    caller = frame.f_back
    if caller is None or not any(caller.f_code is each for each in _CALLING):
        return None
    names: Mapping[str, Any] = caller.f_locals
    code = read_code(names.get("hook"))
    if code is None or identity_of(code) != identity_of(frame.f_code):  # it is `forward`
        return None
    module, number = names["self"], names.get("hook_id")
    if number in module._forward_pre_hooks or number in _of_modules._global_forward_pre_hooks:
        if number in module._forward_pre_hooks_with_kwargs:
            return KeptByHook((names["args"], names["kwargs"]), is_arguments=False)
        return KeptByHook(names["args"], is_arguments=True)
    if number in module._forward_hooks or number in _of_modules._global_forward_hooks:
        return KeptByHook(names["result"], is_arguments=False)
    return None


def read_code(function: Any) -> CodeType | None:
    """The code that runs when something is called."""
    while isinstance(function, partial):
        function = function.func
    if not isinstance(function, (FunctionType, MethodType)):
        function = getattr(type(function), _CALL, None)
    if isinstance(function, MethodType):
        function = function.__func__
    return function.__code__ if isinstance(function, FunctionType) else None


def identity_of(code: CodeType) -> tuple[str, int, str]:
    """Which function it is, whatever was put into it."""
    return code.co_filename, code.co_firstlineno, code.co_name
