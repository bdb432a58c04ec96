"""What type rules have answered, for questions about concrete types.

A model asks the same again and again: layers are alike. A rule is a function of its arguments (and
of the default dtype); for fixed sizes its answer is kept, and given as the same object. Must not
keep answers about symbols: those may have cost a guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.immutable_collections import immutable_list

from lostwax.fake.tensor import FakeTensor
from lostwax.ops.registry import Operator, aten
from lostwax.types import TensorType, unique

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

Question = tuple[Any, ...]
_PLAIN = frozenset(
    (int, float, bool, type(None), str, torch.dtype, torch.layout, torch.memory_format)
)
_LISTS = frozenset((list, tuple, immutable_list, torch.Size))
MOODY = frozenset((aten._fused_sdp_choice.default, aten.mkldnn_rnn_layer.default))
"""Operators whose rules look at settings of torch that change from call to call."""

ANSWERS: dict[Question, Any] = {}
_MOST = 50_000


def question(
    mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]
) -> Question | None:
    """A key for a call; None: not one whose answer is kept."""
    key: list[Any] = [id(record), torch.get_default_dtype()]
    for value in args:
        cls = value.__class__
        if cls is FakeTensor:
            token = value.fake_type.token
            if token is None or value.fake_mode is not mode or value.constant is not None:
                return None
            key.append(token)
        elif cls in _PLAIN:
            key += (value, cls)  # 1, 1.0 and True are equal
        else:
            members = _members(mode, value) if cls in _LISTS else None
            if members is None:
                return None
            key.append(members)
    for name in kwargs:
        value = kwargs[name]
        if value.__class__ not in _PLAIN:
            return None
        key += (name, value, value.__class__)
    return tuple(key)


def _members(mode: FakeTensorMode, values: Sequence[Any]) -> Question | None:
    for v in values:
        if v.__class__ is not int:
            break
    else:
        return tuple(values)
    return question(mode, _OF_LISTS, values, {})


_OF_LISTS = Operator(aten.cat.default)


def remember(key: Question, answer: Any) -> Any:
    """The answer, made of types that are the one object of their kind."""
    if len(ANSWERS) >= _MOST:
        ANSWERS.clear()
    if answer.__class__ is TensorType:
        answer = ANSWERS[key] = unique(answer)
    elif answer.__class__ is tuple or answer.__class__ is list:
        answer = ANSWERS[key] = type(answer)(
            [unique(a) if a.__class__ is TensorType else a for a in answer]
        )
    return answer


def forget_if_settings_changed() -> None:
    """The rule of 3-d convolution counts threads."""
    global _threads
    threads = torch.get_num_threads()
    if threads != _threads:
        ANSWERS.clear()
        _threads = threads


_threads = torch.get_num_threads()
