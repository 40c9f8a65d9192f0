"""Settings of the name server.

Source: NamesrvConfig and NettyServerConfig, RocketMQ 4.9 and 5.3; where both have a setting, the
default is that of 5.3.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.model.errors import ConfigError
from cometmq.system.settings import setting, settings_class


def _home(name: str) -> Path:
    return Path.home() / "namesrv" / name


@settings_class
class NameServerSettings:
    """The settings of a name server."""

    bind_address: str = setting("127.0.0.1", key="bindAddress")
    """The local address to listen on; ``0.0.0.0`` is every IPv4 address of the machine."""

    listen_port: int = setting(9876, key="listenPort", low=0, high=65535)
    """The TCP port; 0 lets the system choose one."""

    kv_config_path: Path = setting(factory=lambda: _home("kvConfig.json"), key="kvConfigPath")
    """The file of the key-value table. Default: ``~/namesrv/kvConfig.json``."""

    config_store_path: Path = setting(
        factory=lambda: _home("namesrv.properties"), key="configStorePath"
    )
    """The properties file for settings that a request changes. Default: the configuration file of
    the start, or ``~/namesrv/namesrv.properties`` without one.
    """

    order_message_enable: bool = setting(False, key="orderMessageEnable", remote=True)
    """Whether routes contain the order configuration of their topic from the key-value table."""

    return_order_topic_config: bool = setting(
        True, key="returnOrderTopicConfigToBroker", remote=True
    )
    """Whether the response to a registration contains all order configurations."""

    expiry_scan_ms: int = setting(
        5_000, key="scanNotActiveBrokerInterval", unit="ms", low=10, high=600_000
    )
    """Interval at which brokers without heartbeats are removed."""

    broker_expiry_ms: int = setting(120_000, unit="ms", low=100, high=86_400_000, remote=True)
    """A broker without a heartbeat for longer than this is removed from all routes, unless its
    registration requests another time.
    """

    supports_acting_master: bool = setting(False, key="supportActingMaster", remote=True)
    """Whether routes show the slave with the smallest id as master if the master is down and the
    brokers allow it.
    """

    notify_min_broker_id: bool = setting(False, key="notifyMinBrokerIdChanged", remote=True)
    """Whether the brokers of a group are notified when their smallest id changes."""

    lists_all_topics: bool = setting(True, key="enableAllTopicList", remote=True)
    """Whether requests for the list of all topics are allowed."""

    lists_topics: bool = setting(True, key="enableTopicList", remote=True)
    """Whether requests for the lists of topics by cluster and of unit topics are allowed."""

    deletes_topics_with_registration: bool = setting(
        False, key="deleteTopicWithBrokerRegistration", remote=True
    )
    """Whether a topic that is missing in a broker's registration is removed for this broker."""

    enable_controller: bool = setting(False, key="enableControllerInNamesrv")
    """Whether ``cometmq namesrv`` runs a controller in the same process, too."""

    controller_config_path: Path | None = setting(None)
    """The configuration file of that controller, as for ``cometmq controller``."""

    needs_wait_for_service: bool = setting(False, key="needWaitForService", remote=True)
    """Whether route requests are refused after the start until brokers had time to register."""

    service_wait_s: int = setting(
        45, key="waitSecondsForService", unit="s", low=0, high=3600, remote=True
    )
    """How long route requests are refused after the start if ``needWaitForService`` is true."""

    def __post_init__(self) -> None:
        """Check what a range cannot say.

        Raises:
            ConfigError: a controller has no configuration file.
        """
        if self.enable_controller and self.controller_config_path is None:
            raise ConfigError(
                "enableControllerInNamesrv=true without controllerConfigPath: expected the"
                " configuration file of the controller"
            )


def files_below(directory: Path) -> dict[str, str]:
    """Return the settings that keep a name server's files in one directory."""
    return {
        "kvConfigPath": str(directory / "kvConfig.json"),
        "configStorePath": str(directory / "namesrv.properties"),
    }
