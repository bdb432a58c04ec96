"""lostwax-run, from its wheel, in an environment with nothing but numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.run.environment import ROOT, Installed
from tests.test_docs import blocks
from tests.whole import sampled

HERE = Path(__file__).parent
MOST_BYTES = 25 << 20


def test_the_wheel_holds_what_it_links(installed: Installed) -> None:
    assert "-py3-none-linux" in installed.wheel.name
    with zipfile.ZipFile(installed.wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    libraries = {name.rpartition("/")[2] for name in sizes if name.endswith(".so")}
    assert len(libraries) == 7
    for name in libraries:
        listed = subprocess.run(
            ["readelf", "-d", installed.site / "lostwax_run" / "lib" / name],
            capture_output=True,
            text=True,
        )
        needed = {
            line.partition("[")[2].rstrip("]")
            for line in listed.stdout.splitlines()
            if "(NEEDED)" in line
        }
        assert not [each for each in needed if "executorch" in each or "torch" in each]
        assert {each for each in needed if "lostwax" in each} <= libraries
    assert "lostwax_run/lib/LICENSE.executorch" in sizes
    assert sum(sizes.values()) <= MOST_BYTES


def test_the_environment_has_nothing_else(installed: Installed) -> None:
    there = {path.name.partition("-")[0] for path in installed.site.glob("*.dist-info")}
    assert there == {"numpy", "lostwax_run"}


def test_little_is_loaded_with_it(installed: Installed) -> None:
    code = "import lostwax_run, sys; print([n for n in ('numpy', 'ctypes') if n in sys.modules])"
    assert installed.run("-c", code).stdout == "[]\n"
    code = "import sys, lostwax_run.cli as c\ntry: c.main(['--help'])\nfinally: print(*sys.modules)"
    assert "numpy" not in installed.run("-c", code).stdout.split()


def test_calls_give_what_executorch_gives(installed: Installed, cases: Path) -> None:
    """Bit for bit: the bundled models, portable and with XNNPACK, a decoder with its cache, a
    quantized model, control flow, weights beside, dtypes and layouts."""
    found = json.loads(installed.run(HERE / "replay.py", cases).stdout)
    assert len(found["cases"]) > 20
    assert {name: told for name, told in found["cases"].items() if told} == {}
    assert found["loaded"] == []


@pytest.fixture(scope="module")
def used(installed: Installed, cases: Path) -> dict[str, Any]:
    used: dict[str, Any] = json.loads(installed.run(HERE / "uses.py", cases).stdout)
    return used


def test_what_a_file_says(used: dict[str, Any]) -> None:
    shown = "Program(forward(int64[1], int64[1]) -> int64[1]; start(int64[≤12]) -> int64[1])"
    assert used["repr"] == shown
    assert used["ranges"] == [[0, 12]]
    assert used["constants"] == {
        "ids": [1, 2],
        "name": "relu",
        "rate": 0.5,
        "table": ["int64", [0, 1, 2]],
        "version": 7,
    }
    assert used["methods"] == ["forward"]
    assert used["missing"] == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "dtype",
            "InputError: input 0 of 'forward' is float64[3, 4]; the method takes float32[3, 4]\n"
            "  instead: value.astype('float32')",
        ),
        ("shape", "why: dim 0 has 2 elements, and there are to be 3"),
        ("dims", "why: it has 1 dims, not 2"),
        ("type", "instead: numpy.asarray(value, dtype='float32')"),
        ("count", "'forward' takes 1 inputs, 2 are given"),
        ("bound", "why: dim 0 has 13 elements, and there are to be at most 12"),
        ("method", "there is no method 'backward'; there are ['forward']"),
        ("index", "RunError: 'forward' failed: Index 99 out of range for tensor with size 12"),
        ("after", "no error: (1,)"),
        ("threads", "0 threads: there must be one at least"),
        ("cut", "FileError: the runtime does not take the file: File size is too small"),
        ("cut in its tables", "why: it is damaged or cut off, or of a later version"),
        ("cut weights", "the file of weights has 714 bytes, and speaks of 744"),
        ("not a program", "not a .pte file: its identifier is b'FT01', not b'ET12'"),
        ("not weights", "not a .ptd file: its identifier is b'ET12', not b'FT01'"),
        ("empty", "there are no bytes"),
        ("no weights", "is neither in the program nor in weights beside it"),
        (
            "another backend",
            "'forward' needs the backend OtherpuBackend, which lostwax_run has not",
        ),
        ("another kernel", "needs kernels mine::linear.out, which lostwax_run has not"),
        (
            "not traced",
            "nothing was traced\n  instead: Program(file, traced=True), calls, take_trace()",
        ),
        ("nothing traced", "nothing was traced"),
        ("too small", "Ran out of space to store intermediate outputs"),
        ("no values", "traced_bytes=64 with traced=False\n  instead: traced=True"),
    ],
)
def test_an_error_says_what_is_wrong(used: dict[str, Any], what: str, text: str) -> None:
    assert text in used[what]


def test_state_is_that_of_a_session(used: dict[str, Any]) -> None:
    assert used["state"] == [4, 6]
    assert used["fresh state"] == used["reset"] == [3, 4]


@pytest.mark.parametrize("what", ["traced", "traced again", "traced values"])
def test_calls_can_be_traced(used: dict[str, Any], what: str) -> None:
    assert used[what] is True


@pytest.mark.parametrize("what", ["owned", "transposed", "spread", "unaligned", "mapped"])
def test_arrays_are_taken_as_they_are(used: dict[str, Any], what: str) -> None:
    assert used[what] is True


def test_threads_and_sessions(installed: Installed, used: dict[str, Any], cases: Path) -> None:
    assert used["wrong results"] == []
    assert used["size"] <= MOST_BYTES
    found = json.loads(installed.run(HERE / "uses.py", cases, sampled(4_000, 100_000)).stdout)
    assert found["wrong results"] == []
    assert found["grown"] < 2 << 20


def test_damaged_files_do_no_harm(installed: Installed, cases: Path) -> None:
    """Tables with other numbers, bytes that changed, a missing end: an error or an answer."""
    found = json.loads(installed.run(HERE / "mutate.py", cases, sampled(400, 20_000)).stdout)
    assert found["found"] == []
    outcomes = found["outcomes"]
    assert min(outcomes.get(kind, 0) for kind in ("error", "same answer")) > 20


def test_the_command(installed: Installed, cases: Path, tmp_path: Path) -> None:
    command = installed.python.parent / "lostwax-run"

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([command, *map(str, words)], capture_output=True, text=True)

    x = numpy.ones((3, 4), "float32")
    numpy.save(tmp_path / "x.npy", x)
    numpy.save(tmp_path / "bad.npy", x[:2])
    model, out = cases / "beside.pte", tmp_path / "y.npy"
    assert run(model).stdout.startswith("forward(float32[3, 4]) -> float32[3, 2], ")
    done = run(model, "--input", tmp_path / "x.npy", "-o", out)
    assert done.stdout.startswith("float32[3, 2] min ")
    assert numpy.load(out).shape == (3, 2)
    assert [*tmp_path.glob("*.tmp")] == []
    told = json.loads(run(model, "--input", tmp_path / "x.npy", "--json").stdout)
    assert told["result"]["results"][0]["type"] == "float32[3, 2]"
    refused = run(model, "--input", tmp_path / "bad.npy")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: input 0 of 'forward' is float32[2, 4]")
    refused = run(tmp_path / "x.npy")
    assert refused.returncode == 3
    assert "not a .pte file" in refused.stderr
    assert run(tmp_path / "none.pte").returncode == 2


def test_the_page_says_what_it_prints(installed: Installed) -> None:
    """The blocks of the page that are for lostwax_run, after those that write the file."""
    page = (ROOT / "docs" / "recipes" / "run-without-torch.md").read_text()
    written = "".join(block.code for block in blocks(page))
    subprocess.run([sys.executable, "-c", written], cwd=ROOT, check=True)
    ours = page.replace("```python\n", "```other\n").replace("```py\n", "```python\n")
    shown = blocks(ours)
    assert len(shown) == 4
    printed = installed.run("-c", "".join(block.code for block in shown)).stdout
    assert printed == "".join(block.output or "" for block in shown)


@pytest.fixture(scope="module")
def beside_torch(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process of ours that has lostwax_run, too."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "lostwax_run").symlink_to(installed.site / "lostwax_run")
    paths = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_lostwax_runs_files_with_it(beside_torch: dict[str, str], cases: Path) -> None:
    """And both runtimes live in one process: ExecuTorch's Python after it, of another version."""
    code = f"""
import sys, json, numpy, torch, lostwax, lostwax.pte
from lostwax.pte.runtime import LoadedProgram, load_executorch
x = torch.ones(3, 4)
(ours,) = lostwax.pte.run({str(cases / "beside.pte")!r}, [x])
assert "executorch" not in sys.modules and "lostwax_run" in sys.modules
data = open({str(cases / "integers.pte")!r}, "rb").read()
given = [torch.arange(4), torch.tensor([True, False]), torch.randn(3), torch.randn(3).bfloat16()]
for _ in range(2):
    a = LoadedProgram(data).run(given)
    b = LoadedProgram(data, None, load_executorch).run(given)
    assert [t.dtype for t in a] == [t.dtype for t in b]
    assert all(map(torch.equal, a, b))
try:
    lostwax.pte.run({str(cases / "beside.pte")!r}, [x[:2]])
except lostwax.errors.LoadError as error:
    print(error)
print(type(ours), tuple(ours.shape))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=beside_torch, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "input 0 is a tensor of torch.float32 and [2, 4] (cpu)" in done.stdout
    assert done.stdout.endswith("<class 'torch.Tensor'> (3, 2)\n")


INSPECT = """
import json, sys, warnings
from executorch.devtools import Inspector

folder = sys.argv[1]
found = {}
for name in ("times", "values"):
    values = f"{folder}/{name}.bin" if name == "values" else None
    file = f"{folder}/{name}.etdp"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inspector = Inspector(
            etdump_path=file, etrecord=f"{folder}/m.etrecord", debug_buffer_path=values
        )
    found[name] = [
        [event.name, sorted(set(filter(None, event.stack_traces.values()))), event.op_types]
        for block in inspector.event_blocks if block.name == "Execute" for event in block.events
    ]
found["gaps"] = [gap for gaps in inspector.calculate_numeric_gap("L1")["gap"] for gap in gaps]
print(json.dumps(found))
"""

TRACED = """
import sys, torch, numpy
from lostwax_run import Program
folder, backend = sys.argv[1:]
import lostwax
from lostwax.backends import XnnpackPartitioner
from tests.pte.test_records import Net

torch.manual_seed(0)
x = torch.randn(1, 3, 8, 8)
edge = lostwax.export(Net().eval(), (x,)).to_edge()
edge = edge.to_backend(XnnpackPartitioner()) if backend == "xnnpack" else edge
edge.to_executable().save(f"{folder}/m.pte", etrecord=True)
for name, room in (("times", 0), ("values", 1 << 20)):
    program = Program(f"{folder}/m.pte", traced=True, traced_bytes=room)
    program.forward(x.numpy())
    trace = program.take_trace()
    open(f"{folder}/{name}.etdp", "wb").write(trace.dump)
    open(f"{folder}/{name}.bin", "wb").write(trace.values)
"""


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_executorchs_inspector_shows_lines(
    beside_torch: dict[str, str], tmp_path: Path, backend: str
) -> None:
    """Also of what XNNPACK does inside of a delegate; and it compares values."""
    pytest.importorskip("executorch.exir", exc_type=ImportError)
    pytest.importorskip("pandas")
    for code, words in ((TRACED, [tmp_path, backend]), (INSPECT, [tmp_path])):
        command = [sys.executable, "-c", code, *map(str, words)]
        done = subprocess.run(command, env=beside_torch, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    shown = {name: "".join(lines) for name, lines, _ in found["times"]}
    operators = {name: kinds for name, _, kinds in found["times"]}
    if backend == "xnnpack":
        assert "y = self.conv(x).relu()" in shown["Convolution (NHWC, F32) IGEMM #1"]
        assert operators["Convolution (NHWC, F32) IGEMM #1"] == [
            "convolution.default",
            "relu.default",
        ]
        assert operators["TanH (NC) #1"] == ["tanh.default"]
        assert "return self.head(y.mean((2, 3)))" in shown["DELEGATE_CALL"]
    else:
        assert "y = self.conv(x).relu()" in shown["native_call_mm.out"]
    assert found["gaps"]
    assert max(found["gaps"]) < 1e-3


def test_lostwax_profiles_files_with_it(beside_torch: dict[str, str], tmp_path: Path) -> None:
    """With the example of the ETRecord: XNNPACK's own operators lead to lines."""
    words = [sys.executable, "-c", TRACED, str(tmp_path), "xnnpack"]
    subprocess.run(words, env=beside_torch, check=True, capture_output=True, cwd=ROOT)
    words = [sys.executable, "-m", "lostwax", "profile", str(tmp_path / "m.pte"), "--json"]
    done = subprocess.run(words, env=beside_torch, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["warnings"] == []
    profile = answer["result"]["profile"]
    assert profile["calls"] == 20
    modules = {group["name"]: group for group in profile["groups"]["module"]}
    assert {"conv", "head.0", "head.1"} <= modules.keys()
    assert modules["conv"]["delegate"] == "XnnpackBackend"
    assert sum(group["share"] for group in modules.values()) == pytest.approx(1, abs=0.2)
