"""A listening socket: accepts connections, and pauses while the process has no descriptors."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

ACCEPT_PAUSE_S = 1.0
ACCEPTS_PER_EVENT = 2
"""Others are served in between: what a new connection sends may take a millisecond of work."""


class Listener:
    """Accepts the connections of one port.

    Args:
        name: of the server, for the log.
        take: called with each accepted socket, and the address of its peer.
    """

    def __init__(self, name: str, take: Callable[[socket.socket, tuple[Any, ...]], None]) -> None:
        self._name = name
        self._take = take
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.port = 0
        """The port that is bound, known once started."""

    def start(self, host: str, port: int, backlog: int) -> None:
        """Bind and accept.

        Raises:
            OSError: the port cannot be bound.
        """
        self._socket = listening_socket(host, port, backlog)
        self.port = self._socket.getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def stop(self) -> None:
        """Accept no connections any more; open ones stay open."""
        if self._socket is not None and self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_EVENT):
            if self._socket is None:
                return
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._pause(problem)
                return
            accepted.setblocking(False)
            self._take(accepted, address)

    def _pause(self, problem: OSError) -> None:
        """Stop accepting for a second: the process is out of file descriptors or memory."""
        log.error("cannot accept connections, retrying server=%s: %s", self._name, problem)
        assert self._socket is not None
        assert self._loop is not None
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._socket is not None and self._loop is not None:
            self._loop.add_reader(self._socket.fileno(), self._accept)


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that accepts connections; the event loop's own way loads a DNS encoding.

    Raises:
        OSError: the port cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind((host, port))
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening
