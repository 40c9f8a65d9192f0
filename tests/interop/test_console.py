"""The console over RocketMQ 5.3.3 and over ours, by requests and in Chromium with axe."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx
import pytest
import toolchain
from servers import Cluster, Settings

from cometmq.client import LocalState, Message, StartFrom, StoredMessage
from cometmq.client.blocking import AdminClient, Producer, PushConsumer, TransactionProducer
from support.checks.waiting import wait_until
from support.controllers.elected_processes import NAME, running_elected

WAIT_S = 120.0
SETTINGS: Settings = {  # RocketMQ 5.3.3 deletes no topic without an error while its timer is off
    "timerWheelEnable": True, "recallMessageEnable": True, "traceTopicEnable": True,
}  # fmt: skip
SENT = 12
HOSTILE = "<img src=x onerror=alert(1)>"
WIDTHS = (1200, 400)
PACKAGE = "org.apache.rocketmq.auth"
PROVIDERS: Settings = {
    f"{part}MetadataProvider": f"{PACKAGE}.{part}.provider.Local{part.title()}MetadataProvider"
    for part in ("authentication", "authorization")
}
"""Settings of a broker that keeps users and policies, and needs none."""
PLAIN_ACCOUNTS = """
accounts:
- {accessKey: operations, secretKey: secret-of-operations, admin: true}
"""
NO_AXE = "<title>x</title><img src='a.png'>"
"""A page of which axe finds something."""


class Served(NamedTuple):
    """A console over a cluster with messages, a group and a dead letter."""

    url: str
    name_servers: str
    broker: str

    def get(self, path: str, **query: Any) -> Any:
        response = httpx.get(f"{self.url}/api{path}", params=query, timeout=WAIT_S)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, status: int = 200, **form: Any) -> Any:
        response = httpx.post(f"{self.url}/api{path}", json=form, timeout=WAIT_S)
        assert response.status_code == status, response.text
        return response.json()


@pytest.fixture(scope="module", params=["comet", "5.3.3"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A console of its own for each cluster."""
    with ExitStack() as stack:
        settings = SETTINGS | PROVIDERS
        folder = tmp_path_factory.mktemp("cluster")
        cluster = stack.enter_context(Cluster(request.param, folder, settings))
        stack.enter_context(members(cluster.namesrv))
        url = console_of(cluster.namesrv, stack)
        with AdminClient(cluster.namesrv) as admin:
            [broker] = admin.cluster_info().registered()
        yield Served(url, cluster.namesrv, broker.name)


def console_of(
    name_servers: str, stack: ExitStack, environment: Mapping[str, str] | None = None
) -> str:
    """Serve a console until the stack closes; return its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cometmq", "console", "-n", name_servers, "--port", "0"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    stack.callback(process.communicate)
    stack.callback(process.kill)
    assert process.stdout is not None
    ready = re.match(r"console ready at (\S+)/ ", process.stdout.readline())
    assert ready
    return ready[1]


def members(name_servers: str) -> ExitStack:
    """Send messages; return members that have consumed them, and dead-lettered one."""
    with ExitStack() as stack:
        admin = stack.enter_context(AdminClient(name_servers))
        admin.create_topic("orders", queues=2)
        admin.create_topic("books", queues=1)
        producer = stack.enter_context(Producer(name_servers, group="shop", trace=True))
        for number in range(SENT):
            body = json.dumps({"order": number, "name": HOSTILE}).encode()
            producer.send(Message("orders", body, tags="new", keys=[f"order-{number}"]))
        producer.send(Message("books", HOSTILE.encode(), keys=["book-1"]))

        def fail(message: object) -> None:
            raise ValueError(f"cannot book {HOSTILE}")

        running = stack.enter_context(ExitStack())
        for group, topic, handler, retries in (
            ("billing", "orders", lambda message: None, 16), ("ledger", "books", fail, 0),
        ):  # fmt: skip
            running.enter_context(
                PushConsumer(
                    name_servers, group=group, subscriptions={topic: "*"}, handler=handler,
                    start_from=StartFrom.FIRST, retries_max=retries, trace=True,
                )
            )  # fmt: skip
        wait_until(lambda: bool(admin.dead_letters("ledger").letters), timeout=WAIT_S)
        return running.pop_all()


def committed(served: Served) -> int:
    queues = served.get("/groups/group", group="billing")["queues"]
    return sum(each["committed"] for each in queues if each["topic"] == "orders")


def test_each_page_shows_what_the_cluster_has(served: Served) -> None:
    [broker] = served.get("/overview")["brokers"]
    assert (broker["broker"], broker["role"], broker["error"]) == (served.broker, "master", "")
    assert broker["version"].startswith("V5_3_3")
    assert 0 < broker["disk_ratio"] < 1
    assert {each["topic"] for each in served.get("/topics")["topics"]} >= {"orders", "books"}
    topic = served.get("/topics/topic", topic="orders")
    assert (topic["messages"], topic["paging"]["total"], topic["errors"]) == (SENT, 2, [])
    assert topic["brokers"][0]["settings"]["writeQueueNums"] == "2"

    wait_until(lambda: committed(served) == SENT, timeout=WAIT_S)
    group = served.get("/groups/group", group="billing")
    assert group["lag"] == 0
    assert (len(group["members"]), group["errors"]) == (1, [])
    assert {"topic": "orders", "type": "TAG", "expression": "*"} in group["subscriptions"]
    rows = {each["group"]: each for each in served.get("/groups")["groups"]}
    assert rows["billing"] == {
        "group": "billing", "members": 1, "mode": "clustering", "type": "push", "lag": 0,
        "version": group["members"][0]["version"], "error": "",
    }  # fmt: skip

    wait_until(lambda: served.get("/overview")["lags"]["lag"] is not None, timeout=WAIT_S)
    lags = served.get("/overview")["lags"]
    assert (lags["errors"], lags["first_error"]) == (0, "")
    assert lags["groups"] >= 2

    [row] = served.get("/messages", topic="orders", key="order-7")["messages"]
    assert served.get("/messages", topic="orders", id=row["id"])["messages"] == [row]
    place = {name: row[name] for name in ("topic", "broker", "queue", "offset")}
    message = served.get("/messages/message", **place)
    assert json.loads(message["body"]["text"]) == {"order": 7, "name": HOSTILE}
    assert served.get("/messages", id=message["offset_message_id"])["messages"] == [row]

    [counted] = served.get("/dead-letters")["groups"]
    assert (counted["group"], counted["letters"]) == ("ledger", 1)
    [letter] = served.get("/dead-letters/group", group="ledger")["letters"]
    assert (letter["original_topic"], letter["keys"]) == ("books", ["book-1"])
    [cluster] = served.get("/cluster")["clusters"]
    details = served.get("/cluster/broker", address=cluster["brokers"][0]["address"])
    assert (details["errors"], details["slaves"]) == ([], [])
    assert "log ends at physical offset" in details["replication"]


def test_topics_are_changed(served: Served) -> None:
    made = served.post("/topics/create", topic="made", queues=2, message_type="NORMAL")
    [there] = made["brokers"]
    assert there["after"] == ("2 read queues, 2 write queues, read and write, message.type=NORMAL")
    served.post("/topics/send", topic="made", body="x", keys=["made-1"], properties=["a=1"])
    change = {"topic": "made", "write_queues": 1, "attributes": ["message.type="]}
    preview = served.get("/topics/change", topic="made", write_queues=1, read_queues=1)
    assert "the queues from 1 on" in preview["warnings"][0]
    served.post("/topics/change", **change)
    settings = served.get("/topics/topic", topic="made")["brokers"][0]["settings"]
    assert (settings["readQueueNums"], settings["writeQueueNums"]) == ("2", "1")
    assert settings["attributes"] == "{}"
    assert served.get("/topics/delete", topic="made")["messages"] == 1
    served.post("/topics/delete", topic="made")
    assert "made" not in {each["topic"] for each in served.get("/topics")["topics"]}
    refused = served.get("/topics/tail", topic="orders", by="sql", filter="a = 1")
    assert "does not support consumer to filter message by SQL92" in refused["errors"][0]


def test_groups_are_moved_and_members_that_differ_are_named(served: Served) -> None:
    served.post("/groups/create", group="moved", retry_max_times=3)
    of = {"group": "moved", "topic": "orders"}
    preview = served.get("/groups/skip", **of)
    assert (preview["skipped_messages"], preview["queues_total"]) == (SENT, 2)
    assert "No member is online" in preview["notes"][0]
    served.post("/groups/skip", **of)
    assert served.get("/groups/group", group="moved")["lag"] == 0
    served.post("/groups/reset-queue", **of, broker=served.broker, queue=0, offset=1)
    preview = served.get("/groups/reset", **of, to="earliest")
    committed = {each["queue"]: each["committed"] for each in preview["queues"]}
    assert committed[0] == 1
    assert preview["repeated_messages"] == sum(committed.values())
    served.post("/groups/reset", **of, to="earliest")
    served.post("/groups/change", group="moved", retry_max_times=4)
    group = served.get("/groups/group", group="moved")
    assert group["lag"] == SENT
    assert [each["values"]["retryMaxTimes"] for each in group["settings"]] == ["4"]
    served.post("/groups/delete", group="moved")
    assert "moved" not in {each["group"] for each in served.get("/groups")["groups"]}

    owned = served.get("/groups/group", group="billing", owners="true")
    readers = served.get("/topics/groups", topic="orders")["groups"]
    [reader] = [each for each in readers if each["group"] == "billing"]
    assert (reader["members"], reader["lag"], reader["error"]) == (1, 0, "")
    [queues] = {each["client"] for each in owned["queues"] if each["topic"] == "orders"}
    assert queues == owned["members"][0]["client"]
    online = served.get("/groups/skip", group="billing", topic="orders")
    assert "each moves at its next pull" in online["notes"][-1]
    with ExitStack() as stack:
        for tag in ("new", "old"):
            stack.enter_context(
                PushConsumer(
                    served.name_servers, group="mixed", subscriptions={"orders": tag},
                    handler=lambda message: None, client_ip="127.0.0.1", instance_name=tag,
                )
            )  # fmt: skip
        group = served.get("/groups/group", group="mixed")
        assert group["errors"] == []
        assert [(each["expression"], each["members"]) for each in group["differences"]] == [
            (tag, [f"127.0.0.1@{tag}"]) for tag in ("new", "old")
        ]
        client = f"127.0.0.1@{tag}"
        member = served.get("/groups/member", group="mixed", client=client, stacks="true")
        assert member["subscriptions"][0]["expression"] == "old"
        assert member["stacks"]


def test_servers_settings_and_accounts_are_changed(served: Served) -> None:
    address = served.get("/cluster")["clusters"][0]["brokers"][0]["address"]
    listed = served.get("/settings/server", address=address, search="slaveTimeout")
    ours = listed["is_cometmq"]
    assert listed["settings"][0]["value"] == listed["settings"][0]["default"] == "3000"
    setting = {"servers": [address], "key": "slaveTimeout", "value": "2500"}
    [row] = served.post("/settings/change", **setting)["servers"]
    assert (row["old"], row["new"]) == ("3000", "2500")
    wrong = served.post("/settings/change", status=502, **setting | {"value": "abc"})["error"]
    assert ("slaveTimeout=abc: expected" if ours else "kept slaveTimeout=2500") in wrong
    fixed = served.post("/settings/change", status=400, **setting | {"key": "listenPort"})
    assert "listenPort is not live" in fixed["error"]

    served.post("/accounts/users/create", user="app", password="secret-of-app")
    served.post(
        "/accounts/policies/set", subject="User:app", resources=["Topic:orders"], actions=["Pub"]
    )
    [user] = served.get("/accounts", search="app")["users"]
    assert user == {"user": "app", "type": "Normal", "status": "enable", "brokers": []}
    [policy] = served.get("/accounts/policies", search="User:app")["policies"]
    assert (policy["resource"], policy["actions"]) == ("Topic:orders", ["Pub"])
    assert "no plain accounts" in served.get("/accounts/plain")["asked"]["errors"][0] or ours
    served.post("/accounts/users/delete", user="app")
    assert served.get("/accounts", search="app")["users"] == []

    served.post("/topics/static/create", topic="parts", queues=2)
    [topic] = served.get("/topics/static")["topics"]
    assert (topic["queues"], topic["brokers"]) == (2, [served.broker])
    moved = served.post("/topics/static/move", topic="parts", brokers=[served.broker])
    assert moved["moves"] == []
    assert served.post("/cluster/stop-writing", broker=served.broker)["topics"] > 0
    assert served.post("/cluster/resume-writing", broker=served.broker)["topics"] > 0
    assert served.get("/cluster/controllers")["controllers"] == []
    found = served.get("/doctor/run", fine=True)
    assert (found["state"], found["errors"]) == ("done", [])
    assert "brokers" in [each["check"] for each in found["findings"]]


def test_an_old_cluster_has_plain_accounts_and_says_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "broker" / "conf" / "plain_acl.yml"
    file.parent.mkdir(parents=True)
    file.write_text(PLAIN_ACCOUNTS)
    signed = {
        "COMETMQ_CLIENT_ACCESS_KEY": "operations",
        "COMETMQ_CLIENT_SECRET_KEY": "secret-of-operations",
    }
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster("4.9.7", tmp_path, {"aclEnable": True}))
        served = Served(console_of(cluster.namesrv, stack, signed), cluster.namesrv, "broker-a")
        new = {"access_key": "new-service", "secret_key": "secret-of-new-service"}
        served.post("/accounts/plain/set", **new, topics=["orders=PUB"])
        text = httpx.get(f"{served.url}/api/accounts/plain", timeout=WAIT_S).text
        assert "secret-of" not in text  # the broker sends the keys
        rows = json.loads(text)["accounts"]
        assert [(each["access_key"], each["topics"]) for each in rows] == [
            ("new-service", ["orders=PUB"]), ("operations", []),
        ]  # fmt: skip
        short = served.post(
            "/accounts/plain/set", status=502, access_key="other-service", secret_key="brief"
        )
        assert "***" in short["error"]  # the broker repeats the key
        [timers] = served.get("/timers")["brokers"]
        assert (timers["timers"], timers["error"]) == (None, "")
        assert served.get("/timers/broker", broker="broker-a")["source"] == "none"
        assert served.get("/transactions")["brokers"][0]["error"] == ""
        assert served.get("/transactions/discarded")["messages"] == []
        failed = served.get("/audit", search="failed")["entries"]
        assert [("brief" in each["result"], "***" in each["result"]) for each in failed] == [
            (False, True)
        ]
        served.post("/accounts/plain/delete", access_key="new-service")
        assert len(served.get("/accounts/plain")["accounts"]) == 1
        assert "has no users" in served.get("/accounts")["asked"]["errors"][0]
        refused = served.post("/topics/static/create", status=502, topic="parts", queues=2)
        assert "static topics need brokers of CometMQ, or of RocketMQ 5.0" in refused["error"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_controllers_of_rocketmq_are_shown_elect_and_forget(tmp_path: Path) -> None:
    brokers = ("5.3.3", "5.3.3")
    with ExitStack() as stack:
        elected = stack.enter_context(
            running_elected("5.3.3", brokers, tmp_path, allAckInSyncStateSet=True)
        )
        elected.await_in_sync(2)
        first, second = elected.brokers
        served = Served(console_of(elected.namesrv, stack), elected.namesrv, NAME)
        [controller] = served.get("/cluster/controllers")["controllers"]
        assert (controller["address"], controller["role"], controller["members"]) == (
            elected.controller.address, "active", [f"n0:{elected.controller.address}"],
        )  # fmt: skip
        assert replicas(served) == [(1, "master", True), (2, "slave", True)]
        [epoch] = served.get("/cluster/broker", address=first.address)["epochs"]
        assert epoch["epoch"] == 1

        election = {"broker_set": NAME, "broker_id": 2}
        planned = served.get("/cluster/controllers/elect", **election)
        assert planned["master_then"] == f"2 {second.address}"
        assert served.post("/cluster/controllers/elect", **election)["master_epoch"] == 2
        assert elected.await_master(other_than=first) is second
        wait_until(
            lambda: [each[:2] for each in replicas(served)] == [(1, "slave"), (2, "master")],
            timeout=WAIT_S,
        )
        gone = {"broker_set": NAME, "broker_ids": ["1"]}
        alive = served.post("/cluster/controllers/forget", status=400, **gone)
        assert "is alive" in alive["error"]
        first.kill()
        wait_until(lambda: (1, "slave", False) in replicas(served), timeout=WAIT_S)
        served.post("/cluster/controllers/forget", **gone)
        assert replicas(served) == [(2, "master", True)]


def replicas(served: Served) -> list[tuple[int, str, bool]]:
    """Return id, role and whether it is alive, of each broker of the only set."""
    [found] = served.get("/cluster/controllers")["sets"]
    return [(each["id"], each["role"], each["alive"]) for each in found["replicas"]]


class Undecided:
    """A local transaction that does not end."""

    def execute(self, message: Message, argument: object) -> LocalState:
        return LocalState.UNKNOWN

    def check(self, message: StoredMessage) -> LocalState:
        return LocalState.UNKNOWN


def test_what_waits_is_shown_and_a_timer_is_recalled(served: Served) -> None:
    name_servers = served.name_servers
    served.post("/topics/create", topic="later", queues=1)
    with (
        Producer(name_servers, group="shop") as producer,
        TransactionProducer(name_servers, group="bank", listener=Undecided()) as bank,
    ):
        timer = producer.send(Message("later", b"later", keys=["timer-1"], delay=7200))
        producer.send(Message("later", b"delayed", keys=["delayed-1"], delay_level=18))
        half = bank.send_in_transaction(Message("later", b"half", keys=["half-1"])).receipt

    def of_broker() -> Any:
        return served.get("/timers/broker", broker=served.broker, topic="later")

    wait_until(lambda: bool(of_broker()["timers"]), timeout=WAIT_S)
    found = of_broker()
    address = served.get("/cluster")["clusters"][0]["brokers"][0]["address"]
    ours = served.get("/settings/server", address=address)["is_cometmq"]
    assert found["source"] == ("list" if ours else "newest records")
    [row] = found["timers"]
    assert (row["id"], row["keys"]) == (timer.message_id, "timer-1")
    wait_until(
        lambda: {each["level"]: each["waiting"] for each in of_broker()["levels"]}.get(18) == 1,
        timeout=WAIT_S,
    )
    [delayed] = served.get("/timers/level", broker=served.broker, level=18)["messages"]
    assert (delayed["topic"], delayed["row"]["keys"]) == ("later", ["delayed-1"])
    [waiting] = served.get("/transactions", topic="later")["messages"]
    assert (waiting["id"], waiting["group"]) == (half.message_id, "bank")

    form = {"topic": "later", "handle": row["handle"]}
    assert served.get("/timers/recall", **form)["timers"][0]["id"] == timer.message_id
    assert served.post("/timers/recall", **form)["ids"] == [timer.message_id]

    def states() -> list[str]:
        timers = served.get("/timers/find", topic="later", key="timer-1")["timers"]
        return [each["state"] for each in timers]

    wait_until(lambda: states() == ["recalled"], timeout=WAIT_S)


def test_a_message_is_followed_and_delivered_again(served: Served) -> None:
    [row] = served.get("/messages", topic="orders", key="order-7")["messages"]
    place = {name: row[name] for name in ("topic", "broker", "queue", "offset")}
    wait_until(lambda: committed(served) >= SENT, timeout=WAIT_S)
    groups = served.get("/messages/groups", **place)["groups"]
    assert {each["group"]: each["state"] for each in groups}["billing"] == "consumed"
    [book] = served.get("/messages", topic="books", key="book-1")["messages"]
    of_book = {name: book[name] for name in ("topic", "broker", "queue", "offset")}
    wait_until(
        lambda: (
            [each["state"] for each in served.get("/messages/groups", **of_book)["groups"]]
            == ["dead-lettered"]
        ),
        timeout=WAIT_S,
    )

    def steps() -> list[dict[str, Any]]:
        response = httpx.get(
            f"{served.url}/api/messages/trace", params={"id": row["id"]}, timeout=WAIT_S
        )
        found: list[dict[str, Any]] = response.json().get("steps", [])
        return found

    wait_until(lambda: len(steps()) == 2, timeout=WAIT_S)
    assert [(each["event"], each["group"]) for each in steps()] == [
        ("send", "shop"), ("consume", "billing"),
    ]  # fmt: skip
    made = served.post("/messages/deliver", **place, group="billing")
    assert made["result"] == "CR_SUCCESS"
    listed = served.get("/messages/by-time", topic="orders", since="1h")
    assert row in listed["messages"]


Look = Callable[[str, int, str], Any]


@pytest.fixture(scope="module")
def look() -> Iterator[Look]:
    """Open addresses in Chromium with a width and a color scheme."""
    chromium = toolchain.command("chromium")
    sys.path.append(str(toolchain.browser()))
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def opened(url: str, width: int, scheme: str) -> Any:
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            page = context.new_page()
            page.set_default_timeout(WAIT_S * 1000)
            page.on("dialog", lambda dialog: pytest.fail(f"a script of a message ran: {dialog}"))
            page.goto(url)
            return page

        yield opened
        browser.close()


@pytest.mark.needs("chromium")
def test_axe_finds_nothing_and_no_page_is_wider_than_a_phone(served: Served, look: Look) -> None:
    axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
    [letter] = served.get("/dead-letters/group", group="ledger")["letters"]
    [row] = served.get("/messages", topic="orders", key="order-7")["messages"]
    [server] = served.get("/cluster")["clusters"][0]["brokers"]
    place = {name: letter[name] for name in ("broker", "queue", "offset")}
    of_row = urlencode({name: row[name] for name in ("topic", "broker", "queue", "offset")})
    client = served.get("/groups/group", group="billing")["members"][0]["client"]
    paths = [
        "/", "/topics?type=all", "/topics/topic?topic=orders", "/topics/tail?topic=orders",
        "/topics/groups?topic=orders",
        "/topics/create", "/topics/change?topic=orders", "/topics/send?topic=orders",
        "/groups?system=true",
        "/groups/group?group=billing", "/groups/create", "/groups/change?group=billing",
        f"/groups/member?{urlencode({'group': 'billing', 'client': client, 'stacks': 'true'})}",
        "/groups/reset?group=billing&topic=orders", "/messages?topic=orders&key=order-7",
        f"/messages/message?{urlencode({'topic': '%DLQ%ledger', **place})}",
        "/messages/by-time?topic=orders&since=1h", f"/messages/groups?{of_row}",
        f"/messages/trace?id={row['id']}",
        f"/messages/deliver?{of_row}&group=billing", f"/messages/resend?{of_row}",
        "/timers", f"/timers/broker?broker={served.broker}", "/timers/recall",
        f"/timers/level?broker={served.broker}&level=18", "/timers/find?topic=later&key=timer-1",
        "/transactions", "/transactions/discarded", "/transactions/resume",
        "/dead-letters", "/dead-letters/group?group=ledger&since=1h",
        "/dead-letters/reasons?group=ledger", "/dead-letters/resend?group=ledger",
        "/cluster",
        f"/cluster/broker?{urlencode({'address': server['address']})}",
        "/topics/topic?topic=missing", "/cluster/controllers", "/settings",
        f"/settings/server?{urlencode({'address': server['address']})}", "/doctor/run?fine=true",
        "/accounts", "/accounts/policies", "/accounts/plain",
        "/topics/static", "/topics/static/topic?topic=parts",
    ]  # fmt: skip
    visited = {each.partition("?")[0] for each in paths}
    schema = served.get("/openapi.json")["paths"]
    changes = [path.removeprefix("/api") for path, each in schema.items() if "post" in each]
    forms = [path for path in changes if path not in visited]
    found = []
    for width, scheme in zip(WIDTHS, ("light", "dark"), strict=True):
        page = look(served.url, width, scheme)
        messages: list[str] = []
        page.on("pageerror", lambda error, to=messages: to.append(str(error)))
        for path in paths if width == WIDTHS[0] else [*paths, *forms]:
            page.goto(served.url + path)
            wider = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            wrong = [each["id"] for each in axe.run(page).response["violations"]]
            if wider > 0 or wrong or messages:
                found.append((path, width, wider, wrong, messages.copy()))
        page.set_content(NO_AXE)
        assert axe.run(page).response["violations"], "axe finds nothing in a page with a fault"
        page.context.close()
    assert found == []


@pytest.mark.needs("chromium")
def test_a_message_is_sent_in_the_browser_and_seen_in_the_tail(served: Served, look: Look) -> None:
    tail = look(f"{served.url}/topics/tail?topic=books&filter=tailed", 1200, "light")
    tail.get_by_text("live", exact=True).wait_for()
    page = look(f"{served.url}/topics/topic?topic=books", 1200, "light")
    page.get_by_role("link", name="Send a message").press("Enter")
    page.get_by_label("Body").fill(f"sent by hand {HOSTILE}")
    page.get_by_label("Tag").fill("tailed")
    page.get_by_role("button", name="Send a message").press("Enter")
    page.get_by_text("Done.").wait_for()
    page.goto(f"{served.url}/groups/skip?group=billing&topic=orders")
    page.get_by_role("button", name="Preview").press("Enter")
    page.get_by_text("Nothing was done yet.").wait_for()
    axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
    assert axe.run(page).response["violations"] == []
    page.get_by_role("button", name="Skip the backlog").press("Enter")
    page.get_by_text("Done.").wait_for()
    assert axe.run(page).response["violations"] == []
    tail.locator("td.body", has_text=f"sent by hand {HOSTILE}").wait_for()
    assert tail.locator("main img").count() == 0
    page.context.close()
    tail.context.close()


@pytest.mark.needs("chromium")
def test_a_reader_goes_from_the_overview_to_a_message_by_keyboard(
    served: Served, look: Look
) -> None:
    page = look(served.url, 1200, "light")
    page.get_by_text("live", exact=True).wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.get_by_role("button", name="Pause").press("Enter")
    page.get_by_text("paused", exact=True).wait_for()

    page.get_by_role("link", name="Topics").press("Enter")
    page.get_by_label("Name").fill("ord")
    page.get_by_label("Name").press("Enter")
    page.get_by_role("link", name="orders").press("Enter")
    page.get_by_role("link", name="Find messages").press("Enter")
    page.get_by_label("Key").fill("order-7")
    page.get_by_label("Key").press("Enter")
    page.get_by_role("table").get_by_role("link").press("Enter")
    body = page.get_by_label("Body")
    assert HOSTILE in body.text_content()
    assert page.locator("main img").count() == 0
    page.get_by_role("link", name="hex").press("Enter")
    page.locator("pre", has_text="00000000").wait_for()
    page.context.close()


@pytest.mark.needs("chromium")
def test_a_setting_is_changed_by_keyboard_after_a_preview(served: Served, look: Look) -> None:
    [server] = served.get("/cluster")["clusters"][0]["brokers"]
    page = look(f"{served.url}/settings", 1200, "light")
    page.get_by_role("link", name=server["address"]).press("Enter")
    page.get_by_label("Name").fill("haHousekeepingInterval")
    page.get_by_label("Name").press("Enter")
    page.get_by_role("link", name="Change haHousekeepingInterval").press("Enter")
    page.get_by_label("Value").fill("30000")
    page.get_by_role("button", name="Preview").press("Enter")
    page.get_by_text("Nothing was done yet").wait_for()
    cells = page.get_by_role("table").get_by_role("cell").all_text_contents()
    assert cells[2:4] == ["20000", "30000"]
    page.get_by_role("button", name="Change a setting").press("Enter")
    page.get_by_text("Done.", exact=True).wait_for()
    page.get_by_role("link", name="Go on").press("Enter")
    page.get_by_role("cell", name="30000", exact=True).wait_for()
    page.context.close()
    found = served.get("/settings/server", address=server["address"], search="HousekeepingInterval")
    assert found["settings"][0]["value"] == "30000"


@pytest.mark.needs("chromium")
def test_a_dead_letter_is_chosen_and_sent_again_in_the_browser(served: Served, look: Look) -> None:
    [row] = served.get("/dead-letters/reasons", group="ledger")["reasons"]
    assert HOSTILE.replace("1", "#") in row["reason"]
    page = look(f"{served.url}/dead-letters", 1200, "light")
    page.get_by_role("row", name="ledger").get_by_role("link", name="By reason").press("Enter")
    page.get_by_role("link", name="cannot book").press("Enter")
    page.get_by_role("checkbox", name="Choose").first.press("Space")
    page.get_by_role("button", name="Send the chosen ones again").press("Enter")
    page.get_by_role("combobox", name="To").select_option("topic")
    page.get_by_role("button", name="Preview").press("Enter")
    page.get_by_text("Nothing was done yet").wait_for()
    assert "planned" in page.locator("main").text_content()
    page.get_by_role("button", name="Send dead letters again").press("Enter")
    page.get_by_text("Done.").wait_for()
    with page.expect_download() as download:
        page.goto(f"{served.url}/dead-letters/group?group=ledger")
        page.get_by_role("link", name="Export as JSON lines").press("Enter")
    lines = download.value.path().read_text().splitlines()
    assert json.loads(lines[0])["original_topic"] == "books"
    assert page.locator("main img").count() == 0
    page.context.close()
