"""Models that see, in ExecuTorch's own `MultimodalRunner`, beside eager `generate`; models that
hear, whose runner has no Python, method by method.

`python -m tests.llm.test_parts` prints what came out as JSON: the runner prints what it likes, so
that it has a process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lostwax.errors import CaptureError, LoadError
from sweep.libraries import import_torchvision
from tests.fresh import run_module
from tests.llm.families import NARROW, SIZES, WINDOW, Runner

pytest.importorskip("transformers", minversion="5.23")

SIGHT: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
WORDS = {"vocab_size": 256, "bos_token_id": 254, "eos_token_id": 255, "pad_token_id": None}
IMAGE = 200
BEFORE, BEHIND = [5, 6, 7], [8, 9]


def make(name: str, tied: bool = False) -> Any:
    """A model whose logits differ."""
    import_torchvision()
    import transformers as t

    torch.manual_seed(0)
    if name == "LLaVA":
        text = t.LlamaConfig(**SIZES, **WORDS, tie_word_embeddings=tied)
        sight = t.CLIPVisionConfig(**SIGHT, projection_dim=16)
        config = t.LlavaConfig(
            vision_config=sight, text_config=text, image_token_index=IMAGE, tie_word_embeddings=tied
        )
        model = t.LlavaForConditionalGeneration(config)
    elif name == "Gemma 3":
        text = t.Gemma3TextConfig(**NARROW, **WINDOW, **WORDS)
        sight = t.SiglipVisionConfig(**SIGHT)
        config = t.Gemma3Config(text_config=text, vision_config=sight, mm_tokens_per_image=4)
        model = t.Gemma3ForConditionalGeneration(config)
    else:
        text = t.LlamaConfig(**SIZES, **WORDS)
        sight = t.SmolVLMVisionConfig(**SIGHT)
        config = t.SmolVLMConfig(
            vision_config=sight, text_config=text, image_token_id=IMAGE, scale_factor=2
        )
        model = t.SmolVLMForConditionalGeneration(config)
    model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def make_hearing() -> Any:
    import_torchvision()
    import transformers as t

    torch.manual_seed(0)
    sizes = {f"{part}_layers": 2 for part in ("encoder", "decoder")}
    sizes |= {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
    sizes |= {f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")}
    sizes |= {"d_model": 32, "num_mel_bins": 8, "max_source_positions": 12}
    said = {**WORDS, "pad_token_id": 255, "decoder_start_token_id": 250, "suppress_tokens": None}
    config = t.WhisperConfig(**sizes, **said, max_target_positions=40, begin_suppress_tokens=None)
    model = t.WhisperForConditionalGeneration(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "embed" not in name:  # else each token says itself: the table is the head's, too
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def hear(draw: torch.Generator) -> dict[str, Any]:
    """A model that hears: two sounds, the second after the first in one file."""
    import lostwax

    model = make_hearing()
    made = lostwax.llm.export_parts(model, context=40)
    sounds = [torch.randn(made.given, generator=draw) for _ in range(2)]
    wanted = []
    for sound in sounds:
        tokens = torch.tensor([[250]])
        for _ in range(40):
            logits = model(input_features=sound, decoder_input_ids=tokens).logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
        wanted.append(tokens[0, 1:].tolist())
    made.check(sounds[0], 20).raise_on_difference()
    found: dict[str, Any] = {"ours": [made.generate(s, 40) for s in sounds], "wanted": wanted}
    found["tables"] = made.buffer.count(model.get_input_embeddings().weight.numpy().tobytes())
    found["methods"] = sorted(made.executable.methods)
    return found


def generate_eagerly(model: Any, image: torch.Tensor, count: int) -> list[int]:
    tokens = torch.tensor([[*BEFORE, *[IMAGE] * 4, *BEHIND]])
    options = {"max_new_tokens": count, "do_sample": False}
    done = model.generate(tokens, pixel_values=image, **options)
    return done[0, tokens.shape[1] :].tolist()  # type: ignore[no-any-return]


def main() -> None:
    torch.set_num_threads(1)
    import_torchvision()
    try:
        from executorch.extension.llm import runner as theirs
    except (ImportError, RuntimeError) as error:
        print("\n" + json.dumps({"missing": str(error)}))
        return
    import lostwax

    results: dict[str, Any] = {}
    draw = torch.Generator().manual_seed(3)
    with tempfile.TemporaryDirectory() as name:
        tokenizer = Runner(Path(name))
        for tied, length in ((False, 32), (True, 3)):
            model, file = make("LLaVA", tied), f"{name}/m.pte"
            made = lostwax.llm.export_parts(model, context=32, length=length)
            made.save(file)
            image = torch.randn(made.given, generator=draw)
            wanted = generate_eagerly(model, image, 20)
            inputs = [
                theirs.make_token_input(BEFORE),
                theirs.make_image_input(image),
                theirs.make_token_input(BEHIND),
            ]
            texts: list[str] = []
            if length == 32:  # it hands over an image at once
                runner = theirs.MultimodalRunner(file, str(tokenizer.tokenizer))
                settings = theirs.GenerationConfig(max_new_tokens=20, temperature=0.0, echo=False)
                runner.generate(inputs, settings, texts.append, None)
            table = model.get_input_embeddings().weight.numpy().tobytes()
            results["tied" if tied else "apart"] = {
                "theirs": [tokenizer.numbers[text] for text in texts],
                "ours": made.generate([BEFORE, image, BEHIND], len(wanted)),
                "wanted": wanted,
                "report": made.report(),
                "tables": made.buffer.count(table),
            }
            made.check(image, BEFORE, BEHIND, 12).raise_on_difference()
            other = torch.randn(made.given, generator=draw)
            results["other image"] = made.generate([BEFORE, other, BEHIND], len(wanted))
        others = dataclasses.replace(made, model=make("LLaVA"))
        results["differs"] = others.check(image, BEFORE, BEHIND, 12).difference
        try:
            made.generate([BEFORE, image, BEHIND], 25)
        except LoadError as error:
            results["brim"] = str(error)
    results["hears"] = hear(draw)
    print("\n" + json.dumps(results))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = run_module("tests.llm.test_parts")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    if "missing" in results:
        pytest.skip(f"ExecuTorch's runner does not load: {results['missing']}")
    return results  # type: ignore[no-any-return]


def test_the_runner_says_what_eager_says(found: dict[str, Any]) -> None:
    apart, tied = found["apart"], found["tied"]
    assert apart["theirs"] == apart["wanted"]
    assert apart["ours"] == apart["wanted"]
    assert tied["ours"] == tied["wanted"]
    assert len(set(apart["wanted"])) > 3
    assert found["other image"] != tied["ours"], "it must look at the image"


def test_what_is_heard_is_what_eager_hears(found: dict[str, Any]) -> None:
    result = found["hears"]
    assert result["ours"] == result["wanted"]
    assert result["ours"][0] != result["ours"][1]
    assert len(set(result["ours"][0])) > 3
    assert (result["tables"], result["methods"]) == (1, ["encoder", "text_decoder"])


@pytest.mark.parametrize("name", ["LLaVA", "Whisper"])
def test_parts_of_fewer_bits(name: str, tmp_path: Path) -> None:
    """Layers of all parts and the table of tokens; the model itself stays in floats. A path is
    read, and means the same file."""
    pytest.importorskip("torchao")
    import lostwax

    model = make_hearing() if name == "Whisper" else make(name, tied=True)
    words = {"context": 24, "quantize": "8da4w", "embedding": 8}
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="layers stay in floats.*no whole groups of 32"):
        made, read = (lostwax.llm.export_parts(each, **words) for each in (model, tmp_path))
    assert [bool(each.check()) for each in (made, read)] == [True, True]
    assert type(made) is type(read)
    assert read.describe()["bytes"] == made.describe()["bytes"]
    assert made.executable.sizes["weights of delegates"] > 0
    assert len(made.buffer) < 0.8 * len(lostwax.llm.export_parts(model, context=24).buffer)
    assert all(type(each) is torch.nn.Parameter for each in model.parameters())


def test_a_sound_needs_positions() -> None:
    import lostwax

    with pytest.raises(CaptureError, match="has positions for 40 tokens, not 41"):
        lostwax.llm.export_parts(make_hearing(), context=41)


def test_what_parts_share_is_there_once(found: dict[str, Any]) -> None:
    assert (found["apart"]["tables"], found["tied"]["tables"]) == (1, 1)
    assert "memory: text_decoder " in found["tied"]["report"]
    assert ", vision_encoder " in found["tied"]["report"]


def test_what_differs_is_told(found: dict[str, Any]) -> None:
    assert "after an image the file says [" in found["differs"]
    assert "images and tokens are more than the file keeps, 32" in found["brim"]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda: make("Gemma 3"), "lets the tokens of an image see those behind them"),
        (lambda: make("SmolVLM"), r"does not take an image of \[1, 3, 28, 28\]: not enough values"),
        (lambda: make("LLaVA").model.language_model, "LlamaModel sees nothing"),
    ],
)
def test_refused(model: Any, told: str) -> None:
    import lostwax

    with pytest.raises(CaptureError, match=told):
        lostwax.llm.export_parts(model(), context=16)


if __name__ == "__main__":
    main()
