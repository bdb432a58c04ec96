"""`lostwax explain LW0102`: the page of an error, or of a kind of finding. Must not import
torch."""

from __future__ import annotations

from lostwax.cli.outcome import CommandOutcome
from lostwax.errors import CLASSES, CommandError, did_you_mean
from lostwax.errors.page import ErrorPage, read_page
from lostwax.problems.kinds import KINDS


def list_codes() -> list[tuple[str, str]]:
    """All codes, each with the first sentence of its page."""
    found = []
    for page in list_pages():
        first = " ".join(page.cause.split()).partition(". ")[0]
        found.append((page.code, f"{page.name}: {first}"))
    return found


def list_pages() -> list[ErrorPage]:
    """The pages of errors, and of what reports find."""
    pages = [read_page(each) for each in CLASSES]
    return pages + [ErrorPage(k.name, k.code, k.cause, k.fix, "", "") for k in KINDS]


def explain_code(name: str | None) -> CommandOutcome:
    """The page of a code or a class; without one, the list of all."""
    if name is None:
        listed = list_codes()
        result = [{"code": code, "title": title} for code, title in listed]
        return CommandOutcome(
            {"codes": result}, "\n".join(f"{code}  {title}" for code, title in listed)
        )
    wanted = name.strip("[]").lower()
    for page in list_pages():
        if wanted in (page.code.lower(), page.name.lower()):
            parts = [f"{page.code} {page.name}", page.cause, f"What to do: {page.fix}"]
            for title, code in (("Example", page.example), ("Mended", page.mended)):
                if code:
                    indented = "\n".join(f"    {line}" if line else "" for line in code.split("\n"))
                    parts.append(f"{title}:\n\n{indented}")
            return CommandOutcome(page._asdict(), "\n\n".join(parts))
    known = [text for page in list_pages() for text in (page.code, page.name)]
    guess = did_you_mean(name, known) or "\n  instead: lostwax explain, which lists all codes"
    raise CommandError(f"there is no error {name!r}{guess}")
