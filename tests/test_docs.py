"""Every Python block of the documentation runs, and prints what stands below it.

The blocks of a page share their names, in the order they stand. A `text` block that directly
follows a `python` block is what that block prints, to the letter but for line numbers of the page.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lostwax.ir.passes import properties

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(\n^```text\n(?P<output>.*?)^```\n)?", re.M | re.S
)


class Block(NamedTuple):
    line: int
    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, match.start("code")), match["code"], match["output"])
        for match in FENCE.finditer(text)
    ]


def run(block: Block, page: Path, names: dict[str, Any]) -> str:
    """What the block prints. Compiled at its own line of the page, so that errors point there."""
    code = compile("\n" * block.line + block.code, str(page), "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def without_lines(text: str) -> str:
    """A page would have to be renumbered at every edit."""
    return re.sub(r"(\.md):\d+", r"\1", text)


def check_page(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page.read_text()):
        printed = run(block, page, names)
        if block.output is not None:
            assert without_lines(printed) == without_lines(block.output), (
                f"{page.name}:{block.line + 1}"
            )


@pytest.fixture
def _properties_put_back():
    """A page that shows how to add a property of one's own adds it for its own examples only."""
    known = dict(properties.PROPERTIES)
    yield
    properties.PROPERTIES.clear()
    properties.PROPERTIES.update(known)


@pytest.mark.usefixtures("_properties_put_back")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page):
    assert blocks(page.read_text()), "a page without a single example"
    check_page(page)


@pytest.fixture
def page(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "page.md"
        path.write_text(text)
        return path

    return write


def test_blocks_share_names_and_are_compared(page):
    check_page(page("a\n```python\nx = 1\n```\nb\n```python\nprint(x)\n```\n\n```text\n1\n```\n"))


def test_a_wrong_output_is_found(page):
    with pytest.raises(AssertionError, match=r"page\.md:2"):
        check_page(page("```python\nprint(1)\n```\n\n```text\n2\n```\n"))


def test_an_error_points_into_the_page(page):
    with pytest.raises(ZeroDivisionError) as error:
        check_page(page("a\nb\n```python\n1 / 0\n```\n"))
    assert error.traceback[-1].lineno + 1 == 4
