"""Half messages that wait for a decision, half messages that were given up, and their checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from cometmq.client import StoredMessage
from cometmq.client.admin import HalfMessages
from cometmq.client.errors import TopicNotFoundError
from cometmq.console.changes import Change
from cometmq.console.forms import Form
from cometmq.console.pages import Name, Page, PageNumber, Paging, Query, paged
from cometmq.console.reads import Reads
from cometmq.console.stored_messages import (
    MESSAGES_SHOWN,
    MessageRow,
    Rest,
    check_broker_of,
    ranges_of,
    row_of,
    text_of,
)
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.times import now_ms
from cometmq.model.topic import TRANSACTION_DISCARD_TOPIC
from cometmq.protocol.bodies.route import RegisteredBroker

BROKERS_SHOWN = 8
"""Brokers of a page: each takes a request for every 32 half messages and decisions."""
READ_MAX = 1_000
"""Half messages of one broker that a page reads."""
SENDERS_SHOWN = 100


class TransactionsQuery(Query):
    """Which half messages, and which part of the brokers."""

    topic: Name = ""
    group: Name = ""
    page: PageNumber = 1


class BrokerHalfMessages(msgspec.Struct):
    """The half messages of one broker."""

    broker: str
    undecided: int
    unread: int
    """Half messages that were not read, because there are too many."""
    is_exact: bool
    """Whether all decisions were read: otherwise some of the undecided ones may be decided."""
    error: str


class Sender(msgspec.Struct):
    """The undecided half messages of a topic and a producer group."""

    topic: str
    group: str
    undecided: int
    oldest_time_ms: int
    age_ms: int


class HalfMessage(msgspec.Struct):
    """An undecided half message."""

    id: str
    topic: str
    group: str
    sent_time_ms: int
    age_ms: int
    checks: int
    """How often the producer group was asked."""
    row: MessageRow


class Transactions(msgspec.Struct):
    """What waits for a decision on a part of the brokers."""

    paging: Paging
    brokers: list[BrokerHalfMessages]
    senders: list[Sender]
    senders_total: int
    messages: list[HalfMessage]
    """The oldest first."""
    messages_total: int


class DiscardedQuery(Query):
    """Which part of the half messages that were given up."""

    rest: Rest = ""


class Discarded(msgspec.Struct):
    """A half message that its broker has given up."""

    row: MessageRow
    offset_message_id: str
    topic: str
    group: str
    checks: int


class DiscardedMessages(msgspec.Struct):
    """Half messages that brokers have given up, the oldest first."""

    messages: list[Discarded]
    rest: str
    left: int


class ResumeChecks(Form):
    """A half message that its broker has given up."""

    id: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=64,
            description="Broker's id of the message in TRANS_CHECK_MAX_TIME_TOPIC.",
        ),
    ]


class ToResume(msgspec.Struct):
    """A half message that is checked again: its producer group is asked for a decision."""

    message: str
    topic: str
    producer_group: str
    sent_time_ms: int
    broker: str


class Resumed(msgspec.Struct):
    """A half message that is checked again."""

    id: str


async def transactions(reads: Reads, query: TransactionsQuery) -> Transactions:
    """Return the undecided half messages of a part of the masters."""
    shown, paging = paged(await reads.masters(), query.page, BROKERS_SHOWN)

    async def of_broker(broker: RegisteredBroker) -> HalfMessages:
        return await reads.admin.half_messages(broker.name, limit=READ_MAX)

    brokers: list[BrokerHalfMessages] = []
    messages: list[HalfMessage] = []
    now = now_ms()
    for broker, found in zip(shown, await reads.each(shown, of_broker), strict=True):
        if isinstance(found, CometError):
            brokers.append(BrokerHalfMessages(broker.name, 0, 0, False, str(found)))
            continue
        halves = [half_of(each, now) for each in found.messages]
        messages += [
            each
            for each in halves
            if query.topic in ("", each.topic) and query.group in ("", each.group)
        ]
        is_exact = not found.decisions_unread
        brokers.append(BrokerHalfMessages(broker.name, len(halves), found.unread, is_exact, ""))
    messages.sort(key=lambda each: each.sent_time_ms)
    senders = senders_of(messages)
    return Transactions(
        paging=paging,
        brokers=brokers,
        senders=senders[:SENDERS_SHOWN],
        senders_total=len(senders),
        messages=messages[:MESSAGES_SHOWN],
        messages_total=len(messages),
    )


def half_of(message: StoredMessage, now: int) -> HalfMessage:
    """Return a half message as lists show it."""
    properties = message.properties
    checks = properties.get(names.TRANSACTION_CHECK_TIMES, "")
    return HalfMessage(
        id=message.message_id,
        topic=properties.get(names.REAL_TOPIC, ""),
        group=properties.get(names.PGROUP, ""),
        sent_time_ms=message.born_time_ms,
        age_ms=now - message.born_time_ms,
        checks=int(checks) if checks.isdecimal() and len(checks) < 10 else 0,
        row=row_of(message),
    )


def senders_of(messages: Iterable[HalfMessage]) -> list[Sender]:
    """Return the half messages by topic and group, the oldest first."""
    found: dict[tuple[str, str], Sender] = {}
    for each in messages:
        key = each.topic, each.group
        sender = found.setdefault(key, Sender(*key, 0, each.sent_time_ms, each.age_ms))
        sender.undecided += 1
        sender.oldest_time_ms = min(sender.oldest_time_ms, each.sent_time_ms)
        sender.age_ms = max(sender.age_ms, each.age_ms)
    return sorted(found.values(), key=lambda each: (each.oldest_time_ms, each.topic, each.group))


async def discarded(reads: Reads, query: DiscardedQuery) -> DiscardedMessages:
    """Return half messages that brokers have given up after too many checks, or too long."""
    ranges = ranges_of(query.rest, TRANSACTION_DISCARD_TOPIC) if query.rest else None
    try:
        page = await reads.admin.messages_by_time(
            TRANSACTION_DISCARD_TOPIC, limit=MESSAGES_SHOWN, ranges=ranges
        )
    except TopicNotFoundError:  # the first one creates it
        return DiscardedMessages([], "", 0)
    now = now_ms()
    rows = []
    for each in page.messages:
        half = half_of(each, now)
        rows.append(
            Discarded(half.row, each.offset_message_id, half.topic, half.group, half.checks)
        )
    return DiscardedMessages(rows, text_of(page.rest), sum(map(len, page.rest.values())))


async def _given_up(reads: Reads, form: ResumeChecks) -> StoredMessage:
    """Return the message of a form.

    Raises:
        ConfigError, NotFoundError: it is no such message.
    """
    await check_broker_of(reads, form.id)
    message = await reads.admin.message_at(form.id)
    if message.topic != TRANSACTION_DISCARD_TOPIC:
        raise ConfigError(
            f"id={form.id} is a message of {message.topic}: expected one of"
            f" {TRANSACTION_DISCARD_TOPIC}, which the page of transactions lists"
        )
    return message


async def to_resume(reads: Reads, form: ResumeChecks) -> ToResume:
    """Return what `resume` would do."""
    message = await _given_up(reads, form)
    half = half_of(message, now_ms())
    return ToResume(half.id, half.topic, half.group, half.sent_time_ms, message.broker_name)


async def resume(reads: Reads, form: ResumeChecks) -> Resumed:
    """Let the broker check the half message again."""
    await _given_up(reads, form)
    await reads.admin.resume_checks(form.id)
    return Resumed(form.id)


PAGES = (
    Page(
        "/transactions", "Transactions", "transactions/transactions.html", TransactionsQuery,
        Transactions, transactions, is_tab=True,
    ),
    Page(
        "/transactions/discarded", "Half messages given up", "transactions/discarded.html",
        DiscardedQuery, DiscardedMessages, discarded,
    ),
)  # fmt: skip
RESUME = Change(
    "/transactions/resume", "Check a half message again", ResumeChecks, resume, Resumed,
    preview=to_resume, previewed=ToResume, back=lambda form: "/transactions/discarded",
)  # fmt: skip
