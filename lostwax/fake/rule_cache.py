"""A cache of the answers of type rules.

A model asks the same questions again and again, since its layers are alike. A rule is a function of
its arguments (and of the default dtype), so its answer is kept, and returned as the same object:
for fixed sizes for ever, for symbolic ones as long as their mode lives. Another mode with the same
facts gets the answer, too (`shared_rule_cache.py`). Must not keep an answer that cost a guard,
which may yet be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import get_default_dtype

from lostwax.cache import Cache
from lostwax.classes import LISTS, PLAIN
from lostwax.fake import shared_rule_cache
from lostwax.fake.shared_rule_cache import CachingMode
from lostwax.fake.symbolic.node import IntNode, unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.registry import Operator, aten
from lostwax.sym import Expr, ShapeEnv, world
from lostwax.types import TensorType, unique

Question = tuple[Any, ...]
_SymInt: Any = torch.SymInt
INTEGERS = frozenset([(int,) * n for n in range(8)])
"""The classes of the members of short lists of ints."""
SIZES = frozenset((int, _SymInt, Expr))

_CACHE = Cache[Question, Any](__name__, "answers", 50_000)
_ANSWERS = _CACHE.table


def question(
    mode: CachingMode, record: Operator, args: Any, kwargs: dict[str, Any]
) -> Question | None:
    """A key for a call, or None if its answer is not kept."""
    key: list[Any] = [id(record), get_default_dtype()]
    for value in args:
        cls = value.__class__
        if cls is FakeTensor:
            t = value.fake_type
            token = t.token or t.mark or _find_mark(mode, t)
            if token is None or value.fake_mode is not mode or value.constant is not None:
                return None
            key.append(token)
        elif cls in PLAIN:
            key += (value, cls)  # 1, 1.0 and True are equal
        elif cls is _SymInt or cls is Expr:
            key.append(shared_rule_cache.shared_key(unwrap(value)))
        else:
            found = list_key(mode, value) if cls in LISTS else None
            if found is None:
                return None
            key.append(found)
    for name in kwargs:
        value = kwargs[name]
        if value.__class__ not in PLAIN:
            return None
        key += (name, value, value.__class__)
    return tuple(key)


def _find_mark(mode: CachingMode, t: TensorType) -> object | None:
    """The mark that equal symbolic types of one mode have in common."""
    if mode.shape_env is not None and t.is_symbolic:
        _canonical_type(mode, t)
    return t.mark


def _canonical_type(mode: CachingMode, t: Any) -> Any:
    """The one object for all types equal to this one; symbolic types have one for each mode."""
    if t.__class__ is not TensorType or t.token is not None:
        return t
    if not t.is_symbolic:
        return unique(t)
    found = mode.answers.types.setdefault(t.key(), t)
    if found.mark is None:
        found.mark = shared_rule_cache.share_type(found)
    t.mark = found.mark
    return found


def list_key(mode: CachingMode, values: Sequence[Any]) -> Question | None:
    """What stands for a list in a key; None if its answer is not kept."""
    plain = tuple(values)
    if tuple(map(type, plain)) in INTEGERS:
        return plain
    found = sizes(values)
    return (
        question(mode, _OF_LISTS, values, {})
        if found is None
        else shared_rule_cache.shared_keys(found)
    )


def sizes(values: Sequence[Any]) -> tuple[int | Expr, ...] | None:
    """A list of integers, of which some may be symbolic; None if it is another list."""
    if not SIZES.issuperset(map(type, values)):
        return None
    return tuple([v if v.__class__ is int else _size(v) for v in values])


def _size(value: Any) -> Any:
    """`unwrap`, with the most common case inlined."""
    if value.__class__ is Expr:
        return value
    node = value.node
    e = node.value if node.__class__ is IntNode else value
    if e.__class__ is not Expr:
        return e
    now = e.current if e.current_at == e.env.facts.version else e.env.current_form(e)
    return now if now.const is None else now.const


_OF_LISTS = Operator(aten.cat.default)


def find_answer(mode: CachingMode, key: Question | None) -> Any:
    """The answer to a question that was asked before."""
    if key is None:
        return None
    answer = _ANSWERS.get(key)
    return mode.answers[key] if answer is None else answer


def ask_rule(mode: CachingMode, key: Question | None, rule: Any, types: Any, named: Any) -> Any:
    """Ask the rule, and keep its answer if that is allowed."""
    env = mode.shape_env
    if key is None or env is None or not env.symbols:
        answer = _make_unique(rule(*types, **named))
        return answer if key is None else _remember_fixed(key, answer)
    before = guard_state(env)
    answer = rule(*types, **named)
    cls = answer.__class__
    if cls is TensorType:
        answer = _canonical_type(mode, answer)
    elif cls is tuple or cls is list:
        answer = cls([_canonical_type(mode, a) for a in answer])
    else:
        return answer
    if guard_state(env) == before:
        remember_answer(mode, key, answer)
    return answer


def guard_state(env: ShapeEnv) -> tuple[Any, ...]:
    """A value that changes with every guard: an answer that cost one is not remembered."""
    return env.facts.version, env.facts.world, len(env.guards)


def remember_answer(mode: CachingMode, key: Question, answer: Any) -> None:
    """Keep what was found out about a call without a guard, as long as its types live."""
    env = mode.shape_env
    if env is None or not env.symbols:
        _remember_fixed(key, answer)
        return
    if env.facts.are_tried:
        return
    mode.answers[key] = answer
    if env.facts.world is not None:
        shared_rule_cache.keep_answer(env.facts.world, key, answer)


def ask_truth(mode: CachingMode, key: Question | None, answer: Callable[[], bool]) -> bool:
    """Ask for a truth about types, and keep it if that is allowed."""
    found = find_answer(mode, key)
    if found is None:
        env = mode.shape_env
        before = None if env is None else guard_state(env)
        found = (answer(),)
        if key is not None and (env is None or guard_state(env) == before):
            remember_answer(mode, key, found)
    return found[0]  # type: ignore[no-any-return]


def _make_unique(answer: Any) -> Any:
    """The answer, with each type replaced by the one object for equal types: questions about these
    can be remembered."""
    if answer.__class__ is TensorType:
        return unique(answer)
    if answer.__class__ is tuple or answer.__class__ is list:
        return type(answer)([unique(a) if a.__class__ is TensorType else a for a in answer])
    return answer


def _remember_fixed(key: Question, answer: Any) -> Any:
    if isinstance(answer, (TensorType, tuple, list)):
        _CACHE.keep(key, answer)
    return answer


def clear_if_settings_changed() -> None:
    """Forget all answers if the number of threads changed, which the rule of conv3d reads."""
    global _threads
    threads = torch.get_num_threads()
    if threads != _threads:
        _CACHE.clear()
        world.forget()
        _threads = threads


_threads = torch.get_num_threads()
