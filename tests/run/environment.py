"""lostwax-run as a user has it: its wheel, built from run/, in an environment with numpy alone; and
ExecuTorch's own Python of the same version, the judge.

Both are made once for the sources that they are of, in build/lostwax-run. Without a C++ compiler,
or where no registry has ExecuTorch's wheel, there is neither: `Unavailable` says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "lostwax-run"
EXECUTORCH = "executorch==1.5.1"


@dataclass(frozen=True)
class Installed:
    """Where things are."""

    wheel: Path
    python: Path
    """The interpreter of the environment with nothing but numpy and lostwax_run."""
    site: Path
    peer: Path
    """A folder with ExecuTorch's package, for PYTHONPATH."""

    def run(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run something in the empty environment."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        command = [str(self.python), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=clean)
        assert not check or not done.returncode, done.stdout + done.stderr
        return done


class Unavailable(Exception):
    """It cannot be made here."""


def install() -> Installed:
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        raise Unavailable("no C++ compiler, which builds lostwax-run: .ci/packages installs one")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        peer = make("peer", EXECUTORCH, download)
        text = "".join(f"{path} {path.read_bytes()!r}" for path in sorted(list_sources()))
        folder = make("empty", text + sys.version, lambda folder: build(folder, peer))
    (wheel,) = folder.glob("*.whl")
    (site,) = folder.glob("venv/lib/python3*/site-packages")
    return Installed(wheel, folder / "venv" / "bin" / "python", site, peer)


def write_cases(installed: Installed, folder: Path) -> None:
    """Programs, and what ExecuTorch's own Python of that version gives for calls of them."""
    path = os.pathsep.join([str(installed.peer), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.run.cases", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert not done.returncode, done.stderr[-3000:]


def list_sources() -> list[Path]:
    run = ROOT / "run"
    names = ("setup.py", "pyproject.toml", "README.md", "MANIFEST.in")
    return [*map(run.joinpath, names), *run.glob("src/*.cpp"), *run.glob("lostwax_run/*.py")]


def make(name: str, what: str, work: Callable[[Path], None]) -> Path:
    """The folder of that name, of what it is made of; the former is thrown away."""
    folder = CACHE / name
    mark, key = folder / "made of", hashlib.sha256(what.encode()).hexdigest()
    if not mark.exists() or mark.read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        work(folder)
        mark.write_text(key)
    return folder


def download(folder: Path) -> None:
    try:
        pip("download", "--no-deps", "--only-binary", ":all:", "-d", folder, EXECUTORCH)
    except subprocess.CalledProcessError as error:
        why = error.stderr[-300:]
        raise Unavailable(f"no wheel of {EXECUTORCH} for this machine: {why}") from error
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.unlink()


def build(folder: Path, peer: Path) -> None:
    """As users do: `pip wheel`, in an environment of its own; then into an empty one."""
    source = folder / "run"
    shutil.copytree(ROOT / "run", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    os.environ["LOSTWAX_RUN_EXECUTORCH"] = str(peer / "executorch")
    try:
        pip("wheel", "--no-deps", "-w", folder, source)
    finally:
        del os.environ["LOSTWAX_RUN_EXECUTORCH"]
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    (wheel,) = folder.glob("*.whl")
    python = folder / "venv" / "bin" / "python"
    pip("--python", python, "install", "-c", ROOT / "constraints.txt", "numpy", wheel)


def pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, words)]
    subprocess.run(command, check=True, capture_output=True, text=True)
