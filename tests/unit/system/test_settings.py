"""Declaring settings, and the texts that stand for their values."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from cometmq.model.errors import ConfigError
from cometmq.system.settings import Setting, camel_case, describe, setting, settings_class


@settings_class
class Sample:
    """One setting of every kind."""

    flag: bool = setting(False, key="theFlag", remote=True)
    """A flag."""
    wait_ms: int = setting(5, key="waitTime", unit="ms", low=1, high=10)
    """A wait."""
    ratio: float = setting(0.5, low=0.0, high=1.0)
    """A share."""
    mode: str = setting("async", choices=("async", "sync"))
    """A mode."""
    folder: Path = setting(factory=lambda: Path("/x"))
    """A folder."""
    names: tuple[str, ...] = setting(())
    """Names."""
    limit: int | None = setting(None, low=0)
    """A limit."""


def of(name: str) -> Setting:
    return next(found for found in describe(Sample) if found.name == name)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("flag", "true", True),
        ("flag", "False", False),
        ("wait_ms", " 7 ", 7),
        ("wait_ms", "+1", 1),
        ("ratio", "0.25", 0.25),
        ("mode", "sync", "sync"),
        ("folder", "/var/lib", Path("/var/lib")),
        ("names", "a;b; ;c", ("a", "b", "c")),
        ("names", "", ()),
        ("limit", "", None),
        ("limit", "3", 3),
    ],
)
def test_text_is_parsed_by_the_type_of_its_field(name: str, text: str, value: object) -> None:
    assert of(name).parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("flag", "yes", "true or false"),
        ("wait_ms", "0", "a whole number from 1 to 10 (ms)"),
        ("wait_ms", "11", "a whole number from 1 to 10 (ms)"),
        ("wait_ms", "1.0", "a whole number"),
        ("wait_ms", "1_0", "a whole number"),
        ("wait_ms", "٣", "a whole number"),
        ("wait_ms", "9" * 5000, "a whole number"),
        ("ratio", "nan", "a number from 0.0 to 1.0"),
        ("ratio", "inf", "a number from 0.0 to 1.0"),
        ("mode", "SYNC", "one of async, sync"),
        ("folder", "", "a path"),
        ("folder", "a\0b", "a path"),
        ("limit", "-1", "a whole number of at least 0"),
    ],
)
def test_text_of_another_kind_is_refused_with_what_was_expected(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        of(name).parse(text)
    assert f"{of(name).key}={text}" in str(refused.value)
    assert expected in str(refused.value)


@pytest.mark.parametrize("name", [found.name for found in describe(Sample)])
def test_rendered_value_is_parsed_back(name: str) -> None:
    found = of(name)
    assert found.parse(found.render(found.default())) == found.default()


def test_home_directory_is_filled_in() -> None:
    assert of("folder").parse("~/store") == Path.home() / "store"


def test_key_is_rocketmqs_or_the_name_in_camel_case() -> None:
    assert of("wait_ms").key == "waitTime"
    assert of("ratio").key == "ratio"
    assert camel_case("flush_interval_ms") == "flushIntervalMs"


def test_secret_value_does_not_show_in_its_refusal() -> None:
    @dataclass(frozen=True)
    class Hidden:
        """One secret."""

        pin: int = setting(0, secret=True)
        """A secret number."""

    with pytest.raises(ConfigError) as refused:
        describe(Hidden)[0].parse("hunter2")
    assert "hunter2" not in str(refused.value)


def test_field_that_no_text_stands_for_is_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        """One field of a type that no text stands for."""

        numbers: dict = setting(None)  # type: ignore[type-arg]
        """Numbers."""

    with pytest.raises(TypeError, match="numbers"):
        describe(Odd)


@settings_class
class Checked:
    """Settings that check themselves, with a secret."""

    low: int = setting(1)
    """A bound."""
    high: int = setting(2)
    """Another bound."""
    password: str = setting("", secret=True)
    """A secret."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"low={self.low}: expected at most high={self.high}")


def test_settings_are_values() -> None:
    settings = Checked(high=5, password="hush")
    assert (settings.low, settings.high) == (1, 5)
    assert settings == Checked(low=1, high=5, password="hush") != Checked(high=5)
    assert len({settings, replace(settings, low=1), Checked()}) == 2
    assert replace(settings, low=3).low == 3
    assert repr(settings) == "Checked(low=1, high=5)"
    assert settings != Sample()
    assert settings == ANY  # the other side may decide
    for copied in (pickle.loads(pickle.dumps(settings)), copy.deepcopy(settings)):
        assert copied == settings
        assert copied is not settings


@settings_class
class Wider(Checked):
    """Settings of another class, and one more."""

    step: int = setting(3)
    """A step."""


def test_settings_of_a_subclass_have_those_of_its_base_first() -> None:
    settings = Wider(high=9)
    assert repr(settings) == "Wider(low=1, high=9, step=3)"
    assert [each.name for each in describe(Wider)] == ["low", "high", "password", "step"]
    assert settings != Checked(high=9)
    assert Checked(high=9) != settings
    with pytest.raises(FrozenInstanceError):
        settings.step = 4  # type: ignore[misc]
    with pytest.raises(ConfigError, match="low=10: expected at most high=9"):
        replace(settings, low=10)


def test_settings_cannot_be_changed_or_made_wrong() -> None:
    settings = Checked()
    with pytest.raises(FrozenInstanceError, match=r"cannot change Checked\.low"):
        settings.low = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match=r"cannot change Checked\.low"):
        del settings.low
    with pytest.raises(TypeError, match="Checked has no setting hihg, lowest"):
        Checked(lowest=1, hihg=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Checked: met a value without a name, expected NAME=VALUE"):
        Checked(5)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="low=3: expected at most high=2"):
        Checked(low=3)
