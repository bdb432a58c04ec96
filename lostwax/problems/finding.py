"""What a report holds, and its forms: text that editors can jump in, JSON, HTML."""

from __future__ import annotations

import html
import json
import linecache
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lostwax.location import show_path
from lostwax.undo.replace_files import replace_files

SCHEMA = "lostwax.report/1"
LEVELS = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One problem. Columns are of characters and begin with 1; where none is known, the first one
    of the line."""

    code: str
    level: str
    message: str
    fix: str
    file: str
    line: int
    column: int = 0
    end_column: int = 0
    function: str = ""
    why: str = ""

    @property
    def source(self) -> str:
        """The line of the user's."""
        return linecache.getline(self.file, self.line).rstrip() if self.line else ""

    @property
    def place(self) -> str:
        """`model.py:12:5`, as editors read it."""
        if not self.line:
            return "-"
        column = self.column or len(self.source) - len(self.source.lstrip()) + 1
        return f"{show_path(self.file)}:{self.line}:{column}"

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.code} {self.level}: {self.message}"]
        if self.source:
            lines.append(f"    {self.source.strip()}")
            indent = len(self.source) - len(self.source.lstrip())
            if self.column and self.end_column - self.column < len(self.source.strip()):
                marks = "^" * max(self.end_column - self.column, 1)
                lines.append(" " * (4 + self.column - 1 - indent) + marks)
        lines += [f"  why: {self.why}"] if self.why else []
        lines += [f"  fix: {self.fix}"] if self.fix else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """All that was found. It is true if nothing worse than a note was."""

    findings: tuple[Finding, ...]
    stages: tuple[str, ...]
    """What was tried: "export", "core", "edge", "runtime", "delegates". A stage that is not there
    could not be reached."""
    stopped: str = ""
    """Why no more was tried."""

    @property
    def ok(self) -> bool:
        return not self.stopped and all(f.level == "note" for f in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def summary(self) -> str:
        counts = Counter(finding.level for finding in self.findings)
        counted = [f"{counts[level]} {level}{'s' * (counts[level] != 1)}" for level in LEVELS]
        tried = f"tried: {', '.join(self.stages)}" if self.stages else "nothing could be exported"
        stopped = f"\nno more was tried: {self.stopped}" if self.stopped else ""
        return f"{', '.join(counted)}; {tried}{stopped}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.summary])

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; docs/command-line.md says what is in it."""
        listed = []
        for finding in self.findings:
            counted = {**asdict(finding), "file": show_path(finding.file), "source": finding.source}
            listed.append({key: value or None for key, value in counted.items()})
        head = {"schema": SCHEMA, "ok": self.ok, "stages": list(self.stages)}
        return {**head, "stopped": self.stopped or None, "findings": listed}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def to_html(self) -> str:
        """One page that needs nothing else."""
        rows = []
        for f in self.findings:
            before, marked, after = _split_source(f)
            marked = f"<mark>{html.escape(marked)}</mark>"
            code = f"<pre>{html.escape(before)}{marked}{html.escape(after)}</pre>"
            place = f"{f.place} in {f.function}" if f.function else f.place
            more = "".join(
                f"<p><b>{name}</b> {html.escape(text)}</p>"
                for name, text in (("why", f.why), ("fix", f.fix))
                if text
            )
            rows.append(
                f'<section class="{f.level}"><h2><code>{f.code}</code> {f.level}: '
                f"{html.escape(f.message)}</h2>"
                f"{f'<p class=place>{html.escape(place)}</p>' if f.line else ''}"
                f"{code if f.source else ''}{more}</section>"
            )
        return _PAGE.format(summary=html.escape(self.summary), rows="\n".join(rows))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it: as JSON to `x.json`, as HTML to `x.html`, else as text. A file is replaced when
        all is written, or not at all."""
        forms = {".json": self.to_json, ".html": self.to_html}
        data = (forms.get(Path(path).suffix, self.__str__)() + "\n").encode()
        replace_files({path: lambda file: file.write(data)})

    def _repr_html_(self) -> str:
        return self.to_html()


def _split_source(finding: Finding) -> tuple[str, str, str]:
    line = finding.source
    if not finding.column:
        return "", line.strip(), ""
    start, end = finding.column - 1, max(finding.end_column - 1, finding.column)
    return line[:start].lstrip(), line[start:end], line[end:]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>lostwax: report</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color-scheme: light dark; }}
section {{ border-left: 4px solid #888; padding: .2rem 1rem; margin: 1rem 0; }}
section.error {{ border-color: #d33; }} section.warning {{ border-color: #d90; }}
h2 {{ font-size: 1rem; }} h2, p {{ margin: .2rem 0; white-space: pre-wrap; }}
.place {{ opacity: .7; font-family: monospace; }} pre {{ overflow-x: auto; margin: .4rem 0; }}
mark {{ background: #fd58; color: inherit; }}
</style></head><body><h1>lostwax: report</h1><p>{summary}</p>
{rows}
</body></html>"""
