"""Scripts that take torch.export's programs on, run as they are under `patch_torch_export`: they
compute what they compute with torch's own."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import lostwax
from sweep.libraries import load_transformers
from tests.inductor import QUICKLY
from tests.interop.scripts import ConvNet, MyModule, assert_same, seeded
from tests.whole import sampled

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def aot_inductor(folder: Path) -> Any:
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor needs a C++ compiler")
    args, batch = (torch.ones(3, 10), torch.ones(3, 10)), Dim("batch", min=1, max=64)
    ep = torch.export.export(
        seeded(MyModule), args, dynamic_shapes={"x": {0: batch}, "y": {0: batch}}
    )
    path = torch._inductor.aoti_compile_and_package(
        ep, package_path=str(folder / "model.pt2"), inductor_configs=QUICKLY
    )
    return torch._inductor.aoti_load_package(path)(torch.ones(5, 10), torch.ones(5, 10))


def executorch(folder: Path) -> Any:
    exir = pytest.importorskip("executorch.exir", reason="executorch is not installed")
    from tests.pte.runtime import Runtime

    ep = torch.export.export(seeded(ConvNet).eval(), (X,))
    edge = exir.to_edge_transform_and_lower(ep)
    return Runtime(edge.to_executorch().buffer)(X)


def onnx(folder: Path) -> Any:
    """Of a program, and of a module, which torch.onnx exports with `torch.export.export`."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, shapes = seeded(ConvNet).eval(), ({0: Dim("batch")},)
    given = [
        torch.export.export(model, (X,), dynamic_shapes=shapes),
        model,
    ]
    results = []
    for i, each in enumerate(given):
        path = folder / f"{i}.onnx"
        options = {} if i == 0 else {"args": (X,), "dynamic_shapes": shapes}
        torch.onnx.export(each, dynamo=True, verbose=False, **options).save(path)
        session = runtime.InferenceSession(path)
        (name,) = (each.name for each in session.get_inputs())
        results.append(torch.from_numpy(session.run(None, {name: X.repeat(2, 1, 1, 1).numpy()})[0]))
    return results


class WithModule(ConvNet):
    """Its activation is a module, which the quantizer knows in torch's program, too."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = torch.nn.ReLU()

    def forward(self, x):
        return self.head(self.activation(self.bn(self.conv(x))).mean((2, 3)))


def quantize(train: bool, net: type[ConvNet] = ConvNet) -> Any:
    pytest.importorskip("torchao", reason="torchao is not installed")
    from torchao.quantization import pt2e
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    model = seeded(net).train(train)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_qat=train))
    module = torch.export.export(model, (X,)).module()
    prepared = (prepare_qat_pt2e if train else prepare_pt2e)(module, quantizer)
    for _ in range(2):
        out = prepared(X)
        if train:
            out.square().sum().backward()
    if train:
        pt2e.move_exported_model_to_eval(prepared)
    converted = convert_pt2e(prepared)
    names = [str(node.target) for node in converted.graph.nodes if "quantize" in str(node.target)]
    assert len(names) > 4
    norms = [n for n in converted.graph.nodes if n.target is torch.ops.aten.batch_norm.default]
    return converted(X), sorted(names), len(norms)


def pt2e(folder: Path) -> Any:
    return quantize(train=False)


def pt2e_training(folder: Path) -> Any:
    return quantize(train=True)


def pt2e_training_of_modules(folder: Path) -> Any:
    return quantize(train=True, net=WithModule)


def hugging_face(folder: Path) -> Any:
    """transformers' own function, which asks for `strict=True`: its cache is an object that holds
    the module's buffers."""
    if find_spec("transformers") is None:
        pytest.skip("needs transformers")
    transformers = load_transformers()
    from transformers.integrations.executorch import (
        TorchExportableModuleWithStaticCache,
        convert_and_export_with_cache,
    )

    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    model = seeded(transformers.LlamaForCausalLM, config).eval()
    model.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=16,
        cache_config={"batch_size": 1, "max_cache_len": 16},
    )
    ep = convert_and_export_with_cache(model)
    return TorchExportableModuleWithStaticCache.generate(ep, torch.tensor([[5, 6, 7]]), 6)


LONG = [aot_inductor, pt2e_training, pt2e_training_of_modules]
"""A minute: the C++ compiler; and torchao exports all its patterns."""
SCRIPTS = [executorch, onnx, pt2e, hugging_face, *sampled([], LONG)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_runs_as_it_is(
    script: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("torch", "ours"):
        (tmp_path / name).mkdir()
    expected = script(tmp_path / "torch")
    with lostwax.patch_torch_export():
        found = script(tmp_path / "ours")
    # Of quantization: torch's program names no source of `torch.relu` that the quantizer knows, so
    # it observes what goes into it; in ours, what comes out. With a module both are the same.
    steps: dict[Any, dict[str, float]] = {
        pt2e_training: {"atol": 0.01, "rtol": 0.0},
        pt2e_training_of_modules: {"atol": 0.0, "rtol": 0.0},
    }
    step = steps.get(script, {})
    assert_same(found, expected, **step)


def test_a_quantizer_that_would_find_nothing_is_told_what_to_write():
    """Renamed to lostwax, without the patch: layers are taken apart, and torchao says nothing."""
    pytest.importorskip("torchao", reason="torchao is not installed")
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
    from torchao.quantization.pt2e.quantizer import Quantizer

    class Nothing(Quantizer):
        def annotate(self, model: Any) -> Any:
            return model

        def validate(self, model: Any) -> None:
            pass

    whole = lostwax.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),), keep="composite")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        prepare_pt2e(whole.module(), Nothing())
    parts = lostwax.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
    with pytest.warns(UserWarning, match=r'it has aten.addmm.default\n.*keep="composite"') as said:
        prepare_pt2e(parts.module(), Nothing())
    assert {each.filename for each in said} == {__file__}
