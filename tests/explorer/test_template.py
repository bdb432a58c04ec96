"""The page in the package is that of the sources in `explorer/`."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

import lostwax
from tests.explorer.programs import net

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "explorer"
TEMPLATE = ROOT / "lostwax" / "explorer" / "template.html"
BESIDE = ("index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts")


def hash_sources(folder: Path) -> str:
    """As `explorer/vite.config.ts` does it."""
    files = [folder / name for name in BESIDE]
    files += [path for path in (folder / "src").rglob("*") if path.is_file()]
    found = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.relative_to(folder).as_posix()):
        found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def test_the_page_is_built_from_these_sources():
    (said,) = re.findall(r'<meta name="sources" content="(\w+)">', TEMPLATE.read_text())
    assert said == hash_sources(FOLDER), "the sources have changed: make explorer"


def test_a_change_of_a_source_is_seen(tmp_path):
    for name in BESIDE:
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.ts").write_text("a")
    before = hash_sources(tmp_path)
    (tmp_path / "src" / "main.ts").write_text("b")
    assert hash_sources(tmp_path) != before


def test_the_page_needs_nothing_else():
    """No address but those in comments and of namespaces is in it, and it is small."""
    text = TEMPLATE.read_text()
    without = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", without) == []
    assert "@import" not in text
    assert "fetch(" not in text
    assert len(text) < 2_000_000


def luminance(colour: str) -> float:
    """As WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [":root", ':root[data-theme="dark"]'])
@pytest.mark.parametrize(("what", "least"), [("wire", 3), ("muted", 4), ("ink", 7)])
def test_lines_and_texts_are_told_from_what_they_are_drawn_on(theme, what, least):
    style = (FOLDER / "src" / "style.css").read_text()
    (rules,) = re.findall(re.escape(theme) + r" \{(.*?)\}", style, re.S)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", rules))
    for paper in ("paper", "card", "panel", "group-0", "group-1"):
        dark, light = sorted(luminance(colours[name]) for name in (what, paper))
        assert (light + 0.05) / (dark + 0.05) >= least, paper


def test_no_text_of_a_program_ends_the_script(tmp_path):
    title = "</script><script>alert(1)</script><!--"
    page = lostwax.explore(net(), tmp_path / "net.html", title=title)
    text = (tmp_path / "net.html").read_text()
    assert text == page.html
    assert "alert(1)</script>" not in text
    (data,) = re.findall(r'<script type="application/json" id="program">(.*?)</script>', text, re.S)
    assert json.loads(data)["title"] == title


def test_a_text_that_is_no_unicode_is_written(tmp_path):
    lostwax.explore(net(), tmp_path / "net.html", title="\udcff\u2028é")
    assert r'"title":"\udcff\u2028\u00e9"' in (tmp_path / "net.html").read_text()


def test_a_notebook_shows_the_page_in_a_frame():
    plot = net().plot(height=321)
    text = plot._repr_html_()
    assert text.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "height:321px" in text
    assert text.count('"') == 6  # the page itself is escaped


def test_a_notebook_shows_modules_as_a_tree():
    text = net()._repr_html_()
    assert "<summary>blocks.0 <i>Block</i> (7)</summary>" in text
    assert "blocks.0.second <i>Linear</i> (2)</div>" in text


def test_a_notebook_shows_inputs_apart_from_state_and_methods_of_a_file():
    program = net()
    manager = program.to_edge()
    pages = [program._repr_html_(), manager._repr_html_(), manager.to_executable()._repr_html_()]
    for page in pages:
        inputs, _, state = page.partition("buffers and constants")
        assert "<summary>1 input</summary>" in inputs
        assert ".weight</td>" not in inputs
        assert ".weight</td>" in state
        assert page.count("<details") == page.count("</details>")
    assert "<b>EdgeProgramManager</b> <span class='badge'>1 method</span>" in pages[1]
    assert "bytes of memory</span>" in pages[2]
