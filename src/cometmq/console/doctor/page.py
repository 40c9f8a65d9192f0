"""Runs the checks of a cluster on request, one run at a time, and shows what they found."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from cometmq.client import AdminClient
from cometmq.console.pages import Page, Query, Role, TooSlowError, within
from cometmq.console.reads import Reads
from cometmq.model.times import now_ms

log = logging.getLogger(__name__)

CHECK_S = 10.0
"""Seconds for one check."""
RUN_S = 120.0
"""Seconds for all of them."""
WAIT_S = 10.0
"""For how long a request waits for the end of a run, which goes on without it."""
FINDINGS_SHOWN = 500
WORST_FIRST = ("problem", "warning", "fine")


class Finding(msgspec.Struct):
    """What a check met, what it expected, and what to do."""

    check: str
    level: str
    """``problem``, ``warning`` or ``fine``."""
    subject: str
    met: str
    expected: str = ""
    action: str = ""


Examine = Callable[[AdminClient, float], Awaitable[Sequence[Finding]]]
"""Runs all checks of a cluster; the number is the seconds that each of them may take."""


class FindingsQuery(Query):
    """Which findings."""

    fine: bool = False
    """Also what is as expected."""


class Findings(msgspec.Struct):
    """The findings of the last run."""

    state: str = "not run yet"
    """``not run yet``, ``running``, ``done`` or ``failed``."""
    started_time_ms: int | None = None
    took_ms: int | None = None
    problems: int = 0
    warnings: int = 0
    fine: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)
    """The worst first."""
    findings_total: int = 0
    errors: list[str] = msgspec.field(default_factory=list)


def pages(doctor_of: Callable[[Reads], Doctor]) -> tuple[Page, ...]:
    """Return the pages of this feature.

    Args:
        doctor_of: returns the runs of an account.
    """

    async def last(reads: Reads, query: FindingsQuery) -> Findings:
        return doctor_of(reads).shown(fine=query.fine)

    async def newest(reads: Reads, query: FindingsQuery) -> Findings:
        await doctor_of(reads).run()
        return doctor_of(reads).shown(fine=query.fine)

    template = "doctor/findings.html"
    return (
        Page("/doctor", "Doctor", template, FindingsQuery, Findings, last, is_tab=True),
        Page(
            "/doctor/run", "Run the checks", template, FindingsQuery, Findings, newest,
            role=Role.OPERATOR,
        ),
    )  # fmt: skip


class Doctor:
    """The last run, and the run of now.

    Args:
        admin: the client of the cluster.
        examine: runs the checks.
        run_s: seconds for all checks.
    """

    def __init__(self, admin: AdminClient, examine: Examine, run_s: float = RUN_S) -> None:
        self._admin = admin
        self._examine = examine
        self._run_s = run_s
        self._found: Sequence[Finding] = ()
        self._state = Findings()
        self._running: asyncio.Task[None] | None = None

    def shown(self, *, fine: bool) -> Findings:
        """Return the findings of the last run, without what is fine unless asked for."""
        wanted = WORST_FIRST if fine else WORST_FIRST[:-1]
        found = [each for level in wanted for each in self._found if each.level == level]
        return msgspec.structs.replace(
            self._state, findings=found[:FINDINGS_SHOWN], findings_total=len(found)
        )

    async def run(self) -> None:
        """Start a run, or join the one of now, and wait for its end, `WAIT_S` at most."""
        if self._running is None or self._running.done():
            self._found, self._state = (), Findings("running", now_ms())
            self._running = asyncio.create_task(self._run(), name="console doctor")
        await asyncio.wait([self._running], timeout=WAIT_S)

    async def _run(self) -> None:
        state = self._state
        try:
            text = (
                f"the checks did not end within {self._run_s:g} s: cometmq doctor runs without"
                " this limit"
            )
            async with within(self._run_s, text):
                self._found = await self._examine(self._admin, CHECK_S)
            state.state = "done"
        except TooSlowError as error:
            state.state = "failed"
            state.errors.append(str(error))
        except Exception as error:  # a defect of the checks must be seen, and not end the console
            log.exception("the checks of the cluster failed")
            state.state = "failed"
            state.errors.append(f"{type(error).__name__}: {error}")
        counts = Counter(each.level for each in self._found)
        state.problems, state.warnings = counts["problem"], counts["warning"]
        state.fine = counts["fine"]
        state.took_ms = now_ms() - (state.started_time_ms or 0)

    async def close(self) -> None:
        """End the run of now."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
