"""Subscriptions: tags and SQL92 expressions, parsed, matched and refused."""

import asyncio

import pytest

from cometmq.broker.filters import expressions
from cometmq.broker.filters.expressions import CompiledExpressions
from cometmq.broker.filters.subscriptions import Subscription, matcher_of
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.subscription import ExpressionError, parse_tag_expression


@pytest.mark.parametrize("text", [None, "", "*"])
def test_nothing_and_a_star_select_everything(text: str | None) -> None:
    assert parse_tag_expression(text).selects_all
    assert matcher_of(text, "TAG", False) is None


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("a", {"a"}),
        ("a||b", {"a", "b"}),
        ("  a \t|| b b||", {"a", "b b"}),
        ("||a", {"a"}),
        ("|||", {"|"}),
        (" || ", set()),
        ("größe😀", {"größe😀"}),
    ],
)
def test_tags_of_an_expression(text: str, tags: set[str]) -> None:
    parsed = parse_tag_expression(text)
    assert parsed.tags == tags
    assert parsed.codes == {java_hash(tag) for tag in tags}
    assert not parsed.selects_all


@pytest.mark.parametrize("text", ["||", "||||"])
def test_separators_alone_are_an_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_tag_expression(text)
    with pytest.raises(ResponseError) as refusal:
        matcher_of(text, None, False)
    assert refusal.value.code == 23


@pytest.mark.parametrize(
    ("text", "kind", "enabled", "code", "remark"),
    [
        ("a > 1", "SQL92", False, 1, "to filter message by SQL92; set enablePropertyFilter=true"),
        ("a >", "SQL92", True, 23, "SQL92 at character 4: met "),
        (None, "SQL92", True, 23, "SQL92 at character 1: met "),
        ("a > 1", "LUA", False, 1, "to filter message by LUA, expected TAG or SQL92"),
        ("a > 1", "LUA", True, 23, "met the expression type 'LUA', expected TAG or SQL92"),
        ("a" * 32_769, "SQL92", True, 23, "an expression of 32769 characters, expected 32768 at"),
        ("a" * 32_769, "TAG", True, 23, "an expression of 32769 characters, expected 32768 at"),
    ],
)
def test_expressions_that_cannot_be_served_are_refused(
    text: str | None, kind: str, enabled: bool, code: int, remark: str
) -> None:
    with pytest.raises(ResponseError, match=remark) as refusal:
        matcher_of(text, kind, enabled)
    assert refusal.value.code == code


def test_an_expression_matches_by_properties() -> None:
    matcher = matcher_of("a > 1", "SQL92", True)
    assert matcher is not None
    assert matcher.needs_properties
    assert matcher.matches_properties(b"a\x012\x02")
    assert not matcher.matches_properties(b"a\x011\x02")
    assert not matcher.matches_properties(b"a\x01x\x02")
    assert not matcher.matches_properties(b"")


def test_a_long_expression_is_compiled_off_the_event_loop_once() -> None:
    text = " OR ".join(f"long_{number} = {number}" for number in range(50))
    with pytest.raises(PrerequisiteError) as needed:
        matcher_of(text, "SQL92", True)
    asyncio.run(needed.value.run())
    matcher = matcher_of(text, "SQL92", True)
    assert matcher is not None
    assert matcher.matches_properties(b"long_49\x0149\x02")


def test_compiled_expressions_are_kept_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_TEXTS_MAX", 3)
    monkeypatch.setattr(expressions, "_CHARS_MAX", 100)
    kept = CompiledExpressions()
    first = kept.find("a = 1")
    assert kept.find("a = 1") is first
    assert kept.find("a =") is kept.find("a =")
    for number in range(2):
        kept.find(f"b = {number}")
    assert [kept.chars_to_compile(text) for text in ("a = 1", "a =", "b = 1")] == [5, 0, 0]
    kept.find("c" * 98)
    assert [kept.chars_to_compile(text) for text in ("a =", "b = 1", "c" * 98)] == [3, 5, 0]


@pytest.mark.parametrize("codes", [["x"], []])
def test_a_subscription_is_matched_by_its_codes_not_by_its_text(codes: list[str]) -> None:
    data = SubscriptionData(topic="T", sub_string="a", code_set=[java_hash(tag) for tag in codes])
    matcher = Subscription(data).tag_matcher
    assert matcher is not None
    assert {tag for tag in ("a", "x", "other") if matcher.matches_tags(java_hash(tag))} == {*codes}


@pytest.mark.parametrize(
    "data",
    [
        SubscriptionData(topic="T", sub_string="*"),
        SubscriptionData(topic="T"),
        SubscriptionData(topic="T", sub_string="a", class_filter_mode=True),
    ],
)
def test_subscriptions_to_everything_need_no_matcher(data: SubscriptionData) -> None:
    assert Subscription(data).tag_matcher is None


def test_blank_pieces_only_match_nothing() -> None:
    matcher = matcher_of(" || ", "TAG", False)
    assert matcher is not None
    assert not matcher.matches_tags(0)
