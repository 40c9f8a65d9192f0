"""Changes that deliver a message again: to one member of a group, or as a new message."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq.client import StoredMessage
from cometmq.console.changes import Change
from cometmq.console.forms import Form
from cometmq.console.messages.page import find
from cometmq.console.pages import Name, address
from cometmq.console.reads import Reads
from cometmq.console.stored_messages import Offset, QueueNumber
from cometmq.model.errors import ConfigError
from cometmq.model.topic import TOPICS_OF_WAITING

DELIVER_S = 20.0
"""The handler of the member runs meanwhile."""
MEMBERS_SHOWN = 100
Group = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class DeliverMessage(Form):
    """A message, and the member of a group that is to consume it."""

    topic: Name
    broker: Name
    queue: QueueNumber
    offset: Offset
    group: Group
    client: Annotated[
        str, msgspec.Meta(max_length=255, description="Client id of the member; empty for any.")
    ] = ""


class Deliverable(msgspec.Struct):
    """A message that is to be delivered, and the members of the group."""

    message: str
    stored_time_ms: int
    keys: str
    body_bytes: int
    delivered_to: str
    online_members: list[str]


class Delivered(msgspec.Struct):
    """What a member did with a message."""

    client: str
    result: str
    took_ms: int
    remark: str


class ResendMessage(Form):
    """A message that is to be sent again."""

    topic: Name
    broker: Name
    queue: QueueNumber
    offset: Offset


class Resendable(msgspec.Struct):
    """A message that is to be sent again, and the groups that receive it."""

    message: str
    topic: str
    stored_time_ms: int
    keys: str
    body_bytes: int
    groups_that_receive_it_again: list[str]


class ResentMessage(msgspec.Struct):
    """Where the new message is stored."""

    id: str
    topic: str
    broker: str
    queue: int
    offset: int


async def _members(reads: Reads, group: str) -> list[str]:
    """Return the client ids of a group's members."""
    online = await reads.online(group)
    return sorted(each.client_id for each in online.connection_set) if online else []


async def _member(reads: Reads, form: DeliverMessage) -> tuple[str, list[str]]:
    """Return the member that is to consume a message, and all members.

    Raises:
        ConfigError: the member is not online, or no member is.
    """
    members = await _members(reads, form.group)
    if not members:
        raise ConfigError(
            f"group {form.group} has no member online: start one, or send the message again"
        )
    if form.client and form.client not in members:
        raise ConfigError(
            f"client={form.client} is not online: expected one of"
            f" {', '.join(members[:MEMBERS_SHOWN])}"
        )
    return form.client or members[0], members


async def deliverable(reads: Reads, form: DeliverMessage) -> Deliverable:
    """Return what `deliver` would do."""
    message = await find(reads, form.topic, form.broker, form.queue, form.offset)
    client, members = await _member(reads, form)
    return Deliverable(
        *(message.message_id, message.store_time_ms, ", ".join(message.keys)),
        *(len(message.body), client, members[:MEMBERS_SHOWN]),
    )


async def deliver(reads: Reads, form: DeliverMessage) -> Delivered:
    """Pass a message to a member now. Offsets do not change."""
    message = await find(reads, form.topic, form.broker, form.queue, form.offset)
    client, _ = await _member(reads, form)
    made = await reads.admin.consume_directly(form.group, client, message)
    result = made.consume_result.value if made.consume_result else "no result"
    return Delivered(client, result, made.spent_time_mills, made.remark or "")


async def resendable(reads: Reads, form: ResendMessage) -> Resendable:
    """Return what `resend` would do."""
    message = await _sendable(reads, form)
    groups = sorted(await reads.admin.groups_of_topic(form.topic))
    return Resendable(
        *(message.message_id, form.topic, message.store_time_ms, ", ".join(message.keys)),
        *(len(message.body), groups[:MEMBERS_SHOWN]),
    )


async def resend(reads: Reads, form: ResendMessage) -> ResentMessage:
    """Send a message again to its topic, with all its properties and the same unique id."""
    message = await _sendable(reads, form)
    receipt = await reads.admin.send_again(message)
    queue = receipt.queue
    return ResentMessage(
        receipt.message_id, queue.topic, queue.broker_name, queue.queue_id, receipt.queue_offset
    )


async def _sendable(reads: Reads, form: ResendMessage) -> StoredMessage:
    if form.topic in TOPICS_OF_WAITING:
        raise ConfigError(
            f"topic={form.topic} is a system topic: expected the topic of an application"
        )
    return await find(reads, form.topic, form.broker, form.queue, form.offset)


def _message(form: DeliverMessage | ResendMessage) -> str:
    return address(
        "/messages/message",
        topic=form.topic, broker=form.broker, queue=form.queue, offset=form.offset,
    )  # fmt: skip


CHANGES = (
    Change(
        "/messages/deliver", "Deliver a message to a member", DeliverMessage, deliver, Delivered,
        preview=deliverable, previewed=Deliverable, back=_message, seconds=DELIVER_S,
    ),
    Change(
        "/messages/resend", "Send a message again", ResendMessage, resend, ResentMessage,
        preview=resendable, previewed=Resendable, back=_message,
    ),
)  # fmt: skip
