"""How long the explorer takes with a large program: to write the page, and in Chromium to open it,
to unfold, to search and to draw.

    python -m bench.explorer [--nodes 20000]

Needs chromium and playwright (`apt-get install chromium`, the extra `test`). Nonzero if opening
takes 3 s or more, or anything else half a second.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lostwax

OPEN, OTHER = 3000, 500
"""The most milliseconds that a user would wait."""

STEPS = """() => {
    const { view } = lostwax, times = {};
    const time = (name, run) => {
        const start = performance.now();
        run();
        view.draw();
        times[name] = Math.round(performance.now() - start);
    };
    const groups = view.tree.items.filter((item) => item.children.length && item.role !== "root");
    const search = (text) => { lostwax.query.value = text; lostwax.search(); };
    time("draw it folded", () => {});
    time("unfold the first group", () => view.toggle(groups.find((g) => g.depth === 1)));
    const widest = groups.reduce((a, b) => (b.children.length > a.children.length ? b : a));
    const show = () => { view.focusItem(widest); view.toggle(widest); };
    time("show and unfold the widest group", show);
    time("search, the first time", () => search("silu"));
    time("search again", () => search("silu_1"));
    time("go to the last match", () => lostwax.goTo(lostwax.matches.length - 1));
    time("unfold one level more", () => lostwax.unfoldLevel());
    time("draw it", () => {});
    time("fold everything", () => lostwax.foldAll());
    return [view.program.nodes.length, times];
}"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: Any, scale: Any) -> Any:
        for _ in range(8):
            x = x + self.down(nn.functional.silu(self.up(self.norm(x)))) * scale
        return x


class Tower(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: Any) -> Any:
        scale = x.mean()
        for block in self.blocks:
            x = block(x, scale)
        return x


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=20_000)
    count = parser.parse_args().nodes // 77
    chromium = shutil.which("chromium")
    if chromium is None:
        print("needs chromium: apt-get install chromium")
        return 1
    program = lostwax.export(Tower(count), (torch.randn(2, 8),))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        start = time.perf_counter()
        lostwax.explore(program, file)
        print(f"{'write the page':34} {(time.perf_counter() - start) * 1e3:6.0f} ms")
        print(f"{'its size':34} {file.stat().st_size / 1e6:6.1f} MB")
        nodes, times = measure(file, chromium)
    print(f"{'nodes':34} {nodes:6}")
    for name, spent in times.items():
        print(f"{name:34} {spent:6} ms")
    missed = [n for n, spent in times.items() if spent >= (OPEN if n == "open" else OTHER)]
    return 1 if missed else 0


def measure(file: Path, chromium: str) -> tuple[int, dict[str, int]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
        start = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        opened = round((time.perf_counter() - start) * 1e3)
        nodes, times = page.evaluate(STEPS)
        browser.close()
    return nodes, {"open": opened, **times}


if __name__ == "__main__":
    sys.exit(main())
