"""Results as text, in files, and side by side."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cometmq.cli.bench.meter import Load
from cometmq.cli.bench.results import Result, compared, read, text_of, write
from cometmq.model.errors import ConfigError

LOAD = Load(
    kind="producer", topic="t", seconds=10, warm_s=2, size=128, in_flight=32, batch=32, rate=0,
    fill=0, delay_s=1, queues=8, rollback=0,
)  # fmt: skip
OURS = Result(
    system="cometmq", version="V5_3_3", client="cometmq", began="2026-01-01T00:00:00+00:00",
    load=LOAD, seconds=10.0, messages=1_000_000, is_drained=False, errors=0, last_error="",
    rate=100_000.0, rates=[90_000.0, 110_000.0], milliseconds={"p50": 0.5, "max": 4.0},
    client_cpu_us=10.0, server_cpu_us=None, buckets={10: 1_000_000},
)  # fmt: skip
THEIRS = msgspec.structs.replace(
    OURS, system="kafka", rate=50_000.0, milliseconds={"p50": 1.0, "max": 2.0}, errors=3,
    last_error="TimeoutError: late", client_cpu_us=None,
)  # fmt: skip


def test_a_result_is_a_text() -> None:
    assert text_of(THEIRS).splitlines() == [
        "messages    1,000,000 in 10.0 s",
        "rate        50,000/s (lowest second 90,000, highest 110,000)",
        "durations   p50 1 ms  max 2 ms",
        "errors      3, the last: TimeoutError: late",
    ]


def test_results_are_compared_with_the_first() -> None:
    lines = [line.split() for line in compared([OURS, THEIRS]).splitlines()]
    assert lines[0] == ["cometmq", "V5_3_3", "kafka", "V5_3_3"]
    assert lines[1] == ["messages/s", "100,000", "x1.00", "50,000", "x0.50"]
    assert ["p50,", "ms", "0.5", "x1.00", "1", "x2.00"] in lines
    assert ["client,", "µs", "a", "message", "10", "x1.00", "-"] in lines
    assert not [line for line in lines if line[0] == "servers,"]


def test_results_of_different_loads_are_not_compared() -> None:
    other = msgspec.structs.replace(THEIRS, load=msgspec.structs.replace(LOAD, size=1024))
    with pytest.raises(ConfigError, match="size is 128 and 1024; expected results of one load"):
        compared([OURS, other])


def test_a_result_goes_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write(THEIRS, path)
    assert read(path) == THEIRS
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ConfigError, match="format 2; expected 1"):
        read(path)


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="expected a file of a result"):
        read(path)
    with pytest.raises(ConfigError, match="expected a file of a result"):
        read(tmp_path / "missing")
    with pytest.raises(ConfigError, match="expected a file that can be written"):
        write(OURS, tmp_path / "missing" / "result.json")
