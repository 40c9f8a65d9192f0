"""The sample configuration files say what the settings classes say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cometmq.system import java_properties
from cometmq.system.settings import describe, field_texts
from tools.generate import configuration
from tools.generate.root import stale

CONF = Path(__file__).parents[4] / "conf"
SOURCES = Path(__file__).parents[4] / "src" / "cometmq"
SAMPLES = configuration.samples()
KINDS: dict[str, list[type]] = {
    name: [kind for kinds in parts.values() for kind in kinds]
    for name, parts in configuration.PARTS.items()
}


def test_files_made_from_settings_are_fresh() -> None:
    assert stale(configuration.files()) == [], "run make generate"


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_file_sets_nothing(name: str) -> None:
    assert java_properties.parse(SAMPLES[name]) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_every_key_of_a_sample_stands_there_at_its_default(name: str) -> None:
    lines = SAMPLES[name].splitlines()
    for found in (found for kind in KINDS[name] for found in describe(kind)):
        (line,) = [line for line in lines if line.startswith(f"#{found.key}=")]
        ((key, text, _),) = java_properties.parse(line[1:])
        assert key == found.key
        assert text == "" if found.depends_on_machine else found.parse(text) == found.default()


@pytest.mark.parametrize("kind", {kind for kinds in KINDS.values() for kind in kinds})
def test_every_setting_has_a_docstring(kind: type) -> None:
    assert [f.name for f in describe(kind) if not field_texts(kind).get(f.name)] == []


def test_every_setting_is_read_somewhere() -> None:
    """One that nothing acts on must not be declared: it belongs into the warning at the start."""
    texts = (path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    read = {name for text in texts for name in re.findall(r"\.(\w+)", text)}
    settings = {(kind, found.name) for kinds in KINDS.values() for kind in kinds
                for found in describe(kind)}  # fmt: skip

    assert len(settings) > 100
    assert sorted(f"{kind.__name__}.{name}" for kind, name in settings if name not in read) == []
