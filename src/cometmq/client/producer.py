"""Sends messages and waits for brokers to store them.

Source: DefaultMQProducer and DefaultMQProducerImpl, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.client.config import ClientSettings, ProducerSettings
from cometmq.client.instance import ClientInstance, Membership
from cometmq.client.lifetime import Lifetime
from cometmq.client.outgoing import prepare, prepare_batch
from cometmq.client.queue_choice import QueueSelector, by_key
from cometmq.client.receipt import SendReceipt
from cometmq.client.registry import lease
from cometmq.client.sender import Sender
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies import ProducerData

SEND_S = 3.0


class Producer(Lifetime):
    """Sends messages to the brokers of a cluster.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        group: name of the producers that do the same work; brokers show it.
        settings: the producer's settings.
        client: settings of its connections.
        instance: share these connections instead of opening own ones; the caller starts and
            closes them.

    Many sends may run at once: await them together with ``asyncio.gather``.
    Example:
        ``async with Producer("127.0.0.1:9876", group="shop") as producer: ...``
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] = (),
        *,
        group: str,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        check_group_name(group)
        self._group = group
        self._settings = settings or ProducerSettings()
        self._lease = lease(name_servers, settings=client, instance=instance)
        self._instance = self._lease.instance
        self._ids = self._instance.unique_ids()
        self._sender = Sender(self._instance, group, self._settings)

    @property
    def group(self) -> str:
        """The producer's group."""
        return self._group

    def membership(self) -> Membership:
        """Say what the heartbeat tells of this producer."""
        return Membership(producers=[ProducerData(group_name=self._group)])

    async def start(self) -> None:
        """Make the producer ready to send.

        Raises:
            ClientError: the shared instance has a producer of this group already.
        """
        await self._lease.open(self)

    async def close(self) -> None:
        """Tell the brokers goodbye and close the connections; sends that still wait fail."""
        await self._lease.close(self)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float = SEND_S,
    ) -> SendReceipt:
        """Send one message and wait until a broker has stored it.

        Args:
            message: topic, properties and a body of 1 byte to 4 MiB.
            queue: send to just this queue, without retries.
            order_key: send to the queue that all messages with this key go to, without retries;
                whoever awaits one send before the next keeps their order.
            selector: picks the queue from those of the topic, without retries.
            timeout: seconds for the whole call, at most two retries on other brokers included.

        Returns:
            Message id, queue, queue offset and ``status``. A status other than ``SEND_OK`` means
            stored, but not yet flushed or replicated as the broker is set to do.

        Raises:
            InvalidMessageError: the message breaks a limit; nothing was sent.
            InvalidNameError: the topic's name breaks the rules; nothing was sent.
            TopicNotFoundError: no broker serves the topic; nothing was sent.
            QueueNotFoundError: the topic has no such queue; nothing was sent.
            NameServerError: the topic's route is unknown and nobody tells; nothing was sent.
            ResponseError: the broker refused it; not stored, unless an earlier try that got no
                answer was: the error's notes tell of such.
            SendTimeoutError: no answer in time; perhaps stored, so sending again may duplicate it.
            SendFailedError: no broker answered; ``maybe_stored`` tells whether it may be stored.

        Cancelling stops the waiting; a request already on the wire may still be stored.
        Source: DefaultMQProducer.send, RocketMQ 5.3.
        Example: ``receipt = await producer.send(Message(topic="orders", body=b"42"))``
        """
        outgoing = prepare(message, self._settings, self._ids)
        return await self._sender.send(
            outgoing, queue, _selector(order_key, selector), timeout=timeout
        )

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float = SEND_S,
    ) -> SendReceipt:
        """Send several messages as one request, into one queue, stored all or none.

        Args:
            messages: of one topic, with the same ``wait_store`` and without delay; together at
                most 4 MiB once encoded. They are not compressed.
            queue, order_key, selector, timeout: as for `send`.

        Returns:
            One receipt: the ids joined by commas, and the offset of the first message; the others
            follow it without a gap.

        Raises:
            InvalidMessageError: a message or the whole breaks a limit or rule; nothing was sent.
            Everything else as `send`, for all the messages together.

        Cancelling stops the waiting; a request already on the wire may still be stored.
        Source: DefaultMQProducer.send(Collection), RocketMQ 5.3.
        Example: ``await producer.send_batch([Message(topic="t", body=b"1")] * 3)``
        """
        outgoing = prepare_batch(messages, self._settings, self._ids)
        return await self._sender.send(
            outgoing, queue, _selector(order_key, selector), timeout=timeout
        )

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float = SEND_S,
    ) -> str:
        """Send one message and wait for no answer.

        Args:
            message, queue, order_key, selector: as for `send`.
            timeout: seconds for finding the route.

        Returns:
            The message's unique id. Nobody says whether a broker stored the message.

        Raises:
            InvalidMessageError, InvalidNameError, TopicNotFoundError, QueueNotFoundError,
            NameServerError: nothing was sent.
            ConnectError: the broker cannot be reached; nothing was sent.

        Source: DefaultMQProducer.sendOneway, RocketMQ 5.3.
        Example: ``await producer.send_oneway(Message(topic="logs", body=b"seen"))``
        """
        outgoing = prepare(message, self._settings, self._ids)
        await self._sender.send_oneway(
            outgoing, queue, _selector(order_key, selector), timeout=timeout
        )
        return outgoing.message_id

    async def fetch_queues(self, topic: str, *, timeout: float = SEND_S) -> list[MessageQueue]:
        """Give the queues of a topic that can be sent to.

        Raises:
            TopicNotFoundError: no broker serves the topic.
            NameServerError: no name server answered.
        """
        return list((await self._sender.route(topic, timeout)).publish_queues)


def _selector(order_key: str | None, selector: QueueSelector | None) -> QueueSelector | None:
    if order_key is not None and selector is not None:
        raise TypeError("order_key and selector both choose the queue: give one of them")
    return by_key(order_key) if order_key is not None else selector
