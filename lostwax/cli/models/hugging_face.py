"""`hf:DIR`: a model from a folder as Hugging Face's hub has them, `config.json` beside
`model.safetensors`, and example inputs for it. Without weights, or from a `config.json` alone,
weights are random, and that is said. Nothing is downloaded, and no code of the folder is run.

Must not import torch, nor what does, before the files are known to be there.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lostwax.errors import CommandError, did_you_mean

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""One file; those that are split have a list of their parts, `NAME.index.json`."""
_MEANT = (".safetensors", ".bin", ".gguf", ".pth", ".pt")


@dataclass(frozen=True)
class Checkpoint:
    """What lies in a folder."""

    place: str
    config: Path
    weights: Path | None
    """A file of weights, or the list of its parts; None if there are none."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A model of transformers, with its weights, and an example call."""

    checkpoint: Checkpoint
    model: Any
    inputs: dict[str, Any]


def find_checkpoint(place: str) -> Checkpoint:
    """What is in a folder, or in a `config.json` alone; refused if it is no whole model."""
    path = Path(place)
    if not path.exists():
        hub = place.count("/") == 1 and not place.startswith((".", "/", "~"))
        raise CommandError(
            f"hf:{place}: there is no folder {place!r}"
            + (f"\n  instead: hf download {place} --local-dir {path.name}; hf:{path.name}" * hub)
        )
    config = path / CONFIG if path.is_dir() else path
    if not config.is_file():
        raise CommandError(
            f"hf:{place}: the folder has no {CONFIG}\n"
            "  instead: a folder that save_pretrained wrote, or one of the hub's"
        )
    _read_json(config, place)
    return Checkpoint(place, config, _find_weights(path, place) if path.is_dir() else None)


def _read_json(path: Path, place: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:  # also of bytes that are no text
        raise CommandError(
            f"hf:{place}: {path.name} is no JSON: {error}\n  instead: fetch the file again"
        ) from error
    if not isinstance(found, dict):
        raise CommandError(f"hf:{place}: {path.name} is no object of JSON")
    return found


def _find_weights(folder: Path, place: str) -> Path | None:
    for name in WEIGHTS:
        whole, parts = folder / name, folder / f"{name}.index.json"
        if whole.is_file():
            _check_part(whole, place)
            return whole
        if parts.is_file():
            for part in sorted({*_read_json(parts, place).get("weight_map", {}).values()}):
                _check_part(folder / part, place)
            return parts
    others = sorted(each.name for each in folder.iterdir() if each.suffix in _MEANT)
    if others:
        raise CommandError(
            f"hf:{place}: the folder has {', '.join(others[:3])}, but no {WEIGHTS[0]}, the name "
            f"that transformers reads\n  instead: hf:{place}/{CONFIG} and --weights FILE"
        )
    return None


def _check_part(file: Path, place: str) -> None:
    if not file.is_file():
        raise CommandError(
            f"hf:{place}: {file.name} is missing, a part of the weights\n"
            "  instead: fetch the folder again, whole"
        )
    with file.open("rb") as opened:
        if opened.read(24).startswith(b"version https://git-lfs"):
            raise CommandError(
                f"hf:{place}: {file.name} is a pointer of git-lfs, not the weights\n"
                f"  instead: git -C {file.parent} lfs pull"
            )


def load_checkpoint(place: str, options: dict[str, Any] | None = None) -> LoadedCheckpoint:
    """The model of a folder, in the dtype that its configuration says, and its example inputs.
    Options are those of the configuration, and `architecture`, a class of transformers."""
    found = find_checkpoint(place)
    from lostwax.cli.models.libraries import import_library, make_inputs

    transformers = import_library("transformers")
    options = dict(options or {})
    build = _find_class(transformers, found, options.pop("architecture", None))
    config = _read_config(transformers, found, options)
    model = _load_weights(transformers, build, config, found) if found.weights else None
    if model is None:
        warnings.warn(
            f"hf:{place} has no weights: the model's are random, drawn with --seed", stacklevel=1
        )
        model = _build_random(build, config)
    return LoadedCheckpoint(found, model.eval(), make_inputs(model, f"hf:{place}"))


def _find_class(transformers: Any, found: Checkpoint, asked: str | None) -> Any:
    """The class that the folder was saved from; that of the bare model if it does not say."""
    names = [asked] if asked else _read_json(found.config, found.place).get("architectures") or []
    if not names:
        return transformers.AutoModel
    build = getattr(transformers, str(names[0]), None)
    if not hasattr(build, "config_class"):
        raise CommandError(
            f"hf:{found.place}: transformers {transformers.__version__} has no class {names[0]!r}"
            f"{did_you_mean(str(names[0]), dir(transformers))}\n  instead: "
            f"hf:{found.place}?architecture=CLASS, one of transformers; or a factory of your own"
        )
    return build


def _read_config(transformers: Any, found: Checkpoint, options: dict[str, Any]) -> Any:
    said = _read_json(found.config, found.place)
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    kind = said.get("model_type")
    if kind not in known:
        own = "; it brings code of its own, which is not run" if said.get("auto_map") else ""
        raise CommandError(
            f"hf:{found.place}: {CONFIG} says model_type {kind!r}, which transformers "
            f"{transformers.__version__} does not have{own}"
            f"{did_you_mean(str(kind), known)}\n  instead: a newer transformers, or a factory of "
            "your own, which returns module, args, kwargs"
        )
    if "use_cache" not in options:
        options["use_cache"] = False  # a cache would be a result
    config = transformers.AutoConfig.from_pretrained(found.config, local_files_only=True)
    strange = [key for key in options if not hasattr(config, key) and key != "use_cache"]
    if strange:
        hint = did_you_mean(strange[0], vars(config))
        raise CommandError(f"the configuration of hf:{found.place} has no {strange[0]!r}{hint}")
    fit = {key: value for key, value in options.items() if hasattr(config, key)}
    # derived sizes are computed again
    return type(config)(**{**config.to_dict(), **fit}) if fit else config


def _load_weights(transformers: Any, build: Any, config: Any, found: Checkpoint) -> Any:
    transformers.utils.logging.disable_progress_bar()
    folder = str(found.config.parent)
    damaged = (EOFError, RuntimeError, ValueError, OSError)  # of torch.load, of a shape
    try:
        model, told = build.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        if not isinstance(error, damaged) and type(error).__name__ != "SafetensorError":
            raise
        raise CommandError(
            f"hf:{found.place}: the weights cannot be read: {str(error).strip()}\n"
            "  instead: fetch the folder again, whole"
        ) from error
    for what in ("missing_keys", "mismatched_keys"):
        lacking = sorted(str(k[0] if isinstance(k, tuple) else k) for k in told[what])
        if lacking:
            how = "are not in the file" if what == "missing_keys" else "have other sizes there"
            raise CommandError(
                f"hf:{found.place}: {len(lacking)} of the weights of {type(model).__name__} {how}, "
                f"and would be random: {', '.join(lacking[:3])}{', …' * (len(lacking) > 3)}\n"
                f"  instead: hf:{found.place}?architecture=CLASS, the class that was saved"
            )
    unread = sorted(told["unexpected_keys"])
    if unread:
        warnings.warn(
            f"hf:{found.place}: {len(unread)} weights of the file have no place in "
            f"{type(model).__name__}: {', '.join(unread[:3])}{', …' * (len(unread) > 3)}",
            stacklevel=1,
        )
    return model


def _build_random(build: Any, config: Any) -> Any:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(config, "dtype", None) or before)
    try:
        made = getattr(build, "from_config", build)
        return made(config)
    finally:
        torch.set_default_dtype(before)


def build_hf(place: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """What `hf:DIR?OPTIONS` names, as a factory returns it."""
    from lostwax.cli.models.libraries import return_tuples

    loaded = load_checkpoint(place, options)
    if not loaded.model.config.return_dict:
        return loaded.model, (), loaded.inputs
    return return_tuples(loaded.model), (), loaded.inputs
