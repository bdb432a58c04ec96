"""The public face: what it offers, and that it costs nothing until it is used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import lostwax


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.mark.parametrize("name", lostwax.__all__)
def test_every_public_name_is_there(name):
    assert getattr(lostwax, name) is not None
    assert name in dir(lostwax)


@pytest.mark.parametrize("code", ["import lostwax", "import lostwax; lostwax.errors; dir(lostwax)"])
def test_importing_lostwax_imports_no_torch(code):
    assert python(f"{code}\nimport sys; print('torch' in sys.modules)") == "False"


def test_the_symbolic_engine_imports_no_torch():
    code = "import lostwax; lostwax.ShapeEnv\nimport sys; print('torch' in sys.modules)"
    assert python(code) == "False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'wax'"):
        _ = lostwax.wax


def test_one_version():
    """That of the newest section of the changelog; before it is released, a version before it."""
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert project["project"]["version"] == lostwax.__version__
    changes = (root / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[(.+)\]( \(unreleased\))?$", changes, re.MULTILINE)
    assert lostwax.__version__ == newest[1] + (".dev0" if newest[2] else "")


def test_the_list_of_public_names_is_what_type_checkers_take_as_public():
    """`__init__.py` reads it by the words."""
    listed = ast.parse(Path(lostwax.__file__).with_suffix(".pyi").read_text()).body
    found = [(alias.name, alias.asname) for n in listed[1:-1] for alias in n.names]
    assert all(name == public for name, public in found)
    assert sorted([name for name, _ in found] + ["__version__"]) == lostwax.__all__


def test_type_checkers_know_the_modules_of_names():
    folder = Path(lostwax.__file__).parent
    stubs = {path.stem for path in folder.glob("*.pyi")} - {"__init__", "late_imports"}
    assert stubs == set(lostwax._NAMESPACES)
    for stub in stubs:
        listed = ast.parse((folder / f"{stub}.pyi").read_text()).body[1:]
        found = [(node.module, alias.name, alias.asname) for node in listed for alias in node.names]
        assert sorted(found) == sorted(("lostwax", n, n) for n in lostwax._NAMESPACES[stub])


def test_dir_lists_public_names_alone():
    _ = lostwax.export, lostwax.ShapeEnv
    assert set(lostwax.__all__) <= set(dir(lostwax))
    assert [name for name in dir(lostwax) if name[0] == "_"] == ["__version__"]
    assert not {"Any", "sys", "ir", "sym", "late_imports"} & set(dir(lostwax))


MODULES = ("", ".backends", ".errors", ".interop", ".llm", ".onnx", ".ops", ".passes", ".pte")
"""The modules that `__init__.pyi` names; the first is lostwax itself."""


def list_public() -> Iterator[tuple[str, object]]:
    """The public functions and classes with their names, and the public methods of these."""
    for module in MODULES:
        for name in (found := import_module(f"lostwax{module}")).__all__:
            thing = getattr(found, name)
            if isinstance(thing, type):
                yield f"lostwax{module}.{name}", thing
                for key, value in vars(thing).items():
                    if key[0] != "_" and isinstance(value, (FunctionType, property, classmethod)):
                        yield f"lostwax{module}.{name}.{key}", value
            elif callable(thing):
                yield f"lostwax{module}.{name}", thing


def test_every_public_name_says_what_it_takes_and_what_it_gives():
    """Types of all parameters and results, which the reference shows; of functions each parameter
    in words as well. It may say whose arguments it takes: those of `lostwax.export`."""
    missing = []
    for name, thing in list_public():
        text = inspect.getdoc(thing) or ""  # a method's may be that of what it overrides
        if isinstance(thing, (type, property)):
            missing += [] if text else [name]
            continue
        shown = inspect.signature(getattr(thing, "__func__", thing))
        has_types = shown.return_annotation is not shown.empty and all(
            each.annotation is not each.empty or each.name in ("self", "cls")
            for each in shown.parameters.values()
        )
        words = text
        for other in re.findall(r"those of\s+`(?:lostwax\.)?(\w+)`", text):
            whose = getattr(lostwax, other, None) or getattr(lostwax.onnx, other)
            words += f" {' '.join(inspect.signature(whose).parameters)}"
        is_method = bool({"self", "cls"} & set(shown.parameters))
        unsaid = set(shown.parameters) - set(re.findall(r"\w+", words))
        if not text or not has_types or (unsaid and not is_method):
            missing.append(name)
    assert missing == []
