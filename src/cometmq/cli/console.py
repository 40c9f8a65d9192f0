"""``cometmq console`` and ``cometmq console-user``."""

from __future__ import annotations

import contextlib
import getpass
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.model.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from cometmq.client import AdminClient
    from cometmq.console.doctor import Finding
    from cometmq.console.server import Options, Server


def _loaded() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the console's server and of its users.

    Raises:
        ConfigError: its packages are not installed.
    """
    try:
        from cometmq.console import server
        from cometmq.console.access import users
    except ImportError as missing:
        raise ConfigError(
            f"the console needs the extra console (no module {missing.name}):"
            " pip install '.[console]'"
        ) from None
    return server, users


def serve(name_servers: str, client_config: Path | None, **options: Any) -> int:
    """Serve the console until SIGTERM or Ctrl-C; return the exit code."""
    from cometmq.cli.event_loop import run

    server, _ = _loaded()
    from cometmq.console.config import read

    wanted = server.Options(**options, settings=read(client_config))
    return run(_serve(wanted, name_servers, client_config))


async def examine(admin: AdminClient, timeout_s: float) -> list[Finding]:
    """Run the checks of ``cometmq doctor`` for the console; each may take that many seconds."""
    from cometmq.cli.doctor.cluster_checks import examine
    from cometmq.console.doctor import Finding

    return [
        Finding(**(each._asdict() | {"level": each.level.value}))
        for each in await examine(admin, timeout_s)
    ]


async def _serve(options: Options, name_servers: str, client_config: Path | None) -> int:
    def ready(address: str) -> None:
        signed = "sign-in by users" if options.has_sign_in else "without sign-in"
        print(f"console ready at {address} ({signed})", flush=True)

    async with opened(name_servers, options, client_config) as console:
        await console.run(ready)
    return 0


@contextlib.asynccontextmanager
async def opened(
    name_servers: str, options: Options, client_config: Path | None = None
) -> AsyncIterator[Server]:
    """Bind the socket of a console with its clients, within ``async with``.

    Raises:
        ConfigError: an option cannot be used.
    """
    from cometmq.cli.account import connection_settings
    from cometmq.client import AdminClient, ClientInstance
    from cometmq.client.settings import ClientSettings
    from cometmq.console.server import Server

    async with contextlib.AsyncExitStack() as stack:

        async def client(settings: ClientSettings) -> AdminClient:
            instance = ClientInstance(name_servers, settings=settings)
            await stack.enter_async_context(instance)
            return await stack.enter_async_context(AdminClient(instance=instance))

        admin = await client(connection_settings(client_config))
        admins = {}
        for role, each in options.settings.accounts_by_role.items():
            account = ClientSettings(
                access_key=each.access_key, secret_key=each.secret, security_token="", key_file=None
            )
            admins[role] = await client(connection_settings(client_config, account))
        yield Server(admin, options._replace(examine=examine), admins)


class ConsoleOfServer:
    """The console in the process of a name server, on loopback and without sign-in.

    Args:
        port: of the console.

    Raises:
        ConfigError: its packages are not installed.
    """

    def __init__(self, port: int) -> None:
        module, _ = _loaded()
        self._options: Options = module.Options(port=port)
        self._open = contextlib.AsyncExitStack()
        self.url = ""

    async def start(self, name_servers: str) -> None:
        """Serve the console.

        Raises:
            ConfigError: the port cannot be used.
        """
        server = await self._open.enter_async_context(opened(name_servers, self._options))
        self._open.push_async_callback(server.stop)
        await server.start()
        self.url = server.url

    async def stop(self) -> None:
        """Serve it no more."""
        await self._open.aclose()


def add_user(path: Path, name: str, role: str) -> None:
    """Write a user into the file of users, with a password of the terminal or standard input."""
    _, users = _loaded()
    wanted = users.role_of(role, "--role: ")
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password of {name}: ")
        if getpass.getpass("The same again: ") != password:
            raise ConfigError("the two passwords differ: nothing was written")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    try:
        users.add_user(path, name, wanted, password)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; expected a file that can be written"
        ) from None
    print(f"{path}: user {name}, {role}")
