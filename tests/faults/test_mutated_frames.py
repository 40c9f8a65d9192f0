"""Damaged input closes its connection to a live server, and does nothing else.

Frames that official clients sent are changed at random and sent to a broker, a name server and a
controller. Frames: 20,000; on long runs ten million, in 40 rounds, each on fresh servers. A round
follows from its seed, which it prints: ``COMETMQ_FRAMES_SEED=SEED`` sends the same frames again.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import kit
import pytest
from codes import Answer, Request
from wire import Command, Connection, encode

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import command_at
from cometmq.protocol.frame import FRAME_BYTES_MAX
from support import build
from support.controller_process import ControllerProcess, controller_process
from support.mutated_frames import Mutator, recorded_frames
from support.server import Address, Standalone, standalone
from support.tiers import rounds

FRAMES = rounds(test=20_000, long=10_000_000)
FRAMES_OF_ROUND = min(FRAMES, 250_000)
ROUNDS = 1 if build.EXPECTED == "interpreted" else FRAMES // FRAMES_OF_ROUND
FRAMES_OF_CONNECTION = (5, 25, 100)
PROBE_EVERY = 50
"""Connections between two sound clients."""
GROWTH_BYTES_MAX = 32 * 1024 * 1024
HANGS_S = 120.0
"""It only ends what hangs."""
TOPIC = "sound"
NO_CODE, OPAQUE = 9, 0x7E57_F00D
"""A request that every server refuses at once: its response says that all before it were read."""
SHARES = {"broker": 0.6, "namesrv": 0.25, "controller": 0.15}

LOST_MASTER = "no master can be elected, all of the in-sync set are lost"
"""What a controller logs of brokers that were registered here and have gone."""

SETTINGS = {
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "brokerFastFailureEnable": "false",
    "mappedFileSizeCommitLog": 8 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


class Servers:
    """A broker and a name server in one process, and a controller."""

    def __init__(self, standalone: Standalone, controller: ControllerProcess) -> None:
        self.standalone, self.controller = standalone, controller
        self.addresses: dict[str, Address] = {
            "broker": standalone.broker,
            "namesrv": standalone.namesrv,
            "controller": controller.address,
        }

    def rss_bytes(self) -> int:
        """The memory of both processes."""
        return self.standalone.rss_bytes() + self.controller.rss_bytes()

    def cpu_s(self) -> float:
        """The processor time of both processes."""
        return sum(
            sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            for pid in (self.standalone.pid, self.controller.process.pid)
        ) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        running = stack.enter_context(standalone(tmp_path, **SETTINGS))
        yield Servers(running, stack.enter_context(controller_process(tmp_path / "controller")))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path, **SETTINGS) as running:
        yield running


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_live_server_survives_mutated_frames(servers: Servers, _round: int) -> None:
    """Servers serve sound clients at all times, log no error and use no more memory."""
    seed = int(os.environ.get("COMETMQ_FRAMES_SEED", random.randrange(2**32)))
    print(f"seed={seed}")
    chance = random.Random(seed)
    mutators = {role: Mutator(chance, recorded_frames(role)) for role in SHARES}
    roles, shares = tuple(SHARES), tuple(SHARES.values())
    prepare(servers.standalone)
    answered, sent = Counter[str](), Counter[str]()
    memory: list[int] = []
    connections = 0

    while sum(sent.values()) < FRAMES_OF_ROUND:
        count = chance.choice(FRAMES_OF_CONNECTION)
        (role,) = chance.choices(roles, shares)
        mutator = mutators[role]
        content = [mutator.readable() for _ in range(count - 1)]
        sent[role] += count
        answered[role] += responses_to(servers.addresses[role], content, mutator.broken())
        connections += 1
        if connections % PROBE_EVERY == 0:
            probe(servers)
            memory.append(servers.rss_bytes())

    probe(servers)
    shown = [size >> 20 for size in memory[:: max(1, len(memory) // 8)]]
    print(f"sent={dict(sent)} answered={dict(answered)} cpu_s={servers.cpu_s():.0f}")
    print(f"memory_mib={shown}")
    check_log(servers.standalone.log)
    check_log(servers.controller.log, allowed=LOST_MASTER)
    settled, end = memory[len(memory) // 4], servers.rss_bytes()
    assert end - settled <= GROWTH_BYTES_MAX, f"grew from {settled} to {end} bytes"
    for role, count in sent.items():
        assert answered[role] > count // 2, f"only {answered[role]} of {count} answered by {role}"
    assert servers.standalone.stop() == 0
    assert servers.controller.stop() == 0


def responses_to(address: Address, frames: list[bytes], last: bytes) -> int:
    """Send frames; when all have reached a handler, send the last one and leave.

    Returns the number of the responses.
    """
    command = Command(NO_CODE, opaque=OPAQUE)
    received = bytearray()
    count = start = 0
    with (
        socket.create_connection(address, HANGS_S) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(b"".join(frames) + encode(command))
        is_last = False
        while chunk := connection.recv(1 << 16):
            received += chunk
            while (end := frame_end(received, start)) <= len(received):
                is_last = is_last or decode_opaque(received, start) == OPAQUE
                start, count = end, count + 1
            if is_last:
                connection.sendall(last)
                connection.shutdown(socket.SHUT_WR)
                is_last = False
    return count


def frame_end(data: bytearray, start: int) -> int:
    """Where a frame ends; beyond the data if its length has not arrived."""
    if len(data) < start + 4:
        return start + 4
    return start + 4 + int.from_bytes(data[start : start + 4])


def decode_opaque(data: bytearray, start: int) -> int:
    """The opaque of the response that begins here."""
    command = command_at(data, start, len(data), FRAME_BYTES_MAX)
    assert command is not None
    return command.opaque


def prepare(server: Standalone) -> None:
    broker = Connection(server.broker)
    kit.ok(kit.create_topic(broker, TOPIC))
    kit.ok(kit.create_group(broker, TOPIC))
    broker.close()


def probe(servers: Servers) -> None:
    """A sound client is served as ever."""
    server = servers.standalone
    assert server.running, f"the server ended\n{server.log_end()}"
    broker, namesrv = (
        Connection(server.broker, timeout=HANGS_S),
        Connection(server.namesrv, timeout=HANGS_S),
    )
    stored = kit.store(broker, TOPIC, b"sound")
    assert kit.read_one(broker, TOPIC, TOPIC, offset=stored.queue_offset).body == b"sound"
    kit.ok(namesrv.request(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}))
    broker.close()
    namesrv.close()
    controller = Connection(servers.controller.address, timeout=HANGS_S)
    metadata = kit.ok(controller.request(RequestCode.CONTROLLER_GET_METADATA_INFO))
    assert metadata.fields["isLeader"] == "true"
    controller.close()


def check_log(log: Path, *, allowed: str = "no such text") -> None:
    """Bad input may be logged as a warning; an error or a traceback is a missing check."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if " ERROR " in line or line.startswith("Traceback")]
    bad = [line for line in errors if allowed not in line]
    assert not bad, f"{len(bad)} errors in the log, the first:\n" + context(lines, bad[0])


def context(lines: list[str], line: str) -> str:
    at = lines.index(line)
    return "\n".join(lines[at : at + 25])


def test_a_header_field_that_is_not_utf8_is_answered_and_no_error(server: Standalone) -> None:
    connection = Connection(server.broker)
    command = connection.command(Request.QUERY_MESSAGE, {"topic": "?" * 4, "key": "k"})
    connection.send_raw(encode(command).replace(b"????", b"\xe0\xff\xe0\xff"))

    assert connection.response(command.opaque).code == Answer.SYSTEM_ERROR
    connection.close()
    check_log(server.log)
