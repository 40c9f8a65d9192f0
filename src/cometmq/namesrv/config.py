"""Settings of the name server.

Source: NamesrvConfig and NettyServerConfig, RocketMQ 4.9 and 5.3; where both have a setting, the
default is that of 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cometmq.system.settings import setting


def _home(name: str) -> Path:
    return Path.home() / "namesrv" / name


@dataclass(frozen=True)
class NameServerSettings:
    """What can be set on a name server."""

    bind_address: str = setting("127.0.0.1", key="bindAddress")
    """The local address to listen on; ``0.0.0.0`` is every IPv4 address of the machine."""

    listen_port: int = setting(9876, key="listenPort", low=0, high=65535)
    """The TCP port; 0 lets the system choose one."""

    kv_config_path: Path = setting(factory=lambda: _home("kvConfig.json"), key="kvConfigPath")
    """The file that keeps the key-value table. By default ``~/namesrv/kvConfig.json``."""

    config_store_path: Path = setting(
        factory=lambda: _home("namesrv.properties"), key="configStorePath"
    )
    """The properties file that keeps settings changed by a request; the configuration file that
    was given at the start when there was one. By default ``~/namesrv/namesrv.properties``."""

    order_message_enable: bool = setting(False, key="orderMessageEnable", remote=True)
    """Whether routes carry the order configuration of their topic, from the key-value table."""

    return_order_topic_config: bool = setting(
        True, key="returnOrderTopicConfigToBroker", remote=True
    )
    """Whether the answer to a registration carries all order configurations."""

    expiry_scan_ms: int = setting(
        5_000, key="scanNotActiveBrokerInterval", unit="ms", low=10, high=600_000
    )
    """How often brokers that fell silent are looked for."""

    broker_expiry_ms: int = setting(120_000, unit="ms", low=100, high=86_400_000, remote=True)
    """A broker that was silent for longer is taken out of all routes, unless its registration
    asks for another time."""

    supports_acting_master: bool = setting(False, key="supportActingMaster", remote=True)
    """Whether routes show the smallest slave as master where the master is gone and the brokers
    allow it."""

    notify_min_broker_id: bool = setting(False, key="notifyMinBrokerIdChanged", remote=True)
    """Whether the brokers of a group are told when its smallest id changes."""

    lists_all_topics: bool = setting(True, key="enableAllTopicList", remote=True)
    """Whether the list of all topics is given out."""

    lists_topics: bool = setting(True, key="enableTopicList", remote=True)
    """Whether the lists of topics by cluster and of unit topics are given out."""

    deletes_topics_with_registration: bool = setting(
        False, key="deleteTopicWithBrokerRegistration", remote=True
    )
    """Whether a topic that a broker's registration no longer names loses its row of that broker."""

    needs_wait_for_service: bool = setting(False, key="needWaitForService", remote=True)
    """Whether routes are refused at first, until brokers had time to register."""

    service_wait_s: int = setting(
        45, key="waitSecondsForService", unit="s", low=0, high=3600, remote=True
    )
    """How long routes are refused after the start, where they are."""


def files_below(directory: Path) -> dict[str, str]:
    """Return the settings that keep a name server's files in one directory."""
    return {
        "kvConfigPath": str(directory / "kvConfig.json"),
        "configStorePath": str(directory / "namesrv.properties"),
    }
