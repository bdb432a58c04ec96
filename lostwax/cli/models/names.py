"""The names of models, `PLACE:NAME?OPTIONS`: read, looked for before any work is done, listed and
completed. Must not import torch, nor what does: a name that leads nowhere is told at once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from lostwax.cli.models.hugging_face import CONFIG, find_checkpoint
from lostwax.cli.outcome import check_file
from lostwax.cli.plugins import check_library, list_libraries
from lostwax.errors import CommandError


class ModelName(NamedTuple):
    """The parts of a name."""

    place: str
    """A library, a module, a file."""
    name: str
    options: dict[str, Any]


def read_name(spec: str) -> ModelName:
    """The parts of what the command line names."""
    whole, _, query = spec.partition("?")
    place, colon, name = whole.partition(":")
    if place not in list_libraries():  # names of libraries may have colons, hf:DIR
        place, colon, name = whole.rpartition(":")
    if not colon or not place or not name:
        raise CommandError(
            f"{spec!r} names no factory\n  instead: MODULE:FACTORY, path/to/model.py:FACTORY, "
            "timm:resnet50, transformers:bert or hf:DIR; lostwax models lists them"
        )
    return ModelName(place, name, read_options(query))


def read_options(query: str) -> dict[str, Any]:
    """What stands after the `?` of a name."""
    given = parse_qsl(query, keep_blank_values=True)
    return {key: _read_option(value) for key, value in given}


def _read_option(text: str) -> Any:
    """`10` is a number, `true` and an option without a value are true, all else is text."""
    if text.lower() in ("", "true", "false"):
        return text.lower() != "false"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@dataclass(frozen=True)
class Building:
    """How models are built from their names, beside the options in the name."""

    seed: int = 0
    weights: str = ""
    """A file of trained weights; "" if there is none."""
    shapes: tuple[str, ...] = ()
    """Sizes of the example inputs, as texts: `x=1x3x224x224`."""
    dtype: str = ""
    device: str = ""


AS_IT_IS = Building()


def make_building(*, shapes: Sequence[str] | None, **given: Any) -> Building:
    """How models are built, of the options for it."""
    return Building(shapes=tuple(shapes or ()), **given)


def check_names(specs: Iterable[str], how: Building = AS_IT_IS) -> None:
    """Refuse a single model whose file, folder or library is not there; of several, one that is
    missing does not end the others."""
    listed = list(specs)
    if how.weights and len(listed) > 1:
        raise CommandError(f"--weights {how.weights!r} is of one model, and there are several")
    if how.weights and not Path(how.weights).is_file():
        raise CommandError(f"--weights {how.weights!r}: there is no such file")
    for spec in listed if len(listed) == 1 else ():
        place, name, _ = read_name(spec)
        if place == "hf":
            find_checkpoint(name)
        elif place in ("timm", "transformers"):
            check_library(place)
        elif place.endswith(".py") and not Path(place).is_file():
            raise CommandError(f"there is no file {place!r}")


EXAMPLE = "example"
"""As a call: the model's own."""


def check_calls(texts: Iterable[str]) -> None:
    """Refuse files of calls that are not there; `MODULE:FUNCTION` is found when it is asked."""
    for text in texts:
        if text != EXAMPLE and ":" not in text and not Path(text).is_dir():
            check_file(text)


def split_bundles(targets: Sequence[str]) -> list[str]:
    """The bundled programs, which have what they are compared with in them."""
    found = [each for each in targets if each.endswith(".bpte")]
    others = [each for each in targets if each not in found]
    if found and others:
        raise CommandError(
            f"{found[0]!r} has what its calls return in it, and {others[0]!r} is given beside it"
            f"\n  instead: lostwax check {found[0]}"
        )
    return found


def split_targets(targets: Sequence[str]) -> list[tuple[str, str]]:
    """Files, each with the model after it, and models alone, which have "" for a file."""
    found: list[tuple[str, str]] = []
    file = ""
    for each in targets:
        if each.endswith((".pt2", ".onnx", ".pte")):
            if file:
                break
            file = each
        else:
            found.append((file, each))
            file = ""
    if file:
        raise CommandError(
            "check takes a .pt2 or .onnx file and its model, or a model alone; "
            f"{file!r} is followed by none\n  instead: lostwax check {file} MODULE:FACTORY"
        )
    return found


# ---------------------------------------------------------------------------------------- listed


def list_names(place: str) -> list[str]:
    """The models of a library, or the factories of a file; read from source, which takes no
    import. Of a library of another package nothing is known."""
    if place.endswith(".py"):
        return _list_factories(Path(place))
    return _LISTS[place]() if place in _LISTS else []


def _list_factories(file: Path) -> list[str]:
    try:
        body = ast.parse(file.read_text()).body
    except (OSError, ValueError, SyntaxError):
        return []
    made = (each for each in body if isinstance(each, (ast.FunctionDef, ast.ClassDef)))
    return [each.name for each in made if not each.name.startswith("_")]


def _find_sources(library: str, pattern: str) -> list[Path]:
    found = find_spec(library)
    folders = found.submodule_search_locations if found is not None else None
    return sorted(path for folder in folders or () for path in Path(folder).glob(pattern))


def _list_timm() -> list[str]:
    registered = re.compile(r"^@register_model\s*\ndef (\w+)", re.M)
    files = _find_sources("timm", "models/*.py")
    return sorted({name for file in files for name in registered.findall(file.read_text())})


def _list_transformers() -> list[str]:
    """The types, and the classes with a task."""
    pair = re.compile(r"\(\s*\"([\w-]+)\",\s*\"(\w+)\"\s*,?\s*\)")
    texts = [file.read_text() for file in _find_sources("transformers", "models/auto/*.py")]
    pairs = [each for text in texts for each in pair.findall(text)]
    kinds = {kind for kind, named in pairs if named.endswith("Config")}
    return sorted(kinds) + sorted({n for _, n in pairs if "For" in n or n.endswith("HeadModel")})


def _list_folders() -> list[str]:
    return sorted(str(path.parent) for path in Path().glob(f"*/{CONFIG}"))


_LISTS: dict[str, Callable[[], list[str]]] = {
    "timm": _list_timm,
    "transformers": _list_transformers,
    "hf": _list_folders,
}


def list_places() -> list[str]:
    """What can stand before the colon: libraries, and the files of Python that are here."""
    files = sorted(path.name for path in Path().glob("*.py"))
    there = [n for n in list_libraries() if n not in ("timm", "transformers") or find_spec(n)]
    return [*there, *files]


def complete_name(incomplete: str, before: Iterable[str] = ()) -> list[str]:
    """The names that begin so. Bash takes `timm:res` for three words: then the two before the last
    come as `before`, and only the last is completed."""
    *_, place, colon = ("", "", *before)
    if incomplete == ":" and colon:  # `timm:` is two words
        place, colon, incomplete = colon, ":", ""
    if colon == ":":
        return [name for name in list_names(place) if name.startswith(incomplete)]
    place, colon, name = incomplete.partition(":")
    if colon:
        return [f"{place}:{each}" for each in list_names(place) if each.startswith(name)]
    return [f"{each}:" for each in list_places() if each.startswith(incomplete)]
