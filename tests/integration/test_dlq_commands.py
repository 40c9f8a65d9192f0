"""``cometmq admin dlq``: dead letters listed, shown, exported and sent again."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import typer.main
from typer.testing import CliRunner

from cometmq.cli.admin import dlq
from cometmq.cli.admin.app import app as admin_app
from cometmq.cli.commands import app
from cometmq.client import AdminClient, CometError
from cometmq.model.topic import Perm, dlq_topic, retry_topic
from cometmq.testing import ThreadedCluster
from support.clients.dead_letters import give_up
from support.processes import forks
from support.processes.howto_pages import following

RUNNER = CliRunner(env={"COLUMNS": "300", "NAMESRV_ADDR": None, "COMETMQ_CONFIG": None})
TOPIC = "invoices"
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(brokers=2) as running:
        yield running


class Desk:
    """A group with dead letters, and the tool that administers them."""

    def __init__(self, name_servers: str, group: str) -> None:
        self.name_servers = name_servers
        self.group = group

    def admin(self, work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Call an admin client."""

        async def call() -> T:
            async with AdminClient(self.name_servers) as admin:
                return await work(admin)

        return asyncio.run(call())

    def give_up(self, *bodies: bytes, topic: str | None = TOPIC) -> None:
        """Store dead letters."""

        async def work(admin: AdminClient) -> None:
            await admin.create_topic(TOPIC, queues=4)
            await admin.create_topic(dlq_topic(self.group), queues=1)
            await admin.create_topic(retry_topic(self.group), queues=1)
            await admin.create_group(self.group)
            await give_up(admin, self.group, topic, bodies, CONSUME_ERROR="shop.Error: no stock")

        self.admin(work)

    def run(self, words: str, *more: str, code: int = 0, given: str = "") -> tuple[str, str]:
        """Run a command; return what it printed to standard output and error."""
        line = ["admin", "dlq", *words.split(), *more, "--namesrv", self.name_servers]
        result = RUNNER.invoke(app, line, input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, (result.stdout, result.stderr)
        return result.stdout, result.stderr

    def error(self, words: str, *more: str) -> str:
        """Run a command that is refused, and return why."""
        with pytest.raises(CometError) as refused:
            self.run(words, *more)
        return str(refused.value)

    def json(self, words: str, *more: str, code: int = 0) -> Any:
        """Run a command with ``--json`` and return the value."""
        return json.loads(self.run(words, *more, "--json", code=code)[0])

    def resend(self, words: str, *more: str, code: int = 0) -> list[dict[str, Any]]:
        """Send dead letters again and return the results."""
        text, _ = self.run(f"resend {self.group} {words}", *more, "--yes", "--json", code=code)
        return [json.loads(line) for line in text.splitlines()]

    def count(self, topic: str) -> int:
        """Return the number of messages of a topic."""

        async def work(admin: AdminClient) -> int:
            stats = await admin.topic_stats(topic)
            return sum(each.max_offset - each.min_offset for each in stats.values())

        return self.admin(work)


@pytest.fixture
def desk(cluster: ThreadedCluster, request: pytest.FixtureRequest) -> Desk:
    return Desk(cluster.name_servers, f"desk-{abs(hash(request.node.name))}")


def keys_of(name: str) -> list[str]:
    """Return the JSON keys that the help of a command names."""
    group = typer.main.get_group(admin_app).commands["dlq"]
    return re.findall(r"`(\w+)`", group.commands[name].epilog)


def test_the_question_before_a_resend_names_the_topics(desk: Desk) -> None:
    desk.give_up(b"1", b"2", b"3")
    desk.give_up(b"4", topic="refunds")

    refused = desk.error(f"resend {desk.group} --all --to topic")
    assert f"send 3 dead letters of {desk.group} again (topic {TOPIC})" in refused
    refused = desk.error(f"resend {desk.group} --to topic --topic refunds")
    assert f"send 1 dead letter of {desk.group} again (topic refunds)" in refused
    refused = desk.error(f"resend {desk.group} --all")
    assert f"send 4 dead letters of {desk.group} again (topic %RETRY%{desk.group})" in refused
    assert desk.resend("--to topic --topic no-such-topic") == []


def test_a_resend_sends_no_dead_letter_that_came_after_its_question(desk: Desk) -> None:
    desk.give_up(b"1", b"2")
    terminal, stdin = os.openpty()
    words = f"-m cometmq admin dlq resend {desk.group} --all --to topic --json"
    process = subprocess.Popen(
        [*forks.python(), *words.split(), "--namesrv", desk.name_servers],
        stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        question = b""
        while b"[y/N]" not in question:
            found = os.read(process.stderr.fileno(), 4096)
            assert found, question
            question += found
        desk.give_up(b"3", topic="refunds")
        os.write(terminal, b"y\n")
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(terminal)
        os.close(stdin)
    assert b"refunds" not in question
    sent = [json.loads(line) for line in out.splitlines()]
    assert [(each["status"], each["topic"]) for each in sent] == [("sent", TOPIC)] * 2


def test_groups_and_pages_show_every_dead_letter(desk: Desk) -> None:
    desk.give_up(*(b"%d" % number for number in range(10)))

    [count] = [each for each in desk.json("groups") if each["group"] == desk.group]
    assert (count["letters"], count["error"]) == (10, "")
    assert desk.group in desk.run("groups")[0]
    rows = desk.json(f"list {desk.group} --originals")
    assert [row["body_bytes"] for row in rows] == [1] * 10
    assert {row["original_topic"] for row in rows} == {TOPIC}
    assert {row["error"] for row in rows} == {"shop.Error: no stock"}
    ids, position = [], ""
    while len(ids) < 10:
        more = ["--from", position] if position else []
        text, hint = desk.run(f"list {desk.group} --limit 4 --json", *more)
        ids += [row["message_id"] for row in json.loads(text)]
        position = hint.split("--from ")[-1].strip()
    assert ids == [row["message_id"] for row in rows]
    assert {*rows[0]} == {*keys_of("list")}
    [shown] = desk.json(f"show {desk.group} {ids[0]}")
    assert {*shown} == {*keys_of("show")}
    assert base64.b64decode(shown["body_base64"]) == shown["body"].encode()
    assert (len(shown["body"]), shown["tag"]) == (1, "red")
    assert desk.json(f"list {desk.group} --topic other") == []
    assert desk.json(f"list {desk.group} --key other") == []
    assert desk.json(f"list {desk.group} --until 1h") == []
    assert len(desk.json(f"list {desk.group} --since 1h --tag red")) == 10
    table = desk.run(f"list {desk.group}")[0]
    assert "shop.Error: no stock" in table


def test_what_is_not_recorded_is_said(desk: Desk) -> None:
    desk.give_up(b"\x00\xff", topic=None)

    [row] = desk.json(f"list {desk.group}")
    [shown] = desk.json(f"show {desk.group} {row['message_id']}")
    table = desk.run(f"show {desk.group} {row['message_id']}")[0]

    assert (row["original_topic"], shown["first_stored_time_ms"]) == (None, None)
    assert "not recorded" in table
    assert "Base64: AP8=" in table
    error = desk.error(f"show {desk.group} 0A")
    assert "no dead letter with the id 0A" in error


def test_an_export_has_all_and_is_sent_again_from_its_file(desk: Desk, tmp_path: Path) -> None:
    desk.give_up(*(b"%d" % number for number in range(70)))
    file = tmp_path / "letters.jsonl"

    exported = desk.json(f"export {desk.group}", str(file))
    assert [*exported] == keys_of("export")
    lines = file.read_text().splitlines()
    assert {*json.loads(lines[0])} == {*dlq.FILE_KEYS.split()}
    lines[3] = json.dumps(json.loads(lines[3]) | {"body_base64": "bW9yZQ=="})
    file.write_text("\n".join(lines))
    planned = desk.resend("--to topic --dry-run --file", str(file))
    before = desk.count(TOPIC)
    sent = desk.resend("--to topic --file", str(file))

    assert (exported["exported"], exported["read"], len(lines)) == (70, 70, 70)
    assert [each["status"] for each in planned] == ["planned"] * 70
    assert [each["status"] for each in sent] == ["sent"] * 70
    assert [each["new_message_id"] for each in sent] == [each["new_message_id"] for each in planned]
    assert desk.count(TOPIC) == before + 70
    error = desk.error(f"export {desk.group}", str(file))
    assert "exists: expected the name of a new file" in error
    file.write_text('{"dlq_topic": "%DLQ%other"}\n')
    error = desk.error(f"resend {desk.group} --yes --file", str(file))
    assert "line 1: the field 'broker' of a dead letter is None" in error


def test_a_run_is_repeated_without_sending_anything_twice(desk: Desk, tmp_path: Path) -> None:
    desk.give_up(*(b"%d" % number for number in range(30)))
    report = tmp_path / "report.jsonl"

    one = desk.json(f"list {desk.group}")[7]["message_id"]
    [first] = desk.resend(one)
    assert [*first] == keys_of("resend")
    results = desk.resend("--all --report", str(report))
    with report.open("a") as file:  # as a run that was killed leaves it
        file.write('{"dlq_position": "x", "sta')
    repeated = desk.resend("--all --again --report", str(report))

    assert first["status"] == "sent"
    assert [each["status"] for each in results].count("sent") == 29
    [skipped] = [each for each in results if each["status"] == "skipped"]
    assert skipped["message_id"] == one
    assert skipped["reason"] == f"sent again before, to {retry_topic(desk.group)}"
    assert skipped["new_offset_message_id"] == first["new_offset_message_id"]
    sent_again = [each for each in repeated if each["status"] == "sent"]
    assert [each["message_id"] for each in sent_again] == [one]
    assert {each["reason"] for each in repeated} == {"", "sent before, as the report says"}
    assert desk.count(retry_topic(desk.group)) == 31
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert {line["status"] for line in lines} == {"sending", "sent", "skipped"}


def test_what_an_interrupted_run_may_have_sent_is_said(desk: Desk, tmp_path: Path) -> None:
    desk.give_up(b"1", b"2")
    report = tmp_path / "report.jsonl"
    planned = desk.resend("--all --dry-run")
    note = {"dlq_position": planned[0]["dlq_position"], "status": "sending"}
    report.write_text(json.dumps(note) + "\n")

    unknown, sent = desk.resend("--all --again --report", str(report), code=1)
    [later, _] = desk.resend("--all --report", str(report))

    assert (unknown["status"], sent["status"]) == ("failed", "sent")
    assert "an interrupted run may have sent it" in unknown["reason"]
    assert later["status"] == "sent", "the index shows that it was not sent"


def test_a_question_comes_before_what_is_not_named(desk: Desk) -> None:
    desk.give_up(b"1")

    error = desk.error(f"resend {desk.group} --all")
    assert "standard input is no terminal" in error
    error = desk.error(f"resend {desk.group}")
    assert "expected ids, --file, --all, or a selection" in error
    error = desk.error(f"resend {desk.group} --all --key k1")
    assert "only one of them" in error
    assert desk.count(retry_topic(desk.group)) == 0
    [found] = desk.resend("--key k1")
    assert found["status"] == "sent"


def test_a_topic_without_read_permission_is_named_with_what_helps(desk: Desk) -> None:
    desk.give_up(b"1")

    async def forbid(admin: AdminClient) -> None:
        await admin.create_topic(dlq_topic(desk.group), queues=1, perm=Perm.WRITE)

    desk.admin(forbid)
    error = desk.error(f"list {desk.group}")
    [count] = [each for each in desk.json("groups") if each["group"] == desk.group]

    assert f"cometmq admin topic update {dlq_topic(desk.group)} --perm rw" in error
    assert len(count["unreadable_on"]) == 2


def test_a_group_without_dead_letters_has_an_empty_list(desk: Desk) -> None:
    text, hint = desk.run(f"list no-{desk.group}")

    assert (text, hint) == ("", f"group no-{desk.group} has no dead letters\n")
    assert desk.json(f"list no-{desk.group}") == []


def test_a_position_of_another_form_is_refused(desk: Desk) -> None:
    error = desk.error(f"list {desk.group} --from broker-a/0/64")
    assert "--from broker-a/0/64: expected BROKER:NUMBER:OFFSET" in error


def test_after_ctrl_c_the_report_has_what_was_sent(desk: Desk, tmp_path: Path) -> None:
    desk.give_up(*(b"%d" % number for number in range(200)))
    report = tmp_path / "report.jsonl"
    command = [*forks.python(), "-m", "cometmq", "admin", "dlq", "resend", desk.group, "--all"]
    command += ["--yes", "--report", str(report), "--json", "--namesrv", desk.name_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        os.kill(running.pid, signal.SIGINT)
        running.communicate(timeout=120)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    sent = {line["dlq_position"] for line in lines if line["status"] == "sent"}
    begun = {line["dlq_position"] for line in lines if line["status"] == "sending"}
    assert begun == sent
    assert desk.count(retry_topic(desk.group)) == len(sent)

    rest = desk.resend("--all --report", str(report))

    assert len(rest) == 200
    assert desk.count(retry_topic(desk.group)) == 200


def test_the_page_holds_from_two_failures_to_their_copies(tmp_path: Path) -> None:
    """The page about retries changes the settings of the same group."""
    ids = ("7F00000110E27D2F9A4C00000000B1DE", "7F00000110E27D2F9A4C00000001B1DE")
    with following("handle-dead-letters", tmp_path) as guide:
        guide.start("standalone")
        guide.run("python bill.py\n")
        assert re.search(r"^billing-desk +2 ", guide.run("dlq groups"), re.M)
        table, _, letters = guide.run("dlq list").partition("[\n")
        pattern = r" invoices +0  paid  invoice-(\d)  builtins.LookupError: no price  (\w+)$"
        listed = sorted(re.findall(pattern, table, re.M))  # the two fail at the same time
        assert [number for number, _ in listed] == ["7", "8"]
        assert letters.count('"error": "builtins.LookupError: no price"') == 2
        guide.ids = dict(zip(ids, [found for _, found in listed], strict=True))
        assert re.search(r"^Body +invoice 7$", guide.run("dlq show"), re.M)
        status = re.compile(r"  (planned|sent|skipped|failed) +%RETRY%billing-desk ")
        assert status.findall(guide.run("resend billing-desk --all --dry-run")) == ["planned"] * 2
        results = status.findall(guide.run("--key invoice-8"))
        assert results == ["sent", "sent", "skipped", "skipped"]
        printed = sorted(guide.run("python bill.py fixed").splitlines())
        assert printed == ["billed invoice 7", "billed invoice 8"]
        assert status.findall(guide.run("dlq export")) == ["skipped"] * 2
        assert guide.run("topic update").endswith(" done\n")
        where = guide.name_servers
        with following("retries-and-dead-letters", tmp_path, name_servers=where) as retries:
            changed = retries.run("group update")
    assert re.search(r"retryMaxTimes +5$", changed, re.M)
    assert "initial=5000, max=600000, multiplier=3" in changed
