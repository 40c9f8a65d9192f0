"""Producers for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cometmq.client as asynchronous
from cometmq.client import (
    ClientSettings,
    EndTransactionHook,
    ForbiddenHook,
    Message,
    MessageQueue,
    ProducerSettings,
    QueueSelector,
    SendHook,
    SendReceipt,
    StoredMessage,
    TransactionListener,
    TransactionReceipt,
)
from cometmq.client.blocking.base import Blocking
from cometmq.client.blocking.instance import ClientInstance, inner_instance


class Producer(Blocking):
    """Sends messages and waits for each, like `cometmq.client.Producer`.

    Example:
        ``with Producer("127.0.0.1:9876", group="billing") as producer:``
        ``    producer.send(Message(topic="orders", body=b"42"))``
    """

    _inner: asynchronous.Producer

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        group: str,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        hooks: Sequence[SendHook | ForbiddenHook] = (),
        config: Path | None = None,
        **options: Any,
    ) -> None:
        Blocking.__init__(
            self,
            asynchronous.Producer(
                name_servers,
                group=group,
                settings=settings,
                client=client,
                instance=inner_instance(instance),
                hooks=hooks,
                config=config,
                **options,
            ),
        )

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> Future[SendReceipt]:
        """Start to send one message, and return without waiting."""
        return self._begin(
            self._inner.send_nowait,
            message,
            queue=queue,
            order_key=order_key,
            selector=selector,
            timeout=timeout,
        )

    @property
    def group(self) -> str:
        """The producer group."""
        return self._inner.group

    @property
    def settings(self) -> ProducerSettings:
        """The settings that are in effect."""
        return self._inner.settings

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait until a broker has stored it."""
        return self._run(
            self._inner.send(
                message, queue=queue, order_key=order_key, selector=selector, timeout=timeout
            )
        )

    def drain(self, *, timeout: float | None = None) -> bool:
        """Wait until there is room again for the message that `send_nowait` refused."""
        return self._run(self._inner.drain(timeout=timeout))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send several messages in one request to one queue. All are stored, or none."""
        return self._run(
            self._inner.send_batch(
                messages, queue=queue, order_key=order_key, selector=selector, timeout=timeout
            )
        )

    def send_all(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> list[SendReceipt]:
        """Send any number of messages in as few requests as possible, in sequence."""
        return self._run(
            self._inner.send_all(
                messages, queue=queue, order_key=order_key, selector=selector, timeout=timeout
            )
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> str:
        """Send one message without waiting for a response."""
        return self._run(
            self._inner.send_oneway(
                message, queue=queue, order_key=order_key, selector=selector, timeout=timeout
            )
        )

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float = 3.0,
    ) -> StoredMessage:
        """Send a request message, and wait for the reply of its consumer."""
        return self._run(
            self._inner.request(
                message, queue=queue, order_key=order_key, selector=selector, timeout=timeout
            )
        )

    def reply(
        self,
        request: StoredMessage,
        body: bytes,
        *,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,
    ) -> SendReceipt:
        """Reply to a message that was sent with `request`."""
        return self._run(
            self._inner.reply(request, body, tags=tags, properties=properties, timeout=timeout)
        )

    def recall(self, topic: str, handle: str, *, timeout: float = 3.0) -> str:
        """Recall a timer message before it is due. Needs a broker of RocketMQ 5."""
        return self._run(self._inner.recall(topic, handle, timeout=timeout))

    def fetch_queues(self, topic: str, *, timeout: float | None = None) -> list[MessageQueue]:
        """Return the writable queues of a topic."""
        return self._run(self._inner.fetch_queues(topic, timeout=timeout))

    def ready(self, *topics: str) -> None:
        """Fetch the routes of topics before the first send."""
        self._run(self._inner.ready(*topics))


class TransactionProducer(Producer):
    """Sends messages in transactions, like `cometmq.client.TransactionProducer`.

    The listener's methods are plain functions and run in threads.
    """

    _inner: asynchronous.TransactionProducer

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        group: str,
        listener: TransactionListener,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        hooks: Sequence[SendHook | ForbiddenHook | EndTransactionHook] = (),
        config: Path | None = None,
        **options: Any,
    ) -> None:
        Blocking.__init__(
            self,
            asynchronous.TransactionProducer(
                name_servers,
                group=group,
                listener=listener,
                settings=settings,
                client=client,
                instance=inner_instance(instance),
                hooks=hooks,
                config=config,
                **options,
            ),
        )

    def send_in_transaction(
        self, message: Message, argument: object = None, *, timeout: float | None = None
    ) -> TransactionReceipt:
        """Store a half message, run the local transaction, and send its state to the broker."""
        return self._run(self._inner.send_in_transaction(message, argument, timeout=timeout))
