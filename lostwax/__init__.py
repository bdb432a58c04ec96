"""The public face of lostwax. Lazy: `import lostwax` loads no torch; a name loads its layer when
it is first used. Which there are says `__init__.pyi`. Nothing inside the package imports this
module.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from lostwax import cache, collector, late_imports, namespaces

__version__ = "0.2.0.dev0"


def _read_homes() -> dict[str, str]:
    """The module of each public name; `__init__.pyi` says `from HOME import NAME as NAME`."""
    listed = __spec__.loader.get_data(f"{__path__[0]}/__init__.pyi").decode()
    words = listed[listed.index("\nfrom") : listed.index("\n__version__")]
    each = words.translate({ord(mark): None for mark in "(),"}).split()
    return dict(zip(each[3::6], each[1::6], strict=True))


_HOME = _read_homes()
__all__ = sorted([*_HOME, "__version__"])

late_imports.set_homes(
    {
        "edge": "lostwax.dialects.edge_operators",
        "to_edge": "lostwax.dialects.manager",
        "update_program": "lostwax.ir.passes.draft",
        "lower_methods": "lostwax.backends.lower",
        "make_report": "lostwax.backends.report",
        "ExecutableProgram": "lostwax.pte.executable",
        "plot": "lostwax.explorer.page",
        "to_onnx": "lostwax.onnx.model",
        "show_values": "lostwax.interop.exchange",
    }
)


def __getattr__(name: str) -> Any:
    # `lostwax.capture` is a folder that can be called.
    if name == "capture" or _HOME.get(name) == "lostwax":
        return _load(f"lostwax.{name}")
    if name not in _HOME and name not in _NAMESPACES:
        raise AttributeError(f"module 'lostwax' has no attribute {name!r}")
    value = sys.modules[f"lostwax.{name}"] if name in _NAMESPACES else _find(name)
    globals()[name] = value  # the next use does not come here
    return value


def _find(name: str) -> Any:
    """What a name of the face stands for."""
    return getattr(_load(_HOME[name]), name)


_NAMESPACES: dict[str, list[str]] = {
    "decomp_utils": ["CustomDecompTable"],
    "dynamic_shapes": [
        *("AdditionalInputs", "Constraint", "Dim", "ShapesCollection", "dims"),
        *("dump_dynamic_shapes", "load_dynamic_shapes"),
        "refine_dynamic_shapes_from_suggested_fixes",
    ],
    "exported_program": [
        *("ExportedProgram", "ModuleCallEntry", "ModuleCallSignature", "default_decompositions"),
    ],
    "graph_signature": [name for name, home in _HOME.items() if home == "lostwax.ir.signature"],
    "pt2_archive": ["PT2ArchiveReader", "PT2ArchiveWriter", "is_pt2_package"],
    "unflatten": [
        *("FlatArgsAdapter", "InterpreterModule", "InterpreterModuleDispatcher"),
        *("UnflattenedModule", "unflatten"),
    ],
}
"""The names that torch.export has in modules below it; `lostwax.passes` is a file."""

namespaces.add_namespaces("lostwax", _NAMESPACES, _find)
cache.__class__ = namespaces.make_callable(_find)  # it is a function of the face, too


def _load(module: str) -> Any:
    """Import a module. The garbage collector is paused meanwhile: it would walk all of torch's
    objects, which takes half as long as the import."""
    with ExitStack() as undo:
        collector.pause(undo.callback)
        return _import(module)


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except (ImportError, AttributeError) as error:
        version = sys.modules.get("lostwax.torch_version")  # not there: torch itself does not load
        if version is None or version.is_tested():
            raise
        raise version.make_import_error(error) from error


def __dir__() -> list[str]:
    return sorted({*__all__, *_NAMESPACES})
