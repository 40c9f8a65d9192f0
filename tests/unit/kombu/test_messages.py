"""Which stored messages are read as messages of Kombu."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cometmq.kombu.link import SHORT_BYTES_MAX, SHORT_MAX, ShortQueue
from cometmq.kombu.messages import MalformedMessageError, decode_message, milliseconds_of

MESSAGE = {
    "body": "eA==",
    "content-type": "text/plain",
    "content-encoding": "utf-8",
    "headers": {"task": "t"},
    "properties": {"delivery_info": {}, "body_encoding": "base64"},
}


def changed(**fields: Any) -> bytes:
    return json.dumps(
        {**MESSAGE, **{name.replace("_", "-"): fields[name] for name in fields}}
    ).encode()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "message is list"),
        (b"null", "message is NoneType"),
        (changed(properties=None), "properties is NoneType"),
        (changed(properties={}), "delivery_info is NoneType"),
        (changed(properties={"delivery_info": []}), "delivery_info is list"),
        (changed(headers=[]), "headers is list"),
        (changed(body=1), "body is int"),
        (changed(body="x"), "not base64"),
        (changed(body="\u00e9"), "not base64"),
        (changed(content_type=[]), "content-type is list"),
        (changed(properties={"delivery_info": {}, "body_encoding": "zip"}), "body_encoding='zip'"),
        (changed(properties={"delivery_info": {}, "expires_ms": "x"}), "expires_ms is str"),
    ],
)
def test_another_form_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessageError, match=reason):
        decode_message(body)


def test_a_message_of_kombu_is_read() -> None:
    assert decode_message(json.dumps(MESSAGE).encode()) == MESSAGE


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1" * 5000, "\u0661"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessageError, match="KOMBU_ETA_MS"):
        milliseconds_of({"KOMBU_ETA_MS": text}, "KOMBU_ETA_MS")
    assert milliseconds_of({}, "KOMBU_ETA_MS") == 0


def test_a_short_lived_queue_is_bounded_and_takes_any_priority() -> None:
    queue = ShortQueue(5)
    for priority in (None, "high", [], -1, 99):
        queue.append({"properties": {"priority": priority}})
    assert len(queue) == 5
    for number in range(SHORT_MAX + 10):
        queue.append({"properties": {"priority": 0, "number": number}})
    assert len(queue) == SHORT_MAX
    first = queue.pop()
    assert first is not None
    assert first["properties"]["priority"] == 99
    assert queue.clear() == SHORT_MAX - 1
    for _ in range(10):
        queue.append({"properties": {}}, SHORT_BYTES_MAX // 3)
    assert len(queue) == 3
    assert queue.pop() is not None
    queue.append({"properties": {}}, 2 * SHORT_BYTES_MAX)
    assert len(queue) == 1, "one message is kept, however large"
