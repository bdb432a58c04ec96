"""The pages of docs/recipes run, where the packages are that they are about; `make test` installs
them."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from sweep.libraries import import_torchvision
from tests.inductor import QUICKLY
from tests.interop.generation import find_version
from tests.test_docs import RECIPES, blocks, check_page

PACKAGES = ("onnxruntime", "executorch", "torchao", "transformers")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.name)
def test_recipe(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "".join(block.code for block in blocks(page.read_text()))
    for name in PACKAGES:
        if re.search(rf"^(import|from) {name}\b", code, re.M):
            pytest.importorskip(name, reason=f"{name} is not installed: make consumers")
            if name == "transformers" and find_spec("torchvision") is not None:
                import_torchvision()  # transformers does; it may be another torch's
    if "lostwax.interop.transformers" in code and find_version() < (5, 23):
        pytest.skip("transformers 5.23 is the first that takes backends")
    if "aoti_compile" in code and shutil.which("g++") is None:
        pytest.skip("AOTInductor needs a C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with ExitStack() as settings:
        if "aoti_compile" in code:
            settings.enter_context(import_module("torch._inductor.config").patch(QUICKLY))
        check_page(page)
