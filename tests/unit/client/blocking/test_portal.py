"""The loop behind the blocking client: results, errors, time, interrupts, forks."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from cometmq.client.blocking import portal as module
from cometmq.client.blocking.portal import Portal, acquire_portal, release_portal
from cometmq.client.errors import ClientClosedError, ClientError

THREAD = "cometmq-blocking"


async def nothing() -> None: ...


async def iterations() -> None:
    """Let the loop go on for a while."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture(params=["own thread", "callers"])
def portal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Portal]:
    """A portal that ends with the test, whose loop runs in its own thread, or in its callers'."""
    held = acquire_portal()
    if request.param == "callers":
        monkeypatch.setattr(module, "AWAY_S", 60.0)  # its thread stays away
        while held.call(threading.current_thread) is not threading.current_thread():
            pass
    else:
        monkeypatch.setattr(module, "AWAY_S", -math.inf)
    yield held
    release_portal(held)


def test_a_result_comes_back(portal: Portal) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "found"

    assert portal.run(work()) == "found"


def test_threads_whose_calls_follow_each_other_run_the_loop() -> None:
    portal = acquire_portal()
    try:
        assert portal.call(threading.current_thread).name == THREAD
        while portal.call(threading.current_thread) is not threading.current_thread():
            pass
        fired = threading.Event()
        portal.call(lambda: asyncio.get_running_loop().call_later(0.01, fired.set))
        assert fired.wait(60), "its own thread comes back"
    finally:
        release_portal(portal)


def test_the_calls_of_other_threads_end_while_a_thread_runs_the_loop(portal: Portal) -> None:
    release: asyncio.Event = portal.call(asyncio.Event)
    begun = threading.Event()

    async def wait() -> str:
        begun.set()
        await release.wait()
        return "long"

    found: list[str] = []
    first = threading.Thread(target=lambda: found.append(portal.run(wait())))
    first.start()
    assert begun.wait(60)
    assert portal.call(lambda: "short") == "short"
    portal.soon(release.set)
    first.join(60)
    assert found == ["long"]
    assert portal.call(lambda: 1) == 1


def test_a_call_goes_on_in_another_thread_when_the_one_that_runs_the_loop_leaves(
    portal: Portal,
) -> None:
    gate: asyncio.Event = portal.call(asyncio.Event)
    begun = threading.Event()

    async def wait() -> int:
        begun.set()
        await gate.wait()
        await iterations()
        return 1

    found: list[int] = []

    async def lead() -> None:
        second.start()
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
        gate.set()

    second = threading.Thread(target=lambda: found.append(portal.run(wait())))
    portal.run(lead())
    second.join(60)
    assert found == [1]


def test_a_handler_of_a_signal_makes_calls(portal: Portal) -> None:
    """Celery's cold shutdown cancels consumers in its handler."""
    main, found = threading.get_ident(), []

    async def work() -> str:
        signal.pthread_kill(main, signal.SIGUSR2)
        await iterations()
        return "done"

    def handle(*_: object) -> None:
        found.append(portal.call(lambda: "handled"))

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        assert portal.run(work()) == "done"
        assert signal.getsignal(signal.SIGUSR2) is handle
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert found == ["handled"]


def test_an_error_of_a_signals_handler_strikes_no_task_but_the_call(portal: Portal) -> None:
    """As Celery's soft time limit."""
    main, ran = threading.get_ident(), threading.Event()

    def strike() -> None:
        signal.pthread_kill(main, signal.SIGUSR2)
        for _ in range(1000):  # where an interpreter would call the handler
            pass
        ran.set()

    async def work() -> None:
        asyncio.get_running_loop().call_soon(strike)
        await asyncio.Event().wait()

    def handle(*_: object) -> None:
        raise LookupError("time is over")

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        with pytest.raises(LookupError, match="time is over"):
            portal.run(work())
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert portal.call(ran.is_set)


def test_an_error_comes_back_as_it_is(portal: Portal) -> None:
    async def work() -> None:
        raise LookupError("not here")

    with pytest.raises(LookupError, match="not here"):
        portal.run(work())


def test_a_function_is_called_soon_in_the_loop(portal: Portal) -> None:
    told: list[object] = []
    called = threading.Event()

    def note(*arguments: object) -> None:
        told.extend((asyncio.get_running_loop().is_running(), *arguments))
        called.set()

    portal.soon(note, 1, "two")
    assert called.wait(60)
    assert told == [True, 1, "two"]


def test_nothing_is_called_soon_once_the_loop_has_ended() -> None:
    held = acquire_portal()
    release_portal(held)
    held.soon(pytest.fail, "called")


@pytest.mark.parametrize("raises", [False, True])
def test_an_error_of_a_call_whose_future_was_cancelled_is_not_logged(
    portal: Portal, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    hold = threading.Event()

    def make() -> asyncio.Future[None]:
        if raises:
            raise LookupError("not here")
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(LookupError("not here"))
        return failed

    async def collect() -> None:
        gc.collect()  # a future whose exception was not taken logs it now

    portal.soon(hold.wait, 60)
    future = portal.begin(make)
    assert future.cancel()
    hold.set()
    portal.run(collect())

    assert caplog.records == []


def test_a_call_that_takes_too_long_is_cancelled(portal: Portal) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        portal.run(work(), timeout=0.05)
    assert not begun.is_set() or cancelled.wait(60)


def test_context_variables_reach_the_call(portal: Portal) -> None:
    number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)
    number.set(7)

    async def work() -> int:
        return number.get()

    assert portal.run(work()) == 7


def test_a_call_from_the_loop_itself_is_refused(portal: Portal) -> None:
    async def work() -> None:
        portal.run(nothing())

    with pytest.raises(ClientError, match="would wait for itself"):
        portal.run(work())


def test_an_interrupt_cancels_the_call_and_the_portal_goes_on(portal: Portal) -> None:
    cancelled, main = threading.Event(), threading.get_ident()

    async def work() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def answer() -> int:
        return 1

    with pytest.raises(KeyboardInterrupt):
        portal.run(work())
    assert cancelled.wait(60)
    assert portal.run(answer()) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_in_the_loop_ends_the_calls_of_all_threads(error: BaseException) -> None:
    """As in asyncio: the main thread exits. Others are told why their calls have ended."""
    portal = acquire_portal()
    begun, failures = threading.Event(), []

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def exits() -> None:
        raise error

    async def work() -> None:
        tasks = [asyncio.create_task(exits()) for _ in range(2)]
        await asyncio.gather(wait(), *tasks)

    def run() -> None:
        with pytest.raises(ClientClosedError, match="has ended") as failure:
            portal.run(wait())
        failures.append(failure.value.__cause__)

    caller = threading.Thread(target=run)
    caller.start()
    assert begun.wait(60)
    with pytest.raises(type(error)) as raised:
        portal.run(work())
    caller.join(60)
    assert raised.value is failures[0] is error
    with pytest.raises(ClientClosedError, match="has ended"):
        portal.call(lambda: 1)

    second = acquire_portal()
    assert second.call(lambda: 2) == 2, "an object that is made now gets a new loop"
    release_portal(second)
    release_portal(portal)


def test_all_hold_the_same_portal_and_the_last_one_ends_it() -> None:
    first, second = acquire_portal(), acquire_portal()
    assert first is second
    release_portal(first)
    assert second.call(lambda: 1) == 1
    release_portal(second)
    with pytest.raises(ClientClosedError):
        second.call(lambda: 1)

    third = acquire_portal()
    try:
        assert third is not first
        assert third.call(lambda: 2) == 2
    finally:
        release_portal(third)


def test_a_call_in_flight_ends_when_the_portal_does() -> None:
    portal = acquire_portal()
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    def run() -> None:
        with pytest.raises(ClientClosedError):
            portal.run(work())
        ended.set()

    caller = threading.Thread(target=run)
    caller.start()
    assert begun.wait(60)
    release_portal(portal)
    assert ended.wait(60)
    caller.join(60)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_its_own(portal: Portal) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            loop = portal._loop
            assert loop is not None
            portal._thread = portal._loop = None  # type: ignore[assignment]
            loop.__del__()  # type: ignore[attr-defined]
            own = acquire_portal()
            code = 0 if own is not portal and own.call(lambda: 3) == 3 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert portal.call(lambda: 4) == 4, "what the child has closed changed nothing here"
