"""The sends of one producer that are in flight, within the limits of its settings.

Each send first gets room, then a first attempt without a task if the fast path allows, and a task
otherwise. It holds its room until its last attempt has ended, even if its future was cancelled.

Source: DefaultMQProducerImpl.sendDefaultImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from cometmq.client._sending.back_pressure import BackPressure, Generation
from cometmq.client._sending.batches import Accumulator, SendFuture
from cometmq.client._sending.fast_path import FastSend, SendFastPath
from cometmq.client._sending.outgoing import copy_message, size_of
from cometmq.client._sending.retry_policy import RetryPolicy, cancellation_error, closed_error
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import SendTarget
from cometmq.client.errors import (
    BackPressureError,
    ClientClosedError,
    SendTimeoutError,
)
from cometmq.client.receipt import SendReceipt
from cometmq.client.settings import ProducerSettings
from cometmq.model.message import Message
from cometmq.remoting.tasks import Supervisor

_CLOSED_BEFORE = "not sent: the producer was closed"


class PendingSends:
    """The sends of one producer that are in flight.

    Args:
        sender: sends the messages.
        settings: the limits, and whether messages are combined into batches.
        check_running: raises if the producer does not run.
        check_loop: raises if the producer runs in another event loop.
    """

    def __init__(
        self,
        sender: Sender,
        settings: ProducerSettings,
        *,
        check_running: Callable[[], None],
        check_loop: Callable[[], None],
    ) -> None:
        self._check_running, self._check_loop = check_running, check_loop
        self._sender = sender
        self._tasks = Supervisor("sends")
        self._open = False
        self._room_s = settings.back_pressure_wait_ms / 1000
        self._pressure = BackPressure(settings.back_pressure_messages, settings.back_pressure_bytes)
        self._accumulator = (
            Accumulator(sender, settings, self._pressure) if settings.auto_batch else None
        )
        self._fast_path = SendFastPath(sender, self._pressure, self._retry)

    def open(self) -> None:
        """Accept sends from now on. Hooks that are added later would miss some."""
        sender = self._sender
        self._fast_path.begin()
        self._fast_path.is_usable = not sender.has_hooks and sender.targets.latency is None
        self._open = True

    def start_awaited(
        self, message: Message, target: SendTarget, timeout: float, untimed: bool
    ) -> SendFuture | None:
        """Start a send whose caller waits for the receipt, without a task.

        Args:
            message: the message.
            target: the queue or the selector, if the caller chose.
            timeout: seconds for all of it.
            untimed: whether the caller gave no time: then the message may wait for others to form a
                batch, and the wait for room has a limit of its own.

        Returns:
            Its future; None if there is no room, or if the general path must send it: `send` does.

        Raises:
            ClientClosedError: the producer is not running; not sent.
            CometError: the message breaks a limit; not sent.
        """
        if self._open and self._accumulator is None:
            return self._fast_path.start(message, target, timeout, True, None)
        return self._start_without_task(message, target, timeout, True, untimed, None)

    async def send(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        reserved: Mapping[str, str] | None = None,
        *,
        untimed: bool = False,
    ) -> SendReceipt:
        """Wait for room, send a message and wait for its receipt; see `Producer.send`.

        Args:
            message, target, timeout, untimed: as for `start_awaited`.
            reserved: properties that applications cannot set.
        """
        size = size_of(message)
        generation, left_s, waited = await self._acquire(message.topic, size, timeout, untimed)
        if waited:  # the message may have another body now
            size = self._pressure.resize(size, size_of(message))
        return await self._start(message, target, left_s, reserved, True, untimed, size, generation)

    async def send_batch(
        self,
        messages: Sequence[Message],
        target: SendTarget,
        timeout: float,
        *,
        untimed: bool = False,
    ) -> SendReceipt:
        """Wait for room, send messages as one request and wait for its receipt."""
        size = sum(map(size_of, messages))
        topic = messages[0].topic if messages else ""
        generation, timeout, _ = await self._acquire(topic, size, timeout, untimed)
        future: SendFuture = asyncio.get_running_loop().create_future()
        work = self._sender.send_batch(messages, target, timeout=timeout)
        self._spawn(work, future, size, generation)
        return await future

    async def start(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        reserved: Mapping[str, str] | None = None,
        *,
        untimed: bool = False,
    ) -> SendFuture:
        """Wait for room, start a send and return its future; see `Producer.send_soon`."""
        size = size_of(message)
        generation, left_s, waited = await self._acquire(message.topic, size, timeout, untimed)
        if waited:
            size = self._pressure.resize(size, size_of(message))
        return self._start(message, target, left_s, reserved, False, untimed, size, generation)

    def start_nowait(
        self, message: Message, target: SendTarget, timeout: float, *, untimed: bool = False
    ) -> SendFuture:
        """Start a send and return its future; see `Producer.send_nowait`.

        Raises:
            BackPressureError: there is no room, or others wait for it.
        """
        self._check_open()
        size = size_of(message)
        generation = self._pressure.try_acquire(size)
        if generation is None:
            raise BackPressureError(f"not sent: {self._in_flight()}")
        return self._start(message, target, timeout, None, False, untimed, size, generation)

    async def flush(self, timeout: float | None = None) -> int:
        """Send the batches that wait for more messages; return when all sends so far have ended.

        Args:
            timeout: seconds to wait at most; None for no limit.

        Returns:
            How many have not ended.
        """
        if self._accumulator is not None:
            self._accumulator.flush()
        return await self._pressure.flush(timeout)

    async def close(self, timeout: float) -> None:
        """Accept no more sends, begin no retry, and wait for the attempts in flight.

        All sends end before this returns; those that did not end by themselves with an error.
        """
        self._open = False
        self._sender.pauses.close()
        self._pressure.refuse_all(ClientClosedError(_CLOSED_BEFORE))
        if self._accumulator is not None:
            self._accumulator.flush()
        await self._pressure.flush(timeout)
        if self._accumulator is not None:
            await self._accumulator.cancel()
        await self._tasks.cancel()
        for call in self._sender.instance.remoting.calls():
            if isinstance(call, FastSend) and call.path is self._fast_path:
                self._end(call.future)

    def _check_open(self) -> None:
        if not self._open:
            self._check_running()
        self._check_loop()

    async def _acquire(
        self, topic: str, size: int, timeout: float, untimed: bool
    ) -> tuple[Generation, float, bool]:
        """Wait for room; return it, the seconds that are left for the send, and whether it waited.

        Where the caller gave no time, a send has all of its own once it has room: among ten
        thousand sends that begin at once, the last ones wait longer than one send may take.
        """
        self._check_open()
        generation = self._pressure.try_acquire(size)
        if generation is not None:
            return generation, timeout, False
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        limit_s = self._room_s if untimed else timeout
        try:
            generation = await self._pressure.acquire(size, limit_s)
        except TimeoutError:
            reason = f"no room within {limit_s:g} s: {self._in_flight()}"
            raise SendTimeoutError(topic, (), reason) from None
        if not self._open:  # the room and the close came together
            self._pressure.release(size, generation)
            raise ClientClosedError(_CLOSED_BEFORE)
        return generation, timeout if untimed else began_s + timeout - loop.time(), True

    def _in_flight(self) -> str:
        pressure = self._pressure
        return f"{pressure.messages} messages of {pressure.size_bytes} bytes are in flight"

    def _start(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        reserved: Mapping[str, str] | None,
        is_awaited: bool,
        untimed: bool,
        size: int,
        generation: Generation,
    ) -> SendFuture:
        """Start a send that has room for ``size`` bytes."""
        if reserved is None:
            try:
                started = self._start_without_task(
                    message, target, timeout, is_awaited, untimed, generation
                )
            except Exception as error:
                started = asyncio.get_running_loop().create_future()
                started.set_exception(error)
            if started is not None:
                return started
        future: SendFuture = asyncio.get_running_loop().create_future()
        if not is_awaited:  # its caller may change the message before the task begins
            try:
                message = copy_message(message)
            except Exception as error:  # of a generator of keys
                self._pressure.release(size, generation)
                future.set_exception(error)
                return future
        work = self._sender.send_message(
            message, target, timeout=timeout, reserved=reserved, policy=self._policy(is_awaited)
        )
        self._spawn(work, future, size, generation)
        return future

    def _start_without_task(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        is_awaited: bool,
        untimed: bool,
        generation: Generation | None,
    ) -> SendFuture | None:
        """Start a send without a task, as part of a batch or on the fast path; None if it cannot.

        Args:
            message, target, timeout, untimed: as for `start_awaited`.
            is_awaited: whether its caller waits for the receipt.
            generation: its room, which is released if this raises; None to take room now.
        """
        self._check_open()
        accumulator = self._accumulator if untimed else None
        if accumulator is None or not accumulator.takes(message, target):
            return self._fast_path.start(message, target, timeout, is_awaited, generation)
        size = size_of(message)
        generation = generation or self._pressure.try_acquire(size)
        if generation is None:
            return None
        try:
            return accumulator.add(message, target, self._policy(is_awaited), size, generation)
        except BaseException:
            self._pressure.release(size, generation)
            raise

    @staticmethod
    def _end(future: SendFuture) -> None:
        """End a send that was cut off by the closing."""
        if not future.done():
            future.set_exception(closed_error(maybe_stored=True))

    def _policy(self, is_awaited: bool) -> RetryPolicy:
        return self._sender.awaited if is_awaited else self._sender.started

    def _retry(self, failed: FastSend, error: Exception) -> None:
        """Continue in a task after a failed first attempt."""
        work = self._fast_path.retry(failed, error)
        self._spawn(work, failed.future, failed.size, failed.generation)

    def _spawn(
        self,
        work: Coroutine[Any, Any, SendReceipt],
        future: SendFuture,
        size: int,
        generation: Generation,
    ) -> None:
        """Run a send in a task. Its room is released before its caller sees the result."""
        task = self._tasks.spawn(_complete(work, future), "send", awaited=True)

        def completed(_: SendFuture) -> None:
            if future.cancelled():
                task.cancel()  # the room stays taken until the attempt has ended
            else:
                self._pressure.release(size, generation)

        def ended(_: asyncio.Task[None]) -> None:
            if future.cancelled():
                self._pressure.release(size, generation)
            else:
                self._end(future)

        future.add_done_callback(completed)
        task.add_done_callback(ended)


async def _complete(work: Coroutine[Any, Any, SendReceipt], future: SendFuture) -> None:
    try:
        receipt = await work
    except asyncio.CancelledError as error:
        failure = cancellation_error(error)
        if not future.done():
            future.set_exception(failure)
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(receipt)
