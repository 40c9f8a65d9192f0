"""Names the build under test in the report's head, and refuses to test another than asked for."""

from __future__ import annotations

import signal

import pytest

from support import build


def pytest_report_header() -> str:
    return f"build under test: {build.describe()}"


def pytest_sessionstart(session: pytest.Session) -> None:
    # A shell that runs us in the background has SIGINT ignored, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    reason = build.mismatch()
    if reason:
        raise pytest.UsageError(f"expected the {build.EXPECTED} build, but {reason}")
