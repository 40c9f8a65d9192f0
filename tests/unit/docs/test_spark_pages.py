"""The reference of Spark leaves out no format, no column and no option."""

from __future__ import annotations

import re

import pytest

from cometmq.spark.errors import SourceError
from cometmq.spark.options import options_of
from cometmq.spark.schema import CORE, HOSTS, PROPERTIES, RECORD_VALID
from cometmq.spark.sink.rows import COLUMNS
from cometmq.spark.sources import FORMATS
from tools.generate import pages, spark_pages
from tools.generate.root import stale

REFERENCE = pages.ROOT / "docs" / "reference"
OPTION_NAMED = re.compile(r'\.option\(\s*"([^"]+)"|`([a-z][a-zA-Z.]*)=')
"""An option in a program or in a text."""
OF_OTHERS = re.compile(r"checkpointLocation|flushDiskType|spark\..*")
"""Options of Spark's and settings of a broker."""
KINDS = [kind for kinds in spark_pages.FORMATS.values() for _, kind in kinds]


def rows(section: str) -> dict[str, str]:
    """The rows of all tables of a text, by their first cell."""
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


def section_of(page: str, title: str) -> str:
    text = (REFERENCE / page).read_text()
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_parts_made_from_the_code_are_fresh() -> None:
    assert stale(spark_pages.files()) == [], "run make generate"


def test_every_format_has_a_section() -> None:
    assert set(spark_pages.FORMATS) == set(FORMATS)
    assert all(section_of("spark-formats.md", name) for name in FORMATS)


def test_every_column_is_told_with_its_type() -> None:
    for name, columns in (
        ("rocketmq", (*CORE, PROPERTIES)),
        ("rocketmq-log", (*HOSTS, RECORD_VALID)),
    ):
        section = section_of("spark-formats.md", name).partition("\n###")[0]
        told = rows(section.partition("\nColumns that are written")[0])
        for column in columns:
            row = told[f"`{column.name}`"]
            assert f"`{column.ddl}`" in row
            assert ("never null" in row) is not column.nullable
            assert column.doc in row


def test_every_column_that_is_written_is_told() -> None:
    written = section_of("spark-formats.md", "rocketmq").partition("Columns that are written")[2]
    told = rows(written.partition("###")[0])

    assert set(told) == {f"`{name}`" for name in COLUMNS}
    assert all(len(row.split(" | ")[2]) > 10 for row in told.values())


@pytest.mark.parametrize("path", [*KINDS, *spark_pages.SHARED.values()])
def test_every_option_is_told_with_what_is_expected_of_it(path: str) -> None:
    told = rows((REFERENCE / "spark-formats.md").read_text())
    for entry in options_of(spark_pages._found(path)):
        cell = " or ".join(f"`{name}`" for name in entry.names)
        assert cell in told
        assert not re.search(r"\|  \|$", told[cell]), f"{cell} has no text"


def test_every_error_is_told_with_its_base_class() -> None:
    told = rows(section_of("spark-formats.md", "Errors"))

    def below(kind: type) -> list[type]:
        return [each for sub in kind.__subclasses__() for each in (sub, *below(sub))]

    kinds = [kind for kind in below(SourceError) if kind.__module__ == SourceError.__module__]
    assert kinds
    for kind in kinds:
        base = kind.__base__
        assert base is not None
        assert f"| `{base.__name__}` |" in told[f"`{kind.__name__}`"]


def test_options_that_pages_name_exist() -> None:
    """Also where they stand in a text, and not in a program that is run."""
    kinds = [spark_pages._found(path) for path in (*KINDS, *spark_pages.SHARED.values())]
    known = {name for kind in kinds for entry in options_of(kind) for name in entry.names}
    named = {
        (one or other, page.name)
        for page in pages.ROOT.glob("docs/*/*spark*.md")
        for one, other in OPTION_NAMED.findall(page.read_text())
        if page.parent != REFERENCE
    }

    assert len(named) > 20
    unknown = sorted(each for each in named if each[0] not in known)
    assert [each for each in unknown if not OF_OTHERS.fullmatch(each[0])] == []
