"""Background loops: failures are retried, steps that hang are started again, all are reported."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from cometmq.client._consuming.handler_calls import CallLimits, HandlerCalls
from cometmq.client._supervision import (
    ERROR_CHARS_MAX,
    LOOP_BACK_OFF_S_MAX,
    PERMANENT_FAILURES,
    PERMANENT_S,
    REFUSED_S,
    STEP_S_MAX,
    PeriodicLoop,
    SupervisedFailureLog,
    SupervisedLoop,
    SupervisedTasks,
    class_and_text,
)
from cometmq.client.errors import ClientError
from cometmq.model.errors import ProtocolError, RemotingError, ResponseError, StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import Supervisor
from cometmq.system.failure_log import log_text

pytestmark = pytest.mark.usefixtures("virtual_time")
LONG_S = 3 * PERMANENT_S
LOG = logging.getLogger("test.loops")


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Loop(SupervisedLoop):
    """Runs what the test says, once in a second."""

    def __init__(self, act: Callable[[int], object], tasks: SupervisedTasks) -> None:
        failures = SupervisedFailureLog(
            LOG, fails="step failed", works="step succeeds again", name="loop",
            on_permanent=tasks.end,
        )  # fmt: skip
        super().__init__("loop", "l", failures, retry_s=1.0)
        self._act = act
        self._due_s = 0.0
        self.steps = 0
        self.done: list[int] = []

    def _wait_s(self) -> float:
        return self._due_s - now_s()

    async def _step(self) -> None:
        self.steps += 1
        step, task = self.steps, self._task
        self._due_s = now_s() + 1.0
        result = self._act(step)
        if isinstance(result, asyncio.Future):
            await result
        if self._task is task:
            self.done.append(step)


@pytest.fixture
def tasks() -> SupervisedTasks:
    return SupervisedTasks("consumer g")


def raises(error: BaseException, until: int = 10**9) -> Callable[[int], None]:
    def act(step: int) -> None:
        if step < until:
            raise error

    return act


async def ran(loop: SupervisedLoop, tasks: Supervisor, seconds: float) -> None:
    """Run a loop for so long, then stop it."""
    loop.start(tasks)
    await asyncio.sleep(seconds)
    await loop.stop()
    assert loop.ended


@pytest.mark.parametrize(
    "error", [ValueError("v"), RemotingError("r"), asyncio.CancelledError("c")], ids=repr
)
async def test_a_step_that_raises_is_retried_and_logged_once(
    tasks: SupervisedTasks, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    loop = Loop(raises(error, until=4), tasks)

    await ran(loop, tasks, 30)

    assert loop.done[:2] == [4, 5]
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("WARNING", f"step failed loop=l error={error}"),
        ("INFO", "step succeeds again loop=l"),
    ]
    assert tasks.failure is None


async def test_a_step_that_hangs_is_begun_anew(
    tasks: SupervisedTasks, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = asyncio.get_running_loop().create_future()
    loop = Loop(lambda step: hanging if step == 2 else None, tasks)

    await ran(loop, tasks, STEP_S_MAX + 30)

    assert hanging.cancelled()
    assert loop.done[:3] == [1, 3, 4]
    assert "no progress for 120 s, started again" in caplog.text
    assert tasks.failure is None


async def test_what_a_replaced_step_brings_after_all_is_ignored(tasks: SupervisedTasks) -> None:
    class Stubborn(Loop):
        async def _step(self) -> None:
            self.steps += 1
            step, task = self.steps, self._task
            self._due_s = now_s() + 1.0
            if step == 1:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            if self._task is task:
                self.done.append(step)

    loop = Stubborn(lambda step: None, tasks)
    await ran(loop, tasks, STEP_S_MAX + 5)

    assert loop.done[0] == 2
    assert len(loop.done) == loop.steps - 1
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_waiting_is_no_lack_of_progress(
    tasks: SupervisedTasks, caplog: pytest.LogCaptureFixture
) -> None:
    class Idle(Loop):
        def _wait_s(self) -> float:
            return float("inf")

    loop = Idle(lambda step: None, tasks)
    await ran(loop, tasks, 3 * STEP_S_MAX)

    assert (loop.steps, caplog.text) == (0, "")


@pytest.mark.parametrize(
    "error", [ValueError("v"), ProtocolError("p"), StoreError("s"), asyncio.CancelledError("c")]
)
async def test_an_error_that_no_retry_cures_is_permanent(
    tasks: SupervisedTasks, error: BaseException
) -> None:
    loop = Loop(raises(error), tasks)
    loop.start(tasks)
    began_s = now_s()

    await asyncio.wait_for(tasks.wait_failed(), LONG_S)
    failed_s, steps = now_s() - began_s, loop.steps
    await asyncio.sleep(60)
    await loop.stop()

    assert PERMANENT_S <= failed_s <= PERMANENT_S + 2 * LOOP_BACK_OFF_S_MAX
    assert steps >= PERMANENT_FAILURES
    assert loop.steps > steps, "it goes on: the owner decides whether to end"
    if isinstance(error, Exception):
        assert tasks.failure is error
    else:
        assert isinstance(tasks.failure, ClientError)
        assert tasks.failure.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [RemotingError("away"), ResponseError(1, "no"), ConnectionRefusedError(), TimeoutError()],
    ids=repr,
)
async def test_a_server_that_is_away_is_never_a_permanent_failure(
    tasks: SupervisedTasks, error: Exception
) -> None:
    await ran(Loop(raises(error), tasks), tasks, 10 * LONG_S)

    assert tasks.failure is None


async def test_a_refused_account_is_permanent_after_half_a_minute(tasks: SupervisedTasks) -> None:
    error = ResponseError(ResponseCode.NO_PERMISSION, "check signature failed.")
    loop = Loop(raises(error), tasks)
    loop.start(tasks)
    began_s = now_s()

    await asyncio.wait_for(tasks.wait_failed(), LONG_S)
    failed_s = now_s() - began_s
    await loop.stop()

    assert REFUSED_S <= failed_s <= REFUSED_S + 2 * LOOP_BACK_OFF_S_MAX
    assert tasks.failure is error


@pytest.mark.parametrize("better", [None, RemotingError("away")], ids=["works", "away"])
async def test_one_step_without_the_error_begins_the_count_anew(
    tasks: SupervisedTasks, better: Exception | None
) -> None:
    def act(step: int) -> None:
        if step % 4:
            raise ValueError
        if better is not None:
            raise better

    await ran(Loop(act, tasks), tasks, 10 * LONG_S)

    assert tasks.failure is None


async def test_steps_that_hang_again_and_again_are_a_permanent_failure(
    tasks: SupervisedTasks,
) -> None:
    loop = Loop(lambda step: asyncio.get_running_loop().create_future(), tasks)
    loop.start(tasks)

    await asyncio.wait_for(tasks.wait_failed(), (PERMANENT_FAILURES + 1) * STEP_S_MAX)
    await loop.stop()

    assert "no progress" in str(tasks.failure)


async def test_the_first_permanent_failure_is_kept(tasks: SupervisedTasks) -> None:
    waiting = asyncio.create_task(tasks.wait_failed())
    tasks.end(ValueError("first"))
    tasks.end(ValueError("second"))
    await waiting

    assert str(tasks.failure) == "first"


async def test_a_task_that_runs_once_does_not_end_the_consumer(tasks: SupervisedTasks) -> None:
    async def fail() -> None:
        raise ValueError

    tasks.spawn(fail(), "once")
    await tasks.drain(60)

    assert tasks.failure is None


def rounds(
    act: Callable[[], object], tasks: SupervisedTasks, *, first_s: float = 0.0
) -> PeriodicLoop:
    async def once() -> object:
        return act()

    failures = SupervisedFailureLog(
        LOG, fails="round failed", works="round succeeds again", name="loop",
        on_permanent=tasks.end,
    )  # fmt: skip
    return PeriodicLoop(
        "rounds", "r", failures, once, interval_s=20, min_interval_s=2, first_s=first_s
    )


async def test_rounds_come_on_time_when_called_and_never_too_soon(tasks: SupervisedTasks) -> None:
    began_s, times = now_s(), list[float]()
    loop = rounds(lambda: times.append(round(now_s() - began_s, 3)), tasks)
    loop.start(tasks)

    await asyncio.sleep(25)  # at 0 and 20
    loop.wake()  # at once
    await asyncio.sleep(0.5)
    loop.wake()  # 2 s after the one before
    loop.wake()
    await asyncio.sleep(30)  # 20 s later
    await loop.stop()

    assert times == [0, 20, 25, 27, 47]


async def test_a_call_before_the_first_round_brings_it_forward(tasks: SupervisedTasks) -> None:
    began_s, times = now_s(), list[float]()
    loop = rounds(lambda: times.append(round(now_s() - began_s, 3)), tasks, first_s=20)
    loop.start(tasks)
    loop.wake()
    await asyncio.sleep(10)
    await loop.stop()

    assert times == [2]


async def test_an_unsettled_round_is_followed_by_another_one_soon(tasks: SupervisedTasks) -> None:
    began_s, times = now_s(), list[float]()

    def act() -> bool:
        times.append(round(now_s() - began_s, 3))
        return len(times) > 2

    await ran(rounds(act, tasks), tasks, 25)

    assert times == [0, 2, 4, 24]


async def test_a_periodic_task_that_raises_each_time_is_a_permanent_failure(
    tasks: SupervisedTasks, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    loop = tasks.repeat(5.0, fail, "persist")
    await asyncio.wait_for(tasks.wait_failed(), LONG_S)
    await loop.stop()

    assert str(tasks.failure) == "broken"
    warned = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert warned == [
        "periodic task failed, retrying task=consumer g.persist error=broken",
    ]


@pytest.mark.parametrize("blocks", [False, True])
def test_a_round_that_is_late_because_the_loop_was_blocked_is_noted(
    monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    """In real time: nothing else tells how long a function blocks."""
    late: list[float] = []
    monkeypatch.setattr("cometmq.client._supervision.BLOCKED_S", 0.2 if blocks else 3600)

    async def run() -> None:
        tasks, done = SupervisedTasks("consumer g"), asyncio.Event()

        async def act() -> None:
            done.set()

        tasks.repeat(0.01, act, "round", on_late=late.append)
        # Before the task runs for the first time: a round that a slow machine lets run now is
        # not late, and the next one is not awaited.
        blocked_until_s = time.perf_counter() + 0.3
        while time.perf_counter() < blocked_until_s:
            pass
        await done.wait()
        await tasks.cancel()

    asyncio.run(run())
    assert bool(late) == blocks


def test_a_handler_that_may_block_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def bill(message: object) -> None: ...

    def plain(message: object) -> None: ...

    for handler in (bill, plain):
        handling = HandlerCalls(handler, None, group="g", client_id="c", limits=CallLimits(1))
        handling.note_blocked_loop(40)

    [line] = caplog.messages
    assert "the event loop was blocked for 40 s" in line
    assert "bill group=g" in line


class ShopError(Exception):
    """An application's own."""


def test_an_error_says_its_module_its_class_and_its_text() -> None:
    assert class_and_text(ShopError("no stock")) == f"{__name__}.ShopError: no stock"
    assert class_and_text(KeyError("k")) == "builtins.KeyError: 'k'"


def test_a_long_error_is_cut() -> None:
    assert len(class_and_text(ShopError("x" * 5000))) == ERROR_CHARS_MAX


def test_characters_that_separate_properties_are_replaced() -> None:
    assert class_and_text(ValueError("a\x01b\x02c\nd\te")) == "builtins.ValueError: a b c d e"


class MuteError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise LookupError("no text")


def test_an_error_whose_text_raises_has_a_text_nevertheless() -> None:
    assert class_and_text(MuteError()) == f"{__name__}.MuteError: (str() raised LookupError)"
    assert log_text(MuteError()) == "(str() raised LookupError)"


def test_characters_that_no_message_can_hold_are_replaced() -> None:
    assert class_and_text(OSError("no \udcfffile")) == "builtins.OSError: no ?file"
