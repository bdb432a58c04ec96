"""Generation by exported components, beside eager `generate`; and what else our backend of
`transformers.exporters` does. Each case is a function that raises if something is wrong.

A script, `python -m tests.interop.generation`, that prints what became of the cases as JSON:
transformers and torch's registrations of containers are of the whole process.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.errors import LostwaxError
from tests.whole import sampled

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
FORMATS: dict[str, dict[str, Any]] = {
    "pt2": {"export_format": "lostwax", "dynamic": True},
    "pte": {"export_format": "lostwax_pte", "dynamic": True, "largest": 32},
    "onnx": {"export_format": "lostwax_onnx", "dynamic": True},
}
HAS_ONNX = all(map(find_spec, ("onnx_ir", "onnxruntime")))
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def onnx_case(function: Callable[[], None]) -> Callable[[], None]:
    return case(function) if HAS_ONNX else function


# ------------------------------------------------------------------------------------------ models


def prompts(batch: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, 0] = 0  # a mask of ones would not be handed on
    return {"input_ids": torch.randint(3, 90, (batch, length)), "attention_mask": mask}


def decoder(name: str, **more: Any) -> nn.Module:
    cls = getattr(import_transformers(), name)
    return cls(cls.config_class(**TEXT, **more))  # type: ignore[no-any-return]


def t5() -> nn.Module:
    hf = import_transformers()
    sizes = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2}
    config = hf.T5Config(**sizes, num_heads=4, decoder_start_token_id=0)
    return hf.T5ForConditionalGeneration(config)  # type: ignore[no-any-return]


def bart() -> nn.Module:
    hf = import_transformers()
    sizes = {
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 37))
    }
    ids = {"pad_token_id": 1, "decoder_start_token_id": 2, "forced_eos_token_id": None}
    config = hf.BartConfig(vocab_size=99, d_model=32, max_position_embeddings=64, **sizes, **ids)
    return hf.BartForConditionalGeneration(config)  # type: ignore[no-any-return]


def llava() -> nn.Module:
    hf = import_transformers()
    vision = {k: v for k, v in TEXT.items() if k not in ("num_key_value_heads", "vocab_size")}
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**vision, image_size=16, patch_size=4),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=99,
        vision_feature_layer=-1,
    )
    return hf.LlavaForConditionalGeneration(config)  # type: ignore[no-any-return]


def pictures(batch: int, length: int) -> dict[str, Tensor]:
    call = prompts(batch, length)
    places = torch.full((batch, 16), 99)  # one for each patch of the picture
    ids = torch.cat([call["input_ids"], places], 1)
    mask = torch.cat([call["attention_mask"], torch.ones_like(places)], 1)
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(batch, 3, 16, 16)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], dict[str, Tensor]]]] = {
    "llama": (partial(decoder, "LlamaForCausalLM"), prompts),
    "qwen2": (partial(decoder, "Qwen2ForCausalLM"), prompts),
    "gemma2": (partial(decoder, "Gemma2ForCausalLM", head_dim=8, sliding_window=5), prompts),
    "t5": (t5, prompts),
    "bart": (bart, prompts),
    "llava": (llava, pictures),
}


# -------------------------------------------------------------------------------------- generation


def generate(name: str, form: str) -> None:
    """Tokens of the components, saved and loaded, are those of eager, for other sizes, too."""
    auto = import_transformers().exporters
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make().eval()
    model.generation_config.pad_token_id = 1
    config = auto.AutoExportConfig.from_dict(FORMATS[form])
    exporter = auto.AutoHfExporter.from_config(config)
    exported = exporter.export_for_generation(model, inputs(2, 6), config)
    with tempfile.TemporaryDirectory() as folder:
        exported.save_pretrained(folder)
        suffix = exporter.program_suffix
        assert {f"{n}{suffix}" for n in exported.components} <= set(os.listdir(folder))
        exported = auto.ExportedModel.from_pretrained(folder)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    for batch, length in ((2, 6), (3, 4), (1, 9)):
        call = inputs(batch, length)
        want = model.generate(**copy.deepcopy(call), **options)
        with attach(model, exported) as calls:
            got = model.generate(**copy.deepcopy(call), **options)
        assert torch.equal(got, want), (got, want)
        assert calls == dict.fromkeys(exported.components, 1) | {"decode": 7}, calls


for _name, _form in (
    *((name, "pt2") for name in MODELS),
    *((name, "pte") for name in ("llama", "gemma2", "t5", "bart", "llava")),
    *((name, "onnx") for name in sampled(("llama", "t5"), MODELS) if HAS_ONNX),
):
    CASES[f"{_name} as .{_form}"] = partial(generate, _name, _form)


@contextmanager
def attach(model: Any, exported: Any) -> Iterator[Counter[str]]:
    """Let the components of an export compute what the modules of the model would."""
    utils = import_transformers().exporters.utils
    calls: Counter[str] = Counter()
    runners, own = exported.runners, model.forward
    parts = dict(utils._find_multimodal_submodules(model))
    if "encoder" in runners:
        parts["encoder"] = model.get_encoder()

    def call(name: str, names: list[str], *args: Any, **given: Any) -> Any:
        calls[name] += 1
        given |= dict(zip(names, args, strict=False))
        traced = runners[name].metadata.kwargs
        return runners[name](**{n: v for n, v in given.items() if n in traced})

    def choose(**given: Any) -> Any:
        if given["past_key_values"].get_seq_length() > 0:
            return call("decode", [], **given)
        return call("prefill", [], **given) if "prefill" in runners else own(**given)

    with ExitStack() as stack:
        for name, part in parts.items():
            names = list(inspect.signature(part.forward).parameters)
            replace(stack, part, partial(call, name, names))
        replace(stack, model, choose)
        yield calls


def replace(stack: ExitStack, module: nn.Module, function: Any) -> None:
    module.forward = wraps(module.forward)(lambda *args, **kwargs: function(*args, **kwargs))
    stack.callback(lambda: delattr(module, "forward"))


# ------------------------------------------------------------------------------------------- rest


def export_llama(config: Any = None, **inputs: Any) -> tuple[Any, Any, Any]:
    ours = import_ours()
    torch.manual_seed(0)
    model = decoder("LlamaForCausalLM").eval()
    inputs = inputs or prompts(2, 6)
    config = config or ours.LostwaxConfig(dynamic=True)
    exporter = import_transformers().exporters.AutoHfExporter.from_config(config)
    return model, inputs, exporter.export(model, inputs, config)


def same_caches(got: Any, want: Any) -> None:
    for a, b in zip(got.layers, want.layers, strict=True):
        torch.testing.assert_close((a.keys, a.values), (b.keys, b.values))


@case
def one_program() -> None:
    """A single program, called as the model is; what it was not exported with is dropped."""
    model, inputs, exported = export_llama()
    assert type(exported).__name__ == "ExportedModel"
    assert exported.program.module()(**inputs).logits.shape == (2, 6, 100)
    for call in (inputs, prompts(3, 9)):
        want = model(**call)
        got = exported(**call, labels=None)
        assert type(got) is type(want)
        torch.testing.assert_close(got.logits, want.logits)
        same_caches(got.past_key_values, want.past_key_values)
    (component,) = exported.components.values()
    assert component.metadata.architecture == "LlamaForCausalLM"
    assert component.metadata.export_config["dynamic"] is True


@case
def runners_load_once() -> None:
    _, inputs, exported = export_llama()
    first = exported.runners["model"].module
    exported(**inputs)
    exported(**inputs)
    assert exported.runners["model"].module is first


@case
def no_patch_is_entered() -> None:
    utils = import_transformers().exporters.utils

    def refuse(*_: Any) -> Any:
        raise AssertionError("a patch of transformers was entered")

    before = utils.patch_attribute, utils.apply_patches
    utils.patch_attribute = utils.apply_patches = refuse
    try:
        export_llama()
    finally:
        utils.patch_attribute, utils.apply_patches = before


@case
def flags_are_put_back() -> None:
    ours = import_ours()
    model = decoder("LlamaForCausalLM").eval()
    assert model.config.use_cache is True
    call = {**prompts(2, 6), "use_cache": False}
    exported = ours.LostwaxExporter().export(model, call, ours.LostwaxConfig())
    assert model.config.use_cache is True
    assert exported(**prompts(2, 6)).past_key_values is None


@case
def experts() -> None:
    """A mixture of experts as a .pte file; the model keeps its own way to multiply."""
    ours = import_ours()
    torch.manual_seed(0)
    model = decoder("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2).eval()
    before = model.get_experts_implementation()
    call = prompts(2, 6)
    exported = ours.LostwaxPteExporter().export(model, call, ours.LostwaxPteConfig())
    assert model.get_experts_implementation() == before
    torch.testing.assert_close(exported(**call).logits, model(**call).logits, rtol=1e-4, atol=1e-5)


@case
def static_cache_is_written() -> None:
    """The program writes the cache that it is given, as the model does."""
    ours = import_ours()
    check_static_cache(ours.LostwaxExporter(), ours.LostwaxConfig())


@onnx_case
def static_cache_is_written_by_onnx() -> None:
    ours = import_ours()
    check_static_cache(ours.LostwaxOnnxExporter(), ours.LostwaxOnnxConfig())


def check_static_cache(exporter: Any, config: Any) -> None:
    hf = import_transformers()
    torch.manual_seed(0)
    model = decoder("LlamaForCausalLM").eval()
    static = hf.GenerationConfig(cache_implementation="static", max_cache_len=16, do_sample=False)
    components = hf.exporters.utils.decompose_for_generation(
        model, prompts(2, 4), generation_config=static
    )
    decode, inputs = components["decode"]
    exported = exporter.export(decode, inputs, config)
    mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    for _ in range(3):
        got, want = exported(**mine), decode(**theirs)
        torch.testing.assert_close(got.logits, want.logits)
        same_caches(mine["past_key_values"], theirs["past_key_values"])
        (layer, *_) = mine["past_key_values"].layers
        assert torch.equal(layer.cumulative_length, theirs["past_key_values"].get_seq_length())


class Kinds(nn.Module):
    """Takes and returns all that is no tensor, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.weight = nn.Parameter(torch.randn(40, 40))

    def forward(
        self, x: Tensor, count: Tensor, keep: Tensor, parts: Any = None, mode: str = "add"
    ) -> dict[str, Any]:
        self.count += 1
        y = x @ self.weight + (parts[0] if mode == "add" else 0)
        found = {"y": torch.where(keep, y, 0), "rows": x.shape[0], "none": None, "mode": mode}
        return found | {"of": (self.count * count, True, 2.5), "keep": ~keep, "half": x.bfloat16()}


@onnx_case
def what_is_no_tensor_in_an_onnx_file() -> None:
    """Texts, numbers and None come back as they are, and a number that is computed is a number.
    The file and the program in memory do the same; state goes from call to call."""
    ours, hf = import_ours(), import_transformers()
    torch.manual_seed(0)
    eager = Kinds()
    shapes = {name: {0: lostwax.Dim("rows")} for name in ("x", "keep")}
    config = ours.LostwaxOnnxConfig(dynamic_shapes={**shapes, "parts": None, "count": None})

    def make_call(rows: int) -> dict[str, Any]:
        x = torch.randn(rows, 40)
        return {"x": x, "count": torch.tensor(3), "keep": x > 0, "parts": [x[:1] * 2, 4]}

    exported = ours.LostwaxOnnxExporter().export(eager, make_call(2), config)
    exported.to()  # holds the state as it is now; until then it is the module's
    with tempfile.TemporaryDirectory() as folder:
        exported.save_pretrained(folder)
        files = {"export.json", "model.onnx", "model.onnx.data"}
        assert set(os.listdir(folder)) == files, os.listdir(folder)
        assert os.path.getsize(f"{folder}/model.onnx.data") == 6400  # the weight
        loaded = hf.exporters.ExportedModel.from_pretrained(folder)
        again = f"{folder}/again"
        loaded.save_pretrained(again)  # what is read from a file can be written
        third = hf.exporters.ExportedModel.from_pretrained(again)
    for rows in (2, 5, 1):
        call = make_call(rows)
        want = eager(**call)
        for each in (exported, loaded, third):
            got = each(**call)
            assert list(got) == list(want)
            torch.testing.assert_close(got["y"], want["y"], rtol=1e-4, atol=1e-4)
            for name in ("half", "keep"):
                assert torch.equal(got[name], want[name])
            assert torch.equal(got["of"][0], want["of"][0])  # the calls until now, times three
            assert type(got["rows"]) is int
            plain = (got["rows"], got["none"], got["mode"], *got["of"][1:])
            assert plain == (rows, None, "add", True, 2.5), plain
    call = make_call(2)
    changed = {**call, "parts": [call["parts"][0], 5]}
    refused(lambda: loaded(**changed), "an input is not 4, with which the program was exported")
    fewer = {**call, "parts": call["parts"][:1]}
    refused(lambda: loaded(**fewer), "the inputs are not built like those of the export")
    refused(
        lambda: loaded(**{**call, "keep": call["keep"][:1]}),
        "for keep.shape[0] == x.shape[0], and here",
    )
    refused(
        lambda: exported.to("cuda"),
        "the runner of .onnx files runs on the CPU, not on cuda",
        'instead: providers=["CUDAExecutionProvider"]',
    )


@onnx_case
def experts_in_an_onnx_file() -> None:
    ours = import_ours()
    torch.manual_seed(0)
    model = decoder("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2).eval()
    call = prompts(2, 6)
    exporter, config = ours.LostwaxOnnxExporter(), ours.LostwaxOnnxConfig(dynamic=True, opset=18)
    exported = exporter.export(model, call, config)
    assert exported.program.opset_imports[""] == 18
    for each in (call, prompts(3, 4)):
        got, want = exported(**each).logits, model(**each).logits
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@case
def torch_reads_the_file() -> None:
    """What transformers runs for its own backend "dynamo" runs a file of ours."""
    hf = import_transformers()
    model, inputs, exported = export_llama()
    with tempfile.TemporaryDirectory() as folder:
        exported.save_pretrained(folder)
        manifest = os.path.join(folder, "export.json")
        with open(manifest) as file:
            text = file.read()
        with open(manifest, "w") as file:
            file.write(text.replace('"export_format": "lostwax"', '"export_format": "dynamo"'))
        theirs = hf.exporters.ExportedModel.from_pretrained(folder)
    got = theirs(**inputs)
    torch.testing.assert_close(got.logits, model(**inputs).logits)
    same_caches(got.past_key_values, model(**inputs).past_key_values)


@case
def descriptions_of_caches() -> None:
    """Ours are those of transformers, and give the cache back."""
    containers = __import__("lostwax.interop.transformers.containers", fromlist=["_"])
    theirs = __import__("transformers.exporters.exporter_dynamo", fromlist=["_"])
    hf = import_transformers()
    full = hf.DynamicCache(config=decoder("Gemma2ForCausalLM", head_dim=8).config)
    full.update(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8), 0)
    pair = hf.EncoderDecoderCache(full, hf.DynamicCache())
    for cache in (full, hf.DynamicCache(), pair):
        leaves, description = containers.flatten(cache)
        want, text = theirs._pytree_flatten(cache)
        assert description == text
        assert all(a is b for a, b in zip(leaves, want, strict=True))
        again = containers.unflatten(leaves, json.loads(json.dumps(description)))
        assert type(again) is type(cache)
        assert containers.flatten(again)[1] == description


@case
def what_is_fixed_although_all_may_vary_is_told() -> None:
    """A model that takes lengths other than one only: exported again, with that length."""
    from lostwax.interop.transformers.exporter import LostwaxConfig, _export

    class OneToken(nn.Module):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                ids, ids, ids, is_causal=mask.shape[1] != 1
            )

    ids, mask = torch.randn(2, 3, 4, 8), torch.ones(2, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wanted = {"ids": ids, "mask": mask}
        program = _export(OneToken(), wanted, LostwaxConfig(dynamic=True))
    texts = [str(each.message) for each in caught if "these sizes are 1" in str(each.message)]
    assert len(texts) == 1
    assert "in the program: mask.shape[1]. With them varying" in texts[0]
    torch.testing.assert_close(program.module()(**wanted), OneToken()(**wanted))


@case
def a_file_is_replaced_when_all_is_written() -> None:
    exporter = import_ours().LostwaxPteExporter
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pte"
        exporter.save_program(b"old", path)
        refused_write: Any = memoryview(b"new")[::2].tolist()  # no bytes
        try:
            exporter.save_program(SimpleNamespace(buffer=refused_write), path)
        except TypeError:
            assert path.read_bytes() == b"old"
            assert [each.name for each in Path(folder).iterdir()] == ["x.pte"]
        else:
            raise AssertionError


@case
def sizes_of_a_pte_file_are_checked() -> None:
    """By what the export found, also when the file was saved: the runtime compares with the largest
    alone."""
    ours, hf = import_ours(), import_transformers()
    model, inputs, exported = export_llama(ours.LostwaxPteConfig(dynamic=True, largest=32))
    with tempfile.TemporaryDirectory() as folder:
        exported.save_pretrained(folder)
        loaded = hf.exporters.base.ExportedModel.from_pretrained(folder)
        longer = prompts(3, 9)
        torch.testing.assert_close(loaded(**longer).logits, model(**longer).logits)
        refused(
            lambda: loaded(**{**inputs, "input_ids": inputs["input_ids"][:, :5]}),
            "for input_ids.shape[1] >= attention_mask.shape[1], and here input_ids.shape[1] "
            "is 5, attention_mask.shape[1] is 6",
            "instead: pass such sizes, or export again with dynamic_shapes",
        )
        refused(lambda: loaded(**prompts(2, 33)), "32 >= input_ids.shape[1], and here")


def refused(work: Callable[[], Any], *texts: str) -> None:
    with pytest.raises(LostwaxError) as found:
        work()
    assert all(text in str(found.value) for text in texts), str(found.value)


@case
def refusals() -> None:
    ours, hf = import_ours(), import_transformers()
    pte = ours.LostwaxPteConfig
    refused(
        lambda: ours.LostwaxConfig(quantizer=object()),
        "a LostwaxConfig takes no quantizer",
        "instead: quantize the program",
    )
    refused(
        lambda: pte(dynamic=True),
        "sizes that vary need a largest one",
        "instead: LostwaxPteConfig(dynamic=True, largest=128)",
    )
    refused(
        lambda: pte(backend="vulkan"),
        "no backend 'vulkan'",
        "instead: xnnpack; a partitioner of your own",
    )
    _, inputs, exported = export_llama(pte())
    refused(lambda: exported.to("cuda"), "runs on the CPU, not on cuda", "instead: no device")
    exported.to()
    refused(
        lambda: exported.runners["model"](input_ids=inputs["input_ids"]),
        "the inputs are not built like those of the export",
        "instead: pass what the export was given, or export again with these inputs",
    )
    _, inputs, exported = export_llama(pte(), **prompts(2, 4), logits_to_keep=1)
    assert exported(**inputs).logits.shape == (2, 1, 100)
    refused(
        lambda: exported(**{**inputs, "logits_to_keep": 2}),
        "logits_to_keep is not 1, with which the program was exported, and which is baked into it",
        "instead: leave it out, or export again with the other one",
    )
    config = decoder("Gemma2ForCausalLM", head_dim=8, sliding_window=5).config
    cache = hf.StaticCache(config=config, max_cache_len=16)
    refused(
        lambda: export_llama(**prompts(1, 3), past_key_values=cache),
        "a static cache with a window counts its tokens in Python",
        'instead: cache_implementation="dynamic"',
    )
    bound = hf.DynamicCache()
    bound.count = bound.get_seq_length
    refused(
        lambda: export_llama(**prompts(1, 3), past_key_values=bound),
        "a cache has an attribute of class method, which no file can hold",
        "instead: a cache whose attributes are tensors, numbers and containers of them",
    )


# ------------------------------------------------------------------------------------------ script


def find_version() -> tuple[int, ...]:
    """Of transformers; nothing if it is not installed. (5, 23) is the first that takes backends."""
    try:
        return tuple(map(int, metadata.version("transformers").split(".")[:2]))
    except metadata.PackageNotFoundError:
        return ()


def import_transformers() -> Any:
    from sweep.libraries import import_torchvision

    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    import_torchvision()
    import transformers
    import transformers.exporters.utils

    return transformers


def import_ours() -> Any:
    import_transformers()
    import lostwax.interop.transformers

    return lostwax.interop.transformers


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import_ours()
    found = {}
    for name, function in CASES.items():
        if sys.argv[1:] and not any(text in name for text in sys.argv[1:]):
            continue
        try:
            function()
            found[name] = "ok"
        except Exception:
            found[name] = traceback.format_exc()[-4000:]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
