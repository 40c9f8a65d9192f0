"""Running a consumer in a program that handles signals itself."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from cometmq.client import PopConsumer, PushConsumer, blocking
from cometmq.model.message import StoredMessage

NAME_SERVER = "127.0.0.1:1"
WAIT_S = 60.0


async def handle(message: StoredMessage) -> None:
    """A handler that is never called: there is no broker."""


@pytest.fixture
def signalled() -> Iterator[threading.Event]:
    """Set when the program's own handler gets a SIGTERM."""
    event = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("kind", [PushConsumer, PopConsumer])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_run_without_signals_leaves_them_to_the_program(
    kind: type[PushConsumer | PopConsumer], signalled: threading.Event, *, cancelled: bool
) -> None:
    consumer = kind(NAME_SERVER, group="g", handler=handle)
    running = asyncio.create_task(consumer.run(timeout=WAIT_S, signals=False))
    await consumer.start()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.to_thread(signalled.wait, WAIT_S)

    assert signalled.is_set()
    assert consumer.running
    assert not running.done()
    if cancelled:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        await consumer.close()
        await running
    assert not consumer.running


def test_a_blocking_run_without_signals_leaves_them_to_the_program(
    signalled: threading.Event,
) -> None:
    consumer = blocking.PushConsumer(NAME_SERVER, group="g", handler=lambda message: None)
    seen: list[bool] = []

    def end() -> None:
        while not consumer.running:  # `run` starts it in the main thread
            signalled.wait(0.001)
        os.kill(os.getpid(), signal.SIGTERM)
        seen.extend([signalled.wait(WAIT_S), consumer.running])
        consumer.close()

    thread = threading.Thread(target=end)
    thread.start()
    consumer.run(timeout=WAIT_S, signals=False)
    thread.join(WAIT_S)

    assert seen == [True, True]
    assert not consumer.running
