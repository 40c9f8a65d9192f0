"""The sends of one producer that are in flight, within the limits of its settings.

Each send first gets room, then a first attempt without a task if the fast path allows, and a task
otherwise. It holds its room until its last attempt has ended, even if its future was cancelled.

Source: DefaultMQProducerImpl.sendDefaultImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from cometmq.client._sending.back_pressure import BackPressure, Epoch
from cometmq.client._sending.batching import Accumulator
from cometmq.client._sending.fast_path import FastPath, FastSend
from cometmq.client._sending.retry_policy import RetryPolicy
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import SendTarget
from cometmq.client.errors import BackPressureError, ClientClosedError, SendTimeoutError
from cometmq.client.receipt import SendReceipt
from cometmq.client.settings import ProducerSettings
from cometmq.model.message import Message
from cometmq.remoting.tasks import Supervisor

SendFuture = asyncio.Future[SendReceipt]


class PendingSends:
    """The sends of one producer that are in flight.

    Args:
        sender: sends the messages.
        settings: the limits, and whether messages are combined into batches.
    """

    def __init__(self, sender: Sender, settings: ProducerSettings) -> None:
        self._sender = sender
        self._tasks = Supervisor("sends")
        self._open = False
        self._pressure = BackPressure(settings.back_pressure_messages, settings.back_pressure_bytes)
        self._accumulator = (
            Accumulator(sender, settings, self._pressure) if settings.auto_batch else None
        )
        self._fast_path = FastPath(sender, self._pressure, self._retry)

    def open(self) -> None:
        """Accept sends from now on."""
        self._open = True

    async def send(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        reserved: Mapping[str, str] | None = None,
        *,
        batched: bool = False,
    ) -> SendReceipt:
        """Wait for room, send a message and wait for its receipt; see `Producer.send`.

        Args:
            message: the message.
            target: the queue or the selector, if the caller chose.
            timeout: seconds for all of it.
            reserved: properties that applications cannot set.
            batched: whether the message may wait for others to form a batch.
        """
        self._check_open()
        size = _size_of(message)
        epoch = self._pressure.try_acquire(size)
        if epoch is None:
            epoch, timeout = await self._wait_for_room(message.topic, size, timeout)
        policy = self._sender.awaited
        if reserved is None:
            future = self._begin(message, target, timeout, size, epoch, policy, batched)
            if future is not None:
                return await future
        try:
            return await self._sender.send_message(
                message, target, timeout=timeout, reserved=reserved
            )
        finally:
            self._pressure.release(size, epoch)

    async def send_batch(
        self, messages: Sequence[Message], target: SendTarget, timeout: float
    ) -> SendReceipt:
        """Wait for room, send messages as one request and wait for its receipt."""
        self._check_open()
        size = sum(map(_size_of, messages))
        epoch = self._pressure.try_acquire(size)
        if epoch is None:
            epoch, timeout = await self._wait_for_room(messages[0].topic, size, timeout)
        try:
            return await self._sender.send_batch(messages, target, timeout=timeout)
        finally:
            self._pressure.release(size, epoch)

    async def start(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        reserved: Mapping[str, str] | None = None,
        *,
        batched: bool = False,
    ) -> SendFuture:
        """Wait for room, start a send and return its future; see `Producer.send_soon`."""
        self._check_open()
        size = _size_of(message)
        epoch = self._pressure.try_acquire(size)
        if epoch is None:
            epoch, timeout = await self._wait_for_room(message.topic, size, timeout)
        return self._start(message, target, timeout, reserved, size, epoch, batched)

    def start_nowait(
        self, message: Message, target: SendTarget, timeout: float, *, batched: bool = False
    ) -> SendFuture:
        """Start a send and return its future; see `Producer.send_nowait`.

        Raises:
            BackPressureError: there is no room, or others wait for it.
        """
        self._check_open()
        size = _size_of(message)
        epoch = self._pressure.try_acquire(size)
        if epoch is None:
            raise BackPressureError(f"not sent: {self._in_flight()}")
        return self._start(message, target, timeout, None, size, epoch, batched)

    async def flush(self) -> None:
        """Send the batches that wait for more messages; return when all sends so far have ended."""
        if self._accumulator is not None:
            self._accumulator.flush()
        await self._pressure.flush()

    async def close(self, timeout: float) -> None:
        """Accept no more sends, and wait for those in flight; later ones end with an error."""
        self._open = False
        self._pressure.refuse_all(ClientClosedError("not sent: the producer was closed"))
        if self._accumulator is not None:
            self._accumulator.flush()
        await self._pressure.flush(timeout)
        if self._accumulator is not None:
            await self._accumulator.cancel()
        await self._tasks.cancel()

    def _check_open(self) -> None:
        if not self._open:
            raise ClientClosedError("the producer is not running: start it first")

    async def _wait_for_room(self, topic: str, size: int, timeout: float) -> tuple[Epoch, float]:
        """Wait for room; return it and the seconds that are left."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            epoch = await self._pressure.acquire(size, timeout)
        except TimeoutError:
            reason = f"no room within {timeout:g} s: {self._in_flight()}"
            raise SendTimeoutError(topic, (), reason) from None
        return epoch, began_s + timeout - loop.time()

    def _in_flight(self) -> str:
        pressure = self._pressure
        return f"{pressure.messages} messages of {pressure.size_bytes} bytes are in flight"

    def _start(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        reserved: Mapping[str, str] | None,
        size: int,
        epoch: Epoch,
        batched: bool,
    ) -> SendFuture:
        policy = self._sender.started
        if reserved is None:
            try:
                begun = self._begin(message, target, timeout, size, epoch, policy, batched)
            except Exception as error:
                begun = asyncio.get_running_loop().create_future()
                begun.set_exception(error)
            if begun is not None:
                return begun
        future: SendFuture = asyncio.get_running_loop().create_future()
        work = self._sender.send_message(
            message, target, timeout=timeout, reserved=reserved, policy=policy
        )
        self._spawn(work, future, size, epoch)
        return future

    def _begin(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        size: int,
        epoch: Epoch,
        policy: RetryPolicy,
        batched: bool,
    ) -> SendFuture | None:
        """Start a send without a task, as part of a batch or on the fast path; None if it cannot.

        Raises:
            CometError: the message breaks a limit. Its room is released.
        """
        try:
            accumulator = self._accumulator if batched else None
            if accumulator is not None and accumulator.takes(message, target):
                return accumulator.add(message, target, policy, size, epoch)
            return self._fast_path.begin(message, target, timeout, policy, size, epoch)
        except BaseException:
            self._pressure.release(size, epoch)
            raise

    def _retry(self, failed: FastSend, error: Exception) -> None:
        """Continue in a task after a failed first attempt."""
        if not self._open:
            self._pressure.release(failed.size, failed.epoch)
            failed.future.set_exception(closed_error())
            return
        work = self._fast_path.retry(failed, error)
        self._spawn(work, failed.future, failed.size, failed.epoch)

    def _spawn(
        self, work: Coroutine[Any, Any, SendReceipt], future: SendFuture, size: int, epoch: Epoch
    ) -> None:
        """Run a send in a task, which ends its future and then releases its room."""
        task = self._tasks.spawn(_complete(work, future), "send", awaited=True)
        future.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)

        def ended(_: asyncio.Task[None]) -> None:
            self._pressure.release(size, epoch)
            if not future.done():
                future.set_exception(closed_error())

        task.add_done_callback(ended)


async def _complete(work: Coroutine[Any, Any, SendReceipt], future: SendFuture) -> None:
    try:
        receipt = await work
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(receipt)


def closed_error() -> ClientClosedError:
    """Return the error of a send that was in flight when its producer was closed."""
    return ClientClosedError("the producer was closed: the message may be stored")


def _size_of(message: Message) -> int:
    """Return the size that counts for the limit; a body of a wrong type is refused later."""
    try:
        return len(message.body)
    except TypeError:
        return 0
