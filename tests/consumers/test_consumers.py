"""Programs through `to_torch` in other people's consumers: converted, run there, and compared with
eager, with fixed and with varying sizes.

The extra `consumers` has onnxruntime, OpenVINO and TVM; `make test` installs it. ExecuTorch comes
with the extra `test`. What a consumer cannot do with torch.export's own programs is named where it
is left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.consumers.programs import CASES, FORMS, export, make_calls
from tests.inductor import QUICKLY
from tests.whole import sampled

pytestmark = pytest.mark.filterwarnings("ignore")
Runner = Callable[..., list[Tensor]]


def use(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: make consumers")


def run_in_onnxruntime(program: Any, folder: Path) -> Runner:
    onnxruntime = use("onnxruntime")
    path = folder / "model.onnx"
    torch.onnx.export(program, dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_inputs()]

    def run(*args: Tensor) -> list[Tensor]:
        feed = {name: x.numpy() for name, x in zip(names, args, strict=True)}
        return [torch.from_numpy(each) for each in session.run(None, feed)]

    return run


def run_in_openvino(program: Any, folder: Path) -> Runner:
    openvino = use("openvino")
    exact = {"INFERENCE_PRECISION_HINT": "f32"}  # some processors would take bfloat16
    compiled = openvino.compile_model(openvino.convert_model(program), "CPU", exact)

    def run(*args: Tensor) -> list[Tensor]:
        results = compiled([x.numpy() for x in args])
        return [torch.from_numpy(results[each].copy()) for each in compiled.outputs]

    return run


def run_in_tvm(program: Any, folder: Path) -> Runner:
    tvm = use("tvm")
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    module = from_exported_program(program)
    machine = relax.VirtualMachine(relax.build(module, target="llvm"), tvm.cpu())

    def run(*args: Tensor) -> list[Tensor]:
        results = machine["main"](*(tvm.runtime.tensor(x.numpy()) for x in args))
        return [torch.from_numpy(each.numpy()) for each in results]

    return run


def run_in_executorch(program: Any, folder: Path) -> Runner:
    use("executorch")
    from executorch.exir import to_edge

    from tests.pte.runtime import Runtime

    return Runtime(to_edge(program).to_executorch().buffer)


def run_in_aot_inductor(program: Any, folder: Path) -> Runner:
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor needs a C++ compiler")
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(folder / "model.pt2"), inductor_configs=QUICKLY
    )
    compiled = torch._inductor.aoti_load_package(path)
    return lambda *args: [compiled(*args)]


def list_tests() -> list[tuple[Any, str, str]]:
    converters = (run_in_onnxruntime, run_in_openvino, run_in_tvm, run_in_executorch)
    plain = [(to, name, form) for to in converters for name in CASES for form in FORMS]
    few = {"static": ("mlp",), "dynamic": [name for name in CASES if name != "mlp"]}
    most = {"static": CASES, "dynamic": CASES, "composite": ("convnet", "transformer")}
    kept = [each for each in plain if each[1] in sampled(few, most).get(each[2], ())]
    kept += sampled([(run_in_onnxruntime, "transformer", "composite")], [])
    # Ten seconds each, nearly all of them in the C++ compiler; a recipe has another one.
    names = sampled(["transformer"], [name for name in CASES if name != "mlp"])
    compiled = [*sampled([], [("mlp", "static")]), *((name, "dynamic") for name in names)]
    return kept + [(run_in_aot_inductor, *each) for each in compiled]


@pytest.mark.parametrize(
    ("convert", "name", "form"),
    [
        pytest.param(*each, id="-".join((each[0].__name__.removeprefix("run_in_"), *each[1:])))
        for each in list_tests()
    ],
)
def test_consumer(
    convert: Callable[[Any, Path], Runner],
    name: str,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    case = CASES[name]
    module, program = export(case, **FORMS[form])
    run = convert(program, tmp_path)
    calls = make_calls(case, form)
    if convert is run_in_executorch and name == "transformer":
        # Its `to_edge` fixes the batch of this model, also in torch.export's own program.
        calls = [call for call in calls if call[0].shape[0] == case.sizes[0][0]]
    assert calls
    for call in calls:
        with torch.no_grad():
            torch.testing.assert_close(run(*call), [module(*call)], rtol=1e-3, atol=1e-4)
