import pytest

from cometmq.broker.clients.subscriptions import Subscription, matcher_of
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies import SubscriptionData
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


@pytest.mark.parametrize(("enabled", "code"), [(False, 1), (True, 23)])
def test_other_kinds_of_expressions_are_refused(enabled: bool, code: int) -> None:
    with pytest.raises(ResponseError) as refusal:
        matcher_of("a > 1", "SQL92", enabled)
    assert refusal.value.code == code
    with pytest.raises(ResponseError):
        Subscription(SubscriptionData(topic="T", expression_type="SQL92")).matcher(enabled)


@pytest.mark.parametrize("codes", [["x"], []])
def test_a_subscription_is_matched_by_its_codes_not_by_its_text(codes: list[str]) -> None:
    data = SubscriptionData(topic="T", sub_string="a", code_set=[java_hash(tag) for tag in codes])
    matcher = Subscription(data).matcher(False)
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
    assert Subscription(data).matcher(False) is None


def test_blank_pieces_only_match_nothing() -> None:
    matcher = matcher_of(" || ", "TAG", False)
    assert matcher is not None
    assert not matcher.matches_tags(0)
