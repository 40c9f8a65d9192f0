"""Creates servers from options and files, and runs them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.cli import configurations, logs
from cometmq.cli.build import build
from cometmq.cli.serve import serve
from cometmq.cli.server_options import ServerOptions
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.system.configuration import DEFAULT, Configuration
from cometmq.system.log_format import JSON, TEXT, LogSettings
from cometmq.system.platforms import require_servers

if TYPE_CHECKING:
    from cometmq.access.gate import Account, Accounts
    from cometmq.access.server_guard import ServerGuard
    from cometmq.broker.app import Broker
    from cometmq.cli.console import ConsoleOfServer
    from cometmq.controller.app import Controller
    from cometmq.namesrv.app import NameServer
    from cometmq.remoting.wire import Wire

log = logging.getLogger(__name__)

LOG_FILE_SIZE = "mappedFileSizeCommitLog"
MIB = 1024 * 1024
BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system."""
COUNTED_FILES_MAX = 1_000
"""A start waits no longer for the size of a store with more files."""


class Standalone:
    """A name server and a broker that registers with it, in one process, perhaps with a console."""

    def __init__(
        self,
        name_server_configuration: Configuration,
        broker_configuration: Configuration,
        config_file: Path | None,
        console: ConsoleOfServer | None = None,
    ) -> None:
        self._name_server_configuration = name_server_configuration
        self._broker_configuration = broker_configuration
        self._config_file = config_file
        self.console = console
        self.name_server: NameServer | None = None
        self.broker: Broker | None = None

    async def start(self) -> None:
        """Serve as a name server, then as a broker."""
        from cometmq.broker.app import Broker
        from cometmq.namesrv.app import NameServer
        from cometmq.remoting import TlsClientSettings

        self.name_server = NameServer(
            self._name_server_configuration, access=self._name_server_guard()
        )
        await self.name_server.start()
        self._broker_configuration.set({"namesrvAddr": self.name_server.address})
        if self._broker_configuration[TlsClientSettings].enable is None:
            # The name server of this process accepts plain connections, and has no certificate
            # that an authority has signed.
            self._broker_configuration.set({"tls.enable": "false"})
        self.broker = Broker(self._broker_configuration, config_file=self._config_file)
        await self.broker.start()
        if self.console is not None:
            await self.console.start(self.name_server.address)

    def _name_server_guard(self) -> ServerGuard | None:
        """Return what checks requests to the name server; None if it serves every client."""
        from cometmq.broker.config import BrokerSettings

        settings = self._broker_configuration[BrokerSettings]
        if not settings.namesrv_acl_enable:
            return None
        from cometmq.access.server_guard import ServerGuard
        from cometmq.namesrv.assembly import NEEDS
        from cometmq.remoting import TlsSettings

        refused = ResponseCode.SYSTEM_ERROR if settings.acl_enable else ResponseCode.NO_PERMISSION
        accounts = AccountsOfBroker(lambda: None if self.broker is None else self.broker.accounts)
        return ServerGuard(
            accounts, self._name_server_configuration[TlsSettings], NEEDS, refused=refused
        )

    async def stop(self) -> None:
        """Stop the broker before the name server, so that it can unregister there."""
        if self.console is not None:
            await self.console.stop()
        if self.broker is not None:
            await self.broker.stop()
        if self.name_server is not None:
            await self.name_server.stop()

    def __str__(self) -> str:
        assert self.name_server is not None
        assert self.broker is not None
        return f"namesrv={self.name_server.address} broker={self.broker.address}"


class AccountsOfBroker:
    """The accounts or users of the broker, for the name server in its process.

    Args:
        find: returns them; None before the broker has read them.
    """

    def __init__(self, find: Callable[[], Accounts | None]) -> None:
        self._find = find

    @property
    def state(self) -> object:
        """An object that is another one after each change."""
        accounts = self._find()
        return None if accounts is None else accounts.state

    def sender_of(self, connection: Wire, access_key: str) -> Account:
        """Return the account of a sender, whose signature is not checked yet.

        Raises:
            ResponseError: there is no such account, or the broker has not read them.
        """
        return self._found().sender_of(connection, access_key)

    def named(self, connection: Wire, access_key: str) -> Account:
        """Return the account that a request names, whatever its connection proves.

        Raises:
            ResponseError: there is no such account, or the broker has not read them.
        """
        return self._found().named(connection, access_key)

    def _found(self) -> Accounts:
        accounts = self._find()
        if accounts is None:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY, "the broker has not read its accounts yet"
            )
        return accounts


class NameServerWithController:
    """A name server and a controller in one process."""

    def __init__(self, name_server: NameServer, controller: Controller) -> None:
        self._name_server = name_server
        self._controller = controller

    async def start(self) -> None:
        """Serve as both."""
        await self._name_server.start()
        await self._controller.start()

    async def stop(self) -> None:
        """Stop both; another controller becomes active."""
        await asyncio.gather(self._controller.stop(), self._name_server.stop())

    def __str__(self) -> str:
        return f"namesrv={self._name_server.address} controller={self._controller.address}"


def standalone(options: ServerOptions) -> int:
    """Run a name server and a broker in one process; gives the exit code."""
    name_server_configuration, broker_configuration = standalone_configurations(options)
    leaves_open = _leaves_name_server_open(broker_configuration)
    if options.print_config:
        return _show(name_server_configuration, broker_configuration)
    _begin(options, name_server_configuration, broker_configuration)
    if leaves_open:
        log.warning(
            "the broker has access control, and the name server serves every client:"
            " namesrvAclEnable=true makes it check requests, too"
        )
    console = None
    if options.console:
        from cometmq.cli.console import ConsoleOfServer

        console = ConsoleOfServer(options.console_port)
    both = Standalone(name_server_configuration, broker_configuration, options.config, console)

    def ready() -> str:
        line = f"{both} build={build()}\n{_store_line(broker_configuration)}"
        return f"{line}\nconsole {console.url}" if console else line

    return serve(both, ready)


def standalone_configurations(
    options: ServerOptions, settings: Mapping[str, str] | None = None
) -> tuple[Configuration, Configuration]:
    """Read the settings of a name server and of a broker in the same process.

    Args:
        options: of the command line; the configuration file is the broker's.
        settings: settings of the broker that a program gives; they take precedence.

    Raises:
        ConfigError: a setting is unknown or its value is wrong, or a file cannot be read.
    """
    of_names = ServerOptions(port=options.namesrv_port, host=options.host)
    name_server_configuration = configurations.namesrv_configuration(of_names, home=options.store)
    broker_configuration = configurations.broker_configuration(
        options._replace(port=options.broker_port)
    )
    broker_configuration.set(settings or {})
    _take_free_port(broker_configuration)
    _take_small_files(broker_configuration)
    return name_server_configuration, broker_configuration


def name_server(options: ServerOptions) -> int:
    """Run a name server, perhaps with a controller; gives the exit code."""
    from cometmq.namesrv.app import NameServer
    from cometmq.namesrv.config import NameServerSettings

    name_server_configuration = configurations.namesrv_configuration(options)
    settings = name_server_configuration[NameServerSettings]
    if settings.enable_controller:
        controller_configuration = configurations.controller_configuration(
            ServerOptions(config=settings.controller_config_path)
        )
        if options.print_config:
            return _show(name_server_configuration, controller_configuration)
        _begin(options, name_server_configuration, controller_configuration)
        both = NameServerWithController(
            NameServer(name_server_configuration), _controller(controller_configuration)
        )
        return serve(both, lambda: f"{both} build={build()}")
    if options.print_config:
        return _show(name_server_configuration)
    _begin(options, name_server_configuration)
    server = NameServer(name_server_configuration)
    return serve(server, lambda: f"namesrv={server.address} build={build()}")


def broker(options: ServerOptions) -> int:
    """Run a broker, or several processes of one; gives the exit code."""
    from cometmq.broker.app import Broker
    from cometmq.cli.broker_processes import BrokerFamily, warn_of_stores_left
    from cometmq.store import StoreSettings

    if options.processes is not None:
        family = BrokerFamily(options.processes, options)
        if options.print_config:
            return _show(*family.configurations())
        _begin(options, family.shared)
        return family.run()
    configuration = configurations.broker_configuration(options)
    _take_free_port(configuration)
    if options.print_config:
        return _show(configuration)
    _begin(options, configuration)
    warn_of_stores_left(configuration[StoreSettings].root, 0)
    server = Broker(configuration, config_file=options.config)
    return serve(server, lambda: f"broker={server.address} build={build()}")


def filter_server(options: ServerOptions) -> int:
    """Run a filter server; gives the exit code."""
    from cometmq.filtersrv.app import FilterServer

    configuration = configurations.filtersrv_configuration(options)
    if options.print_config:
        return _show(configuration)
    _begin(options, configuration)
    server = FilterServer(configuration)
    return serve(server, lambda: f"filtersrv={server.address} build={build()}")


def controller(options: ServerOptions) -> int:
    """Run a controller; gives the exit code."""
    configuration = configurations.controller_configuration(options)
    if options.print_config:
        return _show(configuration)
    _begin(options, configuration)
    server = _controller(configuration)
    return serve(server, lambda: f"controller={server.address} build={build()}")


def _controller(configuration: Configuration) -> Controller:
    from cometmq.controller.app import Controller
    from cometmq.controller.config import EtcdSettings
    from cometmq.controller.etcd_gateway import open_gateway

    return Controller(configuration, open_gateway(configuration[EtcdSettings]))


COMMANDS: dict[str, Callable[[ServerOptions], int]] = {
    "standalone": standalone,
    "namesrv": name_server,
    "broker": broker,
    "filtersrv": filter_server,
    "controller": controller,
}
"""The function of each server command."""


def _take_free_port(configuration: Configuration) -> None:
    """If the system chooses the broker's port, choose one; the port minus two is free too."""
    from cometmq.broker.config import BrokerSettings
    from cometmq.remoting.ports import free_broker_port

    if configuration[BrokerSettings].listen_port == 0:
        configuration.set({"listenPort": str(free_broker_port())})


def _take_small_files(configuration: Configuration) -> None:
    """Choose small log files, unless a setting names the size or a message would not fit.

    `cometmq broker` keeps RocketMQ's default, so that RocketMQ opens its store with no setting.
    """
    from cometmq.store import SMALL_LOG_FILE_BYTES, StoreSettings

    fits = 2 * configuration[StoreSettings].message_bytes_max <= SMALL_LOG_FILE_BYTES
    if fits and configuration.origin(LOG_FILE_SIZE) == DEFAULT:
        configuration.set(
            {LOG_FILE_SIZE: str(SMALL_LOG_FILE_BYTES)}, "default of cometmq standalone"
        )


def _store_line(configuration: Configuration) -> str:
    """Say where the store is and how much of the disk it takes now."""
    from cometmq.store import StoreSettings

    settings = configuration[StoreSettings]
    taken = count = 0
    for path in islice(settings.root.rglob("*"), COUNTED_FILES_MAX):
        count += 1
        with suppress(FileNotFoundError):  # the broker removes files meanwhile
            taken += path.lstat().st_blocks * BLOCK_BYTES
    at_least = "at least " if count == COUNTED_FILES_MAX else ""
    return (
        f"store {settings.root.absolute()} takes {at_least}{taken / MIB:.0f} MiB of disk and grows"
        f" by files of {settings.commit_log_file_bytes / MIB:g} MiB;"
        " --store FOLDER chooses another folder"
    )


def _leaves_name_server_open(configuration: Configuration) -> bool:
    """Return whether only the broker has access control.

    Raises:
        ConfigError: the name server shall have it, and the broker has none, or cannot register.
    """
    from cometmq.access.user_settings import UserSettings
    from cometmq.broker.config import BrokerSettings

    settings = configuration[BrokerSettings]
    has_accounts = settings.acl_enable or configuration[UserSettings].checks_requests
    if not settings.namesrv_acl_enable:
        return has_accounts
    if not has_accounts:
        raise ConfigError(
            "namesrvAclEnable=true without access control of the broker: expected aclEnable=true or"
            " authenticationEnabled=true, too"
        )
    if not settings.inner_client_credentials:
        raise ConfigError(
            "namesrvAclEnable=true without innerClientAuthenticationCredentials: expected the"
            " account of an administrator, with which the broker registers"
        )
    return False


def _show(*of_servers: Configuration) -> int:
    for configuration in of_servers:
        sys.stdout.write(configuration.render_with_origins())
    return 0


def _begin(options: ServerOptions, *of_servers: Configuration) -> None:
    """Set up logging, and log once which settings have no effect.

    Raises:
        ConfigError: servers do not run on this system.
    """
    require_servers()
    chosen = {configuration[LogSettings].format for configuration in of_servers}
    form = options.log_format or (JSON if JSON in chosen else TEXT)
    logs.configure(options.log_level, form=form)
    for configuration in of_servers:
        if warning := configuration.warning():
            log.warning("%s", warning)
