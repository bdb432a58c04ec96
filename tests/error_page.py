"""Writes docs/errors.md: a section for each class of errors, from its docstring, with what its
example prints.

    make index, or: python -m tests.error_page
"""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import torch

import lostwax
from lostwax.errors import CLASSES, LostwaxError
from lostwax.errors.page import ErrorPage, read_page

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "errors.md"
PARTS = {
    "01": "while exporting",
    "02": "with sizes that vary",
    "03": "with fake tensors",
    "04": "when a program is called",
    "05": "when a program is transformed or checked",
    "06": "when a program is lowered",
    "07": "with files",
    "08": "on the command line",
}
SEE = {
    "CaptureError": "[what is refused](export.md#what-is-refused)",
    "DataDependentError": "[what is refused](export.md#what-is-refused) and\n"
    "[sizes that only the data know](fake-tensors.md#sizes-that-only-the-data-know)",
    "StrictError": "[strict](strict.md)",
    "JointError": "[what is differentiated](joint.md#what-is-differentiated)",
    "UnknownModuleError": "[exchanging a module](unflatten.md#exchanging-a-module)",
    "SettingsError": "[what is fixed](export.md#what-is-fixed)",
    "ConstraintViolationError": "[when a size cannot vary]"
    "(dynamic-shapes.md#when-a-size-cannot-vary)",
    "DynamicShapesError": "[ways to write it](dynamic-shapes.md#ways-to-write-it)",
    "UnsupportedFakeError": "[fake tensors](fake-tensors.md)",
    "NonFakeInputError": "[real tensors to fakes](fake-tensors.md#real-tensors-to-fakes)",
    "MixedModeError": "[real tensors to fakes](fake-tensors.md#real-tensors-to-fakes)",
    "InputStructureError": "[other arguments than at capture]"
    "(unflatten.md#other-arguments-than-at-capture)",
    "InputValueError": "[what is fixed](export.md#what-is-fixed)",
    "NotCallableError": "[the module of a program](export.md#the-module-of-a-program)",
    "SharedStateError": "[several programs with one state](pt2.md#several-programs-with-one-state)",
    "SwapError": "[exchanging a module](unflatten.md#exchanging-a-module)",
    "SplitError": "[pipelines](distributed.md#pipelines)",
    "VerificationError": "[when a pass is wrong](passes.md#when-a-pass-is-wrong)",
    "DecompositionError": "[your own table](decompositions.md#your-own-table)",
    "PassError": "[a pass with options and a contract]"
    "(passes.md#a-pass-with-options-and-a-contract)",
    "CheckError": "[is the program right?](check.md)",
    "LoweringError": "[what is refused](pte.md#what-is-refused)",
    "SaveError": "[save and load](pt2.md#save-and-load)",
    "LoadError": "[a file is not trusted](pt2.md#a-file-is-not-trusted)",
    "NotPickledError": "[programs in files](pt2.md)",
    "CommandError": "[the command line](command-line.md)",
}
HEAD = """\
# Errors, one by one

*[All pages](index.md). Read before: [exporting a module](export.md). Read next: the page that an
entry links to.*

Every error that lostwax raises on purpose is a class in `lostwax.errors`, and has a code, which
stands in the first line of its message and never changes: `lostwax explain LW0102` shows what
stands here. A message says what was refused, where in your code (the guilty part of the line is
marked), why, and what to write instead. An entry has the cause, what to do, a program that gives
the error, and how it goes on without it. The text is that of
`help(lostwax.errors.DataDependentError)` and its like.

| when | classes |
|---|---|
%s

What [a report](command-line.md#all-problems-at-once) finds beside errors has codes from `LW1001`
on.

```python
import torch
import lostwax
```
"""


def write_page() -> str:
    """The page, with what the examples print."""
    pages = [read_page(each) for each in CLASSES]
    rows = []
    for number, part in PARTS.items():
        names = [page.name for page in pages if page.code.startswith(f"LW{number}")]
        rows.append(f"| {part} | {', '.join(f'[{n}](#{n.lower()})' for n in names)} |")
    text = HEAD % "\n".join(rows)
    for each, page in zip(CLASSES, pages, strict=True):
        text += f"\n## {page.name}\n\n`{page.code}`{_write_base(each)}\n\n{page.cause}\n"
        text += f"\n**What to do:** {page.fix}\n"
        if page.name in SEE:
            text += f"\nSee {SEE[page.name]}.\n"
        if page.example:
            text += write_example(page, text)
    return text


def _write_base(each: type[LostwaxError]) -> str:
    """Which of Python's own errors it is."""
    own = [base.__name__ for base in each.__mro__ if base.__module__ in ("builtins", "_pickle")]
    name = next(name for name in own)
    return "" if name == "Exception" else f", {'an' if name[0] in 'AEIOU' else 'a'} `{name}`"


def write_example(page: ErrorPage, above: str) -> str:
    """The blocks of an example, which stands on the page below a text."""
    above += "\n```python\n"
    message = run_example(page, above)
    blocks = [f"```python\n{page.example}\n```", f"```text\n{page.name}: {message}\n```"]
    return "\n" + "\n\n".join([*blocks, "Mended:", f"```python\n{page.mended}\n```"]) + "\n"


def run_example(page: ErrorPage, above: str) -> str:
    """The message of the error that an example gives; its mended form must run."""
    lines = (above + page.example).splitlines(keepends=True)
    linecache.cache[str(PAGE)] = (0, None, lines, str(PAGE))  # a message shows the line of the page
    names: dict[str, Any] = {"torch": torch, "lostwax": lostwax, "__name__": "__page__"}
    code = "\n" * above.count("\n") + page.example
    try:
        exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
    except LostwaxError as error:
        name, message = type(error).__name__, str(error)
    else:
        name = message = "no error"
    assert name == page.name, f"the example of {page.name} gives {name}"
    exec(compile(page.mended, f"<{page.name}, mended>", "exec", dont_inherit=True), names)
    return message


if __name__ == "__main__":
    PAGE.write_text(write_page())
    print(f"{PAGE.name}: {len(CLASSES)} classes")
