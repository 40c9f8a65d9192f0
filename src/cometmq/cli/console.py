"""``cometmq console`` and ``cometmq console-user``."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.model.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from cometmq.console.app import Options


def _loaded() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the console.

    Raises:
        ConfigError: its packages are not installed.
    """
    try:
        from cometmq.console import app
        from cometmq.console.access import users
    except ImportError as missing:
        raise ConfigError(
            f"the console needs the extra console (no module {missing.name}):"
            " pip install 'cometmq[console]'"
        ) from None
    return app, users


def serve(name_servers: str, client_config: Path | None, **options: object) -> int:
    """Serve the console until SIGTERM or Ctrl-C; return the exit code."""
    from cometmq.cli.event_loop import run

    app, _ = _loaded()
    return run(_serve(app.Options(**options), name_servers, client_config))


async def _serve(options: Options, name_servers: str, client_config: Path | None) -> int:
    from cometmq.cli.account import connection_settings
    from cometmq.client import AdminClient, ClientInstance
    from cometmq.console.app import serve

    def ready(address: str) -> None:
        signed = "sign-in by users" if options.users else "without sign-in"
        print(f"console ready at {address} ({signed})", flush=True)

    async with (
        ClientInstance(name_servers, settings=connection_settings(client_config)) as instance,
        AdminClient(instance=instance) as admin,
    ):
        return await serve(admin, options, ready)


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
