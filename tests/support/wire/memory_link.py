"""Two real connections joined in memory: what one writes, the other reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cometmq.remoting import Connection, RemotingSettings, RequestHandler, Supervisor
from cometmq.remoting.latencies import Latencies


class _End(asyncio.Transport):
    """One end; bytes reach the other one in the next turn of the loop."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer})
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self.other: _End
        self.reader: Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._loop.call_soon(self.other.deliver, bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def deliver(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self._closing:
            room = self.reader.get_buffer(len(left))
            count = min(len(room), len(left))
            room[:count] = left[:count]
            self.reader.buffer_updated(count)
            left = left[count:]

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.reader.connection_lost, None)
            self._loop.call_soon(self.other.close)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever held back here."""

    def pause_reading(self) -> None:
        """Nothing is ever held back here."""

    def resume_reading(self) -> None:
        """Nothing is ever held back here."""


def link(
    server: Mapping[int, RequestHandler] | None = None,
    client: Mapping[int, RequestHandler] | None = None,
    *,
    on_close: Callable[[Connection], None] | None = None,
    latencies: Latencies | None = None,
) -> tuple[Connection, Connection]:
    """Return the server's and the client's end of one connection.

    Args:
        server, client: the handlers of each end.
        on_close: told when the server's end is closed.
        latencies: counts the responses of the server's end.
    """
    settings: Any = RemotingSettings()
    supervisor = Supervisor("link")
    readers = (
        Connection(
            server or {},
            settings=settings,
            supervisor=supervisor,
            on_close=on_close,
        ),
        Connection(client or {}, settings=settings, supervisor=supervisor),
    )
    readers[0].latencies = latencies
    join(*readers)
    return readers


def join(server: Connection, client: Connection) -> None:
    """Wire the server's end to the client's; both are open then."""
    ends = _End(("10.0.0.9", 51000)), _End(("10.0.0.1", 10911))
    for end, other, reader in zip(ends, reversed(ends), (server, client), strict=True):
        end.other, end.reader = other, reader
    for end in ends:
        end.reader.connection_made(end)
