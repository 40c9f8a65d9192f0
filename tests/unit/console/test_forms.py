"""Forms of changes: fields of a struct, values of a request, and what HTML and the log show."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from cometmq.console.forms import (
    LOGGED_CHARS_MAX,
    Form,
    described,
    fields_of,
    form_of_fields,
    logged_values,
    shown_values,
    values_of,
    without_secrets,
)
from cometmq.console.pages import environment
from cometmq.model.errors import ConfigError


class Send(Form):
    topic: Annotated[str, msgspec.Meta(min_length=1, description="Where to.")]
    body: Annotated[str, msgspec.Meta(extra={"lines": 8})] = ""
    secret: Annotated[str, msgspec.Meta(extra={"secret": True})] = ""
    queue: int | None = None
    kind: Literal["normal", "delay"] | None = None
    keys: list[str] = msgspec.field(default_factory=list)
    is_traced: bool = True


def test_a_struct_makes_the_fields() -> None:
    fields = {each.name: each for each in fields_of(Send)}
    assert {name: each.kind for name, each in fields.items()} == {
        "topic": "text", "body": "area", "secret": "password", "queue": "number",
        "kind": "select", "keys": "lines", "is_traced": "checkbox",
    }  # fmt: skip
    assert [name for name, each in fields.items() if each.is_required] == ["topic"]
    assert fields["topic"].hint == "Where to."
    assert fields["kind"].choices == ("", "delay", "normal")
    assert fields["is_traced"].label == "Is traced"


def test_what_was_sent_makes_the_struct() -> None:
    pairs = [("topic", " orders "), ("body", " a\r\nb"), ("secret", " s "), ("queue", "3")]
    pairs += [("keys", "a\r\n\r\nb"), ("keys", "c"), ("kind", "")]
    form = form_of_fields(Send, pairs, is_sent=True)
    assert form == Send(
        topic="orders", body=" a\nb", secret=" s ", queue=3, keys=["a", "b", "c"], is_traced=False
    )
    assert form_of_fields(Send, [("topic", "a")], is_sent=False).is_traced
    assert shown_values(Send, pairs)["keys"] == "a\r\n\r\nb\nc"
    assert "secret" not in shown_values(Send, pairs) | values_of(form) | logged_values(form)
    assert form_of_fields(Send, values_of(form).items(), is_sent=True) == Send(
        **{**msgspec.to_builtins(form), "secret": ""}
    )


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([], "topic"),
        ([("topic", "a"), ("queue", "x")], "queue"),
        ([("topic", "a"), ("kind", "other")], "kind"),
        ([("topic", "a"), ("\x1bx", "1")], r"unknown field \\x1bx: expected topic, body"),
    ],
    ids=["missing", "no number", "no choice", "unknown"],
)
def test_a_wrong_field_is_named(pairs: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        form_of_fields(Send, pairs, is_sent=True)


def test_the_log_has_so_much_of_a_value() -> None:
    logged = logged_values(Send(topic="a", body="b" * 1_000))
    assert logged == {
        "topic": "a", "body": "b" * LOGGED_CHARS_MAX + "...", "is_traced": "true"
    }  # fmt: skip


class Row(msgspec.Struct):
    queue: int
    first_time_ms: int


class Preview(msgspec.Struct):
    topic: str
    oldest_age_ms: int
    notes: list[str]
    queues: list[Row]


def test_a_struct_is_shown_without_a_template() -> None:
    templates = environment()
    shown = templates.from_string("{% import 'parts.html' as p %}{{ p.described(d) }}").render(
        d=described(Preview("<i>", 61_000, ["<u>"], [Row(1_000, 1_800_000_000_000)]))
    )
    assert "<dt>Topic</dt><dd>&lt;i&gt;" in shown
    assert "<dt>Oldest age</dt><dd>1 min 1 s" in shown
    assert "<li>&lt;u&gt;</li>" in shown
    assert '<td class="number">1,000' in shown
    assert "2027-01-15 08:00:00 UTC</time>" in shown


def test_a_form_shows_again_what_was_typed() -> None:
    text = "{% import 'parts.html' as p %}{% for f in fields %}{{ p.field(f, v.get(f.name, '')) }}"
    shown = (
        environment()
        .from_string(f"{text}{{% endfor %}}")
        .render(
            fields=fields_of(Send),
            v={"topic": '"><b>', "body": "\n<x>\u202e", "kind": "delay", "is_traced": "true"},
        )
    )
    assert 'value="&#34;&gt;&lt;b&gt;"' in shown
    assert "\n\n&lt;x&gt;\u202e</textarea>" in shown
    assert '<option value="delay" selected>' in shown
    assert 'type="checkbox" name="is_traced" value="true" checked' in shown


def test_an_error_that_repeats_a_secret_is_shown_with_stars() -> None:
    text = "account hush-hush: the key hush is too short"
    assert without_secrets(Send(topic="hush", secret="hush"), text) == (
        "account ***-***: the key *** is too short"
    )
    assert without_secrets(Send(topic="hush"), text) == text
