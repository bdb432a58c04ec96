"""Small algorithms whose Python asks data, in the runtime: those that use what others do not."""

from __future__ import annotations

from copy import deepcopy
from io import BytesIO

import pytest
from torch.utils._pytree import tree_leaves

import lostwax
from lostwax.pte.runtime import LoadedProgram
from tests.capture.flow.algorithms.test_algorithms import PROGRAMS
from tests.pte.runtime import assert_close


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "gcd_of_items",  # `!=` of numbers
        "ExpertsByIndex",  # `and` of truths
        "hard_examples",  # x[mask]
        "RecurrentUntilStop",  # gates that are written in place
    ],
)
def test_an_algorithm_runs_as_in_eager(name: str) -> None:
    each = PROGRAMS[name]
    module = each.make()
    executable = lostwax.export(deepcopy(module), deepcopy(each.calls[0])).to_edge().to_executable()
    file = BytesIO()
    executable.write_to_file(file)
    for call in each.calls:
        ours = LoadedProgram(file.getvalue()).run(tree_leaves(deepcopy(call)))
        assert_close(ours, tree_leaves(module(*deepcopy(call))))
