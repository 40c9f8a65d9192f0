"""The properties of a dead letter: its first topic, its retries and its last error.

A dead letter is in ``%DLQ%group`` and keeps the unique id of its message. A copy in the retry topic
has the same properties. Where a message is sent again, it begins without them.

Source: SendMessageProcessor.consumerSendMsgBack and DefaultMQPushConsumerImpl.sendMessageBack,
RocketMQ 5.3. RocketMQ has no property for the error; our client adds those that begin with CONSUME.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.model import property_names as names

CONSUME_ERROR: Final = "CONSUME_ERROR"
"""Property: the error that the last handler raised, as ``module.Class: text``."""
CONSUME_ERROR_TIME_MS: Final = "CONSUME_ERROR_TIME_MS"
"""Property: when it was raised, in ms since 1970."""
CONSUME_RETRIES: Final = "CONSUME_RETRIES"
"""Property: the retries of a message that became a dead letter before its last retry."""
SENT_AGAIN: Final = "ORIGIN_MSG_ID"
"""Property of a message that was sent again: the id that it had before."""
RESENT_FROM: Final = "DLQ_RESENT_FROM"
"""Property of a dead letter that was sent again: its topic, broker, queue and queue offset."""
RESENT_TIME_MS: Final = "DLQ_RESENT_TIME_MS"
"""Property of a dead letter that was sent again: when, in ms since 1970."""

ORIGINAL_TOPIC: Final = (names.RETRY_TOPIC, names.DLQ_ORIGIN_TOPIC)
"""Properties with the topic of the first send; the first that is there counts. If the message was
retried, brokers of RocketMQ 5 write the retry topic into the second."""
ORIGINAL_ID: Final = (names.ORIGIN_MESSAGE_ID, names.DLQ_ORIGIN_MESSAGE_ID)
"""Properties with an id of the message that was first delivered; the first that is there counts."""

OF_DELIVERY: Final = frozenset(
    {
        names.TRAN_MSG,
        names.DELAY,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.CONSUME_START_TIME,
        names.REAL_TOPIC,
        names.REAL_QID,
        names.POP_CK,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_OUT_MS,
    }
)
"""Properties of one delivery, which a copy of the message must not have."""
OF_DEATH: Final = frozenset(
    {
        *ORIGINAL_TOPIC,
        *ORIGINAL_ID,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.DELAY,
        names.REAL_TOPIC,
        names.REAL_QID,
        CONSUME_ERROR,
        CONSUME_ERROR_TIME_MS,
        CONSUME_RETRIES,
    }
)
"""Properties of retries and of the dead letter, which a message sent again must not have."""


def first_of(properties: Mapping[str, str], wanted: Iterable[str]) -> str | None:
    """Return the value of the first of these properties that is there, or None."""
    return next((properties[name] for name in wanted if properties.get(name)), None)
