"""The messages have the numbers, the choices and the presence of RocketMQ's description."""

from __future__ import annotations

import pytest

from cometmq.proxy.messages import TYPES


def test_fields_have_their_numbers_on_the_wire() -> None:
    made = TYPES["SystemProperties"](message_id="7", keys=["a", "b"], queue_offset=1)
    assert made.SerializeToString() == b"\x12\x01a\x12\x01b\x1a\x017\x70\x01"
    assert (
        TYPES["MessageQueue"](accept_message_types=[1, 2]).SerializeToString() == b"*\x02\x01\x02"
    )
    command = TYPES["TelemetryCommand"]()
    command.recover_orphaned_transaction_command.transaction_id = "t"
    assert command.SerializeToString() == b"*\x03\x12\x01t"


def test_absence_is_visible_where_it_has_a_meaning() -> None:
    system = TYPES["SystemProperties"]()
    assert not system.HasField("tag")
    system.tag = ""
    assert system.HasField("tag")
    assert system.SerializeToString() == b"\n\x00"
    request = TYPES["ReceiveMessageRequest"]()
    assert not request.HasField("long_polling_timeout")
    with pytest.raises(ValueError, match="auto_renew"):
        request.HasField("auto_renew")


def test_one_of_a_choice_is_set_at_a_time() -> None:
    settings = TYPES["Settings"]()
    assert settings.WhichOneof("content") is None
    settings.publishing.max_body_size = 1
    settings.subscription.fifo = True
    assert settings.WhichOneof("content") == "subscription"


def test_a_map_is_a_list_of_entries() -> None:
    message = TYPES["Message"].FromString(b"\x12\x06\n\x01k\x12\x01v")
    assert [(each.key, each.value) for each in message.user_properties] == [("k", "v")]


def test_fields_of_newer_clients_are_ignored() -> None:
    assert TYPES["HeartbeatRequest"].FromString(b"\x10\x02\xfa\x07\x01x").client_type == 2
