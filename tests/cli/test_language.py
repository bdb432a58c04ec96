"""`lostwax export --llm` and `lostwax generate`: a checkpoint, its file, texts of the runner."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from lostwax.cli.models.libraries import import_library
from tests.fresh import run_python
from tests.llm.families import Runner, generate_eagerly, make_model, until_end

pytest.importorskip("transformers", minversion="5.23")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the hub has them: a model in bfloat16, its tokenizer beside it."""
    import torch

    import_library("transformers")
    folder = tmp_path_factory.mktemp("hub") / "llama"
    make_model("Llama").to(torch.bfloat16).save_pretrained(folder)
    Runner(folder)
    return folder


@pytest.fixture
def llama(saved: Path, folder: Path) -> Path:
    shutil.copytree(saved, folder / "llama")
    return folder / "llama"


def test_a_checkpoint_becomes_a_file(lostwax: Any, llama: Path) -> None:
    ran = lostwax("export", "hf:llama", "-o", "m.pte", "--llm", "--context", "20", "--json")
    assert (ran.code, ran.json["warnings"]) == (0, []), ran
    made = ran.json["result"]
    assert made["bytes"] == Path("m.pte").stat().st_size == sum(made["bytes_by_part"].values())
    assert (made["context"], made["length"], made["cache_bytes"]) == (20, 20, 2 * 2 * 20 * 16 * 4)
    assert made["delegated_operators"] > 100
    ran = lostwax("export", "hf:llama/config.json?num_hidden_layers=1", "--llm", "--length", "4")
    assert ran.code == 0, ran.err
    assert "config.json has no weights: the model's are random" in ran.err
    assert ran.out.startswith("config.pte: exported in ")
    assert "bytes, for 128 tokens, 4 at once\n  " in ran.out, "as many as the model has positions"
    assert " delegates\n  try it: lostwax generate config.pte" in ran.out


def test_what_hears_becomes_parts(lostwax: Any, folder: Path) -> None:
    import_library("transformers")
    from tests.llm.test_parts import make_hearing

    make_hearing().save_pretrained("whisper")
    line = ("export", "hf:whisper", "-o", "w.pte", "--llm", "--quantize", "8w", "--check")
    ran = lostwax(*line, "--embedding", "8", "--json")
    assert ran.code == 0, ran
    made = ran.json["result"]
    assert (made["context"], made["length"]) == (40, 1), "as many as the model has positions"
    assert made["check"] == {"ok": True, "tokens": {"1": 40}, "difference": ""}
    assert sorted(made["memory_bytes"]) == ["encoder", "text_decoder"]
    ran = lostwax("export", "hf:whisper", "-o", "w.pte", "--llm")
    assert ran.out.endswith("\n  methods: encoder, text_decoder\n")
    ran = lostwax("export", "hf:whisper", "--llm", "--sdpa", "custom")
    assert ran.code == 2
    assert "--sdpa is of decoders alone, and Whisper" in ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hf:llama", "hf:llama", "--llm"], "--llm exports one model"),
        (["nets.py:tiny", "--llm"], "'nets.py:tiny' is none\n  instead: hf:DIR"),
        (["hf:llama", "--llm", "--core"], "--llm settles sizes, inputs and the form"),
        (["hf:llama", "--llm", "--backend", "qnn"], "there is no backend 'qnn'"),
        (["hf:llama", "--llm", "-o", "m.pt2"], "what is written is a .pte file"),
        (["hf:llama", "--context", "20"], "--context goes with --llm"),
        (["hf:llama", "--check"], "--check goes with --llm"),
        (["hf:llama", "--llm", "--quantize", "3w"], "not '3w'"),
        (["hf:llama", "--llm", "--sdpa", "fast"], "not 'fast'"),
    ],
)
def test_lines_that_are_refused(lostwax: Any, llama: Path, words: list[str], told: str) -> None:
    ran = lostwax("export", *words)
    assert ran.code in (2, 3)
    assert told in ran.err, ran.err


def test_files_that_the_runner_cannot_take(lostwax: Any, llama: Path) -> None:
    assert lostwax("export", "nets.py:tiny", "-o", "net.pte").code == 0
    words = ("--tokenizer", "llama/tokenizer.json", "hello")
    ran = lostwax("generate", "net.pte", *words)
    assert (ran.code, ran.out) == (3, "")
    assert "net.pte is no language model: it has no method 'get_max_seq_len'" in ran.err
    ran = lostwax("generate", "gone.pte", *words)
    assert (ran.code, ran.err) == (2, "error: [LW0801] there is no file 'gone.pte'\n"), ran.err
    ran = lostwax("generate", "net.pte", "--tokenizer", "gone.json", "hello")
    assert "there is no file 'gone.json'" in ran.err
    ran = lostwax("generate", "net.pte", "hello")
    assert ran.code == 2
    assert "Missing option '--tokenizer'" in ran.err
    ran = lostwax("generate", "llama/config.json", *words)
    assert "not a .pte file" in ran.err


def test_a_runner_that_is_not_there(
    lostwax: Any, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("export", "hf:llama", "-o", "m.pte", "--llm", "--context", "8", "-q")
    assert lostwax(*line).code == 0
    monkeypatch.setitem(sys.modules, "executorch.extension.llm.runner", None)
    ran = lostwax("generate", "m.pte", "--tokenizer", "llama/tokenizer.json", "hello")
    assert ran.code == 3
    assert "ExecuTorch's runner does not load" in ran.err
    assert "instead: pip install executorch transformers" in ran.err


SCRIPT = """
import contextlib, io, json, os, sys
from lostwax.cli.app import app
from lostwax.cli.models.libraries import import_library

os.chdir(sys.argv[1] if len(sys.argv) > 1 else FOLDER)
import_library("transformers")
try:
    import executorch.extension.llm.runner
except (ImportError, RuntimeError) as error:
    print("\\nMISSING", error)
    raise SystemExit
said = {}
for name, line in LINES.items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(line)
        except SystemExit as end:
            said[name] = [end.code, out.getvalue(), err.getvalue()]
print("\\n" + json.dumps(said))
"""


def test_texts_of_the_runner(saved: Path, llama: Path) -> None:
    """The text is what eager says, also where the file takes fewer tokens at once than it keeps."""
    import torch

    export = ["export", "hf:llama", "--llm", "--context", "40"]
    say = ["--tokenizer", "llama/tokenizer.json", "hello"]
    (llama / "broken.json").write_text("{}")
    lines = {
        "export": [*export, "-o", "m.pte", "--check"],
        "in parts": [*export, "-o", "p.pte", "--length", "4"],
        "text": ["generate", "m.pte", *say],
        "json": ["generate", "m.pte", *say, "--max-new-tokens", "7", "--json"],
        "brim": ["generate", "p.pte", *say, "--json"],
        "long": ["generate", "p.pte", *say[:2], "a" * 40],
        "empty": ["generate", "p.pte", *say[:2], ""],
        "broken": ["generate", "p.pte", "--tokenizer", "llama/broken.json", "hello"],
        "not a tokenizer": ["generate", "p.pte", "--tokenizer", "m.pte", "hello"],
    }
    script = f"FOLDER = {str(llama.parent)!r}\nLINES = {lines!r}\n{SCRIPT}"
    last = run_python(script, ignore_warnings=True).stdout.splitlines()[-1]
    if last.startswith("MISSING"):
        pytest.skip(f"ExecuTorch's runner does not load: {last}")
    said = json.loads(last)
    assert said["export"][0] == 0, said["export"]
    assert (
        "tokens are the model's: 39 after 1, 38 after 2, 23 after 17 of prompt" in said["export"][1]
    )
    runner, model = Runner(llama), make_model("Llama").to(torch.bfloat16).float()
    prompt = [runner.numbers[each] for each in "hello"]
    tokens = until_end(generate_eagerly(model, prompt, 35))
    text = "".join(runner.texts[each] for each in tokens)
    code, out, err = said["text"]
    assert (code, out) == (0, text + "\n"), err
    assert err.startswith("loaded in "), err
    assert "prompt: 5 tokens in " in err
    found = json.loads(said["json"][1])["result"]
    assert found["text"] == "".join(runner.texts[each] for each in tokens[:7])
    assert (found["prompt_tokens"], found["new_tokens"]) == (5, 7)
    assert json.loads(said["brim"][1])["result"]["text"] == text
    assert "the prompt has 40 tokens, and the file keeps 40" in said["long"][2]
    assert "the prompt has no tokens" in said["empty"][2]
    assert "broken.json is no tokenizer" in said["broken"][2]
    assert "Failed to load tokenizer" in said["not a tokenizer"][2]
