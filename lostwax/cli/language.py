"""`lostwax export --llm` and `lostwax generate`: language models as files, and in the runner."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from lostwax.cli.exporting import find_backend
from lostwax.cli.models.hugging_face import load_model
from lostwax.cli.models.inputs import read_dtype
from lostwax.cli.models.libraries import import_library
from lostwax.cli.models.names import Building, read_name
from lostwax.cli.models.weights import load_weights
from lostwax.cli.outcome import CommandOutcome, Exit, check_output, tell_part
from lostwax.cli.programs import reading, write_count
from lostwax.cli.progress import show_status
from lostwax.errors import CommandError, LostwaxError
from lostwax.llm.exporting import LanguageModel
from lostwax.llm.exporting import export as export_llm
from lostwax.llm.parts import ModelInParts, export_parts, has_parts
from lostwax.llm.runner import Continued, TextSettings, continue_text, silence

CONTEXT = 2048


def export_language(
    models: Sequence[str],
    output: str | None,
    building: Building,
    backend: str,
    words: dict[str, Any],
    has_others: bool,
) -> CommandOutcome:
    """Export one language model, of a checkpoint, and tell what became of it. The words are
    options of `lostwax.llm.export`, and `check`."""
    name, options = _check_line(models, building, has_others)
    find_backend(backend)
    file = output or f"{os.path.basename(os.path.normpath(name)).removesuffix('.json')}.pte"
    check_output(file, (".pte",))
    words = words | ({"backend": backend} if backend else {})
    is_checked = words.pop("check", False)
    torch.manual_seed(building.seed)
    with show_status(f"loading {models[0]}"):
        _, model = load_model(name, options, "AutoModelForCausalLM")
        if building.weights:
            load_weights(model, building.weights)
    words.setdefault("context", min(CONTEXT, _find_longest(model.config)))
    start = time.perf_counter()
    with show_status(f"exporting {models[0]}"):
        dtype = read_dtype(building.dtype) or torch.float32
        with silence():  # libraries of C++ print what they like
            made = _export(model, dtype, words)
            made.save(file)
    seconds = time.perf_counter() - start
    result = {"model": models[0], "file": file, "seconds": round(seconds, 3), **made.describe()}
    lines = [f"{file}: exported in {seconds:.2f} s", *made.report().splitlines()]
    if isinstance(made, LanguageModel):
        tokenizer = os.path.join(name, "tokenizer.json")
        shown = tokenizer if os.path.exists(tokenizer) else "tokenizer.json"
        lines.append(f'try it: lostwax generate {file} --tokenizer {shown} "Once upon"')
    else:
        lines.append(f"methods: {', '.join(sorted(made.executable.methods))}")
    text = "\n  ".join(lines)
    return _add_check(made, result, text) if is_checked else CommandOutcome(result, text)


def _find_longest(config: Any) -> int:
    """How many tokens the model was made for."""
    places = (config, "max_target_positions"), (config.get_text_config(), "max_position_embeddings")
    return next((n for place, name in places if (n := getattr(place, name, None))), CONTEXT)


def _export(model: Any, dtype: torch.dtype, words: dict[str, Any]) -> LanguageModel | ModelInParts:
    """A decoder as one method; what sees or hears in parts."""
    if not has_parts(model):
        return export_llm(model, dtype=dtype, reads_late=True, **words)
    if "sdpa" in words:
        raise CommandError(
            f"--sdpa is of decoders alone, and {type(model).__name__} becomes parts\n"
            "  instead: the same line without it"
        )
    made: ModelInParts = export_parts(model, dtype=dtype, reads_late=True, **words)
    return made


def _check_line(
    models: Sequence[str], building: Building, has_others: bool
) -> tuple[str, dict[str, Any]]:
    """Refuse what does not go with `--llm`."""
    if len(models) != 1:
        raise CommandError("--llm exports one model\n  instead: one line for each")
    place, name, options = read_name(models[0])
    if place != "hf":
        raise CommandError(
            f"--llm takes the checkpoint of a language model, and {models[0]!r} is none\n"
            "  instead: hf:DIR, or hf:DIR/config.json; in Python, lostwax.llm.export(model)"
        )
    if has_others or building.shapes or building.device:
        raise CommandError(
            "--llm settles sizes, inputs and the form itself\n  instead: --context, --length, "
            "--quantize, --embedding, --group, --sdpa, --dtype, --weights, --backend and --check"
        )
    return name, options


def _add_check(
    made: LanguageModel | ModelInParts, result: dict[str, Any], text: str
) -> CommandOutcome:
    with show_status("comparing tokens"):
        found = made.check()
    result |= {"check": {"ok": found.ok, "tokens": found.counts, "difference": found.difference}}
    told = [f"{count} after {size}" for size, count in found.counts.items()]
    same = f"tokens are the model's: {', '.join(told)} of prompt"
    line = f"  {same if found else found.difference}"
    return CommandOutcome(result, f"{text}\n{line}", Exit.OK if found else Exit.DIFFERS)


def generate_text(
    file: str, tokenizer: str, prompt: str, most: int, temperature: float, begin: int
) -> CommandOutcome:
    """Continue a text, each piece printed as it comes."""
    with suppress(LostwaxError, ImportError):  # the runner imports it, and says so if it is missing
        import_library("transformers")
    with show_status(f"loading {file}"), reading(file):
        found = continue_text(
            file, tokenizer, prompt, TextSettings(most, temperature, begin), tell_part
        )
    tell_part("\n")
    result = {"file": file, "prompt": prompt, **found.describe()}
    return CommandOutcome(result, "", notes=[_write_rates(found)])


def _write_rates(found: Continued) -> str:
    def write_rate(count: int, seconds: float) -> str:
        rate = f", {count / seconds:,.0f} a second" if seconds else ""
        return f"{write_count(count, 'token')} in {seconds:.2f} s{rate}"

    return (
        f"loaded in {found.load_seconds:.2f} s; prompt: "
        f"{write_rate(found.prompt_tokens, found.prompt_seconds)}; answer: "
        f"{write_rate(found.new_tokens, found.answer_seconds)}"
    )
