"""The runner of checks, its report, and the page that lists the checks."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from cometmq.cli.doctor import report
from cometmq.cli.doctor.findings import (
    CHECKS_AT_ONCE,
    GIVE_ADMINISTRATOR,
    Check,
    Finding,
    Level,
    fine,
    in_thread,
    no_result,
    run_checks,
)
from cometmq.model.errors import CometError, ResponseError, StoreError
from cometmq.protocol.bodies.base import InvalidBodyError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import ConnectError
from tools.generate import pages

WARNING = Finding("disk-space", Level.WARNING, "/data", "80 % used", "less", "free space")
PROBLEM = Finding("clocks", Level.PROBLEM, "b", "an hour\x1b[31m", "a second", "chrony")


async def found() -> Sequence[Finding]:
    return [fine("a", "it", "good")]


async def test_the_findings_have_the_order_of_the_checks() -> None:
    async def late() -> Sequence[Finding]:
        await asyncio.sleep(0)
        return [WARNING, PROBLEM]

    findings = await run_checks([Check("late", "x", late), Check("a", "it", found)], 5)

    assert [finding.check for finding in findings] == ["disk-space", "clocks", "a"]


@pytest.mark.parametrize(
    ("error", "met"),
    [
        (StoreError("no room"), "StoreError: no room"),
        (KeyError("k"), "the check failed: KeyError: 'k'"),
        (ResponseError(1, "no"), "it refuses the request: response code 1 (SYSTEM_ERROR): no"),
    ],
)
async def test_a_check_that_fails_is_a_finding_and_hides_no_other(
    error: Exception, met: str
) -> None:
    async def fail() -> Sequence[Finding]:
        raise error

    findings = await run_checks([Check("bad", "x", fail), Check("a", "it", found)], 5)

    assert [(each.check, each.level) for each in findings] == [
        ("bad", Level.PROBLEM),
        ("a", Level.FINE),
    ]
    assert findings[0].met == met


async def test_a_check_that_is_refused_asks_for_the_account_of_an_administrator() -> None:
    async def fail() -> Sequence[Finding]:
        raise ResponseError(ResponseCode.NO_PERMISSION, "no")

    [finding] = await run_checks([Check("groups", "x", fail)], 5)

    assert finding.action == GIVE_ADMINISTRATOR


@pytest.mark.usefixtures("virtual_time")
async def test_a_check_that_takes_too_long_is_a_finding() -> None:
    async def hang() -> Sequence[Finding]:
        await asyncio.Event().wait()
        raise AssertionError

    began = asyncio.get_running_loop().time()
    findings = await run_checks([Check("slow", "x", hang)] * (CHECKS_AT_ONCE + 1), 3)

    assert {each.met for each in findings} == {"no result within 3 s"}
    assert asyncio.get_running_loop().time() - began == pytest.approx(6)  # one had to wait


async def test_a_thread_that_hangs_does_not_hold_the_others_up() -> None:
    release = threading.Event()

    def hang() -> Sequence[Finding]:
        release.wait(60)
        return []

    findings = await run_checks([Check("disk", "x", in_thread(hang)), Check("a", "it", found)], 0.1)
    release.set()

    assert [each.met for each in findings] == ["no result within 0.1 s", "good"]


async def test_a_thread_that_fails_is_a_finding() -> None:
    def fail() -> Sequence[Finding]:
        raise OSError(5, "Input/output error")

    [finding] = await run_checks([Check("disk", "x", in_thread(fail))], 5)

    assert finding.level is Level.PROBLEM
    assert "Input/output error" in finding.met


@pytest.mark.parametrize(
    ("error", "met", "action"),
    [
        (ConnectError("refused"), "refused", "look"),
        (InvalidBodyError("no JSON"), "its response cannot be read: ", "look"),
        (
            ResponseError(ResponseCode.SYSTEM_ERROR, "No acl config for shop"),
            "it refuses ",
            GIVE_ADMINISTRATOR,
        ),
        (ResponseError(ResponseCode.SYSTEM_ERROR, "no"), "it refuses ", "look"),
        (ResponseError(ResponseCode.NO_PERMISSION, "no"), "it refuses ", GIVE_ADMINISTRATOR),
        (ResponseError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no"), "it refuses ", "look"),
    ],
)
def test_another_account_is_only_advised_where_it_may_help(
    error: CometError, met: str, action: str
) -> None:
    finding = no_result("brokers", Level.PROBLEM, "a", error, "look")

    assert finding.met.startswith(met)
    assert finding.action == action


@pytest.mark.parametrize(
    ("findings", "strict", "code"),
    [
        ([], True, 0),
        ([fine("a", "x", "good")], True, 0),
        ([WARNING], False, 0),
        ([WARNING], True, 1),
        ([WARNING, PROBLEM], False, 1),
    ],
)
def test_the_exit_code_tells_of_problems(findings: list[Finding], strict: bool, code: int) -> None:
    assert report.exit_code(findings, strict=strict) == code


def test_the_text_begins_with_problems_and_ends_with_the_numbers() -> None:
    text = report.as_text([fine("a", "x", "good"), WARNING, PROBLEM], everything=False)

    assert text.splitlines() == [
        "PROBLEM clocks  b: an hour\\x1b[31m",
        "        expected: a second",
        "        do: chrony",
        "WARNING disk-space  /data: 80 % used",
        "        expected: less",
        "        do: free space",
        "problems=1 warnings=1 fine=1",
    ]


def test_the_text_lists_what_is_fine_if_asked() -> None:
    text = report.as_text([fine("a", "x", "good")], everything=True)

    assert text == "FINE    a  x: good\nproblems=0 warnings=0 fine=1\n"


def test_the_json_has_every_finding() -> None:
    found = json.loads(report.as_json([fine("a", "x", "good"), PROBLEM]))

    assert found == {
        "findings": [
            {"check": "a", "level": "fine", "subject": "x", "met": "good", "expected": "",
             "action": ""},
            {"check": "clocks", "level": "problem", "subject": "b", "met": "an hour\x1b[31m",
             "expected": "a second", "action": "chrony"},
        ],
        "problems": 1, "warnings": 0, "fine": 1,
    }  # fmt: skip


SOURCES = sorted((pages.ROOT / "src/cometmq/cli/doctor").glob("*.py"))
PAGE = pages.ROOT / "docs/howto/doctor.md"


def test_the_page_lists_every_check() -> None:
    named = re.compile(r'(?:Finding|fine|Check)\(\s*"([a-z-]+)"')
    known = {name for path in SOURCES for name in named.findall(path.read_text())}
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", PAGE.read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]

    assert set(listed) == known


def test_pages_that_findings_name_exist() -> None:
    named = {
        name for path in SOURCES for name in re.findall(r"docs/[\w/.-]+\.md", path.read_text())
    }

    assert named
    assert [name for name in sorted(named) if not Path(pages.ROOT, name).is_file()] == []
