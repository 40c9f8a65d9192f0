"""Client ids and namespaces, against values of RocketMQ's own code."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from cometmq.client._connection.identity import (
    Namespace,
    NamespaceHook,
    client_id,
    namespace_of_endpoint,
    outward_address,
)
from cometmq.client.settings import ClientSettings
from cometmq.model.property_names import RETRY_TOPIC
from cometmq.remoting import OutgoingCall
from unit.client.idempotent.test_consumer import message


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ClientSettings(client_ip="10.0.0.1", instance_name="shop"), "10.0.0.1@shop"),
        (
            ClientSettings(client_ip="10.0.0.1", instance_name="shop", unit_name="east"),
            "10.0.0.1@shop@east",
        ),
        (
            ClientSettings(client_ip="10.0.0.1", instance_name="shop", unit_name=" "),
            "10.0.0.1@shop",
        ),
        (
            ClientSettings(client_ip="10.0.0.1", instance_name="shop", stream=True),
            "10.0.0.1@shop@STREAM",
        ),
        (
            ClientSettings(client_ip="[::1]", instance_name="s", unit_name="east", stream=True),
            "[::1]@s@east@STREAM",
        ),
    ],
)
def test_the_client_id_names_address_instance_unit_and_stream(
    settings: ClientSettings, expected: str
) -> None:
    assert client_id(settings, []) == expected


def test_the_instance_name_default_becomes_process_and_time() -> None:
    settings = ClientSettings(client_ip="10.0.0.1")

    first, second = client_id(settings, []), client_id(settings, [])

    assert re.fullmatch(rf"10\.0\.0\.1@{os.getpid()}#\d+", first)
    assert first != second


def test_the_instance_name_default_is_kept_for_members_that_need_the_same_id_again() -> None:
    assert client_id(ClientSettings(client_ip="10.0.0.1"), [], keep_name=True) == "10.0.0.1@DEFAULT"


def test_a_peer_with_a_name_is_not_looked_up() -> None:
    assert outward_address(["no-such-host.invalid:9876"]) == outward_address([])


def test_an_address_of_this_machine_counts_only_when_there_is_no_way_out() -> None:
    """With a network the address is not a loopback one; without, it is."""
    assert outward_address(["127.0.0.1:9876"]) == outward_address([])


VALUES = Path(__file__).resolve().parents[3] / "vectors" / "values"


def cases() -> list[dict[str, Any]]:
    """The recorded names of both versions; no namespace is empty text here, never null."""
    return [
        case
        for version in ("4.9.7", "5.3.3")
        for case in json.loads((VALUES / version / "misc.json").read_text())["namespaces"]
        if case["namespace"] is not None
    ]


@pytest.mark.parametrize("case", cases())
def test_names_are_wrapped_and_unwrapped_as_java_does(case: dict[str, Any]) -> None:
    namespace = Namespace(case["namespace"])

    assert namespace.wrap_topic(case["resource"]) == case["wrapped"]
    assert namespace.wrap_group(case["resource"]) == case["wrapped"]
    assert namespace.unwrap(case["resource"]) == case["without_given"]


def test_no_namespace_leaves_names_as_they_are() -> None:
    nothing = Namespace()

    assert not nothing
    assert nothing.wrap_topic("a%b") == nothing.unwrap("a%b") == "a%b"
    assert not nothing.owns("a")


def test_a_namespace_owns_its_wrapped_names_alone() -> None:
    shop = Namespace("shop")

    assert shop.owns(shop.wrap_topic("orders"))
    assert shop.owns("%RETRY%shop%g")
    assert not shop.owns("orders")
    assert not shop.owns("shopping%orders")


def test_messages_have_the_topic_they_were_sent_to() -> None:
    sent, again, other = message(), message(), message()
    sent.topic, again.topic, other.topic = "shop%orders", "%RETRY%shop%g", "%RETRY%shop%h"
    again.properties[RETRY_TOPIC] = other.properties[RETRY_TOPIC] = "shop%orders"

    Namespace("shop").unwrap_topics([sent, again, other], retry_topic="%RETRY%shop%g")

    assert [each.topic for each in (sent, again, other)] == ["orders", "orders", "%RETRY%h"]


@pytest.mark.parametrize(
    ("address", "namespace"),
    [
        ("http://MQ_INST_123_abc.mq.example:8080", "MQ_INST_123_abc"),
        ("MQ_INST_123_abc.mq.example:8080", "MQ_INST_123_abc"),
        ("mq.example:9876", ""),
        ("MQ_INST_123.mq.example:9876", ""),
    ],
)
def test_an_endpoint_may_name_the_namespace(address: str, namespace: str) -> None:
    assert namespace_of_endpoint(address) == namespace


def test_the_later_form_goes_beside_each_request_and_leaves_its_fields() -> None:
    call = OutgoingCall(105, {"topic": "orders"}, b"")

    NamespaceHook("shop").before_request("a:1", call)

    assert call.fields == {"topic": "orders", "nsd": "true", "ns": "shop"}
