"""Names of topics and groups, and names within namespaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import InvalidNameError
from cometmq.model.namespace import namespace_of, without_namespace, wrap_namespace
from cometmq.model.topic import (
    Perm,
    TopicConfig,
    check_group_name,
    check_topic_name,
    dlq_topic,
    reply_topic,
    retry_topic,
)

plain_names = st.text("abcXYZ019_-", min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "The specified topic is blank."),
        ("  ", "The specified topic is blank."),
        (
            "a b",
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$: "
            "'a b'",
        ),
        (
            "t" * 128,
            "The specified topic is longer than topic max length. It has 128 characters, at most "
            "127 are allowed: 'tttttttttttt...ttttttttttttt'",
        ),
    ],
)
def test_a_bad_topic_is_refused_in_the_words_of_rocketmq_with_what_was_met(
    name: str, text: str
) -> None:
    with pytest.raises(InvalidNameError) as refusal:
        check_topic_name(name)
    assert str(refusal.value) == text


@pytest.mark.parametrize("name", ["", "\t", "a.b", "g" * 256])
def test_a_bad_group_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match="the specified group"):
        check_group_name(name)


def test_the_longest_names_are_accepted() -> None:
    check_topic_name("t" * 127)
    check_group_name("g" * 255)


def test_topics_that_belong_to_a_group_or_cluster() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dlq_topic("g") == "%DLQ%g"
    assert reply_topic("C") == "C_REPLY_TOPIC"


def test_a_topic_may_be_closed_for_one_side() -> None:
    config = TopicConfig(topic_name="T", perm=Perm.READ)
    assert config.readable
    assert not config.writable


def test_two_topics_do_not_share_their_attributes() -> None:
    TopicConfig().attributes["a"] = "b"
    assert TopicConfig().attributes == {}


@given(plain_names, plain_names, st.sampled_from(["", "%RETRY%", "%DLQ%"]))
def test_a_name_comes_back_out_of_its_namespace(namespace: str, plain: str, prefix: str) -> None:
    wrapped = wrap_namespace(namespace, prefix + plain)

    assert wrapped == f"{prefix}{namespace}%{plain}"
    assert wrap_namespace(namespace, wrapped) == wrapped
    assert namespace_of(wrapped) == namespace
    assert without_namespace(wrapped) == prefix + plain
    assert without_namespace(wrapped, namespace) == prefix + plain
    assert without_namespace(wrapped, namespace + "x") == wrapped
