"""Pipelines tell how far they are: of every phase all that was announced, and then its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.pipelines.running.progress import Silent
from cometmq.spark.pipelines.verify import VerifySettings, verify
from support.stores.small_stores import opened, put

COUNT = 300


@dataclass
class Phase:
    """One phase of a run."""

    what: str
    total: int
    done: int = 0
    steps: int = 0
    ended: bool = False


class Phases(Silent):
    """Writes down what it was told."""

    def __init__(self) -> None:
        self.all: list[Phase] = []

    def start(self, total: int, unit: str, what: str) -> None:
        self.all.append(Phase(what, total))

    def step(self, n: int = 1) -> None:
        self.all[-1].done += n
        self.all[-1].steps += 1

    def end(self) -> None:
        self.all[-1].ended = True

    def check(self, *expected: str) -> None:
        """Fail unless there were these phases, each of them told to its end and not at once."""
        assert {phase.what for phase in self.all} == set(expected)
        for phase in self.all:
            assert phase.ended, phase
            assert phase.done == phase.total > 0, phase
            assert phase.steps > 1, phase


@pytest.fixture
def store(tmp_path: Path) -> str:
    made = opened(tmp_path / "store")
    for number in range(COUNT):
        put(made, b"%d" % number, queue_id=number % 3, properties={"KEYS": f"k{number}"})
    made.close()
    return str(tmp_path / "store")


def test_progress_of_an_archive_and_of_its_verification_is_told(store: str, tmp_path: Path) -> None:
    archived, verified = Phases(), Phases()
    to = str(tmp_path / "archive")

    archive(None, ArchiveSettings(store=store, to=to, range_bytes=4096), progress=archived)
    verify(None, VerifySettings(store=store, archive=to), progress=verified)

    archived.check("archive")
    verified.check("verify archive")
