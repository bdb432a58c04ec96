"""What is no program is not saved: a file is written only where it can be loaded and run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import SaveError

pytestmark = pytest.mark.core

X = torch.ones(2, 3)


def relu(program: lostwax.ExportedProgram) -> Any:
    return next(node for node in program.graph.nodes if node.name == "relu")


@pytest.fixture
def program() -> lostwax.ExportedProgram:
    return lostwax.export(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (X,))


def test_a_node_without_a_value(program, tmp_path):
    lostwax.save(program, tmp_path / "model.pt2")
    before = (tmp_path / "model.pt2").read_bytes()
    del relu(program).meta["val"]
    with pytest.raises(SaveError) as caught:
        lostwax.save(program, tmp_path / "model.pt2")
    text = str(caught.value)
    assert (
        "'model' is not a valid program, and is not saved:\n  node 'relu' breaks the rule" in text
    )
    assert "program.validate() after each change" in text
    assert (tmp_path / "model.pt2").read_bytes() == before


def test_a_call_of_a_module(program, tmp_path):
    module, node = program.graph_module, relu(program)
    module.add_submodule("act", nn.ReLU())
    with program.graph.inserting_after(node):
        call = program.graph.call_module("act", node.args)
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    program.graph.erase_node(node)
    with pytest.raises(SaveError, match="node 'act' breaks the rule 'node kinds'"):
        lostwax.save({"one": program}, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_an_operator_that_writes(program, tmp_path):
    relu(program).target = torch.ops.aten.relu_.default
    with pytest.raises(SaveError, match="breaks the rule 'functional'"):
        lostwax.save(program, tmp_path / "model.pt2")


def test_extra_files_that_have_no_names(program, tmp_path):
    path = tmp_path / "program.pt2"
    with pytest.raises(SaveError, match="extra_files is a list; texts or bytes by name"):
        lostwax.save(program, path, extra_files=["notes.txt"])  # type: ignore[arg-type]
    lostwax.save(program, path)
    with pytest.raises(TypeError, match="extra_files is a list; a dict is wanted"):
        lostwax.load(path, extra_files=["notes.txt"])  # type: ignore[call-overload]
