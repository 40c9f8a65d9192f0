"""mqadmin 4.9.8 and 5.3.3 print for our servers what they printed for RocketMQ's.

The recordings and their scene of topics, groups, clients, orders, dead letters and traces are
described in ``tests/vectors/mqadmin/scene.md``. This module makes the scene on our cluster and runs
the calls in their order: in the tier ``all`` every call that asks a server, else those of
`COMMANDS`. A printout, and the files that a command writes, have to equal those of the tool at its
own line of RocketMQ or at the other one. `OTHERWISE` lists the calls that differ.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mqadmin import MqAdmin, Printed, newest_of
from servers import Cluster, Settings, split_address

from cometmq.protocol import fastjson
from support.runner.tiers import is_long_run

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "mqadmin"
sys.path.append(str(VECTORS))

from normal import normalize, normalize_file  # type: ignore[import-not-found]  # noqa: E402
from scene import Scene  # type: ignore[import-not-found]  # noqa: E402

RECORDINGS = {"4.9.8": ("4.9.8", "4.9.8-on-5.3.3"), "5.3.3": ("5.3.3", "5.3.3-on-4.9.7")}
COMMANDS = {
    *("updateTopic", "updateTopicPerm", "updateTopicList", "deleteTopic", "topicRoute"),
    *("topicStatus", "updateOrderConf", "updateKvConfig", "deleteKvConfig"),
    *("wipeWritePerm", "addWritePerm", "brokerConsumeStats"),
    *("updateSubGroup", "updateSubGroupList", "getConsumerConfig", "deleteSubGroup"),
    "setConsumeMode",
    *("consumerProgress", "cloneGroupOffset", "resetOffsetByTime", "skipAccumulatedMessage"),
    *("queryMsgTraceById", "QueryMsgTraceById", "queryMsgById", "queryMsgByUniqueKey", "queryCq"),
    *("queryMsgByKey", "queryMsgByOffset"),
    *("consumerConnection", "producerConnection", "producer", "consumerStatus"),
    *("getBrokerConfig", "getNamesrvConfig", "exportConfigs", "brokerStatus"),
    *("getColdDataFlowCtrInfo", "updateColdDataFlowCtrGroupConfig"),
    *("removeColdDataFlowCtrGroupConfig", "setCommitLogReadAheadMode", "getBrokerEpoch"),
    *("clusterAclConfigVersion", "updateAclConfig", "deleteAclConfig", "deleteAccessConfig"),
    *("updateGlobalWhiteAddr",),
    *("createUser", "getUser", "updateUser", "listUser", "copyUser", "deleteUser"),
    *("createAcl", "getAcl", "updateAcl", "listAcl", "copyAcl", "deleteAcl"),
}
"""The commands of every run."""
NOT_BUILT = {"exportPopRecord"}
"""Commands of functions that our servers do not have."""
OTHERWISE = {
    # RocketMQ's response has no body, which is a null pointer in the tool.
    "queryCq-queue": r"CODE: 1  DESC: 99@scene-orders is not exist!",
    # So is a subject that is missing.
    "acl-get-miss": r"CODE: 16  DESC: The subject '' is none: expected User:NAME",
    # RocketMQ takes any name.
    "updateSubGroup-name": r"CODE: 29  DESC: the specified group\[bad\$name\] contains illegal",
}
"""Calls whose printouts differ on purpose, by id, and what they contain instead."""
FOLLOWING = re.compile(r"/(topicConfigTable/scene-static|subscriptionGroupTable/bad\$name)/")
"""Lines of exported tables that only these calls make differ are left out."""
DIFFERENT_MAX = 1 / 50
"""The share of calls that may differ, of those of functions that our servers have."""
ONLY_OF_ONE_LINE = re.compile(
    # 5.3.3 takes a topic's name for a group as well, and leaves out groups that broadcast.
    r"^MessageTrack .*consumerGroup=scene-(orders|few|broadcast),"
    r"|^(<CLUSTER>\s+)?scene-(orders|few)\s+scene-(orders|few|broadcast)\b"
    r"|^See <URL> for further details\., org\.apache"
)
PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
OTHER_TOPICS = re.compile(
    r"rmq_sys_(REVIVE_LOG_|wheel_timer|SYNC_BROKER_MEMBER_)|RMQ_SYS_TRANS_(OP_)?HALF_TOPIC"
)
"""Lines about these topics are left out. Brokers of 4.9 do not list those of half messages. Ours do
and have none of pop consumption and timer messages, and the last one of 5.3 only with
``enableSlaveActingMaster``."""
SETTINGS: Settings = {"enablePropertyFilter": True, "transactionCheckInterval": 3_600_000}
OF_USERS: Settings = {
    # Keep users and policies, and check nothing.
    "authenticationMetadataProvider": PROVIDER.format("authentication", "Authentication"),
    "authorizationMetadataProvider": PROVIDER.format("authorization", "Authorization"),
}
ACCOUNTS = """
globalWhiteRemoteAddresses:
  - 127.0.0.1
accounts:
  - accessKey: scene-admin
    secretKey: scene-secret
    admin: true
  - accessKey: scene-user
    secretKey: scene-secret
    defaultTopicPerm: PUB|SUB
"""
HOUR_MS = 3_600_000
NOBODY = "127.0.0.1:1"
"""An address where no server listens."""
REFUSED = "CODE: 3"
Call = dict[str, Any]


OURS_ALONE = re.compile(r"\bproducerSessions")
"""RocketMQ has no producer sessions."""
LEFT_OUT = (ONLY_OF_ONE_LINE, OTHER_TOPICS, FOLLOWING, OURS_ALONE)


def read(name: str) -> list[Call]:
    calls: list[Call] = json.loads((VECTORS / f"{name}.json").read_text())["calls"]
    return calls


def chosen(version: str) -> list[Call]:
    """The calls to run with a tool, as recorded at its own line of RocketMQ."""
    return [call for call in read(RECORDINGS[version][0]) if is_chosen(call)]


def is_chosen(call: Call) -> bool:
    """Whether this run includes a call."""
    return asks_a_server(call) and (is_long_run() or call["args"][0] in COMMANDS)


def asks_a_server(call: Call) -> bool:
    """Whether a call that ends asks a server for what our servers have."""
    args = call["args"]
    reaches_none = (
        not args
        or args[0] in ("help", "noSuchCommand")
        or call["id"] == "no-namesrv"
        or call["out"].startswith("usage:")
        or NOBODY in args
    )
    return not reaches_none and "late" not in call["marks"] and args[0] not in NOT_BUILT


@dataclass
class Run:
    """What a tool has printed in the scene, normalized."""

    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    files: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    failed: dict[str, bool] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """Parts of the scene that our servers could not make."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Run all calls with a tool of a version, each version once."""
    done: dict[str, Run] = {}

    def run_of(version: str) -> Run:
        if version not in done:
            done[version] = run_all(version, tmp_path_factory)
        return done[version]

    return run_of


def run_all(version: str, folders: pytest.TempPathFactory) -> Run:
    settings = SETTINGS | OF_USERS
    if version.startswith("4."):  # the recorded broker of 4.9 controls access
        home = folders.mktemp("home")
        (home / "conf").mkdir()
        (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
        settings = SETTINGS | {"aclEnable": True, "rocketmqHome": str(home)}
    cluster = Cluster("comet", folders.mktemp("cluster"), settings)
    files = folders.mktemp("files")
    admin = MqAdmin(files / "java", version)
    try:
        cluster.start()
        with closing(Scene(split_address(cluster.namesrv))) as scene:
            scene.make()
            return run_in(scene, admin, cluster, version, files)
    finally:
        admin.close()
        cluster.remove()


def run_in(scene: Any, admin: MqAdmin, cluster: Cluster, version: str, files: Path) -> Run:
    facts = scene.facts() | {"paths": {str(files): "<TMP>"}}
    listed = {"groupName": "scene-listed-group", "retryMaxTimes": 7, "consumeEnable": True}
    (files / "groups.json").write_text(json.dumps([listed | {"retryQueueNums": 1}]))
    topics = [{"topicName": f"scene-listed-{n}", "readQueueNums": n, "perm": 6} for n in (1, 2)]
    topics = [topic | {"writeQueueNums": topic["readQueueNums"]} for topic in topics]
    (files / "topics.json").write_text(json.dumps(topics))
    values = values_of(facts, cluster, files)
    run = Run(missing=scene.missing)
    for call in chosen(version):
        args = [filled(arg, values) for arg in call["args"]]
        printed = admin.run("" if "no-ns" in call["marks"] else cluster.namesrv, *args)
        run.lines[call["id"]] = {
            name: normalize(getattr(printed, name), args[0], facts) for name in ("out", "err")
        }
        run.failed[call["id"]] = has_failed(printed)
        run.files[call["id"]] = {
            name: normalize_file(text, args[0], facts)
            for name in call["normalized"].get("files", {})
            if (text := newest_of(files, name)) is not None
        }
    return run


def values_of(facts: dict[str, Any], cluster: Cluster, files: Path) -> dict[str, str]:
    """The values of placeholders in command lines."""
    started_ms = facts["started_ms"]
    past = datetime.fromtimestamp(started_ms / 1000 - 3600, UTC)
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}}
    values = {
        "ns": cluster.namesrv, "broker": cluster.broker, "bname": facts["broker_name"],
        "cluster": facts["cluster"], "tmp": str(files),
        "retry-policy": json.dumps(policy, separators=(",", ":")),
        "past": str(started_ms - HOUR_MS), "future": str(started_ms + HOUR_MS),
        "done": str(int(datetime.now(UTC).timestamp() * 1000)),
        "past-text": past.strftime("%Y-%m-%d#%H:%M:%S:000"),
        "beyond": facts["offset_ids"]["orders-0"][:16] + f"{2**40:016X}",
    }  # fmt: skip
    for kind, table in (("uniq", facts["unique_ids"]), ("oid", facts["offset_ids"])):
        values |= {f"{kind}:{name}": value for name, value in table.items()}
    return values


def filled(argument: str, values: dict[str, str]) -> str:
    return re.sub(r"\{([a-z]+(?:[:-][\w-]+)?)\}", lambda found: values[found[1]], argument)


def has_failed(printed: Printed) -> bool:
    return "\tat " in printed.err or printed.err.startswith("Missing required option")


def codes(lines: list[str]) -> list[str]:
    """The response codes that a printout of errors names."""
    return re.findall(r"CODE: \d+", "\n".join(lines))


def value_of(lines: list[str]) -> object:
    return fastjson.loads("\n".join(lines))


def names_of(lines: list[str]) -> list[str]:
    return sorted(
        re.split(r"\s*[=:]", line)[0].strip() for line in lines if re.search("[=:]", line)
    )


def comparable(lines: list[str]) -> list[str]:
    """Lines without what the two lines of RocketMQ do not have in common, one track per line."""
    text = "\n".join(lines).replace("]MessageTrack", "]\nMessageTrack")
    return [
        line for line in text.splitlines() if not any(pattern.search(line) for pattern in LEFT_OUT)
    ]


def agree(compare: str, mine: list[str], recorded: list[str]) -> bool:
    """Whether two printouts are equal as far as a recording says."""
    mine, recorded = comparable(mine), comparable(recorded)
    match compare:
        case "sorted":
            return sorted(mine) == sorted(recorded)
        case "json":
            return mine == recorded or value_of(mine) == value_of(recorded)
        case "keys":
            return set(names_of(mine)) == set(names_of(recorded))
        case "subset":
            return set(names_of(recorded)) <= set(names_of(mine))
        case "set":
            return set(mine) == set(recorded)
        case "head":
            return mine[:1] == recorded[:1]
        case "status":
            return True
    return mine == recorded


def shown(printed: dict[str, list[str]]) -> list[str]:
    return [*printed["out"], *(f"error: {line}" for line in printed["err"])]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recorded" in metafunc.fixturenames:
        metafunc.parametrize(
            ("version", "recorded"),
            [
                pytest.param(version, call["id"], id=f"{version}-{call['id']}")
                for version in RECORDINGS
                for call in chosen(version)
            ],
        )


def test_mqadmin_prints_what_was_recorded(
    version: str, recorded: str, runs: Callable[[str], Run]
) -> None:
    run = runs(version)
    mine = run.lines[recorded]
    if recorded in OTHERWISE:
        assert re.search(OTHERWISE[recorded], "\n".join(shown(mine))), mine
        return
    calls = [call for name in RECORDINGS[version] for call in read(name) if call["id"] == recorded]
    if REFUSED not in codes(calls[0]["normalized"]["err"]):
        # Our servers say that they are of 5.3: refusals of 4.9 do not count.
        calls = [call for call in calls if REFUSED not in codes(call["normalized"]["err"])]

    def equals(call: Call) -> bool:
        theirs = call["normalized"]
        files = theirs.get("files", {})
        return (
            run.failed[recorded] == call["failed"]
            and codes(mine["err"]) == codes(theirs["err"])
            and agree(call["compare"], mine["out"], theirs["out"])
            and run.files[recorded].keys() == files.keys()
            and all(
                agree(call["compare"], run.files[recorded][name], files[name]) for name in files
            )
        )

    theirs = "\n-- or --\n".join("\n".join(shown(call["normalized"])) for call in calls)
    met = [*shown(mine), *(line for file in run.files[recorded].values() for line in file)]
    assert any(map(equals, calls)), "\n".join([*met, "-- recorded --", theirs])


@pytest.mark.parametrize("version", RECORDINGS)
def test_the_scene_is_whole(version: str, runs: Callable[[str], Run]) -> None:
    assert runs(version).missing == []


@pytest.mark.parametrize("version", RECORDINGS)
def test_few_calls_differ(version: str) -> None:
    """Calls that ask no server count too: of their commands all recorded calls do."""
    calls = [call for call in read(RECORDINGS[version][0]) if not NOT_BUILT & {*call["args"][:1]}]
    different = [call["id"] for call in calls if call["id"] in OTHERWISE]

    assert len(different) <= DIFFERENT_MAX * len(calls), different
