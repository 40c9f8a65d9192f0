"""Headers of requests whose fields have a value if a test does not name them."""

from __future__ import annotations

from typing import Any, TypeVar

from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.protocol.headers.send import SendMessageV2Request

H = TypeVar("H", bound=Header)


def send_header(form: type[H] = SendMessageV2Request, /, **fields: Any) -> H:  # type: ignore[assignment]
    """The header of a send in one of its forms."""
    known = {
        "producer_group": "p", "topic": "t", "default_topic": "TBW102",
        "default_topic_queue_nums": 4, "queue_id": 0, "sys_flag": 0, "born_timestamp": 1,
        "flag": 0, "properties": "",
    }  # fmt: skip
    return form(**known | fields)


def pull_header(queue_offset: int, *, hold_ms: int = 0, **fields: Any) -> PullMessageRequest:
    """The header of a pull that is held for a time."""
    known = {
        "consumer_group": "c", "topic": "t", "queue_id": 0, "max_msg_nums": 32,
        "sys_flag": 4 | (2 if hold_ms else 0), "commit_offset": 0, "subscription": "*",
        "sub_version": 0, "expression_type": "TAG",
    }  # fmt: skip
    return PullMessageRequest(
        queue_offset=queue_offset, suspend_timeout_millis=hold_ms, **known | fields
    )
