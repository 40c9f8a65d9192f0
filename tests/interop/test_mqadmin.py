"""The official mqadmin prints for our servers what it prints for RocketMQ's own.

One script of commands runs against the cluster under test and against a real 5.3.3 name server and
broker; both printouts are cleaned of what must differ (times, ports, ids, rates) and compared step
by step.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import kit
import pytest
from codes import Answer, Request
from messages import store_many
from mqadmin import AnswerLost, MqAdmin, Printed
from programs import JAVA_53, Client
from servers import Cluster, Settings, connect
from wire import Connection

from cometmq.broker.app import SETTINGS as BROKER
from cometmq.namesrv.app import SETTINGS as NAMESRV
from cometmq.system.configuration import Configuration

TOPIC, GROUP, ONLINE = "Orders", "billing", "shipping"
REFERENCE = "5.3.3"
REFERENCE_SETTINGS: Settings = {
    # Without its timer wheel a 5.3.3 broker cannot delete a topic.
    "timerWheelEnable": True,
    "mappedFileSizeTimerLog": 1024 * 1024,
}


@dataclass(frozen=True)
class Step:
    """One command; ``{name}`` in it stands for a value of the cluster or an earlier finding."""

    name: str
    command: str
    any_order: bool = False
    """The lines come out of a hash table."""
    find: dict[str, str] = field(default_factory=dict)
    """Values for later steps: name and pattern."""
    hide: str | None = None
    """A pattern of more that may differ."""
    lost: str | None = None
    """A pattern of the loss of an answer, where the command prints no error of it."""
    before: Callable[[Acts], None] | None = None


class Acts:
    """The cluster of one run of the script, and what may happen between the commands."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.broker: Connection = connect(cluster.broker)
        self.values = {"broker": cluster.broker, "namesrv": cluster.namesrv}
        self._client: Client | None = None

    def await_queues(self) -> None:
        """Wait until the messages that were sent are in their queues."""
        kit.wait_for_queue(self.broker, TOPIC, 2, timeout=120)
        kit.wait_for_queue(self.broker, TOPIC, 1, 1, timeout=120)

    def await_index(self) -> None:
        """Wait until the last message that was sent is in the index, and so all are."""
        fields = {"topic": TOPIC, "key": "key2", "maxNum": 1}
        fields |= {"beginTimestamp": 0, "endTimestamp": 2**62}
        request = partial(self.broker.request, Request.QUERY_MESSAGE, fields)
        kit.eventually(lambda: request().code == Answer.SUCCESS, timeout=120)

    def store_and_commit(self) -> None:
        """Ten messages in queue 3, of which the group has consumed four."""
        store_many(self.broker, TOPIC, 10, queue=3)
        kit.ok(kit.commit_offset(self.broker, GROUP, TOPIC, 4, queue=3))

    def go_online(self) -> None:
        """A Java client that sends, and receives in a group of its own."""
        self._client = Client(JAVA_53, self.cluster.namesrv, self.folder)
        self._client.send(TOPIC, [{"body": "online"}], group="sellers")
        group = self._client.group(ONLINE, TOPIC, members=1)
        group.wait_for(["online"])

    def await_end_of_tools(self) -> None:
        """Wait until the broker has noticed the end of the producers of earlier commands.

        Their groups are named by the time.
        """

        def are_gone() -> bool:
            groups = kit.ok(self.broker.request(Request.GET_ALL_PRODUCER_INFO)).json()["data"]
            return not any(group.isdecimal() for group in groups)

        kit.eventually(are_gone, timeout=180)

    def go_offline(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        self.go_offline()
        self.broker.close()


CREATE = [
    Step("create a topic", f"updateTopic -c DefaultCluster -t {TOPIC} -r 4 -w 4"),
    Step("create on one broker", "updateTopic -b {broker} -t Narrow -r 4 -w 2 -p 4"),
    Step("route", f"topicRoute -t {TOPIC}"),
    Step("route as a table", f"topicRoute -t {TOPIC} -l"),
    Step("clusters of a topic", f"topicClusterList -t {TOPIC}"),
    Step("status of an empty topic", f"topicStatus -t {TOPIC}"),
    Step("create a group", f"updateSubGroup -c DefaultCluster -g {GROUP} -s true -r 5 -q 2"),
    Step("show a group", f"getConsumerConfig -g {GROUP}"),
    Step(
        "create with attributes", "updateTopic -b {broker} -t Ordered -o true -a +message.type=FIFO"
    ),
    Step("delete with attributes", "deleteTopic -t Ordered -c DefaultCluster"),
    Step("allocation", f"allocateMQ -t {TOPIC} -i 10.0.0.1,10.0.0.2"),
    Step("refuse a bad name", "updateTopic -b {broker} -t bad:name -r 4 -w 2"),
]

SEND = [
    Step("send", f"sendMessage -t {TOPIC} -p hello -k key1 -c tagA -b broker-a -i 0"),
    Step("send again", f"sendMessage -t {TOPIC} -p hello2 -k key1 -c tagA -b broker-a -i 0"),
    Step("send to queue 1", f"sendMessage -t {TOPIC} -p hello3 -k key2 -c tagB -b broker-a -i 1"),
    Step("status", f"topicStatus -t {TOPIC}", before=Acts.await_queues),
]

QUERY = [
    Step(
        "by key",
        f"queryMsgByKey -t {TOPIC} -k key1",
        find={"unique": r"^([0-9A-F]{32,})\s+0\s+1$"},
        before=Acts.await_index,
    ),
    Step("by an unknown key", f"queryMsgByKey -t {TOPIC} -k nothing"),
    Step(
        "by offset",
        f"queryMsgByOffset -t {TOPIC} -b broker-a -i 0 -o 0",
        find={"offset_id": r"OffsetID:\s+(\S+)"},
    ),
    Step("by id", f"queryMsgById -t {TOPIC} -i {{offset_id}}"),
    Step("by unique key", f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}}"),
    Step("by an unknown id", f"queryMsgByUniqueKey -t {TOPIC} -i {'0' * 32}"),
    Step("beyond the end", f"queryMsgByOffset -t {TOPIC} -b broker-a -i 0 -o 99"),
    Step("queue entries", f"queryCq -t {TOPIC} -q 0 -i 0 -c 2 -b {{broker}}"),
    Step("consume all", f"consumeMessage -t {TOPIC}", any_order=True),
    Step("consume one", f"consumeMessage -t {TOPIC} -b broker-a -i 0 -o 1 -c 1"),
    Step("print all", f"printMsg -t {TOPIC} -d true", any_order=True),
    Step("print a queue", f"printMsgByQueue -t {TOPIC} -a broker-a -i 0 -d true -p true -f true"),
    Step("consume an unknown topic", "consumeMessage -t Unknown"),
]

OFFSETS = [
    Step("progress", f"consumerProgress -g {GROUP}", before=Acts.store_and_commit),
    Step("lag of the broker", "brokerConsumeStats -b {broker}"),
    Step("reset to the start", f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0", any_order=True),
    Step(
        "reset one queue", f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0 -b {{broker}} -q 3 -o 2"
    ),
    Step("progress after the reset", f"consumerProgress -g {GROUP}"),
    Step("reset to now", f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s now", any_order=True),
    Step("skip the rest", f"skipAccumulatedMessage -g {GROUP} -t {TOPIC}", any_order=True),
    Step("progress at the end", f"consumerProgress -g {GROUP}"),
    Step("not online", f"consumerConnection -g {GROUP}"),
    Step("create another group", "updateSubGroup -c DefaultCluster -g heirs"),
    Step("clone offsets", f"cloneGroupOffset -s {GROUP} -d heirs -t {TOPIC} -o true"),
]

CLIENTS = [
    Step("consumers", f"consumerConnection -g {ONLINE}", any_order=True, before=Acts.go_online),
    Step("all groups", "consumerProgress", any_order=True, hide=r"(?<=\s)\d+$"),
    Step("producers", f"producerConnection -g sellers -t {TOPIC}"),
    Step("all producers", "producer -b {broker}", any_order=True, before=Acts.await_end_of_tools),
    Step("reset online", f"resetOffsetByTime -g {ONLINE} -t {TOPIC} -s 0", any_order=True),
    Step("offline again", f"consumerConnection -g {ONLINE}", before=Acts.go_offline),
]

WAITS = r"\d+,\d+ms|\d+(?=-\d+\()|(?<=\))\s+\d+(?=\s)"
"""How long requests wait in a broker, how late its timer is, how long its page cache was locked."""

CLUSTER = [
    Step("topics", "topicList", any_order=True),
    Step("topics with groups", "topicList -c", any_order=True),
    Step("cluster", "clusterList", hide=WAITS),
    Step("totals", "clusterList -m", hide=r"(?<=\s)\d+$"),
    Step("statistics", f"statsAll -t {TOPIC}", any_order=True, hide=r"\d+\s+\d+\s*$"),
    Step("change a setting", "updateBrokerConfig -b {broker} -k autoCreateTopicEnable -v false"),
    Step(
        *("round trips", f"checkMsgSendRT -t {TOPIC} -a 3 -s 10"),
        hide=r"(?<=e)\s+\d+$",
        lost=r"\sfalse\s",
    ),
    Step("send to a broker's own topic", "sendMsgStatus -b broker-a -c 2", hide=r"rt=\d+ms"),
    Step("replication", "haStatus -b {broker}", hide=r"(?<=MaxOffset)\s+\d+"),
    Step("put a key", "updateKvConfig -s ns -k a -v b"),
    Step("take it away", "deleteKvConfig -s ns -k a"),
    Step("put an order", f"updateOrderConf -t {TOPIC} -m put -v broker-a:4"),
    Step("get it", f"updateOrderConf -t {TOPIC} -m get"),
    Step("delete it", f"updateOrderConf -t {TOPIC} -m delete"),
    Step("wipe write permission", "wipeWritePerm -b broker-a", hide=r"(?<=OK,) \d+$"),
    Step("route without write permission", f"topicRoute -t {TOPIC} -l"),
    Step("add write permission", "addWritePerm -b broker-a", hide=r"(?<=OK,) \d+$"),
    Step("clean topics", "cleanUnusedTopic -b {broker}"),
    Step("clean queues", "cleanExpiredCQ -b {broker}"),
    Step("delete old files", "deleteExpiredCommitLog -b {broker}"),
]

END = [
    Step("change the permission", f"updateTopicPerm -c DefaultCluster -t {TOPIC} -p 4"),
    Step("the same permission", f"updateTopicPerm -c DefaultCluster -t {TOPIC} -p 4"),
    Step("route of a topic to read", f"topicRoute -t {TOPIC} -l"),
    Step("delete a group", "deleteSubGroup -c DefaultCluster -g heirs -r true"),
    Step("show no group", "getConsumerConfig -g heirs"),
    Step("delete a topic", f"deleteTopic -t {TOPIC} -c DefaultCluster"),
    Step("no route", f"topicRoute -t {TOPIC}"),
    Step("no status", f"topicStatus -t {TOPIC}"),
    Step("no such command", "noSuchCommand"),
]

TABLES = [
    Step("runtime figures", "brokerStatus -b {broker}"),
    Step("broker settings", "getBrokerConfig -b {broker}"),
    Step("name server settings", "getNamesrvConfig"),
]

SCRIPT = [*CREATE, *SEND, *QUERY, *OFFSETS, *TABLES, *CLIENTS, *CLUSTER, *END]

HIDDEN = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "<time>"),
    (r"\b1[6-9]\d{11}\b", "<ms>"),
    (r"[0-9A-F]{32,}", "<id>"),
    (r"\S+@\d+#\d+", "<client>"),
    (r"127\.0\.0\.1:\d+", "<peer>"),
    (r"\d+\.\d+(E-\d+)?\b", "<rate>"),
    (r"See https?:\S+ for further details\.|For more information, please visit the url, \S+", ""),
    (r"cost \[\d+\]ms", "cost"),
]

OF_5_ONLY = re.compile(
    # Topics of POP, of the timer wheel and of acting masters.
    r"^(\S+ )?rmq_sys_\S+$"
    # After the reset of one queue, 5.3.3 takes the topic's name for a group as well.
    rf"|^(DefaultCluster )?{TOPIC} {TOPIC}( |$)"
)

OF_MQADMIN = re.compile(r".*clientId=\S+@1\d{12}@STREAM,")
"""A client of mqadmin itself, which brokers list if a command before took a second or longer."""

RUNS_MAX = 4
"""How often the script may begin; about one run in ten loses an answer."""

Printouts = dict[str, Printed]
Both = tuple[Printouts, Printouts, dict[str, str], dict[str, str]]
"""Printouts of the cluster under test and of the reference, and the values of each."""


def run_script(admin: MqAdmin, acts: Acts) -> Printouts:
    """Run every step; give the raw printouts."""
    printed = {}
    for step in SCRIPT:
        if step.before is not None:
            try:
                step.before(acts)
            except AssertionError as problem:
                problem.add_note(f"on {acts.cluster.target}, before {step.name}: {printed}")
                raise
        command = step.command.format_map(acts.values)
        printed[step.name] = result = admin.run(acts.cluster.namesrv, *command.split())
        if step.lost is not None and re.search(step.lost, result.out):
            raise AnswerLost(f"mqadmin {command}: {result.out}")
        for name, pattern in step.find.items():
            found = re.search(pattern, result.out, re.MULTILINE)
            assert found is not None, f"{command} printed no {name}: {result}"
            acts.values[name] = found[1]
    return printed


def cleaned(step: Step, printed: Printed, values: dict[str, str]) -> list[str]:
    """The lines that must be equal for both clusters."""
    text = "\n".join(line for line in printed.out.splitlines() if not OF_MQADMIN.match(line))
    text += "\n" + "\n".join(errors(printed.err))
    for name in ("broker", "namesrv"):
        text = text.replace(values[name], f"<{name}>")
    for pattern, name in [*HIDDEN, *([(step.hide, "<hidden>")] if step.hide else [])]:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not OF_5_ONLY.match(line)]
    return sorted(lines) if step.any_order else lines


def errors(text: str) -> list[str]:
    """What the printed exceptions say, without their stacks."""
    return [line for line in text.splitlines() if "CODE:" in line or "Exception" in line]


@pytest.fixture(scope="module")
def both(target: str, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The printouts of the cluster under test and of the reference, and their values."""
    admin = MqAdmin(tmp_path_factory.mktemp("mqadmin"))
    runs = [run_anew(admin, kind, tmp_path_factory) for kind in (target, REFERENCE)]
    admin.close()
    (ours, our_values), (theirs, their_values) = runs
    return ours, theirs, our_values, their_values


def run_anew(
    admin: MqAdmin, kind: str, folders: pytest.TempPathFactory
) -> tuple[Printouts, dict[str, str]]:
    """Run the script on a cluster of its own; on another one if mqadmin lost an answer."""
    for _ in range(RUNS_MAX - 1):
        with contextlib.suppress(AnswerLost):
            return run_once(admin, kind, folders.mktemp("cluster"))
    return run_once(admin, kind, folders.mktemp("cluster"))


def run_once(admin: MqAdmin, kind: str, folder: Path) -> tuple[Printouts, dict[str, str]]:
    """Run the script on a cluster in a folder; give the printouts and the cluster's values."""
    with (
        Cluster(kind, folder, REFERENCE_SETTINGS if kind == REFERENCE else None) as cluster,
        closing(Acts(cluster, folder / "clients")) as acts,
    ):
        return run_script(admin, acts), acts.values


def table(text: str, separator: str) -> dict[str, str]:
    """Lines of name, separator and value."""
    pairs = (line.split(separator, 1) for line in text.splitlines() if separator in line)
    return {name.strip(): value.strip() for name, value in pairs}


SAME_FIGURES = (
    "brokerActive",
    "brokerVersion",
    "brokerVersionDesc",
    "commitLogMinOffset",
    "dispatchBehindBytes",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgPutTotalYesterdayMorning",
    "putMessageFailedTimes",
    "putMessageTimesTotal",
    "queryThreadPoolQueueSize",
    "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
)
OWN_SETTINGS = {
    "allAckInSyncStateSet", "bindAddress", "configStorePath", "flushDiskType", "haListenPort",
    "inSyncReplicas", "kvConfigPath", "listenPort", "mappedFileSizeCommitLog", "namesrvAddr",
    "rocketmqHome", "storePathCommitLog", "storePathRootDir",
}  # fmt: skip
"""Settings whose values differ on purpose: addresses, paths, our safer defaults, the small files of
`cometmq standalone`, and the choice between the rules of 4.9 and 5.3 for what a synchronous master
waits for."""
CHANGED_FOR_TESTS = {"waitTimeMillsInSendQueue": "200", "mappedFileSizeTimerLog": "104857600"}
"""RocketMQ's defaults of what the tests set at real brokers."""


def test_broker_status_has_the_same_figures(both: Both) -> None:
    ours, theirs = (table(run["runtime figures"].out, ":") for run in both[:2])
    missing = {name for name in theirs.keys() - ours.keys() if "commitLogDiskRatio_" not in name}

    assert not missing
    assert {n: ours[n] for n in SAME_FIGURES} == {n: theirs[n] for n in SAME_FIGURES}
    for name in ("bootTimestamp", "earliestMessageTimeStamp"):
        assert re.fullmatch(r"1\d{12}", ours[name])


@pytest.mark.parametrize(
    ("step", "kinds", "known"),
    [("broker settings", BROKER, 60), ("name server settings", NAMESRV, 10)],
    ids=["broker", "name-server"],
)
def test_settings_have_the_names_and_values_of_rocketmq(
    step: str, kinds: Sequence[type], known: int, both: Both
) -> None:
    """What has no effect here has RocketMQ's default, which may depend on the machine."""
    ours, theirs = (table(run[step].out, "=  ") for run in both[:2])
    theirs |= {name: value for name, value in CHANGED_FOR_TESTS.items() if name in theirs}
    assert theirs.keys() <= ours.keys()

    shared = Configuration(kinds).properties().keys() & theirs.keys() - OWN_SETTINGS
    assert len(shared) >= known
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


compared = [step for step in SCRIPT if step not in TABLES]


@pytest.mark.parametrize("step", compared, ids=lambda step: step.name.replace(" ", "-"))
def test_mqadmin_prints_the_same(step: Step, both: Both) -> None:
    ours, theirs, our_values, their_values = both

    mine = cleaned(step, ours[step.name], our_values)

    assert mine == cleaned(step, theirs[step.name], their_values), step.command
