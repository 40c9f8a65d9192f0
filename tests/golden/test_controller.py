"""The controller protocol as recorded between RocketMQ 5.3.3 brokers, a tool and a controller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cometmq.protocol import fastjson
from cometmq.protocol.bodies import REQUEST_BODIES, RESPONSE_BODIES, Body, decode_body
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    decode_fields,
    encode_fields,
)
from golden.recordings import VECTORS
from support.frames import one_command

CODES = {
    RequestCode.BROKER_HEARTBEAT,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_REGISTER_BROKER,
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
    RequestCode.CLEAN_BROKER_DATA,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
    RequestCode.CONTROLLER_APPLY_BROKER_ID,
}
ROWS = [
    row
    for line in (VECTORS / "ha/5.3.3-controller" / "frames.jsonl").read_text().splitlines()
    if (row := json.loads(line))["name"].removesuffix("_RESPONSE") in {code.name for code in CODES}
]


@pytest.mark.parametrize("code", sorted(CODES))
def test_each_code_is_recorded(code: RequestCode) -> None:
    assert any(row["name"].startswith(code.name) for row in ROWS)


def test_headers_and_bodies_lose_nothing() -> None:
    for row in ROWS:
        check(row)


def check(row: dict[str, Any]) -> None:
    is_response = row["name"].endswith("_RESPONSE")
    code = RequestCode[row["name"].removesuffix("_RESPONSE")]
    header = (RESPONSE_HEADERS if is_response else REQUEST_HEADERS).get(code)
    body = (RESPONSE_BODIES if is_response else REQUEST_BODIES).get(code)
    command = one_command(bytes.fromhex(row["hex"]))

    if header is not None:
        assert encode_fields(decode_fields(header, command.fields)) == command.fields, row["name"]
    if body is not None and command.body:
        read = decode_body(body, command.body)
        assert isinstance(read, Body)
        if row["from"] == "admin":  # the tool that made the recording writes blanks between fields
            assert fastjson.loads(read.encode()) == fastjson.loads(command.body)
        else:
            assert read.encode() == command.body
