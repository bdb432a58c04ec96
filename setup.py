"""What an index of packages shows: the README, whose links lead to files that are not there. They
become their texts, and pictures go; with an address of the project they become absolute. All else
of the package is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

ADDRESS = ""
"""Where the files of this repository can be read, with a slash at its end. There is none yet."""


def describe(readme: str) -> str:
    """The README for readers who have not the files beside it."""
    if ADDRESS:
        return re.sub(r"\]\((?!https?:)([^)]+)\)", rf"]({ADDRESS}\1)", readme)
    without = re.sub(r"^!\[[^\]]*\]\([^)]+\)\n\n", "", readme, flags=re.M)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)", r"\1", without)


setup(
    long_description=describe((Path(__file__).parent / "README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
)
