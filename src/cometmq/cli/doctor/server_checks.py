"""Examines the host, the disk and the settings of one server, from its configuration file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cometmq.access.signer import credentials_of
from cometmq.broker.address import broker_address
from cometmq.broker.config import BrokerSettings
from cometmq.cli import configurations
from cometmq.cli.doctor import clocks, disk, host, pop, producer_sessions, replication, settings
from cometmq.cli.doctor.certificates import certificates
from cometmq.cli.doctor.cluster import Broker, Cluster, responds
from cometmq.cli.doctor.findings import Check, Finding, Level, fine, in_thread, no_result
from cometmq.cli.server_options import ServerOptions
from cometmq.client import AdminClient
from cometmq.client.settings import ClientSettings
from cometmq.model.address import host_and_port
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.times import now_ms
from cometmq.remoting import ConnectError, TlsClientSettings, TlsSettings
from cometmq.remoting.ports import reachable_host
from cometmq.store import StoreSettings
from cometmq.system.configuration import Configuration

BROKERS_MAX = 32
"""The clocks of more brokers are not compared."""


def _broker(config: Path | None, store: Path | None) -> Configuration:
    return configurations.broker_configuration(ServerOptions(store=store, config=config))


def _namesrv(config: Path | None, store: Path | None) -> Configuration:
    return configurations.namesrv_configuration(ServerOptions(config=config))


def _controller(config: Path | None, store: Path | None) -> Configuration:
    return configurations.controller_configuration(ServerOptions(config=config))


SERVERS: dict[str, Callable[[Path | None, Path | None], Configuration]] = {
    "broker": _broker,
    "namesrv": _namesrv,
    "controller": _controller,
}
"""Reads the settings of each server."""


def checks(
    server: str,
    config: Path | None,
    store: Path | None,
    machine: host.Host,
    *,
    compares_clocks: bool = True,
) -> list[Check]:
    """Return the checks of one server on its host.

    Args:
        server: one of `SERVERS`.
        config: its configuration file; None for the defaults.
        store: another directory of the store than the directory in the settings.
        machine: the host.
        compares_clocks: whether to compare the clocks of the brokers that its name servers know.
    """
    found = [
        Check(name, machine.name, in_thread(partial(check, machine)))
        for name, check in host.CHECKS.items()
    ]
    subject = str(config) if config is not None else f"settings of the {server}"
    try:
        configuration = SERVERS[server](config, store)
    except ConfigError as problem:
        mistakes = settings.unreadable(subject, problem)
        return [*found, Check("settings", subject, in_thread(lambda: mistakes))]
    found += [
        Check("settings", subject, in_thread(partial(settings.settings, configuration, subject))),
        Check(
            "secret-files",
            subject,
            in_thread(partial(settings.secret_files, configuration, config)),
        ),
        Check(
            "certificates",
            subject,
            in_thread(lambda: certificates(configuration, settings.listens_at(configuration))),
        ),
    ]
    if StoreSettings in configuration:
        found += _checks_of_store(configuration[StoreSettings], machine)
    if config is not None and BrokerSettings in configuration:
        broker = configuration[BrokerSettings]
        if broker.listen_port:  # else the system chooses it
            found.append(
                Check("brokers", _subject(broker), partial(_running_broker, configuration))
            )
    if (
        compares_clocks
        and BrokerSettings in configuration
        and configuration[BrokerSettings].namesrv_addr
    ):
        names = ";".join(configuration[BrokerSettings].namesrv_addr)
        found.append(Check("clocks", names, partial(_clocks, configuration, names)))
    return found


def _checks_of_store(store: StoreSettings, machine: host.Host) -> list[Check]:
    return [
        Check(name, str(folder), in_thread(run))
        for folder in disk.folders(store)
        for name, run in (
            ("store-access", partial(disk.access, folder)),
            ("file-system", partial(disk.file_system, folder, machine)),
            ("disk-space", partial(disk.room, folder, store)),
            ("sync-speed", partial(disk.sync_speed, folder)),
        )
    ]


def _subject(broker: BrokerSettings) -> str:
    return f"{broker.broker_name} ({broker_address(broker).at(broker.listen_port)})"


async def _running_broker(configuration: Configuration) -> list[Finding]:
    """Look whether the broker with these settings runs, and refuses sends.

    Name servers do not know a broker that is refused from its start on. It is requested at the
    address that it registers, and at the one where it listens.
    """
    broker, problem = configuration[BrokerSettings], CometError()
    subject, registered = _subject(broker), broker_address(broker).at(broker.listen_port)
    listens = host_and_port(reachable_host(broker.bind_address), broker.listen_port)
    names = ";".join(broker.namesrv_addr) or registered  # gets no request
    async with AdminClient(names, client=client_settings(configuration)) as admin:
        for address in dict.fromkeys((registered, listens)):
            try:
                figures = await admin.broker_runtime_info(address)
            except CometError as met:
                problem = met
                continue
            cluster = Cluster(admin)
            cluster.brokers.append(
                Broker(broker.broker_name, broker.broker_id, registered, figures, {})
            )
            return [
                responds(cluster.brokers[0]),
                *replication.refusing(cluster),
                *replication.set_aside(cluster),
                *producer_sessions.room(cluster),
                *pop.in_flight(cluster),
            ]
    if isinstance(problem, ConnectError):
        return [fine("brokers", subject, "no broker listens there now")]
    action = "look whether a broker with these settings listens; see docs/howto/troubleshoot.md"
    return [no_result("brokers", Level.WARNING, subject, problem, action)]


async def _clocks(configuration: Configuration, name_servers: str) -> list[Finding]:
    """Compare the clocks of the brokers that the name servers know with the clock of this host."""
    found: list[Finding] = []
    async with AdminClient(name_servers, client=client_settings(configuration)) as admin:
        table = (await admin.cluster_info()).broker_addr_table
        addresses = [
            (broker.broker_name, address)
            for broker in table.values()
            for address in broker.broker_addrs.values()
        ]
        for name, address in addresses[:BROKERS_MAX]:
            subject, sent_ms = f"{name} ({address})", now_ms()
            try:
                figures = await admin.broker_runtime_info(address)
            except CometError as problem:
                action = "look whether this broker runs; see docs/howto/troubleshoot.md"
                found.append(no_result("clocks", Level.WARNING, subject, problem, action))
                continue
            found.append(clocks.judge(subject, clocks.offset_of(figures, sent_ms, now_ms())))
    return found or [fine("clocks", name_servers, "no broker is registered yet")]


def client_settings(configuration: Configuration) -> ClientSettings:
    """Return what a client needs to make the requests that this server makes.

    Without an account of the server, the account of the client's settings applies.

    Raises:
        ConfigError: its account is malformed.
    """
    tls = configuration[TlsClientSettings]
    signing: dict[str, Any] = {}
    if text := configuration[BrokerSettings].inner_client_credentials:
        account = credentials_of(text)
        signing = {"access_key": account.access_key, "secret_key": account.secret_key}
    return ClientSettings(
        use_tls=tls.is_enabled(configuration[TlsSettings]),
        tls_trusted=tls.trusted,
        tls_check_server=tls.check_server,
        tls_certificate=tls.certificate,
        tls_key=tls.key,
        tls_key_password=tls.key_password,
        **signing,
    )
