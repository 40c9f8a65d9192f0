"""Sends that were begun and are not awaited: how many there may be, and what becomes of each.

Source: DefaultMQProducerImpl.sendDefaultImpl with a callback, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cometmq.client.accumulator import Accumulator
from cometmq.client.back_pressure import BackPressure
from cometmq.client.config import ProducerSettings
from cometmq.client.errors import BackPressureError, ClientClosedError
from cometmq.client.receipt import SendReceipt
from cometmq.client.sender import Place, Sender
from cometmq.model.errors import CometError
from cometmq.model.message import Message
from cometmq.remoting.tasks import Supervisor

MESSAGES_MAX = 65_535
"""How many may be on their way when no smaller limit is set."""

Promise = asyncio.Future[SendReceipt]


class BegunSends:
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

    def open(self) -> None:
        """Take sends from now on."""
        self._open = True

    def begin(
        self,
        message: Message,
        place: Place,
        timeout: float,
        reserved: Mapping[str, str] | None = None,
        *,
        gathered: bool = False,
    ) -> Promise:
        """Begin to send, and give what will become of it; see `Producer.send_soon`.

        ``gathered`` says that the message may wait for others to form a batch.
        """
        promise: Promise = asyncio.get_running_loop().create_future()
        size = len(message.body)
        if not self._open:
            promise.set_exception(ClientClosedError("the producer is not running: start it first"))
        elif not self._pressure.take(size):
            promise.set_exception(
                BackPressureError(
                    f"not sent: {self._pressure.messages} messages of"
                    f" {self._pressure.size_bytes} bytes are on their way already"
                )
            )
        else:
            promise.add_done_callback(lambda _: self._pressure.give_back(size))
            if gathered and self._gather(message, place, promise):
                return promise
            work = self._send(message, place, timeout, reserved, promise)
            task = self._tasks.spawn(work, "send", awaited=True)
            promise.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
            task.add_done_callback(lambda _: _end(promise))
        return promise

    async def drain(self, timeout: float) -> bool:
        """Wait until one more message may be begun; False when time runs out."""
        if not await self._pressure.wait(0, timeout):
            return False
        self._pressure.give_back(0)
        return True

    async def close(self, timeout: float) -> None:
        """Take no more sends, and wait for those that were begun; late ones end with an error."""
        self._open = False
        await self._tasks.drain(timeout)
        await self._tasks.cancel()

    async def _send(
        self,
        message: Message,
        place: Place,
        timeout: float,
        reserved: Mapping[str, str] | None,
        promise: Promise,
    ) -> None:
        try:
            receipt = await self._sender.send_message(
                message, place, timeout=timeout, reserved=reserved, awaited=False
            )
        except Exception as error:
            if not promise.done():
                promise.set_exception(error)
        else:
            if not promise.done():
                promise.set_result(receipt)

    def _gather(self, message: Message, place: Place, promise: Promise) -> bool:
        if self._accumulator is None or not self._accumulator.takes(message, place):
            return False
        try:
            self._accumulator.add(message, place, promise, awaited=False)
        except CometError as error:
            promise.set_exception(error)
        return True


def _end(promise: Promise) -> None:
    if not promise.done():
        promise.set_exception(
            ClientClosedError("the producer was closed: the message is perhaps stored")
        )
