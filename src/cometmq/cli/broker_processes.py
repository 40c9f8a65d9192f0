"""Runs N brokers of one cluster, each in a process of its own, below one supervisor.

Broker I of N has the settings of a single broker, except these: the name ``<brokerName>-I``, the
port ``listenPort`` + 10 I, and the store ``broker-I`` in the directory of the store. Each broker
also listens on its port minus 2, and for slaves on its port plus 1; for metrics on
``metricsPromExporterPort`` + I.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from cometmq.broker.config import BrokerSettings
from cometmq.cli import logs
from cometmq.cli.build import build
from cometmq.cli.configurations import broker_configuration
from cometmq.cli.event_loop import run
from cometmq.cli.exit_codes import exit_with
from cometmq.cli.serve import serve
from cometmq.cli.server_options import PORT_MAX, ServerOptions
from cometmq.metrics.config import MetricsSettings
from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError
from cometmq.remoting.ports import fast_port, free_broker_port, ha_port
from cometmq.store import StoreSettings
from cometmq.system.configuration import Configuration
from cometmq.system.log_format import LogSettings

log = logging.getLogger(__name__)

PORT_STEP = 10
_PORT_HINT = (
    "listenPort or --port sets the port of broker 0, each other broker listens "
    f"{PORT_STEP} above the one before"
)
_FOLDER = re.compile(r"broker-(\d+)")
_STDIN = 0


class Member(NamedTuple):
    """One broker of several: what distinguishes it from the others."""

    number: int
    of: int
    name: str
    port: int
    store: Path

    def __str__(self) -> str:
        return f"broker {self.number} of {self.of}, {self.name},"

    def ports(self, settings: BrokerSettings) -> list[int]:
        """Return the ports that belong to it; from the last one slaves copy its log."""
        fast = fast_port(self.port) if settings.fast_port_enable else None
        return [*([] if fast is None else [fast]), self.port, ha_port(self.port)]

    @property
    def changes(self) -> Path:
        """Settings that requests have changed; they take precedence over the shared file."""
        return self.store / "config" / "broker.properties"

    def apply(self, configuration: Configuration) -> None:
        """Put the settings of this broker into the settings that all share."""
        values = {
            "brokerName": self.name,
            "listenPort": str(self.port),
            "storePathRootDir": str(self.store),
        }
        if metrics_port := configuration[MetricsSettings].port:
            values["metricsPromExporterPort"] = str(metrics_port + self.number)
        configuration.set(values, origin=f"--processes {self.of}, broker {self.number}")


class BrokerFamily:
    """Brokers that share the options of one command line and one configuration file.

    Args:
        processes: how many brokers.
        options: of the command line.

    Raises:
        ConfigError: a setting is wrong, cannot be shared, or needs a port that cannot be used.
    """

    def __init__(self, processes: int, options: ServerOptions) -> None:
        self.shared = broker_configuration(options)
        self._options = options._replace(port=None, store=None)  # each broker has its own
        settings, stored = self.shared[BrokerSettings], self.shared[StoreSettings]
        self._root = stored.root
        _check_store(self.shared, processes)
        if processes > 1:
            _check_replication(self.shared)
        base = settings.listen_port
        ports = [base + PORT_STEP * i if base else free_broker_port() for i in range(processes)]
        self.members = [
            Member(i, processes, f"{settings.broker_name}-{i}", ports[i], _store(self._root, i))
            for i in range(processes)
        ]
        for member in self.members:
            _check_ports(member, settings)
        self.configurations()

    def configurations(self) -> list[Configuration]:
        """Return the settings of each broker."""
        return [_configuration(member, self._options) for member in self.members]

    def run(self) -> int:
        """Run the brokers until a signal; gives the exit code."""
        from cometmq.cli.supervisor import python, supervise  # a single broker has none

        for member in self.members:
            _check_free(member, self.shared[BrokerSettings])
        warn_of_stores_left(self._root, len(self.members))
        words = [json.dumps([each, self._options], default=str) for each in self.members]
        programs = [
            (member.name, python(__name__, text))
            for member, text in zip(self.members, words, strict=True)
        ]
        return run(supervise(programs, _ready))


def _configuration(member: Member, options: ServerOptions) -> Configuration:
    changes = member.changes if options.config is not None else None
    configuration = broker_configuration(options, changes)
    member.apply(configuration)
    return configuration


def _store(root: Path, number: int) -> Path:
    return root / f"broker-{number}"


def _check_store(shared: Configuration, processes: int) -> None:
    stored = shared[StoreSettings]
    if stored.commit_log_dir is not None:
        raise ConfigError(
            f"storePathCommitLog={stored.commit_log_dir} ({shared.origin('storePathCommitLog')}): "
            "brokers cannot share a commit log; remove the setting, and each broker has a commit "
            "log in its own store"
        )
    if (stored.root / "commitlog").is_dir():
        raise ConfigError(
            f"{stored.root} is the store of a single broker, and none of {processes} processes "
            f"would deliver its messages; stop that broker and move its files to "
            f"{_store(stored.root, 0)}, or start without --processes"
        )


def _check_replication(shared: Configuration) -> None:
    address, port = shared[BrokerSettings].ha_master_address, shared[BrokerSettings].ha_listen_port
    if port:
        raise ConfigError(
            f"haListenPort={port} ({shared.origin('haListenPort')}): several brokers cannot listen"
            " on one port; remove the setting, and each broker sends its log from its port plus 1"
        )
    if address:
        raise ConfigError(
            f"haMasterAddress={address} ({shared.origin('haMasterAddress')}): several brokers"
            " cannot follow one master; remove the setting, and each broker follows the master of"
            " its own name, which the name servers know"
        )


def _check_ports(member: Member, settings: BrokerSettings) -> None:
    ports = member.ports(settings)
    if ports[-1] > PORT_MAX:
        raise ConfigError(f"{member} needs the port {ports[-1]}, above {PORT_MAX}; {_PORT_HINT}")
    local = {"localhost", "127.0.0.1", settings.bind_address, settings.broker_ip1}
    for address in settings.namesrv_addr:
        host, _, port = address.rpartition(":")
        if host in local and int(port) in ports:
            raise ConfigError(f"{member} needs the port of namesrvAddr={address}; {_PORT_HINT}")


def _check_free(member: Member, settings: BrokerSettings) -> None:
    for port in member.ports(settings):
        with socket.socket(_family(settings.bind_address)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.bind_address, port))
            except OSError as problem:
                raise ConfigError(
                    f"{member} cannot listen on "
                    f"{host_and_port(settings.bind_address, port)}: "
                    f"{problem.strerror}; {_PORT_HINT}"
                ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def warn_of_stores_left(root: Path, processes: int) -> None:
    """Warn of stores in ``root`` that none of ``processes`` brokers opens; 0 is a single broker."""
    matches = [_FOLDER.fullmatch(path.parent.name) for path in root.glob("broker-*/commitlog")]
    left = sorted(int(match[1]) for match in matches if match and int(match[1]) >= processes)
    if left:
        names = ", ".join(f"broker-{number}" for number in left)
        log.warning(
            "stores that no broker opens, so that their messages are not delivered: %s in %s; "
            "--processes %d opens them", names, root, max(left) + 1,
        )  # fmt: skip


def _ready(lines: list[str]) -> str:
    addresses = (line.partition("broker=")[2].split(" ")[0] for line in lines)
    return f"broker={';'.join(addresses)} build={build()}"


def _run_member(member: Member, options: ServerOptions) -> int:
    """Run one broker, in a process that `BrokerFamily.run` started."""
    from cometmq.broker.app import Broker

    configuration = _configuration(member, options)
    form = options.log_format or configuration[LogSettings].format
    logs.configure(options.log_level, member.name, form=form)
    file = member.changes if options.config is not None else None
    server = Broker(configuration, config_file=file)
    return serve(server, lambda: f"broker={server.address} build={build()}", until_end_of=_STDIN)


def _main() -> None:
    (number, of, name, port, store), words = json.loads(sys.argv[1])
    member = Member(number, of, name, port, Path(store))
    options = ServerOptions(*words)
    if options.config is not None:
        options = options._replace(config=Path(options.config))
    exit_with(lambda: _run_member(member, options), f"cometmq: {name}")


if __name__ == "__main__":
    _main()
