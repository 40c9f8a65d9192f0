"""What requests may contain: names, messages, times.

Source: GrpcValidator and SendMessageActivity, RocketMQ 5.3.3.
"""

from __future__ import annotations

import re
import time
from typing import Any

from cometmq.model import property_names as names
from cometmq.model.topic import is_system_topic
from cometmq.proxy.status import Code, StatusError

NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_CHARS_MAX, GROUP_CHARS_MAX = 127, 255
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
BODY_BYTES_MAX = 4 * 1024 * 1024
PROPERTIES_MAX, PROPERTIES_BYTES_MAX = 128, 16 * 1024
MESSAGE_GROUP_BYTES_MAX = 63
DELAY_S_MAX = 24 * 3600
RECOVERY_S_MAX = 3600
INVISIBLE_S_MIN, INVISIBLE_S_MAX = 10.0, 12 * 3600.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def topic_of(resource: Any) -> str:
    """Return the name of a topic.

    Raises:
        StatusError: it is none.
    """
    name = _name_of(resource, "topic", TOPIC_CHARS_MAX, Code.ILLEGAL_TOPIC)
    if is_system_topic(name):
        raise StatusError(Code.ILLEGAL_TOPIC, f"topic {name}: expected one of an application")
    return name


def group_of(resource: Any) -> str:
    """Return the name of a consumer group.

    Raises:
        StatusError: it is none.
    """
    name = _name_of(resource, "group", GROUP_CHARS_MAX, Code.ILLEGAL_CONSUMER_GROUP)
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, f"group {name}: expected one of your own")
    return name


def _name_of(resource: Any, what: str, chars_max: int, code: Code) -> str:
    name = str(resource.name)
    if not name.strip() or len(name) > chars_max or NAME.fullmatch(name) is None:
        raise StatusError(
            code,
            f"{what} {name[:chars_max]!r}: expected 1 to {chars_max} of the characters"
            " %|a-zA-Z0-9_-",
        )
    return name


def check_message(message: Any) -> None:
    """Check a message that is sent.

    Raises:
        StatusError: a part of it is not allowed.
    """
    system = message.system_properties
    if not message.body:
        raise StatusError(Code.MESSAGE_BODY_EMPTY, "the body is empty: expected a byte or more")
    if len(message.body) > BODY_BYTES_MAX:
        raise StatusError(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the body has {len(message.body)} bytes: expected {BODY_BYTES_MAX} at most",
        )
    size = _check_properties(message.user_properties)
    if system.HasField("tag") and system.tag:
        _check_text(system.tag, Code.ILLEGAL_MESSAGE_TAG, "tag", forbidden="|")
        size += len(system.tag.encode())
    for key in system.keys:
        if key:
            _check_text(key, Code.ILLEGAL_MESSAGE_KEY, "key")
        size += len(key.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} bytes: expected {PROPERTIES_BYTES_MAX} at most",
        )
    if not system.message_id.strip():
        raise StatusError(Code.ILLEGAL_MESSAGE_ID, "the message has no message_id")
    recovery = system.orphaned_transaction_recovery_duration
    if recovery.seconds > RECOVERY_S_MAX:
        raise StatusError(
            Code.BAD_REQUEST,
            f"orphaned_transaction_recovery_duration of {recovery.seconds} s: expected"
            f" {RECOVERY_S_MAX} at most",
        )
    if system.HasField("delivery_timestamp"):
        ahead = system.delivery_timestamp.seconds - time.time()
        if ahead > DELAY_S_MAX:
            raise StatusError(
                Code.ILLEGAL_DELIVERY_TIME,
                f"delivery_timestamp is {ahead:.0f} s ahead: expected {DELAY_S_MAX} at most",
            )
    if system.HasField("message_group"):
        _check_text(system.message_group, Code.ILLEGAL_MESSAGE_GROUP, "message group")
        if len(system.message_group.encode()) > MESSAGE_GROUP_BYTES_MAX:
            raise StatusError(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"the message group has {len(system.message_group.encode())} bytes: expected"
                f" {MESSAGE_GROUP_BYTES_MAX} at most",
            )


def _check_properties(properties: Any) -> int:
    if len(properties) > PROPERTIES_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(properties)} properties: expected {PROPERTIES_MAX} at most",
        )
    size = 0
    for each in properties:
        if each.key in names.RESERVED:
            raise StatusError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {each.key} is reserved: expected another name",
            )
        if _CONTROL.search(each.key) or _CONTROL.search(each.value):
            raise StatusError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {each.key!r:.100} has a control character",
            )
        size += len(each.key.encode()) + len(each.value.encode())
    return size


def _check_text(text: str, code: Code, what: str, forbidden: str = "") -> None:
    if not text.strip() or _CONTROL.search(text) or (forbidden and forbidden in text):
        raise StatusError(
            code, f"the {what} {text!r:.100}: expected a text without control characters"
            + (f" and without {forbidden}" if forbidden else ""),
        )  # fmt: skip


def check_invisible(seconds: float, least: float = INVISIBLE_S_MIN) -> None:
    """Check an invisible time.

    Raises:
        StatusError: it is too short or too long.
    """
    if not least <= seconds <= INVISIBLE_S_MAX:
        raise StatusError(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"an invisible time of {seconds:g} s: expected {least:g} to {INVISIBLE_S_MAX:g}",
        )
