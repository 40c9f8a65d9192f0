"""A producer for tests that need no server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from cometmq.client._sending.outgoing import prepare, prepare_batch
from cometmq.client.errors import CometError, ReplyTimeoutError, TopicNotFoundError
from cometmq.client.handlers import LocalState
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.client.settings import ProducerSettings
from cometmq.client.transactions import TransactionReceipt
from cometmq.model import property_names as names
from cometmq.model.message import Message, StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms, milliseconds, now_ms, timeout_s
from cometmq.protocol.message_id import UniqueIds

Deliver = Callable[[list[StoredMessage]], Awaitable[int]]


class MemoryProducer:
    """Stands in for `Producer` and `TransactionProducer` in tests: it sends within the process.

    Args:
        deliver: called with the messages of a send or of a batch once they are due, before the
            send returns; returns how many handlers got them. An error is raised by the send.
        execute: the local transaction: called with the message and the argument.

    It takes the arguments of the producers, and does nothing with queues and timeouts of sends.
    It refuses the messages that they refuse.

    Example:
        producer = MemoryProducer()
        await place_order(producer, "42")
        assert [message.body for message in producer.sent] == [b"42"]
    """

    def __init__(
        self,
        deliver: Deliver | None = None,
        *,
        execute: Callable[[Message, Any], Awaitable[LocalState]] | None = None,
    ) -> None:
        self.sent: list[Message] = []
        """All messages that were sent, also those that wait or were recalled."""
        self._deliver = deliver
        self._execute = execute
        self._held: dict[str, tuple[int, Message]] = {}
        """Messages with a delay, and when each is due, by their recall handles."""
        self._passed_ms = 0
        self._settings, self._ids = ProducerSettings(), UniqueIds()
        self._replies: dict[str, asyncio.Future[StoredMessage]] = {}

    @property
    def delayed(self) -> list[Message]:
        """The messages that wait, by the time when they are due."""
        return [message for _, message in sorted(self._held.values(), key=lambda each: each[0])]

    async def advance(self, seconds: float | timedelta) -> int:
        """Let time pass for messages that wait, and deliver what is due.

        Returns:
            How many messages were delivered.
        """
        self._passed_ms += milliseconds(seconds, "seconds")
        due = [id for id, (at_ms, _) in self._held.items() if at_ms <= self._passed_ms]
        for id in sorted(due, key=lambda id: self._held[id][0]):
            await self._hand_over(self._held.pop(id)[1])
        return len(due)

    async def send(
        self, message: Message | str = "", body: bytes = b"", **options: Any
    ) -> SendReceipt:
        """Send one message. One with a delay waits until `advance` has let the time pass."""
        made = self._checked(_message(message, body, options))
        delay_ms, id = self._delay_ms(made), _new_id()
        self.sent.append(made)
        if delay_ms > 0:
            self._held[id] = self._passed_ms + delay_ms, made
            return _receipt(made, id, recall_handle=id)
        await self._hand_over(made)
        return _receipt(made, id)

    async def send_batch(
        self, messages: Sequence[Message] | str, bodies: Sequence[bytes] = (), **options: Any
    ) -> SendReceipt:
        """Send several messages, which are delivered together."""
        if isinstance(messages, str):
            topic = messages
            messages = [_message(topic, body, options) for body in bodies]
        prepare_batch(messages, self._settings, self._ids)
        self.sent += messages
        await self._hand_over(*messages)
        return _receipt(messages[0], _new_id())

    async def send_in_transaction(
        self, message: Message, argument: Any = None, **options: Any
    ) -> TransactionReceipt:
        """Call ``execute``, and deliver the message if it returns COMMIT."""
        self._checked(message)
        state = LocalState.COMMIT
        if self._execute is not None:
            state = await self._execute(message, argument)
        if state is LocalState.COMMIT:
            self.sent.append(message)
            await self._hand_over(message)
        return TransactionReceipt(_receipt(message, _new_id()), state)

    async def recall(self, topic: str, handle: str, **options: Any) -> str:
        """Recall a message that waits; return its id."""
        if self._held.pop(handle, None) is None:
            raise CometError(f"the message of {topic} does not wait: it was due, or had no delay")
        return handle

    async def request(
        self,
        message: Message | str = "",
        body: bytes = b"",
        *,
        timeout: float | timedelta = 3.0,
        **options: Any,
    ) -> StoredMessage:
        """Send a request, and return what a handler passes to `reply` meanwhile.

        Raises:
            TopicNotFoundError: no handler got the request.
            ReplyTimeoutError: no handler has replied.
        """
        made, id = self._checked(_message(message, body, options)), _new_id()
        made.properties[names.REPLY_TO_CLIENT] = id
        reply: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
        self._replies[id] = reply
        self.sent.append(made)
        try:
            async with asyncio.timeout(timeout_s(timeout)):
                if not await self._hand_over(made):
                    raise TopicNotFoundError(made.topic, "no handler got the request")
            if reply.done():
                return reply.result()
        except TimeoutError:
            pass
        finally:
            del self._replies[id]
        raise ReplyTimeoutError(f"no handler of {made.topic} has replied")

    async def reply(
        self,
        request: StoredMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        **options: Any,
    ) -> SendReceipt:
        """Reply to a request; only the first reply counts."""
        made = Message(request.topic, body, properties=dict(properties or {}))
        waiting = self._replies.get(request.properties.get(names.REPLY_TO_CLIENT, ""))
        if waiting is not None and not waiting.done():
            waiting.set_result(StoredMessage.of(made))
        return _receipt(made, _new_id())

    def _checked(self, message: Message) -> Message:
        prepare(message, self._settings, self._ids)
        return message

    async def _hand_over(self, *messages: Message) -> int:
        if self._deliver is None:
            return 0
        return await self._deliver([StoredMessage.of(message) for message in messages])

    def _delay_ms(self, message: Message) -> int:
        if message.deliver_at is not None:
            return epoch_ms(message.deliver_at) - now_ms() - self._passed_ms
        if message.delay_level:
            return 1  # which time a level stands for is the broker's setting
        return milliseconds(message.delay, "delay")


_OF_SENDS = {"queue", "order_key", "selector", "timeout"}


def _message(message: Message | str, body: bytes, options: dict[str, Any]) -> Message:
    if isinstance(message, Message):
        return message
    fields = {name: value for name, value in options.items() if name not in _OF_SENDS}
    return Message(**{"topic": message, "body": body} | fields)


def _new_id() -> str:
    return uuid4().hex.upper()


def _receipt(message: Message, id: str, **more: Any) -> SendReceipt:
    queue = MessageQueue(message.topic, "memory", 0)
    return SendReceipt(SendStatus.SEND_OK, id, id, queue, QueueOffset(0), **more)
