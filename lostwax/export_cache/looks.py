"""What a program depends on, looked at: in full, or, if that was done before and all is in its
place since, no further.

Must not decide whether a program is right.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from lostwax.capture.python.functions_run import FunctionKeys
from lostwax.capture.surroundings.tensor_places import data_of
from lostwax.capture.surroundings.world import Surroundings
from lostwax.export_cache.facts import (
    Facts,
    digest_facts,
    is_compared,
    read_facts,
    read_type,
    read_variables,
)


class Dependencies(NamedTuple):
    """What says where to look for all that a program depends on."""

    ran: FunctionKeys
    """The functions that have run."""
    variables: frozenset[str]
    """Those of the environment that they have read."""
    unread: frozenset[str]
    """The paths of numbers that they have not read (`unread.py`)."""

    def to_json(self) -> bytes:
        parts = sorted(self.ran), sorted(self.variables), sorted(self.unread)
        return json.dumps(parts).encode()


def read_dependencies(given: bytes) -> Dependencies:
    ran, variables, unread = json.loads(given)
    keys = frozenset((str(file), int(line), str(name)) for file, line, name in ran)
    return Dependencies(keys, frozenset(map(str, variables)), frozenset(map(str, unread)))


class KnownLook(NamedTuple):
    """What was found."""

    subject: Any
    depends: Dependencies
    world: Surroundings
    facts: Facts
    digest: str
    """Equal for equal facts."""
    variables: Facts
    tensors: list[Any]
    """What of tensors is a fact and nothing that a world compares."""

    def is_right(self) -> bool:
        """Is all as it was?"""
        return (
            self.variables == read_variables(self.depends.variables)
            and self.tensors == _read_tensors(self.world)
            and self.world.is_unchanged()
        )


KnownLooks = list[KnownLook]
"""The latest ones. They hold the modules, and all to which these lead."""
_MOST = 16


def look_again(subject: Any, depends: Dependencies, looks: KnownLooks) -> KnownLook:
    """What a program of `subject` depends on, as it is now. Raises `NoTextError`."""
    for each in looks:
        if each.subject is subject and each.depends == depends:
            if each.is_right():
                return each
            looks[:] = [other for other in looks if other is not each]
            break
    looks.append(_look(subject, depends))
    del looks[:-_MOST]
    return looks[-1]


def _look(subject: Any, depends: Dependencies) -> KnownLook:
    world = Surroundings(subject, depends.ran)
    variables = read_variables(depends.variables)
    facts = read_facts(world, depends.unread) | variables
    return KnownLook(
        subject, depends, world, facts, digest_facts(facts), variables, _read_tensors(world)
    )


def _read_tensors(world: Surroundings) -> list[Any]:
    """The types of state with their strides; data, as writes to `x.data` are not counted."""
    data = [data_of(each) for each in world.tensors if is_compared(each)]
    return [*map(read_type, world.list_state()), *map(read_type, world.tensors), *data]
