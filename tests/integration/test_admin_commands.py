"""``cometmq admin``: every command on a cluster, as a table and as JSON."""

from __future__ import annotations

import ast
import fcntl
import functools
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from typer.testing import CliRunner

from cometmq.cli.admin.app import app as admin_app
from cometmq.cli.admin.output import CHANGE_KEYS
from cometmq.cli.admin.tables import headings
from cometmq.cli.commands import app
from cometmq.client import Message, StartFrom
from cometmq.client.admin.static_plans import leaders_of
from cometmq.client.blocking import AdminClient, Producer, PushConsumer
from cometmq.client.errors import ClientError, TopicNotFoundError
from cometmq.model.errors import ConfigError
from cometmq.protocol.bodies.pop import MessageRequestModeSerializeWrapper
from cometmq.protocol.codes import RequestCode
from cometmq.testing import ThreadedCluster
from support.checks.waiting import wait_until
from support.processes import forks

RUNNER = CliRunner(
    env={"COLUMNS": "300", "NAMESRV_ADDR": None, "COMETMQ_CONFIG": None, "ROCKETMQ_HOME": None}
)
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TOPIC, STATIC, GROUP, ONLINE = "orders", "invoices", "billing", "shipping"
SENT, COMMITTED = 12, 2
WAIT_S = 60.0
PAGE = Path(__file__).resolve().parents[2] / "docs/howto/administer.md"


def without_created(topics: dict[str, Any]) -> dict[str, Any]:
    """Topics but for those that brokers create some time after a member or a trace has come."""
    created = ("%RETRY%", TRACE_TOPIC)
    return {name: found for name, found in topics.items() if not name.startswith(created)}


class Scene:
    """A cluster with messages, a group with lag, and a group with a member online."""

    def __init__(self, cluster: ThreadedCluster, folder: Path) -> None:
        self.name_servers = cluster.name_servers
        self.last: Any = None
        """The state after the last dry run."""
        self.names = {"address": cluster.broker_addresses[0], "folder": str(folder)}

    def run(self, words: str, *more: str, code: int = 0, given: str = "") -> str:
        """Run a command and return what it printed to standard output."""
        return self.printed(words, *more, code=code, given=given)[0]

    def printed(self, words: str, *more: str, code: int = 0, given: str = "") -> tuple[str, str]:
        """Run a command and return what it printed to standard output and to standard error."""
        line = ["admin", *shlex.split(words.format(**self.names)), *more, "-n", self.name_servers]
        result = RUNNER.invoke(app, line, input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, (line, result.stdout, result.stderr)
        return result.stdout, result.stderr

    def json(self, words: str, *more: str, code: int = 0) -> Any:
        """Run a command with ``--json`` and return the value."""
        return json.loads(self.run(words, *more, "--json", code=code))

    def state(self) -> Any:
        """Everything that the commands of the tests may change."""
        with AdminClient(self.name_servers) as admin:
            info = admin.cluster_info()
            addresses = [
                address
                for broker in info.broker_addr_table.values()
                for address in broker.broker_addrs.values()
            ]
            groups = [each for each in admin.groups() if each != ONLINE]  # it commits meanwhile
            return (
                without_created(dict.fromkeys(admin.topics())),
                {each: without_created(admin.broker_topics(each)) for each in addresses},
                {each: admin.broker_groups(each) for each in addresses},
                {each: admin.broker_config(each) for each in addresses},
                {each: admin.name_server_config(each) for each in admin.name_servers},
                {each: admin.committed(each, TOPIC) for each in groups},
                {each: admin.topic_stats(each) for each in admin.topics() if each == TOPIC},
                [admin.kv_list(space) for space in ("ORDER_TOPIC_CONFIG", "space")],
                {name: admin.route(name) for name in (TOPIC, STATIC)},
                admin.static_parts(STATIC),
            )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("admin")
    with ThreadedCluster(brokers=2) as cluster, AdminClient(cluster.name_servers) as admin:
        scene = Scene(cluster, folder)
        admin.create_topic(TOPIC, queues=2)
        admin.create_static_topic(STATIC, 2, brokers=["broker-0", "broker-1"])
        for group in (GROUP, ONLINE):
            admin.create_group(group)
        messages = [Message(TOPIC, b"body %d" % n, tags="new", keys=f"key{n}") for n in range(SENT)]
        with Producer(cluster.name_servers, group="traced", trace=True) as producer:
            receipts = [producer.send(messages[0])]  # closing it sends its trace
        with Producer(cluster.name_servers, group="shop") as producer:
            receipts += [producer.send(message) for message in messages[1:]]
            consumed = threading.Semaphore(0)
            with PushConsumer(
                cluster.name_servers,
                group=ONLINE,
                start_from=StartFrom.FIRST,
                trace=True,
                persist_ms=100,
                subscriptions={TOPIC: "*"},
                handler=lambda message: consumed.release(),
            ) as consumer:
                assert all(consumed.acquire(timeout=WAIT_S) for _ in range(SENT))
                wait_until(
                    lambda: sum(filter(None, admin.committed(ONLINE, TOPIC).values())) == SENT
                )
                queue = receipts[0].queue
                admin.reset_to_offset(GROUP, queue, 1)
                (folder / "password").write_text("a secret of an account\n")
                for kind in ("topic", "group"):
                    text = scene.run(f"{kind} export", "--broker", "broker-0")
                    (folder / f"{kind}s.json").write_text(text)
                scene.names |= {
                    "topic": TOPIC,
                    "static": STATIC,
                    "group": GROUP,
                    "online": ONLINE,
                    "retries": shlex.quote('{"type":"CUSTOMIZED"}'),
                    "unique": receipts[0].message_id,
                    "id": receipts[0].offset_message_id,
                    "queue": f"{queue.broker_name}:{queue.queue_id}",
                    "client": consumer.client_id,
                }
                yield scene


class Read(NamedTuple):
    """A command that changes nothing."""

    words: str
    rows: int | None = None
    """The number of its rows, if that is known; at least one row otherwise."""


READS = [
    Read("topic list"),
    Read("topic list --all"),
    Read("topic show {topic}", 2),
    Read("topic route {topic}", 2),
    Read("topic clusters {topic}", 1),
    Read("topic status {topic}", 4),
    Read("topic stats", None),
    Read("topic stats {topic}", 2),
    Read("topic order {topic}", 0),
    Read("topic allocate {topic} a b", 4),
    Read("group list"),
    Read("group list {group} --age", 1),
    Read("group lag {group}"),
    Read("group lag {online} --topic {topic} --members", 4),
    Read("group show {group}"),
    Read("group members {online}", 1),
    Read("group subscriptions {online}"),
    Read("group producers shop"),
    Read("group status {online}"),
    Read("group queues {online}"),
    Read("group stack {online} {client}"),
    Read("message show {id}"),
    Read("message show {unique} --topic {topic}"),
    Read("message find {topic} key3", 1),
    Read("message at {topic} {queue} 0"),
    Read("message track {id}", 2),
    Read("message read {topic}", SENT),
    Read("message read {topic} --queue {queue} --count 2 --since 1h", 2),
    Read("message count {topic}", 1),
    Read("message entries {topic} {queue} 0 --count 2 --group {online}", 2),
    Read("offset show {group} {topic}", 4),
    Read("offset at {topic} 1h", 4),
    Read("trace show {unique}"),
    Read("timer count", 0),
    Read("timer list --topic {topic} --key key3", 0),
    Read("timer status", 2),
    Read("broker list", 2),
    Read("broker status --broker broker-0"),
    Read("broker status --broker {address} --name TPS"),
    Read("broker lag --topic {topic}"),
    Read("broker replication", 2),
    Read("broker producers"),
    Read("broker cold-reads", 2),
    Read("cluster list", 2),
    Read("cluster totals", 2),
    Read("cluster latency {topic} --count 2", 1),
    Read("config show --broker broker-0"),
    Read("config compare"),
    Read("namesrv list", 1),
    Read("namesrv config"),
    Read("namesrv kv nothing", 0),
]
CHANGES = [
    "topic create fresh --queues 4 --attribute message.type=NORMAL --ordered",
    "topic update {topic} --queues 1 --perm r",
    "topic apply {folder}/topics.json",
    "topic delete {topic}",
    "topic set-order {topic} broker-0:2",
    "topic delete-order {topic}",
    "topic create-static moving --queues 4",
    "topic move-queues {static} --to broker-1",
    "group create fresh --max-retries 3 --retry-policy {retries}",
    "group update {group} --no-consume",
    "group apply {folder}/groups.json",
    "group delete {group}",
    "group set-mode {group} {topic} pop",
    "message send-again {id}",
    "message deliver {id} {online} {client}",
    "message resume-check {id}",
    "offset reset {group} {topic} --to earliest",
    "offset reset {group} {topic} --to 1h",
    "offset reset {group} {topic} --queue {queue} --offset 3",
    "offset skip {group} {topic}",
    "offset clone {online} {group} {topic}",
    "broker clean",
    "broker stop-writing broker-0",
    "broker resume-writing {address}",
    "broker set-cold-limit {group} 1000",
    "broker remove-cold-limit {group}",
    "broker set-read-ahead random",
    "broker set-flushed-of-master {address} 0",
    "broker add-to-container {address} /broker.conf",
    "broker remove-from-container {address} c:broker-0:0",
    "config set maxMessageSize=100000",
    "namesrv set-config clusterTest=true",
    "namesrv kv-put space key value",
    "namesrv kv-delete space key",
    "acl create-user app --password-file {folder}/password",
    "acl update-user app --status disable",
    "acl delete-user app",
    "acl create-policy User:app --resource Topic:orders --action Pub",
    "acl update-policy User:app --resource Topic:orders --action Sub --decision Deny",
    "acl delete-policy User:app",
    "acl set-account app --password-file {folder}/password",
    "acl delete-account app",
    "acl set-white-addresses 10.0.0.1",
]
ELSEWHERE = {
    "topic export": "test_exported_settings_can_be_applied",
    "group export": "test_exported_settings_can_be_applied",
    "acl users": "tests/integration/test_admin_access.py",
    "acl copy-users": "tests/integration/test_admin_access.py",
    "acl policies": "tests/integration/test_admin_access.py",
    "acl copy-policies": "tests/integration/test_admin_access.py",
    "acl account-files": "tests/integration/test_admin_access.py",
    "controller": "tests/integration/test_admin_controllers.py",
    "dlq": "tests/integration/test_dead_letters.py",
    "timer find": "tests/integration/test_timers.py",
    "timer recall": "tests/integration/test_timers.py",
}
"""Commands that a cluster of ours without controllers does not serve, and what tests them."""

MADE = {
    "test_admin_commands.py": {
        "test_a_topic_is_created_updated_and_deleted": (
            "topic create",
            "topic update",
            "topic delete",
        ),
        "test_exported_settings_can_be_applied": ("topic apply",),
        "test_the_order_of_a_topic_is_set_and_deleted": ("topic set-order", "topic delete-order"),
        "test_a_group_is_created_updated_and_deleted": (
            "group create",
            "group update",
            "group delete",
        ),
        "test_a_static_topic_is_created_and_its_queues_are_moved": (
            "topic create-static",
            "topic move-queues",
        ),
        "test_a_group_reads_by_pop_and_by_pull": ("group set-mode",),
        "test_groups_of_a_file_are_applied": ("group apply",),
        "test_a_message_is_passed_to_one_member_and_sent_again": (
            "message deliver",
            "message send-again",
        ),
        "test_a_group_is_moved_by_offset_time_and_to_the_end": ("offset reset", "offset skip"),
        "test_offsets_are_copied_to_another_group": ("offset clone",),
        "test_cleaning_keeps_what_is_not_expired": ("broker clean",),
        "test_producers_leave_a_broker_and_come_back": (
            "broker stop-writing",
            "broker resume-writing",
        ),
        "test_a_limit_of_cold_reads_is_set_and_removed": (
            "broker set-cold-limit",
            "broker remove-cold-limit",
        ),
        "test_reading_ahead_is_set": ("broker set-read-ahead",),
        "test_a_broker_learns_how_far_its_master_has_flushed": ("broker set-flushed-of-master",),
        "test_a_request_that_our_brokers_do_not_serve_is_refused": (
            "broker add-to-container",
            "broker remove-from-container",
        ),
        "test_settings_of_brokers_are_changed_and_compared": ("config set",),
        "test_a_setting_of_name_servers_is_changed": ("namesrv set-config",),
        "test_an_entry_of_the_key_value_table_is_written_and_deleted": (
            "namesrv kv-put",
            "namesrv kv-delete",
        ),
    },
    "test_admin_transactions.py": {
        "test_a_half_message_that_was_discarded_is_checked_again": ("message resume-check",),
    },
    "test_admin_access.py": {
        "test_users_and_policies_are_created_copied_changed_and_deleted": (
            "acl create-user",
            "acl update-user",
            "acl delete-user",
            "acl copy-users",
            "acl create-policy",
            "acl update-policy",
            "acl delete-policy",
            "acl copy-policies",
        ),
        "test_accounts_and_white_addresses_are_set_and_deleted": (
            "acl set-account",
            "acl delete-account",
            "acl set-white-addresses",
        ),
    },
    "test_admin_controllers.py": {
        "test_a_setting_is_changed_after_a_dry_run_that_changes_nothing": (
            "controller set-config",
        ),
        "test_a_master_is_elected_and_a_broker_that_is_gone_is_forgotten": (
            "controller elect",
            "controller forget",
        ),
    },
    "test_timers.py": {
        "test_a_timed_message_is_found_and_recalled_with_commands": ("timer recall",),
    },
    "test_dlq_commands.py": {
        "test_a_run_is_repeated_without_sending_anything_twice": ("dlq resend",),
    },
}
"""Which tests make the changes of commands, and do not only plan them."""


@functools.cache
def commands() -> dict[str, Any]:
    """Every command by its group and name."""
    return {
        f"{group} {name}": command
        for group, found in typer.main.get_group(admin_app).commands.items()
        for name, command in found.commands.items()
    }


def test_every_command_is_tested() -> None:
    tested = {" ".join(line.split()[:2]) for line in [*(read.words for read in READS), *CHANGES]}
    missing = {
        name
        for name in commands()
        if name not in tested | {*ELSEWHERE} and name.split()[0] not in ELSEWHERE
    }

    assert missing == set()


def test_every_change_is_made_by_a_test() -> None:
    changing = {
        name
        for name, command in commands().items()
        if any(parameter.name == "dry_run" for parameter in command.params)
    }
    made: set[str] = set()
    for file, tests in MADE.items():
        text = Path(__file__).with_name(file).read_text()
        lines = text.splitlines(keepends=True)
        sources = {
            each.name: "".join(lines[_first_line(each) - 1 : each.end_lineno])
            for each in ast.parse(text).body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for test, names in tests.items():
            assert [name for name in names if name.split()[1] not in sources[test]] == [], test
            made |= {*names}

    assert made == changing


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


@pytest.mark.parametrize("name", commands())
def test_every_command_and_option_has_help(name: str) -> None:
    command = commands()[name]

    assert command.help
    assert all(parameter.help for parameter in command.params)


def keys_of(words: str) -> list[str]:
    """The keys that the help of a command names."""
    epilog: str = commands()[" ".join(words.split()[:2])].epilog
    return epilog.removeprefix("JSON keys: ").rstrip(".").replace("`", "").split(", ")


@pytest.mark.parametrize("read", READS, ids=lambda read: read.words)
def test_a_command_prints_the_keys_of_its_help(scene: Scene, read: Read) -> None:
    found = scene.json(read.words)
    table = scene.run(read.words)

    keys, rows = keys_of(read.words), found if isinstance(found, list) else [found]
    assert len(rows) == read.rows if read.rows is not None else rows
    assert all([*row] == keys for row in rows)
    if isinstance(found, list) and rows:
        head, *lines = table.splitlines()
        assert all(text in head for text in headings(keys))
        assert len(lines) >= len(rows)
    elif rows:
        assert all(text in table for text in headings(keys))


@pytest.mark.parametrize("words", CHANGES)
def test_a_dry_run_changes_nothing(scene: Scene, words: str) -> None:
    before = scene.state() if scene.last is None else scene.last
    shown = scene.json(words, "--dry-run")
    table = scene.run(words, "--dry-run")

    assert shown
    assert all([*row] == list(CHANGE_KEYS) and row["state"] == "planned" for row in shown)
    assert "planned" in table
    scene.last = scene.state()
    assert scene.last == before


def test_a_change_that_loses_data_is_refused_without_a_terminal(scene: Scene) -> None:
    before = scene.state()
    line = ["admin", "topic", "delete", TOPIC, "-n", scene.name_servers]
    result = RUNNER.invoke(app, line)

    assert "--yes" in str(result.exception)
    assert scene.state() == before


def test_a_topic_is_created_updated_and_deleted(scene: Scene) -> None:
    scene.run("topic create life --queues 4")
    created = scene.json("topic show life")
    scene.run("topic update life --queues 6")
    grown = scene.json("topic show life")
    scene.run("topic update life --perm r --yes")
    read_only = scene.json("topic show life")
    scene.run("topic delete life --yes")

    assert [row["read_queues"] for row in created] == [4, 4]
    assert [(row["write_queues"], row["perm"]) for row in grown] == [(6, "rw"), (6, "rw")]
    assert [(row["write_queues"], row["perm"]) for row in read_only] == [(6, "r"), (6, "r")]
    assert {"topic": "life"} not in scene.json("topic list")


def test_a_group_is_created_updated_and_deleted(scene: Scene) -> None:
    def settings() -> dict[str, set[Any]]:
        found: dict[str, set[Any]] = {}
        for row in scene.json("group show life"):
            found.setdefault(row["setting"], set()).add(str(row["value"]))
        return found

    scene.run("group create life --max-retries 3")
    scene.run("group update life --no-consume --yes")
    changed = settings()
    words = "group update life --consume --retry-policy {retries}"
    [planned, _] = scene.json(f"{words} --dry-run")
    scene.run("group delete life --yes")

    assert changed["retryMaxTimes"] == {"3"}
    assert changed["consumeEnable"] == {"False"}
    policy = '{"type":"CUSTOMIZED","exponentialRetryPolicy":null,"customizedRetryPolicy":null}'
    assert planned["detail"] in (
        f"consume_enable false -> true, group_retry_policy {policy} -> {policy}",
        f"consume_enable false -> true, group_retry_policy None -> {policy}",
    )
    with AdminClient(scene.name_servers) as admin:
        assert "life" not in admin.groups()


def test_a_group_is_moved_by_offset_time_and_to_the_end(scene: Scene) -> None:
    def committed() -> int:
        return sum(row["committed"] or 0 for row in scene.json("offset show mover {topic}"))

    end = sum(row["max_offset"] for row in scene.json("topic status {topic}"))
    scene.run("group create mover")
    scene.run("offset reset mover {topic} --to latest --yes")
    at_end = committed()
    scene.run("offset reset mover {topic} --to earliest --yes")
    at_start = committed()
    planned = scene.json("offset reset mover {topic} --queue {queue} --offset 2", "--dry-run")
    scene.run("offset reset mover {topic} --queue {queue} --offset 2 --yes")
    at_two = committed()
    scene.run("offset skip mover {topic} --yes")

    assert (at_end, at_start, at_two, committed()) == (end, 0, 2, end)
    assert planned[0]["detail"] == "0 -> 2, skips 2"


def test_no_group_is_moved_to_an_offset_that_the_queue_does_not_have(scene: Scene) -> None:
    for option in ("--dry-run", "--yes"):
        with pytest.raises(ConfigError, match=r"--offset 120: queue .* has the offsets 0 to \d+$"):
            scene.run("offset reset {group} {topic} --queue {queue} --offset 120", option)


def test_an_offset_that_is_not_committed_is_none_and_not_0(scene: Scene) -> None:
    shown = scene.json("offset show {group} {topic}")
    of_group = scene.json("group lag {group} --topic {topic}")

    keys = ("broker", "queue", "committed", "end", "lag")
    assert [[row[key] for key in keys] for row in of_group] == [
        [row[key] for key in keys] for row in shown
    ]
    assert [row["committed"] for row in shown].count(None) == len(shown) - 1


@pytest.mark.parametrize(
    "words", ["group lag nosuch --topic orders", "offset show nosuch orders", "group lag nosuch"]
)
def test_a_group_without_committed_offsets_is_an_error(scene: Scene, words: str) -> None:
    with pytest.raises(ConfigError, match=r"^group nosuch has no committed offset( in orders)?$"):
        scene.run(words)


def test_the_age_of_the_lag_is_that_of_the_first_message_not_consumed(scene: Scene) -> None:
    scene.run("group create aged")
    scene.run("offset reset aged {topic} --to earliest --yes")
    before_ms = time.time() * 1000
    rows = [row for row in scene.json("group lag aged --topic {topic}") if row["lag"]]
    stored = {
        (row["broker"], row["queue"]): row["stored_time_ms"]
        for row in reversed(scene.json("message read {topic}"))
    }
    after_ms = time.time() * 1000

    assert rows
    for row in rows:
        first_ms = stored[row["broker"], row["queue"]]
        assert before_ms - first_ms - 1 <= row["oldest_age_ms"] <= after_ms - first_ms + 1
    scene.run("offset skip aged {topic} --yes")
    assert {row["oldest_age_ms"] for row in scene.json("group lag aged --topic {topic}")} == {None}


def test_exported_settings_can_be_applied(scene: Scene) -> None:
    scene.run("topic create applied --queues 3")
    scene.run("topic export")
    exported = [
        each for each in json.loads(scene.run("topic export")) if each["topicName"] == "applied"
    ]
    file = Path(scene.names["folder"]) / "applied.json"
    file.write_text(json.dumps(exported))
    scene.run("topic delete applied --yes")
    scene.run("topic apply {folder}/applied.json --yes")

    assert [row["read_queues"] for row in scene.json("topic show applied")] == [3, 3]
    groups = json.loads(scene.run("group export"))
    assert {GROUP, ONLINE} <= {each["groupName"] for each in groups}


def test_a_file_that_removes_queues_with_messages_is_refused(scene: Scene, tmp_path: Path) -> None:
    scene.run("topic create shrinking --queues 4")
    file = tmp_path / "fewer.json"
    few = {"readQueueNums": 1, "writeQueueNums": 1}
    file.write_text(json.dumps([{"topicName": "shrinking", **few}, {"topicName": "new", **few}]))
    rows = scene.json(f"topic apply {file} --yes")
    lost = "shrinking, new; fewer queues: shrinking (read 4 -> 1, write 4 -> 1)"
    assert [row["detail"] for row in rows] == [lost, lost]
    assert {row["read_queues"] for row in scene.json("topic show shrinking")} == {1}

    file.write_text(json.dumps([{"topicName": TOPIC, **few}]))
    with pytest.raises(ConfigError, match=r"removes read queues with [0-9]+ messages") as refused:
        scene.run(f"topic apply {file} --yes")
    assert f"{TOPIC} (read " in str(refused.value)
    assert "on broker-0" in str(refused.value)
    file.write_text(json.dumps([{"topicName": TOPIC, "readQueueNums": 4, "writeQueueNums": 1}]))
    [row, _] = scene.json(f"topic apply {file} --dry-run")
    assert "fewer queues" in row["detail"]
    file.write_text(json.dumps([{"topicName": TOPIC, **few}]))
    [row, _] = scene.json(f"topic apply {file} --allow-fewer-queues --dry-run")
    assert "fewer queues" in row["detail"]


def test_a_message_is_passed_to_one_member_and_sent_again(scene: Scene) -> None:
    def count() -> int:
        return int(sum(row["messages"] for row in scene.json("message count {topic}")))

    delivered = scene.json("message deliver {id} {online} {client} --yes")
    assert [row["state"] for row in delivered] == ["done"]
    before = count()
    scene.run("message send-again {id} --yes")
    assert count() == before + 1


def test_settings_of_brokers_are_changed_and_compared(scene: Scene) -> None:
    scene.run("config set maxMessageSize=100000 --broker broker-0")
    rows = {row["key"]: row["values"] for row in scene.json("config compare")}
    assert rows["maxMessageSize"]["broker-0:0"] == "100000"
    assert rows["maxMessageSize"]["broker-1:0"] != "100000"


def eventually(look: Callable[[], Any], expected: Any) -> None:
    """Wait until a command shows what is expected: brokers do some changes after they respond."""
    deadline = time.monotonic() + WAIT_S
    while (met := look()) != expected:
        assert time.monotonic() < deadline, f"met {met}, expected {expected}"
        time.sleep(0.05)


def test_the_order_of_a_topic_is_set_and_deleted(scene: Scene) -> None:
    scene.run("topic create ordered --queues 2 --ordered")
    created = scene.json("topic order ordered")
    scene.run("topic set-order ordered broker-0:4 broker-1:2")
    changed = scene.json("topic order ordered")
    scene.run("topic delete-order ordered")

    assert [(row["broker"], row["queues"]) for row in created] == [("broker-0", 2), ("broker-1", 2)]
    assert [(row["broker"], row["queues"]) for row in changed] == [("broker-0", 4), ("broker-1", 2)]
    assert scene.json("topic order ordered") == []
    scene.run("topic delete ordered --yes")


def test_a_static_topic_is_created_and_its_queues_are_moved(scene: Scene) -> None:
    def leaders() -> dict[int, str]:
        with AdminClient(scene.name_servers) as admin:
            return leaders_of(admin.static_parts("moving"))

    scene.run("topic create-static moving --queues 2 --on broker-0")
    created = leaders()
    moved = scene.json("topic move-queues moving --to broker-1")
    at_end = leaders()
    again = scene.json("topic move-queues moving --to broker-1")

    assert (created, at_end) == ({0: "broker-0", 1: "broker-0"}, {0: "broker-1", 1: "broker-1"})
    assert [(row["target"], row["state"]) for row in moved] == [("broker-1", "done")] * 2
    assert [(row["detail"], row["state"]) for row in again] == [("nothing moves", "done")]
    scene.run("topic delete moving --yes")


@pytest.fixture
def uneven(scene: Scene) -> Iterator[str]:
    """A static topic that has other numbers of queues on each broker."""
    scene.run("topic create-static uneven --queues 3 --on broker-0")
    yield "uneven"
    scene.run("topic delete uneven --yes")


def test_static_topics_are_left_out_of_an_export_and_named(scene: Scene, uneven: str) -> None:
    for broker in ("", " --broker broker-0"):
        exported, said = scene.printed(f"topic export{broker}")

        names = {each["topicName"] for each in json.loads(exported)}
        assert TOPIC in names
        assert not {uneven, STATIC} & names
        assert f"create-static': {STATIC} --queues 2, {uneven} --queues 3\n" in said


def test_the_queues_of_a_static_topic_are_changed_by_no_other_command(
    scene: Scene, uneven: str, tmp_path: Path
) -> None:
    before = [(row["broker"], row["read_queues"]) for row in scene.json(f"topic show {uneven}")]
    assert before == [("broker-0", 3), ("broker-1", 0)]
    file = tmp_path / "static.json"
    file.write_text(json.dumps([{"topicName": uneven, "readQueueNums": 3, "writeQueueNums": 3}]))
    for words, error in (
        (f"topic update {uneven} --queues 3", "is a static topic"),
        (f"topic apply {file} --yes", f"the queues of {uneven}, which is a static topic on broker"),
    ):
        with pytest.raises(ConfigError, match=error):
            scene.run(words)
    with AdminClient(scene.name_servers) as admin:
        with pytest.raises(ClientError, match="is a static topic"):
            admin.create_topic(uneven, queues=3)
        assert {*admin.static_parts(uneven)} == {"broker-0", "broker-1"}
    scene.run(f"topic update {uneven} --perm r --yes")
    shown = scene.json(f"topic show {uneven}")
    assert [(row["read_queues"], row["perm"]) for row in shown] == [(3, "r"), (0, "r")]


def test_the_status_of_a_static_topic_has_its_logical_queues(scene: Scene, uneven: str) -> None:
    with Producer(scene.name_servers, group="shop") as producer:
        for _ in range(3):
            producer.send(Message(uneven, b"body"))
    rows = scene.json(f"topic status {uneven}")
    names = [row["broker"] for row in rows]
    assert names == ["__syslo__global__"] * 3 + ["broker-0"] * 3
    assert [row["messages"] for row in rows] == [1] * 6
    deleted = scene.json(f"topic delete {uneven} --dry-run")
    assert [row["target"] for row in deleted[1:]] == ["broker-0", "broker-1"]


def test_a_group_reads_by_pop_and_by_pull(scene: Scene) -> None:
    def mode() -> str:
        with AdminClient(scene.name_servers) as admin:
            answer = admin.call(scene.names["address"], RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        modes = MessageRequestModeSerializeWrapper.decode(answer.body).message_request_mode_map
        return modes[TOPIC][GROUP].mode

    for name in ("pop", "pull"):
        rows = scene.json(f"group set-mode {{group}} {{topic}} {name}")
        assert [row["state"] for row in rows] == ["done", "done"]
        assert mode() == name.upper()


def test_groups_of_a_file_are_applied(scene: Scene) -> None:
    def retries() -> set[Any]:
        return {
            row["value"]
            for row in scene.json("group show {group}")
            if row["setting"] == "retryMaxTimes"
        }

    before = retries()
    exported = json.loads(scene.run("group export"))
    [group] = [each for each in exported if each["groupName"] == GROUP]
    file = Path(scene.names["folder"]) / "one-group.json"
    file.write_text(json.dumps([group | {"retryMaxTimes": 7}]))
    [planned, _] = scene.json("group apply {folder}/one-group.json", "--dry-run")
    scene.run("group apply {folder}/one-group.json --yes")

    eventually(retries, {7})
    assert before == {16}
    assert planned["change"] == f"apply 1 group of {file}"


def test_offsets_are_copied_to_another_group(scene: Scene) -> None:
    def committed(group: str) -> list[Any]:
        return [row["committed"] for row in scene.json(f"offset show {group} {{topic}}")]

    scene.run("group create cloned")
    scene.run("group create source")
    scene.run("offset reset source {topic} --to latest --yes")
    scene.run("offset clone source cloned {topic} --yes")

    assert committed("cloned") == committed("source")
    assert None not in committed("cloned")


def test_cleaning_keeps_what_is_not_expired(scene: Scene) -> None:
    before = scene.json("topic status {topic}")
    rows = scene.json("broker clean --yes")

    assert [row["state"] for row in rows] == ["done"] * 6
    assert scene.json("topic status {topic}") == before


def test_producers_leave_a_broker_and_come_back(scene: Scene) -> None:
    def perms() -> list[Any]:
        return [row["perm"] for row in scene.json("topic route {topic}")]

    scene.run("broker stop-writing broker-0 --yes")
    stopped = perms()
    scene.run("broker resume-writing {address}")

    assert (stopped, perms()) == (["r", "rw"], ["rw", "rw"])


def test_a_limit_of_cold_reads_is_set_and_removed(scene: Scene) -> None:
    def limits() -> list[Any]:
        return [row["info"]["configTable"].get(GROUP) for row in scene.json("broker cold-reads")]

    scene.run("broker set-cold-limit {group} 1000")
    eventually(limits, [1000, 1000])
    scene.run("broker remove-cold-limit {group}")
    eventually(limits, [None, None])


def test_reading_ahead_is_set(scene: Scene) -> None:
    for mode in ("random", "normal"):
        rows = scene.json(f"broker set-read-ahead {mode}")
        assert [row["state"] for row in rows] == ["done", "done"]


def test_a_broker_learns_how_far_its_master_has_flushed(scene: Scene) -> None:
    [row] = scene.json("broker set-flushed-of-master {address} 0 --yes")

    assert row["state"] == "done"


@pytest.mark.parametrize(
    "words",
    [
        "broker add-to-container {address} /broker.conf",
        "broker remove-from-container {address} c:broker-0:0 --yes",
    ],
)
def test_a_request_that_our_brokers_do_not_serve_is_refused(scene: Scene, words: str) -> None:
    """They are no containers."""
    [row] = scene.json(words, code=1)

    assert row["state"] == "failed"
    assert "not supported" in row["error"]


def test_a_setting_of_name_servers_is_changed(scene: Scene) -> None:
    def value() -> str:
        [row] = scene.json("namesrv config --name orderMessageEnable")
        return str(row["value"])

    before = value()
    scene.run("namesrv set-config orderMessageEnable=true --yes")
    after = value()
    scene.run(f"namesrv set-config orderMessageEnable={before} --yes")

    assert (before, after, value()) == ("false", "true", "false")


def test_an_entry_of_the_key_value_table_is_written_and_deleted(scene: Scene) -> None:
    scene.run("namesrv kv-put space key value")
    written = scene.json("namesrv kv space")
    [replaced] = scene.json("namesrv kv-put space key other --yes")
    scene.run("namesrv kv-delete space key --yes")

    assert written == [{"key": "key", "value": "value"}]
    assert replaced["detail"] == "value -> other"
    assert scene.json("namesrv kv space") == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("trace show {unique} --trace-topic traces", "no traces: topic traces does not exist; "),
        ("group members {group}", "no member of group billing is online"),
        ("group status {group}", "no member of group billing is online"),
        ("message show {unknown_id}", "{unknown_id} is a unique id: add --topic TOPIC"),
        ("message show abc", "abc: expected a broker's id, which has 32 hexadecimal digits"),
        ("config show --broker nosuch", "is registered; known are broker-0, broker-1"),
        ("broker list --cluster nosuch", "no cluster nosuch; known are DefaultCluster"),
        ("topic apply {folder}/missing.json", "cannot read {folder}/missing.json: No such file"),
        ("topic update {topic}", "nothing to change: expected an option, such as --queues"),
        ("group update {group}", "nothing to change: expected an option, such as --max-retries"),
        ("group delete nosuch --yes", "there is no group nosuch on the brokers that were chosen"),
        ("offset reset nosuch {topic} --to earliest --dry-run", "there is no group nosuch: "),
        ("offset skip nosuch {topic} --yes", "there is no group nosuch: "),
    ],
)
def test_an_error_says_what_was_met(scene: Scene, words: str, error: str) -> None:
    scene.names["unknown_id"] = "C0A80001" + "F" * 24

    with pytest.raises(ConfigError, match=re.escape(error.format(**scene.names))):
        scene.run(words)


def test_test_messages_create_no_topic(scene: Scene) -> None:
    """The name of a topic that is misspelled is an error."""
    with pytest.raises(TopicNotFoundError, match="no broker serves topic ordres"):
        scene.run("cluster latency ordres --count 2")

    assert {"topic": "ordres"} not in scene.json("topic list")


def test_the_names_of_few_topics_of_a_file_are_shown(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "many.json"
    file.write_text(json.dumps([{"topicName": f"many{number:04}"} for number in range(1000)]))

    [row, _] = scene.json(f"topic apply {file} --dry-run")

    assert row["detail"].startswith("many0000, many0001, ")
    assert row["detail"].endswith(", many0019 and 980 more")


def test_the_address_of_a_broker_is_not_taken_as_that_of_a_name_server(scene: Scene) -> None:
    address = scene.names["address"]
    result = RUNNER.invoke(app, ["admin", "topic", "list", "-n", address])

    assert f"{address} is not a name server, expected its address" in str(result.exception)


def test_an_entry_has_no_match_if_the_group_has_no_subscription(scene: Scene) -> None:
    """None means that nothing was evaluated; it is not a message that the group does not get."""
    offline = scene.json("message entries {topic} {queue} 0 --group {group}")
    online = scene.json("message entries {topic} {queue} 0 --group shipping")

    assert {row["matches"] for row in offline} == {None}
    assert {row["matches"] for row in online} == {True}


def test_topics_of_applications_are_those_that_no_broker_made(scene: Scene) -> None:
    listed = [row["topic"] for row in scene.json("topic list")]
    exported = [each["topicName"] for each in json.loads(scene.run("topic export"))]

    assert TOPIC in listed
    assert {*listed, *exported} & {
        "DefaultCluster",
        "broker-0",
        "DefaultCluster_REPLY_TOPIC",
    } == set()
    assert not [name for name in listed + exported if name.startswith(("%", "RMQ_SYS", "rmq_sys"))]
    assert "DefaultCluster" in [row["topic"] for row in scene.json("topic list --all")]


def test_messages_are_found_with_the_broker_s_id(scene: Scene) -> None:
    rows = scene.json("message find {topic} key0")  # other tests may have sent it again

    assert scene.names["id"] in {row["offset_message_id"] for row in rows}


def test_the_setting_that_the_page_changes_can_be_changed(scene: Scene) -> None:
    [words] = re.findall(r"cometmq admin (config set \S+) --broker broker-a", PAGE.read_text())

    scene.run(f"{words} --broker broker-0")


def test_a_setting_that_needs_a_restart_is_refused_with_what_to_do(scene: Scene) -> None:
    [row] = scene.json("config set flushDiskType=SYNC_FLUSH --broker broker-0", code=1)

    assert "flushDiskType cannot be changed while the server runs" in row["error"]
    assert "change it in its configuration file and restart" in row["error"]


def test_a_value_that_is_refused_is_one_of_the_request(scene: Scene) -> None:
    [row] = scene.json("config set fileReservedTime=long --broker broker-0", code=1)

    assert "request: fileReservedTime=long: expected a whole number" in row["error"]


def test_a_setting_that_no_broker_has_is_refused(scene: Scene) -> None:
    with pytest.raises(ConfigError, match=r"broker-0 has no setting maxMesageSize"):
        scene.run("config set maxMesageSize=1 --broker broker-0")


def test_a_broker_that_does_not_respond_is_named_and_the_others_are_shown(scene: Scene) -> None:
    shown = scene.json("broker status --broker 127.0.0.1:1", code=1)

    assert shown == []


def test_watching_prints_a_line_of_json_for_each_round(scene: Scene) -> None:
    with subprocess.Popen(
        [
            *(*forks.python(), "-m", "cometmq", "admin", "topic", "status", TOPIC),
            *("--watch", "0.2", "--json", "-n", scene.name_servers),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        rounds = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=WAIT_S) == 130

    assert [len(each) for each in rounds] == [4, 4]


def in_terminal(scene: Scene, width: int, words: str, given: str = "") -> tuple[int, str]:
    """Run a command in a terminal of some columns; return its exit code and what it printed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    variables = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    line = ["admin", *shlex.split(words.format(**scene.names)), "-n", scene.name_servers]
    with subprocess.Popen(
        [*forks.python(), "-m", "cometmq", *line],
        env=variables | {"TERM": "xterm", "NO_COLOR": "1"},
        stdin=slave, stdout=slave, stderr=slave,
    ) as running:  # fmt: skip
        os.close(slave)
        os.write(master, given.encode())
        printed = b""
        try:
            while part := os.read(master, 65_536):
                printed += part
        except OSError:
            pass  # the command has ended
        code = running.wait(timeout=WAIT_S)
    os.close(master)
    return code, re.sub(r"\x1b\[[0-9;]*m", "", printed.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("words", ["cluster list", "group lag {group}", "namesrv config"])
def test_a_terminal_gets_lines_of_its_width(scene: Scene, width: int, words: str) -> None:
    code, printed = in_terminal(scene, width, words)

    assert code == 0
    assert printed.strip()
    assert max(map(len, printed.splitlines())) <= width


def test_a_wide_terminal_shows_a_table_and_a_narrow_one_shows_records(scene: Scene) -> None:
    words = "message find {topic} key3"
    tables = in_terminal(scene, 160, words)[1].splitlines()
    records = in_terminal(scene, 80, words)[1].splitlines()

    assert tables[0].split()[:2] == ["Message", "id"]
    assert set(tables[1]) == {"─"}
    assert [line.split("  ")[0] for line in records[:3]] == ["Message id", "Broker", "Queue"]


def test_a_question_in_a_terminal_is_answered_with_no(scene: Scene) -> None:
    before = scene.state()
    code, printed = in_terminal(scene, 80, "topic delete {topic}", "n\n")

    assert code == 1
    assert "Make these changes? [y/N]" in printed
    assert "nothing was changed" in printed
    assert scene.state() == before


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("cometmq admin topic show ord", ["orders"]),
        ("cometmq admin group lag bil", ["billing"]),
        ("cometmq admin broker status --broker broker-", ["broker-0", "broker-1"]),
        ("cometmq admin cluster list --cluster Def", ["DefaultCluster"]),
        ("cometmq admin offset sh", ["show"]),
    ],
)
def test_a_shell_completes_names(scene: Scene, words: str, offered: list[str]) -> None:
    result = subprocess.run(
        [*forks.python(), "-c", "from cometmq.cli.main import main; main()"],
        env={
            **os.environ,
            "NAMESRV_ADDR": scene.name_servers,
            "_COMETMQ_COMPLETE": "complete_bash",
            "_TYPER_COMPLETE_ARGS": words,
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert result.stdout.split() == offered


def test_an_export_of_mqadmin_leaves_out_the_groups_of_the_system(
    scene: Scene, tmp_path: Path
) -> None:
    with AdminClient(scene.name_servers) as admin:
        admin.create_group("DEFAULT_CONSUMER")
        words = ["exportMetadata", "-c", "DefaultCluster", "-g", "-f", str(tmp_path)]
        result = RUNNER.invoke(app, ["mqadmin", *words, "-n", scene.name_servers])
        admin.delete_group("DEFAULT_CONSUMER")

    assert result.exit_code == 0, result.output
    exported = (tmp_path / "subscriptionGroup.json").read_text()
    assert GROUP in exported
    assert "DEFAULT_CONSUMER" not in exported
