"""Options: known names, kinds and ranges; what is wrong is refused with what was expected."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.options.parsing import option, options_of, parse_options
from cometmq.spark.options.topics import TopicReadOptions

NEEDED = {"nameServer": "n:1", "subscribe": "t"}


@dataclass(frozen=True)
class SomeOptions:
    """Options of a test."""

    place: str = option("", "place.address", alias="place", required=True)
    """Where."""

    size: int | None = option(None, "sizeMax", unit="bytes", low=1, high=9)
    """How much."""

    loud: bool = option(False, "loud")
    """Whether."""

    names: tuple[str, ...] = option((), "names")
    """Who."""

    colour: str = option("red", "colour", choices=("red", "blue"))
    """Which."""

    def check(self) -> None:
        if self.loud and self.colour == "blue":
            raise OptionError("loud blue")


def test_texts_become_values_whatever_the_case_of_their_names() -> None:
    """Spark hands names over in lower case."""
    given = {"PLACE": " here ", "sizemax": "5", "Loud": "TRUE", "names": "a; b"}

    assert parse_options(SomeOptions, given) == SomeOptions("here", 5, True, ("a", "b"), "red")


def test_what_is_not_given_has_its_default() -> None:
    assert parse_options(SomeOptions, {"place.address": "x"}) == SomeOptions("x")


@pytest.mark.parametrize("name", ["owner", "Provider", "option.place", "OPTION.PLACE"])
def test_what_spark_adds_to_a_table_is_passed_over(name: str) -> None:
    assert parse_options(SomeOptions, {"place": "x", name: "y"}) == SomeOptions("x")


def test_options_of_a_table_have_a_prefix() -> None:
    given = {"option.place": "x", "option.loud": "false", "loud": "true", "owner": "me"}

    assert parse_options(SomeOptions, given) == SomeOptions("x", loud=True)
    with pytest.raises(OptionError, match=r"did you mean loud\?"):
        parse_options(SomeOptions, given | {"option.lout": "x"})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"placee": "x"}, "option placee is unknown; did you mean place?"),
        ({"sizemx": "1"}, "option sizemx is unknown; did you mean sizeMax?"),
        ({"zzz": "1"}, "option zzz is unknown; known: place.address, place, sizeMax, loud"),
        ({"path": "x"}, "option path is unknown"),
        ({}, "option place.address or place is required"),
        ({}, r"FROM table WITH"),
        ({"place": ""}, "option place.address or place is required"),
        ({"place": "x", "place.address": "y"}, "place.address and place mean the same"),
        ({"place": "x", "sizeMax": "0"}, "option sizeMax=0: expected a whole number from 1 to 9"),
        ({"place": "x", "sizeMax": "ten"}, "option sizeMax=ten: expected a whole number"),
        ({"place": "x", "loud": "yes"}, "option loud=yes: expected true or false"),
        ({"place": "x", "colour": "green"}, "option colour=green: expected one of red, blue"),
        ({"place": "x", "colour": "blue", "loud": "true"}, "loud blue"),
    ],
)
def test_what_is_wrong_is_refused_with_what_was_expected(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_options(SomeOptions, given)

    assert text in str(refused.value)


def test_facts_of_options_are_known_to_documents() -> None:
    place, size = options_of(SomeOptions)[:2]

    assert place.names == ("place.address", "place")
    assert place.required
    assert size.setting.unit == "bytes"
    assert size.setting.expectation == "a whole number from 1 to 9 (bytes)"


# --- of topics ------------------------------------------------------------------------------------


def parsed(**given: Any) -> TopicReadOptions:
    texts = {name.replace("_", "."): str(value) for name, value in given.items()}
    return parse_options(TopicReadOptions, NEEDED | texts)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"assign": "{}"}, "exactly one of subscribe, subscribePattern, assign"),
        ({"subscribePattern": "a"}, "exactly one of subscribe, subscribePattern, assign"),
        ({"commitToGroup": "true"}, "commitToGroup needs rocketmq.group"),
        ({"startingOffsets": "group"}, "startingOffsets=group needs rocketmq.group"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay=soon: expected a number and ms, s, m, h"),
        (
            {"maxOffsetsPerTrigger": 0},
            "maxOffsetsPerTrigger=0: expected a whole number",
        ),
        ({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 3}, "minOffsetsPerTrigger=9 is more"),
        ({"filter_tags": "a", "filter_sql": "b > 1"}, "only one of the two is allowed"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "expected one of error, latest"),
        ({"startingOffsetDefault": "latest"}, "did you mean startingOffsetsDefault?"),
        ({"rocketmq_acl_secretKey": "12345678"}, "secretKey is a secret"),
    ],
)
def test_options_of_topics_that_contradict_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as refused:
        parsed(**given)

    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "given"), [(TopicReadOptions, NEEDED), (LogOptions, {"path": "/store"})]
)
@pytest.mark.parametrize("prefix", ["", "option."])
def test_options_that_returned_wrong_rows_are_refused_with_what_to_use_instead(
    kind: type, given: dict[str, str], prefix: str
) -> None:
    parse_options(kind, given)
    with pytest.raises(OptionError, match=r"^option pushDownFilters was removed: .*filter\.tags"):
        parse_options(kind, given | {f"{prefix}pushdownfilters": "true"})
    with pytest.raises(OptionError, match=r"^option snapshot was removed, .* call load\(\) again"):
        parse_options(kind, given | {f"{prefix}snapshot": "action"})


def test_no_topic_at_all_is_refused() -> None:
    with pytest.raises(OptionError, match="met none"):
        parse_options(TopicReadOptions, {"nameServer": "n:1"})


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("500ms", 0.5), ("2 H", 7200), ("1d", 86400), ("3s", 3)]
)
def test_a_delay_has_a_unit(text: str, seconds: float) -> None:
    assert parsed(maxTriggerDelay=text).max_trigger_delay_s == seconds


def test_pulls_are_on_behalf_of_the_group_that_was_named() -> None:
    assert parsed().reading_group is None
    assert parsed(groupIdPrefix="etl").reading_group == "etl-reader"
    assert parsed(rocketmq_group="g", groupIdPrefix="etl").reading_group == "g"


def test_every_option_of_topics_has_one_name() -> None:
    names = [name.lower() for each in options_of(TopicReadOptions) for name in each.names]

    assert len(set(names)) == len(names)
    assert len(dataclasses.fields(TopicReadOptions)) == len(options_of(TopicReadOptions))
