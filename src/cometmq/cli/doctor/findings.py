"""Runs checks side by side, each bounded in time, and collects their findings.

A check that fails, or takes too long, is a finding itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.bodies.base import InvalidBodyError
from cometmq.protocol.refusals import is_account_refused

T = TypeVar("T")

CHECKS_AT_ONCE = 32
NAMES_SHOWN_MAX = 5
GIVE_ADMINISTRATOR = (
    "give the account of an administrator: COMETMQ_CLIENT_ACCESS_KEY, COMETMQ_CLIENT_SECRET_KEY"
)
LOOK = "look whether what is checked responds; --timeout gives checks more time"


class Level(Enum):
    """How bad a finding is."""

    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"


WORST_FIRST = (Level.PROBLEM, Level.WARNING, Level.FINE)


class Finding(NamedTuple):
    """The result of one check of one subject."""

    check: str
    """The name of the check, such as ``disk-space``."""
    level: Level
    subject: str
    """The subject of the check: a host, a directory, a server, a topic."""
    met: str
    expected: str = ""
    action: str = ""
    """The action to take: a command, a setting, or a page of the documentation."""


class Check(NamedTuple):
    """One check of one thing."""

    name: str
    subject: str
    run: Callable[[], Awaitable[Sequence[Finding]]]


def fine(check: str, subject: str, met: str) -> Finding:
    """Return the finding that all is as expected."""
    return Finding(check, Level.FINE, subject, met)


def no_result(check: str, level: Level, subject: str, problem: CometError, action: str) -> Finding:
    """Return the finding that a server has not responded, or not with what was requested.

    Args:
        check: the name of the check.
        level: how bad it is.
        subject: the server.
        problem: the error of the request.
        action: what to do, unless another account may help.
    """
    met = str(problem)
    if isinstance(problem, InvalidBodyError):
        met = f"its response cannot be read: {problem}"
    elif isinstance(problem, ResponseError):
        met = f"it refuses the request: {problem}"
        if is_account_refused(problem):
            action = GIVE_ADMINISTRATOR
    return Finding(check, level, subject, met, "a response", action)


def too_many(check: str, count: int, most: int) -> Iterator[Finding]:
    """Return the finding that there are more brokers, topics or groups than one run checks, if so.

    Args:
        check: the name of the check, which is also what it counts.
        count: how many there are.
        most: how many were checked.
    """
    if count > most:
        yield Finding(
            check, Level.WARNING, "the cluster", f"{count} {check}, of which {most} were checked",
            f"at most {most} {check}",
            "look at the others with cometmq admin; see docs/howto/administer.md",
        )  # fmt: skip


def shown(names: Sequence[str]) -> str:
    """Return some of many names."""
    some = ", ".join(names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return some if more <= 0 else f"{some} and {more} more"


def in_thread(find: Callable[[], Iterable[Finding]]) -> Callable[[], Awaitable[Sequence[Finding]]]:
    """Return a check that runs in a thread of its own.

    The thread is a daemon: a disk or a name service that does not respond neither blocks other
    checks nor the end of the process.
    """

    async def run() -> Sequence[Finding]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sequence[Finding]] = loop.create_future()

        def settle(found: Sequence[Finding], problem: BaseException | None) -> None:
            if done.done():
                return
            if problem is None:
                done.set_result(found)
            else:
                done.set_exception(problem)

        def work() -> None:
            found: Sequence[Finding] = ()
            problem: BaseException | None = None
            try:
                found = list(find())
            except Exception as error:
                problem = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, found, problem)

        threading.Thread(target=work, name="check", daemon=True).start()
        return await done

    return run


async def run_checks(checks: Iterable[Check], timeout_s: float) -> list[Finding]:
    """Run checks at the same time; return their findings in the order of the checks.

    Args:
        checks: what to run, at most `CHECKS_AT_ONCE` at a time.
        timeout_s: how long each of them may take.
    """
    limit = asyncio.Semaphore(CHECKS_AT_ONCE)
    found = await asyncio.gather(*(_run(check, timeout_s, limit) for check in checks))
    return [finding for findings in found for finding in findings]


async def _run(check: Check, timeout_s: float, limit: asyncio.Semaphore) -> Sequence[Finding]:
    async with limit:
        try:
            async with asyncio.timeout(timeout_s):
                return await check.run()
        except TimeoutError:
            return [_not_checked(check, f"no result within {timeout_s:g} s")]
        except ResponseError as error:
            return [no_result(check.name, Level.PROBLEM, check.subject, error, LOOK)]
        except CometError as error:
            return [_not_checked(check, f"{type(error).__name__}: {error}")]
        except Exception as error:  # a defect of one check must not hide what the others find
            return [_not_checked(check, f"the check failed: {type(error).__name__}: {error}")]


def _not_checked(check: Check, met: str) -> Finding:
    return Finding(
        check.name,
        Level.PROBLEM,
        check.subject,
        met,
        "a result",
        LOOK,
    )
