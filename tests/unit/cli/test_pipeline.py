"""``cometmq pipeline`` before Spark is loaded."""

from __future__ import annotations

import re

import pytest

from cometmq.cli import pipeline
from cometmq.model.errors import ConfigError
from tools.generate.root import ROOT


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "NEEDED", ("pyspark_of_nowhere", "sys", "arrow_of_nowhere"))


def test_the_packages_that_are_missing_are_named() -> None:
    text = "pipelines need pyspark_of_nowhere, arrow_of_nowhere: install CometMQ with the extra"
    with pytest.raises(ConfigError, match=text):
        pipeline.run(["archive"])


@pytest.mark.parametrize("name", pipeline.REMOVED)
def test_a_removed_pipeline_names_what_to_use_and_needs_no_spark(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no pipeline '{name}': it was removed, use ") as met:
        pipeline.run([name, "--store", "/data/store"])

    named = re.findall(r"(?:docs|examples)/[\w/-]+\.\w+", str(met.value))
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []
