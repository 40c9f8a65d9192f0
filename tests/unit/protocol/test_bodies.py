"""JSON bodies: read forgivingly, written as RocketMQ writes them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.base import Body, InvalidBodyError, decode_body, decode_strictly
from cometmq.protocol.bodies.client import ConsumerRunningInfo
from cometmq.protocol.bodies.common import DataVersion, TopicList
from cometmq.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    GetConsumerStatusBody,
    LockBatchRequestBody,
    OffsetWrapper,
    ResetOffsetBody,
)
from cometmq.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from cometmq.protocol.bodies.pop import (
    BatchAck,
    BatchAckMessageRequestBody,
    QueryAssignmentResponseBody,
)
from cometmq.protocol.bodies.register import RegisterBrokerBody, decode_register_body
from cometmq.protocol.bodies.route import (
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.version import MAPPING_VERSION_MIN

QUEUE = MessageQueue("T", "b", 1)
ROUTE = TopicRouteData(
    broker_datas=[BrokerData(cluster="C/1", broker_name="b", broker_addrs={0: "a:1", 10: "c:1"})],
    queue_datas=[QueueData(broker_name="b", read_queue_nums=8, write_queue_nums=8, perm=6)],
)


@pytest.mark.parametrize(
    "body",
    [
        ROUTE,
        ConsumeStats(offset_table={QUEUE: OffsetWrapper(broker_offset=1)}, consume_tps=0.5),
        ConsumerOffsetSerializeWrapper(offset_table={"T@g": {0: 5, 1: 2**63 - 1}}),
        ResetOffsetBody(offset_table={QUEUE: 42}),
        GetConsumerStatusBody(consumer_table={"c": {QUEUE: 1}}),
        RegisterBrokerBody(filter_server_list=["a:1"]),
        HeartbeatData(
            client_id="c",
            consumer_data_set=[
                ConsumerData(
                    group_name="g",
                    consume_type=ConsumeType.CONSUME_PASSIVELY,
                    message_model=MessageModel.CLUSTERING,
                    subscription_data_set=[SubscriptionData(topic="T", code_set=[-5])],
                )
            ],
        ),
        LockBatchRequestBody(consumer_group="g", client_id="c", mq_set=[QUEUE]),
        BatchAckMessageRequestBody(acks=[BatchAck(topic="T", bit_set=b"\x01\x02")]),
        QueryAssignmentResponseBody(message_queue_assignments=None),
        ConsumerRunningInfo(user_consumer_info={"a": {"b": 1}}, jstack="null"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_body_comes_back(body: Body) -> None:
    assert type(body).decode(body.encode()) == body


def test_a_route_has_bare_numbers_for_old_clients_and_none_for_new_ones() -> None:
    assert b'"brokerAddrs":{0:"a:1",10:"c:1"}' in ROUTE.encode()
    assert b'"brokerAddrs":{"0":"a:1","10":"c:1"}' in ROUTE.encode_strict()
    assert b'"cluster":"C\\/1"' in ROUTE.encode_strict()
    assert TopicRouteData.decode(ROUTE.encode_strict()) == ROUTE


@pytest.mark.parametrize(
    ("topic", "is_plain"),
    [("T", True), ("{7:", False), (",-7:8,", False), ('\\",7:', False), ("7:", True)],
)
def test_bare_numbers_are_read_in_one_step_unless_a_text_looks_like_them(
    topic: str, is_plain: bool
) -> None:
    """Names are as a hostile peer may send them."""
    body = ConsumerOffsetSerializeWrapper(offset_table={f"{topic}@g": {0: 5, 12: -1}})
    data = body.encode()
    assert b"{0:5,12:-1}" in data
    assert (decode_strictly(ConsumerOffsetSerializeWrapper, data) == body) == is_plain
    assert ConsumerOffsetSerializeWrapper.decode(data) == body


def test_a_map_by_queue_has_bare_objects_for_keys() -> None:
    assert ResetOffsetBody(offset_table={QUEUE: 42}).encode() == (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:42}}'
    )


def test_a_map_by_queue_may_come_with_texts_for_keys() -> None:
    text = b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":42}}'
    assert ResetOffsetBody.decode(text).offset_table == {QUEUE: 42}


def test_a_heartbeat_as_other_clients_write_it_is_read() -> None:
    text = b"""{'client_id': 'c', consumerdataset: [{groupName: 7, consumeType: 1,
        messageModel: "CLUSTERING", consumeFromWhere: 4, subscriptionDataSet: [
        {topic: "T", subVersion: "12", codeSet: ["5"], classFilterMode: "true", strange: {}}]}],
        heartbeatFingerprint: null}"""

    found = HeartbeatData.decode(text)

    assert found.client_id == "c"
    assert found.producer_data_set == []
    assert found.heartbeat_fingerprint == 0
    (consumer,) = found.consumer_data_set
    assert (consumer.group_name, consumer.consume_type) == ("7", "CONSUME_PASSIVELY")
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    (wanted,) = consumer.subscription_data_set
    assert (wanted.sub_version, wanted.code_set, wanted.class_filter_mode) == (12, [5], True)


def test_a_subscription_that_two_groups_share_is_read_in_both() -> None:
    text = b"""{"clientID":"c","consumerDataSet":[
        {"groupName":"a","subscriptionDataSet":[{"topic":"T","subString":"x"}]},
        {"groupName":"b","subscriptionDataSet":[
            {"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}]}"""

    groups = HeartbeatData.decode(text).consumer_data_set

    assert groups[0].subscription_data_set == groups[1].subscription_data_set
    assert groups[1].subscription_data_set[0].sub_string == "x"


def test_an_unknown_name_of_an_enum_is_none() -> None:
    found = HeartbeatData.decode(b'{"consumerDataSet":[{"consumeType":"CONSUME_BY_MAGIC"}]}')
    assert found.consumer_data_set[0].consume_type is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{",
        b"\xff\xfe",
        b'{"consumerDataSet":null}',
        b'{"consumerDataSet":{}}',
        b'{"consumerDataSet":[null]}',
        b'{"consumerDataSet":[{"consumeType":9}]}',
        b'{"heartbeatFingerprint":"many"}',
        b'{"heartbeatFingerprint":[]}',
        b'{"withoutSub":[]}',
    ],
)
def test_what_is_no_heartbeat_is_code_1(data: bytes) -> None:
    with pytest.raises(InvalidBodyError) as refusal:
        HeartbeatData.decode(data)
    assert refusal.value.code == 1
    assert "HeartbeatData" in refusal.value.remark


def test_bits_must_be_base64() -> None:
    with pytest.raises(InvalidBodyError):
        BatchAckMessageRequestBody.decode(b'{"acks":[{"b":"#"}]}')


def test_nouns_of_the_model_are_bodies_too() -> None:
    found = decode_body(SubscriptionGroupConfig, b'{groupName:"g",retryMaxTimes:"3"}')

    assert (found.group_name, found.retry_max_times, found.consume_enable) == ("g", 3, True)


def test_absent_members_do_not_travel() -> None:
    assert TopicList(topic_list=["null"]).encode() == b'{"topicList":["null"]}'
    assert QueryAssignmentResponseBody().encode() == b"{}"


def test_the_next_version_differs() -> None:
    version = DataVersion(timestamp=5, counter=3).next(now_ms=9)
    assert version == DataVersion(timestamp=9, counter=4)
    assert version.next(9, state_version=2) == DataVersion(state_version=2, timestamp=9, counter=5)


def registration(**mapping: Any) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            data_version=DataVersion(timestamp=1, counter=2),
            topic_config_table={
                "T": TopicConfig(topic_name="T", perm=4, attributes={"message.type": "FIFO"}),
                "U": TopicConfig(topic_name="U", read_queue_nums=1),
            },
            **mapping,
        ),
        filter_server_list=["a:1"],
    )


def deflated(body: RegisterBrokerBody, version: int) -> bytes:
    """The body in the deflated form that a broker of ``version`` sends."""
    wrapper = body.topic_config_serialize_wrapper
    with_mappings = version >= MAPPING_VERSION_MIN
    topics = [
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
        f" {topic.topic_filter_type}"
        + (f" {fastjson.dumps(topic.attributes).decode()}" if with_mappings else "")
        for topic in wrapper.topic_config_table.values()
    ]
    data = sized(wrapper.data_version.encode()) + struct.pack(">i", len(topics))
    data += b"".join(sized(topic.encode()) for topic in topics)
    data += sized(fastjson.dumps(body.filter_server_list))
    if with_mappings:
        mappings = (wrapper.topic_queue_mapping_info_map or {}).values()
        data += struct.pack(">i", len(mappings))
        data += b"".join(sized(fastjson.dumps_odd(mapping)) for mapping in mappings)
    return zlib.compress(data)


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_a_deflated_registration_comes_back() -> None:
    mapping = TopicQueueMappingInfo(topic="S", bname="b", curr_id_map={0: 0})
    body = registration(topic_queue_mapping_info_map={"S": mapping})

    assert decode_register_body(deflated(body, 479), 479) == body


def test_a_deflated_registration_of_an_old_broker_lacks_attributes_and_mappings() -> None:
    found = decode_register_body(deflated(registration(), 407), 407)

    table = found.topic_config_serialize_wrapper.topic_config_table
    assert table["T"] == TopicConfig(topic_name="T", perm=4)
    assert found.topic_config_serialize_wrapper.topic_queue_mapping_info_map is None


def test_the_form_of_a_registration_is_told_by_its_first_byte() -> None:
    body = registration()
    assert decode_register_body(body.encode(), 479) == body


def test_a_deflated_registration_is_refused_when_it_is_cut_anywhere() -> None:
    whole = deflated(registration(), 479)
    plain = zlib.decompress(whole)

    for size in range(1, len(whole)):
        with pytest.raises(InvalidBodyError):
            decode_register_body(whole[:size], 479)
    for size in range(len(plain)):
        with pytest.raises(InvalidBodyError):
            decode_register_body(zlib.compress(plain[:size]), 479)


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"])
def test_a_count_that_cannot_be_is_refused(count: bytes) -> None:
    with pytest.raises(InvalidBodyError, match="a piece of"):
        decode_register_body(zlib.compress(count + b"{}"), 479)
