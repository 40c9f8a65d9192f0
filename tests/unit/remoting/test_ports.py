"""Free ports: consecutive, and given to one process only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cometmq.model.errors import CometError
from cometmq.remoting import ports
from cometmq.remoting.ports import (
    BLOCK,
    FAST_PORT_GAP,
    FIRST,
    LAST,
    LOOPBACK,
    free_broker_port,
    free_port,
    free_ports,
)


def listening(port: int) -> socket.socket:
    return socket.create_server((LOOPBACK, port))


def block_of(port: int) -> int:
    return (port - FIRST) // BLOCK


@pytest.fixture(autouse=True)
def _fresh_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lanes that no other test has taken ports from."""
    blocks = ports._Blocks()
    monkeypatch.setattr(ports, "_blocks", blocks)
    yield
    blocks.close()


def test_ports_are_no_outgoing_ones_and_all_different() -> None:
    found = [free_port() for _ in range(BLOCK - 1)]

    assert len(set(found)) == BLOCK - 1
    assert all(FIRST <= port <= LAST for port in found)


def test_a_row_is_free_and_passes_over_what_is_taken() -> None:
    first = free_ports(2)
    with listening(first + 4):
        row = free_ports(3)
        assert row == first + 5
        for port in range(row, row + 3):
            listening(port).close()


def test_a_broker_has_its_fast_port_too() -> None:
    port = free_broker_port()
    with listening(port), listening(port - FAST_PORT_GAP), listening(port + 1):
        assert free_broker_port() - FAST_PORT_GAP == port + 2


def test_ports_are_used_again_when_the_block_is_used_up() -> None:
    first = free_port()
    for _ in range(BLOCK - 2):
        free_port()

    assert free_port() == first


def test_another_block_is_taken_when_one_is_full() -> None:
    first = free_port()
    taken = [listening(first)] + [listening(free_port()) for _ in range(BLOCK - 2)]
    try:
        assert block_of(free_port()) != block_of(first)
    finally:
        for server in taken:
            server.close()


def test_other_processes_have_other_blocks() -> None:
    mine = block_of(free_port())
    ask = "import os; from cometmq.remoting.ports import *; os.getpid = lambda: {}"
    ask += "; print(free_port())"
    # the other one begins its search where this one's block is
    pid = os.getpid() + (mine - os.getpid()) % ((LAST - FIRST + 1) // BLOCK)
    said = subprocess.check_output([sys.executable, "-c", ask.format(pid)], text=True)

    assert block_of(int(said)) not in {mine}


def test_a_fork_has_another_block() -> None:
    mine = free_port()
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, str(free_port()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert block_of(int(said.read())) != block_of(mine)


@pytest.mark.parametrize("count", [0, -1, BLOCK])
def test_a_row_has_a_length(count: int) -> None:
    with pytest.raises(ValueError, match=rf"count is {count}, but 1 to {BLOCK - 1}"):
        free_ports(count)


def test_that_none_are_left_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as taken:
        first = taken.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST", first)
        monkeypatch.setattr(ports, "LAST", first + BLOCK - 1)
        with pytest.raises(CometError, match=f"all of {first} to {first + BLOCK - 1}"):
            free_port()
