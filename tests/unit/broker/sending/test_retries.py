"""A message that is sent back: its stored origin, and the limit and delays of its retries."""

from __future__ import annotations

import pytest

from cometmq.broker.sending.retries import level_of_copy, retry_level
from cometmq.broker.sending.send_back import Retry, plan_retry
from cometmq.model.delay import DelayLevels
from cometmq.model.group import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
)

LEVELS = DelayLevels.parse()
DEFAULT = GroupRetryPolicy()


def customized(*delays_ms: int) -> GroupRetryPolicy:
    return GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=list(delays_ms)))


def exponential(initial: int, most: int, multiplier: int) -> GroupRetryPolicy:
    policy = ExponentialRetryPolicy(initial=initial, max=most, multiplier=multiplier)
    return GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy=policy)


def plan(
    properties: dict[str, str],
    *,
    topic: str = "T",
    times: int = 0,
    most: int = 16,
    level: int = 3,
) -> Retry:
    return plan_retry(
        properties,
        topic=topic,
        message_id="ID",
        reconsume_times=times,
        reconsume_times_max=most,
        delay_level=level,
    )


def test_a_first_retry_remembers_where_it_comes_from() -> None:
    retry = plan({"KEYS": "k"})
    assert not retry.is_dead
    assert retry.properties == {
        "KEYS": "k",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "ID",
        "WAIT": "false",
        "DELAY": "3",
    }


def test_a_further_retry_keeps_its_first_origin() -> None:
    properties = {"RETRY_TOPIC": "first", "ORIGIN_MESSAGE_ID": "first id", "DELAY": "3"}
    retry = plan(properties, topic="%RETRY%g", times=1, level=4)
    assert retry.properties["RETRY_TOPIC"] == "first"
    assert retry.properties["ORIGIN_MESSAGE_ID"] == "first id"
    assert retry.properties["DELAY"] == "4"


def test_a_producer_cannot_make_up_the_origin_of_a_retry() -> None:
    made_up = {"RETRY_TOPIC": "another", "ORIGIN_MESSAGE_ID": "another id"}

    retry = plan(made_up, topic="T")

    assert retry.properties["RETRY_TOPIC"] == "T"
    assert retry.properties["ORIGIN_MESSAGE_ID"] == "ID"


@pytest.mark.parametrize(("times", "most", "level"), [(16, 16, 3), (0, 0, 5), (0, 16, -1)])
def test_exhausted_and_given_up_messages_are_dead_letters(
    times: int, most: int, level: int
) -> None:
    retry = plan({}, times=times, most=most, level=level)
    assert retry.is_dead
    assert retry.properties["DELAY"] == "0"


def test_the_level_asked_for_is_used() -> None:
    assert plan({}, times=3, level=7).properties["DELAY"] == "7"


# --- delays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        DEFAULT,
        customized(),
        GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy()),
        GroupRetryPolicy(type="EXPONENTIAL"),
        GroupRetryPolicy(type="LINEAR"),
        GroupRetryPolicy(exponential_retry_policy=ExponentialRetryPolicy()),
    ],
)
def test_without_a_policy_of_its_type_the_delay_levels_follow_each_other(
    policy: GroupRetryPolicy,
) -> None:
    assert [retry_level(policy, LEVELS, times) for times in range(16)] == list(range(3, 19))


def test_the_default_policy_of_rocketmq_is_the_same_as_none() -> None:
    """Its table has the delay levels, of which retries use the third and those behind it."""
    policy = customized(*(LEVELS.delay_ms(level) for level in range(1, 19)))
    assert [retry_level(policy, LEVELS, times) for times in range(20)] == [
        *range(3, 19), 18, 18, 18, 18
    ]  # fmt: skip


def test_a_customized_policy_begins_at_its_third_delay_and_ends_at_its_last() -> None:
    policy = customized(0, 0, 5_000, 60_000)
    assert [policy.delay_ms(times) for times in range(4)] == [5_000, 60_000, 60_000, 60_000]
    assert [retry_level(policy, LEVELS, times) for times in range(3)] == [2, 5, 5]
    assert [customized(1_000).delay_ms(times) for times in range(3)] == [1_000] * 3


def test_delays_grow_by_a_factor_up_to_a_maximum() -> None:
    policy = exponential(5_000, 60_000, 2)
    assert [policy.delay_ms(times) for times in range(6)] == [
        5_000, 10_000, 20_000, 40_000, 60_000, 60_000
    ]  # fmt: skip
    assert policy.delay_ms(2**31 - 1) == 60_000
    assert policy.delay_ms(-1) == 5_000


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (29_999, 4), (7_200_000, 18), (10**12, 18)],
)
def test_a_delay_is_never_cut_short(delay_ms: int, level: int) -> None:
    assert retry_level(customized(delay_ms), LEVELS, 0) == level


@pytest.mark.parametrize(
    ("requested", "times", "level"),
    [("3", 0, "5"), ("6", 3, "5"), ("18", 15, "5"), ("19", 16, "5"), ("4", 0, "4"), ("1", 2, "1")],
)
def test_a_copy_that_names_the_brokers_own_level_gets_that_of_the_policy(
    requested: str, times: int, level: str
) -> None:
    assert level_of_copy(customized(60_000), LEVELS, times, requested) == level
    default = level_of_copy(DEFAULT, LEVELS, times, requested)
    assert LEVELS.level_of(default) == LEVELS.level_of(requested)
