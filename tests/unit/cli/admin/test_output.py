"""The output of ``cometmq admin``, and its question before a change."""

from __future__ import annotations

import io
import json
import sys
from datetime import datetime
from typing import Any

import pytest

from cometmq.cli.admin.arguments import queue_of
from cometmq.cli.admin.commands import Call, make_changes, show_rows, with_interval
from cometmq.cli.admin.completion import names
from cometmq.cli.admin.output import Change, Output, confirmed
from cometmq.cli.admin.tables import headings, shown
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.quantities import duration, size
from cometmq.model.times import time_of

NOW_MS = 1_800_000_000_123


class Terminal(io.StringIO):
    """An input that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Target:
    """What changes change."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def change(self, name: str, *, destroys: bool = False, fails: bool = False) -> Change:
        async def run() -> None:
            if fails:
                raise CometError(f"{name} is broken")
            self.done.append(name)

        return Change(f"delete {name}", "broker-a", run, destroys=destroys)


@pytest.fixture
def target() -> Target:
    return Target()


def call(*, as_json: bool = False) -> Call:
    unused: Any = None
    return Call(unused, Output(as_json), unused)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("offset", 0, "0"),
        ("transferred_bytes_per_s", 2048, "2.0 KiB/s"),
        ("transferred_bytes_per_s", None, "-"),
        ("offset", None, "-"),
        ("ordered", True, "yes"),
        ("ordered", False, "no"),
        ("age_ms", 0, "0 ms"),
        ("age_ms", 999, "999 ms"),
        ("age_ms", 61_000, "1 min 1 s"),
        ("age_ms", 7_500_000, "2 h 5 min"),
        ("age_ms", 90_000_000, "1 d 1 h"),
        ("stored_time_ms", 0, "-"),
        ("stored_time_ms", NOW_MS, f"{datetime.fromtimestamp(1_800_000_000)}.123"),
        ("log_bytes", 1023, "1023 B"),
        ("log_bytes", 1536, "1.5 KiB"),
        ("log_bytes", 5 << 50, "5120.0 TiB"),
        ("tps", 1.234, "1.23"),
        ("disk_used_ratio", 0.4321, "43.2 %"),
        ("disk_used_ratio", None, "-"),
        ("keys", ["a", "b"], "a, b"),
        ("keys", [], "-"),
        ("attributes", {"a": 1}, "a=1"),
        ("body", "red\x1b[31m\n", "red\\x1b[31m\\n"),
    ],
)  # fmt: skip
def test_a_value_is_shown_as_its_key_says(key: str, value: object, text: str) -> None:
    assert shown(key, value) == text


def test_a_head_has_the_words_of_its_key_without_the_unit() -> None:
    heads = headings(["min_offset", "stored_time_ms", "age_ms", "log_bytes", "read_bytes_per_s"])

    assert heads == ["Min offset", "Stored", "Age", "Log", "Read"]


def test_abbreviations_in_a_head_have_capital_letters() -> None:
    assert headings(["dlq_position", "in_tps", "tps"]) == ["DLQ position", "In TPS", "TPS"]


def test_units_of_durations_and_sizes() -> None:
    assert [duration(59_999), duration(-5)] == ["59 s", "0 ms"]
    assert [size(0), size(1 << 20)] == ["0 B", "1.0 MiB"]


def test_json_has_an_object_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    Output(True).rows(["topic", "stored_time_ms"], [("ä", NOW_MS), ("b", None)])

    assert json.loads(capsys.readouterr().out) == [
        {"topic": "ä", "stored_time_ms": NOW_MS},
        {"topic": "b", "stored_time_ms": None},
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_json_controls_no_terminal(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "é\x9b31m\u202e"
    out = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)

    Output(as_json=True).record(["name", "lag"], (name, 1))

    assert (name in out.getvalue()) != is_terminal
    assert ('"é\\x9b31m\\u202e"' in out.getvalue()) == is_terminal
    assert out.getvalue().count("\n") == 4


def test_a_table_keeps_long_values_whole_if_it_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "n" * 300
    Output().rows(["topic", "lag"], [(name, 7), ("[bold]b", 12)])

    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["Topic", "Lag"], [name, "7"], ["[bold]b", "12"]]


def test_no_rows_are_an_empty_array_in_json_and_a_note_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(True).rows(["topic"], [])
    assert json.loads(capsys.readouterr().out) == []

    Output().rows(["topic"], [])
    assert capsys.readouterr() == ("", "nothing found\n")


def test_a_row_must_have_a_value_for_each_key() -> None:
    with pytest.raises(ValueError, match="zip"):
        Output(True).rows(["topic", "lag"], [("a",)])


async def test_a_dry_run_makes_no_change_and_does_not_ask(
    target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [target.change("a", destroys=True)]
    await make_changes(call(as_json=True), changes, dry_run=True, yes=False)

    assert target.done == []
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["planned"]


async def test_a_destroying_change_is_refused_without_a_terminal(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(ConfigError, match=r"delete a \(broker-a\) needs a confirmation.*--yes"):
        await make_changes(call(), [target.change("a", destroys=True)], dry_run=False, yes=False)

    assert target.done == []


@pytest.mark.parametrize(("reply", "made"), [("y", True), ("YES", True), ("n", False), ("", False)])
async def test_a_destroying_change_is_made_after_a_yes_only(
    target: Target, monkeypatch: pytest.MonkeyPatch, reply: str, made: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{reply}\n"))
    run = call()
    await make_changes(run, [target.change("a", destroys=True)], dry_run=False, yes=False)

    assert (target.done, run.failed) == (["a"] if made else [], not made)


async def test_the_question_shows_every_change(
    target: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))

    assert not confirmed([target.change("a", destroys=True), target.change("b")])
    asked = capsys.readouterr()
    assert asked.out == ""
    assert all(text in asked.err for text in ("delete a", "delete b", "[y/N]"))


async def test_changes_that_destroy_nothing_are_made_without_a_question(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    await make_changes(call(), [target.change("a")], dry_run=False, yes=False)

    assert target.done == ["a"]


async def test_changes_go_on_after_one_that_failed(
    target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    run = call(as_json=True)
    part = Change("delete b too", "broker-b", None)
    changes = [target.change("a"), target.change("b", fails=True), part, target.change("c")]
    await make_changes(run, changes, dry_run=False, yes=True)

    rows = json.loads(capsys.readouterr().out)
    assert target.done == ["a", "c"]
    assert run.failed
    assert [(row["state"], row["error"]) for row in rows] == [
        ("done", ""),
        ("failed", "b is broken"),
        ("failed", "b is broken"),
        ("done", ""),
    ]


@pytest.mark.usefixtures("virtual_time")
async def test_watching_goes_on_after_a_round_that_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = 0

    async def find() -> list[tuple[int]]:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise CometError("the broker restarts")
        return [(rounds,)]

    run = call(as_json=True)
    await show_rows(run, find, ["round"], watch=60.0, rounds=3)

    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == [
        [{"round": 1}],
        [{"round": 3}],
    ]
    assert "the broker restarts" in printed.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["t", "--watch"], ["t", "--watch", "2"]),
        (["--watch", "0.5", "t"], ["--watch", "0.5", "t"]),
        (["--watch", "--json"], ["--watch", "2", "--json"]),
        (["--watch=3"], ["--watch=3"]),
    ],
)
def test_watch_needs_no_number(words: list[str], expected: list[str]) -> None:
    assert with_interval(words) == expected


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("now", NOW_MS),
        ("90s", NOW_MS - 90_000),
        ("1.5h", NOW_MS - 5_400_000),
        ("3d", NOW_MS - 259_200_000),
        ("1700000000000", 1_700_000_000_000),
        ("2026-01-31T18:00:00+00:00", 1_769_882_400_000),
    ],
)
def test_a_time_has_several_forms(text: str, time_ms: int) -> None:
    assert time_of(text, now=NOW_MS) == time_ms


@pytest.mark.parametrize("text", ["", "yesterday", "2x", "-3h", "2026-13-01", "9" * 400 + "x"])
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ISO 8601"):
        time_of(text, now=NOW_MS)


def test_queues_are_read_or_refused() -> None:
    assert queue_of("broker-a:3") == ("broker-a", 3)
    for text in ("broker-a", ":1", "broker-a:x", "broker-a:-1"):
        with pytest.raises(ConfigError, match="BROKER:NUMBER"):
            queue_of(text)


def test_completion_is_quiet_if_no_name_server_responds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert names("topics", "127.0.0.1:1", None) == []
    assert names("topics", "no address", None) == []
    assert capfd.readouterr() == ("", "")
