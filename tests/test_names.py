"""Names of functions say what they do: a bare participle (`told`, `rewritten`) does not. And
two classes have two names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.source import walk

PACKAGE = Path(__file__).parent.parent / "lostwax"
IRREGULAR = frozenset(
    ("alone", "apart", "bare", "bound", "built", "done", "drawn", "found", "given", "gone", "held",
     "kept", "known", "left", "lent", "made", "meant", "met", "odd", "said", "seen", "sent",
     "shown", "silent", "taken", "told")
)  # fmt: skip
NO_PARTICIPLES = frozenset(
    ("children", "embed", "flatten", "need", "open", "seed", "shorten", "strengthen", "tighten",
     "token", "unflatten")
)  # fmt: skip
FACE = {
    "cache.py cached": "a decorator, as `functools.cache`",
    "ir/passes/draft.py written": "of `Draft`, which passes of users take",
    "sym/env.py known": "one of the four questions about a size, in every rule",
    "sym/env.py unbacked": "makes a symbol as `symbol` does; the word of torch's users",
    "sym/reasoning/prove.py known": "the same question, of the environment",
}


def is_participle(name: str) -> bool:
    word = name.strip("_")
    if word in NO_PARTICIPLES or "_" in word:
        return False
    return word in IRREGULAR or (len(word) > 4 and word.endswith(("ed", "en")))


def classes() -> dict[str, list[str]]:
    """The files that define a class of a name, underscores aside."""
    found = defaultdict[str, list[str]](list)
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            found[name.strip("_")].append(path.relative_to(PACKAGE).as_posix())
    return found


def participles() -> set[str]:
    """Functions that are no properties, no rules of operators, and not Python's own names."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        is_needed = any(map(is_participle, re.findall(r"\bdef (\w+)", text)))
        for each in walk(ast.parse(text if is_needed else "")):
            if isinstance(each, ast.FunctionDef) and is_participle(each.name):
                words = {ast.unparse(d).partition("(")[0] for d in each.decorator_list}
                if not words & {"property", "cached_property", "rule", "composite"}:
                    found.add(f"{path.relative_to(PACKAGE).as_posix()} {each.name}")
    return found


def test_functions_are_verbs() -> None:
    found = participles()
    assert not found - FACE.keys(), f"say what it does, with an object: {found - FACE.keys()}"
    assert not FACE.keys() - found, "no more there"


def test_participles_are_told_from_verbs() -> None:
    names = ("_made", "rewritten", "asked", "embed", "flatten", "need", "renew_view", "_keep_saved")
    assert [is_participle(name) for name in names] == [True, True, True, *[False] * 5]


def test_two_classes_have_two_names() -> None:
    assert not {name: files for name, files in classes().items() if len(files) > 1}
