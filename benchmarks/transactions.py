"""Measures transactions on a broker that has a million of them open, and a million decided.

A round starts a broker, and measures on it, one after the other:

- ``END_TRANSACTION``, commit and rollback in turn, of transactions of an empty broker;
- the check service, while it puts a million open half messages back and asks their producer;
- ``END_TRANSACTION`` with as many open and decided ones, of the answers to half of these checks;
- the check service again, which passes over all that are decided and asks about the rest;
- the memory that is not backed by files, after each of these, and the slowest of the sends that
  come every 10 ms beside the checks;
- the time of a start, which reads which half messages are decided, and how fast the first round of
  checks then passes over them, to one that is open behind all others.

The first half message of all is immune for a day, so that no offset before the last one is done for
good: what a broker must remember is as large as it gets.

Examples::

    .venv/bin/python benchmarks/transactions.py                              writes the results
    .venv/bin/python benchmarks/transactions.py --count 50000 --rounds 1     a look: only prints
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "conformance")]

import kit  # noqa: E402
import wire  # noqa: E402

from support.processes.server import Standalone  # noqa: E402

COUNT = 1_000_000
ROUNDS_MIN = 3
"""Fewer rounds give no verdict, and no result file."""
NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""
RATE_MIN, GROWTH_MIB_MAX = 50_000, 100.0
CHUNK = 500
"""Requests that are written together, and whose responses are then awaited."""
SMALL_PART = 20
"""An empty broker gets this part of the transactions."""
BODY_BYTES = 100
GROUP, TOPIC = "desk", "orders"
DAY_S = 86_400
WAIT_S = 600.0
PING_S = 0.01
SETTINGS: dict[str, object] = {
    "flushDiskType": "ASYNC_FLUSH",
    "transactionCheckInterval": 1000,
    "transactionTimeOut": DAY_S * 1000,
    "transactionCheckMax": 1_000_000,
    "osPageCacheBusyTimeOutMills": 60_000,
    "waitTimeMillsInSendQueue": 60_000,
}
HEAD = (
    '{"code":%d,"flag":%d,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
    '"version":407,"extFields":{%s}}'
)
SEND = (
    '"a":"desk","b":"orders","c":"TBW102","d":"4","e":"0","f":"4","g":"%d","h":"0","j":"0",'
    '"k":"false","m":"false","i":"TRAN_MSG\\u0001true\\u0002PGROUP\\u0001desk\\u0002'
    'UNIQ_KEY\\u0001%032X\\u0002%s"'
)
END = (
    '"producerGroup":"desk","tranStateTableOffset":"%d","commitLogOffset":"%d",'
    '"commitOrRollback":"%d","fromTransactionCheck":"%s","msgId":"x","transactionId":"x"'
)
IMMUNE = f"CHECK_IMMUNITY_TIME_IN_SECONDS\\u0001{DAY_S}\\u0002"
MESSAGE_ID = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})"')
QUEUE_OFFSET = re.compile(rb'"queueOffset":"?(\d+)')
CHECK = {
    name: re.compile(b'"%b":"?(\\d+)' % name.encode())
    for name in ("tranStateTableOffset", "commitLogOffset")
}
Offsets = tuple[int, int]
"""Queue offset and log offset of a half message."""


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    rounds: list[dict[str, float]] = []
    with machine.NoiseWatch() as watch:
        for _ in range(asked.rounds):
            rounds.append(_round(asked.folder / "transactions", asked.count))
            print(json.dumps(rounds[-1]), flush=True)
    lines = [*_head(asked, watch.noise), *_table(rounds, watch.noise)]
    machine.report(
        "transactions", lines, rounds, whole=asked.rounds >= ROUNDS_MIN and asked.count >= COUNT
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a broker with very many transactions.")
    parser.add_argument("--count", type=int, default=COUNT, help="open transactions, and decided")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


# --- the load -----------------------------------------------------------------------------------


class Desk:
    """A producer on a raw connection; it counts frames instead of decoding them."""

    def __init__(self, server: Standalone) -> None:
        self._socket = socket.create_connection(server.broker, WAIT_S)
        self._received = bytearray()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def frames(self, count: int) -> bytes:
        """Wait for so many frames; returns their bytes."""
        end = 0
        while count:
            while len(self._received) < end + 4:
                self._receive()
            end += 4 + int.from_bytes(self._received[end : end + 4], "big")
            while len(self._received) < end:
                self._receive()
            count -= 1
        taken = bytes(self._received[:end])
        del self._received[:end]
        return taken

    def _receive(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        self._received += data

    def request(self, code: int, all_fields: Sequence[str], body: bytes = b"") -> bytes:
        """Send requests of one code together; returns all responses, which must be successes."""
        frames = []
        for number, fields in enumerate(all_fields):
            header = (HEAD % (code, 0, number, fields)).encode()
            frames.append(
                (4 + len(header) + len(body)).to_bytes(4, "big")
                + len(header).to_bytes(4, "big")
                + header
                + body
            )
        self._socket.sendall(b"".join(frames))
        responses = self.frames(len(frames))
        succeeded = responses.count(b'"code":0,')
        if succeeded != len(frames):
            raise SystemExit(
                f"{len(frames) - succeeded} requests were refused: {responses[:500]!r}"
            )
        return responses


def _chunks(count: int) -> Iterator[range]:
    for start in range(0, count, CHUNK):
        yield range(start, min(start + CHUNK, count))


def _prepare(desk: Desk, count: int, *, immune: bool = False) -> list[Offsets]:
    """Store half messages; returns where they are."""
    body = b"x" * BODY_BYTES
    found: list[Offsets] = []
    for numbers in _chunks(count):
        now_ms = kit.now_ms()
        more = IMMUNE if immune else ""
        sends = [SEND % (now_ms, now_ms << 32 | number, more) for number in numbers]
        responses = desk.request(310, sends, body)
        offsets = [int(text) for text in QUEUE_OFFSET.findall(responses)]
        logs = [int(text, 16) for text in MESSAGE_ID.findall(responses)]
        found += zip(offsets, logs, strict=True)
    return found


def _end(desk: Desk, halves: Sequence[Offsets], *, is_answer: bool) -> float:
    """Commit and roll back in turn; returns the decisions per second."""
    is_from_check = str(is_answer).lower()
    began_s = time.monotonic()
    for numbers in _chunks(len(halves)):
        ends = [END % (*halves[n], (8, 12)[n % 2], is_from_check) for n in numbers]
        desk.request(37, ends)
    return len(halves) / (time.monotonic() - began_s)


def _await_checks(
    server: Standalone, count: int, act: Callable[[], object]
) -> tuple[list[Offsets], float, float]:
    """Let a producer be asked about so many half messages.

    Returns:
        Where they are now, the checks per second, and the slowest send beside them in ms.
    """
    asked = Desk(server)
    ping = Ping(server)
    try:
        body = json.dumps({"clientID": "desk", "producerDataSet": [{"groupName": GROUP}]}).encode()
        asked.request(34, ['"none":""'], body)
        ping.start()
        act()
        parts = [asked.frames(1)]
        began_s = time.monotonic()
        left = count - 1
        while left:
            some = min(left, 10_000)
            parts.append(asked.frames(some))
            left -= some
        rate = max(count - 1, 1) / (time.monotonic() - began_s)
    finally:
        ping.stop()
        asked.close()
    found: list[Offsets] = []
    for part in parts:
        columns = [[int(text) for text in name.findall(part)] for name in CHECK.values()]
        found += zip(*columns, strict=True)
    return found, rate, ping.slowest_ms


class Ping(threading.Thread):
    """Sends a small message every 10 ms."""

    def __init__(self, server: Standalone) -> None:
        super().__init__()
        self._connection = wire.Connection(server.broker, timeout=WAIT_S)
        self._stopped = threading.Event()
        self.slowest_ms = 0.0

    def run(self) -> None:
        """Send until `stop`."""
        while not self._stopped.wait(PING_S):
            began_s = time.monotonic()
            kit.ok(kit.send(self._connection, "ping", b"x"))
            self.slowest_ms = max(self.slowest_ms, (time.monotonic() - began_s) * 1000)

    def stop(self) -> None:
        """End, with the connection."""
        self._stopped.set()
        if self.is_alive():
            self.join()
        self._connection.close()


# --- one round ----------------------------------------------------------------------------------


def _round(folder: Path, count: int) -> dict[str, float]:
    """Measure everything once."""
    shutil.rmtree(folder, ignore_errors=True)
    server = Standalone(folder, settings=SETTINGS)
    found: dict[str, float] = {}
    server.start()
    try:
        decided = _measure(server, count, found)
        server.stop()
        began_s = time.monotonic()
        server.start()
        found["start s"] = time.monotonic() - began_s
        began_s = time.monotonic()
        _await_checks(server, 1, lambda: _let_time_out(server))
        found["passed/s"] = decided / (time.monotonic() - began_s)
        return found
    finally:
        if server.running:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _measure(server: Standalone, count: int, found: dict[str, float]) -> int:
    """Measure all but the start; returns how many half messages are decided at the end."""
    desk = Desk(server)
    try:
        _prepare(desk, 1, immune=True)
        few = _prepare(desk, count // SMALL_PART)
        found["END/s empty"] = _end(desk, few, is_answer=False)
        before = _memory_mib(server)
        began_s = time.monotonic()
        _prepare(desk, count)
        found["prepares/s"] = count / (time.monotonic() - began_s)
        found["MiB open"] = _memory_mib(server) - before
        copies, found["checks/s open"], found["slowest send ms"] = _await_checks(
            server, count, lambda: _let_time_out(server)
        )
        found["MiB open and decided"] = _memory_mib(server) - before
        _never_time_out(server)
        found["END/s"] = _end(desk, copies[: count // 2], is_answer=True)
        found["MiB half ended"] = _memory_mib(server) - before
        rest, found["checks/s rest"], found["slowest send ms, rest"] = _await_checks(
            server, count - count // 2, lambda: _let_time_out(server)
        )
        found["MiB at the end"] = _memory_mib(server) - before
        _never_time_out(server)
        _end(desk, rest, is_answer=True)
        _prepare(desk, 1)
        return len(few) + len(copies) + count + len(rest)
    finally:
        desk.close()


def _let_time_out(server: Standalone) -> None:
    _change(server, transactionTimeOut=1)


def _never_time_out(server: Standalone) -> None:
    _change(server, transactionTimeOut=DAY_S * 1000)


def _change(server: Standalone, **settings: object) -> None:
    connection = wire.Connection(server.broker, timeout=WAIT_S)
    try:
        kit.ok(kit.update_broker_config(connection, **settings))
    finally:
        connection.close()


def _memory_mib(server: Standalone) -> float:
    return server.rss_bytes() / (1 << 20)


# --- the result ---------------------------------------------------------------------------------


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    loads = {
        "transactions": f"{asked.count:,}, each of {BODY_BYTES} bytes; one at the front stays"
        " undecided; asynchronous flush",
        "load": f"one connection with up to {CHUNK} requests in flight, in Python",
    }
    return machine.page_head(
        "Very many transactions", loads, rounds=asked.rounds, noise=noise, noise_max=NOISE_MAX
    )


ROWS = {
    "END/s empty": ("decisions a second of END_TRANSACTION, empty broker", None),
    "prepares/s": ("half messages a second", None),
    "checks/s open": ("checks a second, all open", RATE_MIN),
    "END/s": ("decisions a second of END_TRANSACTION, as many open and decided", None),
    "checks/s rest": ("checks a second, half of them decided meanwhile", RATE_MIN),
    "slowest send ms": ("slowest send beside the checks, ms", None),
    "slowest send ms, rest": ("slowest send beside the second checks, ms", None),
    "MiB open": ("memory for the open ones, MiB", GROWTH_MIB_MAX),
    "MiB open and decided": ("memory for as many open and decided, MiB", GROWTH_MIB_MAX),
    "MiB half ended": ("memory when half has ended, MiB", GROWTH_MIB_MAX),
    "MiB at the end": ("memory after the second checks, MiB", GROWTH_MIB_MAX),
    "start s": ("start with all of them, s", None),
    "passed/s": ("decided half messages that the first round passes over a second", RATE_MIN),
}


def _table(rounds: Sequence[dict[str, float]], noise: machine.Noise) -> list[str]:
    lines = ["| | | target |", "|---|--:|---|"]
    for key, (text, target) in ROWS.items():
        values = sorted(found[key] for found in rounds)
        digits = 0 if "/s" in key else 1
        cell = f"{median(values):,.{digits}f} ({values[0]:,.{digits}f}, {values[-1]:,.{digits}f})"
        lines.append(f"| {text} | {cell} | {_verdict(key, values, target, noise)} |")
    return lines


def _verdict(key: str, values: Sequence[float], target: float | None, noise: machine.Noise) -> str:
    if target is None:
        return ""
    is_least = not key.startswith("MiB")
    sign = "≥" if is_least else "≤"
    if len(values) < ROUNDS_MIN or noise.total > NOISE_MAX:
        return f"{sign} {target:,g} no verdict"
    is_met = values[0] >= target if is_least else values[-1] <= target
    return f"{sign} {target:,g} {'met' if is_met else 'missed'}"


if __name__ == "__main__":
    main()
