"""`explore`: writes the page of a program; `plot`: shows it in a notebook."""

from __future__ import annotations

import html
import json
import os
from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from lostwax import collector
from lostwax.explorer.stages import describe_stages, find_stages, pair_stages
from lostwax.undo.replace_files import replace_files

_PLACE = "__LOSTWAX_PROGRAM__"
"""What stands in the template where the data goes."""


class Page:
    """A page about a program: `save` writes it, a notebook shows it."""

    def __init__(self, data: dict[str, Any], height: int = 560) -> None:
        self.data = data
        """What the page shows; docs/explorer.md says what is in it."""
        self.height = height

    @property
    def html(self) -> str:
        """The page: one file that needs nothing else."""
        template = files("lostwax.explorer").joinpath("template.html").read_text("utf-8")
        return template.replace(_PLACE, _encode(self.data))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; a file is replaced when all is written, or not at all."""
        text = self.html
        replace_files({os.fspath(path): partial(_write, text.encode())})
        return Path(path)

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        style = f"width:100%;height:{self.height}px;border:1px solid #8884;border-radius:8px"
        title = html.escape(self.data["title"])
        return f'<iframe srcdoc="{page}" style="{style}" title="{title}"></iframe>'

    def __repr__(self) -> str:
        return f"Page({self.data['title']!r}: {', '.join(self.data['stages'])})"


def explore(
    program: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    lower: bool = False,
    source: bool = True,
    title: str | None = None,
    diff: Any = None,
    profile: Any = None,
) -> Page:
    """Make a page on which a program can be looked at: its graph, folded by modules, the source
    line and the origin of each node, its memory, what is delegated. The page is one file, which
    needs no network; it is written to `path`.

    `program` is an `ExportedProgram`, an `EdgeProgramManager`, an executable, the path of a `.pt2`
    or `.pte` file, a dict of programs by name, or a `Journal`. A list of these is shown side by
    side: the stages of one program, in order. With `lower`, core ATen and Edge are such stages,
    too. The page is called `title`, else as the program. With `source=False` the page has the lines
    that nodes come from, not those around them.

    `diff` is another program, or file, which is shown beside it, with the differences in colours.
    `profile` colours nodes by how long they take and how wrong they are: a dict
    `{"seconds": {node: ...}, "errors": {node: ...}}`, a JSON file of one, or True: the program is
    then run with its example, and errors are those of `diff` against it.
    """
    if path is not None and Path(path).suffix not in ("", ".html", ".htm"):
        raise ValueError(
            f"explore writes a page, and {os.fspath(path)!r} is called otherwise\n"
            "  why: a browser tells by the name what a file is\n"
            f"  instead: {os.fspath(Path(path).with_suffix('.html'))!r}; the page saves SVG and PNG"
        )
    with ExitStack() as undo:
        collector.pause(undo.callback)
        if diff is None:
            stages = find_stages(program, lower, weights=profile is True)
        else:
            stages = pair_stages(program, diff, lower, weights=profile is True)
        if title is None:
            names = [Path(p).name for p in (program, diff) if isinstance(p, (str, os.PathLike))]
            title = " and ".join(dict.fromkeys(names)) or _find_title(stages)
        page = Page(describe_stages(stages, title, source, diff is not None, profile))
    if path is not None:
        page.save(path)
    return page


def plot(program: Any, height: int = 560, **options: Any) -> Page:
    """The page of a program, for a notebook: the last line of a cell."""
    page = explore(program, **options)
    page.height = height
    return page


def _find_title(stages: list[Any]) -> str:
    """The name of the class that was exported."""
    for stage in stages:
        for program in stage.methods.values():
            for node in program.graph.nodes:
                root = next(iter((node.meta.get("nn_module_stack") or {}).values()), None)
                if root is not None and root[0] == "":
                    kind = root[1] if isinstance(root[1], str) else root[1].__qualname__
                    return str(kind).rpartition(".")[2]
    return "program"


def _encode(data: dict[str, Any]) -> str:
    """JSON that can stand in a script of a page: no text in it ends the script."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _write(data: bytes, file: IO[bytes]) -> None:
    file.write(data)
