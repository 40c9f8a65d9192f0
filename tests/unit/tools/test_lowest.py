"""`pyproject.toml` promises ranges of versions, and a program tests the lowest of each."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement

import build_ext
from tools import lowest

PROJECT = tomllib.loads((build_ext.ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LINES = [
    *PROJECT["build-system"]["requires"],
    *PROJECT["project"]["dependencies"],
    *(line for lines in EXTRAS.values() for line in lines),
]


@pytest.mark.parametrize("line", sorted({each for each in LINES if "cometmq[" not in each}))
def test_a_range_has_a_lowest_version(line: str) -> None:
    assert lowest.lowest(Requirement(line))


def test_every_extra_has_tests_that_run_with_its_lowest_versions() -> None:
    assert {*lowest.USED_BY, *lowest.DEVELOPERS, *lowest.UNPROMISED} == set(EXTRAS)
    commands = [words for each in lowest.DEVELOPERS.values() for words in map(str.split, each)]
    named = [word for words in commands for word in words if "/" in word]
    named.remove("build/site")  # which the command makes
    for paths in (*lowest.USED_BY.values(), named):
        assert all((build_ext.ROOT / path).exists() for path in paths)


def test_packages_that_build_have_one_range() -> None:
    assert sorted(PROJECT["build-system"]["requires"]) == sorted(EXTRAS["build"])


def test_a_package_that_several_extras_need_has_one_range() -> None:
    ranges: dict[str, set[str]] = {}
    for each in map(Requirement, LINES):
        ranges.setdefault(each.name, set()).add(str(each.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}
