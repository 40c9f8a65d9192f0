"""Values as RocketMQ's tool prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from cometmq.client.receipt import SendReceipt
from cometmq.model.group import GroupRetryPolicy, SubscriptionGroupConfig
from cometmq.model.message import StoredMessage
from cometmq.model.property_names import KEYS
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import Perm, TopicConfig
from cometmq.protocol.lazy_record import body_or_stored

FILE_NAME_CHARS_MAX: Final = 255


def to_seconds(time_ms: int) -> str:
    """Return a local time to the second."""
    return f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S}"


def to_ms(time_ms: int) -> str:
    """Return a local time to the millisecond."""
    return f"{datetime.fromtimestamp(time_ms // 1000):%Y-%m-%d %H:%M:%S},{time_ms % 1000:03}"


def digits(time_ms: int) -> str:
    """Return a local time to the millisecond as digits alone."""
    return f"{datetime.fromtimestamp(time_ms // 1000):%Y%m%d%H%M%S}{time_ms % 1000:03}"


def lower(value: bool) -> str:
    """Return ``true`` or ``false``."""
    return "true" if value else "false"


def java(value: object) -> str:
    """Return a value as Java's ``toString`` does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return lower(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{java(key)}={java(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(java, value)) + "]"
    return str(value)


def fields(values: Mapping[str, object]) -> str:
    """Return names and values with commas between them."""
    return ", ".join(f"{name}={java(value)}" for name, value in values.items())


def perm(bits: int) -> str:
    """Return permissions as letters, such as ``RW-``."""
    letters = ((Perm.READ, "R"), (Perm.WRITE, "W"), (Perm.INHERIT, "X"))
    return "".join(letter if bits & bit else "-" for bit, letter in letters)


def queue(found: MessageQueue) -> str:
    """Return a queue."""
    return (
        f"MessageQueue [topic={found.topic}, brokerName={found.broker_name},"
        f" queueId={found.queue_id}]"
    )


def topic_config(config: TopicConfig, *, is_4: bool) -> str:
    """Return the settings of a topic."""
    shown = members(config) | {"perm": perm(config.perm)}
    if is_4:
        del shown["attributes"]
    return f"TopicConfig [{fields(shown)}]"


ONLY_IN_5 = {
    *("consumeMessageOrderly", "groupRetryPolicy", "groupSysFlag", "consumeTimeoutMinute"),
    *("subscriptionDataSet", "attributes"),
}
"""Settings of groups that RocketMQ 4.9 does not have."""


def group_settings(config: SubscriptionGroupConfig, *, is_4: bool) -> dict[str, object]:
    """Return the settings of a group by name."""
    shown = members(config) | {"groupRetryPolicy": _retry_policy(config.group_retry_policy)}
    return {name: value for name, value in shown.items() if not (is_4 and name in ONLY_IN_5)}


def group_config(config: SubscriptionGroupConfig, *, is_4: bool) -> str:
    """Return the settings of a group."""
    shown = fields(group_settings(config, is_4=is_4))
    return f"SubscriptionGroupConfig [{shown}]" if is_4 else f"SubscriptionGroupConfig{{{shown}}}"


def _retry_policy(policy: GroupRetryPolicy) -> str:
    exponential, customized = policy.exponential_retry_policy, policy.customized_retry_policy
    shown = {
        "type": policy.type,
        "exponentialRetryPolicy": exponential
        and f"ExponentialRetryPolicy{{{fields(members(exponential))}}}",
        "customizedRetryPolicy": customized
        and f"CustomizedRetryPolicy{{next={java(customized.next)}}}",
    }
    return f"GroupRetryPolicy{{{fields(shown)}}}"


def receipt(sent: SendReceipt, *, is_4: bool) -> str:
    """Return the receipt of a send."""
    shown: dict[str, object] = {
        "sendStatus": sent.status.value,
        "msgId": sent.message_id,
        "offsetMsgId": sent.offset_message_id,
        "messageQueue": queue(sent.queue),
        "queueOffset": sent.queue_offset,
    }
    if not is_4:
        shown["recallHandle"] = sent.recall_handle
    return f"SendResult [{fields(shown)}]"


def message(found: StoredMessage) -> str:
    """Return a message in one line."""
    head = {
        "brokerName": found.broker_name,
        "queueId": found.queue_id,
        "storeSize": found.size_bytes,
        "queueOffset": found.queue_offset,
        "sysFlag": found.sys_flag,
        "bornTimestamp": found.born_time_ms,
        "bornHost": f"/{found.born_host}",
        "storeTimestamp": found.store_time_ms,
        "storeHost": f"/{found.store_host}",
        "msgId": found.offset_message_id,
        "commitLogOffset": found.log_offset,
        "bodyCRC": found.body_crc,
        "reconsumeTimes": found.reconsume_times,
        "preparedTransactionOffset": found.prepared_offset,
    }
    signed = [byte - 256 if byte > 127 else byte for byte in body_or_stored(found)]
    return (
        f"MessageExt [{fields(head)}, toString()=Message{{topic='{found.topic}',"
        f" flag={found.flag}, properties={java(found.properties)}, body={java(signed)},"
        " transactionId='null'}]"
    )


def keys(found: StoredMessage) -> str:
    """Return the keys of a message as they were sent."""
    return found.properties.get(KEYS, "null")


def pretty(value: Any, depth: int = 0) -> str:
    """Return JSON as RocketMQ's tool indents it: sets are tuples here, and stay in one line."""
    inner = "\n" + "\t" * (depth + 1)
    outer = "\n" + "\t" * depth
    if isinstance(value, Mapping) and value:
        bare = not isinstance(next(iter(value)), str)
        members = [
            f"{key if bare else json.dumps(key, ensure_ascii=False)}:{pretty(each, depth + 1)}"
            for key, each in value.items()
        ]
        if bare:
            return "{" + ",".join(members) + outer + "}"
        return "{" + inner + ("," + inner).join(members) + outer + "}"
    if isinstance(value, list) and value:
        return (
            "["
            + inner
            + ("," + inner).join(pretty(each, depth + 1) for each in value)
            + outer
            + "]"
        )
    if isinstance(value, tuple):
        return "[" + ",".join(pretty(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def bean(value: Any) -> Any:
    """Return a struct as JSON values: names in order, without members that are None."""
    if isinstance(value, msgspec.Struct):
        members = {
            field.encode_name: bean(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
        }
        return {name: members[name] for name in sorted(members) if members[name] is not None}
    if isinstance(value, Mapping):
        return {key: bean(each) for key, each in value.items()}
    return [bean(each) for each in value] if isinstance(value, list) else value


def columns(form: str, rows: Iterable[tuple[object, ...]]) -> None:
    """Print rows in columns."""
    for row in rows:
        print(form % row)


def members(value: msgspec.Struct) -> dict[str, Any]:
    """Return the members of a struct by their names in JSON."""
    return {each.encode_name: getattr(value, each.name) for each in msgspec.structs.fields(value)}


def file_name(text: str) -> str:
    """Return the name of a file for an id that a client has chosen: it leaves no folder."""
    name = quote(text, safe="@#:")[:FILE_NAME_CHARS_MAX]
    return name if name.strip(".") else f"%{name}"
