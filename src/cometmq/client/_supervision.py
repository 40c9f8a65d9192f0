"""Runs background loops that retry after failures, and ends their owner on a permanent failure.

    step ─► succeeds: the next step follows
      │ ├─► raises: logged once, retried after a back-off that doubles up to 10 s
      │ └─► makes no progress for `step_limit_s` seconds: cancelled, started again
      └── waits until there is something to do

An error is transient if a retry may help: a server cannot be reached, or is busy. A failure is
permanent after `PERMANENT_FAILURES` errors of one subject in a row, over at least `PERMANENT_S`
seconds, if none of them is transient. Examples are a hook, decoder, strategy or store that raises
each time or never returns, or a defect of this client. A refusal of the account or of a setting
(`PERMANENT_REFUSALS`) is permanent after `REFUSED_S` seconds, a missing package at once. An
unreachable broker is never a permanent failure. A loop continues even after a permanent failure:
its owner decides whether to end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from cometmq.client.errors import ClientError
from cometmq.model.errors import (
    CometError,
    InvalidMessageError,
    ProtocolError,
    ResponseError,
    StoreError,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.compression import MissingPackageError
from cometmq.protocol.refusals import permanent_refusal
from cometmq.remoting.tasks import Supervisor, raise_unless_failure
from cometmq.system.failure_log import FAILING_MAX, FailureLog, error_text

R = TypeVar("R")

log = logging.getLogger(__name__)

PERMANENT_FAILURES = 5
"""Errors in a row, none of them transient, after which the failure is permanent."""
PERMANENT_S = 120.0
"""Seconds from the first to the last of them, at least."""
REFUSED_S = 30.0
"""Seconds after which refusals of brokers are permanent: longer than a broker takes to read its
accounts again."""
ALIKE_MAX = 3
"""Queues of one consumer that log one reason, such as a broker that cannot be reached."""
ERROR_CHARS_MAX = 1_024
"""Limit of the text of an error in a message, a request or a log line."""


class SupervisedFailureLog(FailureLog):
    """A failure log that also notices when a failure is permanent.

    Args:
        on_permanent: called with the error of a permanent failure. Needs a running event loop.
        others: the arguments of `FailureLog`.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        fails: str,
        works: str,
        name: str,
        more: str = "",
        alike_max: int = FAILING_MAX,
        on_permanent: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__(log, fails=fails, works=works, name=name, more=more, alike_max=alike_max)
        self._on_permanent = on_permanent
        self._non_transient: dict[str, tuple[int, float]] = {}
        """For each subject how many of its latest errors in a row are not transient, and when the
        first of these was."""

    def failed(
        self,
        subject: str,
        error: BaseException,
        *,
        quiet: bool = False,
        transient: bool | None = None,
    ) -> int:
        """Record a failure; see `FailureLog.failed`.

        Args:
            subject, error, quiet: as there.
            transient: whether a retry may help; by default the class of the error decides.
        """
        count = super().failed(subject, error, quiet=quiet)
        if self._on_permanent is not None and self.is_known(subject):
            self._check_permanent(
                subject, error, is_transient(error) if transient is None else transient
            )
        return count

    def _check_permanent(self, subject: str, error: BaseException, transient: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        if transient:
            self._non_transient.pop(subject, None)
            return
        if isinstance(error, MissingPackageError):  # it is not installed while this process runs
            assert self._on_permanent is not None
            self._on_permanent(error)
            return
        times, since_s = self._non_transient.get(subject, (0, now_s))
        self._non_transient[subject] = times + 1, since_s
        least_s = REFUSED_S if permanent_refusal(error) else PERMANENT_S
        if times + 1 >= PERMANENT_FAILURES and now_s - since_s >= least_s:
            assert self._on_permanent is not None
            self._on_permanent(error)

    def forget(self, subject: str) -> None:
        """Forget the failures of a subject that is not tried any more."""
        super().forget(subject)
        self._non_transient.pop(subject, None)

    def succeeded(self, subject: str) -> None:
        """Record a success."""
        super().succeeded(subject)
        if self._non_transient:
            self._non_transient.pop(subject, None)


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may help: a server cannot be reached, is busy, or has changed."""
    if isinstance(error, OSError):
        return True
    if permanent_refusal(error) is not None:
        return False
    non_transient = (ProtocolError, InvalidMessageError, StoreError, MissingPackageError)
    return isinstance(error, CometError) and not isinstance(error, non_transient)


def raise_non_transient(errors: Iterable[BaseException]) -> None:
    """Raise the first of these errors that is not transient."""
    for error in errors:
        if not is_transient(error):
            raise error


def raise_permanent_refusal(error: BaseException | None) -> None:
    """Raise an error if a server refused the account or a setting; ignore every other error."""
    if error is not None and permanent_refusal(error) is not None:
        raise error


def class_and_text(error: BaseException) -> str:
    """Return ``module.Class: text``: at most 1,024 characters, no control characters."""
    kind = type(error)
    text = f"{kind.__module__}.{kind.__qualname__}: {error_text(error)}"[:ERROR_CHARS_MAX]
    text = text.encode("utf-8", "replace").decode()
    return "".join(" " if ord(character) < 0x20 else character for character in text).strip()


LOOP_BACK_OFF_S_MAX = 10.0
"""The longest pause of a loop after a failure, unless the first pause is longer."""
FLOW_CONTROL_S = 0.02
"""The pause after a broker refused a request because it has too much to do."""
JITTER = 0.2
"""The part by which a pause after a failure may be longer, so that loops do not retry at once."""
CHECK_S_MIN = 0.001
"""The shortest time until the next check whether a step makes progress."""
BLOCKED_S = 5.0
"""An event loop that runs nothing for so long is blocked: heartbeats and locks are late, too."""
STEP_S_MAX = 120.0
"""A loop whose step makes no progress for so long is cancelled and started again."""
RECHECK_S = 1.0
"""How often a loop that may not fetch checks whether it may."""
NOT_HELD_S = 0.01
"""The broker did not hold a request whose response takes less and brings nothing new."""
STEP_TIMEOUTS = 2
"""A step may take this many times the timeout of its request, if that is more than 120 s."""


class SupervisedLoop(ABC):
    """Repeats a step in the background until it is stopped.

    Args:
        name: of the task.
        subject: what the failure log calls it.
        failures: logs failures and counts them.
        retry_s: seconds of the first pause after a failure.
        step_s_max: seconds that a step may take without progress.
    """

    def __init__(
        self,
        name: str,
        subject: str,
        failures: SupervisedFailureLog,
        *,
        retry_s: float,
        step_s_max: float = STEP_S_MAX,
    ) -> None:
        self._name = name
        self._subject = subject
        self._failures = failures
        self._retry_s = retry_s
        self._step_s_max = step_s_max
        self._loop: asyncio.AbstractEventLoop
        """The event loop of its task, kept because asking asyncio for it takes a system call."""
        self._tasks: Supervisor | None = None
        self._task: asyncio.Task[None] | None = None
        """The task that runs the steps. A step that finds another one after a wait was stopped or
        replaced, and must not act any more."""
        self._check: asyncio.TimerHandle | None = None
        self._progress_s: float | None = None
        """When the step that runs made progress; None while none runs."""
        self._woken = asyncio.Event()

    def start(self, tasks: Supervisor) -> None:
        """Run in the background."""
        assert self._tasks is None, "a loop starts once"
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._spawn(tasks)
        self._check_later(self._step_s_max)

    def wake(self) -> None:
        """End the wait: there may be something to do."""
        self._woken.set()

    @property
    def ended(self) -> bool:
        """Whether it does not run."""
        return self._task is None or self._task.done()

    def cancel(self) -> None:
        """Stop without waiting for the end; the step that runs is cancelled."""
        task, self._task = self._task, None
        self._end_check()
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
        self._forget_failures()

    def _forget_failures(self) -> None:
        self._failures.forget(self._subject)

    async def stop(self, timeout: float | None = None) -> None:
        """Stop, and wait for the end of the step that runs, which is cancelled."""
        task = self._task
        self.cancel()
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task], timeout=timeout)

    @abstractmethod
    async def _step(self) -> None:
        """Do one step."""

    def _wait_s(self) -> float:
        """Return how many seconds to wait, at most, until the next check; 0 to do a step now."""
        return 0.0

    def _has_ended(self) -> bool:
        """Return whether the loop has nothing left to do and ends."""
        return False

    async def _wait(self, seconds: float) -> None:
        """Wait for `wake`, at most this many seconds."""
        self._woken.clear()
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _note_progress(self) -> None:
        """Record that a step makes progress."""
        self._progress_s = self._loop.time()

    async def _run(self) -> None:
        task = asyncio.current_task()
        while self._task is task and not self._has_ended():
            try:
                wait_s = self._wait_s()
                if wait_s > 0:
                    await self._wait(wait_s)
                    continue
                self._note_progress()
                await self._step()
            except BaseException as error:
                raise_unless_failure(error)
                if self._task is not task:
                    return
                self._progress_s = None
                await asyncio.sleep(self._back_off_s(error))
            else:
                self._failures.succeeded(self._subject)
            finally:
                if self._task is task:
                    self._progress_s = None

    def _back_off_s(self, error: BaseException) -> float:
        failures = self._failures.failed(self._subject, error)
        if isinstance(error, ResponseError) and error.code == ResponseCode.FLOW_CONTROL:
            pause_s = FLOW_CONTROL_S
        else:
            longest_s = max(LOOP_BACK_OFF_S_MAX, self._retry_s)
            pause_s = min(self._retry_s * 2 ** min(failures - 1, 30), longest_s)
        return pause_s * random.uniform(1, 1 + JITTER)

    # --- steps that hang ----------------------------------------------------------------------

    def _spawn(self, tasks: Supervisor) -> None:
        self._task = tasks.spawn(self._run(), self._name)
        self._task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._end_check()

    def _check_later(self, seconds: float) -> None:
        self._check = self._loop.call_later(seconds, self._check_progress)

    def _end_check(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def _check_progress(self) -> None:
        idle_s = 0.0
        if self._progress_s is not None:
            idle_s = self._loop.time() - self._progress_s
        if idle_s >= self._step_s_max:
            idle_s = 0.0
            self._replace()
        # The rest may be below the resolution of the clock: checking at once could repeat for ever.
        self._check_later(max(self._step_s_max - idle_s, CHECK_S_MIN))

    def _replace(self) -> None:
        """Start again in another task; results of the old one are ignored."""
        assert self._tasks is not None
        error = ClientError(f"no progress for {self._step_s_max:.0f} s, started again")
        self._failures.failed(self._subject, error, transient=False)
        stuck, self._progress_s = self._task, None
        self._spawn(self._tasks)
        if stuck is not None:
            stuck.cancel()


class PeriodicLoop(SupervisedLoop):
    """Does something at an interval, and soon after `wake`.

    Args:
        name, subject, failures: as for `SupervisedLoop`.
        act: what to do; it returns False to be called again soon.
        interval_s: seconds between two rounds.
        min_interval_s: seconds between two rounds at least, when `wake` is called.
        first_s: seconds until the first round.
        on_late: called with the seconds by which a round came too late, if they are `BLOCKED_S` or
            more: something has blocked the event loop.
    """

    def __init__(
        self,
        name: str,
        subject: str,
        failures: SupervisedFailureLog,
        act: Callable[[], Awaitable[object]],
        *,
        interval_s: float,
        min_interval_s: float = 1.0,
        first_s: float = 0.0,
        on_late: Callable[[float], None] | None = None,
    ) -> None:
        self._on_late = on_late
        shortest_s = min(min_interval_s, interval_s)
        super().__init__(name, subject, failures, retry_s=shortest_s)
        self._act = act
        self._interval_s, self._min_interval_s = interval_s, shortest_s
        self._first_s = first_s
        self._next_s = self._soonest_s = 0.0
        self._called = False

    def start(self, tasks: Supervisor) -> None:
        """Run in the background."""
        super().start(tasks)
        now_s = self._loop.time()
        self._next_s = now_s + self._first_s
        self._soonest_s = now_s + min(self._first_s, self._min_interval_s)

    def note_progress(self) -> None:
        """Record that a long round makes progress."""
        if self._progress_s is not None:
            self._note_progress()

    def wake(self) -> None:
        """Do it soon."""
        self._called = True
        super().wake()

    def _wait_s(self) -> float:
        due_s = self._soonest_s if self._called else self._next_s
        return due_s - self._loop.time()

    async def _step(self) -> None:
        late_s = 0.0 if self._called else self._loop.time() - self._next_s
        if late_s >= BLOCKED_S and self._on_late is not None:
            self._on_late(late_s)
        self._called = False
        settled = False
        try:
            settled = await self._act() is not False
        finally:
            now_s = self._loop.time()
            self._soonest_s = now_s + self._min_interval_s
            self._next_s = now_s + self._interval_s if settled else self._soonest_s


def step_limit_s(timeout_s: float) -> float:
    """Return how long a step may take whose request has this timeout."""
    return max(STEP_S_MAX, STEP_TIMEOUTS * timeout_s)


class FetchLoop(SupervisedLoop, Generic[R]):
    """Fetches one queue repeatedly, for push, pull and pop; ``R`` is a response.

        may it fetch? ─ no ─► wait: limit reached, suspended, no lock ─► check again, each second
              │ yes
              ▼
            fetch ─► act on the response ─► pause, if there was nothing and it came at once

    A response that comes for a loop that was stopped or replaced is ignored. Acting on one must
    leave the queue as it was if it raises, or release the queue: the next fetch has the same
    offset.
    """

    _recheck_s = RECHECK_S
    _empty_in_row = 0
    """Responses in a row that came at once and brought nothing new."""
    _next_s = 0.0
    """When the next fetch is due."""

    @abstractmethod
    def _is_blocked(self) -> bool:
        """Return whether nothing is to be fetched now."""

    @abstractmethod
    async def _fetch(self) -> R | None:
        """Fetch; None if there is nothing to act on."""

    @abstractmethod
    async def _act(self, response: R, took_s: float) -> bool:
        """Act on a response.

        Args:
            response: what `_fetch` has returned.
            took_s: seconds that the fetch took.

        Returns:
            Whether it brought anything new.
        """

    def _rest_s(self, response: R) -> float:
        """Return the seconds to the next fetch after a response that brought something new."""
        return 0.0

    def _wait_s(self) -> float:
        if self._is_blocked():
            return self._recheck_s
        return self._next_s and self._next_s - self._loop.time()

    async def _step(self) -> None:
        clock = self._loop.time
        began_s, task = clock(), self._task
        response = await self._fetch()
        if response is None or self._task is not task:
            return
        took_s = clock() - began_s
        if await self._act(response, took_s):
            self._empty_in_row, rest_s = 0, self._rest_s(response)
        elif took_s > NOT_HELD_S:
            self._empty_in_row, rest_s = 0, 0.0
        else:
            rest_s = min(NOT_HELD_S * 2 ** min(self._empty_in_row, 10), RECHECK_S)
            self._empty_in_row += 1
        self._next_s = clock() + rest_s if rest_s else 0.0


class SupervisedTasks(Supervisor):
    """Owns the background tasks of a consumer, and records its first permanent failure.

    The failure of a task that runs once is only logged.
    """

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.failure: BaseException | None = None
        """The first permanent failure: the consumer cannot go on."""
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called with it."""
        self._failed = asyncio.Event()
        self._periodic = SupervisedFailureLog(
            log,
            fails="periodic task failed, retrying",
            works="periodic task succeeds again",
            name="task",
            on_permanent=self.end,
        )

    def end(self, error: BaseException) -> None:
        """Record a permanent failure, and wake the tasks that wait for one; ignore further ones."""
        if self.failure is not None:
            return
        if not isinstance(error, Exception):  # raising it would look like a cancellation
            cause, error = error, ClientError(f"{type(error).__name__} in {self._owner}")
            error.__cause__ = cause
        self.failure = error
        log.error("%s cannot go on", self._owner, exc_info=error)
        self._failed.set()
        if self.on_failure is not None:
            self.on_failure(error)

    async def wait_failed(self) -> None:
        """Wait for a permanent failure."""
        await self._failed.wait()

    def repeat(
        self,
        interval_s: float,
        act: Callable[[], Awaitable[object]],
        name: str,
        *,
        first_s: float | None = None,
        on_late: Callable[[float], None] | None = None,
    ) -> PeriodicLoop:
        """Do something every ``interval_s`` seconds.

        Args:
            interval_s: seconds from the end of one run to the start of the next.
            act: what to do.
            name: of the task.
            first_s: seconds until the first run, by default one interval.
            on_late: as for `PeriodicLoop`.
        """
        loop = PeriodicLoop(
            name,
            f"{self._owner}.{name}",
            self._periodic,
            act,
            interval_s=interval_s,
            min_interval_s=interval_s,
            first_s=interval_s if first_s is None else first_s,
            on_late=on_late,
        )
        loop.start(self)
        return loop
