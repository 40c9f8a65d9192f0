"""The Python in the pages about archives runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from support.stores.small_stores import opened, put

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOWTO = Path(__file__).resolve().parent.parent.parent / "docs" / "howto"
COUNT = 30


@pytest.fixture
def archived(tmp_path: Path) -> str:
    store = opened(tmp_path / "store")
    for number in range(COUNT):
        put(store, b"%d" % number, queue_id=number % 2, properties={"TAGS": "new"})
    store.close()
    settings = ArchiveSettings(
        store=str(tmp_path / "store"), to=str(tmp_path / "archive"), broker_name="broker-a"
    )
    archive(None, settings)
    return settings.to


def run_blocks(page: str, **replaced: str) -> None:
    """Run the Python of a page in one namespace."""
    text = (HOWTO / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    code = "\n".join(blocks)
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, f"{page}.md", "exec"), {})


def test_archive_a_log(
    spark: SparkSession, archived: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(Path(archived).with_name("store"))
    run_blocks("archive-a-log", **{"/data/archive": archived, "/data/store": store})
    shown = capsys.readouterr().out
    assert re.search(rf"\| *new\| *{COUNT}\|", shown)
    assert shown.endswith("\n0\n")  # nothing is verified yet
