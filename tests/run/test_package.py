"""The sources of lostwax_run: what they import; what they read in a file is what lostwax reads."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.run.environment import EXECUTORCH, ROOT

PACKAGE = ROOT / "run" / "lostwax_run"
ALLOWED = {"numpy", "lostwax_run", *sys.stdlib_module_names}


def list_imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            found.add((node.module or "").partition(".")[0])
    return found


def test_nothing_but_numpy_is_imported() -> None:
    files = [*PACKAGE.glob("*.py")]
    assert 8 < len(files) <= 16
    for file in files:
        assert list_imports(file) <= ALLOWED, file
        assert len(file.read_text().splitlines()) <= 700


def test_the_versions_are_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = f'version = "{project["version"]}"'
    assert own in (ROOT / "run" / "pyproject.toml").read_text()
    assert f"__{own.replace(' =', '__ =')}" in (PACKAGE / "__init__.py").read_text()
    assert f'EXECUTORCH = "{EXECUTORCH}"' in (ROOT / "run" / "setup.py").read_text()


def test_a_file_says_the_same_to_both() -> None:
    """The tables of payloads, too: the slots are lostwax's."""
    code = """
import torch, lostwax
from lostwax.backends.xnnpack.schema import NODES, TABLES
from lostwax.pte.file.reader import read_file
from lostwax.pte.file.schema import DTYPES
from lostwax_run import description, payload
from lostwax_run.checks import check_program

for number, name in description.DTYPES.items():
    assert DTYPES[getattr(torch, name)] == number
assert [f"XNN{name}" for name in payload.NODES] == NODES.split()
for name in payload.NODES:
    if name not in ("ArgMaxPooling2d", "ScaledDotProductAttention"):
        fields = [field for field, _ in TABLES[f"XNN{name}"]]
        reads, writes = payload._FORMS.get(name, ((0,), 1))
        assert fields[writes] == "output_id"
        wanted = [f for f in fields if f.startswith(("input", "filter", "bias"))]
        assert sorted(fields[slot] for slot in reads) == sorted(wanted), name

size = {0: lostwax.Dim("n", max=5)}
module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Conv1d(3, 2, 1))
program = lostwax.export(torch.nn.ReLU(), (torch.randn(3, 4),), dynamic_shapes=(size,))
fixed = lostwax.export(module, (torch.randn(3, 4),))
edge = lostwax.to_edge({"a": program, "b": fixed}, constant_methods={"c": [1, 2.5]})
data = edge.to_executable().buffer
check_program(memoryview(data), None)
found = description.describe(memoryview(data))
plans = {plan["name"]: plan for plan in read_file(data).program["execution_plan"]}
assert found.keys() == plans.keys()
for name, plan in plans.items():
    for field in ("inputs", "outputs"):
        wanted = [plan["values"][i]["val"] for i in plan[field] or ()]
        specs = getattr(found[name], field)
        assert len(specs) == len(wanted)
        for spec, value in zip(specs, wanted):
            assert spec.kind == {"Double": "float"}.get(value[""], value[""].lower())
            if spec.kind == "tensor":
                assert list(spec.shape) == value["sizes"]
                assert list(spec.order) == [*value["dim_order"]]
                assert spec.varies == bool(value["shape_dynamism"])
                assert DTYPES[getattr(torch, spec.dtype)] == value["scalar_type"]
    names = [f"{op['name']}.{op['overload']}" for op in plan["operators"] or ()]
    assert list(found[name].kernels) == names
    assert list(found[name].arenas) == plan["non_const_buffer_sizes"][1:]
print([found["c"].is_constant, found["a"].is_constant])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'run'}:{ROOT}", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[True, False]\n"


def test_make_builds_the_folder_and_no_package_of_that_name() -> None:
    """`pip wheel run` is the registry's package of that name; a path has a slash."""
    dry = subprocess.run(
        ["make", "-n", "--no-print-directory", "run-wheel"],  # a `make test` asks for the printing
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert dry.stdout.rstrip().endswith(" ./run"), dry.stdout
