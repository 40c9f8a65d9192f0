"""``cometmq mqadmin`` prints what RocketMQ's own tool printed in the recorded scene.

All recorded calls run on a cluster in the scene of ``tests/vectors/mqadmin/scene.md``, with the
commands, flags and printouts of each release line. A printout has to equal that of the tool on
RocketMQ's servers of either line, by the rules of the recordings. In the tier ``all`` the calls of
4.9 run too, and each line's calls run on RocketMQ's servers of that line.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mqadmin import newest_of
from servers import Cluster, Settings, split_address
from test_mqadmin_recordings import (
    ACCOUNTS,
    OF_USERS,
    OTHERWISE,
    RECORDINGS,
    SETTINGS,
    Scene,
    agree,
    codes,
    filled,
    normalize,
    normalize_file,
    read,
    shown,
    values_of,
)

from cometmq.cli.mqadmin import app, exports, queries
from cometmq.cli.mqadmin.command_line import commands
from cometmq.cli.mqadmin.commands import ABSENT, ALIASES
from support.runner.tiers import is_long_run

REAL_SETTINGS: dict[str, Settings] = {
    # Without the timer wheel no topic can be deleted.
    "5.3.3": SETTINGS | OF_USERS | {"timerWheelEnable": True},
}
KEYS = [("comet", "5.3.3")]
if is_long_run():
    KEYS += [("comet", "4.9.8"), ("4.9.7", "4.9.8"), ("5.3.3", "5.3.3")]
"""The clusters, and whose printouts are asked for there."""
recordings = functools.cache(read)
ENDLESS_S, PAUSE_S = 5.0, 0.02
"""The limit of time for the first lines of a command that never ends."""
REGISTERED_S = 0.3
"""A change of a broker reaches the name server in less."""
DIFFERENT = {
    "unknown": "an unknown command fails: RocketMQ's tool ends with exit code 0",
    "help-unknown": "the same",
    "updateTopic-order": "RocketMQ's tool prints an error of a look-up, and succeeds",
    "topicList-5": "RocketMQ's tool prints its usage after it has succeeded",
    "subGroupList": "the same",
    "allocateMQ": "the queues are allocated as members do it, in their order",
    "progress-reset": "cloneGroupOffset had cloned the offsets of other topics too",
}
"""Calls whose printout or exit code differs on purpose, and why."""
FIXED = "/tmp/rocketmq"
"""The folders where RocketMQ's tool writes bodies and exports: only its first user can."""
OF_ITS_FILE = {"getBrokerConfig", "getBrokerConfig-c"}
"""Calls that depend on the file of the recorded broker: settings without a default are shown only
if the file has them."""
UNORDERED = {
    *("consumerStatus", "getColdDataFlowCtrInfo"),
    *("queryMsgById", "queryMsgByUniqueKey", "queryMsgByOffset"),
}
"""Commands of which RocketMQ's tool prints lines in the order of a hash table."""
BY_CHANCE = re.compile(r"/(bad\$name|scene-static|clientInfo)/")
"""Lines of files that are left out: about names that our servers refuse, and about the clients that
the tool itself had."""
PER_DIFFERENT_MIN = 50
"""How many calls there have to be for each that differs."""


@dataclass
class Printed:
    code: int
    out: str
    err: str
    lines: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)


NO_NAME_SERVER = "no-namesrv"
"""Left out: this command then asks the usual address, where a server may be."""
POP = "setConsumeMode"
"""Our servers refuse it: they have no pop consumption yet."""

Key = tuple[str, str]


def calls_of(target: str, version: str) -> list[dict[str, Any]]:
    """The calls of commands that exist here and that the servers serve."""
    absent = {name.lower() for name in ABSENT}
    known = commands(4 if version.startswith("4") else 5)

    def runs(call: dict[str, Any]) -> bool:
        name = call["args"][0].lower() if call["args"] else ""
        refused = name in known and known[name].name == POP
        served = target != "comet" or not refused or call["out"].startswith("usage:")
        return name not in absent and served and call["id"] != NO_NAME_SERVER

    return [call for call in recordings(RECORDINGS[version][0]) if runs(call)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Key], dict[str, Printed]]:
    """Run all calls on a cluster with a line's flags and printouts, each pair once."""
    done: dict[Key, dict[str, Printed] | Exception] = {}

    def runs_of(key: Key) -> dict[str, Printed]:
        if key not in done:
            try:
                done[key] = run_all(*key, tmp_path_factory)
            except Exception as error:  # or each test would start the cluster again
                done[key] = error
        found = done[key]
        if isinstance(found, Exception):
            raise found
        return found

    return runs_of


def run_all(target: str, version: str, folders: pytest.TempPathFactory) -> dict[str, Printed]:
    home = folders.mktemp("cluster")
    settings = dict(REAL_SETTINGS.get(target, SETTINGS))
    if target == "comet" and version == "5.3.3":
        settings |= OF_USERS
    if version == "4.9.8":
        conf = home / "broker" / "conf"
        conf.mkdir(parents=True)
        (conf / "plain_acl.yml").write_text(ACCOUNTS)
        settings["aclEnable"] = True
        if target == "comet":
            settings["rocketmqHome"] = str(conf.parent)
    cluster = Cluster(target, home, settings)
    folder = folders.mktemp("files")
    before, namesrv = Path.cwd(), os.environ.pop("NAMESRV_ADDR", None)
    try:
        cluster.start()
        scene = Scene(split_address(cluster.namesrv))
        try:
            scene.make()
            os.chdir(folder)  # consumerStatus writes files where it runs
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(queries, "BODIES", folder / "fixed" / "msgbodys")
                patch.setattr(exports, "FOLDER", str(folder / "fixed" / "export"))
                (folder / "java").mkdir()
                patch.setattr(tempfile, "tempdir", str(folder / "java"))
                return run_in(scene, cluster, target, version, folder)
        finally:
            os.chdir(before)
            scene.close()
    finally:
        if namesrv is not None:
            os.environ["NAMESRV_ADDR"] = namesrv
        cluster.remove()


def run_in(
    scene: Any, cluster: Cluster, target: str, version: str, folder: Path
) -> dict[str, Printed]:
    facts = scene.facts() | {"paths": {str(folder): "<TMP>"}}
    write_lists(folder)
    values = values_of(facts, cluster, folder)
    found: dict[str, Printed] = {}

    async def run_calls() -> None:
        for call in calls_of(target, version):
            if "pause" in call["marks"]:
                await asyncio.sleep(REGISTERED_S)
            words = ["--like", version, *(filled(word, values) for word in call["args"])]
            if "no-ns" not in call["marks"]:
                words += ["-n", cluster.namesrv]
            lines = 1 if call["compare"] == "head" else len({*call["normalized"]["out"]})
            late = call["ended"] == "late"
            printed = await run(words, until_lines=lines if late else None)
            command = command_of(call)
            for name in ("out", "err"):
                text = getattr(printed, name).replace(str(folder / "fixed"), FIXED)
                printed.lines[name] = normalize(text, command, facts)
            for name in call["normalized"].get("files", {}):
                if (text := newest_of(folder, name)) is not None:
                    printed.files[name] = normalize_file(text, command, facts)
            found[call["id"]] = printed

    asyncio.run(run_calls())
    return found


def write_lists(folder: Path) -> None:
    listed = {"groupName": "scene-listed-group", "retryMaxTimes": 7, "consumeEnable": True}
    (folder / "groups.json").write_text(json.dumps([listed | {"retryQueueNums": 1}]))
    topics = [{"topicName": f"scene-listed-{n}", "readQueueNums": n, "perm": 6} for n in (1, 2)]
    topics = [topic | {"writeQueueNums": topic["readQueueNums"]} for topic in topics]
    (folder / "topics.json").write_text(json.dumps(topics))


async def run(words: list[str], *, until_lines: int | None) -> Printed:
    """Run a command; one that never ends until it has printed so many lines."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        work = asyncio.create_task(app.run(words))
        if until_lines is None:
            code = await work
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDLESS_S):
                    while out.getvalue().count("\n") < until_lines and not work.done():
                        await asyncio.sleep(PAUSE_S)
            work.cancel()
            await asyncio.wait({work})
    return Printed(code, out.getvalue(), err.getvalue())


def command_of(call: dict[str, Any]) -> str:
    name = call["args"][0] if call["args"] else ""
    return ALIASES.get(name, name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recorded" in metafunc.fixturenames:
        metafunc.parametrize(
            ("key", "recorded"),
            [
                pytest.param((target, version), call["id"], id=f"{target}-{version}-{call['id']}")
                for target, version in KEYS
                for call in calls_of(target, version)
            ],
        )


def usage_of(lines: list[str]) -> list[str]:
    """The flags of a usage, without what they mean: this tool says it in its own words."""
    heads = [line for line in lines if not re.match(r" -|    --", line)]
    return [line for line in heads if "-" in line and not line.startswith("  ")]


def equals(mine: Printed, call: dict[str, Any]) -> bool:
    """Whether a printout is the recorded one, as far as the recording says."""
    theirs = call["normalized"]
    if call["failed"] != (mine.code != 0):
        return False
    if theirs["out"][:1] and theirs["out"][0].startswith("usage: "):
        return usage_of(mine.lines["out"]) == usage_of(theirs["out"])
    if not call["args"]:
        return mine.lines["out"][0] == theirs["out"][0]
    if codes(mine.lines["err"]) != codes(theirs["err"]):
        return False
    files, compare, out = theirs.get("files", {}), call["compare"], mine.lines["out"]
    recorded = [line for line in map(without_object, theirs["out"]) if line is not None]
    if command_of(call) in UNORDERED:
        compare, out, recorded = "sorted", apart(out), apart(recorded)
    return (
        agree(compare, out, recorded)
        and mine.files.keys() == files.keys()
        and all(agree(compare, *map(made, (mine.files[name], files[name]))) for name in files)
    )


def without_object(line: str) -> str | None:
    """A line without the address of a Java object; None if there is nothing else."""
    shown = re.sub(r"org\.apache\.rocketmq\.common\.PlainAccessConfig@<HASH>", "", line)
    return shown if shown or not line else None


def apart(lines: list[str]) -> list[str]:
    """Lines of which none goes on with the next part: RocketMQ's tool does not end each."""
    return re.sub(r"\](MessageTrack|OffsetID)", r"]\n\1", "\n".join(lines)).splitlines()


def made(lines: list[str]) -> list[str]:
    return [line for line in lines if not BY_CHANCE.search(line)]


def test_the_printout_is_the_recorded_one(
    key: Key, recorded: str, runs: Callable[[Key], dict[str, Printed]]
) -> None:
    mine = runs(key)[recorded]
    calls = [
        call for name in RECORDINGS[key[1]] for call in recordings(name) if call["id"] == recorded
    ]
    if recorded in OTHERWISE and key[0] == "comet":
        assert re.search(OTHERWISE[recorded], mine.out + mine.err), mine
        return
    theirs = "\n-- or --\n".join("\n".join(shown(call["normalized"])) for call in calls)
    if recorded in OF_ITS_FILE and key[0] != "comet":
        assert mine.code == 0
        return
    same = any(equals(mine, call) for call in calls)
    met = [*shown(mine.lines), *(line for file in mine.files.values() for line in file)]
    reason = "\n".join([f"exit {mine.code}", *met, "-- recorded --", theirs])
    assert same == (recorded not in DIFFERENT), reason


@pytest.mark.parametrize("version", RECORDINGS)
def test_few_calls_differ(version: str) -> None:
    calls = calls_of("comet", version)
    different = [call for call in calls if call["id"] in DIFFERENT]

    assert len(different) * PER_DIFFERENT_MIN <= len(calls), [call["id"] for call in different]


@pytest.mark.parametrize(("target", "version"), KEYS)
def test_headlines_have_the_recorded_columns(
    target: str, version: str, runs: Callable[[Key], dict[str, Printed]]
) -> None:
    printed, compared = runs((target, version)), 0
    for call in calls_of(target, version):
        if not equals(printed[call["id"]], call):
            continue  # as recorded at the other release line
        theirs = [line for line in call["out"].splitlines() if line.startswith("#")]
        mine = [line for line in printed[call["id"]].out.splitlines() if line.startswith("#")]
        if theirs and re.match(r"#\S+ .* #", theirs[0]) and mine:
            assert mine[0].rstrip() == theirs[0].rstrip(), call["id"]
            compared += 1
    assert compared > 30
