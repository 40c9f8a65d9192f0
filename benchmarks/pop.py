"""Measures pop: messages popped 32 at a time, and acknowledged as batches or one by one.

A round starts a broker, stores messages in four queues, and lets a raw connection pop and
acknowledge all of them, several requests at a time. The processor time is that of the broker; with
it the rate of one processor follows, whatever else the machine does. RocketMQ 5.3.3 gets the same
load.

Examples::

    .venv/bin/python benchmarks/pop.py                                writes the results
    .venv/bin/python benchmarks/pop.py --count 50000 --rounds 1       a look: only prints
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "conformance")]

import kit  # noqa: E402
import servers  # noqa: E402
from codes import Request  # noqa: E402
from wire import Connection  # noqa: E402

COUNT, ROUNDS_MIN = 400_000, 3
NOISE_MAX = 0.3
RATE_MIN, TIMES_MIN = 200_000, 5.0
QUEUES, BODY_BYTES = 4, 100
CHUNK, DEPTH, POPPED_MAX = 500, 8, 32
TOPIC, GROUP = "tickets", "counter"
POP, ACK, BATCH_ACK, SEND = 200050, 200051, 200151, 310
WAIT_S = 120.0
FIELD = {
    name: re.compile(rb'"%b":"([^"]*)"' % name.encode())
    for name in ("popTime", "reviveQid", "startOffsetInfo", "msgOffsetInfo")
}
KINDS = ("batches", "one by one")
PATIENT = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
Popped = tuple[str, str, str, str]
"""Pop time, revive queue, and the lists of start offsets and offsets."""


class Comet(servers.Comet):
    """Ours."""

    def settings(self) -> dict[str, str | int]:
        """Refuse no send because of the load beside it."""
        return super().settings() | PATIENT


class Java53(servers.Java53):
    """RocketMQ."""

    def settings(self) -> dict[str, str | int]:
        """Refuse no send because of the load beside it."""
        return super().settings() | PATIENT


class Desk:
    """A raw connection that writes many requests together and reads their responses."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._received = bytearray()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self, requests: Sequence[tuple[int, str, bytes]]) -> list[bytes]:
        """Send requests, each a code, its fields as JSON and a body; return the responses."""
        frames = []
        for number, (code, fields, body) in enumerate(requests):
            header = (
                '{"code":%d,"flag":0,"language":"JAVA","opaque":%d,"version":475,'
                '"serializeTypeCurrentRPC":"JSON","extFields":{%s}}' % (code, number, fields)
            ).encode()
            size = 4 + len(header) + len(body)
            frames.append(b"%b%b%b%b" % (_u32(size), _u32(len(header)), header, body))
        self._socket.sendall(b"".join(frames))
        return [self._frame() for _ in requests]

    def _frame(self) -> bytes:
        received = self._received
        while len(received) < 4 or len(received) < (end := 4 + int.from_bytes(received[:4], "big")):
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            received += data
        header_end = 8 + int.from_bytes(received[5:8], "big")
        taken = bytes(received[8:header_end])
        del received[:end]
        return taken


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _fill(desk: Desk, count: int) -> None:
    body = b"x" * BODY_BYTES
    for start in range(0, count, CHUNK):
        now_ms = kit.now_ms()
        sends = [
            (
                SEND,
                f'"a":"p","b":"{TOPIC}","c":"TBW102","d":"4","e":"{n % QUEUES}","f":"0",'
                f'"g":"{now_ms}","h":"0","i":"","j":"0","k":"false","m":"false"',
                body,
            )
            for n in range(start, min(start + CHUNK, count))
        ]
        refused = [each for each in desk.ask(sends) if b'"code":0,' not in each]
        if refused:
            raise SystemExit(f"{len(refused)} sends were refused: {refused[0]!r}")


def _pop(desk: Desk) -> list[Popped]:
    now_ms = kit.now_ms()
    fields = (
        f'"consumerGroup":"{GROUP}","topic":"{TOPIC}","queueId":"-1","maxMsgNums":"{POPPED_MAX}",'
        f'"invisibleTime":"60000","pollTime":"0","bornTime":"{now_ms}","initMode":"0","exp":"*",'
        '"expType":"TAG","order":"false"'
    )
    popped = []
    for header in desk.ask([(POP, fields, b"")] * DEPTH):
        found = [FIELD[name].search(header) for name in FIELD]
        if b'"code":0,' in header and all(found):
            popped.append(tuple(each[1].decode() for each in found if each))
    return popped  # type: ignore[return-value]


def _acks(popped: Sequence[Popped], kind: str, broker: str) -> tuple[list[object], int]:
    """Return the requests that acknowledge all that was popped, and how many messages it was."""
    requests: list[object] = []
    count = 0
    for pop_ms, revive, starts, offsets in popped:
        items = []
        for start, listed in zip(starts.split(";"), offsets.split(";"), strict=True):
            flag, queue, first = start.split(" ")
            numbers = [int(number) for number in listed.split(" ")[2].split(",")]
            count += len(numbers)
            if kind == "batches":
                bits = sum(1 << (number - int(first)) for number in numbers)
                items.append(
                    {
                        "c": GROUP, "t": TOPIC, "r": flag, "so": int(first), "q": int(queue),
                        "rq": int(revive), "pt": int(pop_ms), "it": 60_000,
                        "b": base64.b64encode(bits.to_bytes(8, "little")).decode(),
                    }
                )  # fmt: skip
                continue
            for number in numbers:
                receipt = f"{first} {pop_ms} 60000 {revive} {flag} {broker} {queue} {number}"
                fields = (
                    f'"consumerGroup":"{GROUP}","topic":"{TOPIC}","queueId":"{queue}",'
                    f'"extraInfo":"{receipt}","offset":"{number}"'
                )
                requests.append((ACK, fields, b""))
        if items:
            body = json.dumps({"brokerName": broker, "acks": items}).encode()
            requests.append((BATCH_ACK, "", body))
    return requests, count


def _measure(server: servers.RocketServer, count: int, kind: str) -> dict[str, float]:
    """Store messages, then pop and acknowledge them; return figures of the second part."""
    server.start()
    try:
        connection = Connection(("127.0.0.1", server.port))
        kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
        kit.ok(kit.create_group(connection, GROUP))
        connection.close()
        desk = Desk(server.port)
        _fill(desk, count)
        log_bytes = _log_bytes(server)
        before, began_s, left = machine.cpu_seconds(server.pids), time.monotonic(), count
        while left > 0 and time.monotonic() < began_s + WAIT_S:
            requests, taken = _acks(_pop(desk), kind, "broker-a")
            if requests:
                responses = desk.ask(requests)  # type: ignore[arg-type]
                refused = [each for each in responses if b'"code":0,' not in each]
                if refused:
                    raise SystemExit(f"{len(refused)} refused: {refused[0]!r}")
            left -= taken
        wall_s = time.monotonic() - began_s
        cpu_s = machine.cpu_seconds(server.pids) - before
        desk.close()
        done = count - left
        return {
            "messages": done,
            "messages per CPU second": done / cpu_s,
            "messages per second": done / wall_s,
            "log bytes per message": (_log_bytes(server) - log_bytes) / done,
        }
    finally:
        server.stop()


def _log_bytes(server: servers.RocketServer) -> int:
    connection = Connection(("127.0.0.1", server.port))
    try:
        answer = kit.ok(connection.request(Request.GET_BROKER_RUNTIME_INFO)).json()
        return int(answer["table"]["commitLogMaxOffset"])
    finally:
        connection.close()


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    parser = argparse.ArgumentParser(description="Measure pop and acknowledgements.")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--without-rocketmq", action="store_true")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench" / "pop")
    asked = parser.parse_args()
    machine.refuse_other_sources()
    kinds: list[type[servers.RocketServer]] = [Comet] if asked.without_rocketmq else [Comet, Java53]
    rounds: dict[str, list[dict[str, float]]] = {}
    for server in kinds:
        server.prepare()
    with machine.NoiseWatch() as watch:
        for _ in range(asked.rounds):
            for server in kinds:
                for kind in KINDS:
                    figures = _measure(server(asked.folder, flush="ASYNC_FLUSH"), asked.count, kind)
                    rounds.setdefault(f"{server.name}, {kind}", []).append(figures)
                    print(server.name, kind, json.dumps(figures), flush=True)
    loads = {
        "messages": f"{asked.count:,} of {BODY_BYTES} bytes in {QUEUES} queues",
        "pops": f"{POPPED_MAX} messages each, {DEPTH} requests at a time",
    }
    lines = machine.page_head(
        "Pop", loads, rounds=asked.rounds, noise=watch.noise, noise_max=NOISE_MAX
    )
    lines += ["", "| Server, acknowledgements | Messages per CPU second | Messages per second |"
              " Log bytes per message |", "|---|--:|--:|--:|"]  # fmt: skip
    for name, found in rounds.items():
        cells = [
            machine.cell([each[key] for each in found], form)
            for key, form in (
                ("messages per CPU second", ",.0f"),
                ("messages per second", ",.0f"),
                ("log bytes per message", ",.0f"),
            )
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if not asked.without_rocketmq:
        for kind in KINDS:
            ours, theirs = (
                median(each["messages per CPU second"] for each in rounds[f"{server.name}, {kind}"])
                for server in kinds
            )
            lines.append(f"\n{kind}: {ours / theirs:.1f} times RocketMQ's, goal {TIMES_MIN:g}")
    machine.report("pop", lines, rounds, whole=asked.rounds >= ROUNDS_MIN and asked.count >= COUNT)


if __name__ == "__main__":
    main()
