"""Sends that were begun and are not awaited: how many there may be, and what becomes of each.

Source: DefaultMQProducerImpl.sendDefaultImpl with a callback, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from cometmq.client._sending.back_pressure import BackPressure
from cometmq.client._sending.batching import Accumulator
from cometmq.client._sending.fast_path import FastPath, FastSend
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import SendTarget
from cometmq.client.errors import BackPressureError, ClientClosedError
from cometmq.client.receipt import SendReceipt
from cometmq.client.settings import ProducerSettings
from cometmq.model.errors import CometError
from cometmq.model.message import Message
from cometmq.remoting.tasks import Supervisor

MESSAGES_MAX = 65_535
"""How many may be on their way when no smaller limit is set."""

Promise = asyncio.Future[SendReceipt]


class PendingSends:
    """The sends of one producer that nobody may be waiting for.

    Args:
        sender: brings the messages to brokers.
        settings: how many may be on their way.
        accumulator: gathers messages into batches, if that is wanted.
    """

    def __init__(
        self, sender: Sender, settings: ProducerSettings, accumulator: Accumulator | None = None
    ) -> None:
        self._sender = sender
        self._accumulator = accumulator
        self._tasks = Supervisor("begun sends")
        self._open = False
        self._pressure = (
            BackPressure(settings.back_pressure_messages, settings.back_pressure_bytes)
            if settings.back_pressure
            else BackPressure(MESSAGES_MAX)
        )
        self._quick = FastPath(sender, settings, self._pressure.give_back, self._quick_failed)

    def open(self) -> None:
        """Take sends from now on."""
        self._open = True

    def begin(
        self,
        message: Message,
        place: SendTarget,
        timeout: float,
        reserved: Mapping[str, str] | None = None,
        *,
        gathered: bool = False,
    ) -> Promise:
        """Begin to send, and give what will become of it; see `Producer.send_nowait`.

        ``gathered`` says that the message may wait for others to form a batch.
        """
        if not self._open:
            return _failed(ClientClosedError("the producer is not running: start it first"))
        size = _size_of(message)
        if not self._pressure.take(size):
            return _failed(
                BackPressureError(
                    f"not sent: {self._pressure.messages} messages of"
                    f" {self._pressure.size_bytes} bytes are on their way already"
                )
            )
        if reserved is None and self._accumulator is None:
            quick = self._quick.begin(message, place, timeout)
            if quick is not None:
                return quick
        promise: Promise = asyncio.get_running_loop().create_future()
        promise.add_done_callback(lambda _: self._pressure.give_back(size))
        if not (gathered and self._gather(message, place, promise)):
            work = self._sender.send_message(
                message, place, timeout=timeout, reserved=reserved, awaited=False
            )
            self._work(work, promise)
        return promise

    def begin_awaited(self, message: Message, place: SendTarget, timeout: float) -> Promise | None:
        """Begin a send that its caller awaits, or give None if it has to go the long way."""
        return self._quick.begin(message, place, timeout, awaited=True) if self._open else None

    async def drain(self, timeout: float) -> bool:
        """Wait until there is room for what was refused; False when time runs out."""
        return await self._pressure.drain(timeout)

    async def close(self, timeout: float) -> None:
        """Take no more sends, and wait for those that were begun; late ones end with an error."""
        self._open = False
        await self._quick.drain(timeout)
        await self._tasks.drain(timeout)
        await self._tasks.cancel()

    def _work(self, work: Coroutine[Any, Any, SendReceipt], promise: Promise) -> None:
        """Let a task find out what becomes of a send."""
        task = self._tasks.spawn(_fulfil(work, promise), "send", awaited=True)
        promise.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
        task.add_done_callback(lambda _: _end(promise))

    def _quick_failed(self, failed: FastSend, error: Exception) -> None:
        """Try again what was written and got no answer, or leave it at that."""
        if not self._open:
            _fail(failed.promise, closed_error())
            return
        self._work(self._quick.again(failed, error), failed.promise)

    def _gather(self, message: Message, place: SendTarget, promise: Promise) -> bool:
        if self._accumulator is None or not self._accumulator.takes(message, place):
            return False
        try:
            self._accumulator.add(message, place, promise, awaited=False)
        except CometError as error:
            promise.set_exception(error)
        return True


async def _fulfil(work: Coroutine[Any, Any, SendReceipt], promise: Promise) -> None:
    try:
        receipt = await work
    except Exception as error:
        _fail(promise, error)
    else:
        if not promise.done():
            promise.set_result(receipt)


def _failed(error: Exception) -> Promise:
    promise: Promise = asyncio.get_running_loop().create_future()
    promise.set_exception(error)
    return promise


def _fail(promise: Promise, error: Exception) -> None:
    if not promise.done():
        promise.set_exception(error)


def _end(promise: Promise) -> None:
    _fail(promise, closed_error())


def closed_error() -> ClientClosedError:
    """The end of a send that was begun and not finished when its producer was closed."""
    return ClientClosedError("the producer was closed: the message may be stored")


def _size_of(message: Message) -> int:
    """How much of the limit a message takes; what is wrong with it is found out later."""
    try:
        return len(message.body)
    except TypeError:
        return 0
