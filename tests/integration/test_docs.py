"""Runs every example and every Python block of the documentation against real servers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import pages
from support import plugin
from support.server import Standalone, standalone

TESTED_BLOCK = re.compile(r"<!-- run as a test -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = sorted(
    path for path in (pages.ROOT / "examples").glob("*.py") if "pytest" not in path.name
)
TESTED_BLOCKS = [
    pytest.param(match.group(1), id=f"{path.stem}-{number}")
    for path in pages.pages()
    for number, match in enumerate(TESTED_BLOCK.finditer(path.read_text()))
]
EXPECTED = {
    "01_send": r"SEND_OK: orders@\S+ at offset \d+\n",
    "02_receive": r"(new: a green hat\n)+",
    "03_send_in_order": r"(order-\d \w+: queue \d\n){9}",
    "04_send_many": r"1000 sends in flight: \d+ per second\na batch of 100 begins at .*\n",
    "05_keys_and_tags": r"(order-[13] is (paid|shipped)\n){2}order-2 was found in .*: it is new\n",
    "06_delayed": r"after 0\.\d s: at once\nafter [12]\.\d s: later\n",
    "07_follow_a_topic": r"(price 10\d, stored \d+ ms after it was sent\n){5}",
}
"""What each example prints; they run in the order of their names, on one server."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("examples")) as running:
        yield running


def test_every_example_is_expected_to_print_something() -> None:
    assert {path.stem for path in EXAMPLES} == set(EXPECTED)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints_what_it_says(server: Standalone, path: Path) -> None:
    host, port = server.namesrv
    done = subprocess.run(
        [sys.executable, str(path), f"{host}:{port}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(EXPECTED[path.stem], done.stdout), done.stdout


def test_order_is_kept_in_one_queue_per_key(server: Standalone) -> None:
    host, port = server.namesrv
    command = [sys.executable, str(pages.ROOT / "examples/03_send_in_order.py"), f"{host}:{port}"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    queues: dict[str, set[str]] = {}
    for line in output.splitlines():
        order, _, rest = line.partition(" ")
        queues.setdefault(order, set()).add(rest.rpartition(" ")[2])

    assert all(len(found) == 1 for found in queues.values()), output


@pytest.mark.parametrize("code", TESTED_BLOCKS)
def test_python_block_of_the_documentation_passes_as_a_test(code: str, tmp_path: Path) -> None:
    (tmp_path / "test_block.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin.OPTIONS, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout, done.stdout
