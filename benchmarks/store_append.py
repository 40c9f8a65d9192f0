"""Times the store alone: appending, reading back, looking up, and syncing.

``python benchmarks/store_append.py`` times the build at hand; with ``COMETMQ_BUILD=interpreted`` in
the environment, the interpreted one. Each figure is the median of several runs on fresh files,
in CPU time, but for the sync, which is the disk's own time.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from cometmq.cli.build import version_line
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.hashing import java_hash
from cometmq.store import MessageStore, NewRecord, StoreSettings, TagMatcher

ON_DISK = Path(__file__).resolve().parent.parent / "build" / "bench"
RUNS = 5
MESSAGES = 50_000
QUEUES = 8
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4)
PROPERTIES = "KEYS\x01K{0:011}\x02UNIQ_KEY\x017F0000010000000000000000{0:08}\x02WAIT\x01true\x02"
PROPERTIES += "TAGS\x01TagA"


def main() -> None:
    """Time everything and print one line each."""
    print(version_line())
    report("append 128 bytes, two keys, one tag", lambda store: append(store, b"x" * 128))
    report("append 1 KiB, two keys, one tag", lambda store: append(store, b"x" * 1024))
    report("append batches of 32 x 128 bytes", append_batches)
    report("read 32 at a time", read, fill=True)
    report("read 32 at a time by tag", lambda store: read(store, "TagA"), fill=True)
    report("look up a key", look_up, fill=True)
    report("append 128 bytes and sync", append_and_sync, clock=time.perf_counter)


@contextmanager
def fresh_store() -> Iterator[MessageStore]:
    ON_DISK.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="store-", dir=ON_DISK))
    store = MessageStore(StoreSettings(root=folder, flush_disk_type="ASYNC_FLUSH"))
    try:
        store.open()
        yield store
        store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(
    name: str,
    work: Callable[[MessageStore], int],
    *,
    fill: bool = False,
    clock: Callable[[], float] = time.thread_time,
) -> None:
    """Run the work on fresh stores and print what one message costs."""
    costs = []
    for _ in range(RUNS):
        with fresh_store() as store:
            if fill:
                append(store, b"x" * 128)
            began = clock()
            count = work(store)
            costs.append((clock() - began) / count * 1e6)
    middle = median(costs)
    spread = 50 * (max(costs) - min(costs)) / middle
    print(f"{name:<44}{middle:>9.2f} µs a message  ±{spread:.0f}%")


def append(store: MessageStore, body: bytes) -> int:
    properties = [PROPERTIES.format(number).encode() for number in range(1000)]
    for number in range(MESSAGES):
        store.append(
            NewRecord(
                "bench",
                number % QUEUES,
                body,
                properties[number % 1000],
                born_time_ms=1_700_000_000_000,
                born_host=HOST,
                store_host=HOST,
            )
        )
    return MESSAGES


def append_batches(store: MessageStore) -> int:
    items = [
        BatchItem(flag=0, body=b"x" * 128, properties=PROPERTIES.format(number).encode())
        for number in range(32)
    ]
    body = encode_batch(items)
    for number in range(MESSAGES // 32):
        store.append_batch(
            NewRecord(
                "bench",
                number % QUEUES,
                body,
                b"",
                born_time_ms=1_700_000_000_000,
                born_host=HOST,
                store_host=HOST,
            )
        )
    return MESSAGES // 32 * 32


def read(store: MessageStore, tag: str | None = None) -> int:
    matcher = TagMatcher(frozenset((java_hash(tag),))) if tag else None
    count = 0
    for queue in range(QUEUES):
        offset = 0
        while (result := store.get("bench", queue, offset, 32, matcher)).count:
            count += result.count
            offset = result.next_begin_offset
    return count


def look_up(store: MessageStore) -> int:
    found = 0
    for number in range(200):
        found += len(store.query("bench", f"K{number:011}", 32, 0, 2**62).records)
    return found


def append_and_sync(store: MessageStore) -> int:
    count = 300
    for _ in itertools.repeat(None, count):
        store.append(
            NewRecord(
                "bench",
                0,
                b"x" * 128,
                b"",
                born_time_ms=1_700_000_000_000,
                born_host=HOST,
                store_host=HOST,
            )
        )
        store.flush()
    return count


if __name__ == "__main__":
    main()
