"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lostwax
from tests.explorer.programs import lowered, net

CHROMIUM = shutil.which("chromium")
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install .[test]"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the page of a program from disk, with no network; an error of its script fails the
    test, and so does a request for anything else."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_offline(True)
    faults: list[str] = []

    def run(program: Any, **options: Any) -> Any:
        file = tmp_path / "page.html"
        lostwax.explore(program, file, **options)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: said.type == "error" and faults.append(said.text))
        page.on("request", lambda r: r.url.startswith(("file:", "data:")) or faults.append(r.url))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield run
    context.close()
    assert faults == []


def outline(page: Any) -> list[str]:
    return [
        row.inner_text().split("\n")[0].strip("› ") for row in page.query_selector_all(".row .name")
    ]


def named(page: Any, name: str) -> Any:
    return page.locator(f'[data-name="{name}"]')


def click_on(page: Any, node: str) -> None:
    """Click where the drawing shows a node."""
    where = page.evaluate(
        """name => {
            const { view } = lostwax;
            const item = view.tree.leaf[view.program.nodes.find(n => n.name === name).id];
            const { x, y, w, h } = view.layouts.place(item), { camera } = view;
            const box = view.canvas.getBoundingClientRect();
            const left = box.left + camera.x, top = box.top + camera.y;
            return [left + (x + w / 2) * camera.k, top + (y + h / 2) * camera.k];
        }""",
        node,
    )
    page.mouse.click(*where)


def test_open_unfold_search_click_and_read_the_source(open_page):
    page = open_page(net(), lower=True)
    assert page.title() == "Net · lostwax"
    assert outline(page) == ["x", "blocks", "sum", "gt", "cond", "head", "output"]
    assert "batch\t1 … 9\tx.shape[0]" in named(page, "symbols").inner_text()

    # unfold, in the outline
    page.click('.row[data-path="blocks"] .fold')
    assert outline(page)[1:8] == ["blocks", "0", "1", "2", "3", "4", "5"]
    page.click('.row[data-path="blocks.1"] .fold')
    inner = ["first", "act", "second", "act", "add"]  # a module that is called twice is there twice
    assert outline(page)[4:9] == inner

    # search
    page.keyboard.press("/")
    page.keyboard.type("silu_5")
    assert named(page, "count").inner_text() == "1 node"
    page.keyboard.press("Enter")
    assert named(page, "title").inner_text() == "silu"
    page.keyboard.press("Escape")

    # click a node of the drawing, and read its source
    page.click('.row[data-path="blocks.1"]')
    click_on(page, "add_1")
    assert named(page, "title").inner_text() == "add"
    assert "tests/explorer/programs.py:" in named(page, "place").inner_text()
    here = page.inner_text(".line.here")
    assert "return self.act(self.second(self.act(self.first(x)))) + x" in here
    assert "class Block" not in named(page, "source").inner_text()

    # its type, and the range of the size that varies
    assert named(page, "type").inner_text() == "f32[batch, 8]"
    assert "1 … 9" in named(page, "symbols").inner_text()


def test_stages_side_by_side(open_page):
    page = open_page(net(), lower=True)
    page.evaluate(
        "lostwax.view.focusNode(lostwax.view.program.nodes.find(n => n.name === 'silu').id)"
    )
    rows = [row.inner_text().split("\n") for row in page.query_selector_all(".stages li")]
    assert rows == [["ATen", "silu"], ["core ATen", "sigmoid", "mul"], ["Edge", "sigmoid", "mul"]]
    page.keyboard.press("c")
    page.wait_for_function("lostwax.panes.length === 2 && lostwax.panes[1].view.marked.size === 2")
    marked = page.evaluate(
        "[...lostwax.panes[1].view.marked].map(i => lostwax.panes[1].view.program.nodes[i].name)"
    )
    assert marked == ["sigmoid", "mul"]
    page.click('.stages li:nth-child(2) .link:has-text("mul")')
    assert page.evaluate("lostwax.view.program.label") == "core ATen"
    assert named(page, "title").inner_text() == "mul"


def test_delegates_unfold_and_say_what_was_left(open_page):
    program, edge, delegated = lowered()
    page = open_page([program, edge, delegated, delegated.to_executable()])
    assert page.evaluate("lostwax.view.program.label") == "executable"
    text = page.inner_text(".details")
    assert "XNNPACK has no aten::erf" in text
    assert "in 2 delegates" in text
    assert outline(page) == ["x", "inner", "erf", "inner", "output"]
    page.click(".row:nth-child(2) .fold")
    page.click('.row[data-role="call"] .fold')
    assert outline(page)[1:6] == ["inner", "XnnpackBackend", "x", "permute_copy", "addmm"]
    hues = page.evaluate(
        "lostwax.view.tree.items.filter(i => i.node?.name === 'erf').map(lostwax.view.colour)"
    )
    assert hues[0] == "#e03131"


def test_an_edge_tells_its_type_and_range(open_page):
    page = open_page(net())
    where = page.evaluate(
        """() => {
            const { view } = lostwax, { camera } = view;
            const [a, b] = view.layouts.root.wires[0].points;
            const box = view.canvas.getBoundingClientRect();
            const x = (a.x + b.x) / 2, y = (a.y + b.y) / 2;
            return [box.left + camera.x + x * camera.k, box.top + camera.y + y * camera.k];
        }"""
    )
    page.mouse.move(*where)
    assert page.inner_text(".tip-box").split("\n") == ["x: f32[batch, 8]", "batch: 1 … 9"]
    page.mouse.move(where[0] + 300, where[1])
    assert page.is_hidden(".tip-box")


def test_weights_are_shown_when_asked_for(open_page):
    page = open_page(net())
    page.click('[data-name="all"]')
    page.click('.row[data-path="head"] .fold')
    names = outline(page)
    at = names.index("head")
    assert names[at : at + 5] == ["head", "head.weight", "t", "head.bias", "addmm"]


def test_operators_and_memory(open_page):
    page = open_page(net())
    page.click("text=Operators")
    counts = dict(
        row.inner_text().split("\n") for row in page.query_selector_all(".operators .bars li")
    )
    assert counts["silu"] == "12"
    page.click('.operators button:has-text("silu")')
    assert page.evaluate("lostwax.view.marked.size") == 12
    page.keyboard.press("m")
    assert named(page, "memory").inner_text().startswith("peak ")


def test_keys_fold_and_walk(open_page):
    page = open_page(net())
    names = []
    for key in ("ArrowDown", "ArrowDown", "Enter", "ArrowRight", "ArrowLeft", "t", "u", "0"):
        page.keyboard.press(key)
        names.append(page.evaluate("lostwax.view.selected?.label"))
    assert names == ["x", "blocks", "blocks", "0", "blocks", "blocks", "blocks", None]
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
