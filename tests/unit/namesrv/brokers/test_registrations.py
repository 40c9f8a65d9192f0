"""From a broker's request to a registration: recorded ones, damaged ones, hostile ones."""

from __future__ import annotations

import contextlib
import json
import logging
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.address import check_address
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.namesrv.brokers.registrations import EXPIRY_MS_MAX, read_registration
from cometmq.namesrv.checks import check_name, check_other_address
from cometmq.namesrv.registry import Registration
from cometmq.protocol.headers.base import decode_fields
from cometmq.protocol.headers.namesrv import RegisterBrokerRequest

FRAMES = Path(__file__).parents[3] / "vectors" / "frames"


def header(**changes: Any) -> RegisterBrokerRequest:
    facts: dict[str, Any] = {
        "broker_name": "a",
        "broker_addr": "10.0.0.1:10911",
        "cluster_name": "c",
        "ha_server_addr": "10.0.0.1:10912",
        "broker_id": 0,
    }
    return RegisterBrokerRequest(**(facts | changes))


def body(*topics: str, **changes: Any) -> bytes:
    table = {topic: {"topicName": topic, "readQueueNums": 2} | changes for topic in topics}
    wrapper = {"dataVersion": {"counter": 3, "timestamp": 9}, "topicConfigTable": table}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


def read(
    what: RegisterBrokerRequest | None = None, data: bytes = b"", version: int = 479
) -> Registration:
    return read_registration(what or header(), data, version=version, expiry_ms=120_000)


def recorded(version: str) -> list[tuple[RegisterBrokerRequest, bytes, int]]:
    found = []
    for line in (FRAMES / version / "register.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["name"] == "REGISTER_BROKER":
            frame = bytes.fromhex(record["hex"])
            body_at = 8 + (int.from_bytes(frame[4:8], "big") & 0xFFFFFF)
            head = record["header"]
            fields = decode_fields(RegisterBrokerRequest, head["extFields"])
            found.append((fields, frame[body_at:], head["version"]))
    return found


@pytest.mark.parametrize("release", ["4.9.7", "5.3.3"])
def test_recorded_registrations_of_real_brokers_are_read(release: str) -> None:
    requests = recorded(release)
    assert requests
    for what, data, version in requests:
        found = read(what, data, version)
        assert (found.cluster, found.broker_name, found.broker_id) == (
            "DefaultCluster", "broker-a", 0,
        )  # fmt: skip
        assert found.topics["BenchmarkTest"].read_queue_nums == 1024
        assert found.topics["DefaultCluster"].perm == 7
        assert found.version.timestamp > 0
        assert found.enable_acting_master is (False if release == "5.3.3" else None)


def test_damaged_body_is_refused() -> None:
    data = body("T")
    crc = zlib.crc32(data) & 0x7FFFFFFF
    assert read(header(body_crc32=crc), data).topics
    with pytest.raises(ResponseError) as refused:
        read(header(body_crc32=crc), data.replace(b"T", b"U"))
    assert (refused.value.code, refused.value.remark) == (1, "crc32 not match")


def test_absent_body_means_no_topics_and_version_zero() -> None:
    found = read(data=b"")
    assert (found.topics, found.version.counter, found.version.timestamp) == ({}, 0, 0)


def test_body_of_brokers_before_3_0_11_is_a_bare_table() -> None:
    table = {"dataVersion": {"counter": 1}, "topicConfigTable": {"T": {"topicName": "T"}}}
    assert set(read(data=json.dumps(table).encode(), version=36).topics) == {"T"}


@pytest.mark.parametrize("asked", [None, 0, -5])
def test_broker_without_a_time_of_its_own_gets_the_servers(asked: int | None) -> None:
    assert read(header(heartbeat_timeout_millis=asked)).expiry_ms == 120_000


def test_brokers_time_is_kept_within_a_day() -> None:
    assert read(header(heartbeat_timeout_millis=10_000)).expiry_ms == 10_000
    assert read(header(heartbeat_timeout_millis=2**62)).expiry_ms == EXPIRY_MS_MAX


@pytest.mark.parametrize(
    "bad",
    [
        {"broker_name": ""},
        {"broker_name": "../../etc"},
        {"broker_name": "a b"},
        {"broker_name": "a\n"},
        {"cluster_name": "x" * 513},
        {"broker_addr": "10.0.0.1"},
        {"broker_addr": "10.0.0.1:0"},
        {"broker_addr": "10.0.0.1:65536"},
        {"broker_addr": "10.0.0.1:1;rm"},
        {"broker_addr": "a b:1"},
        {"broker_addr": ":1"},
        {"ha_server_addr": "$(id)"},
        {"zone_name": "a/b"},
        {"broker_id": -2},
        {"broker_id": 2**31},
    ],
)
def test_broker_with_an_illegal_name_or_address_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ResponseError) as refused:
        read(header(**bad), body("T"))
    assert refused.value.code == 1
    assert "refused" in refused.value.remark


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a\0", " ", "t" * 513])
def test_topic_with_an_illegal_name_is_left_out_and_the_others_stay(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert set(read(data=body("T", name)).topics) == {"T"}
    assert "ignored topics" in caplog.text


@pytest.mark.parametrize(
    "bad", [{"readQueueNums": -1}, {"writeQueueNums": 10**9}, {"perm": -1}, {"perm": 4096}]
)
def test_topic_with_counts_no_client_could_bear_is_left_out(bad: dict[str, int]) -> None:
    assert read(data=body("T", **bad)).topics == {}


@pytest.mark.parametrize("name", ["%RETRY%g", "broker.example.org", "话题", "a|b-c_d"])
def test_names_that_brokers_really_use_are_taken(name: str) -> None:
    assert check_name(name, "topic") == name


@pytest.mark.parametrize("address", ["10.0.0.1:1", "host-1.a_b:65535", "[fe80::1%eth0]:9"])
def test_addresses_that_brokers_really_have_are_taken(address: str) -> None:
    assert check_address(address) == address
    assert check_other_address(address) == address


@given(st.text(max_size=30))
def test_whatever_comes_as_a_name_no_part_of_a_path_gets_through(name: str) -> None:
    try:
        check_name(name, "topic")
    except InvalidNameError:
        return
    assert not set(name) & set("/\\\0\n\r\t ")


@given(st.binary(max_size=200))
def test_any_bytes_as_a_body_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ResponseError):  # any other error fails the test
        read(data=data)
