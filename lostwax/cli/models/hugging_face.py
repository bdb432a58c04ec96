"""`hf:DIR`: a model from a folder as Hugging Face's hub has them, `config.json` beside
`model.safetensors`, and example inputs for it. Without weights, or from a `config.json` alone,
weights are random, and that is said. Nothing is downloaded, and no code of the folder is run.

Must not import torch, nor what does, before the files are known to be there.
"""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lostwax.errors import CommandError, LoadError, did_you_mean

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""One file; those that are split have a list of their parts, `NAME.index.json`."""
_MEANT = (".safetensors", ".bin", ".gguf", ".pth", ".pt")


@dataclass(frozen=True)
class CheckpointFolder:
    """What lies in a folder."""

    place: str
    config: Path
    weights: Path | None
    """A file of weights, or the list of its parts; None if there are none."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A model of transformers, with its weights, and an example call."""

    checkpoint: CheckpointFolder
    model: Any
    inputs: dict[str, Any]


def find_checkpoint(place: str) -> CheckpointFolder:
    """What is in a folder, or in a `config.json` alone; refused if it is no whole model."""
    path = Path(place)
    if not path.exists():
        is_hub = place.count("/") == 1 and not place.startswith((".", "/", "~"))
        fetched = place if is_hub else "ORGANIZATION/MODEL"
        raise CommandError(
            f"hf:{place}: there is no folder {place!r}\n"
            f"  instead: hf download {fetched} --local-dir {path.name}; hf:{path.name}"
        )
    config = path / CONFIG if path.is_dir() else path
    if not config.is_file():
        raise CommandError(
            f"hf:{place}: the folder has no {CONFIG}\n"
            "  instead: a folder that save_pretrained wrote, or one of the hub's"
        )
    _read_json(config, place)
    return CheckpointFolder(place, config, _find_weights(path, place) if path.is_dir() else None)


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
    from lostwax.cli.models.libraries import make_inputs

    # A cache would be a result.
    found, model = load_model(place, {"use_cache": False, **(options or {})}, "AutoModel")
    return LoadedCheckpoint(found, model, make_inputs(model, f"hf:{place}"))


def load_model(place: str, options: dict[str, Any], otherwise: str) -> tuple[CheckpointFolder, Any]:
    """The model of a folder alone; of the class `otherwise` if the folder does not say of which."""
    found = find_checkpoint(place)
    from lostwax.cli.models.libraries import import_library

    transformers = import_library("transformers")
    options = dict(options)
    build = _find_class(transformers, found, options.pop("architecture", None), otherwise)
    config = _read_config(transformers, found, options)
    if found.weights:
        return found, _load_weights(build, config, found).eval()
    warnings.warn(
        f"hf:{place} has no weights: the model's are random, drawn with --seed", stacklevel=1
    )
    return found, _build_random(build, config).eval()


def _find_class(
    transformers: Any, found: CheckpointFolder, asked: str | None, otherwise: str
) -> Any:
    """The class that the folder was saved from."""
    names = [asked] if asked else _read_json(found.config, found.place).get("architectures") or []
    if not names:
        return getattr(transformers, otherwise)
    build = getattr(transformers, str(names[0]), None)
    if not hasattr(build, "config_class"):
        raise CommandError(
            f"hf:{found.place}: transformers {transformers.__version__} has no class {names[0]!r}"
            f"{did_you_mean(str(names[0]), dir(transformers))}\n  instead: "
            f"hf:{found.place}?architecture=CLASS, one of transformers; or a factory of your own"
        )
    return build


def _read_config(transformers: Any, found: CheckpointFolder, options: dict[str, Any]) -> Any:
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
    config = transformers.AutoConfig.from_pretrained(found.config, local_files_only=True)
    strange = [key for key in options if not hasattr(config, key) and key != "use_cache"]
    if strange:
        hint = did_you_mean(strange[0], vars(config))
        raise CommandError(f"the configuration of hf:{found.place} has no {strange[0]!r}{hint}")
    fit = {key: value for key, value in options.items() if hasattr(config, key)}
    # derived sizes are computed again
    return type(config)(**{**config.to_dict(), **fit}) if fit else config


def _load_weights(build: Any, config: Any, found: CheckpointFolder) -> Any:
    from lostwax.llm.loading import load_checked

    model = _bind_weights(build, config, found)
    if model is not None:
        return model
    damaged = (EOFError, RuntimeError, ValueError, OSError)  # of torch.load, of a shape
    try:
        model, lacking, unread = load_checked(
            build, str(found.config.parent), config=config, local_files_only=True
        )
    except Exception as error:
        if not isinstance(error, damaged) and type(error).__name__ != "SafetensorError":
            raise
        raise CommandError(
            f"hf:{found.place}: the weights cannot be read: {str(error).strip()}\n"
            "  instead: fetch the folder again, whole"
        ) from error
    if lacking:
        raise CommandError(
            f"hf:{found.place}: {lacking}\n"
            f"  instead: hf:{found.place}?architecture=CLASS, the class that was saved"
        )
    if unread:
        warnings.warn(f"hf:{found.place}: {unread}", stacklevel=1)
    return model


def _bind_weights(build: Any, config: Any, found: CheckpointFolder) -> Any:
    """The model with views of the checkpoint's files as weights, where these are just the model's;
    else None: transformers converts some as it loads them."""
    from lostwax.checkpoints import checkpoint
    from lostwax.checkpoints.building import WeightlessBuild

    if found.weights is None or ".safetensors" not in found.weights.name:
        return None
    with suppress(LoadError):
        stored = checkpoint(found.weights)
        with WeightlessBuild().run():
            model = _build_random(build, config)
        if stored.bind_exactly(model):
            folder = found.config.parent
            if model.can_generate() and (folder / "generation_config.json").is_file():
                settings = type(model.generation_config)
                model.generation_config = settings.from_pretrained(folder, local_files_only=True)
            return model
    return None


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
