"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import lostwax
from lostwax.cli.programs import count_operators, describe_methods
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
    assert names[at : at + 5] == ["head", "weight", "t", "bias", "addmm"]


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


def test_a_count_is_not_covered_by_the_name_of_its_operator(open_page):
    page = open_page(lostwax.export(torch.nn.BatchNorm1d(4).eval(), (torch.randn(2, 4),)))
    page.click("text=Operators")
    button = page.locator('.operators button:has-text("_native_batch_norm_legit_no_training")')
    row, count = button.bounding_box(), button.locator(".count").bounding_box()
    assert count["x"] + count["width"] <= row["x"] + row["width"]
    assert button.get_attribute("title").startswith("torch.ops.aten._native_batch_norm")


def test_operators_are_counted_as_the_command_line_counts_them(open_page, tmp_path):
    net().to_edge().to_executable().save(tmp_path / "net.pte")
    counted = sum(describe_methods(str(tmp_path / "net.pte"))["forward"]["operators"].values())
    assert f"of {count_operators(net()).total()} operators" in repr(net())
    pairs = [(net(), count_operators(net()).total()), (tmp_path / "net.pte", counted)]
    for program, count in pairs:
        assert f"operators\n{count}\n" in open_page(program).inner_text("aside.right")


def test_keys_fold_and_walk(open_page):
    page = open_page(net())
    names = []
    for key in ("ArrowDown", "ArrowDown", "Enter", "ArrowRight", "ArrowLeft", "t", "u", "0"):
        page.keyboard.press(key)
        names.append(page.evaluate("lostwax.view.selected?.label"))
    assert names == ["x", "blocks", "blocks", "0", "blocks", "blocks", "blocks", None]
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


class Norms(torch.nn.Module):
    """Its norms have counters that nothing reads; it has a residual edge, and a long name."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.BatchNorm1d(4) for _ in range(count))
        self.a_name_that_is_so_long_that_no_box_of_a_drawing_can_show_it = torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        y = x
        for layer in self.layers:
            y = layer(y).relu().sigmoid() + y
        return self.a_name_that_is_so_long_that_no_box_of_a_drawing_can_show_it(y)


SCENE = """() => {
    const { view } = lostwax, { layouts } = view, root = layouts.root;
    const inFrames = view.tree.items.filter(i => i.isOpen && i.children.length).every(i => {
        const { w, wires } = layouts.of(i);
        return wires.every(wire => wire.isLong || wire.points.every(p => p.x >= 0 && p.x <= w));
    });
    const { x, y, k } = view.camera, { clientWidth: w, clientHeight: h } = view.canvas;
    const isSeen = x >= 0 && y >= 0 && x + root.w * k <= w && y + root.h * k <= h;
    return { w: root.w, h: root.h, inFrames, isSeen };
}"""


def covered(page: Any) -> list[str]:
    """What lies on the drawing, of all that is in sight."""
    return page.evaluate(
        """() => {
            const box = lostwax.view.canvas.getBoundingClientRect(), found = new Set();
            for (let x = box.left + 5; x < box.right; x += 15)
                for (let y = box.top + 5; y < box.bottom; y += 15) {
                    const at = document.elementFromPoint(x, y);
                    if (at !== lostwax.view.canvas) found.add(at?.className || at?.tagName);
                }
            return [...found];
        }"""
    )


def test_weights_that_nothing_reads_stand_in_their_modules_and_nothing_covers_the_drawing(
    open_page,
):
    page = open_page(lostwax.export(Norms(12).eval(), (torch.randn(2, 4),)))
    page.keyboard.press("a")
    for key in "uuf":
        page.keyboard.press(key)
    assert "num_batches_tracked" in outline(page)
    found = page.evaluate(SCENE)
    assert found["inFrames"]
    assert found["isSeen"]
    assert found["w"] < found["h"], "no endless row"
    assert covered(page) == []
    page.keyboard.press("m")  # the drawing stays in sight when there is less room for it
    page.wait_for_function("lostwax.view.canvas.clientHeight < 500")
    page.wait_for_timeout(50)
    assert page.evaluate(SCENE)["isSeen"]
    assert covered(page) == []

    # a map, as long as not all is in sight
    assert page.is_hidden(".minimap")
    page.evaluate("lostwax.view.zoom(8)")
    page.wait_for_selector(".minimap:not([hidden])")
    before = page.evaluate("lostwax.view.camera.y")
    page.click(".minimap", position={"x": 4, "y": 4})
    assert page.evaluate("lostwax.view.camera.y") != before


def test_the_map_stands_beside_a_drawing_that_is_too_long(open_page):
    page = open_page(lostwax.export(Norms(60).eval(), (torch.randn(2, 4),)))
    page.keyboard.press("a")
    for key in "uu":
        page.keyboard.press(key)
    page.wait_for_selector(".minimap:not([hidden])")
    right, left = page.evaluate(
        """() => {
            const { view } = lostwax, box = view.canvas.getBoundingClientRect();
            const end = box.left + view.camera.x + view.layouts.root.w * view.camera.k;
            return [end, document.querySelector(".minimap").getBoundingClientRect().left];
        }"""
    )
    assert right <= left


def test_a_page_opens_with_its_drawing_in_sight(open_page):
    page = open_page(net())
    shown = """() => {
        const { camera, width, height, layouts: { root } } = lostwax.view;
        return [camera.x, camera.y, width - camera.x - root.w * camera.k, height - camera.y];
    }"""
    left, above, right, below = page.evaluate(shown)
    assert min(left, above, right, below) > 10
    assert abs(left - right) < 2, "in the middle"


def test_panels_fold_away_where_there_is_little_room(open_page):
    page = open_page(net())
    assert page.is_visible("#left")
    page.keyboard.press("[")
    assert page.is_hidden("#left")
    page.keyboard.press("[")
    page.set_viewport_size({"width": 700, "height": 600})
    assert page.is_hidden("#left")
    assert page.is_hidden("#right")
    assert page.evaluate("lostwax.view.canvas.clientWidth") == 700
    page.click('[data-name="left"]')
    assert page.is_visible("#left")
    page.click('[data-name="right"]')  # one at a time
    assert page.is_hidden("#left")
    assert page.is_visible("#right")
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_list_of_a_search_closes(open_page):
    page = open_page(net())
    for leave in (
        lambda: page.keyboard.press("Enter"),
        lambda: page.click('.result[data-node="silu_4"]'),
        lambda: page.mouse.click(640, 500),
        lambda: page.keyboard.press("Escape"),
    ):
        page.fill(".search input", "silu")
        assert page.is_visible(".results")
        leave()
        assert page.is_hidden(".results")


def test_a_name_that_is_cut_is_told_in_full(open_page):
    page = open_page(lostwax.export(Norms(2).eval(), (torch.randn(2, 4),)))
    name = "a_name_that_is_so_long_that_no_box_of_a_drawing_can_show_it"
    row = page.locator(f'.row[data-path="{name}"]')
    assert name in row.get_attribute("title")
    row.click()
    page.wait_for_timeout(50)
    canvas = page.locator("canvas.drawing").bounding_box()
    page.mouse.move(canvas["x"] + canvas["width"] / 2, canvas["y"] + canvas["height"] / 2)
    assert name in page.inner_text(".tip-box")
    page.set_viewport_size({"width": 1000, "height": 700})
    page.hover(".row .name >> nth=-2")
    assert page.evaluate("document.querySelector('.row .name[title]')?.title") == name


def test_an_address_leads_to_a_node(open_page):
    page = open_page(net(), lower=True)
    address = page.url.partition("#")[0]
    for node, title in (("node=silu_3", "silu"), ("stage=1&node=mul_3", "mul")):
        page.goto(f"{address}#{node}")
        page.wait_for_function("lostwax.view.selected !== null")
        assert named(page, "title").inner_text() == title
    page.goto(f"{address}#stage=0&module=blocks.2")
    page.wait_for_function("lostwax.view.selected.path === 'blocks.2'")
    page.click('.row[data-path="blocks.3"]')  # and what is selected has its address
    assert page.url == f"{address}#stage=0&module=blocks.3"
    assert page.get_attribute(".here-link", "href") == "#stage=0&module=blocks.3"


def test_a_page_that_is_opened_at_a_node_shows_it_large_enough_to_be_read(open_page):
    page = open_page(net())
    address = page.url.partition("#")[0]
    page.set_viewport_size({"width": 1280, "height": 420})
    page.goto("about:blank")  # else the page that is there moves, and none is opened
    page.goto(f"{address}#node=silu_3")
    page.wait_for_selector("html[data-ready]")
    page.wait_for_function("document.querySelector('canvas').dataset.ready")
    scale, y, height = page.evaluate(
        """() => {
            const { view } = lostwax, { k, y } = view.camera;
            const place = view.layouts.place(view.selected);
            return [k, (place.y + place.h / 2) * k + y, view.canvas.clientHeight];
        }"""
    )
    assert scale >= 0.69
    assert 0 < y < height


def test_times_are_never_cut(open_page):
    nodes = [n.name for n in net().graph.nodes if n.op == "call_function"]
    page = open_page(net(), profile={"seconds": dict.fromkeys(nodes, 0.123456)})
    cut = page.evaluate(
        """() => {
            for (const link of document.querySelectorAll(".values .link"))
                link.textContent += "_".repeat(80);
            const told = [...document.querySelectorAll(".values .type")];
            return told.map((each) => each.scrollWidth > each.clientWidth);
        }"""
    )
    assert cut
    assert not any(cut)


def test_the_drawing_is_saved(open_page):
    page = open_page(net(), title="<a & b>")
    page.keyboard.press("u")
    with page.expect_download() as svg:
        page.click('[data-name="svg"]')
    text = Path(svg.value.path()).read_text()
    root = ElementTree.fromstring(text)
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"x", "blocks", "addmm", "f32[batch, 8]"} <= set(texts)
    with page.expect_download() as png:
        page.click('[data-name="png"]')
    data = Path(png.value.path()).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == tuple(math.floor(2 * float(root.get(n))) for n in ("width", "height"))


def test_differences_and_profiles_are_colours(open_page):
    def make(act: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), act, torch.nn.Linear(4, 2))
        return lostwax.export(model, (torch.randn(2, 4),))

    profile = {"seconds": {"addmm": 0.001, "relu": 0.009}, "errors": {"addmm": 1e-9}}
    page = open_page(make(torch.nn.ReLU()), diff=make(torch.nn.SiLU()), profile=profile)
    assert page.evaluate("lostwax.panes.length") == 2
    assert "3 nodes" in named(page, "differences").inner_text()
    hues = """colour => {
        if (colour) lostwax.setColours(colour);
        return lostwax.panes.map(({ view }) => Object.fromEntries(view.tree.items.filter(
            i => i.role === 'node' && view.colour(i)).map(i => [i.node.name, view.colour(i)])));
    }"""
    assert page.evaluate(hues, None) == [
        {"relu": "#e03131", "addmm_1": "#f08c00"},
        {"silu": "#2f9e44", "addmm_1": "#f08c00"},
    ]
    page.click('.details .link:has-text("silu")')
    assert page.evaluate("lostwax.view.program.stage") == 1
    assert named(page, "change").inner_text() == "only in second: ATen"
    assert page.evaluate(hues, "latency")[0] == {"addmm": "#ff6b6b", "relu": "#c2255c"}
    assert page.evaluate(hues, "errors")[0] == {"addmm": "#ffe066"}


def test_a_frame_of_a_notebook_has_no_address_and_works(open_page):
    page = open_page(net())
    page.set_content(net().plot()._repr_html_())
    frame = page.frames[-1]
    frame.wait_for_selector("html[data-ready]")
    frame.click('.row[data-path="head"]')
    assert frame.inner_text('[data-name="title"]') == "head"
    assert frame.query_selector(".here-link") is None
