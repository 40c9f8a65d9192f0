"""Changes of topics: create, change, delete, and send a test message.

Only topics of applications: retry and dead-letter topics belong to their groups, system topics to
the brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Literal

import msgspec

from cometmq.client import Message
from cometmq.console.changes import Change, at_each
from cometmq.console.forms import Form
from cometmq.console.pages import Name, NotFoundError, address
from cometmq.console.reads import APPLICATION, Reads
from cometmq.console.topics.page import permission, route_of
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.model.nouns import counted
from cometmq.model.topic import (
    QUEUES_MAX,
    Perm,
    TopicConfig,
)
from cometmq.protocol.codes import ResponseCode

GROUPS_SHOWN = 20
TEXTS_MAX = 100
PERMISSIONS = {
    "read and write": Perm.READ | Perm.WRITE, "read": Perm.READ, "write": Perm.WRITE,
}  # fmt: skip
Permission = Literal["read and write", "read", "write"]
MessageType = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED"]
MESSAGE_TYPE = "message.type"
Queues = Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)]
Texts = Annotated[list[str], msgspec.Meta(max_length=TEXTS_MAX)]


class CreateTopic(Form):
    """A new topic."""

    topic: Annotated[Name, msgspec.Meta(description="At most 127 letters, digits, %, |, - and _.")]
    queues: Annotated[Queues, msgspec.Meta(description="On each broker.")] = 8
    permission: Permission = "read and write"
    ordered: Annotated[
        bool, msgspec.Meta(description="Each key stays in its queue, also while a broker is lost.")
    ] = False
    message_type: Annotated[
        MessageType | None, msgspec.Meta(description="Brokers of 5.0 and later have it.")
    ] = None
    cluster: Annotated[
        Name, msgspec.Meta(description="Only brokers of it; all clusters if it is empty.")
    ] = ""
    brokers: Annotated[
        Texts, msgspec.Meta(description="Names, one in a line; all brokers if there is none.")
    ] = msgspec.field(default_factory=list)


class ChangeTopic(Form):
    """Settings of a topic; a setting without a value stays as it is."""

    topic: Name
    broker: Annotated[
        Name, msgspec.Meta(description="Only there; all brokers of the topic if it is empty.")
    ] = ""
    read_queues: Annotated[
        Queues | None, msgspec.Meta(description="On each broker, for consumers.")
    ] = None
    write_queues: Annotated[
        Queues | None, msgspec.Meta(description="On each broker, for producers.")
    ] = None
    permission: Permission | None = None
    ordered: Literal["yes", "no"] | None = None
    attributes: Annotated[
        Texts,
        msgspec.Meta(description="name=value in each line, for brokers of 5.0; name= removes it."),
    ] = msgspec.field(default_factory=list)


class DeleteTopic(Form):
    """A topic to delete, with all its messages."""

    topic: Name
    broker: Annotated[
        Name, msgspec.Meta(description="Only there; all brokers and name servers if it is empty.")
    ] = ""


class SendMessage(Form):
    """A test message."""

    topic: Name
    body: Annotated[str, msgspec.Meta(min_length=1, extra={"lines": 8})]
    tag: Name = ""
    keys: Annotated[Texts, msgspec.Meta(description="One in a line.")] = msgspec.field(
        default_factory=list
    )
    properties: Annotated[Texts, msgspec.Meta(description="name=value in each line.")] = (
        msgspec.field(default_factory=list)
    )
    delay_seconds: Annotated[
        float,
        msgspec.Meta(ge=0, le=3 * 86_400, description="For brokers with a timer."),
    ] = 0.0
    delay_level: Annotated[
        int, msgspec.Meta(ge=0, le=100, description="Of the broker's levels; 0 for none.")
    ] = 0


class TopicThere(msgspec.Struct):
    """A topic on one broker."""

    broker: str
    before: str
    after: str


class TopicSettings(msgspec.Struct):
    """A topic that was created or changed, or that would be."""

    topic: str
    brokers: list[TopicThere]
    warnings: list[str] = msgspec.field(default_factory=list)


class DeletedAt(msgspec.Struct):
    """The messages that one broker deletes."""

    broker: str
    messages: int


class TopicDeletion(msgspec.Struct):
    """A topic that was deleted, or that would be."""

    topic: str
    messages: int
    brokers: list[DeletedAt]
    groups: list[str]
    """Groups that have an offset in it, or a member that subscribes."""
    groups_total: int


class SentMessage(msgspec.Struct):
    """The message as the broker has stored it."""

    topic: str
    broker: str
    queue: int
    offset: int
    id: str
    status: str


async def check_application(reads: Reads, topic: str) -> None:
    """Check that there is a topic, and that it is one of an application.

    Raises:
        NotFoundError: there is none.
        ConfigError: it is a retry, dead-letter or system topic.
    """
    if topic not in await reads.topics():
        reads.forget()  # it may be new
    kind = (await reads.topics()).get(topic)
    if kind is None:
        raise NotFoundError(f"there is no topic {topic}")
    if kind != APPLICATION:
        owner = "the brokers" if kind == "system" else "its group"
        raise ConfigError(
            f"{topic} is a topic of the type {kind}, which belongs to {owner}: expected a topic of"
            " an application; 'cometmq admin topic' changes others"
        )


async def create(reads: Reads, form: CreateTopic) -> TopicSettings:
    """Create a topic."""
    reads.forget()
    await reads.check_name(form.topic)
    chosen = await reads.chosen_masters(form.cluster, form.brokers)
    before = await _brokers_with(reads, form.topic)
    if there := [each.name for each in chosen if each.name in before]:
        raise ConfigError(
            f"topic {form.topic} exists on {', '.join(there)}: change it instead, or name brokers"
            " without it"
        )
    attributes = {MESSAGE_TYPE: form.message_type} if form.message_type else None
    await reads.admin.create_topic(
        form.topic,
        queues=form.queues,
        perm=PERMISSIONS[form.permission],
        ordered=form.ordered,
        brokers=[each.name for each in chosen],
        attributes=attributes,
    )
    made = await reads.admin.topic_configs(form.topic)
    return TopicSettings(
        form.topic,
        [
            TopicThere(name, "-", _text(config))
            for name, config in made.items()
            if name not in before
        ],
    )


async def _brokers_with(reads: Reads, topic: str) -> set[str]:
    """Return the names of the brokers that have a topic."""
    if topic not in await reads.topics():
        return set()
    return {each.broker_name for each in (await route_of(reads, topic)).queue_datas}


def _text(config: TopicConfig) -> str:
    parts = [
        counted(config.read_queue_nums, "read queue"),
        counted(config.write_queue_nums, "write queue"),
        permission(config.perm),
        *(["ordered"] if config.order else []),
        *(f"{name}={value}" for name, value in sorted(config.attributes.items())),
    ]
    return ", ".join(parts)


class _Planned(msgspec.Struct):
    """A change of a topic on one broker."""

    broker: str
    address: str
    before: TopicConfig
    after: TopicConfig
    """It has all attributes, the unchanged ones too."""
    changes: dict[str, str]
    """Changes of attributes, as brokers expect them."""


async def _plan(reads: Reads, form: ChangeTopic) -> list[_Planned]:
    await check_application(reads, form.topic)
    given = {"read_queue_nums": form.read_queues, "write_queue_nums": form.write_queues}
    settings: dict[str, object] = {name: value for name, value in given.items() if value}
    if settings and await reads.admin.is_static_topic(form.topic):
        raise ConfigError(
            f"{form.topic} is a static topic, whose queues belong to no broker: expected no number"
            " of queues"
        )
    if form.ordered:
        settings["order"] = form.ordered == "yes"
    attributes = dict(pairs_of(form.attributes, "attributes", may_be_empty=True))
    if not (settings or attributes or form.permission):
        raise ConfigError("nothing to change: expected a value in one of the fields")
    masters = {each.name: each.address for each in await reads.masters()}
    planned = []
    for name, before in (await reads.admin.topic_configs(form.topic)).items():
        if name not in masters or form.broker not in ("", name):
            continue
        after = msgspec.structs.replace(before, **settings)
        if form.permission:
            after.perm = before.perm & ~6 | PERMISSIONS[form.permission]
        merged = before.attributes | attributes
        after.attributes = {key: value for key, value in merged.items() if value}
        changes = {f"+{key}" if value else f"-{key}": value for key, value in attributes.items()}
        planned.append(_Planned(name, masters[name], before, after, changes))
    if not planned:
        where = f"broker {form.broker}" if form.broker else "a broker with a master"
        raise NotFoundError(f"topic {form.topic} is not on {where}")
    return planned


def pairs_of(
    lines: Iterable[str], field: str, *, may_be_empty: bool = False
) -> list[tuple[str, str]]:
    """Return the names and values of lines.

    Raises:
        ConfigError: a line is not name=value.
    """
    pairs = []
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals or not name.strip() or not (value.strip() or may_be_empty):
            raise ConfigError(f"{field}: {line[:100]!r}: expected name=value")
        pairs.append((name.strip(), value.strip()))
    return pairs


async def preview_change(reads: Reads, form: ChangeTopic) -> TopicSettings:
    """Return the settings before and after, and what consumers could not read any more."""
    planned = await _plan(reads, form)
    warnings = []
    for each in planned:
        if each.after.read_queue_nums < each.before.read_queue_nums:
            stats = await reads.admin.broker_topic_stats(each.address, form.topic)
            unread = sum(
                row.max_offset - row.min_offset
                for queue, row in stats.offset_table.items()
                if queue.queue_id >= each.after.read_queue_nums
            )
            warnings.append(
                f"{each.broker}: consumers no longer read the queues from"
                f" {each.after.read_queue_nums} on, which have {counted(unread, 'message')}. Lower"
                " only the write queues until all groups have consumed them."
            )
        lost = each.before.perm & ~each.after.perm
        warnings += [
            f"{each.broker}: {who} are refused from now on"
            for bit, who in ((Perm.READ, "consumers"), (Perm.WRITE, "producers"))
            if lost & bit
        ]
    return TopicSettings(form.topic, _rows(planned), warnings)


def _rows(planned: Iterable[_Planned]) -> list[TopicThere]:
    return [TopicThere(each.broker, _text(each.before), _text(each.after)) for each in planned]


async def change(reads: Reads, form: ChangeTopic) -> TopicSettings:
    """Change settings of a topic."""
    planned = await _plan(reads, form)
    await at_each(
        {
            each.broker: partial(
                reads.admin.set_topic_config,
                each.address,
                msgspec.structs.replace(each.after, attributes=each.changes),
            )
            for each in planned
        }
    )
    return TopicSettings(form.topic, _rows(planned))


async def preview_deletion(reads: Reads, form: DeleteTopic) -> TopicDeletion:
    """Return what is deleted: messages by broker, and the groups that read them."""
    await check_application(reads, form.topic)
    route = await route_of(reads, form.topic)
    counts = {each.broker_name: 0 for each in route.queue_datas}
    if form.broker and form.broker not in counts:
        raise NotFoundError(f"topic {form.topic} is not on broker {form.broker}")
    groups: set[str] = set()
    for at in route.masters():
        try:
            stats = (await reads.admin.broker_topic_stats(at, form.topic)).offset_table
            groups.update(await reads.admin.broker_groups_of_topic(at, form.topic))
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:  # a name server has it for a while
                raise
            continue
        for queue, row in stats.items():
            count = counts.get(queue.broker_name, 0)
            counts[queue.broker_name] = count + row.max_offset - row.min_offset
    brokers = [
        DeletedAt(name, count)
        for name, count in sorted(counts.items())
        if form.broker in ("", name)
    ]
    return TopicDeletion(
        *(form.topic, sum(each.messages for each in brokers), brokers),
        *(sorted(groups)[:GROUPS_SHOWN], len(groups)),
    )


async def delete(reads: Reads, form: DeleteTopic) -> TopicDeletion:
    """Delete a topic, from all brokers or from one."""
    deleted = await preview_deletion(reads, form)
    if not form.broker:
        await reads.admin.delete_topic(form.topic)
        return deleted
    masters = {each.name: each.address for each in await reads.masters()}
    if form.broker not in masters:
        raise ConfigError(f"broker {form.broker} has no master now: expected one")
    await reads.admin.delete_broker_topic(masters[form.broker], form.topic)
    return deleted


async def send(reads: Reads, form: SendMessage) -> SentMessage:
    """Send a message."""
    await check_application(reads, form.topic)
    if form.delay_seconds and form.delay_level:
        raise ConfigError("delay_seconds and delay_level are given: expected one of them")
    receipt = await reads.admin.send(
        Message(
            form.topic,
            form.body.encode(errors="replace"),
            tags=form.tag or None,
            keys=form.keys,
            properties=dict(pairs_of(form.properties, "properties")),
            delay=form.delay_seconds,
            delay_level=form.delay_level,
        )
    )
    queue = receipt.queue
    return SentMessage(
        *(form.topic, queue.broker_name, queue.queue_id, int(receipt.queue_offset)),
        *(receipt.message_id, receipt.status.value),
    )


def _back(form: CreateTopic | ChangeTopic | SendMessage) -> str:
    return address("/topics/topic", topic=form.topic)


def _message(form: SendMessage, sent: SentMessage) -> tuple[str, str] | None:
    """Return the page of the message; a delayed one is not in its topic yet."""
    if form.delay_seconds or form.delay_level:
        return None
    return "Show the message", address(
        "/messages/message",
        topic=sent.topic, broker=sent.broker, queue=sent.queue, offset=sent.offset,
    )  # fmt: skip


CHANGES = (
    Change("/topics/create", "Create a topic", CreateTopic, create, TopicSettings, back=_back),
    Change(
        "/topics/change", "Change the topic", ChangeTopic, change, TopicSettings, back=_back,
        preview=preview_change, previewed=TopicSettings,
    ),
    Change(
        "/topics/delete", "Delete the topic", DeleteTopic, delete, TopicDeletion,
        preview=preview_deletion, previewed=TopicDeletion,
    ),
    Change(
        "/topics/send", "Send a message", SendMessage, send, SentMessage, back=_back,
        following=_message,
    ),
)  # fmt: skip
