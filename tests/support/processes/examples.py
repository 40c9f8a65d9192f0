"""The examples: where they are, how one is run, and what it prints."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from support.processes import forks
from support.runner.versions import VERSIONS_5

FOLDER = Path(__file__).resolve().parent.parent.parent.parent / "examples"
TIMEOUT_S = 150
STOP_S = 60

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
    "11_broadcast": r"(?=[\s\S]*cache-1)(?=[\s\S]*cache-2)"
    r"(cache-[12] cleared price of hats\n){2}",
    "12_retry_and_dead_letters": r"delivery 1 of invoice 7\ndelivery 2 of invoice 7\n"
    r"invoice 7 failed with builtins\.ValueError: no such customer\n",
    "13_request_and_reply": r"a hat costs 12\n",
    "14_batches": r"500 messages in 1 request\n(added \d+ readings: \d+\n)+"
    r"(?<=: 124750\n)",
    "15_idempotent_consumer": r"(booked order-[123]\n){3}",
    "16_pull_as_a_group": r"(?=[\s\S]*Ann)(?=[\s\S]*Bob)((Ann|Bob) took letter \d\n){8}",
    "17_metrics_and_spans": r"measured a hat\n"
    r"'process measured' is linked to 'send measured': True\nsends: 1\n",
    "18_settings": r"file: retries=1\nenvironment: timeout_ms=2000\n"
    r"object: compress_from_bytes=3000\nkeyword: compress_level=5\n",
    "19_transaction": r"a hat: COMMIT\na coat: UNIQUE constraint failed: orders\.name\n",
    "20_without_asyncio": r"(pulled note \d\n){3}(a handler got note \d\n){3}",
    "21_inspect_a_group": r"1 member is online\ncommitted 2 of 4, lag 2\n3: hour 3\n"
    r"after the reset: lag 4\n",
    "22_pop": r"(served ticket \d\n){4}",
    "23_receive_and_ack": r"(filed page [12], delivery 1\n){2}filed smudged page, delivery 2\n",
    "24_worker": r"(shipped a hat for order 1\n|order-2 is a dead letter\n){2}",
    "33_embedded_without_asyncio": r"audited hello\nleft\n",
    "quickstart": r"handled hello\n",
    "26_web_lifespan": r"welcome, Ann\nhealthy: True\n",
    "27_web_producer": r"SEND_OK: a hat\nSEND_OK: a coat\nSEND_OK: a scarf\n",
    "29_sql_expressions": r"color = 'blue' AND price > 10: \[True, False, None\]\n"
    r"price > 9: \[True, 'no match', None\]\nprice > 9\.0: \[True, True, None\]\n"
    r"color <> 'red': \[True, False, None\]\nNOT .*: \[True, True, True\]\n"
    r"color LIKE .*: \[False, False, None\]\n"
    r"price > '9': SQL92 at character 9: met a text .*, expected a number .*\n",
    "30_trace": r"shop sent parcel-1 in \d+ ms\ntraced-packers received it, retry 0\n"
    r"traced-packers handled it in \d+ ms: SUCCESS\n",
    "32_resend_dead_letters": r"\['order-1'\] after 0 retries: builtins\.LookupError: no hats\n"
    r"sent to %RETRY%picking-desk\npacked a hat for order-1\n",
    "36_deploy_topics": r"(topic shop-[\w-]+: (unchanged|created with \d queues .*)\n){3}"
    r"(group shop-\w+: (unchanged|created)\n){3}",
    "38_static_topic": r"(queue \d, offset \d+\n){4}0 queues would move to .*\n",
    "35_outbox": r"order-1 placed\norder-1 paid\norder-1 shipped\n",
    "34_payloads": r"(order-(1: 12 EUR|2: 30 USD)\n){2}",
    "31_filter_with_sql": r"coat: 80\nscarf: 9\ngloves: 25\n",
    "37_timer": r"((not )?recalled.*\n)?after \d+\.\d s: after 1\.5 s\n"
    r"after \d+\.\d s: at a time\n",
    "41_taskiq": r"a hat costs 12\n(not )?recalled.*\n",
    "39_celery": r"2 hats cost 24\n3 hats cost 36\n",
    "40_faststream": r"delivery 1 of order-1\ndelivery 2 of order-1\n"
    r"order-1: please pay 12 EUR\n",
}
"""What each example prints; they run in the order of their names, on one server."""

UNTIL_SIGTERM = dict.fromkeys(
    (
        *("09_consume", "10_consume_in_order", "11_broadcast", "14_batches"),
        *("15_idempotent_consumer", "17_metrics_and_spans", "20_without_asyncio", "22_pop"),
        *("24_worker", "34_payloads", "35_outbox", "quickstart"),
    ),
    "",
) | {"17_metrics_and_spans": r"measured a hat\n"}
"""Examples that run until a signal, and what they print before it, if that is not all."""

NEEDS_VERSION: dict[str, tuple[str, ...]] = {
    "22_pop": VERSIONS_5,
    "23_receive_and_ack": VERSIONS_5,
    "38_static_topic": VERSIONS_5,
    "39_celery": VERSIONS_5,
    "41_taskiq": VERSIONS_5,
}
"""Examples of what not every version of RocketMQ serves, and those that do."""


OWN_TESTS = ("08_in_pytest", "25_health", "28_class_filter")
"""Examples that are more than a program that prints."""

EMBEDDED = ("33_embedded_without_asyncio", "quickstart")
"""Examples that have a broker of their own."""


def every_example() -> list[Path]:
    """The examples that `run` runs, by name."""
    return sorted(path for path in FOLDER.glob("*.py") if path.stem not in OWN_TESTS)


def with_a_server() -> list[Path]:
    """The examples that need a server."""
    return [path for path in every_example() if path.stem not in EMBEDDED]


@contextlib.contextmanager
def running(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start an example in a folder and a home folder of its own, and expect it to end with 0."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*forks.python(), str(path), *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env={**os.environ, "HOME": folder, "PYTHONUNBUFFERED": "1"},
        )
        timer = threading.Timer(TIMEOUT_S, process.kill)  # ends each read of its output
        timer.start()
        try:
            yield process
            status = process.wait(STOP_S)
        finally:
            timer.cancel()
            process.kill()
            process.communicate()
        errors.seek(0)
        assert status == 0, f"ended with {status}\n{errors.read()}"


def run(path: Path, *arguments: str) -> str:
    """Run an example, and return what it prints. One that fails raises an AssertionError."""
    with running(path, *arguments) as process:
        assert process.stdout is not None
        before = UNTIL_SIGTERM.get(path.stem)
        printed = ""
        for line in process.stdout:
            printed += line
            if before is not None and re.fullmatch(before or EXPECTED[path.stem], printed):
                process.send_signal(signal.SIGTERM)
                before = None
        print(printed)  # a test that fails shows it
        return printed
