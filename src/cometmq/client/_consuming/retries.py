"""Redelivers messages that failed after a delay, or dead-letters them.

    consumer        redelivered by                            delay
    push, pull      the broker, from the group's retry topic  delay level 3 + retries so far
    push, ordered   the consumer, after a pause               setting ``suspend_ms``
    pop, simple     the broker, by the invisible time         `POP_DELAYS_S`

A handler that raises `ConsumeLater` or sets the delay level of its context chooses another delay.

`Retries` sends a message to the retry topic in one of two ways. Each is tried if the other fails:

    request 36      the broker copies the message from its log; nothing can be added to it
    a new message   is sent to the retry topic; its properties contain the error

The second is tried first when a handler raised: the class and the text of the error are stored with
the message, so that a dead letter contains the reason.

Source: DefaultMQPushConsumerImpl.sendMessageBack and ConsumeMessagePopConcurrentlyService,
RocketMQ 5.3, whose messages do not contain the error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.handler_calls import AS_DEAD_LETTER, DEAD_LETTER
from cometmq.client._sending.sender import InnerProducer
from cometmq.client._supervision import class_and_text
from cometmq.client.errors import QueueNotFoundError
from cometmq.model import property_names as names
from cometmq.model.dead_letter import (
    CONSUME_ERROR,
    CONSUME_ERROR_TIME_MS,
    CONSUME_RETRIES,
    OF_DELIVERY,
)
from cometmq.model.delay import DEFAULT_LEVELS
from cometmq.model.errors import CometError
from cometmq.model.flags import SysFlag
from cometmq.model.message import Message, StoredMessage
from cometmq.model.times import now_ms
from cometmq.model.topic import retry_topic
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.compression import CompressionError
from cometmq.protocol.headers.base import I32_MAX
from cometmq.protocol.headers.consumer import ConsumerSendMsgBackRequest
from cometmq.protocol.lazy_record import as_received, stored_body, stored_sys_flag
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX, encode_properties

log = logging.getLogger(__name__)

COMPRESSION = SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK
ADDED_BYTES = 512
"""Room for the properties that sending and brokers add."""
SEND_BACK_S = 5.0
RETRIES_MAX = 16
"""Retries before a message becomes a dead letter, unless the settings have another limit."""
FIRST_LEVEL = 3
"""The delay level of the first retry; each further one takes the next."""
_LEVELS = DEFAULT_LEVELS.split()
POP_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds until a pop consumer's message that failed is redelivered, by its retries so far."""


class OnFailed(Protocol):
    """Called for each failed message that is retried or dead-lettered."""

    def __call__(
        self, message: StoredMessage, error: BaseException | None, *, is_dead: bool
    ) -> None:
        """Note it."""


@dataclass(frozen=True, slots=True)
class DeadLetterRule:
    """Decides which failed messages become dead letters."""

    retries_max: int | None
    """Retries of a message before it becomes a dead letter; None for no limit."""

    @classmethod
    def of(cls, retries_max: int, *, ordered: bool = False) -> DeadLetterRule:
        """Read the setting ``retries_max``: below 0 is RocketMQ's limit, in order none."""
        if retries_max >= 0:
            return cls(retries_max)
        return cls(None if ordered else RETRIES_MAX)

    def applies_to(self, message: StoredMessage, delay_level: int = 0) -> bool:
        """Return whether a message that failed is not retried any more.

        Args:
            message: as it was delivered.
            delay_level: the level that its handler has chosen; 0 for none.
        """
        used_up = self.retries_max is not None and message.reconsume_times >= self.retries_max
        return delay_level <= DEAD_LETTER or used_up

    def redelivery(self, message: StoredMessage, delay_level: int, delay_s: float) -> str:
        """Return after which time a failed message is redelivered, or that it is not, for the log.

        Args:
            message, delay_level: as for `applies_to`.
            delay_s: the time.
        """
        return AS_DEAD_LETTER if self.applies_to(message, delay_level) else f"{delay_s:g}s"

    def is_exceeded(self, message: StoredMessage) -> bool:
        """Return whether a message was delivered again although its retries were used up."""
        return self.retries_max is not None and message.reconsume_times > self.retries_max


class DeadLetters(NamedTuple):
    """Which messages become dead letters, and how."""

    rule: DeadLetterRule
    store: Callable[[StoredMessage, BaseException | None], Awaitable[bool]]
    """Dead-letters a message with the error of its handler; returns whether a broker accepted it.
    """


class Retries:
    """Sends messages of one group back to their brokers.

    Args:
        instance: whose connections are used.
        group: as brokers know it.
        rule: decides which messages become dead letters.
        wrap_topic: makes a topic's name, as handlers see it, the one that brokers know.
        on_failed: called with each message that a broker has accepted, its error, and whether it
            is a dead letter now.
        on_first: called when a broker has accepted the first message: from then on the retry topic
            exists.
    """

    def __init__(
        self,
        instance: ClientCore,
        group: str,
        *,
        rule: DeadLetterRule,
        wrap_topic: Callable[[str], str] = str,
        on_failed: OnFailed | None = None,
        on_first: Callable[[], None] | None = None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._topic = retry_topic(group)
        self._rule = rule
        retries_max = RETRIES_MAX if rule.retries_max is None else rule.retries_max
        self._max = min(retries_max, I32_MAX - 1)
        """The limit in requests, which cannot express that there is none; one more fits as well."""
        self._wrap = wrap_topic
        self._on_failed = on_failed
        self._on_first = on_first
        self._producer = InnerProducer.of(instance)

    async def send(
        self, message: StoredMessage, delay_level: int, error: BaseException | None = None
    ) -> bool:
        """Send a message back for redelivery.

        Args:
            message: as its handler received it.
            delay_level: 0 for one that grows with the retries, -1 for a dead letter at once.
            error: what the handler raised; stored with the message.

        Returns:
            Whether a broker accepted it; False if none has confirmed it.
        """
        ways = [("send_back_request", self._request), ("copy", self._send_copy)]
        for name, send in reversed(ways) if error is not None else ways:
            try:
                await send(message, delay_level, error)
            except CometError as failure:
                log.warning(
                    "cannot send a message back topic=%s id=%s group=%s by=%s error=%s",
                    message.topic,
                    message.message_id,
                    self._group,
                    name,
                    failure,
                )
            else:
                self._accepted()
                self._report(message, delay_level, error)
                return True
        return False

    def redelivery(self, message: StoredMessage, delay_level: int) -> str:
        """Return what `DeadLetterRule.redelivery` returns, as a delay level of brokers."""
        if self._rule.applies_to(message, delay_level):
            return AS_DEAD_LETTER
        level = delay_level or FIRST_LEVEL + message.reconsume_times
        return _LEVELS[min(level, len(_LEVELS)) - 1]

    async def give_up(self, message: StoredMessage, error: BaseException | None = None) -> bool:
        """Dead-letter a message by sending a copy, as ordered consumers do.

        Returns:
            Whether a broker accepted it.
        """
        try:
            await self._send_copy(message, DEAD_LETTER, error)
        except CometError as failure:
            log.warning(
                "cannot store a dead letter topic=%s id=%s group=%s error=%s",
                message.topic,
                message.message_id,
                self._group,
                failure,
            )
            return False
        self._report(message, DEAD_LETTER, error)
        return True

    def _report(
        self, message: StoredMessage, delay_level: int, error: BaseException | None
    ) -> None:
        if self._on_failed is not None:
            is_dead = self._rule.applies_to(message, delay_level)
            self._on_failed(message, error, is_dead=is_dead)

    def _accepted(self) -> None:
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first()

    async def _request(
        self, message: StoredMessage, delay_level: int, error: BaseException | None
    ) -> None:
        header = ConsumerSendMsgBackRequest(
            offset=message.log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=as_received(message).message_id,
            origin_topic=self._wrap(message.topic),
            max_reconsume_times=self._max,
        )
        address, code = self._address(message), RequestCode.CONSUMER_SEND_MSG_BACK
        await self._instance.brokers.call(address, code, header, timeout=SEND_BACK_S)

    def _address(self, message: StoredMessage) -> str:
        """Return the address of the message's broker, or of the one that stored it."""
        routes = self._instance.routes
        for topic in routes.topics():
            route = routes.known(topic)
            address = route.master(message.broker_name) if route else None
            if address is not None:
                return address
        if not message.store_host:
            raise QueueNotFoundError(f"broker {message.broker_name} has no master now")
        return message.store_host

    async def _send_copy(
        self, message: StoredMessage, delay_level: int, error: BaseException | None
    ) -> None:
        times = message.reconsume_times
        is_dead = self._rule.applies_to(message, delay_level)
        received = as_received(message)  # the handler may have changed body and properties
        properties = self._properties(received, self._wrap(message.topic))
        # Brokers of both lines compare the two numbers, one with >= and the other with >: these
        # pairs mean the same to both.
        properties[names.RECONSUME_TIME] = str(self._max + 1 if is_dead else times + 1)
        properties[names.MAX_RECONSUME_TIMES] = str(self._max if is_dead else self._max + 1)
        if is_dead:
            properties.setdefault(names.DLQ_ORIGIN_TOPIC, self._wrap(message.topic))
            properties.setdefault(names.DLQ_ORIGIN_MESSAGE_ID, received.message_id)
            if times != self._max:  # else the number that the broker stores is that of the retries
                properties[CONSUME_RETRIES] = str(times)
        if error is not None:
            _add_error(properties, error)
        try:
            body, compressed = received.body, 0
        except CompressionError:  # nobody can read it, but a dead letter keeps it, and says why
            body, compressed = stored_body(message), stored_sys_flag(message) & COMPRESSION
        copy = Message(
            topic=self._topic,
            body=body,
            flag=received.flag,
            properties=properties,
            delay_level=0 if is_dead else delay_level or FIRST_LEVEL + times,
            wait_store=received.properties.get(names.WAIT) != "false",
        )
        await self._producer.send(copy, timeout=SEND_BACK_S, compressed=compressed)

    def _properties(self, message: StoredMessage, topic: str) -> dict[str, str]:
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in OF_DELIVERY and value.strip()
        }
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
        properties[names.RETRY_TOPIC] = topic
        return properties


def _add_error(properties: dict[str, str], error: BaseException) -> None:
    """Add the error, as much of it as fits: without it the message can be sent at least."""
    properties[CONSUME_ERROR_TIME_MS] = str(now_ms())
    properties[CONSUME_ERROR] = ""
    room = PROPERTIES_BYTES_MAX - len(encode_properties(properties)) - ADDED_BYTES
    text = class_and_text(error).encode()[: max(room, 0)].decode("utf-8", "ignore").strip()
    if text:
        properties[CONSUME_ERROR] = text
    else:
        del properties[CONSUME_ERROR], properties[CONSUME_ERROR_TIME_MS]


def pop_delay_s(reconsume_times: int, delay_level: int = 0) -> int:
    """Return the seconds until a pop consumer's message that failed is redelivered.

    Args:
        reconsume_times: its redeliveries so far.
        delay_level: the level that its handler has chosen; 0 for none. As in RocketMQ it counts
            from 0, so that 1 is the second of the delays.
    """
    level = delay_level if delay_level > 0 else max(reconsume_times, 0)
    return POP_DELAYS_S[min(level, len(POP_DELAYS_S) - 1)]
