"""The topics of Kombu's queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.kombu.names import NAME_MAX, Names, decode, encode
from cometmq.model.topic import check_topic_name


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_a_name_is_a_valid_topic_and_can_be_read_back(name: str) -> None:
    topic = Names("shop/eu").queue(name)
    check_topic_name(topic)
    text = encode(name)
    if "|h" not in text:
        assert decode(text) == name


def test_long_names_and_names_of_other_uses_do_not_collide() -> None:
    names, hosted, long_hosted = Names(), Names("shop"), Names("s" * 200)
    one, two = "a" * (NAME_MAX + 1), "a" * (NAME_MAX + 2)
    found = [
        *(
            names.queue(each)
            for each in (one, two, "q", "q|p3", "|xq", "|t", "shop||q", "a.b", "a-b")
        ),
        *(names.queue(each) for each in ("a|2eb", "a_b")),
        names.priority("q", 3),
        names.exchange("q"),
        names.exchange(""),
        names.bindings(),
        hosted.queue("q"),
        hosted.bindings(),
        long_hosted.queue("q"),
        long_hosted.priority("q" * 200, 9),
        Names("s" * 201).exchange("q" * 200),
    ]
    assert len(found) == len(set(found))
    assert all(len(each) <= 127 for each in found)


def test_a_topic_is_of_one_virtual_host() -> None:
    names, hosted = Names(), Names("shop")
    assert names.is_queue(names.queue("q|p"))
    assert not names.is_queue(hosted.queue("q"))
    assert not hosted.is_queue(names.queue("shop"))
    assert not names.is_queue("orders")
