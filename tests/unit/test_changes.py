"""Makes the changes of "Where a change goes" in a copy, in the files of the page: they work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unit.test_layout import SOURCES, rows

QUERY = "A new request code, for instance a query"
LEVELS = "Another rule for delay levels"
COUNTER = "A new counter"
SETTING = "A new setting"
TABLE = "A new table with a file, for instance beside the topics"
JOB = "A new job, for instance for clients"
ADMINISTRATION = "A new administration request, for instance for groups"
OF_NAME_SERVER = "A new request of the name server, for instance for topics"
RUNTIME = "A new line of the broker's runtime information"
SEND = "A new check of a send"
LIMIT = "A new limit of a record, in a batch or not"
CHECK = "A new field of the check of a transaction"
FILTER = "A further limit of the processes of class filters"
UNIT = "A further delay unit, such as weeks"
OPERATOR = "A further operator of SQL92 expressions, such as `CONTAINS`"

Edit = tuple[str, str, str]
"""A file of the row, a text in it, and what comes in its place."""


def handler(file: str, before: str, name: str) -> Edit:
    """A handler before another one."""
    body = 'return Response(remark="it is served")'
    return (
        file,
        before,
        f"    def {name}(self, request: Request) -> Response:\n        {body}\n\n{before}",
    )


def before(file: str, text: str, added: str) -> Edit:
    """A text before another one."""
    return file, text, added + text


CHANGES: dict[str, list[Edit]] = {
    QUERY: [
        handler("broker/queries/handler.py", "    async def by_key(", "assignment"),
        before(
            "broker/queries/feature.py",
            "RequestCode.QUERY_MESSAGE:",
            "RequestCode.WHO_CONSUME_THE_MESSAGE: query.handler(lambda h: h.assignment),\n",
        ),
        before(
            "broker/queries/rights.py",
            "    RequestCode.QUERY_MESSAGE:",
            "    RequestCode.WHO_CONSUME_THE_MESSAGE: Rights(\n"
            '        *[on_named(SUB_OR_GET, topic="topic")] * 2\n    ),\n',
        ),
    ],
    LEVELS: [("model/delay.py", "min(max(int(text), 0), self.highest)", "int(text)")],
    COUNTER: [
        before(
            "broker/stats/counters.py",
            "    def sent_back(",
            "    def asked(self, topic: str) -> None:\n"
            '        self.add("TOPIC_ASKED_NUMS", topic)\n\n',
        ),
    ],
    SETTING: [
        before(
            "broker/config.py",
            '    in_sync_replicas: int = setting(0, key="inSyncReplicas"',
            '    new_limit: int = setting(7, key="newLimit", low=1)\n    """New."""\n\n',
        )
    ],
    TABLE: [
        before(
            "broker/topics/table.py",
            "class Gap(Protocol):",
            "class Notes:\n"
            "    def __init__(self, file: JsonFile) -> None:\n"
            "        self.file, self.notes = file, file.load() or {}\n\n\n",
        ),
        before(
            "broker/topics/feature.py",
            "        core.topics.notify(",
            "        from cometmq.broker.topics.table import Notes\n"
            '        self.notes = Notes(core.table_file("notes"))\n',
        ),
    ],
    JOB: [
        before(
            "broker/clients/feature.py",
            '        every(SWEEP_S, sweep_clients, "sweep-clients"),\n',
            '        every(SWEEP_S, sweep_clients, "sweep-again"),\n',
        )
    ],
    ADMINISTRATION: [
        handler("broker/groups/handler.py", "    async def put(", "suspend"),
        before(
            "broker/groups/feature.py",
            "RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:",
            "RequestCode.SUSPEND_CONSUMER: groups.exclusive(lambda h: h.suspend),\n",
        ),
        before(
            "broker/groups/rights.py",
            "    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:",
            "    RequestCode.SUSPEND_CONSUMER: Rights(ADMINISTRATION, SIGNED),\n",
        ),
    ],
    OF_NAME_SERVER: [
        handler("namesrv/topics/handler.py", "    async def all(", "names"),
        before(
            "namesrv/topics/feature.py",
            "            RequestCode.GET_TOPICS_BY_CLUSTER:",
            "            RequestCode.GET_TOPIC_NAME_LIST: topics.handler(lambda h: h.names),\n",
        ),
        before(
            "namesrv/topics/feature.py",
            "    RequestCode.GET_TOPICS_BY_CLUSTER: NOTHING,\n",
            "    RequestCode.GET_TOPIC_NAME_LIST: NOTHING,\n",
        ),
    ],
    RUNTIME: [
        before(
            "broker/stats/runtime_info.py",
            '"brokerActive": "true",',
            '"brokerNew": "new",',
        )
    ],
    SEND: [
        before(
            "broker/sending/validation.py",
            "    if topic in TOPICS_OF_WAITING:\n",
            '    if topic == "unwanted":\n        raise _illegal("it is unwanted")\n',
        )
    ],
    LIMIT: [
        before(
            "store/appender.py",
            "        if length > TOPIC_BYTES_MAX:\n",
            '        if topic == "limited":\n'
            '            raise InvalidMessageError("it is limited")\n',
        )
    ],
    CHECK: [
        before(
            "broker/transactions/check_service.py",
            "            bname=self._settings().broker_name,",
            '            ns="new",\n',
        )
    ],
    FILTER: [
        before(
            "filtersrv/config.py",
            "    memory_bytes_max: int = setting(",
            '    depth_max: int = setting(500, key="filterClassDepthMax")\n    """New."""\n\n',
        ),
        before("filtersrv/worker.py", "    memory_bytes: int\n", "    depth: int\n"),
        before("filtersrv/worker.py", "settings.memory_bytes_max)", "settings.depth_max, "),
        (
            "filtersrv/worker.py",
            "str(self._limits.memory_bytes),",
            "str(self._limits.memory_bytes), str(self._limits.depth),",
        ),
        (
            "filtersrv/sandboxed.py",
            "        seal(int(sys.argv[1]))\n",
            "        seal(int(sys.argv[1]))\n        sys.setrecursionlimit(int(sys.argv[2]))\n",
        ),
    ],
    UNIT: [
        ("model/delay.py", '"d": 86_400_000}', '"d": 86_400_000, "w": 604_800_000}'),
        ("model/delay.py", "([smhd])", "([smhdw])"),
    ],
    OPERATOR: [
        before(
            "sql92/parser.py",
            '"CONTAINS": CONTAINS,',
            '"INCLUDES": CONTAINS, ',
        )
    ],
}
"""By the change as the page names it: how it is made."""

PROGRAM = """
import asyncio, sys
from pathlib import Path
from time import time
from types import SimpleNamespace
import cometmq
from cometmq.access.account_settings import AccountSettings
from cometmq.access.rights import Kind, Lookups, RequestNeeds
from cometmq.broker.app import Broker
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.config import BrokerSettings
from cometmq.cli.configurations import broker_configuration
from cometmq.cli.server_options import ServerOptions
from cometmq.filtersrv.config import FilterServerSettings
from cometmq.filtersrv.sandboxed import Message, refusal
from cometmq.filtersrv.worker import Limits, Source, Worker
from cometmq.model.delay import DelayLevels
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.assembly import NEEDS
from cometmq.namesrv.config import NameServerSettings
from cometmq.access.needs import NOTHING, Needs
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.transaction import CheckTransactionStateRequest
from cometmq.remoting import RemotingClient, RemotingSettings, Response
from cometmq.sql92 import compile_expression
from cometmq.store import NewRecord

TEXT = b"n\\x01abc\\x02"
HALF = "TRAN_MSG\\x01true\\x02PGROUP\\x01p\\x02UNIQ_KEY\\x01id\\x02"
MEMBER = b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}'
DEPTH = '''class F:
    def match(self, m, c):
        import sys
        return sys.getrecursionlimit() == 321'''


async def main(folder):
    assert Path(cometmq.__file__).is_relative_to(folder), cometmq.__file__
    settings = broker_configuration(ServerOptions(port=0, store=folder / "store"))
    settings.set({"fastPortEnable": "false", "newLimit": "8", "transactionTimeOut": "1"})
    settings.set({"transactionCheckInterval": "10"})
    broker, names = Broker(settings), NameServer(NameServerSettings(listen_port=0))
    checked = asyncio.get_running_loop().create_future()

    def check(request):
        checked.done() or checked.set_result(request.header(CheckTransactionStateRequest))
        return Response()

    client = RemotingClient(
        RemotingSettings(), handlers={RequestCode.CHECK_TRANSACTION_STATE: check}
    )
    await broker.start()
    await names.start()

    async def ask(server, code, body=b"", **fields):
        connection = await client.connection(server.address, timeout=60)
        return await connection.call(code, body=body, fields=fields, timeout=60)

    def send(topic, flags=0, properties=""):
        values = "p", topic, "TBW102", 4, 0, flags, int(time() * 1000), 0, properties, 0, "false"
        fields = {key: str(value) for key, value in zip("abcdefghijm", values)}
        return ask(broker, RequestCode.SEND_MESSAGE_V2, b"x", **fields)

    for code in (RequestCode.WHO_CONSUME_THE_MESSAGE, RequestCode.SUSPEND_CONSUMER):
        assert (await ask(broker, code)).remark == "it is served", code
    lookups = Lookups("c", lambda at: None, lambda at: None, lambda group: True)
    for kind in Kind:
        needs = RequestNeeds(kind, lookups)
        needs.state(broker.life.rights())
        assert RequestCode.WHO_CONSUME_THE_MESSAGE in needs.codes
        assert RequestCode.SUSPEND_CONSUMER in needs.codes
    assert (await ask(names, RequestCode.GET_TOPIC_NAME_LIST)).remark == "it is served"
    assert NEEDS.of(RequestCode.GET_TOPIC_NAME_LIST) == NOTHING
    assert settings[BrokerSettings].new_limit == 8
    notes = broker.features.topics.notes
    notes.file.save({"a": "b"})
    assert (folder / "store/config/notes.json").exists()
    assert "sweep-again" in broker.life.jobs._jobs
    runtime = await ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    assert '"brokerNew":"new"' in runtime.body.decode()
    broker.core.stats.asked("T")
    broker.core.stats.sample()
    assert await broker.core.stats.view("TOPIC_ASKED_NUMS", "T") is not None
    assert "it is unwanted" in (await send("unwanted")).remark
    assert "it is limited" in (await send("limited")).remark
    assert (await send("wanted")).code == 0
    await ask(broker, RequestCode.HEART_BEAT, MEMBER)
    assert (await send("wanted", 4, HALF)).code == 0
    assert (await asyncio.wait_for(checked, 60)).ns == "new"
    if refusal() is None:
        limits = Limits.of(FilterServerSettings(depth_max=321))
        fields = dict.fromkeys(Message.__slots__, 1) | {"body": b"", "properties": {}}
        message = SimpleNamespace(**fields)
        worker = Worker("F", Source("F", DEPTH, 0), limits)
        async with worker.exclusive():
            assert await worker.match("g", [message]) == [True]
        await worker.close()
    assert DelayLevels.parse().level_of("99") == 99
    assert DelayLevels.parse("1w").longest_ms == 7 * 86_400_000
    assert compile_expression("n INCLUDES 'b'").matches(TEXT, 0, len(TEXT))
    await client.close()
    await broker.stop()
    await names.stop()


asyncio.run(main(Path(sys.argv[1])))
print("all changes work")
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, which runs interpreted, with all changes of `CHANGES`."""
    folder = tmp_path_factory.mktemp("changed")
    copied = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__", "spark")
    shutil.copytree(SOURCES, folder / "cometmq", ignore=copied)
    for change, edits in CHANGES.items():
        for file, text, instead in edits:
            path = folder / "cometmq" / file
            source = path.read_text()
            assert text in source, (change, file, text)
            path.write_text(source.replace(text, instead, 1))
    return folder


def test_the_changes_are_made_where_the_page_says() -> None:
    page = {change.replace("`", ""): files for change, files in rows().items()}
    for change, edits in CHANGES.items():
        files = page[change.replace("`", "")]
        assert {file for file, _, _ in edits} <= set(files), change


def test_all_changes_of_the_page_are_made() -> None:
    assert {change.replace("`", "") for change in rows()} == {
        change.replace("`", "") for change in CHANGES
    }


def test_the_changes_work(changed: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(changed), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(changed)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.endswith("all changes work\n"), re.sub(r"^.* INFO .*\n", "", done.stderr)
