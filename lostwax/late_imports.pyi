"""The classes that names of a lower layer lead to, for type checkers alone, which read no order of
layers: so `program.to_edge().to_executable().bufer` is a mistake to them."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

from lostwax.backends.report import DelegationReport as DelegationReport
from lostwax.dialects.edge_operators import edge as edge
from lostwax.dialects.manager import EdgeConfig as EdgeConfig
from lostwax.dialects.manager import EdgeProgramManager as EdgeProgramManager
from lostwax.errors import LostwaxError
from lostwax.explorer.page import Page as Page
from lostwax.onnx.model import to_onnx as to_onnx
from lostwax.pte.executable import ExecutableConfig as ExecutableConfig
from lostwax.pte.executable import ExecutableProgram as ExecutableProgram

def set_homes(homes: Mapping[str, str]) -> None: ...
def late_import(name: str) -> Any: ...
def find_partitioner(name: str | None, refuse: type[LostwaxError] | None = None) -> Any: ...
def list_backends() -> dict[str, EntryPoint]: ...
