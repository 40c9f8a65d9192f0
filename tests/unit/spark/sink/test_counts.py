"""The totals of writes, in files that programs read."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cometmq.spark.sink.counts import Sent, add_counts, sink_counts, total


def test_the_counts_of_tasks_are_added_up() -> None:
    assert total([Sent(1, 20, 3, 0), Sent(2, 30, 4, 5)]) == Sent(3, 50, 7, 5)
    assert total([]) == Sent(0, 0, 0, 0)


def test_the_totals_of_each_job_grow_with_every_commit(tmp_path: Path) -> None:
    folder = tmp_path / "counts"
    for job in ("query-1", 'a/b "c" \\d', "", "query-1"):
        add_counts(str(folder), job, Sent(10, 1_000, 2, 1))
    found = {each.job: each for each in sink_counts(folder)}
    assert found.keys() == {"query-1", 'a/b "c" \\d', ""}
    assert found["query-1"].sent == Sent(20, 2_000, 4, 2)
    assert (found["query-1"].commits, found[""].commits) == (2, 1)
    assert found["query-1"].last_commit > 1_700_000_000
    assert [path.suffix for path in folder.iterdir()] == [".json"] * 3, "no file is left over"


def test_a_file_that_cannot_be_written_is_logged_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        add_counts(str(tmp_path / "file"), "job", Sent(1, 1, 1, 0))
    assert "counts of a write are lost" in caplog.text


def test_a_damaged_file_is_not_overwritten_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_counts(str(tmp_path), "job", Sent(1, 1, 1, 0))
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:40])
    with caplog.at_level(logging.WARNING):
        add_counts(str(tmp_path), "job", Sent(1, 1, 1, 0))
    assert "has no counts of a write" in caplog.text
    with pytest.raises(ValueError, match=r"job\.json has no counts"):
        sink_counts(tmp_path)
