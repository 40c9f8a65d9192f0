"""A listening port, and peers that misbehave."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.remoting import RemotingServer
from cometmq.system.failure_log import LINES_MAX

GIANT_FRAME = b"\x7f\xff\xff\xff" * 2


async def test_however_many_connections_send_garbage_the_log_stays_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = RemotingServer({}, name="broker")
    await server.start("127.0.0.1", 0)
    for _ in range(3 * LINES_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GIANT_FRAME)
        assert await reader.read() == b"", "the connection was not closed"
        writer.close()
    await server.stop()

    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "malformed input" in line]) == LINES_MAX
    assert lines[-1] == f"{2 * LINES_MAX} more connections refused or closed server=broker"
