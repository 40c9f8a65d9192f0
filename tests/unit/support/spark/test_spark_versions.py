"""The page about versions of Spark says what `pyproject.toml` says."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

from packaging.requirements import Requirement

import build_ext
from cometmq.spark.compat import PYSPARK_OLDEST
from support.spark.spark_versions import newest, spark_versions

EXTRAS = tomllib.loads((build_ext.ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
VERSIONS = spark_versions()
[PYSPARK] = [each for each in map(Requirement, EXTRAS["spark"]) if each.name == "pyspark"]


def test_the_table_begins_with_the_oldest_version_and_has_the_installed_one() -> None:
    assert VERSIONS[0].minor == ".".join(map(str, PYSPARK_OLDEST))
    assert PYSPARK.specifier.contains(f"{VERSIONS[0].minor}.0")
    assert version("pyspark").rpartition(".")[0] in [each.minor for each in VERSIONS]


def test_the_extra_installs_the_newest_version_for_which_delta_has_a_jar() -> None:
    with_delta = [each.minor for each in VERSIONS if "Delta" in each.artifacts]

    default = newest(PYSPARK, VERSIONS)
    assert default.minor == with_delta[-1]
    assert (default.extra, default.pyspark) == ("spark", None)


def test_a_version_within_the_extra_is_installed_with_it_and_any_other_without_pyspark() -> None:
    assert not [line for line in EXTRAS["spark-provided"] if "pyspark" in line]
    for each in VERSIONS:
        inside = PYSPARK.specifier.contains(f"{each.minor}.0")
        assert each.extra == ("spark" if inside else "spark-provided")
        assert each.pyspark is None or each.pyspark.startswith(f"{each.minor}.")


def test_each_artifact_is_made_for_the_version_of_its_row() -> None:
    for each in VERSIONS:
        for name, coordinates in each.artifacts.items():
            _, artifact, version_of = coordinates.split(":")
            made_for = version_of if name in ("Avro", "Kafka connector") else artifact
            assert each.minor in made_for, coordinates
