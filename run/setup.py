"""Builds the wheel: compiles src/runtime.cpp, and puts beside it the libraries of ExecuTorch that
it is linked to, from ExecuTorch's own wheel. Settings are in pyproject.toml.

The libraries get names of our own, so that a process may load ExecuTorch's Python, of whatever
version, too: libraries of one name are one for the loader.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

EXECUTORCH = "executorch==1.5.1"
LIBRARIES = [
    "",
    "_threadpool",
    "_etdump",
    "_kernels_optimized",
    "_kernels_quantized",
    "_backend_xnnpack",
]
THEIRS, OURS = "libexecutorch", "liblostwaxrun"  # as long as the other: written over it


def find_executorch(folder: Path) -> Path:
    """ExecuTorch's package: that which LOSTWAX_RUN_EXECUTORCH names, or of its wheel. Nothing that
    it requires is needed."""
    if place := os.environ.get("LOSTWAX_RUN_EXECUTORCH"):
        return Path(place)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    wanted = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), EXECUTORCH]
    subprocess.run([*pip, *wanted], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        parts = ("executorch/include/", "executorch/lib/")
        names = [n for n in archive.namelist() if n.startswith(parts) or "/licenses/" in n]
        archive.extractall(folder, names)
    return folder / "executorch"


def take_library(package: Path, name: str, folder: Path) -> None:
    """A library of theirs, under a name of ours, also where it and others speak of it."""
    data = (package / "lib" / f"{THEIRS}{name}.so").read_bytes()
    (folder / f"{OURS}{name}.so").write_bytes(data.replace(THEIRS.encode(), OURS.encode()))


class Build(build_ext):
    def get_ext_filename(self, name: str) -> str:
        return os.path.join(*name.split(".")) + ".so"  # of no version of Python

    def build_extension(self, extension: Extension) -> None:
        target = Path(self.get_ext_fullpath(extension.name)).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            package = find_executorch(Path(scratch))
            for name in LIBRARIES:
                take_library(package, name, target.parent)
            for text in package.parent.glob("executorch-*.dist-info/licenses/LICENSE"):
                shutil.copy(text, target.parent / "LICENSE.executorch")
            include = package / "include"
            c10 = include / "executorch" / "runtime" / "core" / "portable_type" / "c10"
            subprocess.run(
                [
                    os.environ.get("CXX", "c++"), "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall",
                    "-Wextra", "-fvisibility=hidden", "-DC10_USING_CUSTOM_GENERATED_MACROS",
                    "-DET_EVENT_TRACER_ENABLED", "-isystem", str(include), "-isystem", str(c10),
                    *extension.sources, "-o", str(target), f"-L{target.parent}",
                    "-Wl,--no-as-needed", *(f"-l{OURS[3:]}{name}" for name in LIBRARIES),
                    "-Wl,--as-needed", "-Wl,-rpath,$ORIGIN", "-Wl,-s",
                ],
                check=True,
            )  # fmt: skip


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class OfPlatform(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    ext_modules=[Extension("lostwax_run.lib.liblostwax_run", ["src/runtime.cpp"])],
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    distclass=OfPlatform,
)
