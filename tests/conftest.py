"""Which tests are core, and which are skipped.

Core (`pytest -m core`, `make test-core TORCH=2.11`) is what is run with the oldest and the newest
torch, and with other Pythons, where the whole suite would take too long. Tests that need a GPU
(`@pytest.mark.gpu`) are skipped where there is none. Why tests were skipped is told at the end of a
run. Tracebacks have our frames in them, which users do not see.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

CORE = {
    *("test_walking_skeleton.py", "test_torch_version.py", "test_docs.py"),
    *("capture/test_export.py", "capture/test_exportdb.py", "capture/shapes/test_dynamic.py"),
    *("capture/shapes/test_torch_spec.py",),
    *("capture/patches/test_nn_modules.py", "capture/patches/test_torch_unchanged.py"),
    *("capture/trace/test_gradients.py", "capture/trace/test_inner_gradients.py"),
    *("capture/trace/test_operators.py", "capture/state/test_module_state.py"),
    *("fake/test_mode.py", "fake/symbolic/test_node.py", "ir/decompose/test_decompose.py"),
    *("pt2/test_corpus.py", "pt2/test_peer.py", "pt2/test_interop.py"),
    *("pt2/graph/test_spelling.py",),
    # what Python does differs between its versions, too
    *("capture/strict/test_outside.py", "bytecode/test_outline.py", "bytecode/test_steps.py"),
    *("capture/python/test_bindings.py", "capture/flow/test_flow.py"),
}
SAMPLED = {"ops/test_conformance.py": 8}
"""Of these files every eighth test."""
HERE = Path(__file__).parent


os.environ.setdefault("LOSTWAX_TRACEBACK", "full")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.isolation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="needs a GPU: make test-gpu")
    no_gpu = not torch.cuda.is_available()
    seen = dict.fromkeys(SAMPLED, 0)
    for item in items:
        name = item.path.relative_to(HERE).as_posix()
        if name in seen:
            seen[name] += 1
        if name in CORE or (name in seen and seen[name] % SAMPLED[name] == 0):
            item.add_marker("core")
        if no_gpu and item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which tests were skipped, by the reason; also those of the processes of `-n 2`."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons, files = Counter[str](), dict[str, set[str]]()
    for report in skipped:
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        reason = str(told).removeprefix("Skipped: ")
        reasons[reason] += 1
        files.setdefault(reason, set()).add(report.nodeid.partition("::")[0])
    if skipped:
        terminalreporter.section(f"{len(skipped)} skipped", sep="-")
    for reason, count in reasons.most_common():
        names = sorted(files[reason])
        more = f" and {len(names) - 3} files more" if len(names) > 3 else ""
        terminalreporter.line(f"{count:5} {reason} ({', '.join(names[:3])}{more})")
