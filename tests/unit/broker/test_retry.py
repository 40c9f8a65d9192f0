import pytest

from cometmq.broker.sending.send_back import Retry, plan_retry


def plan(properties: dict[str, str], *, times: int = 0, most: int = 16, level: int = 0) -> Retry:
    return plan_retry(
        properties,
        topic="T",
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
    retry = plan(properties, times=1)
    assert retry.properties["RETRY_TOPIC"] == "first"
    assert retry.properties["ORIGIN_MESSAGE_ID"] == "first id"
    assert retry.properties["DELAY"] == "4"


@pytest.mark.parametrize(("times", "most", "level"), [(16, 16, 0), (0, 0, 5), (0, 16, -1)])
def test_exhausted_and_given_up_messages_are_dead_letters(
    times: int, most: int, level: int
) -> None:
    retry = plan({}, times=times, most=most, level=level)
    assert retry.is_dead
    assert retry.properties["DELAY"] == "0"


def test_the_level_asked_for_is_used() -> None:
    assert plan({}, times=3, level=7).properties["DELAY"] == "7"
