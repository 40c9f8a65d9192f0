"""mqadmin's command lines, as recorded from RocketMQ's tool, and their counterparts."""

from __future__ import annotations

import functools
import importlib
import io
import json
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cometmq.cli.account import client_settings
from cometmq.cli.admin.app import app as admin_app
from cometmq.cli.mqadmin import app, clients, texts
from cometmq.cli.mqadmin.call import CommandError, parsed_time
from cometmq.cli.mqadmin.command_line import LINES, Command, UsageError, commands, parse
from cometmq.cli.mqadmin.commands import ABSENT, ALIASES
from cometmq.model.errors import ConfigError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.client import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from cometmq.protocol.bodies.heartbeat import SubscriptionData

VECTORS = Path(__file__).resolve().parents[3] / "vectors" / "mqadmin"
VERSIONS = {4: "4.9.8", 5: "5.3.3"}
FLAG = re.compile(r" -|    --")


@functools.cache
def recorded(line: int) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = json.loads((VECTORS / f"{VERSIONS[line]}.json").read_text())[
        "calls"
    ]
    return calls


@functools.cache
def usages(line: int) -> dict[str, list[str]]:
    """The usage of each command of which one was recorded."""
    found = {}
    for call in recorded(line):
        if call["out"].startswith("usage: mqadmin "):
            lines = call["out"].rstrip().splitlines()
            found[lines[0].split()[2]] = lines
    return found


USAGES = [(line, name) for line in VERSIONS for name in usages(line) if name not in ABSENT]


async def run(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = await app.run(words)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(("line", "name"), USAGES)
def test_the_usage_has_the_flags_of_the_recorded_one(line: int, name: str) -> None:
    mine, theirs = commands(line)[name.lower()].usage(), usages(line)[name]

    def parts(lines: list[str]) -> tuple[list[str], list[str]]:
        first = next(n for n, text in enumerate(lines) if FLAG.match(text))
        return lines[:first], [text for text in lines[first:] if FLAG.match(text)]

    (head, rows), (their_head, their_rows) = parts(mine), parts(theirs)
    column = max(len(re.split(r"(?<=\S)   +(?!-)", row)[0]) for row in rows) + 3
    assert head == their_head
    assert [row[:column] for row in rows] == [row[:column] for row in their_rows]


@pytest.mark.parametrize("line", VERSIONS)
def test_every_command_of_rocketmq_exists_or_says_why_not(line: int) -> None:
    options = json.loads((VECTORS / "options.json").read_text())[VERSIONS[line]]

    missing = {name for name in options if name.lower() not in commands(line)}
    assert missing == ({*ABSENT} & {*options})


def test_every_command_has_a_function() -> None:
    for line in VERSIONS:
        for command in commands(line).values():
            module = importlib.import_module(f"cometmq.cli.mqadmin.{command.module}")
            assert callable(getattr(module, command.function))


def find(name: str, line: int = 5) -> Command:
    return commands(line)[name.lower()]


@pytest.mark.parametrize(
    ("name", "words", "values"),
    [
        ("topicRoute", ["-t", "a", "-l"], {"t": "a", "l": "true"}),
        ("topicRoute", ["--topic", "a", "--list"], {"t": "a", "l": "true"}),
        ("topicRoute", ["--topic=a", "-n", "x:1;y:2"], {"t": "a", "n": "x:1;y:2"}),
        ("topicRoute", ["-ta"], {"t": "a"}),
        ("topicRoute", ["-t=a"], {"t": "a"}),
        ("topicRoute", ["-topic", "a"], {"t": "a"}),
        ("topicRoute", ["--to", "a"], {"t": "a"}),
        ("topicRoute", ["-t", " a ", "other", "words"], {"t": "a"}),
        ("topicRoute", ["-t", "a", "-t", "b"], {"t": "a"}),
        ("consumeMessage", ["-t", "a", "-c", "-1"], {"t": "a", "c": "-1"}),
        ("consumeMessage", ["-t", "a", "--beginTimestamp", "1"], {"t": "a", "s": "1"}),
        ("printMsgByQueue", ["-t", "a", "-a", "b", "-i", "0", "--print-msg", "true"],
         {"t": "a", "a": "b", "i": "0", "p": "true"}),
        ("updateTopic", ["-b", "x:1", "-t", "a", "-a", "+k=v,-w"],
         {"b": "x:1", "t": "a", "a": "+k=v,-w"}),
        ("updateSubGroup", ["-g", "a", "--attributes", "+k=v"], {"g": "a", "attributes": "+k=v"}),
        ("electMaster", ["-a", "x:1", "-b", "2", "-bn", "n", "-c", "c"],
         {"a": "x:1", "b": "2", "bn": "n", "c": "c"}),
    ],
)  # fmt: skip
def test_flags_are_read_in_every_form(name: str, words: list[str], values: dict[str, str]) -> None:
    assert parse(find(name), words) == values


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("topicList", ["--noSuchOption"], "Unrecognized option: --noSuchOption"),
        ("topicRoute", [], "Missing required option: t"),
        ("queryMsgById", [], "Missing required options: i, t"),
        ("topicRoute", ["-t"], "Missing argument for option: t"),
        ("resetOffsetByTime", ["-g", "a", "-t", "b", "-s", "1", "-c"],
         "Missing argument for option: c"),
        ("updateTopic", ["-b", "x:1", "-c", "y", "-t", "z"],
         "The option 'c' was specified but an option from this group has already been selected:"
         " 'b'"),
    ],
)  # fmt: skip
def test_mistakes_are_named_as_rocketmq_names_them(
    name: str, words: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse(find(name), words)

    assert str(caught.value) == message


def test_a_missing_group_shows_its_flags() -> None:
    with pytest.raises(UsageError, match=r"^Missing required option: \[-b .*, -c .*\]$"):
        parse(find("updateTopic"), ["-t", "a"])


def test_each_line_has_its_own_flags() -> None:
    assert parse(find("resetOffsetByTime", 4), ["-g", "a", "-t", "b", "-s", "1", "-c"])["c"]
    with pytest.raises(UsageError, match="Unrecognized option: -a"):
        parse(find("updateTopic", 4), ["-b", "x:1", "-t", "z", "-a", "+k=v"])


async def test_without_a_command_all_are_listed() -> None:
    for line, version in (("4.9", 4), ("5.3", 5)):
        code, out, _ = await run("--like", line)
        theirs = next(call for call in recorded(version) if not call["args"])["out"]
        names = re.findall(r"^   (\w+)", theirs, re.MULTILINE)

        assert code == 0
        assert sorted(re.findall(r"^   (\w+)", out, re.MULTILINE)) == sorted(
            name for name in names if name not in ABSENT
        )


@pytest.mark.parametrize("word", ["help", "-h", "--help"])
async def test_help_alone_lists_the_commands(word: str) -> None:
    assert await run(word) == await run()


async def test_names_of_commands_have_no_case_and_aliases_work() -> None:
    assert (await run("HELP".lower(), "TOPICROUTE"))[1].startswith("usage: mqadmin topicRoute ")
    assert (await run("QueryMsgTraceById", "-h"))[1].startswith("usage: mqadmin queryMsgTraceById")
    assert {*ALIASES.values()} <= {
        each.name for line in VERSIONS for each in commands(line).values()
    }


async def test_a_command_that_does_not_exist_fails() -> None:
    assert await run("noSuchCommand") == (1, "The sub command noSuchCommand not exist.\n", "")
    code, _, err = await run("dumpCompactionLog", "-t", "a")
    assert (code, err) == (
        1,
        "cometmq mqadmin dumpCompactionLog: CometMQ has no compacted topics\n",
    )


async def test_commands_that_only_4_9_has_work_with_the_printouts_of_5_3() -> None:
    assert (await run("updateAclConfig", "-h"))[1].startswith("usage: mqadmin updateAclConfig ")
    code, out, _ = await run("--like", "4.9", "getUser", "-h")
    assert (code, out) == (1, "The sub command getUser not exist.\n")


async def test_an_unknown_line_is_refused() -> None:
    assert await run("--like", "3.2", "topicList") == (
        1, "", "--like 3.2: expected 4.9 or 5.3\n",
    )  # fmt: skip
    assert (await run("--like=5.3.3", "topicRoute", "-h"))[0] == 0


async def test_without_a_server_the_error_says_so() -> None:
    code, out, err = await run("topicList", "-n", "127.0.0.1:1")

    assert (code, out) == (1, "")
    assert err.startswith("cometmq mqadmin topicList: ")
    assert "127.0.0.1:1" in err


async def test_a_broker_is_asked_without_a_name_server() -> None:
    code, _, err = await run("brokerStatus", "-b", "127.0.0.1:1")

    assert code == 1
    assert "127.0.0.1:1" in err
    assert "name server" not in err


def test_the_account_is_that_of_rocketmqs_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMETMQ_CLIENT_ACCESS_KEY", raising=False)
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    assert client_settings() is None
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert client_settings() is None
    file = tmp_path / "conf" / "tools.yml"
    file.parent.mkdir()
    file.write_text("# who\naccessKey: rocketmq2 # the tool\nsecretKey: '12345678'\n")
    found = client_settings()
    assert found is not None
    assert (found.access_key, found.secret_key) == ("rocketmq2", "12345678")
    assert found.given == {"access_key", "secret_key"}
    monkeypatch.setenv("COMETMQ_CLIENT_ACCESS_KEY", "other")
    monkeypatch.setenv("COMETMQ_CLIENT_SECRET_KEY", "secret")
    assert client_settings() is None
    monkeypatch.delenv("COMETMQ_CLIENT_ACCESS_KEY")
    monkeypatch.delenv("COMETMQ_CLIENT_SECRET_KEY")
    file.write_text("accessKey: rocketmq2\n")
    with pytest.raises(ConfigError, match=r"tools\.yml: secretKey missing"):
        client_settings()


@pytest.mark.parametrize(
    ("text", "ms"),
    [("now", 7), ("12", 12), ("-1", -1)],
)
def test_times_are_read(text: str, ms: int) -> None:
    assert parsed_time(text, now=7) == ms


def test_a_local_time_is_read_as_rocketmq_writes_it() -> None:
    ms = parsed_time("2026-01-31#18:00:00:123", now=0)

    assert texts.to_ms(ms) == "2026-01-31 18:00:00,123"
    assert texts.to_seconds(ms) == "2026-01-31 18:00:00"
    assert texts.digits(ms) == "20260131180000123"
    with pytest.raises(CommandError, match="yesterday: expected now, ms since 1970"):
        parsed_time("yesterday", now=0)


def printed(line: int, wanted: str) -> str:
    return next(str(call["out"]) for call in recorded(line) if call["id"] == wanted)


@pytest.mark.parametrize("line", VERSIONS)
def test_settings_are_printed_as_recorded(line: int) -> None:
    is_4 = line == 4
    topic = TopicConfig(
        topic_name="scene-new", read_queue_nums=3, write_queue_nums=2, topic_sys_flag=3
    )
    group = SubscriptionGroupConfig(
        group_name="scene-new-group-2",
        consume_from_min_enable=False,
        consume_broadcast_enable=False,
    )

    assert texts.topic_config(topic, is_4=is_4) in printed(line, "updateTopic-all")
    assert texts.group_config(group, is_4=is_4) in printed(line, "updateSubGroup-c")


def test_json_is_indented_as_recorded() -> None:
    broker = {
        "brokerAddrs": {0: "127.0.0.1:24911"},
        "brokerName": "broker-a",
        "cluster": "DefaultCluster",
        "enableActingMaster": False,
    }
    queue = {
        "brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0,
        "writeQueueNums": 4,
    }  # fmt: skip
    value = {"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queue]}

    assert texts.pretty(value) == printed(5, "topicRoute").rstrip("\n")
    assert texts.pretty({"set": ("a", 1), "none": []}) == '{\n\t"set":["a",1],\n\t"none":[]\n}'


STARTED = "20261122202654837"
"""The time of the recorded consumer's queues."""


def consumer(**changes: Any) -> ConsumerRunningInfo:
    """The recorded consumer."""
    at_ms = parsed_time("2026-11-22#20:26:54:837", now=0)
    held = ProcessQueueInfo(
        commit_offset=2,
        cached_msg_min_offset=2,
        cached_msg_max_offset=2,
        cached_msg_count=1,
        last_lock_timestamp=at_ms,
        last_pull_timestamp=at_ms,
        last_consume_timestamp=at_ms,
    )
    for name, value in changes.items():
        setattr(held, name, value)
    rates = {"pull_rt": 1.5, "pull_tps": 4.5, "consume_rt": 3.5, "consume_ok_tps": 2.5}
    return ConsumerRunningInfo(
        properties={
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMER_START_TIMESTAMP": "1795378614837",
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CLIENT_VERSION": "V4_9_7",
            "PROP_NAMESERVER_ADDR": "127.0.0.1:24876;",
            "PROP_THREADPOOL_CORE_SIZE": "20",
            "consumerGroup": "scene-group",
        },
        subscription_set=[
            SubscriptionData(topic=topic, sub_string="*")
            for topic in ("scene-orders", "%RETRY%scene-group")
        ],
        mq_table={MessageQueue("scene-orders", "broker-a", number): held for number in (1, 0)},
        status_table={
            "scene-orders": ConsumeStatus(consume_failed_tps=0.25, consume_failed_msgs=1, **rates)
        },
    )


def without_properties(text: str) -> str:
    """RocketMQ prints a consumer's properties in the order of a hash table."""
    return text[text.index("#Consumer Subscription#") :].rstrip()


@pytest.mark.parametrize("line", VERSIONS)
def test_what_a_consumer_holds_is_printed_as_recorded(line: int) -> None:
    theirs = re.sub(r"Timestamp=\d{17}", f"Timestamp={STARTED}", printed(line, "status-one"))

    mine = clients.formatted(consumer(), is_4=line == 4)
    assert without_properties(mine) == without_properties(theirs)
    assert "PROP_CLIENT_VERSION                     : V4_9_7\n" in mine
    assert "PROP_CLIENT_VERSION                     : V4_9_7\n" in theirs


def test_a_queue_that_is_not_consumed_is_shown() -> None:
    info = consumer()
    at_ms = parsed_time("2026-11-22#20:26:54:837", now=0)

    assert clients.stuck_queues(info, at_ms + 60_000) == []
    assert clients.stuck_queues(info, at_ms + 60_001) == [
        f"MessageQueue [topic=scene-orders, brokerName=broker-a, queueId={number}]"
        " can't consume for a while, maybe blocked, 60001ms"
        for number in (0, 1)
    ]
    info.properties["PROP_CONSUMEORDERLY"] = "true"
    assert "can't lock for a while, 5ms" in clients.stuck_queues(info, at_ms + 5)[0]
    held = {"locked": True, "droped": True, "try_unlock_times": 3}
    info = consumer(**held)
    info.properties["PROP_CONSUMEORDERLY"] = "true"
    assert "unlock 3 times, still failed" in clients.stuck_queues(info, at_ms)[0]
    info.properties["PROP_CONSUME_TYPE"] = "CONSUME_ACTIVELY"
    assert clients.stuck_queues(info, at_ms) == []


def test_the_command_line_leads_to_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cometmq", "mqadmin", "electMaster", "-bn", "a"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stdout.startswith("usage: mqadmin electMaster -a <arg> -b <arg> -bn <arg>")
    assert done.stderr == "Missing required options: a, b, c\n"


PAGE = Path(__file__).resolve().parents[4] / "docs/howto/mqadmin.md"
ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
TABLE = PAGE.read_text().partition("## The same with cometmq admin")[2]
COUNTERPARTS = dict(ROW.findall(TABLE))
OTHER = {"sendMessage": "`cometmq send` sends messages"}
"""Commands without a counterpart, and the reason that the page gives."""
ADMIN = {
    f"{group} {name}"
    for group, found in typer.main.get_group(admin_app).commands.items()
    for name in found.commands
}
ONLY_IN_ADMIN = {
    "message resume-check",
    "namesrv list",
    "namesrv kv",
    "offset show",
    "offset at",
    "timer count",
    "timer find",
    "timer list",
    "timer recall",
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


PAGES = Path(__file__).resolve().parents[4] / "docs"
PRINTED = re.compile(r"cometmq mqadmin ([a-zA-Z]+)([^`\n]*)")
BARE = re.compile(r"(?<!cometmq )`mqadmin\s+[a-zA-Z]")


def test_commands_that_pages_print_have_these_flags() -> None:
    """As far as they name any; a page about a command may leave them out."""
    known = commands(5)
    seen = 0
    for page in sorted(PAGES.rglob("*.md")):
        for name, words in PRINTED.findall(page.read_text()):
            command = known.get(name.lower())
            if command is None:
                assert name in ("help", *ABSENT), (page.name, name)
                continue
            shown = words.partition(" #")[0].partition("|")[0]
            given = shlex.split(shown.replace("<", "").replace(">", ""))
            if given and given[0].startswith("-"):
                parse(command, given)
                seen += 1
    assert seen > 10


def test_pages_call_the_command_by_its_name_here() -> None:
    """`mqadmin` alone is RocketMQ's program, and the sentence says so."""
    for page in sorted((PAGES / "howto").glob("*.md")):
        lines = page.read_text().splitlines()
        for before, line in zip(["", *lines], lines, strict=False):
            if BARE.search(line):
                assert "RocketMQ" in before + line, (page.name, line)
