"""Dead letters as rows: the group, the first topic, the times and the last error.

A dead letter is in ``%DLQ%group``; its unique id is that of the message.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from cometmq.model.dead_letter import (
    CONSUME_ERROR,
    CONSUME_RETRIES,
    OF_DEATH,
    ORIGINAL_ID,
    ORIGINAL_TOPIC,
)
from cometmq.model.topic import DLQ_PREFIX


def dead_letters(messages: DataFrame) -> DataFrame:
    """Return the dead letters among messages.

    ``origin_topic`` and ``origin_id`` are the topic and the broker's id of the first send, null if
    the letter has none. ``born`` is when the producer created the message, ``died`` when it was
    stored as a dead letter. ``error`` is the last exception of the handler, which CometMQ's client
    notes. ``properties`` are the application's and others that a message sent again may have.

    Args:
        messages: rows of any source with ``includeProperties``; rows of other topics are left out.
    """
    letters = messages.where(F.col("topic").startswith(DLQ_PREFIX))
    return letters.select(
        F.substring("topic", len(DLQ_PREFIX) + 1, 1000).alias("group"),
        _first_of(ORIGINAL_TOPIC).alias("origin_topic"),
        _first_of(ORIGINAL_ID).alias("origin_id"),
        "msg_id", "tags", "keys", "broker_name", "queue_id", "queue_offset",
        F.col("born_timestamp").alias("born"),
        F.col("store_timestamp").alias("died"),
        F.coalesce(_first_of((CONSUME_RETRIES,)).try_cast("int"), "reconsume_times").alias(
            "retries"
        ),
        _first_of((CONSUME_ERROR,)).alias("error"),
        "body",
        F.map_filter("properties", lambda name, _: ~name.isin(*sorted(OF_DEATH))).alias(
            "properties"
        ),
    )  # fmt: skip


def _first_of(properties: tuple[str, ...]) -> Column:
    return F.coalesce(*(F.col("properties")[name] for name in properties))
