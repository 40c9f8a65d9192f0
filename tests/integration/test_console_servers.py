"""The console's pages and changes of servers: settings, accounts, static topics, controllers."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from cometmq.broker.app import Broker
from cometmq.cli.console import examine
from cometmq.client import AdminClient, Message, Producer
from cometmq.console.access.users import add_user
from cometmq.console.app import Console, Options
from cometmq.console.doctor import Doctor, Finding
from cometmq.console.pages import Role
from cometmq.testing import ThreadedCluster
from support.brokers.accounts import SECRETS, home_with_accounts
from support.brokers.pairs import Pairs
from support.checks.waiting import until
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import listening_controller

PACKAGE = "org.apache.rocketmq.auth"
PROVIDERS = {
    f"{part}MetadataProvider": f"{PACKAGE}.{part}.provider.Local{part.title()}MetadataProvider"
    for part in ("authentication", "authorization")
}
SECRET = "a secret that nothing shows"
OTHER_SECRET = "another that nothing shows"
ORIGIN = "http://127.0.0.1:8082"
SIGNED_IN = "http://console.example"
PASSWORD = "correct horse battery"
FAST = {
    "enableControllerMode": "true",
    "brokerHeartbeatInterval": "100",
    "syncBrokerMetadataPeriod": "100",
    "controllerHeartBeatTimeoutMills": "2000",
}


def visitor(console: Console, origin: str = ORIGIN) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(console.app), base_url=origin)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    """Two masters that keep users and policies."""
    with ThreadedCluster(brokers=2, settings=PROVIDERS) as running:
        yield running


@pytest.fixture
async def admin(cluster: ThreadedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_servers) as running:
        yield running


@pytest.fixture
async def visits(admin: AdminClient, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    console = Console(admin, Options(audit_log=tmp_path / "audit.log", examine=examine))
    async with visitor(console) as client:
        yield client


async def read(visits: httpx.AsyncClient, path: str, status: int = 200, **query: Any) -> Any:
    response = await visits.get(f"/api{path}", params=query)
    assert response.status_code == status, response.text
    as_html = await visits.get(path, params=query)
    assert as_html.status_code in (status, 200), as_html.text  # a form is 200 before its preview
    return response.json()


async def make(visits: httpx.AsyncClient, path: str, status: int = 200, **form: Any) -> Any:
    response = await visits.post(f"/api{path}", json=form)
    assert response.status_code == status, response.text
    return response.json()


# --- settings -------------------------------------------------------------------------------------


async def test_a_live_setting_is_previewed_and_changed(
    visits: httpx.AsyncClient, cluster: ThreadedCluster, admin: AdminClient
) -> None:
    one, two = cluster.broker_addresses
    listed = (await read(visits, "/settings"))["servers"]
    assert {each["kind"] for each in listed} == {"broker", "name server"}
    found = await read(visits, "/settings/server", address=one, search="slaveTimeout")
    assert found["is_cometmq"]
    [row] = found["settings"]
    assert (row["value"], row["default"], row["is_default"], row["live"]) == (
        "3000", "3000", True, True,
    )  # fmt: skip
    assert row["description"].startswith("How long a send waits for slaves")
    assert row["refused"] == ""

    prefilled = await visits.get("/settings/change", params={"servers": [one, two]})
    assert f"{one}\n{two}</textarea>" in prefilled.text
    form = {"servers": f"{one}\n{two}", "key": "slaveTimeout", "value": "2500"}
    preview = (await visits.post("/settings/change", data=form)).text
    assert "Nothing was done yet" in preview
    assert {"3000", "2500"} <= set(re.findall(r"<td[^>]*>(\d+)</td>", preview))
    assert (await admin.broker_config(one))["slaveTimeout"] == "3000"
    [digest] = re.findall('name="previewed" value="(.*?)"', preview)
    done = (await visits.post("/settings/change", data={**form, "previewed": digest})).text
    assert "<strong>Done.</strong>" in done
    for address in (one, two):
        assert (await admin.broker_config(address))["slaveTimeout"] == "2500"
    changed = await read(visits, "/settings/server", address=one, only="changed")
    assert "slaveTimeout" in [each["key"] for each in changed["settings"]]
    live = await read(visits, "/settings/server", address=one, only="live")
    assert {each["live"] for each in live["settings"]} == {True}


async def test_a_setting_that_is_not_live_or_unknown_or_wrong_is_refused(
    visits: httpx.AsyncClient, cluster: ThreadedCluster, admin: AdminClient
) -> None:
    one, two = cluster.broker_addresses
    for key, value, text in (
        ("listenPort", "1", "listenPort is not live"),
        ("nosuch", "1", "there is no setting nosuch"),
        ("initAuthenticationUser", "{}", "is a secret"),
        ("slaveTimeout", "-1", "slaveTimeout=-1: expected"),
    ):
        refused = await visits.post(
            "/api/settings/change", json={"servers": [one, two], "key": key, "value": value}
        )
        assert refused.status_code in (400, 502), refused.text
        assert text in refused.json()["error"]
    assert "nothing was changed" in refused.json()["error"]
    unknown = await make(
        visits, "/settings/change", 404, servers=["127.0.0.1:1"], key="slaveTimeout"
    )
    assert "has no server 127.0.0.1:1" in unknown["error"]
    [names] = admin.name_servers
    row = (await read(visits, "/settings/server", address=names, search="listenPort"))["settings"][
        0
    ]
    assert (row["live"], row["refused"].startswith("listenPort is not live")) == (False, True)


# --- users and policies ---------------------------------------------------------------------------


async def test_users_and_policies_are_created_changed_and_deleted(
    visits: httpx.AsyncClient, cluster: ThreadedCluster, admin: AdminClient,
    tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    one, two = cluster.broker_addresses
    shown: list[str] = []

    async def made(path: str, **form: Any) -> str:
        response = await visits.post(path, data=form)
        shown.append(response.text)
        if digest := re.findall('name="previewed" value="(.*?)"', response.text):
            response = await visits.post(path, data={**form, "previewed": digest[0]})
            shown.append(response.text)
        return html.unescape(response.text)

    created = await made("/accounts/users/create", user="app", password=SECRET, type="Normal")
    assert "<strong>Done.</strong>" in created
    assert [each.password for each in await admin.users(one)] == [SECRET]
    [row] = (await read(visits, "/accounts", search="APP"))["users"]
    assert row == {"user": "app", "type": "Normal", "status": "enable", "brokers": []}
    again = await made("/accounts/users/create", user="app", password=SECRET, type="Normal")
    assert "no broker has the change" in again

    await made("/accounts/users/change", user="app", password=OTHER_SECRET, brokers=one)
    await made("/accounts/users/change", user="app", status="disable", brokers=two)
    assert [each.password for each in await admin.users(one)] == [OTHER_SECRET]
    rows = (await read(visits, "/accounts"))["users"]
    assert sorted((each["status"], each["brokers"]) for each in rows) == [
        ("disable", ["broker-1 0"]), ("enable", ["broker-0 0"]),
    ]  # fmt: skip
    assert "expected a new password" in await made("/accounts/users/change", user="app")

    policy = {"subject": "User:app", "resources": "Topic:orders\nGroup:*", "actions": "Pub\nSub"}
    assert "Nothing was done yet" in (await visits.post("/accounts/policies/set", data=policy)).text
    assert (await read(visits, "/accounts/policies"))["policies"] == []
    assert "<strong>Done.</strong>" in await made("/accounts/policies/set", **policy)
    await made("/accounts/policies/set", **policy | {"resources": "Topic:orders", "actions": "Sub"})
    rows = (await read(visits, "/accounts/policies", search="user:app"))["policies"]
    assert [(each["resource"], each["actions"], each["brokers"]) for each in rows] == [
        ("Group:*", ["Pub", "Sub"], []), ("Topic:orders", ["Sub"], []),
    ]  # fmt: skip
    wrong = await made("/accounts/policies/set", **policy | {"subject": "app"})
    assert "$.subject" in wrong
    await made("/accounts/policies/delete", subject="User:app", resource="Group:*")
    assert [
        each["resource"] for each in (await read(visits, "/accounts/policies"))["policies"]
    ] == ["Topic:orders"]

    preview = (await visits.post("/accounts/users/delete", data={"user": "app"})).text
    assert "Topic:orders" in preview
    await made("/accounts/users/delete", user="app")
    assert (await read(visits, "/accounts"))["users"] == []
    assert "there is no user app" in await made("/accounts/users/delete", user="app")
    prefilled = await visits.get("/accounts/users/create", params={"password": SECRET})
    schemas = (await visits.get("/api/openapi.json")).json()["components"]["schemas"]
    assert schemas["CreateUser"]["properties"]["password"]["writeOnly"] is True
    assert (
        "no broker 127.0.0.1:1"
        in (await read(visits, "/accounts", 404, broker="127.0.0.1:1"))["error"]
    )
    audit = (await visits.get("/audit")).text
    for text in (*shown, prefilled.text, audit, (tmp_path / "audit.log").read_text(), caplog.text):
        assert SECRET not in text
        assert OTHER_SECRET not in text
    done = [each["action"] for each in (await read(visits, "/audit"))["entries"]]
    assert done.count("accounts/users/create") == 4


async def test_plain_accounts_are_set_and_deleted(tmp_path: Path) -> None:
    home = home_with_accounts(tmp_path)
    settings = {"aclEnable": "true", "rocketmqHome": str(home)}
    with ThreadedCluster(settings=settings) as cluster:
        async with (
            AdminClient(
                cluster.name_servers, access_key="operations", secret_key=SECRETS["operations"]
            ) as admin,
            visitor(Console(admin, Options())) as visits,
        ):
            await make(
                visits, "/accounts/plain/set", access_key="new-service", secret_key=SECRET,
                topics=["orders=PUB"], topic_permission="DENY", white_address="10.0.0.9",
            )  # fmt: skip
            found = await read(visits, "/accounts/plain", search="new-s")
            [row] = found["accounts"]
            await make(visits, "/accounts/plain/set", access_key="new-service", secret_key=SECRET,
                       topics=["-"], administrator="yes", white_address="-")  # fmt: skip
            [later] = (await read(visits, "/accounts/plain", search="new-s"))["accounts"]
            await make(visits, "/accounts/plain/white-addresses", addresses=["10.1.0.1"])
            page = (await visits.get("/accounts/plain")).text
            await make(visits, "/accounts/plain/delete", access_key="new-service")
            left = (await read(visits, "/accounts/plain"))["accounts"]
            users = (await read(visits, "/accounts"))["asked"]["errors"]
    assert (row["topics"], row["topic_permission"], row["white_address"], row["administrator"]) == (
        ["orders=PUB"], "DENY", "10.0.0.9", False,
    )  # fmt: skip
    assert (later["topics"], later["white_address"], later["administrator"]) == ([], "", True)
    assert "from 10.1.0.1" in page
    assert SECRET not in page
    assert SECRETS["operations"] not in page
    assert [each["access_key"] for each in left] == ["operations", "order-service"]
    assert len(users) == 1


# --- static topics --------------------------------------------------------------------------------


async def test_a_static_topic_is_created_and_its_queues_move(
    visits: httpx.AsyncClient, cluster: ThreadedCluster, admin: AdminClient
) -> None:
    planned = await read(
        visits, "/topics/static/create", topic="parts", queues=4, brokers="broker-0"
    )
    assert planned == {
        "topic": "parts", "queues_now": 0, "queues_then": 4,
        "brokers": [{"broker": "broker-0", "leads_now": 0, "leads_then": 4}],
    }  # fmt: skip
    assert "parts" not in await admin.topics()
    await make(visits, "/topics/static/create", topic="parts", queues=4, brokers=["broker-0"])
    [row] = (await read(visits, "/topics/static", search="PART"))["topics"]
    assert (row["topic"], row["queues"], row["brokers"]) == ("parts", 4, ["broker-0"])
    async with Producer(cluster.name_servers, group="p") as producer:
        await producer.send(Message("parts", b"x"))

    moves = await read(visits, "/topics/static/move", topic="parts", brokers="broker-0\nbroker-1")
    assert moves["moves_total"] == 2
    assert {(each["source"], each["target"]) for each in moves["moves"]} == {
        ("broker-0", "broker-1")
    }
    assert (await read(visits, "/topics/static/topic", topic="parts"))["parts"][0]["leads"] == 4
    await make(visits, "/topics/static/move", topic="parts", brokers=["broker-0", "broker-1"])
    found = await read(visits, "/topics/static/topic", topic="parts")
    assert [each["leads"] for each in found["parts"]] == [2, 2]
    assert found["errors"] == []
    moved = [each for each in found["queues"] if each["leader"] == "broker-1"]
    assert [(each["items_total"], each["items"][0]["broker"]) for each in moved] == [
        (2, "broker-1")
    ] * 2
    error = await read(visits, "/topics/static/topic", 404, topic="nosuch")
    assert error["error"] == "there is no static topic nosuch"
    for name in ("TBW102", "%RETRY%parts", "broker-0"):
        refused = await make(visits, "/topics/static/create", 400, topic=name, queues=1)
        assert "is a name of the brokers" in refused["error"]
    refused = await make(visits, "/topics/static/move", 502, topic="parts", brokers=["nosuch"])
    assert "known are broker-0, broker-1" in refused["error"]


# --- cluster and controllers ----------------------------------------------------------------------


async def test_writing_to_a_broker_stops_and_resumes(
    visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    await admin.create_topic("writes", queues=1)

    async def writes() -> dict[str, bool]:
        route = await admin.route("writes")
        return {each.broker_name: bool(each.perm & 2) for each in route.queue_datas}

    planned = await read(visits, "/cluster/stop-writing", broker="broker-1")
    assert planned["broker"] == "broker-1"
    stopped = await make(visits, "/cluster/stop-writing", broker="broker-1")
    assert stopped["topics"] > 0
    assert await writes() == {"broker-0": True, "broker-1": False}
    await make(visits, "/cluster/resume-writing", broker="broker-1")
    assert await writes() == {"broker-0": True, "broker-1": True}
    refused = await make(visits, "/cluster/stop-writing", 404, broker="nosuch")
    assert refused["error"] == "no broker nosuch is registered"


async def test_a_master_is_elected_and_a_broker_that_is_gone_is_forgotten(pairs: Pairs) -> None:
    async with (
        listening_controller(EtcdStore(time.monotonic)) as controller,
        AdminClient(pairs.name_server.address) as admin,
    ):

        async def start(name: str) -> Broker:
            return await pairs.start(name, controllerAddr=controller.address, **FAST)

        async with visitor(Console(admin, Options())) as visits:

            async def replicas(*fields: str) -> list[tuple[Any, ...]]:
                found = await read(visits, "/cluster/controllers")
                rows = [each for one in found["sets"] for each in one["replicas"]]
                return [tuple(row[field] for field in fields) for row in rows]

            async def until_replicas(expected: list[tuple[Any, ...]], *fields: str) -> None:
                async def is_so() -> bool:
                    return await replicas(*fields) == expected

                await until(is_so)

            first, _ = await start("a"), await start("b")
            await until_replicas(
                [(1, "master", True, True), (2, "slave", True, True)],
                *("id", "role", "in_sync", "alive"),
            )
            [shown] = (await read(visits, "/cluster/controllers"))["controllers"]
            assert (shown["address"], shown["role"]) == (controller.address, "active")
            election = {"broker_set": "pair", "broker_id": 2}
            planned = await read(visits, "/cluster/controllers/elect", **election)
            assert planned["master_now"] == f"1 {first.address}"
            assert (planned["in_sync"], planned["alive"]) == (True, True)
            made = await make(visits, "/cluster/controllers/elect", **election)
            assert (made["master_id"], made["master_epoch"]) == (2, 2)
            await until_replicas([(1, "slave"), (2, "master")], "id", "role")

            details = await read(visits, "/cluster/broker", address=first.address)
            assert details["epochs"][-1]["epoch"] == 1
            servers = (await read(visits, "/settings"))["servers"]
            assert controller.address in [
                each["address"] for each in servers if each["kind"] == "controller"
            ]
            [row] = (
                await read(
                    visits, "/settings/server", address=controller.address,
                    search="enableElectUncleanMaster",
                )
            )["settings"]  # fmt: skip
            assert row["default"] == "false"

            gone = {"broker_set": "pair", "broker_ids": ["1"]}
            alive = await make(visits, "/cluster/controllers/forget", 400, **gone)
            assert "1 of pair is alive" in alive["error"]
            await pairs.stop(first)
            await until_replicas([(1, False), (2, True)], "id", "alive")
            await make(visits, "/cluster/controllers/forget", **gone)
            await until_replicas([(2, "master")], "id", "role")
            for path, form, status in (
                ("elect", {"broker_set": "nosuch", "broker_id": 1}, 404),
                ("elect", {"broker_set": "pair", "broker_id": 9}, 400),
                ("forget", {"broker_set": "pair", "broker_ids": ["x"]}, 400),
            ):
                await make(visits, f"/cluster/controllers/{path}", status, **form)


async def test_a_cluster_without_controllers_says_so(visits: httpx.AsyncClient) -> None:
    found = await read(visits, "/cluster/controllers")
    assert (found["controllers"], found["sets"], found["errors"]) == ([], [], [])
    refused = await make(
        visits, "/cluster/controllers/elect", 502, broker_set="broker-0", broker_id=1
    )
    assert "no broker names a controller" in refused["error"]


# --- the doctor -----------------------------------------------------------------------------------


async def test_the_checks_run_on_request(visits: httpx.AsyncClient) -> None:
    before = await read(visits, "/doctor")
    assert (before["state"], before["findings"]) == ("not run yet", [])
    found = (await visits.get("/api/doctor/run", params={"fine": True})).json()
    assert (found["state"], found["errors"]) == ("done", [])
    assert found["fine"] >= 3
    assert found["problems"] + found["warnings"] + found["fine"] == found["findings_total"]
    assert {"name-servers", "brokers", "versions"} <= {each["check"] for each in found["findings"]}
    levels = [each["level"] for each in found["findings"]]
    assert levels == sorted(levels, key=("problem", "warning", "fine").index)
    later = await read(visits, "/doctor")
    assert {each["level"] for each in later["findings"]} <= {"problem", "warning"}


async def test_one_run_at_a_time_which_ends(admin: AdminClient) -> None:
    begun, release, runs = asyncio.Event(), asyncio.Event(), 0

    async def checks(_admin: AdminClient, _seconds: float) -> Sequence[Finding]:
        nonlocal runs
        runs += 1
        begun.set()
        await release.wait()
        return [Finding("a", "problem", "x", "y"), Finding("b", "fine", "x", "z")]

    doctor = Doctor(admin, checks)
    both = [asyncio.create_task(doctor.run()) for _ in range(2)]
    await begun.wait()
    assert doctor.shown(fine=True).state == "running"
    release.set()
    await asyncio.gather(*both)
    found = doctor.shown(fine=False)
    assert (runs, found.state, found.problems, found.fine) == (1, "done", 1, 1)
    assert [each.check for each in found.findings] == ["a"]

    release.clear()
    slow = Doctor(admin, checks, run_s=0.01)
    await slow.run()
    found = slow.shown(fine=False)
    assert (found.state, "did not end within 0.01 s" in found.errors[0]) == ("failed", True)
    begun.clear()
    cut = asyncio.create_task(doctor.run())
    await begun.wait()
    await doctor.close()
    await cut


async def test_a_defect_of_the_checks_is_shown(admin: AdminClient) -> None:
    async def checks(_admin: AdminClient, _seconds: float) -> Sequence[Finding]:
        raise ValueError("a defect")

    doctor = Doctor(admin, checks)
    await doctor.run()
    found = doctor.shown(fine=False)
    assert (found.state, found.errors) == ("failed", ["ValueError: a defect"])


# --- roles ----------------------------------------------------------------------------------------


async def test_accounts_settings_and_elections_are_for_administrators(
    admin: AdminClient, tmp_path: Path
) -> None:
    add_user(tmp_path / "users", "ada", Role.OPERATOR, PASSWORD)
    console = Console(admin, Options(users=tmp_path / "users", examine=examine))
    of_administrators = {
        each.path
        for each in (*console.pages, *console.changes)
        if each.path.startswith(("/accounts", "/settings/change", "/cluster/controllers/"))
    }
    assert len(of_administrators) == 14
    async with visitor(console, SIGNED_IN) as visits:
        await visits.post("/api/session", json={"user": "ada", "password": PASSWORD})
        for path in of_administrators:
            assert (await visits.get(path)).status_code == 403, path
        for change in console.changes:
            if change.path in of_administrators:
                assert (await visits.post(change.api, json={})).status_code == 403, change.path
                if change.preview:
                    assert (await visits.get(change.api)).status_code == 403, change.path
        page = (await visits.get("/settings")).text
        assert ">Accounts<" not in page
        assert (await visits.get("/doctor/run")).status_code == 200
        users = tmp_path / "users"
        users.write_text(users.read_text().replace("operator", "reader"))
        assert (await visits.get("/doctor/run")).status_code == 403
        assert "Run the checks" not in (await visits.get("/doctor")).text
    async with visitor(Console(admin, Options(read_only=True, examine=examine))) as visits:
        assert (await visits.post("/api/settings/change", json={})).status_code == 404
        assert (await visits.get("/doctor/run")).status_code == 200  # it changes nothing
    assert json.loads((tmp_path / "audit.log").read_text().splitlines()[0])["action"] == "sign-in"
