"""The role of a broker in replication, and the master that it follows."""

from __future__ import annotations

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.role import Role
from cometmq.model.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "broker_id", "is_slave", "is_sync_master"),
    [
        ("ASYNC_MASTER", 0, False, False),
        ("SYNC_MASTER", 0, False, True),
        ("SLAVE", 3, True, False),
    ],
)
def test_a_role(name: str, broker_id: int, is_slave: bool, is_sync_master: bool) -> None:
    role = Role(name, broker_id)
    assert (role.name, role.broker_id) == (name, broker_id)
    assert (role.is_slave, role.is_sync_master) == (is_slave, is_sync_master)


@pytest.mark.parametrize(
    ("name", "broker_id", "reason"),
    [
        ("SLAVE", 0, "brokerId=0 with brokerRole=SLAVE: expected 1 or more"),
        ("ASYNC_MASTER", 1, "brokerId=1 with brokerRole=ASYNC_MASTER: a master has brokerId=0"),
        ("SYNC_MASTER", 2, "brokerId=2 with brokerRole=SYNC_MASTER: a master has brokerId=0"),
    ],
)
def test_an_id_that_does_not_belong_to_the_role_is_refused(
    name: str, broker_id: int, reason: str
) -> None:
    for make in (
        lambda: Role(name, broker_id),
        lambda: BrokerSettings(broker_role=name, broker_id=broker_id),
        lambda: Role().change(name, broker_id),
    ):
        with pytest.raises(ConfigError, match=reason):
            make()


def test_listeners_are_called_in_their_order_and_only_for_a_change() -> None:
    role = Role()
    called = []
    role.on_change(lambda: called.append(("first", role.is_slave)))
    role.on_change(lambda: called.append(("second", role.is_slave)))
    role.change("SLAVE", 1)
    role.change("SLAVE", 1)
    role.change("SYNC_MASTER", 0)
    assert called == [("first", True), ("second", True), ("first", False), ("second", False)]


def test_a_refused_change_leaves_the_role_as_it_is() -> None:
    role = Role("SLAVE", 2)
    role.on_change(lambda: pytest.fail("nothing has changed"))
    with pytest.raises(ConfigError):
        role.change("SLAVE", 0)
    assert (role.name, role.broker_id, role.is_slave) == ("SLAVE", 2, True)


def test_addresses_of_the_master_stay_until_others_are_known() -> None:
    role = Role("SLAVE", 1)
    followed = []
    role.on_master(lambda: followed.append((role.master_address, role.master_ha_address)))
    role.follow("a:1", "a:2")
    role.follow("", "")
    role.follow("a:1", "a:2")
    role.follow("b:1", "b:2")
    assert followed == [("a:1", "a:2"), ("b:1", "b:2")]


def test_the_ha_address_of_the_settings_has_precedence() -> None:
    role = Role("SLAVE", 1, ha_address="own:2")
    role.follow("a:1", "a:2")
    assert (role.master_address, role.master_ha_address) == ("a:1", "own:2")


def test_name_servers_add_only_where_an_elected_master_sends_its_log() -> None:
    role = Role("SLAVE", 1, is_elected=True)
    followed = []
    role.on_master(lambda: followed.append((role.master_address, role.master_ha_address)))
    role.follow("old:1", "old:2")
    role.follow_elected("new:1")
    role.follow("old:1", "old:2")
    role.follow("new:1", "new:2")
    role.follow_elected("new:1")
    role.follow_elected("")
    assert followed == [("new:1", ""), ("new:1", "new:2"), ("new:1", ""), ("", "")]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "enableControllerMode=true without controllerAddr"),
        ({"controller_addr": ("here",)}, "controllerAddr=here: expected host:port;host:port"),
        (
            {"controller_addr": ("a:1",), "ha_master_address": "b:2"},
            "haMasterAddress=b:2 with enableControllerMode=true",
        ),
        (
            {"controller_addr": ("a:1",), "enable_slave_acting_master": True},
            "enableSlaveActingMaster=true with enableControllerMode=true",
        ),
    ],
)
def test_settings_that_do_not_go_with_a_controller_are_refused(
    settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        BrokerSettings(enable_controller_mode=True, **settings)  # type: ignore[arg-type]


def test_role_and_id_of_the_settings_have_no_effect_with_a_controller() -> None:
    settings = BrokerSettings(
        enable_controller_mode=True, controller_addr=("a:1",), broker_id=-1, broker_role="SLAVE"
    )
    assert settings.broker_id == -1
    with pytest.raises(ConfigError, match="brokerId=-1 with brokerRole=ASYNC_MASTER"):
        BrokerSettings(broker_id=-1)


@pytest.mark.parametrize("address", ["here", "here:", ":1", "a:1;b:2", "a:123456"])
def test_an_ha_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=f"haMasterAddress={address}: expected host:port"):
        BrokerSettings(ha_master_address=address)
