"""Which type rules no sample of torch's op_db reaches: `python -m tests.ops.coverage`.

Those rules are checked by nothing in test_conformance.py and need tests of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lostwax.ops
from lostwax.ops.registry import operator, overloads_with_rules
from tests.ops.conformance import FORMS, GRADIENT, calls, dtypes_of, eagerly, operators

assert lostwax.ops


class Heard(TorchDispatchMode):
    """Notes every overload that is called, and the functional twin whose rule it borrows."""

    def __init__(self) -> None:
        super().__init__()
        self.overloads: set[Any] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.overloads.add(func)
        return func(*args, **(kwargs or {}))


def reached() -> set[Any]:
    """Every overload that some sample calls, in any form."""
    heard = Heard()
    for op in operators().values():
        for dtype in dtypes_of(op):
            for call in calls(op, dtype, (*FORMS, GRADIENT)):
                with heard:
                    eagerly(call)
    twins = {operator(o).twin for o in heard.overloads}
    return heard.overloads | twins


def unreached() -> list[str]:
    return sorted(map(str, overloads_with_rules() - reached()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    missing = unreached()
    print(f"{len(missing)} of {len(overloads_with_rules())} rules are reached by no sample")
    print("\n".join(missing))
