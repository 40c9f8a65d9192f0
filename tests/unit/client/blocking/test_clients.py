"""The blocking client offers what the asyncio one does, by the same names."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

import cometmq.client as asynchronous
from cometmq.client import ClientClosedError, Message, StartFrom, blocking
from cometmq.client._lifecycle import Lifecycle
from cometmq.client.blocking.base import Blocking

ROOT = Path(__file__).resolve().parents[4]

NAMES = (
    "Producer",
    "TransactionProducer",
    "PushConsumer",
    "PopConsumer",
    "PullConsumer",
    "SimpleConsumer",
    "AdminClient",
)

FOR_THE_CLIENT_ITSELF = {"membership"}
"""Public methods that other parts of the client call, not applications."""


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff formats what is generated")
def test_the_generated_classes_are_current() -> None:
    command = [sys.executable, "-m", "tools.generate", "--check", "blocking_client"]
    subprocess.run(command, check=True, cwd=ROOT)


def calls(kind: type) -> dict[str, object]:
    """The public methods and properties of a class."""
    return {
        name: thing
        for name, thing in inspect.getmembers(kind)
        if not name.startswith("_") and (inspect.isfunction(thing) or isinstance(thing, property))
    }


def parameters(call: object) -> list[tuple[str, object, object]]:
    """The parameters of a call: name, kind, default."""
    assert callable(call)
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_call_is_there_by_the_same_name(name: str) -> None:
    theirs, ours = getattr(asynchronous, name), getattr(blocking, name)

    assert set(calls(ours)) == set(calls(theirs)) - FOR_THE_CLIENT_ITSELF


@pytest.mark.parametrize("name", NAMES)
def test_every_call_has_the_same_parameters(name: str) -> None:
    theirs, ours = getattr(asynchronous, name), getattr(blocking, name)
    for called, thing in calls(ours).items():
        if inspect.isfunction(thing):
            assert parameters(thing) == parameters(getattr(theirs, called)), called
        else:
            assert isinstance(getattr(theirs, called), property), called
    assert parameters(ours.__init__) == parameters(theirs.__init__)


@pytest.mark.parametrize("name", NAMES)
def test_no_call_gives_a_coroutine(name: str) -> None:
    found = calls(getattr(blocking, name)).items()

    assert not [called for called, thing in found if inspect.iscoroutinefunction(thing)]


def test_calls_before_the_start_are_refused() -> None:
    producer = blocking.Producer("127.0.0.1:1", group="g")
    consumer = blocking.PullConsumer("127.0.0.1:1", group="g", start_from=StartFrom.FIRST)

    with pytest.raises(ClientClosedError):
        producer.send(Message("t", b"x"))
    with pytest.raises(ClientClosedError):
        producer.send_nowait(Message("t", b"x"))
    with pytest.raises(ClientClosedError):
        next(consumer)
    assert consumer.queues() == []


class Slow(Lifecycle):
    """Sends a signal to the main thread in its start or its close, and waits for the handler."""

    def __init__(self, when: str) -> None:
        super().__init__("slow")
        self.when = when
        self.handled = asyncio.Event()
        self.begun = threading.Event()

    async def _start(self) -> None:
        self.begun.set()
        if self.when == "start":
            await self._signalled()
        if self.when != "close":
            await asyncio.Event().wait()

    async def _close(self) -> None:
        if self.when == "close":
            await self._signalled()

    async def _signalled(self) -> None:
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, signal.SIGTERM)
        await self.handled.wait()


@pytest.mark.parametrize("when", ["start", "close"])
def test_a_signal_handler_may_close_what_it_interrupts(when: str) -> None:
    slow = Slow(when)
    blocking_slow = Blocking(slow)

    def close(*_: object) -> None:
        blocking_slow._call(slow.handled.set)
        blocking_slow.close()

    before = signal.signal(signal.SIGTERM, close)
    try:
        if when == "start":
            with pytest.raises(ClientClosedError):
                blocking_slow.start()
        else:
            blocking_slow.start()
            blocking_slow.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not slow.running
    with pytest.raises(ClientClosedError):
        blocking_slow.start()


def test_threads_may_close_an_object_together_while_another_starts_it() -> None:
    slow = Slow("never")
    blocking_slow = Blocking(slow)
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(blocking_slow.start)
        assert slow.begun.wait(60)
        for closing in [threads.submit(blocking_slow.close) for _ in range(3)]:
            closing.result(60)
        with pytest.raises(ClientClosedError):
            starting.result(60)


class Quick(Lifecycle):
    async def _start(self) -> None: ...

    async def _close(self) -> None: ...


def test_a_close_does_nothing_if_another_thread_is_quicker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocking_quick = Blocking(Quick("quick"))
    blocking_quick.start()
    portal = blocking_quick._portal
    assert portal is not None

    def is_alive() -> bool:
        monkeypatch.undo()
        with ThreadPoolExecutor() as threads:
            threads.submit(blocking_quick.close).result(60)
        return True

    monkeypatch.setattr(portal, "is_alive", is_alive)
    blocking_quick.close()

    assert blocking_quick._portal is None


def test_a_consumer_that_iterates_is_its_own_iterator() -> None:
    consumer = blocking.PullConsumer("127.0.0.1:1", group="g")

    assert iter(consumer) is consumer
