"""One million timer messages that wait: the memory of the broker, and how late they are.

    python benchmarks/timers.py [--waiting 1000000] [--due 20000] [--seconds 10]

A broker of its own gets the messages that wait, which are due in an hour, then messages of which
a number is due in each second. The report has the resident memory before and after, and how late
the due messages were stored in their topic.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.properties import encode_properties
from cometmq.store import MessageStore, StoreSettings
from support.processes.server import Standalone
from support.stores.scheduled_messages import Wire

TOPIC, QUEUES = "later", 4
HOUR_MS = 3_600_000


def frame(number: int, due_ms: int) -> bytes:
    """Return a send of a message that is due at a time."""
    properties = {"UNIQ_KEY": f"{number:032X}", "TIMER_DELIVER_MS": str(due_ms)}
    fields = {
        "a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
        "g": str(due_ms), "h": "0", "j": "0", "k": "false", "m": "false",
        "i": encode_properties(properties).decode(),
    }  # fmt: skip
    code = RequestCode.SEND_MESSAGE_V2
    return encode_command(Command(code, fields=fields, body=b"%d" % number))


def memory_kib(pid: int) -> dict[str, int]:
    """Return resident memory of a process: all of it, and the part that is not in files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon")}


def lateness_ms(root: Path) -> list[int]:
    """Return how late each message was stored in its topic."""
    file_bytes = max(path.stat().st_size for path in (root / "commitlog").iterdir())
    store = MessageStore(StoreSettings(root=root, commit_log_file_bytes=file_bytes))
    store.open()
    found: list[int] = []
    try:
        for facts in store.facts_from(store.min_log_offset):
            if facts.topic == TOPIC.encode() and b"TIMER_DEQUEUE_MS" in facts.properties:
                text = facts.properties.split(b"TIMER_DELIVER_MS\x01", 1)[1]
                found.append(facts.store_ms - int(text.split(b"\x02", 1)[0]))
    finally:
        store.abandon()
    return sorted(found)


def main() -> None:
    """Run the benchmark, and print its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--due", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "flushDiskType": "ASYNC_FLUSH",
            "waitTimeMillsInSendQueue": 600_000,
            "osPageCacheBusyTimeOutMills": 60_000,
        }
        server = Standalone(Path(folder), settings=settings)
        server.start()
        with closing(Wire(server.broker)) as wire:
            wire.create_topic(TOPIC, QUEUES)
            before = memory_kib(server.pid)
            began_s = time.time()
            far_ms = int(began_s * 1000) + HOUR_MS
            wire.send(frame(n, far_ms + n % HOUR_MS) for n in range(asked.waiting))
            print(f"stored {asked.waiting} messages that wait in {time.time() - began_s:.1f} s")
            time.sleep(3)
            after = memory_kib(server.pid)
            for name in before:
                print(
                    f"{name}: {before[name] / 1024:.0f} MiB before, {after[name] / 1024:.0f} after"
                )
            total = asked.due * asked.seconds
            first_ms = int(time.time() * 1000) + 10_000 + total // 2
            wire.send(
                frame(asked.waiting + n, first_ms + n * 1000 // asked.due) for n in range(total)
            )
            print(f"{(first_ms / 1000) - time.time():.1f} s until the first is due")
            deadline_s = first_ms / 1000 + asked.seconds * 10
            while wire.delivered(TOPIC, QUEUES) < total and time.time() < deadline_s:
                time.sleep(0.5)
            print(f"delivered {wire.delivered(TOPIC, QUEUES)} of {total}")
        server.kill()
        found = lateness_ms(Path(folder) / "store")
        print(
            f"late: median {found[len(found) // 2]} ms, 99 % {found[len(found) * 99 // 100]} ms,"
            f" most {found[-1]} ms, least {found[0]} ms"
        )


if __name__ == "__main__":
    main()
