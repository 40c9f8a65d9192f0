"""Measures a million timer messages that wait: the memory of the broker, and how late messages are.

A round starts a broker and stores messages that are due in an hour, then messages of which 20,000
are due in each second. How late these were is what the closed store says: the store time in their
topic, less the time of delivery. RocketMQ 5.3.3 gets the same load.

Examples::

    .venv/bin/python benchmarks/timers.py                        writes benchmarks/results/timers.md
    .venv/bin/python benchmarks/timers.py --waiting 100000 --seconds 3 --rounds 1      only prints
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS)]

import servers  # noqa: E402

from cometmq.protocol.codes import RequestCode  # noqa: E402
from cometmq.protocol.command import Command, encode_command  # noqa: E402
from cometmq.protocol.properties import encode_properties  # noqa: E402
from cometmq.store import MessageStore, StoreSettings  # noqa: E402
from support.stores.scheduled_messages import Wire  # noqa: E402

TOPIC, QUEUES = "later", 4
WAITING, DUE, SECONDS, ROUNDS_MIN = 1_000_000, 20_000, 10, 3
HOUR_MS = 3_600_000
LEAD_S = 10.0
"""Seconds between the last send and the first message that is due, at least; more for RocketMQ."""
SENDS_S = 10_000
"""Sends a second at least: before the first is due all of them must be stored."""
SETTLE_S = 5.0
MEMORY_MIB_MAX, LATE_S_MAX = 100, 1.1
NOISE_MAX = 0.3
PATIENT = {"waitTimeMillsInSendQueue": 600_000, "osPageCacheBusyTimeOutMills": 60_000}
COLUMNS = ("stored", "memory", "resident", "p50", "p99", "max", "min", "twice", "missing")


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


SERVERS: tuple[type[servers.RocketServer], ...] = (Comet, Java53)


def main() -> None:
    """Measure what was asked for, print it, and write the result files of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    rows: list[dict[str, Any]] = []
    for kind in SERVERS[: 1 if asked.ours else 2]:
        kind.prepare()
        rows.append({"server": kind.name, **{name: [] for name in COLUMNS}})
    with machine.NoiseWatch() as watch:
        for number in range(asked.rounds):
            for row, kind in zip(rows, SERVERS, strict=False):
                server = kind(asked.folder / f"timers-{kind.name}-{number}", flush="ASYNC_FLUSH")
                found = _measure(server, asked, row)
                for name in COLUMNS:
                    row[name].append(found[name])
                print(f"{kind.name}: latest {found['max']:.3f} s", flush=True)
    whole = (asked.waiting, asked.due, asked.seconds) == (WAITING, DUE, SECONDS)
    whole = whole and asked.rounds >= ROUNDS_MIN and not asked.ours
    lines = [*_head(asked, rows, watch.noise), *_table(rows, watch.noise, whole)]
    machine.report("timers", lines, rows, whole=whole)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure memory and lateness of timer messages.")
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--due", type=int, default=DUE, help="messages that are due in each second")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--ours", action="store_true", help="leave RocketMQ out")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


def _frame(number: int, due_ms: int) -> bytes:
    """Return a send of a message that is due at a time."""
    properties = {"UNIQ_KEY": f"{number:032X}", "TIMER_DELIVER_MS": str(due_ms)}
    fields = {
        "a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
        "g": str(due_ms), "h": "0", "j": "0", "k": "false", "m": "false",
        "i": encode_properties(properties).decode(),
    }  # fmt: skip
    code = RequestCode.SEND_MESSAGE_V2
    return encode_command(Command(code, fields=fields, body=b"%d" % number))


def _measure(
    server: servers.RocketServer, asked: argparse.Namespace, row: dict[str, Any]
) -> dict[str, float]:
    server.start()
    row.setdefault("version", server.version())
    try:
        with closing(Wire(("127.0.0.1", server.port))) as wire:
            wire.create_topic(TOPIC, QUEUES)
            before = _memory_mib(server.pids)
            far_ms, began_s = int(time.time() * 1000) + HOUR_MS, time.monotonic()
            wire.send(_frame(n, far_ms + n % HOUR_MS) for n in range(asked.waiting))
            stored_s = time.monotonic() - began_s
            time.sleep(SETTLE_S)
            after = _memory_mib(server.pids)
            total = asked.due * asked.seconds
            first_ms = int((time.time() + LEAD_S + total / SENDS_S) * 1000)
            wire.send(
                _frame(asked.waiting + n, first_ms + n * 1000 // asked.due) for n in range(total)
            )
            if time.time() * 1000 > first_ms:
                sys.exit("the first messages were due before the last was sent: too slow a machine")
            deadline_s = first_ms / 1000 + 10 * asked.seconds
            while wire.delivered(TOPIC, QUEUES) < total and time.time() < deadline_s:
                time.sleep(0.5)
            time.sleep(1.0)
        for process in reversed(server.processes):
            process.kill()
        late_s, numbers = _delivered(server.store)
        return {
            "stored": asked.waiting / stored_s,
            "memory": after[0] - before[0],
            "resident": after[1] - before[1],
            "p50": late_s[len(late_s) // 2],
            "p99": late_s[len(late_s) * 99 // 100],
            "max": late_s[-1],
            "min": late_s[0],
            "twice": sum(count - 1 for count in numbers.values()),
            "missing": total - len(numbers),
        }
    finally:
        server.stop()


def _memory_mib(pids: Sequence[int]) -> tuple[float, float]:
    """Return resident memory of processes: the part that is in no file, and all of it."""
    found = {"RssAnon": 0, "VmRSS": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] += int(value.split()[0])
    return found["RssAnon"] / 1024, found["VmRSS"] / 1024


def _delivered(root: Path) -> tuple[list[float], Counter[bytes]]:
    """Return how late the delivered messages were, and how often each is there."""
    file_bytes = max(path.stat().st_size for path in (root / "commitlog").iterdir())
    store = MessageStore(StoreSettings(root=root, commit_log_file_bytes=file_bytes))
    store.open()
    late_s: list[float] = []
    numbers: Counter[bytes] = Counter()
    try:
        for facts in store.facts_from(store.min_log_offset):
            if facts.topic == TOPIC.encode() and b"TIMER_DEQUEUE_MS" in facts.properties:
                text = facts.properties
                due_ms = int(text.split(b"TIMER_DELIVER_MS\x01", 1)[1].split(b"\x02", 1)[0])
                numbers[text.split(b"UNIQ_KEY\x01", 1)[1].split(b"\x02", 1)[0]] += 1
                late_s.append((facts.store_ms - due_ms) / 1000)
    finally:
        store.abandon()
    return sorted(late_s), numbers


def _head(
    asked: argparse.Namespace, rows: Sequence[dict[str, Any]], noise: machine.Noise
) -> list[str]:
    loads = {
        "load": f"{asked.waiting:,} messages that wait for an hour, then {asked.due:,} that are due"
        f" in each of {asked.seconds} seconds, to {QUEUES} queues; asynchronous flush",
    } | {row["server"]: row["version"] for row in rows}
    return machine.page_head(
        "Timer messages: memory of a million, and how late they are",
        loads,
        rounds=asked.rounds,
        noise=noise,
        noise_max=NOISE_MAX,
    )


def _table(rows: Sequence[dict[str, Any]], noise: machine.Noise, whole: bool) -> list[str]:
    lines = [
        "| server | stored/s | memory of what waits, MiB | with mapped files, MiB | median, s"
        " | 99 of 100 within, s | latest, s | earliest, s | twice | missing |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    forms = (",.0f", ".0f", ".0f", ".3f", ".3f", ".3f", ".3f", ",.0f", ",.0f")
    for row in rows:
        cells = [machine.cell(row[name], form) for name, form in zip(COLUMNS, forms, strict=True)]
        lines.append(f"| {row['server']} | {' | '.join(cells)} |")
    ours = rows[0]
    lines.append("")
    for text, worst, most in (
        ("memory of what waits, MiB", max(ours["memory"]), MEMORY_MIB_MAX),
        ("latest, s", max(ours["max"]), LATE_S_MAX),
    ):
        is_judged = whole and noise.total <= NOISE_MAX
        verdict = ("met" if worst <= most else "missed") if is_judged else "no verdict"
        lines.append(f"- target of ours: {text} ≤ {most:g}: {verdict}")
    return lines


if __name__ == "__main__":
    main()
