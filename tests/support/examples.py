"""The examples: where they are, how one is run, and what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.versions import ALL_VERSIONS, VERSIONS_5

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples"
TIMEOUT_S = 600

EXPECTED = {
    "01_send": r"SEND_OK: orders@\S+ at offset \d+\n",
    "02_receive": r"(new: a green hat\n)+",
    "03_send_in_order": r"(order-\d \w+: queue \d\n){9}",
    "04_send_many": r"1000 sends in flight: \d+ per second\na batch of 100 begins at .*\n",
    "05_keys_and_tags": r"(order-[13] is (paid|shipped)\n){2}order-2 was found in .*: it is new\n",
    "06_delayed": r"(after \d+\.\d s: at once\n)?after \d+\.\d s: later\n",
    "07_follow_a_topic": r"(price 10\d, stored \d+ ms after it was sent\n){5}",
    "09_consume": r"(packed parcel \d\n){5}",
    "10_consume_in_order": r"(order-[12] (placed|paid|shipped)\n){6}",
    "11_broadcast": r"(cleared price of hats\n){2}",
    "12_retry_and_dead_letters": r"delivery 1 of invoice 7\ndelivery 2 of invoice 7\n"
    r"invoice 7 failed with builtins\.ValueError: no such customer\n",
    "13_request_and_reply": r"a hat costs 12\n",
    "14_batches": r"500 messages in 1 request\nthe sum is 124750\n",
    "15_idempotent_consumer": r"5 messages, 3 bookings: order-1, order-2, order-3\n",
    "16_pull_as_a_group": r"((Ann|Bob) took letter \d\n){8}",
    "17_metrics_and_spans": r"'process measured' is linked to 'send measured': True\nsends: 1\n",
    "18_settings": r"file: retries=1\nenvironment: timeout_ms=2000\n"
    r"object: compress_from_bytes=3000\nkeyword: compress_level=5\n",
    "19_transaction": r"COMMIT: NoneType\nUNKNOWN: IntegrityError\n",
    "20_without_asyncio": r"(a handler got note \d\n){3}pulled 3\n",
    "21_inspect_a_group": r"1 member is online\ncommitted 2 of 4, lag 2\n3: hour 3\n"
    r"after the reset: lag 4\n",
    "22_pop": r"(served ticket \d\n){4}",
    "23_receive_and_ack": r"(filed page [12], delivery 1\n){2}filed smudged page, delivery 2\n",
}
"""What each example prints; they run in the order of their names, on one server."""

NEEDS_ROCKETMQ: dict[str, tuple[str, ...]] = {
    "19_transaction": ALL_VERSIONS,
    "22_pop": VERSIONS_5,
    "23_receive_and_ack": VERSIONS_5,
}
"""Examples of what our own broker does not serve yet, and the versions of RocketMQ that do."""


def every_example() -> list[Path]:
    """The examples that are programs, by name."""
    return sorted(path for path in FOLDER.glob("*.py") if "pytest" not in path.name)


def run(path: Path, name_servers: str) -> str:
    """Run an example and give what it printed; one that fails is an assertion error."""
    done = subprocess.run(
        [sys.executable, str(path), name_servers],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
