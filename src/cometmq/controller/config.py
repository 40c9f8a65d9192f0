"""Settings of a controller.

Source: ControllerConfig, RocketMQ 5.3; ``controllerStore`` stands for its settings of DLedger.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.system.settings import setting, settings_class


@settings_class
class ControllerSettings:
    """The settings of a controller."""

    bind_address: str = setting("127.0.0.1", key="bindAddress")
    """The local address to listen on; ``0.0.0.0`` is every IPv4 address of the machine."""

    listen_port: int = setting(9878, key="listenPort", low=0, high=65535)
    """The TCP port; 0 lets the system choose one."""

    controller_ip: str = setting("", key="controllerIP")
    """The address that brokers are given. Default: the listen address, or the address of the
    machine if that is ``0.0.0.0``.
    """

    controller_id: str = setting("", key="controllerDLegerSelfId")
    """The name of this controller in its group. Default: the address that brokers are given."""

    controller_group: str = setting("cometmq", key="controllerDLegerGroup")
    """The group of controllers that share their data in etcd; its keys start with
    ``/cometmq/controllers/`` and this name.
    """

    config_store_path: Path = setting(
        factory=lambda: Path.home() / "controller" / "controller.properties", key="configStorePath"
    )
    """The properties file for settings that a request changes. Default: the configuration file of
    the start, or ``~/controller/controller.properties`` without one.
    """

    elects_unclean: bool = setting(False, key="enableElectUncleanMaster", remote=True)
    """Whether a broker outside of the in-sync set may become master if no member of the set is
    alive. Acknowledged messages that it lacks are lost then.
    """

    expiry_scan_ms: int = setting(
        5_000, key="scanNotActiveBrokerInterval", unit="ms", low=10, high=600_000, remote=True
    )
    """Interval at which brokers without heartbeats are removed."""

    master_scan_ms: int = setting(
        5_000, key="scanInactiveMasterInterval", unit="ms", low=10, high=600_000, remote=True
    )
    """Interval at which broker sets without a living master are looked for."""

    notifies_role_changes: bool = setting(True, key="notifyBrokerRoleChanged", remote=True)
    """Whether brokers are notified of a new master; without it they notice within 5 seconds."""

    lease_s: int = setting(3, key="controllerLeaseSeconds", unit="s", low=2, high=60)
    """How long the lease of the active controller lasts; another one takes over after that."""


@settings_class
class EtcdSettings:
    """How a controller reaches etcd."""

    store: str = setting("etcd://127.0.0.1:2379", key="controllerStore")
    """The etcd that keeps broker ids, in-sync sets and epochs:
    ``etcd://host:port,host:port`` with the members of one cluster.
    """

    trusted: str = setting("", key="controllerStoreTrustCertPath")
    """File of the certificate authorities that verify etcd, PEM; with it connections to etcd use
    TLS.
    """

    certificate: str = setting("", key="controllerStoreCertPath")
    """File of the certificate chain that the controller presents to etcd, PEM."""

    key: str = setting("", key="controllerStoreKeyPath")
    """File of that certificate's private key, PEM."""

    key_password: str = setting("", key="controllerStoreKeyPassword", secret=True)
    """Password of that private key."""

    user: str = setting("", key="controllerStoreUser")
    """The user at etcd. Default: no authentication."""

    password_file: str = setting("", key="controllerStorePasswordFile")
    """File that holds the password of the user; a line end after it is ignored."""
