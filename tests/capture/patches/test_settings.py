"""What torch has set and no argument says: a capture honours it or refuses it, and where kernels
read it a program's call does what eager does; nothing is ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lostwax import capture, export, load, save, unflatten
from lostwax.errors import CaptureError, SettingsError
from tests.capture.small import Of, same

X = torch.randn(3, 4)


@contextmanager
def changed(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _tf32(value: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = value


def _cudnn(value: bool) -> None:
    torch.backends.cudnn.benchmark = value


INSIDE: dict[str, Callable[[], Any]] = {
    "matmul.allow_tf32": lambda: _tf32(True),
    "cudnn.benchmark": lambda: _cudnn(True),
    "cudnn.enabled": lambda: torch.backends.cudnn.set_flags(_enabled=False),
    "mkldnn.enabled": lambda: torch.backends.mkldnn.set_flags(_enabled=False),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "use_deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True),
    "set_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "set_default_device": lambda: torch.set_default_device("meta"),
    "set_flush_denormal": lambda: torch.set_flush_denormal(True),
    "set_default_tensor_type": lambda: torch.set_default_tensor_type(torch.DoubleTensor),
    "allow_fp16_bf16_reduction_math_sdp": lambda: (
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    ),
}


def everything() -> list[Any]:
    """What they set."""
    return [
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.enabled,
        torch.backends.mkldnn.enabled,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
    ]


SEEDS: dict[str, Callable[[], Any]] = {
    "cuda": lambda: torch.cuda.manual_seed(0),
    "all of cuda": lambda: torch.cuda.manual_seed_all(0),
    "state": lambda: torch.cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8)),
    "xpu": lambda: torch.xpu.manual_seed(0),
    "mps": lambda: torch.mps.manual_seed(0),
}


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_of_devices_are_refused(name: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        SEEDS[name]()
        return torch.nn.functional.dropout(x)

    with pytest.raises(CaptureError, match=r"seeds none[\s\S]*test_settings.py"):
        export(Of(forward), (X,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INSIDE)
def test_inside_of_a_program_it_is_refused(name: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        INSIDE[name]()
        return x * 2

    before = everything()
    with pytest.raises(Exception, match=rf"{name}[\s\S]*test_settings.py:\d+[\s\S]*instead"):
        export(Of(forward), (X,))
    assert everything() == before


@pytest.mark.parametrize("backend", [torch.backends.cudnn, torch.backends.mkldnn])
def test_a_block_that_puts_them_back_is_captured(backend: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with backend.flags(enabled=False):
            y = x * 2
            return y if y.sum() > 0 else -y

    def fails(self: Any, x: Tensor) -> Tensor:
        with backend.flags(enabled=False):
            raise ValueError("the module's own")

    before = everything()
    same(Of(forward), X)
    with pytest.raises(ValueError, match="own"):
        export(Of(fails), (X,))
    assert everything() == before


def test_what_is_so_already_may_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own testing module, which other tests import, forbids such assignments for good.
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)

    def forward(self: Any, x: Tensor) -> Tensor:
        torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32
        torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
        torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
        with torch.backends.cudnn.flags(
            enabled=torch.backends.cudnn.enabled,
            benchmark=torch.backends.cudnn.benchmark,
            deterministic=torch.backends.cudnn.deterministic,
        ):
            return x * 2

    same(Of(forward), X)


# ---------------------------------------------------------- read by kernels: as in eager's own call


def _precision(value: str) -> AbstractContextManager[None]:
    return changed(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value)


def _deterministic() -> AbstractContextManager[None]:
    of = torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    return changed(*of, True)


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "precision": lambda: _precision("medium"),
    "deterministic": _deterministic,
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "cudnn": lambda: torch.backends.cudnn.flags(enabled=False),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "inference": torch.inference_mode,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", AROUND)
def test_around_a_call_it_has_the_effect_that_it_has_in_eager(name: str, when: str) -> None:
    """Set after the capture, or unset after it."""
    attention = nn.functional.scaled_dot_product_attention

    def forward(self: Any, x: Tensor) -> Any:
        y = self.a(x)
        return y, attention(y, y, y), torch.empty(2).isnan().any() | True

    module, x = Of(forward, a=nn.Linear(4, 4)), torch.randn(2, 3, 4)
    if when == "before":
        with AROUND[name]():
            ours = export(module, (x,)).module()
        torch.testing.assert_close(ours(x), module(x))
    else:
        ours = export(module, (x,)).module()
        with AROUND[name]():
            torch.testing.assert_close(ours(x), module(x))


def test_determinism_reaches_the_operators() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return torch.empty(5), x.put(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))

    module = Of(forward)
    ours = export(module, (X,)).module()
    with _deterministic():
        for each in (module, ours):
            with pytest.raises(RuntimeError, match="deterministic"):
                each(X)
    filled = export(Of(lambda self, x: torch.empty(5) + x.sum()), (X,)).module()
    with _deterministic():
        assert filled(X).isnan().all()


# ------------------------------------------------------------------ read by Python: as at capture


def made(self: Any, x: Tensor) -> Any:
    return x.sum() + torch.ones(4), torch.arange(3) / 2


def test_another_default_dtype() -> None:
    before = torch.get_default_dtype()
    module = Of(made)
    program = export(module, (X,))
    plain = export(nn.Linear(4, 4), (X,)).module()
    torch.set_default_dtype(torch.float64)
    try:
        for ours in (program.module(), unflatten(program)):
            with pytest.raises(SettingsError, match=r"default dtype is float64[\s\S]*float32"):
                ours(X)
        assert plain(X).dtype is torch.float32  # where it does not matter
        wide = export(module, (X,)).module()
        torch.testing.assert_close(wide(X), module(X))
    finally:
        torch.set_default_dtype(before)
    with pytest.raises(SettingsError, match="was float64"):
        wide(X)


def test_another_default_device() -> None:
    module = Of(made)
    ours = export(module, (X,)).module()
    plain = export(nn.Linear(4, 4), (X,)).module()
    with torch.device("meta"):
        with pytest.raises(SettingsError, match=r"default device is meta[\s\S]*was cpu"):
            ours(X)
        assert plain(X).device.type == "cpu"
    with torch.device("cpu"):
        torch.testing.assert_close(ours(X), module(X))


def test_a_default_device_inside_and_around() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.device("meta"):
            inside = torch.ones(2)
        return inside, torch.zeros(2), x * 2

    module = Of(forward)
    assert [t.device.type for t in export(module, (X,)).module()(X)] == ["meta", "cpu", "cpu"]
    with torch.device("meta"):
        ours = export(module, (X,)).module()
        assert [t.device.type for t in ours(X)] == [t.device.type for t in module(X)]
    with pytest.raises(SettingsError, match="was meta"):
        ours(X)


def test_captured_calls_follow_the_defaults() -> None:
    module = Of(made)
    ours = capture(module)
    ours(X)
    with torch.device("meta"):
        assert ours(X)[1].device.type == "meta"
    assert ours(X)[1].device.type == "cpu"


def test_files_keep_them(tmp_path: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        save(export(nn.Linear(4, 4), (X,)), tmp_path / "a.pt2")
    program = load(tmp_path / "a.pt2")
    assert program.settings is not None
    assert program.settings.autocast == (("cpu", "bfloat16"),)
    with torch.autocast("cpu", torch.bfloat16):
        assert program.module()(X).dtype is torch.bfloat16
    with torch.autocast("cpu", torch.float16), pytest.raises(SettingsError, match=r"was torch\.bf"):
        program.module()(X)
