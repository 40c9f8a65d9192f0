"""What a client id is made of."""

from __future__ import annotations

import os
import re

import pytest

from cometmq.client._connection.identity import client_id, outward_address
from cometmq.client.settings import ClientSettings


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
