"""Every command of mqadmin has its counterpart in ``cometmq admin``, as a page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from cometmq.cli.admin.app import app
from cometmq.cli.mqadmin.command_line import LINES, commands

PAGE = Path(__file__).resolve().parents[3] / "docs/howto/mqadmin.md"
ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
TABLE = PAGE.read_text().partition("## The same with cometmq admin")[2]
COUNTERPARTS = dict(ROW.findall(TABLE))
OTHER = {"sendMessage": "`cometmq send` sends messages"}
"""Commands without a counterpart, and the reason that the page gives."""
ADMIN = {
    f"{group} {name}"
    for group, found in typer.main.get_group(app).commands.items()
    for name in found.commands
}
ONLY_IN_ADMIN = {
    "message resume-check",
    "namesrv list",
    "namesrv kv",
    "offset show",
    "offset at",
    "timer list",
    "topic show",
    "broker list",
}
"""Commands that mqadmin does not have, besides those about dead letters."""


@pytest.mark.parametrize("line", LINES)
def test_every_command_of_mqadmin_has_a_counterpart_or_a_reason(line: str) -> None:
    assert {each.name for each in commands(LINES[line]).values()} <= {*COUNTERPARTS}


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_a_counterpart_exists(name: str) -> None:
    assert name.lower() in commands(4) | commands(5)
    if name in OTHER:
        assert COUNTERPARTS[name] == OTHER[name]
    else:
        found = {each.strip("`") for each in COUNTERPARTS[name].split(", ")}
        assert found <= ADMIN


def test_every_command_is_a_counterpart_or_new() -> None:
    named = {each for text in COUNTERPARTS.values() for each in re.findall(r"`([^`]+)`", text)}

    assert {each for each in ADMIN - named if each.split()[0] != "dlq"} == ONLY_IN_ADMIN
