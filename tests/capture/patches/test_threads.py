"""What a capture changes holds for its own thread: others see torch as it is, and nothing of theirs
gets into a program."""

from __future__ import annotations

import copy
import math
import pickle
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional

from lostwax import Dim, export
from lostwax.errors import CaptureError
from lostwax.fake import FakeTensor
from tests.capture.patches.surroundings import Doubled, look
from tests.fresh import run_python
from tests.whole import sampled

X = torch.randn(2, 3, 8)


class Model(nn.Module):
    """Uses all that is exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(3, 3, 1) for _ in range(4)])
        self.norm = nn.BatchNorm1d(3, momentum=None)
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        assert torch.compiler.is_exporting()
        for conv in self.convs:
            x = Doubled.apply(conv(x))
        x = self.encoder(self.norm(x))
        torch._assert(x.sum() < 1e9, "too large")
        return torch.compile(torch.sin)(x) * math.sqrt(x.shape[0]) + torch.tensor(x.shape[0])


FUNCTIONS = {
    (where, name): getattr(where, name)
    for where, name in [
        *((functional, f"conv{d}d") for d in (1, 2, 3)), (functional, "one_hot"),
        *((torch, name) for name in ("tensor", "as_tensor", "linspace", "layer_norm")),
        (torch, "batch_norm"), (math, "sqrt"), (math, "floor"), (random, "random"),
        (np.random, "rand"),
    ]
}  # fmt: skip


def _functions_are_torchs_own() -> None:
    for (where, name), function in FUNCTIONS.items():
        assert getattr(where, name) is vars(where)[name] is function
        assert where is not math or pickle.loads(pickle.dumps(function)) is function


def _seeds_do_what_they_do() -> None:
    torch.manual_seed(3)
    torch.initial_seed()
    state = torch.get_rng_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)


def _nothing_is_exported() -> None:
    assert not torch.compiler.is_exporting()
    assert not torch.compiler.is_compiling()
    assert torch.backends.mha.get_fastpath_enabled()


WEIGHT = torch.randn(3, 3, 1)


def _it_trains() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    y = Doubled.apply(functional.conv1d(x, WEIGHT))
    torch.testing.assert_close(y, functional.conv1d(x, WEIGHT) * 2)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, (3 * WEIGHT.sum(0)).expand(2, 3, 4))
    norm = nn.BatchNorm1d(3, momentum=None)
    norm(x)
    torch.testing.assert_close(norm.running_mean, x.detach().mean((0, 2)))
    hidden = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(hidden.sum(), x)[0], x.cos())
    with pytest.raises(AssertionError, match="no"):
        torch._assert(torch.zeros(()).bool(), "no")
    assert torch.tensor([1.0]).item() == 1.0 == math.sqrt(1)


def _exporting(model: nn.Module, times: int, meanwhile: Callable[[], Any]) -> list[Any]:
    """Export, while another thread does something over and over."""
    over, failed = threading.Event(), list[BaseException]()
    began = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                meanwhile()
                began.set()
        except BaseException as error:
            failed.append(error)
        finally:
            began.set()

    thread = threading.Thread(target=work)
    before = sys.getswitchinterval()
    thread.start()
    try:
        began.wait()
        sys.setswitchinterval(1e-5)
        size = ({0: Dim("b", min=2)},)
        programs = [export(model, (X,), dynamic_shapes=size) for _ in range(times)]
    finally:
        sys.setswitchinterval(before)
        over.set()
        thread.join()
    if failed:
        raise failed[0]
    return programs


_DRAWN = ("python", "numpy", "torch")
"""Numbers that the other thread draws itself."""
SAME = [_functions_are_torchs_own, _seeds_do_what_they_do, _nothing_is_exported, _it_trains]


@pytest.mark.parametrize("seen", SAME)
def test_another_thread_sees_torch_as_it_is(seen: Callable[[], None]) -> None:
    model = Model()
    seen()
    before = look(model)
    for program in _exporting(model, 8, seen):
        assert not program.constants
    _functions_are_torchs_own()
    after = look(model)
    assert {name: after[name] for name in before if name not in _DRAWN} == {
        name: before[name] for name in before if name not in _DRAWN
    }


def test_numbers_of_another_thread_are_drawn_once() -> None:
    drawn: list[Any] = []

    def draw() -> None:
        drawn.append((random.random(), random.getrandbits(60), float(np.random.rand())))
        drawn.append((random.uniform(0, 1), random.randint(0, 1 << 60), np.random.normal()))
        time.sleep(1e-4)  # else it draws millions while exports wait for their turn

    _exporting(Model(), sampled(3, 8), draw)
    for column in zip(*drawn, strict=True):
        assert len({*column}) == len(drawn)


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        random.seed(3)
        np.random.seed(3)
        return x * random.random() * random.gauss(0, 1) * float(np.random.rand()) + random.choice(
            [1, 2]
        )


@pytest.mark.parametrize("alone", [True, False])
def test_numbers_of_the_module_are_told_of_and_not_drawn(alone: bool) -> None:
    before = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index,union-attr]
    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait)
    if not alone:
        other.start()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            export(Drawing(), (X,))
    finally:
        waiting.set()
    (text,) = [str(w.message) for w in told if "draws from" in str(w.message)]
    assert "Python's random and numpy.random" in text
    after = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index,union-attr]
    if alone or after[0] != before[0]:
        assert after[0][1] == before[0][1]
    assert after[1] == before[1]


def test_a_call_of_the_module_in_another_thread_waits() -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(8)])
    want, refused = model(X), list[str]()

    def call() -> None:
        try:
            torch.testing.assert_close(model(X), want)
        except CaptureError as error:  # it was under way when the export began
            refused.append(str(error))

    for program in _exporting(model, 8, call):
        assert not program.constants
        torch.testing.assert_close(program.module()(X), want)
    for text in refused:
        assert "a tensor of a capture that runs in another thread" in text
        assert "instead: neither read nor change a module" in text
    assert not any(isinstance(p, FakeTensor) for p in model.parameters())


READS: dict[str, Callable[[nn.Module], list[Tensor]]] = {
    "state_dict": lambda m: list(m.state_dict().values()),
    "kept": lambda m: list(m.state_dict(keep_vars=True).values()),
    "parameters": lambda m: list(m.parameters()),
    "copy": lambda m: list(copy.deepcopy(m).parameters()),
}
USES: list[Callable[[Tensor], Any]] = [
    lambda t: t + 1,
    lambda t: torch.ones(()) * t,
    lambda t: t[0],
    lambda t: t.view(-1),
    lambda t: t.data,
    lambda t: t.sum().item(),
    lambda t: t.tolist(),
    lambda t: torch.equal(t, t),
    lambda t: t.requires_grad_(False),
    lambda t: setattr(t, "data", torch.ones_like(t)),
    lambda t: copy.deepcopy(t),
    lambda t: export(lambda x: x + t, (torch.ones(()),)),
]
ASKS: list[Callable[[Tensor], Any]] = [
    lambda t: t.requires_grad,
    lambda t: t.is_leaf,
    lambda t: t.stride(),
    lambda t: t.is_contiguous(),
    lambda t: isinstance(t, nn.Parameter),
]


def _check_refused(uses: list[Callable[[Tensor], Any]], fake: Tensor, text: str) -> None:
    for i, use in enumerate(uses):
        with pytest.raises(CaptureError, match="neither read nor change a module") as refused:
            raise AssertionError(f"{i} gives {use(fake)!r}")
        assert text in str(refused.value)


@pytest.mark.parametrize("read", READS)
def test_no_thread_gets_the_state_that_stands_in(read: str) -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(8)])
    refused, stood = list[str](), list[FakeTensor]()

    def look_at() -> None:
        try:
            held = READS[read](model)
        except CaptureError as error:
            refused.append(str(error))
        else:
            stood.extend([t for t in held if isinstance(t, FakeTensor)][:1])

    for program in _exporting(model, 12, look_at):
        assert not program.constants
        program.validate()
    assert all("neither read nor change a module" in text for text in refused)
    assert read in ("kept", "parameters") or not stood  # all others compute
    for fake in stood:
        _check_refused(USES[:2], fake, "the export is over")


class Waiting(nn.Module):
    """Its forward waits until another thread has done its work."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.layer, self.fails = nn.Linear(8, 8), fails
        self.register_buffer("count", torch.zeros(()))
        self.begun, self.done = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.begun.set()
        assert self.done.wait(60)
        if self.fails:
            raise ValueError("as it happens")
        return self.layer(x) * self.count  # type: ignore[no-any-return]


@pytest.mark.parametrize("fails", [False, True])
def test_what_another_thread_has_read_is_refused_also_when_the_export_is_over(fails: bool) -> None:
    model, stood, failed = Waiting(fails), list[Tensor](), list[BaseException]()
    program, x = None, torch.randn(2, 8)
    before = look(model)

    def work() -> None:
        try:
            model.begun.wait(60)
            stood.extend([model.layer.weight, model.count])
            assert all(type(t) is FakeTensor for t in stood)
            _check_refused([*USES[:-1], *ASKS], stood[0], "runs in another thread")
        except BaseException as error:
            failed.append(error)
        finally:
            model.done.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        program = export(model, (x,))
    except ValueError:
        assert fails
    finally:
        model.begun.set()
        thread.join()
    if failed:
        raise failed[0]
    assert look(model) == before
    for fake in stood:
        _check_refused(USES[:2], fake, "the export is over")
    _check_refused(USES, stood[0], "the export is over")
    if program is not None:
        assert program.assumptions is not None
        assert not program.assumptions
        assert [n.target for n in program.graph.nodes if "stride" in str(n.target)] == []
        core = program.run_decompositions()  # its own fakes are of use
        torch.testing.assert_close(core.module()(x), program.module()(x))


@pytest.mark.parametrize("calls", [False, True])
def test_work_that_forward_hands_to_threads_is_refused(calls: bool) -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            with ThreadPoolExecutor(1) as pool:
                work = self.layer if calls else (lambda x: x * self.layer.weight)
                return pool.submit(work, x).result()  # type: ignore[arg-type]

    # If the pool calls it, the user does not.
    at = "" if calls else "at tests/capture/patches/test_threads.py"
    text = rf"another thread[\s\S]*{at}[\s\S]*instead: .*forward hands work to other threads"
    with pytest.raises(CaptureError, match=text):
        export(Parallel(), (torch.randn(2, 8),))


def test_a_module_imported_by_forward_is_no_part_of_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import torch, math\nfrom math import sqrt\nTABLE = torch.arange(4.0)\n"
        "exporting = torch.compiler.is_exporting()\nconv1d = torch.nn.functional.conv1d\n"
    )
    (tmp_path / "imported_by_forward.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))

    def forward(x: Tensor) -> Tensor:
        import imported_by_forward as found  # type: ignore[import-not-found]

        return x + found.TABLE

    x = torch.randn(4)
    program = export(forward, (x,))
    found = sys.modules.pop("imported_by_forward")
    assert type(found.TABLE) is Tensor
    assert not found.exporting
    assert found.sqrt is math.sqrt
    assert found.conv1d is functional.conv1d
    torch.testing.assert_close(program.module()(x), x + found.TABLE)


COMPILING = """
import math, sys, threading
import torch
from torch import nn
from lostwax import export

compiled = []
def work():
    import torch._dynamo
    def f(x):
        return torch.tensor(2.0) * torch.nn.functional.conv1d(x, w) * math.sqrt(4)
    w = torch.randn(3, 3, 1)
    x = torch.randn(2, 3, 8)
    g = torch.compile(f, backend=lambda gm, _: compiled.append(gm) or gm, fullgraph=True)
    torch.testing.assert_close(g(x), f(x))
    compiled.append(g)

model = nn.Sequential(*[nn.Conv1d(3, 3, 1) for _ in range(20)])
thread = threading.Thread(target=work)
thread.start()
x = torch.randn(2, 3, 8)
count = 0
sys.setswitchinterval(1e-4)
while thread.is_alive():
    assert not export(model, (x,)).constants
    count += 1
assert len(compiled) == 2 and count > 1, (compiled, count)

# What was compiled runs as written in a capture, also where it must be one graph.
def uses(x):
    return compiled[1](x) + 1
want = uses(x)
program = export(uses, (x,))
assert any("convolution" in n.name for n in program.graph.nodes)
torch.testing.assert_close(program.module()(x), want)
import torch._dynamo.eval_frame as e
assert type(e._stance) is e.DynamoStance and e._stance.stance == "default"
"""


def test_another_thread_imports_dynamo_and_compiles() -> None:
    run_python(COMPILING)
