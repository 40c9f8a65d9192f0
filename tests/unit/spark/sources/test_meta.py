"""Rows about queues and groups: which there are, and their lag."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.offsets import Bounds
from cometmq.spark.options.meta import MetaOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.schema import arrow_schema, chosen
from cometmq.spark.sources import meta
from cometmq.spark.sources.meta import META, batches, lag, takes

NAMES = {"nameserver": "localhost:9876"}
ROW = {
    "topic": "t",
    "broker_name": "a",
    "queue_id": 1,
    "consumer_group": None,
    "min_offset": 0,
    "max_offset": 5,
    "committed_offset": None,
    "lag": None,
    "last_store_timestamp": None,
    "observed_timestamp": 1,
}


def options(**given: str) -> MetaOptions:
    return parse_options(MetaOptions, NAMES | given)


@pytest.mark.parametrize(
    ("committed", "expected"),
    [(None, 6), (0, 6), (4, 6), (7, 3), (10, 0), (99, 0)],
    ids=["none", "expired", "oldest", "between", "end", "behind the end"],
)
def test_lag_is_what_a_group_has_to_see_still(committed: int | None, expected: int) -> None:
    assert lag(Bounds(4, 10), committed) == expected


def test_named_topics_are_split_at_commas() -> None:
    assert options(subscribe=" a, b ,,a").topics == ("a", "b")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, ["shop", "bill"]),
        ({"groups": "shop, none"}, ["shop"]),
        ({"groupPattern": "b.*"}, ["bill"]),
        ({"groupPattern": "TOOLS.*"}, ["TOOLS_CONSUMER"]),
        ({"includeSystem": "true"}, ["shop", "bill", "TOOLS_CONSUMER"]),
    ],
)
def test_groups_are_chosen(given: dict[str, str], taken: list[str]) -> None:
    chosen_by = options(**given)
    groups = ("shop", "bill", "TOOLS_CONSUMER")
    assert [group for group in groups if takes(chosen_by, group)] == taken


def test_a_pattern_means_the_whole_name() -> None:
    assert not takes(options(groupPattern="sho"), "shop")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern"),
        ({"groups": "a", "groupPattern": "b"}, "groups and groupPattern"),
        ({"subscribePattern": "("}, "subscribePattern.*regular expression"),
        ({"groupPattern": "*"}, "groupPattern.*regular expression"),
        ({"subscribed": "a"}, "subscribed is unknown; did you mean subscribe"),
    ],
)
def test_options_that_contradict_themselves_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        options(**given)


def test_batches_have_the_asked_columns_in_their_order() -> None:
    columns = chosen(META, ["lag", "topic"])
    [batch] = batches([ROW | {"lag": 3}], columns)
    assert batch.schema == arrow_schema(columns)
    assert batch.to_pylist() == [{"lag": 3, "topic": "t"}]


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta, "ROWS_MAX", 3)
    found = list(batches([ROW | {"queue_id": number} for number in range(7)], META))
    assert [batch.num_rows for batch in found] == [3, 3, 1]
    table = pa.Table.from_batches(found)
    assert table.column("queue_id").to_pylist() == list(range(7))


def test_no_rows_make_no_batch() -> None:
    assert list(batches([], META)) == []
