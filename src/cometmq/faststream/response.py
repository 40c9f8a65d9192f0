"""What handlers return to send it with options, and what publishers hand to the producer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

if TYPE_CHECKING:
    from cometmq.client import LocalState, Message, StoredMessage, TransactionReceipt
    from cometmq.faststream.options import SendOptions


class RocketResponse(Response):
    """The result of a handler, with options of the message that it becomes.

    Example:
        @broker.subscriber("orders")
        @broker.publisher("invoices")
        async def bill(order: Order) -> RocketResponse:
            return RocketResponse(Invoice(order.id), tags="new", keys=[order.id])
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> RocketPublishCommand:
        """Return the command that publishes it."""
        return RocketPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
            options=self.options,
        )

    def get_publish_key(self) -> str | None:
        """Return the order key."""
        return self.options.get("key")


class RunsTransactions(Protocol):
    """What a `Transaction` does for a producer."""

    async def send(self, message: Message, timeout: float | None) -> TransactionReceipt:
        """Store a half message, and run the transaction."""

    def prepare(self) -> None:
        """Resolve the dependencies of its functions."""

    async def state_of(self, message: StoredMessage | Message, *, is_check: bool) -> LocalState:
        """Call one of its functions."""


class RocketPublishCommand(BatchPublishCommand):
    """One or several messages to publish."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str = "",
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        options: SendOptions | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            headers=dict(headers or {}),
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.timeout = timeout
        """Seconds for a request, or for the half message of a transaction."""
        self.options: SendOptions = options or {}
        self.request: StoredMessage | None = None
        """The request of RocketMQ's kind that this replies to."""
        self.transaction: RunsTransactions | None = None
        """The transaction that decides whether this is delivered."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketPublishCommand:
        """Make one of what other parts of FastStream hand over."""
        if isinstance(cmd, RocketPublishCommand):
            return cmd
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *others,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )
