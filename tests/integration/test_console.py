"""The console over a cluster: each page as HTML and as JSON, sign-in, and the command."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
import pytest

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom, blocking
from cometmq.console import cluster as cluster_page
from cometmq.console.access.sessions import ATTEMPTS_MAX
from cometmq.console.access.users import add_user
from cometmq.console.app import Console, Options, check
from cometmq.console.changes import Change
from cometmq.console.forms import Form
from cometmq.console.live import TooManyViewersError
from cometmq.console.overview import lags
from cometmq.console.overview.samples import VIEWERS_MAX, Samples
from cometmq.console.pages import Role
from cometmq.console.reads import Reads
from cometmq.console.server import Server
from cometmq.model.errors import ConfigError
from cometmq.model.namespace import is_system_group
from cometmq.protocol.message_id import encode_offset_id
from cometmq.testing import ThreadedCluster
from support.brokers.certificates import Authority
from support.checks.waiting import until, wait_until

PASSWORD = "correct horse battery"
HOSTILE = "<script>alert(1)</script>"
TOPICS = 60
ORIGIN = "http://127.0.0.1:8082"
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    """A cluster with messages, a group with lag, and a group with a dead letter."""
    with ThreadedCluster() as running:
        _fill(running.name_servers)
        yield running


def _fill(name_servers: str) -> None:
    with blocking.AdminClient(name_servers) as admin:
        for number in range(TOPICS):
            admin.create_topic(f"many-{number:02}", queues=1)
        admin.create_topic("orders", queues=2)
        admin.create_static_topic("parts", 2)
    with blocking.Producer(name_servers, group="shop") as producer:
        for number in range(10):
            body = json.dumps({"order": number, "name": HOSTILE}).encode()
            producer.send(Message("orders", body, tags="new", keys=[f"order-{number}"]))
        producer.send(
            Message(
                "books", HOSTILE.encode(), tags="<i>", keys=[HOSTILE], properties={"note": "<u>x"}
            )
        )

    def fail(message: object) -> None:
        raise ValueError(f"cannot book {HOSTILE}")

    with (
        blocking.PushConsumer(
            name_servers, group="ledger", subscriptions={"books": "*"}, handler=fail,
            start_from=StartFrom.FIRST, retries_max=0,
        ),
        blocking.AdminClient(name_servers) as admin,
    ):  # fmt: skip
        wait_until(lambda: bool(admin.dead_letters("ledger").letters), timeout=LIMIT_S)


@pytest.fixture
async def admin(cluster: ThreadedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_servers) as running:
        yield running


def visitor(
    console: Console, origin: str = ORIGIN, address: str = "127.0.0.1"
) -> httpx.AsyncClient:
    """A browser without a script, which keeps cookies."""
    transport = httpx.ASGITransport(console.app, client=(address, 123))
    return httpx.AsyncClient(transport=transport, base_url=origin)


@pytest.fixture
async def visits(admin: AdminClient) -> AsyncIterator[httpx.AsyncClient]:
    """A visitor of a console without sign-in."""
    console = Console(admin, Options())
    await console.samples.take()
    async with visitor(console) as client:
        yield client


async def read(visits: httpx.AsyncClient, path: str, status: int = 200, **query: Any) -> Any:
    response = await visits.get(f"/api{path}", params=query)
    assert response.status_code == status, response.text
    return response.json()


async def test_each_page_has_the_same_as_html_and_as_json(
    admin: AdminClient, cluster: ThreadedCluster
) -> None:
    console = Console(admin, Options())
    await console.samples.take()
    [broker] = {each.address for each in (await admin.cluster_info()).registered()}
    [queue] = [each for each in await admin.queue_bounds("books") if each.queue_id == 0]
    found = (await admin.dead_letters("ledger")).letters[0].message
    place = {
        "topic": found.topic, "broker": queue.broker_name, "queue": found.queue_id,
        "offset": found.queue_offset,
    }  # fmt: skip
    parameters: dict[str, dict[str, Any]] = {
        "/topics/topic": {"topic": "orders"},
        "/topics/groups": {"topic": "books"},
        "/topics/tail": {"topic": "orders"},
        "/groups/group": {"group": "ledger"},
        "/groups/member": {"group": "readers", "client": "127.0.0.1@reader", "stacks": "true"},
        "/messages/by-time": {"topic": "books"},
        "/messages/message": place,
        "/messages/groups": place,
        "/messages/trace": {"id": found.message_id, "trace_topic": "books"},
        "/dead-letters/group": {"group": "ledger"},
        "/dead-letters/reasons": {"group": "ledger"},
        "/timers/broker": {"broker": queue.broker_name},
        "/timers/level": {"broker": queue.broker_name, "level": 3},
        "/timers/find": {"topic": "books", "key": "x"},
        "/cluster/broker": {"address": broker},
        "/settings/server": {"address": broker},
        "/topics/static/topic": {"topic": "parts"},
    }  # fmt: skip

    async def handle(message: object) -> None: ...

    reader = PushConsumer(
        cluster.name_servers, group="readers", subscriptions={"orders": "*"}, handler=handle,
        client_ip="127.0.0.1", instance_name="reader",
    )  # fmt: skip
    async with reader, visitor(console) as visits:
        schema = (await visits.get("/api/openapi.json")).json()
        assert schema["security"] == []
        apis = {each.api for each in (*console.pages, *console.changes, *console.downloads)}
        assert apis == schema["paths"].keys()
        names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema))
        assert set(names) <= schema["components"]["schemas"].keys()
        operations = [each for path in schema["paths"].values() for each in path.values()]
        assert len({each["operationId"] for each in operations}) == len(operations)
        for page in console.pages:
            query = parameters.get(page.path, {})
            operation = schema["paths"][page.api]["get"]
            assert {each["name"] for each in operation["parameters"]} >= query.keys()
            as_json = await visits.get(page.api, params=query)
            assert as_json.status_code == 200, (page.path, as_json.text)
            msgspec.json.decode(as_json.content, type=page.result)
            as_html = await visits.get(page.path, params=query)
            assert as_html.status_code == 200, (page.path, as_html.text)
            assert f'<a href="{page.path}" aria-current="page"' in as_html.text or not page.is_tab
            assert HOSTILE not in as_html.text
            policy = as_html.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            # With no-referrer browsers send forms with Origin: null, which is another site.
            assert as_html.headers["referrer-policy"] == "same-origin"
        for change in console.changes:
            form = await visits.get(change.path)
            assert (form.status_code, f'action="{change.path}"' in form.text) == (200, True)


async def test_topics_are_searched_and_paged(visits: httpx.AsyncClient) -> None:
    first = await read(visits, "/topics", search="MANY-")
    second = await read(visits, "/topics", search="MANY-", page=2)
    assert first["paging"] == {"total": TOPICS, "page": 1, "pages": 2}
    names = [each["topic"] for each in first["topics"] + second["topics"]]
    assert names == [f"many-{number:02}" for number in range(TOPICS)]
    assert first["topics"][0]["queues"] == 1
    page = (await visits.get("/topics", params={"search": "many-"})).text
    assert 'rel="next" href="?search=many-&amp;type=application&amp;page=2"' in page

    types = {each["type"] for each in (await read(visits, "/topics", type="all"))["topics"]}
    assert types > {"application", "dead letters"}
    own = {each["topic"] for each in (await read(visits, "/topics", search="o"))["topics"]}
    assert own == {"orders", "books"}


async def test_a_topic_has_its_queues_settings_and_groups(visits: httpx.AsyncClient) -> None:
    found = await read(visits, "/topics/topic", topic="books")
    assert (found["messages"], found["groups"], found["errors"]) == (1, ["ledger"], [])
    [broker] = found["brokers"]
    assert broker["permission"] == "read and write"
    assert broker["settings"]["topicName"] == "books"
    assert found["paging"]["total"] == broker["write_queues"]


async def test_a_group_has_its_members_subscriptions_and_lag(
    visits: httpx.AsyncClient, admin: AdminClient, cluster: ThreadedCluster
) -> None:
    consumed, release = asyncio.Event(), asyncio.Event()

    async def handle(message: object) -> None:
        consumed.set()
        await release.wait()

    async def lag() -> int:
        response = await visits.get("/api/groups/group", params={"group": "billing"})
        return int(response.json()["lag"])

    async with PushConsumer(
        cluster.name_servers, group="billing", subscriptions={"orders": "new"}, handler=handle,
        start_from=StartFrom.FIRST,
    ):  # fmt: skip
        await asyncio.wait_for(consumed.wait(), LIMIT_S)

        async def all_behind() -> bool:
            return await lag() == 10

        await until(all_behind, timeout=LIMIT_S)
        found = await read(visits, "/groups/group", group="billing")
        [member] = found["members"]
        assert member["address"].startswith("127.0.0.1:")
        assert (member["language"], member["differs"]) == ("PYTHON", [])
        assert found["subscriptions"] == [{"topic": "orders", "type": "TAG", "expression": "new"}]
        late = [each for each in found["queues"] if each["lag"]]
        assert sum(each["lag"] for each in late) == 10
        assert {each["topic"] for each in late} == {"orders"}
        assert all(each["oldest_age_ms"] >= 0 for each in late)
        async with visitor(Console(admin, Options())) as later:  # lists are kept for seconds
            [row] = (await read(later, "/groups", search="bill"))["groups"]
        assert row == {
            "group": "billing",
            "members": 1,
            "mode": "clustering",
            "type": "push",
            "version": found["members"][0]["version"],
            "lag": 10,
            "error": "",
        }
        release.set()


async def test_messages_are_found_by_id_key_and_offset(
    visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    [row] = (await read(visits, "/messages", topic="orders", key="order-7"))["messages"]
    [same] = (await read(visits, "/messages", topic="orders", id=row["id"]))["messages"]
    place = {name: row[name] for name in ("topic", "broker", "queue", "offset")}
    found = await read(visits, "/messages/message", **place)
    [again] = (await read(visits, "/messages", id=found["offset_message_id"]))["messages"]
    assert row == same == again == found["row"]
    assert found["properties"]["KEYS"] == "order-7"
    assert json.loads(found["body"]["text"]) == {"order": 7, "name": HOSTILE}
    as_hex = await read(visits, "/messages/message", **place, format="hex")
    assert as_hex["body"]["text"].startswith("00000000  7b 22 6f")

    page = (await visits.get("/messages/message", params=place)).text
    assert html.escape(HOSTILE) in page
    assert HOSTILE not in page


async def test_an_id_never_makes_the_console_connect_elsewhere(visits: httpx.AsyncClient) -> None:
    async with await asyncio.start_server(
        lambda *_: pytest.fail("connected"), "127.0.0.1", 0
    ) as it:
        host, port = it.sockets[0].getsockname()
        foreign = encode_offset_id(socket.inet_aton(host) + struct.pack(">i", port), 0)
        error = await read(visits, "/messages", 404, id=foreign)
        assert f"{host}:{port}, which is not registered" in error["error"]
        error = await read(visits, "/cluster/broker", 404, address=f"{host}:{port}")
        assert "no broker" in error["error"]


async def test_dead_letters_are_listed_with_their_reason(visits: httpx.AsyncClient) -> None:
    [group] = (await read(visits, "/dead-letters"))["groups"]
    assert (group["group"], group["letters"], group["error"]) == ("ledger", 1, "")
    found = await read(visits, "/dead-letters/group", group="ledger")
    [letter] = found["letters"]
    assert (letter["original_topic"], letter["keys"]) == ("books", [HOSTILE])
    assert letter["reason"].endswith(f"cannot book {HOSTILE}")
    assert (found["rest"], found["rest_letters"]) == ("", 0)
    rest = f"{letter['broker']}/{letter['queue']}/{letter['offset'] + 1}-{letter['offset'] + 2}"
    later = await read(visits, "/dead-letters/group", group="ledger", rest=rest)
    assert later["letters"] == []


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/topics/topic?topic=missing", 404, "there is no topic missing"),
        ("/groups/group?group=missing", 404, "there is no group missing"),
        ("/messages?topic=missing&key=a", 404, "there is no topic missing"),
        ("/messages?key=a", 400, "topic is missing"),
        ("/messages?topic=a&key=a&id=b", 400, "expected one of them"),
        ("/messages/message?topic=orders&broker=x&queue=0&offset=0", 404, "orders"),
        ("/dead-letters/group?group=ledger&rest=x", 400, "rest: expected"),
        ("/topics?page=x", 400, "page"),
        ("/topics?seite=1", 400, "unknown parameter seite"),
        ("/nothing", 404, "Not Found"),
    ],
)
async def test_a_wrong_address_says_what_to_correct(
    visits: httpx.AsyncClient, path: str, status: int, text: str
) -> None:
    as_json, as_html = await visits.get(f"/api{path}"), await visits.get(path)
    assert (as_json.status_code, as_html.status_code) == (status, status)
    assert text in as_json.json()["error"]
    assert text in html.unescape(as_html.text)
    assert 'role="alert"' in as_html.text


async def test_a_cluster_that_does_not_respond_is_an_error_of_the_cluster() -> None:
    async with AdminClient("127.0.0.1:1") as admin:
        console = Console(admin, Options())
        await console.samples.take()
        async with visitor(console) as visits:
            assert (await visits.get("/topics")).status_code == 502
            overview = await read(visits, "/overview")
            assert "name servers: " in overview["alarms"][0]


async def test_names_of_other_hosts_are_refused_without_users(admin: AdminClient) -> None:
    async with visitor(Console(admin, Options()), "http://rebound.example:8082") as visits:
        assert (await visits.get("/cluster")).status_code == 421
        for host in ("[::1", "127.0.0.1.example", "", "127.0.0.1:x@rebound.example"):
            refused = await visits.get("/cluster/", headers={"host": host})
            assert refused.status_code == 421, host


def test_the_console_without_users_is_for_loopback_only(tmp_path: Path) -> None:
    check(Options("127.0.0.1"))
    check(Options("::1"))
    check(Options("0.0.0.0", users=tmp_path))
    for options in (
        Options("0.0.0.0"),
        Options("console.example"),
        Options(key=tmp_path),
    ):
        with pytest.raises(ConfigError, match="expected"):
            check(options)


# --- sign-in --------------------------------------------------------------------------------------


@pytest.fixture
async def guarded(admin: AdminClient, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A visitor of a console with users."""
    users = tmp_path / "users"
    add_user(users, "ada", Role.READER, PASSWORD)
    async with visitor(Console(admin, Options(users=users)), "http://console.example") as client:
        yield client


def token_in(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found
    return found[1]


async def sign_in(visits: httpx.AsyncClient, password: str, following: str = "/") -> httpx.Response:
    form = await visits.get("/sign-in", params={"next": following})
    fields = {
        "user": "ada", "password": password, "form_token": token_in(form.text), "next": following,
    }  # fmt: skip
    return await visits.post("/sign-in", data=fields)


def audited(tmp_path: Path) -> list[tuple[str, str, str, str]]:
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    return [(each["user"], each["address"], each["action"], each["result"]) for each in lines]


async def test_a_visitor_signs_in_and_out(guarded: httpx.AsyncClient, tmp_path: Path) -> None:
    asked = await guarded.get("/topics?search=a")
    assert (asked.status_code, asked.headers["location"]) == (
        303, "/sign-in?next=%2Ftopics%3Fsearch%3Da",
    )  # fmt: skip
    assert (await guarded.get("/api/topics")).status_code == 401
    assert (await guarded.get("/overview/events")).status_code == 303
    assert (await guarded.get("/static/console.css")).status_code == 200

    wrong = await sign_in(guarded, "wrong")
    assert (wrong.status_code, "wrong." in wrong.text) == (403, True)
    assert PASSWORD not in wrong.text
    right = await sign_in(guarded, PASSWORD, "/topics?search=many-01")
    assert (right.status_code, right.headers["location"]) == (303, "/topics?search=many-01")
    cookie = next(each for each in right.headers.get_list("set-cookie") if "session=" in each)
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    page = await guarded.get("/topics?search=many-01")
    assert page.status_code == 200
    assert "many-01" in page.text

    out = await guarded.post("/sign-out", data={"form_token": "x"})
    assert out.status_code == 403
    out = await guarded.post("/sign-out", data={"form_token": token_in(page.text)})
    assert out.status_code == 303
    assert (await guarded.get("/api/topics")).status_code == 401
    assert audited(tmp_path) == [
        ("ada", "127.0.0.1", "sign-in", "refused"),
        ("ada", "127.0.0.1", "sign-in", "done"),
        ("ada", "127.0.0.1", "sign-out", "done"),
    ]


async def test_programs_sign_in_with_json(guarded: httpx.AsyncClient) -> None:
    given = {"user": "ada", "password": PASSWORD}
    assert (await guarded.post("/api/session", data=given)).status_code == 415
    for wrong in ('{"user":"ada"}', '{"user":"a","password":"x","x":' + "[" * 4_000):
        headers = {"content-type": "application/json"}
        refused = await guarded.post("/api/session", content=wrong, headers=headers)
        assert refused.status_code == 400
    assert (await guarded.post("/api/session", json=given | {"password": "x"})).status_code == 403
    assert (await guarded.post("/api/session", json=given)).json().keys() == {"form_token"}
    assert (await guarded.get("/api/topics")).status_code == 200
    schema = (await guarded.get("/api/openapi.json")).json()
    assert schema["security"] == [{"session": []}]
    assert schema["paths"]["/api/session"]["post"]["security"] == []
    assert schema["components"]["schemas"]["Credentials"]["required"] == ["user", "password"]


async def test_a_sign_in_leads_to_no_other_site(guarded: httpx.AsyncClient) -> None:
    for following in ("//evil.example/", "https://evil.example/", "/\\evil.example", "/nothing"):
        response = await sign_in(guarded, PASSWORD, following)
        assert response.headers["location"] == "/", following


async def test_forms_of_other_sites_are_refused(guarded: httpx.AsyncClient, tmp_path: Path) -> None:
    form = await guarded.get("/sign-in")
    fields = {"user": "ada", "password": PASSWORD, "form_token": token_in(form.text)}
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        response = await guarded.post("/sign-in", data=fields, headers=headers)
        assert (response.status_code, "set-cookie" in response.headers) == (403, False)
    guarded.cookies.clear()
    assert (await guarded.post("/sign-in", data=fields)).status_code == 403
    assert (await guarded.post("/sign-in", content=b"x" * 10_000)).status_code == 413
    assert audited(tmp_path) == []


async def test_attempts_to_sign_in_have_a_limit(admin: AdminClient, tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ada", Role.READER, PASSWORD)
    console = Console(admin, Options(users=tmp_path / "users"))
    of_bob = {"user": "bob", "password": "x"}
    async with visitor(console) as one, visitor(console, address="192.0.2.7") as other:
        for _ in range(ATTEMPTS_MAX):
            assert (await sign_in(one, "wrong")).status_code == 403
        for _ in range(2):
            refused = await sign_in(one, PASSWORD)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
        for _ in range(ATTEMPTS_MAX):  # they use up the attempts for no other user
            assert (await one.post("/api/session", json=of_bob)).status_code == 429
        assert (await other.post("/api/session", json=of_bob)).status_code == 403
    assert audited(tmp_path)[ATTEMPTS_MAX:] == [
        ("ada", "127.0.0.1", "sign-in", "too many attempts"),
        ("bob", "192.0.2.7", "sign-in", "refused"),
    ]


async def test_a_removed_user_and_one_with_another_password_are_signed_out(
    guarded: httpx.AsyncClient, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    await sign_in(guarded, PASSWORD)
    assert (await guarded.get("/api/cluster")).status_code == 200
    users.write_text("# nobody\n")
    assert (await guarded.get("/api/cluster")).status_code == 401
    add_user(users, "ada", Role.READER, PASSWORD)  # with another hash, as another password has
    assert (await guarded.get("/api/cluster")).status_code == 401


async def test_a_page_above_the_role_of_a_user_is_refused(
    admin: AdminClient, tmp_path: Path
) -> None:
    add_user(tmp_path / "users", "ada", Role.READER, PASSWORD)
    [page] = [each for each in cluster_page.PAGES if each.path == "/cluster"]
    pages = [
        page._replace(path=f"/for-{role.name.lower()}s", role=role, is_tab=False) for role in Role
    ]
    console = Console(admin, Options(users=tmp_path / "users"), pages)
    async with visitor(console, "http://console.example") as visits:
        await sign_in(visits, PASSWORD)
        found, line = {}, (tmp_path / "users").read_text()
        for role in Role:
            (tmp_path / "users").write_text(line.replace("reader", role.name.lower()))
            found[role] = [(await visits.get(each.path)).status_code for each in pages]
            apis = [(await visits.get(each.api)).status_code for each in pages]
            assert apis == found[role]
    assert found == {
        Role.READER: [200, 403, 403],
        Role.OPERATOR: [200, 200, 403],
        Role.ADMINISTRATOR: [200, 200, 200],
    }


# --- live figures and the command -----------------------------------------------------------------


async def test_viewers_of_live_figures_get_each_sample_and_have_a_bound(
    admin: AdminClient,
) -> None:
    samples = Samples(Reads(admin))
    await samples.take()
    async with AsyncExitStack() as stack:
        viewers = [await stack.enter_async_context(samples.viewer()) for _ in range(VIEWERS_MAX)]
        with pytest.raises(TooManyViewersError, match="expected fewer"):
            await stack.enter_async_context(samples.viewer())
        first = await anext(viewers[0])
        waiting = asyncio.ensure_future(anext(viewers[0]))
        await samples.take()
        second = await waiting
        assert (len(first.history), len(second.history)) == (1, 2)
        assert [each.role for each in second.brokers] == ["master"]
    async with samples.viewer():
        pass


async def test_the_overview_has_the_groups_with_the_greatest_lag(
    admin: AdminClient, cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few groups are read for a sample: those with a lag again, and the others in turn."""
    names = [f"late-{number}" for number in range(5)]
    [queue] = await admin.queue_bounds("many-00")
    async with Producer(cluster.name_servers, group="shop") as producer:
        for _ in range(3):
            await producer.send(Message("many-00", b"x"))
    for name in names:
        await admin.create_group(name)
    [address] = [each.address for each in await Reads(admin).masters()]
    for number, name in enumerate(names[:3]):
        await admin.commit_offset(address, name, queue, number)
    monkeypatch.setattr(lags, "REQUESTS_MAX", 4)
    samples = lags.LagSamples(Reads(admin))
    first = await samples.take()
    assert (first.read, first.lag) == (4, None)
    total = len([each for each in await admin.groups() if not is_system_group(each)])
    while (found := await samples.take()).read < total:
        pass
    shown = {each.group: each.lag for each in found.worst}
    assert {name: shown[name] for name in names[:3]} == {"late-0": 3, "late-1": 2, "late-2": 1}
    assert list(shown.values()) == sorted(shown.values(), reverse=True)
    assert found.lag == sum(shown.values())
    assert (found.groups, found.errors, found.alarms) == (total, 0, [])

    monkeypatch.setattr(lags, "REQUESTS_MAX", 10 * total)
    monkeypatch.setattr(lags, "STUCK_MS", 0)
    await admin.commit_offset(address, "late-0", queue, 3)
    found = await samples.take()
    assert "late-0" not in f"{found.alarms} {found.worst}"
    assert "group late-1 has a lag of 2 and has consumed nothing for 0 minutes" in str(found.alarms)


async def test_what_the_console_cannot_use_is_named(admin: AdminClient, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    with socket.create_server(("127.0.0.1", 0)) as other:
        wrong = {
            f"127.0.0.1:{other.getsockname()[1]}: Address already in use": Options(
                port=other.getsockname()[1]
            ),
            "missing.pem": Options(certificate=tmp_path / "missing.pem", key=broken),
            "broken.pem": Options(certificate=broken, key=broken),
            "console-user": Options(users=tmp_path / "users"),
        }
        for text, options in wrong.items():
            with pytest.raises(ConfigError, match=f"{re.escape(text)}.*"):
                Server(admin, options)


def test_a_standalone_server_shows_itself_on_loopback_if_asked_to(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "cometmq", "standalone", "--namesrv-port", "0"),
        *("--broker-port", "0", "--store", str(tmp_path / "store"), "--console"),
    ]

    def start(port: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, "--console-port", str(port)],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    with start(0) as process:
        limit = threading.Timer(LIMIT_S, process.kill)  # ends each read of its output
        limit.start()
        try:
            assert process.stdout is not None
            ready, _, console = (process.stdout.readline() for _ in range(3))
            name_servers = re.match(r"ready namesrv=(\S+) ", ready)
            address = re.fullmatch(r"console (http://127\.0\.0\.1:(\d+)/)\n", console)
            assert name_servers
            assert address, console
            with httpx.Client(base_url=address[1], timeout=LIMIT_S) as visits:
                assert "Overview" in visits.get("/").text
                [row] = visits.get("/api/overview").json()["brokers"]
                assert (row["role"], row["error"]) == ("master", "")
                servers = visits.get("/api/cluster").json()["name_servers"]
                assert servers == [name_servers[1]]
                with visits.stream("GET", "/overview/events") as events:
                    lines = events.iter_lines()
                    assert next(lines).startswith("data: ")
                    process.send_signal(signal.SIGTERM)
                    assert list(lines)[-1] == ""
            assert process.wait(LIMIT_S) == 0
        finally:
            limit.cancel()
            process.kill()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with start(port) as late:
            _, errors = late.communicate(timeout=LIMIT_S)
    assert (late.returncode, f"127.0.0.1:{port}: Address already in use" in errors) == (2, True)


def test_the_command_serves_live_figures_until_sigterm(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    made = subprocess.run(
        [sys.executable, "-m", "cometmq", "console-user", "ada", "--users", str(users)],
        input=f"{PASSWORD}\n", text=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert (made.returncode, made.stderr) == (0, "")
    authority = Authority(tmp_path, "authority")
    certificate, key = map(str, authority.issue("console"))
    command = [
        *("console", "-n", cluster.name_servers, "--port", "0", "--users", str(users)),
        *("--certificate", certificate, "--key", key),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "cometmq", *command],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    limit = threading.Timer(LIMIT_S, process.kill)  # ends each read of its output
    limit.start()
    try:
        assert process.stdout is not None
        ready = re.fullmatch(
            r"console ready at (https://127.0.0.1:\d+)/ \(sign-in by users\)\n",
            process.stdout.readline(),
        )
        assert ready
        trusted = ssl.create_default_context(cafile=authority.file)
        with httpx.Client(base_url=ready[1], timeout=LIMIT_S, verify=trusted) as visits:
            session = visits.post("/api/session", json={"user": "ada", "password": PASSWORD})
            assert session.status_code == 200
            assert "; Secure" in session.headers["set-cookie"]
            assert "max-age" in session.headers["strict-transport-security"]
            with visits.stream("GET", "/overview/events") as events:
                assert events.headers["content-type"].startswith("text/event-stream")
                lines = events.iter_lines()
                assert next(lines).startswith("data: ")
                process.send_signal(signal.SIGTERM)
                rest = list(lines)
        assert rest[-1] == ""
        output, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, output, errors) == (0, "", "")
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


class NewTopic(Form):
    topic: Annotated[str, msgspec.Meta(min_length=1)]
    queues: int = 1
    secret: Annotated[str, msgspec.Meta(extra={"secret": True})] = ""


class Told(msgspec.Struct):
    topic: str
    queues: int


async def tell(_reads: Reads, form: NewTopic) -> Told:
    return Told(form.topic, form.queues)


async def create(reads: Reads, form: NewTopic) -> Told:
    await reads.admin.create_topic(form.topic, queues=form.queues)
    return Told(form.topic, form.queues)


CHANGE = Change(
    "/topics/made", "Make a topic", NewTopic, create, Told,
    preview=tell, previewed=Told, back=lambda form: f"/topics/topic?topic={form.topic}",
)  # fmt: skip


async def test_a_change_is_previewed_made_and_logged(admin: AdminClient, tmp_path: Path) -> None:
    console = Console(admin, Options(audit_log=tmp_path / "audit.log"), more_changes=[CHANGE])
    async with visitor(console) as visits:
        form = (await visits.get("/topics/made", params={"topic": "made"})).text
        assert 'name="topic" value="made" required' in form
        assert ">Preview</button>" in form
        sent = {"topic": "made", "queues": "2", "secret": "hush"}
        preview = (await visits.post("/topics/made", data=sent)).text
        assert "Nothing was done yet" in preview
        assert "hush" not in preview
        assert "made" not in await admin.topics()
        [digest] = re.findall('name="previewed" value="(.*?)"', preview)

        other = await visits.post("/topics/made", data={**sent, "queues": "3", "previewed": digest})
        assert "Nothing was done yet" in other.text
        done = (await visits.post("/topics/made", data={**sent, "previewed": digest})).text
        assert "<strong>Done.</strong>" in done
        assert 'href="/topics/topic?topic=made"' in done
        assert len(await admin.queue_bounds("made")) == 2

        wrong = await visits.post("/topics/made", data={"topic": "", "queues": "2"})
        assert (wrong.status_code, "topic" in wrong.text) == (400, True)
        lines = (await visits.get("/api/audit", params={"search": "topics/made"})).json()
        assert [each["result"] for each in lines["entries"]] == ["done", "begun"]
        assert lines["entries"][0]["values"] == {"topic": "made", "queues": "2"}
        assert "hush" not in (tmp_path / "audit.log").read_text()


async def test_a_change_is_made_by_json(admin: AdminClient) -> None:
    console = Console(admin, Options(), more_changes=[CHANGE])
    async with visitor(console) as visits:
        preview = await visits.get("/api/topics/made", params={"topic": "json-made"})
        assert preview.json() == {"topic": "json-made", "queues": 1}
        made = await visits.post("/api/topics/made", json={"topic": "json-made", "queues": 3})
        assert made.json() == {"topic": "json-made", "queues": 3}
        for body, status in (({"topics": "x"}, 400), ({"topic": "a b/"}, 400)):
            refused = await visits.post("/api/topics/made", json=body)
            assert (refused.status_code, bool(refused.json()["error"])) == (status, True)
        form = await visits.post("/api/topics/made", data={"topic": "x"})
        assert form.status_code == 415
        elsewhere = await visits.post(
            "/api/topics/made", json={"topic": "x"}, headers={"origin": "http://evil.example"}
        )
        assert elsewhere.status_code == 403
        schema = (await visits.get("/api/openapi.json")).json()["paths"]["/api/topics/made"]
        assert schema.keys() == {"get", "post"}
        results = [each["result"] for each in (await visits.get("/api/audit")).json()["entries"]]
        assert results[0].startswith("failed: ")
        assert results[1:] == ["begun", "done", "begun"]


async def test_a_change_needs_its_role_its_form_and_a_log(
    admin: AdminClient, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    add_user(users, "ada", Role.READER, PASSWORD)
    add_user(users, "bob", Role.OPERATOR, PASSWORD)
    console = Console(admin, Options(users=users), more_changes=[CHANGE])
    sent = {"topic": "of-bob"}
    async with visitor(console) as visits:
        await visits.post("/api/session", json={"user": "ada", "password": PASSWORD})
        for refused in (
            await visits.get("/topics/made"), await visits.post("/topics/made", data=sent),
            await visits.post("/api/topics/made", json=sent), await visits.get("/audit"),
        ):  # fmt: skip
            assert refused.status_code == 403
        for change in console.changes:
            asked = [
                await visits.get(change.path), await visits.post(change.path),
                await visits.post(change.api, json={}),
                *([await visits.get(change.api)] if change.preview else []),
            ]  # fmt: skip
            assert {each.status_code for each in asked} == {403}, change.path
        assert ">Audit<" not in (await visits.get("/topics")).text
    refusals = audited(tmp_path)[1:]
    assert len(refusals) == ATTEMPTS_MAX
    reason = "expected the role operator or higher: ada has the role reader"
    assert refusals[:2] == 2 * [("ada", "127.0.0.1", "topics/made", f"refused: {reason}")]
    async with visitor(console) as visits:
        await visits.post("/api/session", json={"user": "bob", "password": PASSWORD})
        refused = await visits.post("/topics/made", data={**sent, "form_token": "of another"})
        assert (refused.status_code, "another session" in refused.text) == (403, True)
        (tmp_path / "audit.log").unlink()
        (tmp_path / "audit.log").mkdir()
        refused = await visits.post("/api/topics/made", json=sent)
        assert (refused.status_code, "audit log" in refused.json()["error"]) == (502, True)
        assert "of-bob" not in await admin.topics()
    read_only = Console(admin, Options(read_only=True), more_changes=[CHANGE])
    async with visitor(read_only) as visits:
        assert (await visits.post("/topics/made", data=sent)).status_code == 404
