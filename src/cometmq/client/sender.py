"""Brings a prepared message to a broker: chooses a queue, tries, tries elsewhere.

Source: DefaultMQProducerImpl.sendDefaultImpl and sendSelectImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import time

from cometmq.client.config import ProducerSettings
from cometmq.client.errors import (
    QueueNotFoundError,
    SendAttempt,
    SendFailedError,
    SendTimeoutError,
    TopicNotFoundError,
)
from cometmq.client.instance import ClientInstance
from cometmq.client.outgoing import Outgoing, prepare
from cometmq.client.queue_choice import QueueSelector, RoundRobin, chosen
from cometmq.client.receipt import SendReceipt, receipt_from
from cometmq.client.routes import Route
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.protocol.headers import SendMessageV2Request
from cometmq.remoting import CallTimeoutError, ConnectError, TooManyCallsError

INNER_GROUP = "CLIENT_INNER_PRODUCER"
"""The group under which a client sends on its own account."""

_NOT_SENT = (ConnectError, TooManyCallsError)


class Sender:
    """Sends for one group over one instance."""

    def __init__(self, instance: ClientInstance, group: str, settings: ProducerSettings) -> None:
        self._instance = instance
        self._group = group
        self._settings = settings
        self._turns: dict[str, RoundRobin] = {}

    async def send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        *,
        timeout: float,
    ) -> SendReceipt:
        """Send until a broker has stored it, tries run out or time does; see `Producer.send`."""
        deadline = _now() + timeout
        route = await self.route(outgoing.topic, timeout)
        fixed = _fixed_queue(outgoing, route, queue, selector)
        tries = 1 if fixed else 1 + self._settings.retries
        attempts: list[SendAttempt] = []
        while len(attempts) < tries and _now() < deadline:
            target = fixed or self._next(route, attempts)
            try:
                return await self._try(outgoing, target, deadline)
            except (RemotingError, ResponseError) as error:
                attempts.append(_attempt(target, error))
                if isinstance(error, ResponseError) and error.code not in self._settings.retried:
                    break
        raise _final_error(outgoing.topic, attempts, in_time=_now() < deadline)

    async def send_oneway(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        *,
        timeout: float,
    ) -> None:
        """Write the request to a broker's connection and be done; see `Producer.send_oneway`."""
        deadline = _now() + timeout
        route = await self.route(outgoing.topic, timeout)
        target = _fixed_queue(outgoing, route, queue, selector) or self._next(route, [])
        address = await self._master(target, deadline)
        header = self._header(outgoing, target)
        await self._instance.remoting.oneway(address, outgoing.code, header, outgoing.body)

    async def route(self, topic: str, timeout: float) -> Route:
        """Give the topic's route, which has queues to write to.

        Raises:
            ClientClosedError, TopicNotFoundError, NameServerError: nothing can be sent.
        """
        self._instance.check_running()
        route = await self._instance.routes.find_for_sending(
            topic, new_topic_queues=self._settings.new_topic_queues, timeout=timeout
        )
        if not route.publish_queues:
            raise TopicNotFoundError(topic, "it has no queue that may be written to")
        return route

    async def _try(self, outgoing: Outgoing, target: MessageQueue, deadline: float) -> SendReceipt:
        address = await self._master(target, deadline)
        answer = await self._instance.remoting.call(
            address,
            outgoing.code,
            self._header(outgoing, target),
            outgoing.body,
            timeout=_left(deadline),
        )
        receipt = receipt_from(answer, target, outgoing.message_id)
        self._instance.greet_soon(address)
        return receipt

    async def _master(self, target: MessageQueue, deadline: float) -> str:
        routes = self._instance.routes
        route = routes.known(target.topic)
        if route is None or route.master(target.broker_name) is None:
            route = await routes.refresh(target.topic, timeout=_left(deadline))
        address = route.master(target.broker_name) if route else None
        if address is None:
            raise ConnectError(f"broker {target.broker_name} has no master now")
        return address

    def _next(self, route: Route, attempts: list[SendAttempt]) -> MessageQueue:
        """Choose a queue by the newest route, on another broker than the last try if possible."""
        newest = self._instance.routes.known(route.topic) or route
        turn = self._turns.setdefault(route.topic, RoundRobin())
        avoid = attempts[-1].broker_name if attempts else None
        return turn.pick(newest.publish_queues or route.publish_queues, avoid_broker=avoid)

    def _header(self, outgoing: Outgoing, target: MessageQueue) -> SendMessageV2Request:
        return outgoing.header(
            self._group,
            target,
            born_time_ms=time.time_ns() // 1_000_000,
            new_topic_queues=self._settings.new_topic_queues,
        )


class InnerProducer:
    """Sends what the client itself has to send: messages to be consumed again, and the like.

    One for each instance, which needs no start and no close: take it from ``instance.shared``.
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._settings = ProducerSettings()
        self._ids = instance.unique_ids()
        self._sender = Sender(instance, INNER_GROUP, self._settings)

    @classmethod
    def of(cls, instance: ClientInstance) -> InnerProducer:
        """Give the one of an instance."""
        return instance.shared(cls, lambda: cls(instance))

    async def send(
        self, message: Message, *, timeout: float, allow_reserved: bool = True
    ) -> SendReceipt:
        """Send a message, which may have properties that applications cannot set.

        For a retry topic, RECONSUME_TIME and MAX_RECONSUME_TIMES travel in the header.

        Raises:
            InvalidMessageError: the message breaks a limit; nothing was sent.
            Everything else as `Producer.send`.
        """
        outgoing = prepare(message, self._settings, self._ids, trusted=allow_reserved)
        return await self._sender.send(outgoing, timeout=timeout)


def _fixed_queue(
    outgoing: Outgoing,
    route: Route,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
) -> MessageQueue | None:
    if queue is None:
        return chosen(selector, route.publish_queues, outgoing.message) if selector else None
    if queue.topic != outgoing.topic:
        raise QueueNotFoundError(f"{queue} is no queue of topic {outgoing.topic}")
    return queue


def _attempt(target: MessageQueue, error: CometError) -> SendAttempt:
    maybe_stored = isinstance(error, RemotingError) and not isinstance(error, _NOT_SENT)
    return SendAttempt(target.broker_name, error, maybe_stored)


def _final_error(topic: str, attempts: list[SendAttempt], *, in_time: bool) -> CometError:
    """Turn the failed tries into the one error that tells of all of them."""
    last = attempts[-1].error if attempts else None
    if isinstance(last, ResponseError):
        for attempt in attempts[:-1]:
            state = "perhaps stored" if attempt.maybe_stored else "not stored"
            last.add_note(f"an earlier try failed, {state}: {attempt}")
        return last
    if in_time and not isinstance(last, CallTimeoutError):
        return SendFailedError(topic, attempts)
    return SendTimeoutError(topic, attempts)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _left(deadline: float) -> float:
    return max(deadline - _now(), 0.001)
