"""Names the build under test in the report's head, and refuses to test another than asked for."""

from __future__ import annotations

import pytest

from support import build


def pytest_report_header() -> str:
    return f"build under test: {build.describe()}"


def pytest_sessionstart(session: pytest.Session) -> None:
    reason = build.mismatch()
    if reason:
        raise pytest.UsageError(f"expected the {build.EXPECTED} build, but {reason}")
