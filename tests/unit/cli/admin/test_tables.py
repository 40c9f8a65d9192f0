"""Tables and records of ``cometmq admin``, by the width of the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import typer.main
from rich.cells import cell_len

from cometmq.cli.admin import dlq
from cometmq.cli.admin.app import app
from cometmq.cli.admin.output import CHANGE_KEYS
from cometmq.cli.admin.tables import PADDED_MAX, broken, headings, record_lines, table_lines
from support.runner.tiers import rounds

ID = "7F0000010000293F0000000000000000"
WIDTHS = (40, 80, 100)
KEYS_OF_COMMANDS = {
    f"{group} {name}": command.epilog.removeprefix("JSON keys: ").strip(".").replace("`", "")
    for group, found in typer.main.get_group(app).commands.items()
    for name, command in found.commands.items()
    if command.epilog
} | {"changes": ", ".join(CHANGE_KEYS), "dead letters": ", ".join(dlq.TABLE_KEYS)}


def table(keys: str, *rows: Sequence[object], width: int | None) -> list[str]:
    return [line.plain for line in table_lines(keys.split(), rows, width)]


@pytest.mark.parametrize("command", KEYS_OF_COMMANDS)
def test_no_two_columns_of_a_command_have_equal_heads(command: str) -> None:
    heads = headings(KEYS_OF_COMMANDS[command].split(", "))

    assert len({*heads}) == len(heads)


def test_a_head_says_what_its_unit_is_of_if_another_head_has_the_same_words() -> None:
    assert headings(["body_bytes", "body"]) == ["Body size", "Body"]
    assert headings(["error", "error_time_ms"]) == ["Error", "Error time"]
    assert headings(["read_bytes", "read_bytes_per_s"]) == ["Read size", "Read rate"]


def test_a_table_that_fits_has_all_columns_and_a_rule() -> None:
    assert table("topic lag tag", ("orders", 7, None), ("o", 12, None), width=18) == [
        "Topic   Lag  Tag",
        "─" * 16,
        "orders    7  -",
        "o        12  -",
    ]


def test_columns_in_which_no_row_has_a_value_are_left_out_if_the_table_is_too_wide() -> None:
    rows = ("orders", 7, None, ""), ("o", 12, "", None)

    assert table("topic lag tag keys", *rows, width=15) == [
        "Topic   Lag",
        "─" * 11,
        "orders    7",
        "o        12",
    ]


def test_heads_are_broken_before_values() -> None:
    assert table("topic consume_failed_tps", ("orders and bills", 1), width=26) == [
        "Topic             Consume",
        "                   failed",
        "                      TPS",
        "─" * 25,
        "orders and bills        1",
    ]


def test_one_column_is_broken_at_blanks_and_ids_stay_whole() -> None:
    rows = (ID, "no member of the group is online"), (ID, "ok")

    assert table("id error", *rows, width=57) == [
        f"Id{' ' * 32}Error",
        "─" * 57,
        f"{ID}  no member of the group",
        f"{' ' * 34}is online",
        f"{ID}  ok",
    ]


def test_a_word_that_is_rare_and_long_is_cut_within_its_column() -> None:
    rows = [("key", "value")] * 10 + [("key", "v" * 45)]

    lines = table("key value", *rows, width=25)

    assert lines[-3:] == [f"key  {'v' * 20}", f"     {'v' * 20}", f"     {'v' * 5}"]


def test_a_table_that_does_not_fit_becomes_records_without_the_columns_that_have_no_value() -> None:
    rows = [
        (ID, "broker-a", None, "body 1 of the message that was read"),
        (ID, "broker-b", None, "body 2"),
    ]

    assert table("message_id broker tag body", *rows, width=50) == [
        f"Message id  {ID}",
        "Broker      broker-a",
        "Body        body 1 of the message that was read",
        "",
        f"Message id  {ID}",
        "Broker      broker-b",
        "Body        body 2",
    ]


def test_values_of_a_record_are_broken_below_each_other_and_words_are_never_cut() -> None:
    lines = record_lines(["message_id", "body"], (ID, f"one two three four {'x' * 40}"), 32)

    assert [line.plain for line in lines] == [
        f"Message id  {ID}",
        "Body        one two three four",
        f"            {'x' * 40}",
    ]


def test_a_stack_has_its_lines() -> None:
    lines = record_lines(["client", "stack"], ("c", "thread main\n  run()\n\x1b[31m"), 80)

    assert [line.plain for line in lines] == [
        "Client  c",
        "Stack   thread main",
        "          run()",
        "        \\x1b[31m",
    ]


def test_a_pipe_gets_each_row_as_one_line_without_blanks_at_its_end() -> None:
    long = "word " * 2000 + "end"
    lines = table("key value lag", ("a", long, 1), ("b", "short", 2), width=None)

    assert lines == [
        f"Key  Value{' ' * (PADDED_MAX - 5)}  Lag",
        f"a    {long}    1",
        f"b    short{' ' * (PADDED_MAX - 5)}    2",
    ]


def test_a_record_in_a_pipe_has_one_line_for_each_key() -> None:
    lines = record_lines(["key", "longer_key"], ("word " * 50 + "end", None), None)

    assert [line.plain for line in lines] == [f"Key         {'word ' * 50}end", "Longer key  -"]


def test_characters_that_are_two_cells_wide_are_padded_as_such() -> None:
    assert table("topic lag", ("订单", 1), ("orders", 2), width=80)[2:] == [
        "订单      1",
        "orders    2",
    ]


def test_no_line_is_wider_than_the_terminal_but_for_a_word_of_a_record() -> None:
    random = Random(7)

    def cell() -> object:
        words = ["".join(random.choices("ab订", k=random.choice((1, 3, 8, 40)))) for _ in "123456"]
        some = " ".join(words[: random.randrange(7)])
        return random.choice((None, some, random.randrange(10**9), words))

    for _ in range(rounds(test=150, long=5000)):
        keys = [f"key_{number}" for number in range(random.randrange(1, 9))]
        rows = [[cell() for _ in keys] for _ in range(random.randrange(1, 15))]
        width = random.choice(WIDTHS)
        lines = table(" ".join(keys), *rows, width=width)
        is_table = set(lines[1]) == {"─"} or any(set(line) == {"─"} for line in lines)
        for line in lines:
            words = line.split()
            assert cell_len(line) <= width or (not is_table and len(words) <= 3)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("one two", ["one two"]),
        ("one  two three", ["one  two", "three"]),
        ("abcdefghijkl m", ["abcdefghijkl", "m"]),
        ("a abcdefghijkl", ["a", "abcdefghijkl"]),
    ],
)
def test_a_text_is_broken_at_blanks_only(text: str, lines: list[str]) -> None:
    assert broken(text, 9) == lines
