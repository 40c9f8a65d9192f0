"""Keywords before objects before the environment before files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cometmq.client.settings import (
    ClientSettings,
    ProducerSettings,
    PullSettings,
    PushSettings,
    read_tables,
    resolve_settings,
    split_options,
)
from cometmq.model.errors import ConfigError

TABLES = {"producer": {"retries": 1}}
VARIABLES = {"COMETMQ_PRODUCER_RETRIES": "3"}


@pytest.mark.parametrize(
    ("said", "retries"),
    [
        ({}, 2),
        ({"tables": TABLES}, 1),
        ({"tables": TABLES, "environment": VARIABLES}, 3),
        ({"environment": VARIABLES, "given": ProducerSettings(retries=4)}, 4),
        ({"given": ProducerSettings(retries=4), "keywords": {"retries": 5}}, 5),
    ],
)
def test_the_first_layer_that_names_a_setting_decides(
    said: dict[str, object], retries: int
) -> None:
    quiet = {"environment": {}, "tables": {}}

    assert resolve_settings(ProducerSettings, **(quiet | said)).retries == retries  # type: ignore[arg-type]


def test_an_object_decides_by_what_was_passed_to_it_even_if_it_is_the_default() -> None:
    given = ProducerSettings(retries=2)

    settings = resolve_settings(
        ProducerSettings,
        given=given,
        environment=VARIABLES | {"COMETMQ_PRODUCER_COMPRESS_LEVEL": "9"},
    )

    assert (settings.retries, settings.compress_level) == (2, 9)


def test_a_replaced_object_compares_by_its_values() -> None:
    assert dataclasses.replace(ProducerSettings(retries=1), retries=2) == ProducerSettings()


def test_a_file_is_read_when_the_environment_names_it(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text('[client]\nheartbeat_ms = 500\ninstance_name = "a"\n[tool.other]\nx = 1\n')

    settings = resolve_settings(ClientSettings, environment={"COMETMQ_CONFIG": str(file)})

    assert (settings.heartbeat_ms, settings.instance_name) == (500, "a")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            {"keywords": {"retrys": 1}},
            "keyword: there is no setting 'retrys'; did you mean retries",
        ),
        (
            {"tables": {"producer": {"retrys": 1}}},
            r"table \[producer\]: there is no setting 'retrys'",
        ),
        (
            {"tables": {"producer": {"retries": 99}}},
            r"table \[producer\]: retries=99",
        ),
        (
            {"environment": {"COMETMQ_PRODUCER_RETRIES": "x"}},
            "environment COMETMQ_PRODUCER_RETRIES",
        ),
        (
            {"environment": {"COMETMQ_PRODUCER_RETRYS": "1"}},
            r"environment COMETMQ_PRODUCER_\*: there is no setting 'retrys'; did you mean retries",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(said: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve_settings(ProducerSettings, **({"environment": {}} | said))  # type: ignore[arg-type]


def test_keywords_go_to_the_settings_they_belong_to() -> None:
    parts = split_options({"retries": 1, "heartbeat_ms": 50}, ProducerSettings, ClientSettings)

    assert parts == [{"retries": 1}, {"heartbeat_ms": 50}]
    with pytest.raises(ConfigError, match="did you mean heartbeat_v2 or heartbeat_ms"):
        split_options({"heartbeat": 1}, ProducerSettings, ClientSettings)


@pytest.mark.parametrize("text", ["not toml", "[producer", "x = 1\x00"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        read_tables(file)


def test_every_kind_has_a_section_of_its_own() -> None:
    kinds = (ClientSettings, ProducerSettings, PullSettings, PushSettings)

    assert len({kind.section for kind in kinds}) == len(kinds)
