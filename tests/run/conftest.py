"""lostwax-run in an empty environment, and cases for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.environment import Installed, Unavailable, install, write_cases


@pytest.fixture(scope="session")
def installed() -> Installed:
    try:
        return install()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cases(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    write_cases(installed, folder)
    return folder
