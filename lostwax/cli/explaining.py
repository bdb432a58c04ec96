"""`lostwax explain LW0102`: the page of an error. Must not import torch."""

from __future__ import annotations

from lostwax.cli.outcome import Outcome
from lostwax.errors import CLASSES, CommandError, did_you_mean
from lostwax.errors.page import read_page


def list_codes() -> list[tuple[str, str]]:
    """All codes, each with the first sentence of its page."""
    found = []
    for each in CLASSES:
        first = " ".join(read_page(each).cause.split())
        found.append((each.code, f"{each.__name__}: {first.partition('. ')[0]}"))
    return found


def explain_code(name: str | None) -> Outcome:
    """The page of a code or a class; without one, the list of all."""
    if name is None:
        listed = list_codes()
        result = [{"code": code, "title": title} for code, title in listed]
        return Outcome({"codes": result}, "\n".join(f"{code}  {title}" for code, title in listed))
    wanted = name.strip("[]").lower()
    for each in CLASSES:
        if wanted in (each.code.lower(), each.__name__.lower()):
            page = read_page(each)
            parts = [f"{page.code} {page.name}", page.cause, f"What to do: {page.fix}"]
            for title, code in (("Example", page.example), ("Mended", page.mended)):
                if code:
                    indented = "\n".join(f"    {line}" if line else "" for line in code.split("\n"))
                    parts.append(f"{title}:\n\n{indented}")
            return Outcome(page._asdict(), "\n\n".join(parts))
    known = [text for each in CLASSES for text in (each.code, each.__name__)]
    raise CommandError(f"there is no error {name!r}{did_you_mean(name, known)}")
