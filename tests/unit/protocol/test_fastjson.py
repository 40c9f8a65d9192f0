"""The dialect of JSON that RocketMQ's bodies are written in."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.base import Body
from cometmq.protocol.bodies.common import DataVersion, KVTable, TopicList
from cometmq.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
)
from cometmq.protocol.bodies.topic import TopicConfigList, TopicOffset, TopicStatsTable
from cometmq.protocol.fastjson import (
    DEPTH_MAX,
    FastJsonError,
    Pairs,
    dumps,
    dumps_ascii,
    dumps_odd,
    loads,
    loads_header,
    parts,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{a:1,\'b\':"x","c":null}', {"a": 1, "b": "x", "c": None}),
        ("{0:'a',-1:2,1.5:3}", {"0": "a", "-1": 2, "1.5": 3}),
        ("{$a:1,b_c-d.e:2}", {"$a": 1, "b_c-d.e": 2}),
        ("[1L,2B,3S,2.5F,4D,+5,-6,.5,1e2,7.]", [1, 2, 3, 2.5, 4.0, 5, -6, 0.5, 100.0, 7.0]),
        ("[1,,2,]", [1, 2]),
        ("{,a:1,,b:2,}", {"a": 1, "b": 2}),
        (" {a : /* why */ 1} // end", {"a": 1}),
        ("{a:undefined,b:NaN,c:true,d:false}", {"a": None, "b": None, "c": True, "d": False}),
        (r"['\u4e2d\x41\t\'\"\/\\\0\v']", ["\u4e2dA\t'\"/\\\0\v"]),
        (r"['\ud83d\ude80\ud800']", ["\U0001f680\ufffd"]),
        ("{键:'值'}", {"键": "值"}),
        ("{a:1,a:2}", {"a": 2}),
        ("{}\n", {}),
    ],
)
def test_what_the_dialect_allows_is_read(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


def test_objects_may_be_keys() -> None:
    found = loads('{{"queueId":0,"topic":"T"}:{"a":1},{"queueId":1}:2,x:3}')

    assert isinstance(found, Pairs)
    assert found == [({"queueId": 0, "topic": "T"}, {"a": 1}), ({"queueId": 1}, 2), ("x", 3)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{a",
        "{a:",
        "{a:1",
        "{a 1}",
        "{a:1 b:2}",
        "[1 2]",
        "[1",
        "{a:1}}",
        "{a:1} x",
        "'abc",
        '"abc',
        "{:1}",
        "nope",
        "-",
        r"'\q'",
        r"'\u12'",
        "/* never ends",
        "{a:" + "9" * 1000 + "}",
    ],
)
def test_what_nobody_can_read_is_refused(text: str) -> None:
    with pytest.raises(FastJsonError):
        loads(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(FastJsonError, match="byte 2 of a JSON text is not UTF-8"):
        loads(b"{a\xff:1}")


@pytest.mark.parametrize("opening", ["[", "{a:", '{"a":', "{{"])
def test_nesting_has_a_limit(opening: str) -> None:
    with pytest.raises(FastJsonError, match="deep"):
        loads(opening * 100_000)


def test_nesting_up_to_the_limit_is_read() -> None:
    found = loads("[" * (DEPTH_MAX - 1) + "{a:1}" + "]" * (DEPTH_MAX - 1))
    for _ in range(DEPTH_MAX - 1):
        (found,) = found
    assert found == {"a": 1}


def test_references_become_copies() -> None:
    text = '{"a":[{"x":{"y":1}},2],"b":{"$ref":"$.a[0]"},"c":{"$ref":"$.a[0].x"}}'
    found = loads(text)

    assert found == {"a": [{"x": {"y": 1}}, 2], "b": {"x": {"y": 1}}, "c": {"y": 1}}
    assert found["b"] is not found["a"][0]


def test_references_are_found_within_keys_and_values_of_pairs() -> None:
    found = loads('{"q":{"id":0},"t":{{"$ref":"$.q"}:{"$ref":"$.q"}}}')
    assert found["t"] == [({"id": 0}, {"id": 0})]


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"$ref":"$"}}',
        '{"a":{"b":{"$ref":"$.a"}}}',
        '{"a":{"$ref":"$.b"}}',
        '{"a":[1],"b":{"$ref":"$.a[1]"}}',
        '{"a":{"$ref":".."}}',
        '{"a":{"$ref":"$.a b!"}}',
        '{"a":{"$ref":7}}',
        '{"a":5,"b":{"$ref":"$.a.c"}}',
    ],
)
def test_references_that_lead_nowhere_or_in_circles_are_refused(text: str) -> None:
    with pytest.raises(FastJsonError):
        loads(text)


def test_references_cannot_blow_a_small_text_up() -> None:
    levels = ['"l0":[1,1]']
    for number in range(1, 40):
        before = f'{{"$ref":"$.l{number - 1}"}}'
        levels.append(f'"l{number}":[{before},{before}]')

    with pytest.raises(FastJsonError, match="repeat more than"):
        loads("{" + ",".join(levels) + "}")


@given(json_values)
def test_plain_json_means_the_same_as_everywhere(value: Any) -> None:
    assert loads(json.dumps(value, ensure_ascii=False)) == value
    assert loads("\n" + json.dumps(value) + "//") == value


@given(st.binary(max_size=60) | st.text("{}[]:,'\"\\/*$reftuna019.- ", max_size=60))
def test_any_input_is_read_or_refused(data: bytes | str) -> None:
    with contextlib.suppress(FastJsonError):
        loads(data)


@given(json_values)
def test_what_is_written_is_strict_and_comes_back(value: Any) -> None:
    assert json.loads(dumps({"v": value})) == without_null_members({"v": value})
    assert loads(dumps_odd({"v": value})) == without_null_members({"v": value})


def without_null_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_null_members(item) for key, item in value.items() if item is not None}
    return [without_null_members(item) for item in value] if isinstance(value, list) else value


def test_members_are_written_in_order_and_none_is_left_out() -> None:
    assert dumps({"b": 1, "a": None, "c": [None, "null"]}) == b'{"b":1,"c":[null,"null"]}'
    assert dumps({"b": 1, "a": 2}) == b'{"a":2,"b":1}'


def test_keys_that_are_no_texts_stand_bare_only_in_the_dialect() -> None:
    queue = MessageQueue("T", "b", 1)
    bare = b'{"brokerName":"b","queueId":1,"topic":"T"}'

    assert dumps({10: "x", 9: "y"}) == b'{"9":"y","10":"x"}'
    assert dumps_odd({0: "x"}) == b'{0:"x"}'
    assert dumps_odd({queue: 5}) == b"{" + bare + b":5}"
    assert loads(dumps({queue: 5})) == {bare.decode(): 5}


def test_ascii_form_escapes_as_browsers_once_needed() -> None:
    written = dumps_ascii({"p/q": "主\U0001f680"})
    assert written == b'{"p\\/q":"\\u4E3B\\uD83D\\uDE80"}'
    assert loads(written) == {"p/q": "主\U0001f680"}


@pytest.mark.parametrize(
    "body",
    [
        ConsumerOffsetSerializeWrapper(),
        ConsumerOffsetSerializeWrapper(
            offset_table={
                "few@g": {0: 1},
                "none@g": {},
                "many@g": dict.fromkeys(range(3_000), 5),
                **{f"t{n}@g": {0: n, 1: n} for n in range(2_000)},
            },
            data_version=DataVersion(),
            group_topic_map={"g": ["t"] * 3_000, "h": []},
        ),
        TopicStatsTable(
            offset_table={MessageQueue("t", "b", n): TopicOffset() for n in range(3_000)}
        ),
        KVTable(table={str(n): "v" for n in range(3_000)}),
        TopicConfigList(
            topic_config_list=[TopicConfig(attributes={"a": "b"}) for _ in range(3_000)]
        ),
        ConsumeStatsList(
            consume_stats_list=[
                {"g": []},
                {"h": [ConsumeStats(offset_table={MessageQueue("t"): OffsetWrapper()})] * 2_000},
            ]
        ),
    ],
    ids=lambda body: type(body).__name__,
)
def test_parts_of_a_body_are_the_body(body: Body) -> None:
    assert b"".join(body.parts()) == body.encode()


def test_a_large_body_has_many_parts() -> None:
    body = TopicList(topic_list=["topic"] * 100_000)
    assert len(list(body.parts())) >= 100


@pytest.mark.parametrize(
    "text",
    [
        b"{'a':[" + b"1," * 3_000 + b"1]}",
        b"{'a':'" + b"\\x41" * 3_000 + b"'}",
        b"{'a':1" + b" " * 200_000 + b"}",
    ],
    ids=["values", "escapes", "blanks"],
)
def test_an_odd_header_is_short(text: bytes) -> None:
    with pytest.raises(FastJsonError, match=r"more than|at most"):
        loads_header(text)


def test_a_text_of_the_dialect_has_a_limit() -> None:
    with pytest.raises(FastJsonError, match="more than 500000 values"):
        loads(b"[" + b"1," * 500_001 + b"]")


def test_a_large_map_is_written_in_parts_in_the_order_of_its_names() -> None:
    value = {
        f"{number * 7919 % 5003:05d}": number if number % 3 else None for number in range(5003)
    }
    written = list(parts(value, bare_keys=False))
    assert b"".join(written) == dumps(value)
    assert len(written) > 5
