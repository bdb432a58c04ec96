"""`lostwax models` and `lostwax doctor`: what is here. Must not import torch before it
is needed."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from lostwax.cli.models.names import list_names, list_places
from lostwax.cli.outcome import CommandOutcome, Exit, check_file
from lostwax.cli.plugins import list_libraries
from lostwax.errors import CommandError, did_you_mean
from lostwax.late_imports import list_backends

_ABOUT = {
    "timm": "models of timm; ?pretrained=true fetches their weights",
    "transformers": "models of transformers, by type or class; ?tiny makes them small",
    "hf": "a folder with config.json and model.safetensors",
}


def list_models(place: str, part: str) -> CommandOutcome:
    """The names that a library or a file has; without one, what there is to ask for."""
    if not place:
        found = {each: len(list_names(each)) for each in list_places()}
        lines = [f"{name + ':':16} {count:5}  {_describe(name)}" for name, count in found.items()]
        more = "lostwax models timm resnet lists those of one whose names have a part"
        return CommandOutcome({"places": found}, "\n".join(lines), notes=[more])
    if place.endswith(".py"):
        check_file(place)
    elif place not in list_libraries():
        known = list_places()
        raise CommandError(
            f"there is no library of models {place!r}{did_you_mean(place, known)}\n"
            f"  instead: {', '.join(known)}, or a file of Python"
        )
    names = [f"{place}:{name}" for name in list_names(place) if part.lower() in name.lower()]
    if not names:
        notes = [f"{place} has no model with {part!r} in its name" if part else "none is known"]
        return CommandOutcome({"models": []}, "", Exit.DIFFERS, notes)
    return CommandOutcome({"models": names}, "\n".join(names))


def _describe(place: str) -> str:
    found = list_libraries().get(place)
    return _ABOUT.get(place) or ("factories of this file" if found is None else found.value)


# ---------------------------------------------------------------------------------------- doctor

_OPTIONAL = {
    "executorch": "runs .pte files: lostwax run x.pte",
    "timm": "models timm:NAME",
    "transformers": "models transformers:NAME and hf:DIR",
    "safetensors": "--weights x.safetensors",
    "torchao": "quantization",
    "onnx-ir": "writes .onnx files",
    "onnxscript": "torch.onnx.export of programs",
    "onnxruntime": "runs .onnx files",
    "ray": "--ray: many models on a cluster",
}
"""What more a user may want, and what for."""
_HOW = {"onnx-ir": "pip install 'lostwax[onnx]'", "ray": "pip install 'lostwax[ray]'"}


def examine() -> CommandOutcome:
    """Versions, devices, backends, and what is missing with the way to get it. The answer is no if
    something is missing or broken without which nothing works."""
    needed = _list_needed()
    names = [_name_package(each) for each in needed]
    problems: list[str] = []
    packages = {name: _find_version(name) for name in names}
    for name, wanted in zip(names, needed, strict=True):
        if packages[name] is None:
            problems.append(f"{name} is not installed: pip install '{wanted}'")
    devices = _find_devices(problems)
    optional = {name: _find_version(name) for name in _OPTIONAL}
    backends = {name: _try_backend(each, problems) for name, each in list_backends().items()}
    face: Any = sys.modules["lostwax"]
    result = {
        "lostwax": {"version": face.__version__, "folder": os.path.dirname(face.__file__)},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "optional": optional,
        "devices": devices,
        "backends": backends,
        "problems": problems,
    }
    return CommandOutcome(result, _write(result), Exit.DIFFERS if problems else Exit.OK)


def _list_needed() -> list[str]:
    try:
        return [each for each in requires("lostwax") or () if "extra ==" not in each]
    except PackageNotFoundError:  # run from its folder, never installed
        return ["torch", "numpy", "flatbuffers", "typer", "rich"]


def _name_package(requirement: str) -> str:
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), None)
    return requirement[:end]


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _find_devices(problems: list[str]) -> dict[str, str]:
    """What tensors can be on."""
    try:
        torch = import_module("torch")
        tested = import_module("lostwax.torch_version").is_tested()
    except Exception as error:  # whatever hinders it
        problems.append(f"torch cannot be imported: {type(error).__name__}: {error}")
        return {}
    if not tested:
        wanted = import_module("lostwax.torch_version").tested_texts()
        problems.append(f"torch {torch.__version__} was not tested with lostwax; {wanted} were")
    found = {"cpu": f"{os.cpu_count()} cores, {_count_threads(torch.get_num_threads())}"}
    for at in range(torch.cuda.device_count()):
        found[f"cuda:{at}"] = torch.cuda.get_device_name(at)
    if torch.backends.mps.is_available():
        found["mps"] = "Apple's GPU"
    return found


def _count_threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def _try_backend(backend: Any, problems: list[str]) -> str:
    try:
        backend.load()()
    except Exception as error:  # another package's
        problems.append(f"the backend {backend.name} cannot be used: {error}")
        return "broken"
    return "ready"


def _write(result: dict[str, Any]) -> str:
    own = result["lostwax"]
    lines = [
        f"lostwax {own['version']} in {own['folder']}",
        f"Python {result['python']}, {result['machine']}",
        *_write_table("needs", {k: v or "MISSING" for k, v in result["packages"].items()}),
        *_write_table("devices", result["devices"]),
        *_write_table("backends", result["backends"]),
    ]
    there = {name: v for name, v in result["optional"].items() if v is not None}
    absent = {
        name: f"{_OPTIONAL[name]}; {_HOW.get(name, f'pip install {name}')}"
        for name, found in result["optional"].items()
        if found is None
    }
    lines += [*_write_table("beside it", there), *_write_table("not here", absent)]
    if result["problems"]:
        return "\n".join([*lines, "problems", *(f"  {each}" for each in result["problems"])])
    return "\n".join([*lines, "nothing is wrong"])


def _write_table(title: str, rows: dict[str, str]) -> list[str]:
    return [title, *(f"  {name:14} {text}" for name, text in rows.items())] if rows else []
