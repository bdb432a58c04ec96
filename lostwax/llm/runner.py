"""Texts by ExecuTorch's own runner of language models, which is C++: what a phone runs.

It prints what it likes, so that it is kept from the terminal. Must not be needed to write a file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import IO, Any

from lostwax.errors import LoadError
from lostwax.pte.file.reader import read_file

_KERNELS = {
    "llama::": "executorch.extension.llm.custom_ops.custom_ops",
    "quantized_decomposed::": "executorch.kernels.quantized",
}
"""Where the kernels are that the runner has on a phone, and must be loaded here."""


@dataclass(frozen=True)
class TextSettings:
    """How a text is continued."""

    most: int = -1
    """So many tokens are new at most; -1: until the text ends, or the context does."""
    temperature: float = 0.0
    begin: int = 0
    """How many tokens that begin a text are put before the prompt."""


@dataclass(frozen=True)
class Continued:
    """What the runner has found and measured."""

    text: str
    prompt_tokens: int
    new_tokens: int
    load_seconds: float
    prompt_seconds: float
    answer_seconds: float

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def continue_text(
    file: str, tokenizer: str, prompt: str, settings: TextSettings, say: Callable[[str], object]
) -> Continued:
    """Let the runner continue a text, and tell each piece of it as it comes."""
    facts = read_facts(file)
    most = _find_most(facts, tokenizer, prompt, settings)
    pieces: list[str] = []
    stats: list[Any] = []

    def hear(piece: str) -> None:
        pieces.append(piece)
        say(piece)

    with silence() as log:
        runner = _import_runner(facts)
        config = runner.GenerationConfig(
            max_new_tokens=most,
            temperature=settings.temperature,
            num_bos=settings.begin,
            echo=False,
        )
        try:
            loaded = runner.TextLLMRunner(file, tokenizer)
            loaded.generate(prompt, config, hear, stats.append)
        except RuntimeError as error:
            raise LoadError(_tell_failure(error, log)) from error
    return _read_stats(stats[-1], "".join(pieces), len(pieces))


def read_facts(file: str) -> dict[str, Any]:
    """What a file says of its language model: its constant methods, and its kernels' names under
    "kernels". A file that is none is refused."""
    with open(file, "rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            raise LoadError(f"{file} is empty")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            plans = read_file(data).program["execution_plan"] or ()  # type: ignore[arg-type]
    found: dict[str, Any] = {"kernels": set()}
    for plan in plans:
        found["kernels"] |= {each["name"] for each in plan["operators"] or ()}
        values = [plan["values"][at]["val"] for at in plan["outputs"] or ()]
        if not plan["inputs"] and len(values) == 1 and values[0][""] in ("Int", "Bool"):
            found[plan["name"]] = values[0].get("int_val", values[0].get("bool_val"))
    missing = [name for name in ("get_max_seq_len",) if name not in found]
    if missing or "forward" not in {plan["name"] for plan in plans}:
        what = missing[0] if missing else "forward"
        raise LoadError(
            f"{file} is no language model: it has no method {what!r}, which runners read\n"
            "  instead: lostwax export hf:DIR -o model.pte --llm, or lostwax.llm.export"
        )
    found.setdefault("get_max_context_len", found["get_max_seq_len"])
    return found


def _find_most(facts: dict[str, Any], tokenizer: str, prompt: str, settings: TextSettings) -> int:
    """How many tokens may be new. Where a file takes fewer tokens at once than it keeps, the runner
    does not count them itself, and fails when the context is full."""
    if not tokenizer.endswith(".json"):
        return settings.most
    try:
        read: Any = import_module("tokenizers").Tokenizer.from_file(tokenizer)
    except ImportError:
        return settings.most
    except Exception as error:  # of Rust: it has one class for all
        raise LoadError(
            f"{tokenizer} is no tokenizer: {error}\n"
            "  instead: the tokenizer.json that lies beside the checkpoint"
        ) from error
    context: int = facts["get_max_context_len"]
    count = len(read.encode(prompt, add_special_tokens=False).ids) + settings.begin
    if not 0 < count < context:
        how = f"{count} tokens, and the file keeps {context}" if count else "no tokens"
        raise LoadError(
            f"the prompt has {how}\n  instead: "
            + ("a shorter one, or export with a larger --context" if count else "some text")
        )
    room = max(1, context - max(count, len(read.encode(prompt).ids)))
    return room if settings.most < 0 else min(room, settings.most)


def _import_runner(facts: dict[str, Any]) -> Any:
    try:
        runner = import_module("executorch.extension.llm.runner")
        for start, home in _KERNELS.items():
            if any(name.startswith(start) for name in facts["kernels"]):
                import_module(home)
    except (ImportError, RuntimeError, OSError) as error:  # its own is a RuntimeError
        raise LoadError(
            f"ExecuTorch's runner does not load: {error}\n"
            "  instead: pip install executorch transformers; the file itself needs neither"
        ) from error
    return runner


def _tell_failure(error: Exception, log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    why = f"\n  why: {lines[-1]}" if lines else ""
    return f"ExecuTorch's runner says: {error}{why}\n  instead: lostwax doctor; fewer tokens"


def _read_stats(stats: Any, text: str, count: int) -> Continued:
    unit = stats.SCALING_FACTOR_UNITS_PER_SECOND
    spans = (
        stats.model_load_end_ms - stats.model_load_start_ms,
        stats.prompt_eval_end_ms - stats.inference_start_ms,
        stats.inference_end_ms - stats.prompt_eval_end_ms,
    )
    return Continued(text, stats.num_prompt_tokens, count, *(span / unit for span in spans))


@contextmanager
def silence() -> Iterator[IO[bytes]]:
    """Let all that C++ prints go to a file, which is yielded. Python's own streams that go to the
    same places do so, too: whoever wants to say something has a stream of his own."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    with tempfile.TemporaryFile() as log:
        kept = {number: os.dup(number) for number in (1, 2)}
        for number in kept:
            os.dup2(log.fileno(), number)
        try:
            yield log
        finally:
            ctypes.CDLL(None).fflush(None)  # what C holds back goes there, too
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)
