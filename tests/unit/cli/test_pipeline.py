"""``cometmq pipeline`` names what replaces the pipelines of earlier versions, without Spark."""

from __future__ import annotations

import re

import pytest

from cometmq.cli import pipeline
from cometmq.model.errors import ConfigError
from tools.generate.root import ROOT


@pytest.mark.parametrize("name", pipeline.REMOVED)
def test_a_removed_pipeline_names_what_to_use(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no pipeline '{name}': it was removed, use ") as met:
        pipeline.run([name, "--store", "/data/store"])

    named = re.findall(r"(?:docs|examples)/[\w/-]+\.\w+", str(met.value))
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_an_unknown_pipeline_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match="met 'nope', expected archive, archive-topics, "):
        pipeline.run(["nope"])
