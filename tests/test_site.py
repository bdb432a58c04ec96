"""The site of the documentation builds without a warning: every page is in its contents, every link
leads somewhere, every docstring can be read, every code of an error has a page."""

from __future__ import annotations

import html
import linecache
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lostwax
from lostwax.cli.explaining import list_pages
from lostwax.errors.page import ErrorPage
from tests.test_docs import blocks

ROOT = Path(__file__).parent.parent
CODES = list_pages()


def test_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test: two workers would build it twice."""
    pytest.importorskip("furo", reason="sphinx is not installed: make site")
    pytest.importorskip("myst_parser")
    site = tmp_path / "site"
    command = [sys.executable, "-W", "ignore", str(ROOT / ".ci" / "site"), str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    check_that_pages_are_there(site)
    for page in CODES:
        check_page_of_code(site, page)
    monkeypatch.chdir(tmp_path)
    for code in ("LW0102", "LW0201"):
        check_example(tmp_path / "site-source" / "errors" / f"{code}.md", tmp_path / "example.py")


def check_that_pages_are_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    modules = (lostwax.backends, lostwax.errors, lostwax.interop, lostwax.onnx, lostwax.pte)
    for module in (lostwax, *modules):
        page = (site / "reference" / f"{module.__name__}.html").read_text()
        functions = [n for n in module.__all__ if n.islower() and callable(getattr(module, n))]
        assert [n for n in functions if f'<span class="pre">{n}</span>' not in page] == []
    assert "// What Sphinx counts, and more" in (site / "_static" / "language_data.js").read_text()
    exports = (site / "reference" / "lostwax.html").read_text().partition('id="lostwax.export"')[2]
    assert "Examples: <a" in exports.partition('id="lostwax.')[0]
    assert {p.stem for p in (site / "errors").glob("*.html")} == {page.code for page in CODES}


def check_page_of_code(site: Path, page: ErrorPage) -> None:
    """It says what `lostwax explain` says, and is found from the list of all."""
    assert f'href="errors/{page.code}.html"' in (site / "errors.html").read_text()
    text = re.sub(r"<[^>]*>", "", (site / "errors" / f"{page.code}.html").read_text())
    for part in (f"{page.code}: {page.name}", page.cause, page.fix, page.example, page.mended):
        assert _flatten(part) in _flatten(html.unescape(text)), page.code


def _flatten(text: str) -> str:
    """Without what Markdown shows otherwise: emphasis, code, quotes, lines."""
    return re.sub(r"[`*\s…“”\"'‘’.–-]", "", text)


def check_example(page: Path, file: Path) -> None:
    """Saved as a file and run it gives what the page shows, with the same lines. That the examples
    of all give their errors, tests/test_docs.py tests."""
    example, _ = blocks(page.read_text())
    file.write_text(example.code)
    linecache.checkcache()
    with pytest.raises(lostwax.errors.LostwaxError) as error:
        exec(compile(example.code, str(file), "exec", dont_inherit=True), {"__name__": "page"})
    assert f"{type(error.value).__name__}: {error.value}\n" == example.output
