"""What changes the settings of groups: create, change, delete."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from cometmq.console.changes import Change, at_each
from cometmq.console.forms import Form, words
from cometmq.console.pages import Name, NotFoundError, address
from cometmq.console.reads import Reads
from cometmq.model.errors import ConfigError
from cometmq.model.group import GroupRetryPolicy, SubscriptionGroupConfig
from cometmq.model.namespace import is_system_group
from cometmq.model.nouns import counted
from cometmq.model.topic import check_group_name, dlq_topic, retry_topic
from cometmq.protocol.bodies.route import RegisteredBroker

BROKERS_MAX = 100
Retries = Annotated[
    int, msgspec.Meta(ge=-1, le=2**31 - 1, description="Before a message is dead-lettered.")
]
RetryQueues = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
BrokerId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Policy = Annotated[
    str,
    msgspec.Meta(
        max_length=4_096, extra={"lines": 4},
        description="JSON of a retry policy of 5.0, such as"
        ' {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000}}.',
    ),
]  # fmt: skip
Brokers = Annotated[
    list[str],
    msgspec.Meta(
        max_length=BROKERS_MAX, description="Names, one in a line; all brokers if there is none."
    ),
]
OnlyThere = Annotated[
    Name, msgspec.Meta(description="Only there; all brokers that have the group if it is empty.")
]
Switch = Literal["yes", "no"]


class CreateGroup(Form):
    """A new group."""

    group: Annotated[Name, msgspec.Meta(description="At most 255 letters, digits, %, |, - and _.")]
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Retries = 16
    retry_queue_nums: RetryQueues = 1
    broker_id: Annotated[
        BrokerId, msgspec.Meta(description="Of the replica that members read from.")
    ] = 0
    which_broker_when_consume_slowly: Annotated[
        BrokerId, msgspec.Meta(description="Id of the replica for members with a large lag.")
    ] = 1
    retry_policy: Policy = ""
    cluster: Annotated[
        Name, msgspec.Meta(description="Only brokers of it; all clusters if it is empty.")
    ] = ""
    brokers: Brokers = msgspec.field(default_factory=list)


class ChangeGroup(Form):
    """Settings of a group; a setting without a value stays as it is."""

    group: Name
    broker: OnlyThere = ""
    consume_enable: Switch | None = None
    consume_broadcast_enable: Switch | None = None
    consume_from_min_enable: Switch | None = None
    consume_message_orderly: Switch | None = None
    notify_consumer_ids_changed_enable: Switch | None = None
    retry_max_times: Retries | None = None
    retry_queue_nums: RetryQueues | None = None
    broker_id: BrokerId | None = None
    which_broker_when_consume_slowly: BrokerId | None = None
    retry_policy: Policy = ""


class DeleteGroup(Form):
    """A group to delete."""

    group: Name
    broker: OnlyThere = ""
    keep_offsets: Annotated[
        bool, msgspec.Meta(description="For a later group of the same name.")
    ] = False
    keep_topics: Annotated[
        bool, msgspec.Meta(description="Keep the retry topic and the dead letters.")
    ] = False


class SettingThere(msgspec.Struct):
    """A setting of a group on one broker."""

    broker: str
    setting: str
    before: str
    after: str


class ChangedGroup(msgspec.Struct):
    """A group that was created or changed, or that would be."""

    group: str
    settings: list[SettingThere]
    warnings: list[str] = msgspec.field(default_factory=list)


class DeletedTopic(msgspec.Struct):
    """A topic that is deleted with a group."""

    topic: str
    messages: int


class GroupDeletion(msgspec.Struct):
    """A group that was deleted, or that would be."""

    group: str
    members_online: int
    brokers: list[str]
    topics: list[DeletedTopic]
    warnings: list[str]


SETTINGS = (
    "consume_enable", "consume_broadcast_enable", "consume_from_min_enable",
    "consume_message_orderly", "notify_consumer_ids_changed_enable", "retry_max_times",
    "retry_queue_nums", "broker_id", "which_broker_when_consume_slowly",
)  # fmt: skip
POLICY = "group_retry_policy"


def settings_of(form: CreateGroup | ChangeGroup) -> dict[str, Any]:
    """Return the settings that a form has a value for.

    Raises:
        ConfigError: the retry policy cannot be read.
    """
    given = {name: getattr(form, name) for name in SETTINGS}
    found = {
        name: {"yes": True, "no": False}.get(value, value) if isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }
    if form.retry_policy.strip():
        try:
            found[POLICY] = msgspec.json.decode(form.retry_policy, type=GroupRetryPolicy)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(
                f"retry_policy: expected the JSON of a retry policy: {error}"
            ) from None
    return found


def check_own(group: str) -> None:
    """Check that a group is not one of the brokers."""
    if is_system_group(group):
        raise ConfigError(f"{group} is a group of the brokers: expected a group of an application")


async def _brokers_with(reads: Reads, group: str, broker: str) -> list[RegisteredBroker]:
    """Return the masters that have a group, or only the one that was chosen.

    Raises:
        NotFoundError: there is none.
    """
    reads.forget()
    found = [each for each in await reads.brokers_of_group(group) if broker in ("", each.name)]
    if not found:
        where = f"broker {broker}" if broker else "a broker"
        raise NotFoundError(f"there is no group {group} on {where}")
    return found


async def create(reads: Reads, form: CreateGroup) -> ChangedGroup:
    """Create a group."""
    check_group_name(form.group)
    check_own(form.group)
    config = SubscriptionGroupConfig(group_name=form.group, **settings_of(form))
    reads.forget()
    chosen = await reads.chosen_masters(form.cluster, form.brokers)
    before = {each.name for each in await reads.brokers_of_group(form.group)}
    if there := [each.name for each in chosen if each.name in before]:
        raise ConfigError(
            f"group {form.group} exists on {', '.join(there)}: change it instead, or name brokers"
            " without it"
        )
    await at_each(
        {each.name: partial(reads.admin.set_group_config, each.address, config) for each in chosen}
    )
    return ChangedGroup(
        form.group,
        [
            SettingThere(broker.name, words(name), "-", _text(getattr(config, name)))
            for broker in chosen
            for name in (*SETTINGS, POLICY)
        ],
    )


def _text(value: object) -> str:
    is_json = isinstance(value, msgspec.Struct)
    return msgspec.json.encode(value).decode() if is_json else str(value).lower()


async def _plan(
    reads: Reads, form: ChangeGroup
) -> list[tuple[RegisteredBroker, SubscriptionGroupConfig, SubscriptionGroupConfig]]:
    """Return the brokers with the settings before and after."""
    check_own(form.group)
    given = settings_of(form)
    if not given:
        raise ConfigError("nothing to change: expected a value in one of the fields")
    planned = []
    for broker in await _brokers_with(reads, form.group, form.broker):
        before = await reads.admin.group_config(form.group, broker.address)
        if before is not None:
            planned.append((broker, before, msgspec.structs.replace(before, **given)))
    return planned


def _changed(
    form: ChangeGroup,
    planned: list[tuple[RegisteredBroker, SubscriptionGroupConfig, SubscriptionGroupConfig]],
) -> ChangedGroup:
    rows = [
        SettingThere(
            *(broker.name, words(name), _text(getattr(before, name)), _text(getattr(after, name)))
        )
        for broker, before, after in planned
        for name in settings_of(form)
    ]
    warnings = [
        f"{broker.name}: members of the group get no messages any more"
        for broker, before, after in planned
        if before.consume_enable and not after.consume_enable
    ]
    return ChangedGroup(form.group, rows, warnings)


async def preview_change(reads: Reads, form: ChangeGroup) -> ChangedGroup:
    """Return the settings before and after."""
    return _changed(form, await _plan(reads, form))


async def change(reads: Reads, form: ChangeGroup) -> ChangedGroup:
    """Change settings of a group."""
    planned = await _plan(reads, form)
    await at_each(
        {
            broker.name: partial(reads.admin.set_group_config, broker.address, after)
            for broker, _, after in planned
        }
    )
    return _changed(form, planned)


async def preview_deletion(reads: Reads, form: DeleteGroup) -> GroupDeletion:
    """Return what is deleted: brokers, topics with their messages."""
    check_own(form.group)
    brokers = await _brokers_with(reads, form.group, form.broker)
    online = await reads.online(form.group)
    members = len(online.connection_set) if online else 0
    topics = []
    if not (form.keep_topics or form.broker):
        known = await reads.topics()
        for topic in (retry_topic(form.group), dlq_topic(form.group)):
            if topic in known:
                stats = await reads.admin.topic_stats(topic)
                messages = sum(row.max_offset - row.min_offset for row in stats.values())
                topics.append(DeletedTopic(topic, messages))
    warnings = []
    if members:
        warnings.append(
            f"{counted(members, 'member')} online: their next heartbeat creates the group again on"
            " brokers with autoCreateSubscriptionGroup=true. Stop them first."
        )
    if any(each.messages for each in topics):
        warnings.append("Messages that wait for a retry and dead letters are deleted too.")
    if form.broker:
        warnings.append("The retry topic and the dead letters are kept: only one broker is chosen.")
    return GroupDeletion(form.group, members, [each.name for each in brokers], topics, warnings)


async def delete(reads: Reads, form: DeleteGroup) -> GroupDeletion:
    """Delete a group, and its retry topic and dead letters."""
    deleted = await preview_deletion(reads, form)
    forget = partial(reads.admin.delete_group, form.group, keep_offsets=form.keep_offsets)
    await at_each(
        {name: partial(forget, brokers=[name]) for name in deleted.brokers}
        | {each.topic: partial(reads.admin.delete_topic, each.topic) for each in deleted.topics}
    )
    return deleted


def _back(form: CreateGroup | ChangeGroup) -> str:
    return address("/groups/group", group=form.group)


CHANGES = (
    Change("/groups/create", "Create a group", CreateGroup, create, ChangedGroup, back=_back),
    Change(
        "/groups/change", "Change the group", ChangeGroup, change, ChangedGroup, back=_back,
        preview=preview_change, previewed=ChangedGroup,
    ),
    Change(
        "/groups/delete", "Delete the group", DeleteGroup, delete, GroupDeletion,
        preview=preview_deletion, previewed=GroupDeletion,
    ),
)  # fmt: skip
