"""A broker that may open few files: connections take none of those that the store needs."""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
from pathlib import Path

import pytest

from cometmq.client import Message, Producer
from support.processes.server import Standalone, standalone

OPEN_FILES = 256
TOPICS = 8
LIMIT_S = 60.0


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process with prlimit(2)")
async def test_a_flood_of_connections_refuses_no_messages(tmp_path: Path) -> None:
    """The store opens files for new queues, for their names and for the checkpoint."""
    with standalone(tmp_path, flushDiskType="SYNC_FLUSH", mappedQueueFilesMax=TOPICS) as server:
        limits = (OPEN_FILES, OPEN_FILES)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        namesrv = f"127.0.0.1:{server.ports.namesrv}"
        async with Producer(namesrv, group="g") as producer:
            await producer.send(Message("before", b"x"))
            with contextlib.ExitStack() as flood:
                refused = connect_until_refused(server, flood)
                for number in range(TOPICS):
                    await producer.send(Message(f"meanwhile-{number}", b"x"))
            await producer.send(Message("after", b"x"))

        assert refused, "the broker accepted more connections than it has descriptors"
        assert server.stop() == 0
        log = server.log.read_text()
        assert "sync has failed" not in log
        assert "refused a connection" in log


def connect_until_refused(server: Standalone, flood: contextlib.ExitStack) -> bool:
    """Open connections until the broker closes one; it keeps the others."""
    for _ in range(2 * OPEN_FILES):
        connection = flood.enter_context(socket.create_connection(server.broker, LIMIT_S))
        connection.settimeout(0.005)
        with contextlib.suppress(TimeoutError):
            return connection.recv(1) == b""
    return False
