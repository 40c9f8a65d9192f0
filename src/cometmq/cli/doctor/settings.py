"""Checks of the settings of a server: mistakes, contradictions, risks, and who can read secrets."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cometmq.access.account_settings import AccountSettings
from cometmq.access.signer import credentials_of
from cometmq.access.user_settings import UserSettings
from cometmq.broker.address import broker_address
from cometmq.broker.config import BrokerSettings
from cometmq.broker.role import SLAVE, SYNC_MASTER
from cometmq.cli.doctor.findings import Finding, Level, fine
from cometmq.controller.config import ControllerSettings, EtcdSettings
from cometmq.metrics.config import MetricsSettings
from cometmq.model.errors import ConfigError
from cometmq.model.topic import Perm
from cometmq.namesrv.config import NameServerSettings
from cometmq.remoting import TlsClientSettings, TlsSettings
from cometmq.remoting.ports import reachable_host
from cometmq.remoting.tls_warnings import access_warnings
from cometmq.store import StoreSettings
from cometmq.system.configuration import Configuration

REFERENCE = "see docs/reference/configuration.md"
SECURE = "see docs/howto/secure-a-broker.md"
ACCOUNT_FILES_MAX = 1_000


class Advice(NamedTuple):
    """A contradiction or a risk of settings that are valid one by one."""

    level: Level
    met: str
    expected: str
    action: str


def unreadable(subject: str, problem: ConfigError) -> list[Finding]:
    """Return a finding for each mistake that keeps a server from starting."""
    return [
        Finding(
            "settings", Level.PROBLEM, subject, line, "settings that the server accepts",
            "correct or remove it, and run this again: secrets, certificates and the store are not"
            f" examined before; {REFERENCE}",
        )
        for line in str(problem).splitlines()
    ]  # fmt: skip


def settings(configuration: Configuration, subject: str) -> Iterator[Finding]:
    """Check settings for contradictions and risks."""
    found = [
        Finding("settings", Level.WARNING, subject, f"{key} has no effect here ({value.origin})",
                "settings that have an effect", f"remove it; {REFERENCE}")
        for key, value in sorted(configuration.unused.items())
    ]  # fmt: skip
    for settings_classes, rule in _RULES:
        if all(settings_class in configuration for settings_class in settings_classes):
            advice = rule(configuration)
            found += [
                Finding("settings", each.level, subject, each.met, each.expected, each.action)
                for each in advice
            ]
    yield from found or [fine("settings", subject, "no contradiction and no risk found")]


def _contradictions(configuration: Configuration) -> Iterator[Advice]:
    broker, store = configuration[BrokerSettings], configuration[StoreSettings]
    ratios = (store.disk_used_ratio_max, store.disk_clean_forcibly_ratio, store.disk_warning_ratio)
    if list(ratios) != sorted(ratios):
        yield _contradiction(
            "diskMaxUsedSpaceRatio={}, diskSpaceCleanForciblyRatio={},"
            " diskSpaceWarningLevelRatio={}".format(*ratios),
            "each at least as large as the one before, so that files are deleted before messages"
            " are refused",
        )
    kept_s, window_s = (
        store.file_reserved_hours * 2400,
        store.timer_roll_window_slots * store.timer_precision_ms // 1000,
    )
    if store.timer_wheel_enabled and kept_s < window_s:
        yield _contradiction(
            f"fileReservedTime={store.file_reserved_hours} with"
            f" timerRollWindowSlot={store.timer_roll_window_slots}",
            f"a window of at most {kept_s} s, two thirds of fileReservedTime: timer messages are"
            " stored again before their files are deleted, not later",
        )
    if broker.recall_message_enable and not store.timer_wheel_enabled:
        yield _contradiction(
            "recallMessageEnable=true with timerWheelEnable=false",
            "timerWheelEnable=true: only timer messages can be recalled",
        )
    if broker.enable_calc_filter_bit_map and not store.consume_queue_ext_enabled:
        yield _contradiction(
            "enableCalcFilterBitMap=true with enableConsumeQueueExt=false",
            "enableConsumeQueueExt=true: bit maps are stored there",
        )
    if broker.enable_remote_escape and not broker.enable_slave_acting_master:
        yield _contradiction(
            "enableRemoteEscape=true with enableSlaveActingMaster=false",
            "enableSlaveActingMaster=true: only a slave that acts as the master escapes",
        )
    silent, beat = broker.ha_housekeeping_interval_ms, broker.ha_send_heartbeat_interval_ms
    if silent <= beat:
        yield _contradiction(
            f"haHousekeepingInterval={silent} with haSendHeartbeatInterval={beat}",
            "several heartbeats within haHousekeepingInterval; else idle slaves are disconnected",
        )
    if broker.enable_slave_acting_master or broker.enable_controller_mode:
        yield from _heartbeats(broker)
    if broker.enable_controller_mode:
        yield from _copies_of_elected(broker)
    elif broker.broker_role != SYNC_MASTER and broker.in_sync_replicas > 1:
        yield _contradiction(
            f"inSyncReplicas={broker.in_sync_replicas} with brokerRole={broker.broker_role}",
            "brokerRole=SYNC_MASTER: others do not wait for slaves",
        )


def _heartbeats(broker: BrokerSettings) -> Iterator[Advice]:
    limits = {
        "brokerNotActiveTimeoutMillis": (
            broker.enable_slave_acting_master,
            broker.broker_not_active_timeout_ms,
        ),
        "controllerHeartBeatTimeoutMills": (
            broker.enable_controller_mode,
            broker.controller_heartbeat_timeout_ms,
        ),
    }
    beat = broker.broker_heartbeat_interval_ms
    for key, (counts, limit) in limits.items():
        if counts and limit < 2 * beat:
            yield _contradiction(
                f"{key}={limit} with brokerHeartbeatInterval={beat}",
                f"{key} of at least two heartbeats; else a broker that runs counts as lost",
            )


def _copies_of_elected(broker: BrokerSettings) -> Iterator[Advice]:
    if not broker.all_ack_in_sync_state_set and broker.in_sync_replicas <= 1:
        yield Advice(
            Level.WARNING,
            "enableControllerMode=true with allAckInSyncStateSet=false, and inSyncReplicas not"
            " above 1",
            "acknowledgements that wait for another broker; else a failover may lose messages that"
            " were acknowledged",
            "remove allAckInSyncStateSet=false; see docs/howto/fail-over.md",
        )


def _contradiction(met: str, expected: str) -> Advice:
    return Advice(Level.WARNING, met, expected, f"change one of them; {REFERENCE}")


def _risks_of_messages(configuration: Configuration) -> Iterator[Advice]:
    broker, store = configuration[BrokerSettings], configuration[StoreSettings]
    if not store.sync_flush:
        yield Advice(
            Level.WARNING,
            "flushDiskType=ASYNC_FLUSH",
            "SYNC_FLUSH, or slaves that have each message: a loss of power loses acknowledged"
            " messages of up to ten seconds",
            "set flushDiskType=SYNC_FLUSH; see docs/explanation/guarantees.md",
        )
    if store.cut_damaged_log:
        yield Advice(
            Level.WARNING,
            "cutDamagedLog=true",
            "false: a start on a damaged log deletes all messages after the damage",
            "remove it after the repair; see docs/howto/verify-a-store.md",
        )
    if store.file_reserved_hours == 0:
        yield Advice(
            Level.WARNING,
            "fileReservedTime=0",
            "the hours for which messages are kept: files are deleted as soon as they are full",
            "set fileReservedTime; see docs/howto/size-a-broker.md",
        )
    lacking = [
        word
        for bit, word in ((Perm.READ, "read"), (Perm.WRITE, "write"))
        if not broker.broker_permission & bit
    ]
    if lacking and not (broker.broker_role == SLAVE and lacking == ["write"]):
        yield Advice(
            Level.WARNING,
            f"brokerPermission={broker.broker_permission}: clients may not {' or '.join(lacking)}",
            "6, unless the broker is being emptied",
            "set brokerPermission=6; see docs/howto/resize-a-cluster.md",
        )


def _reachable(configuration: Configuration) -> Iterator[Advice]:
    broker = configuration[BrokerSettings]
    if not broker.namesrv_addr:
        yield Advice(
            Level.WARNING,
            "namesrvAddr is not set",
            "the addresses of all name servers: clients find a broker through them",
            "set namesrvAddr=host:port;host:port, or NAMESRV_ADDR",
        )
    try:
        host = broker_address(broker).host
    except ConfigError as problem:
        yield Advice(
            Level.PROBLEM,
            str(problem),
            "an address that clients reach",
            f"set brokerIP1; {REFERENCE}",
        )
        return
    remote = [each for each in broker.namesrv_addr if not _is_loopback(each.rpartition(":")[0])]
    if _is_loopback(host) and remote:
        yield Advice(
            Level.PROBLEM,
            f"the broker registers {host} at the name server {remote[0]} of another machine",
            "an address that clients on other machines reach",
            "set bindAddress, and brokerIP1 if the address to listen on is another one",
        )


def _open_to_all(configuration: Configuration) -> Iterator[Advice]:
    broker, tls = configuration[BrokerSettings], configuration[TlsSettings]
    users = configuration[UserSettings]
    has_accounts = broker.acl_enable or users.checks_requests
    if broker.acl_enable and users.keeps_users:
        yield Advice(
            Level.PROBLEM,
            "aclEnable=true together with settings of users, such as authenticationEnabled",
            "one of them: the broker does not start with both",
            f"migrateAuthFromV1Enabled=true makes users of the accounts; {REFERENCE}",
        )
    by_certificate = tls.mode == "enforcing" and tls.client_certificate == "require"
    if not (has_accounts or by_certificate or _is_loopback(broker.bind_address)):
        yield Advice(
            Level.WARNING,
            f"bindAddress={broker.bind_address} without access control",
            "authenticationEnabled=true, aclEnable=true, certificates of clients, or a network that"
            " keeps others out: everyone who reaches the port can read, send and delete all",
            SECURE,
        )
    if has_accounts and not _is_loopback(broker.bind_address):
        yield from _without_tls(tls)


def _server_open_to_all(configuration: Configuration) -> Iterator[Advice]:
    """Check a name server or a controller."""
    if NameServerSettings in configuration:
        host = configuration[NameServerSettings].bind_address
    else:
        host = configuration[ControllerSettings].bind_address
    tls = configuration[TlsSettings]
    has_accounts = configuration[AccountSettings].acl_enable
    by_certificate = tls.mode == "enforcing" and tls.client_certificate == "require"
    if _is_loopback(host):
        return
    if not (has_accounts or by_certificate):
        yield Advice(
            Level.WARNING,
            f"bindAddress={host} without access control",
            "aclEnable=true, certificates of clients, or a network that keeps others out: everyone"
            " who reaches the port can change routes or elections",
            SECURE,
        )
    if has_accounts:
        yield from _without_tls(tls)


def _without_tls(tls: TlsSettings) -> Iterator[Advice]:
    if tls.mode != "enforcing":
        yield Advice(
            Level.WARNING,
            f"access control with tls.server.mode={tls.mode}",
            "enforcing: without TLS others can read requests on the network, and send them again",
            "set tls.server.mode=enforcing; see docs/howto/tls.md",
        )


def _credentials(configuration: Configuration) -> Iterator[Advice]:
    if BrokerSettings in configuration:
        text = configuration[BrokerSettings].inner_client_credentials
    else:
        text = configuration[AccountSettings].inner_client_credentials
    try:
        _ = credentials_of(text) if text else None
    except ConfigError as problem:
        yield Advice(
            Level.PROBLEM,
            str(problem),
            "an account: the server does not start without it",
            f"correct or remove it; {REFERENCE}",
        )


def _tls(configuration: Configuration) -> Iterator[Advice]:
    client = configuration[TlsClientSettings] if TlsClientSettings in configuration else None  # noqa: SIM401 - no dict
    for text in access_warnings(configuration[TlsSettings], client):
        met, _, action = text.rpartition("; ")
        yield Advice(Level.WARNING, met, "clients whose certificate is verified", action)
    if client is None:
        return
    if client.is_enabled(configuration[TlsSettings]) and not (
        client.trusted or client.check_server
    ):
        yield Advice(
            Level.WARNING,
            "connections to other servers use TLS, and do not check their certificates",
            "tls.client.authServer=true or tls.client.trustCertPath",
            "set tls.client.trustCertPath; see docs/howto/tls.md",
        )


def _metrics(configuration: Configuration) -> Iterator[Advice]:
    metrics = configuration[MetricsSettings]
    if metrics.exporter == "PROM" and metrics.host and not _is_loopback(metrics.host):
        yield Advice(
            Level.WARNING,
            f"metricsPromExporterHost={metrics.host}: metrics name topics and groups, and the"
            " endpoint has no access control",
            "an address that only Prometheus reaches",
            "restrict the port with a firewall; see docs/howto/monitor-servers.md",
        )


def _controller(configuration: Configuration) -> Iterator[Advice]:
    if configuration[ControllerSettings].elects_unclean:
        yield Advice(
            Level.WARNING,
            "enableElectUncleanMaster=true",
            "false: a broker that lacks acknowledged messages may become the master",
            "remove it after the emergency; see docs/howto/fail-over.md",
        )
    etcd = configuration[EtcdSettings]
    host = etcd.store.removeprefix("etcd://").partition(",")[0].rpartition(":")[0]
    if not _is_loopback(host) and not etcd.trusted:
        yield Advice(
            Level.WARNING,
            f"controllerStore={etcd.store} without TLS",
            "controllerStoreTrustCertPath: who reaches etcd decides which broker is the master",
            "see docs/howto/run-a-controller.md",
        )


_RULES: tuple[tuple[tuple[type, ...], Callable[[Configuration], Iterator[Advice]]], ...] = (
    ((BrokerSettings, StoreSettings), _contradictions),
    ((BrokerSettings, StoreSettings), _risks_of_messages),
    ((BrokerSettings,), _reachable),
    ((BrokerSettings, UserSettings, TlsSettings), _open_to_all),
    ((AccountSettings, TlsSettings), _server_open_to_all),
    ((BrokerSettings,), _credentials),
    ((AccountSettings,), _credentials),
    ((TlsSettings,), _tls),
    ((MetricsSettings,), _metrics),
    ((ControllerSettings, EtcdSettings), _controller),
)


def _is_loopback(host: str) -> bool:
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


# --- files with secrets ---------------------------------------------------------------------------


def secret_files(configuration: Configuration, config: Path | None) -> Iterator[Finding]:
    """Check that other users cannot read files that contain passwords or private keys."""
    files = dict(_files(configuration, config))
    for path, content in list(files.items())[:ACCOUNT_FILES_MAX]:
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # what needs the file says so
        met = f"mode {stat.S_IMODE(mode):04o}, {content}"
        kind, owners = ("folder", "0700") if stat.S_ISDIR(mode) else ("file", "0600")
        if not mode & (stat.S_IRWXO | stat.S_IWGRP):
            yield fine("secret-files", str(path), met)
            continue
        yield Finding(
            "secret-files",
            Level.PROBLEM,
            str(path),
            met,
            f"a {kind} that other users of this machine can neither read nor change",
            f"chmod {owners} {path}, with the user of the server as its owner",
        )


def _files(configuration: Configuration, config: Path | None) -> Iterator[tuple[Path, str]]:
    if config is not None:
        start = f"{config}:"
        secrets = [
            key for key, origin in configuration.secrets().items() if origin.startswith(start)
        ]
        if secrets:
            yield config, f"contains {', '.join(secrets)}"
    for owner, key in ((TlsSettings, "key"), (TlsClientSettings, "key"), (EtcdSettings, "key")):
        if owner in configuration and (path := getattr(configuration[owner], key)):
            yield Path(path), "a private key"
    if EtcdSettings in configuration and configuration[EtcdSettings].password_file:
        yield Path(configuration[EtcdSettings].password_file), "a password"
    users = configuration[UserSettings] if UserSettings in configuration else UserSettings()
    if users.keeps_users:
        folder = users.auth_config_path or configuration[StoreSettings].root / "config"
        yield folder / "users", "passwords of users"
        yield folder / "acls", "policies of users"
    home = _home_of_accounts(configuration, users)
    if home is not None:
        folder = home / "conf" / "acl"
        for path in (
            home / "conf" / "plain_acl.yml",
            *folder.rglob("*.yml"),
            *folder.rglob("*.yaml"),
        ):
            yield path, "accounts"


def _home_of_accounts(configuration: Configuration, users: UserSettings) -> Path | None:
    """Return the directory above files of accounts, if the server reads them."""
    if BrokerSettings in configuration:
        broker = configuration[BrokerSettings]
        reads = broker.acl_enable or users.migrate_from_plain
        return broker.rocketmq_home if reads else None
    accounts = configuration[AccountSettings]
    return accounts.rocketmq_home if accounts.acl_enable else None


def listens_at(configuration: Configuration) -> str:
    """Return the host at which others reach the server with these settings."""
    if BrokerSettings in configuration:
        return broker_address(configuration[BrokerSettings]).host
    if ControllerSettings in configuration:
        controller = configuration[ControllerSettings]
        return controller.controller_ip or reachable_host(controller.bind_address)
    return reachable_host(configuration[NameServerSettings].bind_address)
