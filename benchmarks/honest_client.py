"""Sends and pulls at a fixed rate, and measures how long each response takes.

`benchmarks/hostile_connections.py` starts it. Each request is written when it is due, whether or
not earlier ones have their responses, and its latency counts from that time. It ends when its
standard input ends, and prints a JSON list: when each request was due, what became of it (``send``,
``pull`` or ``refused``), and its latency. Requests without a response count until the end.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "conformance"))

import kit
import wire

BODY = bytes(1024)
TOPIC = "honest"
LIMIT_S = 60.0


class Client:
    """One connection with any number of requests in flight."""

    def __init__(self, port: int, offset: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._offset = offset
        self._received = bytearray()
        self._asked: dict[int, tuple[float, str]] = {}
        self.found: list[tuple[float, str, float]] = []

    def run(self, rate: float) -> None:
        """Send requests until the standard input ends."""
        due_s = time.monotonic()
        number = 0
        while True:
            left_s = max(0.0, due_s - time.monotonic())
            ready = select.select([sys.stdin, self._socket], [], [], left_s)[0]
            if self._socket in ready:
                self._receive()
            if sys.stdin in ready:
                break
            if time.monotonic() >= due_s:
                number += 1
                self._request(number, due_s)
                due_s += 1 / rate
        now_s = time.monotonic()
        self.found += [(due_s, "refused", now_s - due_s) for due_s, _ in self._asked.values()]

    def _request(self, number: int, due_s: float) -> None:
        if number % 2:
            name, code, body = "send", kit.Request.SEND_MESSAGE_V2, BODY
            fields = kit.send_fields(TOPIC)
        else:
            name, code, body = "pull", kit.Request.PULL_MESSAGE, b""
            fields = kit.pull_fields("readers", TOPIC, self._offset, count=1)
        self._asked[number] = (due_s, name)
        self._socket.sendall(wire.encode(wire.Command(code, fields, body, opaque=number)))

    def _receive(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker has closed the honest connection")
        now_s = time.monotonic()
        self._received += data
        while len(self._received) >= 4:
            end = 4 + struct.unpack_from(">I", self._received)[0]
            if len(self._received) < end:
                return
            answer = wire.decode(bytes(self._received[4:end]))
            del self._received[:end]
            due_s, name = self._asked.pop(answer.opaque)
            # Flow control refuses what the broker reads too late.
            self.found.append((due_s, name if answer.code == 0 else "refused", now_s - due_s))


def main(port: int, rate: float) -> None:
    """Create the topic and measure."""
    connection = wire.Connection(("127.0.0.1", port), timeout=LIMIT_S)
    kit.ok(kit.create_topic(connection, TOPIC))
    offset = kit.store(connection, TOPIC, BODY).queue_offset
    kit.wait_for_queue(connection, TOPIC, offset + 1)
    connection.close()
    client = Client(port, offset)
    print("ready", flush=True)
    client.run(rate)
    json.dump(client.found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
