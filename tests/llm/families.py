"""Small language models of many families, exported, and run by ExecuTorch's own runner.

`python -m tests.llm.families` prints what came out as JSON; the runner is C++, has kernels of its
own, and prints what it likes, so that it has a process of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from sweep.libraries import import_torchvision
from tests.whole import WHOLE

CONTEXT, WORDS = 80, 256
BEGIN, END = 254, 255

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
WINDOW = {"sliding_window": 8}
CHOSEN = {"num_experts_per_tok": 2}
NARROW: dict[str, Any] = {**SIZES, "head_dim": 8}
STATES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 80,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", SIZES),
    "Llama 3": ("Llama", {**SIZES, "tie_word_embeddings": True, "rope_parameters": LLAMA_3}),
    "Qwen 2": ("Qwen2", {**SIZES, **WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    "Qwen 3": ("Qwen3", NARROW),
    "Mistral": ("Mistral", {**SIZES, **WINDOW}),
    "Phi 3": ("Phi3", SIZES),
    "Phi 4 mini": (
        "Phi3",
        {**SIZES, "original_max_position_embeddings": 80, "rope_parameters": LONG_ROPE},
    ),
    "SmolLM 3": ("SmolLM3", {**SIZES, "no_rope_layer_interval": 2}),
    "GPT-2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "OLMo 2": ("Olmo2", SIZES),
    "Granite": ("Granite", {**SIZES, "attention_multiplier": 0.2, "logits_scaling": 2.0}),
    "Gemma 2": ("Gemma2", {**NARROW, **WINDOW, "attn_logit_softcapping": 5.0}),
    "Gemma 3": (
        "Gemma3Text",
        {**NARROW, **WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "Mixtral": ("Mixtral", {**SIZES, **CHOSEN, "num_local_experts": 3}),
    "Qwen 3 MoE": (
        "Qwen3Moe",
        {**NARROW, **CHOSEN, "num_experts": 4, "moe_intermediate_size": 24},
    ),
    "GPT-OSS": (
        "GptOss",
        {**NARROW, **CHOSEN, **WINDOW, "num_local_experts": 3},
    ),
    "Mamba 2": (
        "Mamba2",
        {**STATES, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    ),
    "Mamba": ("Mamba", {**STATES, "state_size": 8}),
    "LFM 2": ("Lfm2", {**SIZES, "layer_types": ["conv", "full_attention"]}),
}  # fmt: skip

WIDE = {"hidden_size": 64, "intermediate_size": 96}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "8da4w, 8 bits, custom": (
        "Llama 3",
        {"quantize": "8da4w", "embedding": 8, "sdpa": "custom"},
    ),
    "8w, 4 bits": ("Qwen 3", {"quantize": "8w", "embedding": 4}),
    "4w, 2 bits, custom": ("Mistral", {"quantize": "4w", "embedding": 2, "sdpa": "custom"}),
    "custom": ("Gemma 3", {"sdpa": "custom"}),
    "custom, but for caps": ("Gemma 2", {"sdpa": "custom"}),
}
"""Models with weights of fewer bits, or attention by a kernel, and how they are exported."""

ROOMS: dict[str, dict[str, Any]] = {
    "Phi 4 mini": {
        "rope_parameters": {
            **LONG_ROPE,
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [2.0 + i for i in range(8)],
        }
    },
    "GPT-2": {"n_embd": 64},
    "Mamba 2": {"num_heads": 16},
}
"""What rows of whole groups, as 8da4w wants them, need beside `WIDE`."""
QUANTIZED = {f"{family}, 8da4w": family for family in FAMILIES if family != "OLMo 2"}
"""All families with layers of four bits and tables of eight. OLMo 2 takes, of two tokens whose
logits are 0.6 % apart, the other one: XNNPACK rounds activations otherwise than torchao does."""

COUNTS = {1: 9, 2: 64, 17: CONTEXT - 17}
"""How many tokens are asked for, by the length of the prompt: the last fill the context."""


def make_model(family: str, **more: Any) -> Any:
    """A model whose logits differ: large weights, and nothing that makes a token repeat itself."""
    import transformers

    name, sizes = FAMILIES[family]
    config_class = getattr(transformers, f"{name}Config")
    told = {"vocab_size": WORDS, "bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": None}
    config = config_class(**{"tie_word_embeddings": False, **told, **sizes, **more})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.25)
    model.generation_config.eos_token_id = [END, END - 2]
    return model


def widen(family: str) -> dict[str, Any]:
    """The sizes of a family with rows of whole groups."""
    usual = {} if family == "GPT-2" else WIDE if "Mamba" not in family else {"hidden_size": 64}
    return {**usual, **ROOMS.get(family, {})}


class Runner:
    """ExecuTorch's `TextLLMRunner`, by numbers of tokens: each token is a text of its own."""

    def __init__(self, folder: Path) -> None:
        single = [chr(code) for code in range(33, 127)]
        pairs = [a + b for a in "abcdefghijklmnop" for b in "qrstuvwxyz"]
        self.texts = [*(single + pairs)[:BEGIN], "<bos>", "<eos>"]
        self.numbers = {text: number for number, text in enumerate(self.texts)}
        self.tokenizer = folder / "tokenizer.json"
        self.tokenizer.write_text(json.dumps(_describe_tokenizer(self.texts)))

    def generate(self, path: Path, prompts: list[list[int]], count: int) -> list[list[int]]:
        """The tokens after each of some prompts, with one runner, which is reset between them."""
        from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

        runner, found = TextLLMRunner(str(path), str(self.tokenizer)), []
        for prompt in prompts:
            texts: list[str] = []
            settings = GenerationConfig(max_new_tokens=count, temperature=0.0, echo=False)
            runner.generate("".join(self.texts[n] for n in prompt), settings, texts.append, None)
            found.append([self.numbers[text] for text in texts])
            runner.reset()
        return found


def _describe_tokenizer(texts: list[str]) -> dict[str, Any]:
    vocabulary = {text: number for number, text in enumerate(texts[:BEGIN])}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    bytewise = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": texts[number], "special": True, **flags}
            for number in (BEGIN, END)
        ],
        "pre_tokenizer": bytewise,
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip


def generate_eagerly(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    done = model.generate(ids, max_new_tokens=count, do_sample=False)
    return done[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def until_end(tokens: list[int]) -> list[int]:
    """The runner does not ask whether the first token ends the text."""
    return tokens[:1] if tokens[0] in (END, END - 2) else tokens


def judge(
    family: str, runner: Runner, folder: Path, options: dict[str, Any], **sizes: Any
) -> dict[str, Any]:
    import lostwax

    model = make_model(family, **sizes)
    # Prompts of more than `length` tokens come in several calls. Mamba takes single tokens alone.
    length = 1 if family == "Mamba" else 16
    made = lostwax.llm.export(model, context=CONTEXT, length=length, **options)
    path = folder / "model.pte"
    made.save(path)
    result: dict[str, Any] = {"metadata": made.metadata, "report": made.report()}
    result["bytes"] = len(made.buffer), sum(p.nbytes for p in model.parameters())
    model, result["kernels"] = made.model, sorted(made.executable.kernels)
    draw, seen = torch.Generator().manual_seed(len(family)), set()
    for size, count in COUNTS.items():
        prompt = torch.randint(94, (size,), generator=draw).tolist()
        wanted = generate_eagerly(model, prompt, count)
        # Twice, since a second text must not see the first.
        found = runner.generate(path, [prompt, prompt], count)
        seen |= set(wanted)
        result[f"prompt of {size}"] = [until_end(found[0]), until_end(found[1]), wanted]
    result["different"] = len(seen)
    return result


def try_to_judge(*args: Any, **sizes: Any) -> dict[str, Any]:
    try:
        return judge(*args, **sizes)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def judge_the_brim(runner: Runner, folder: Path) -> dict[str, Any]:
    """A file that takes a whole context at once: what is said when it is full, and after that."""
    import lostwax

    model, path = make_model("Llama"), folder / "brim.pte"
    made = lostwax.llm.export(model, context=24)
    made.save(path)
    prompt = list(range(5, 22))
    full = made.generate(prompt, 24 - 17)
    said = {"more": [runner.generate(path, [prompt], 60)[0], full]}
    for name, ask in {
        "runner": lambda: runner.generate(path, [list(range(24))], 1),
        "ours": lambda: made.generate(prompt, 24 - 17 + 1),
        "empty": lambda: made.generate([], 1),
    }.items():
        try:
            said[name] = ask()
        except Exception as error:
            said[name] = str(error)  # type: ignore[assignment]
    said["check"] = [bool(made.check(model)), made.check(model).counts]  # type: ignore[list-item]
    other = make_model("Llama 3")
    said["other"] = made.check(other).difference  # type: ignore[assignment]
    return said


def main(families: list[str]) -> None:
    torch.set_num_threads(1)
    import_torchvision()
    warnings.simplefilter("ignore")
    try:
        import executorch.extension.llm.runner
        import executorch.kernels.quantized  # noqa: F401
    except (ImportError, RuntimeError) as error:
        print("\n" + json.dumps({"missing": str(error)}))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(Path(name))
        results["brim"] = judge_the_brim(runner, Path(name))
        for family in families:
            for backend in ("xnnpack", None) if family in ("Llama", "Mamba 2") else ("xnnpack",):
                key = family if backend else f"{family}, portable"
                results[key] = try_to_judge(family, runner, Path(name), {"backend": backend})
        for key, (family, options) in SMALL.items() if families == list(FAMILIES) else ():
            results[key] = try_to_judge(family, runner, Path(name), options, **WIDE)
        for key, family in QUANTIZED.items() if WHOLE and families == list(FAMILIES) else ():
            options, sizes = {"quantize": "8da4w", "embedding": 8}, widen(family)
            results[key] = try_to_judge(family, runner, Path(name), options, **sizes)
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:] or list(FAMILIES))
