"""What may watch a client's messages on their way: sends, deliveries, ends of transactions.

Trace, metrics and spans are made of these. Hooks are plain functions that must not block; what one
raises is logged and changes nothing, except in a `ForbiddenHook`. Hooks of one kind are called in
the order they were added.

Source: SendMessageHook, ConsumeMessageHook, FilterMessageHook, CheckForbiddenHook and
EndTransactionHook, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from cometmq.client.handlers import LocalState
from cometmq.client.receipt import SendReceipt
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue


class SendKind(IntEnum):
    """What sort of message is sent; the numbers stand in traces."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAYED = 3
    ORDERED = 4


@dataclass(slots=True)
class SendContext:
    """One send, from the call to its end."""

    group: str
    client_id: str
    messages: Sequence[Message]
    """The message, or those of a batch; a hook may add properties before the first try."""
    kind: SendKind = SendKind.NORMAL
    oneway: bool = False
    message_id: str = ""
    """Of a batch all ids, joined by commas; known from the first try on."""
    namespace: str = ""
    queue: MessageQueue | None = None
    """Where the present try goes."""
    address: str = ""
    """The broker of the present try."""
    tries: int = 0
    cost_ms: float = 0.0
    """How long the present try took, or at the end the whole send."""
    receipt: SendReceipt | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """What a hook wants to find again at the next call of it."""


class SendHook:
    """Watches sends; override what is of interest."""

    def before_send(self, context: SendContext) -> None:
        """A send begins: nothing is encoded yet, and properties may be added."""

    def after_try(self, context: SendContext) -> None:
        """One try has ended, with a receipt or an error; there may be another."""

    def after_send(self, context: SendContext) -> None:
        """The send has ended, with a receipt or an error; cancelled sends end with an error."""


class ForbiddenHook:
    """May forbid a send by raising a `CometError`, which its caller then gets."""

    def check(self, context: SendContext) -> None:
        """Raise to forbid the send."""


class ConsumeEnd(IntEnum):
    """How a handler's call ended; the numbers stand in traces."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4


@dataclass(slots=True)
class DeliveryContext:
    """One call of a handler."""

    group: str
    client_id: str
    queue: MessageQueue
    messages: Sequence[StoredMessage]
    ordered: bool = False
    namespace: str = ""
    cost_ms: float = 0.0
    end: ConsumeEnd | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """What a hook wants to find again at the next call of it."""


class ConsumeHook:
    """Watches calls of handlers; override what is of interest.

    Both methods run in the task that calls the handler, so that a context variable set in
    ``before`` is seen by the handler.
    """

    def before(self, context: DeliveryContext) -> None:
        """A handler is about to be called."""

    def after(self, context: DeliveryContext) -> None:
        """The call has ended."""


class FilterHook:
    """Takes messages out that were fetched, before they are consumed; they count as consumed."""

    def keep(
        self, group: str, queue: MessageQueue, messages: list[StoredMessage]
    ) -> list[StoredMessage]:
        """Give the messages that are to be consumed."""
        return messages


@dataclass(slots=True)
class EndContext:
    """How a transaction ended, as this client told the broker."""

    group: str
    message: Message | StoredMessage
    message_id: str
    transaction_id: str
    address: str
    state: LocalState
    from_check: bool = False
    namespace: str = ""


class EndTransactionHook:
    """Watches the ends of transactions."""

    def ended(self, context: EndContext) -> None:
        """The broker was told how a transaction ended."""
