"""What requests may contain, and the code for what they may not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.proxy.checks import (
    BODY_BYTES_MAX,
    check_invisible,
    check_message,
    group_of,
    topic_of,
)
from cometmq.proxy.messages import TYPES
from cometmq.proxy.status import Code, StatusError


def message(**system: Any) -> Any:
    return TYPES["Message"](
        body=b"x", system_properties=TYPES["SystemProperties"](**{"message_id": "1", **system})
    )


def change(act: Callable[[Any], object]) -> Any:
    made = message()
    act(made)
    return made


def with_properties(count: int, value: str = "v", key: str = "k{}") -> Any:
    made = message()
    for number in range(count):
        made.user_properties.add(key=key.format(number), value=value)
    return made


def test_what_is_allowed_passes() -> None:
    check_message(message(tag="", keys=["", "a b"], message_group="g" * 63))
    check_message(with_properties(128))
    check_message(with_properties(1, "v" * (16 * 1024 - 2)))
    check_message(change(lambda made: setattr(made, "body", b"x" * BODY_BYTES_MAX)))
    past = message()
    past.system_properties.delivery_timestamp.seconds = 1
    check_message(past)
    assert topic_of(TYPES["Resource"](name="%RETRY%a|b-_1")) == "%RETRY%a|b-_1"
    assert group_of(TYPES["Resource"](name="g" * 255)) == "g" * 255
    for seconds in (10, 12 * 3600):
        check_invisible(seconds)
    check_invisible(0, 0)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (change(lambda m: setattr(m, "body", b"")), Code.MESSAGE_BODY_EMPTY),
        (
            change(lambda m: setattr(m, "body", b"x" * (BODY_BYTES_MAX + 1))),
            Code.MESSAGE_BODY_TOO_LARGE,
        ),
        (message(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a\x01"), Code.ILLEGAL_MESSAGE_TAG),
        (message(keys=["a\n"]), Code.ILLEGAL_MESSAGE_KEY),
        (message(message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_group="ü" * 32), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_group=""), Code.ILLEGAL_MESSAGE_GROUP),
        (with_properties(129), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_properties(1, "v" * 16 * 1024), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_properties(1, key="UNIQ_KEY"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_properties(1, "a\x02"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (
            change(
                lambda m: setattr(
                    m.system_properties.delivery_timestamp, "seconds", int(time.time()) + 90_000
                )
            ),
            Code.ILLEGAL_DELIVERY_TIME,
        ),
        (
            change(
                lambda m: setattr(
                    m.system_properties.orphaned_transaction_recovery_duration, "seconds", 3601
                )
            ),
            Code.BAD_REQUEST,
        ),
    ],
    ids=str,
)
def test_what_is_not_allowed_has_its_code(made: Any, code: Code) -> None:
    with pytest.raises(StatusError) as refused:
        check_message(made)
    assert refused.value.code is code


@pytest.mark.parametrize("name", ["", " ", "a b", "ü", "t" * 128, "SCHEDULE_TOPIC_XXXX"])
def test_a_wrong_topic_is_refused(name: str) -> None:
    with pytest.raises(StatusError, match="topic") as refused:
        topic_of(TYPES["Resource"](name=name))
    assert refused.value.code is Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", "g" * 256, "a/b", "CID_RMQ_SYS_TRANS"])
def test_a_wrong_group_is_refused(name: str) -> None:
    with pytest.raises(StatusError, match="group") as refused:
        group_of(TYPES["Resource"](name=name))
    assert refused.value.code is Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("seconds", [9.9, -1, 12 * 3600 + 1])
def test_a_wrong_invisible_time_is_refused(seconds: float) -> None:
    with pytest.raises(StatusError, match="invisible time") as refused:
        check_invisible(seconds)
    assert refused.value.code is Code.ILLEGAL_INVISIBLE_TIME
