"""Every Python block of the documentation runs, and prints what stands below it; links lead
somewhere; the files that are spoken of exist; the page of errors says what the classes say.

The blocks of a page share their names, in the order they stand. A `text` block that directly
follows a `python` block is what that block prints, to the letter but for line numbers of the page.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lostwax
from lostwax import errors
from lostwax.errors.page import read_page
from lostwax.ir.passes import properties
from tests.source import walk

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(page for folder in ("docs", "docs/how") for page in sorted((ROOT / folder).glob("*.md"))),
]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
"""Pages that use other people's packages; tests/test_recipes.py runs them."""
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
        try:
            exec(code, names)
        except errors.LostwaxError as error:  # a block may show one
            if block.output is None:
                raise
            print(f"{type(error).__name__}: {error}")
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
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
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


# --------------------------------------------------------------------------------- between pages

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(text: str) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Path) -> list[str]:
    dead = []
    for link in LINK.findall(prose(page.read_text())):
        file, _, anchor = link.partition("#")
        to = page.parent / file if file else page
        if link.startswith(("http:", "https:")):
            continue
        if not to.exists() or (anchor and anchor not in anchors(to.read_text())):
            dead.append(link)
    return dead


@pytest.mark.parametrize(
    "page", [*PAGES, *RECIPES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page):
    assert dead_links(page) == []


def test_a_dead_link_is_found(page):
    text = "# A `b`, c\n[1](page.md#a-b-c) [2](#a-b-c)\n[3](gone.md) [4](#gone) [5](https://x.y)\n"
    assert dead_links(page(text)) == ["gone.md", "#gone"]


def test_each_page_is_found_from_the_index_and_leads_on():
    index = ROOT / "docs" / "index.md"
    listed = LINK.findall(index.read_text())
    for page in sorted(set(index.parent.rglob("*.md")) - {index}):
        assert page.relative_to(index.parent).as_posix() in listed
        top = page.read_text().split("\n\n")[1]
        assert "index.md)" in top, page.name
        assert "Read next:" in top, page.name


# ------------------------------------------------------------------------ files that are spoken of

FILE = re.compile(r"(?<![\w./-])((?:[\w.-]+/)*[\w-]+\.(?:py|md|toml))\b(?![.(])")
OF_USERS = {"model.py", "train.py", "nets.py", "path/to/model.py", "path/to/nets.py"}


def spoken_of(text: str) -> Iterator[str]:
    """The files that the docstrings of a module speak of."""
    for node in walk(ast.parse(text if FILE.search(text) else "")):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield from FILE.findall(ast.get_docstring(node) or "")


def missing(names: Iterator[str] | list[str], files: list[str]) -> set[str]:
    return {name for name in names if not any(f"/{file}".endswith(f"/{name}") for file in files)}


def test_files_that_are_spoken_of_are_here():
    """So that nothing points to a file that was moved, or to a document that readers do not
    have."""
    folders = ("lostwax", "tests", "docs", "bench", "fuzz", "sweep", "examples", "run")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    files = [path.relative_to(ROOT).as_posix() for path in [*found, *ROOT.glob("*.*")]]
    faults = {}
    for path in (ROOT / "lostwax").rglob("*.py"):
        faults[path] = missing(spoken_of(path.read_text()), files)
    for page in [*PAGES, *RECIPES]:
        faults[page] = missing(FILE.findall(LINK.sub("", prose(page.read_text()))), files)
    assert {str(path): names for path, names in faults.items() if names - OF_USERS} == {}


def test_a_file_that_is_not_here_is_found():
    source = '''def f():
    """Written by `sym/env.py`, as said in docs/gone.md and old.py; not in f.python."""'''
    assert missing(spoken_of(source), ["lostwax/sym/env.py"]) == {"docs/gone.md", "old.py"}


# ---------------------------------------------------------------------------- the page of errors


def section(name: str) -> str:
    _, _, rest = (ROOT / "docs" / "errors.md").read_text().partition(f"\n## {name}\n\n")
    return re.split(r"^## ", rest, flags=re.M)[0]


def test_the_page_of_errors_has_all_of_them_in_order():
    titles = re.findall(r"^## (.*)$", prose((ROOT / "docs" / "errors.md").read_text()), re.M)
    assert titles == [error.__name__ for error in errors.CLASSES]


@pytest.mark.parametrize("error", errors.CLASSES, ids=lambda error: error.__name__)
def test_the_page_says_of_an_error_what_its_class_says_and_shows_it(error):
    """`test_page` runs the example, whose error must be what is shown, and the mended form, which
    must raise none. `make index` writes the page."""
    said, text = read_page(error), section(error.__name__)
    assert text.startswith(f"`{error.code}`")
    assert f"\n\n{said.cause}\n\n**What to do:** {said.fix}\n" in text
    if error is errors.LostwaxError:
        assert not said.example, "only its subclasses are raised"
        return
    example, mended = blocks(text)
    assert _close_up(example.code) == f"{said.example}\n"
    assert example.output.startswith(f"{error.__name__}: [{error.code}] ")
    assert (_close_up(mended.code), mended.output) == (f"{said.mended}\n", None)


def _close_up(code: str) -> str:
    """Code with single empty lines, as docstrings have it: the formatter of pages makes two."""
    return code.replace("\n\n\n", "\n\n")


def test_every_public_name_is_used_in_an_example():
    """The reference links to it. Errors have a page each; `Constraint` is there as torch has it."""
    code = "".join(b.code for page in (*PAGES, *RECIPES) for b in blocks(page.read_text()))
    used = {*re.findall(r"\w+", code), "Constraint"}
    folders = ("backends", "interop", "llm", "ops", "passes", "pte")
    for module in (lostwax, *(getattr(lostwax, each) for each in folders)):
        assert [name for name in module.__all__ if name not in used and name[:2] != "__"] == []
