"""The calls that differ between operating systems: one interface, one module for each system.

Nothing outside of this package asks which system it runs on.

    system    implementation    client    servers
    Linux     `linux`           yes       yes
    macOS     `macos`           yes       for development
    Windows   `windows`         yes       no
    others    `posix`           yes       no
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["SERVERS", "SYSTEM", "require_servers"]

_IMPLEMENTATIONS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
_WITH_SERVERS = ("linux", "darwin")


class _Refusal:
    """`SERVERS` on a system without servers: each use raises an error."""

    def __getattr__(self, name: str) -> Any:
        from cometmq.model.errors import ConfigError  # the tools that build CometMQ do without

        raise ConfigError(
            f"CometMQ's servers need Linux or, for development, macOS, and this is {SYSTEM.NAME}:"
            " run them in a container or in WSL (docs/explanation/systems.md shows both); the"
            " client runs here"
        )


def _implementation() -> Any:
    name = _IMPLEMENTATIONS.get(sys.platform, "posix")
    return import_module(f"{__name__}.{name}")


if TYPE_CHECKING:
    from cometmq.system.platforms import linux, macos, posix, windows
    from cometmq.system.platforms.interface import ServerSystem, System

    _linux: System = linux
    _macos: System = macos
    _posix: System = posix
    _windows: System = windows
    _linux_servers: ServerSystem = linux
    _macos_servers: ServerSystem = macos

SYSTEM: System = _implementation()
"""The system of this process, for everything; the client needs nothing else."""
SERVERS: ServerSystem = _implementation() if sys.platform in _WITH_SERVERS else _Refusal()
"""The system of this process, for servers and stores; where they do not run, each use raises
`ConfigError`."""


def require_servers() -> None:
    """Return if servers run on this system.

    Raises:
        ConfigError: they do not; the text names the ways to run them.
    """
    SERVERS.boot_id  # noqa: B018, a refusal raises here
