"""The requests that show and change users: who sees passwords, and what no text shows."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.access.users.accounts import UserAccounts
from cometmq.access.users.user import User, UserType
from cometmq.broker.access import user_handler
from cometmq.broker.access.user_handler import UserHandler
from cometmq.model.errors import ResponseError
from cometmq.protocol.command import Command
from cometmq.remoting import Request, Response
from support.wire.fake_transport import Wired

SECRET = "hush-hush"


class Handled:
    """The handler around users; each request is called by its name."""

    def __init__(self, folder: Path) -> None:
        self.users = UserAccounts(folder, [User("root", SECRET, UserType.SUPER)], authorizes=True)
        self.is_super = True
        self.handler = UserHandler(self.users, lambda request: self.is_super)

    async def __call__(self, name: str, body: Any = None, **fields: str) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        request = Request(Command(0, fields=fields, body=raw), Wired().connection)
        answered = getattr(self.handler, name)(request)
        response: Response = await answered if isinstance(answered, Awaitable) else answered
        assert isinstance(response.body, bytes)
        return json.loads(response.body) if response.body else None


@pytest.fixture
def handled(tmp_path: Path) -> Iterator[Handled]:
    made = Handled(tmp_path)
    yield made
    made.users.close()


async def test_only_super_users_see_passwords(handled: Handled) -> None:
    await handled("create_user", {"password": SECRET}, username="alice")
    assert (await handled("get_user", username="alice"))["password"] == SECRET
    assert {user["password"] for user in await handled("list_users")} == {SECRET}
    handled.is_super = False
    assert await handled("get_user", username="alice") == {
        "username": "alice", "userType": "Normal", "userStatus": "enable",
    }  # fmt: skip
    assert SECRET not in json.dumps(await handled("list_users"))


async def test_a_list_that_is_too_long_for_a_response_is_refused(
    handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_handler, "LISTED_BYTES_MAX", 1000)
    for number in range(20):
        handled.users.create(User(f"user-{number:02}", "p"))
    with pytest.raises(ResponseError, match="expected at most 1000: add a filter") as refused:
        await handled("list_users")
    assert refused.value.code == 16
    assert len(await handled("list_users", filter="user-0")) == 10


@pytest.mark.parametrize("name", ["create_user", "update_user"])
@pytest.mark.parametrize(
    "body", [b"", b'{"password":"hush-hush', b'"hush-hush"', b'{"password":"hush-hush\xff"}', b"[]"]
)
async def test_a_body_that_is_none_is_refused_and_not_shown(
    handled: Handled, name: str, body: bytes
) -> None:
    with pytest.raises(ResponseError, match=f"{len(body)} bytes") as refused:
        await handled(name, body, username="alice")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("field", ["userType", "userStatus"])
async def test_a_word_that_is_no_type_or_status_is_refused_and_changes_nothing(
    handled: Handled, field: str
) -> None:
    await handled("create_user", {"password": SECRET, "userType": "", field: None}, username="bob")
    before = await handled("get_user", username="bob")
    calls = [("update_user", "bob")] + [("create_user", "eve")] * (field == "userStatus")
    for name, user in calls:
        with pytest.raises(ResponseError, match=f"{field}='off': expected") as refused:
            await handled(name, {"password": "new", field: "off"}, username=user)
        assert refused.value.code == 16
    assert await handled("get_user", username="bob") == before
    assert [user["username"] for user in await handled("list_users")] == ["bob", "root"]


async def test_a_user_of_an_unknown_type_is_a_normal_one(handled: Handled) -> None:
    await handled("create_user", {"password": SECRET, "userType": "off"}, username="bob")
    assert (await handled("get_user", username="bob"))["userType"] == "Normal"


async def test_changes_are_logged_without_secrets(
    handled: Handled, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await handled("create_user", {"password": SECRET}, username="alice")
    await handled("update_user", {"password": SECRET + "2"}, username="alice")
    entry = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}
    acl = {"subject": "User:alice", "policies": [{"entries": [entry]}]}
    await handled("put_acl", acl, subject="User:alice")
    await handled("delete_user", username="alice")
    changes = [record.getMessage() for record in caplog.records]
    assert [text.split(" name=")[0] for text in changes] == [
        "user created", "user changed", "policies changed", "user deleted",
    ]  # fmt: skip
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("get_acl", {}),
        ("get_acl", {"subject": "alice"}),
        ("delete_acl", {"subject": "Role:alice"}),
        ("delete_acl", {"subject": "User:"}),
        ("delete_acl", {"subject": "User:root", "resource": "Nonsense:x"}),
    ],
)
async def test_a_subject_or_resource_that_is_none_is_refused(
    handled: Handled, name: str, fields: dict[str, str]
) -> None:
    with pytest.raises(ResponseError, match="is none: expected") as refused:
        await handled(name, **fields)
    assert refused.value.code == 16


ENTRY = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}
OF_ALICE = {"subject": "User:alice", "policies": [{"entries": [ENTRY]}]}


@pytest.mark.parametrize(
    ("name", "body", "fields"),
    [
        ("put_acl", OF_ALICE, {"subject": "User:bob"}),
        ("put_acl", OF_ALICE, {"subject": "User:Alice"}),
        ("create_user", {"username": "bob", "password": SECRET}, {"username": "eve"}),
        ("update_user", {"username": "bob", "password": "new"}, {"username": "alice"}),
    ],
)
async def test_a_request_whose_header_and_body_name_different_users_is_refused(
    handled: Handled, name: str, body: dict[str, object], fields: dict[str, str]
) -> None:
    for user in ("alice", "bob"):
        await handled("create_user", {"password": SECRET}, username=user)
    named = "|".join(sorted({*fields.values(), "User:alice", "bob"}))
    with pytest.raises(ResponseError, match=f"'({named})'.*expected the same") as refused:
        await handled(name, body, **fields)
    assert refused.value.code == 16
    assert [each.name for each in handled.users.users()] == ["alice", "bob", "root"]
    assert handled.users.all_policies() == []
    assert {handled.users.user(user).password for user in ("alice", "bob")} == {SECRET}


@pytest.mark.parametrize("fields", [{}, {"subject": "User:alice"}, {"subject": "user:alice"}])
async def test_policies_need_no_subject_in_the_header(
    handled: Handled, fields: dict[str, str]
) -> None:
    await handled("create_user", {"username": "alice", "password": SECRET}, username="alice")
    await handled("put_acl", OF_ALICE, **fields)
    await handled("put_acl", {"policies": OF_ALICE["policies"]}, subject="User:alice")
    assert len(handled.users.policies("alice")[0].entries) == 1


async def test_a_broker_without_users_says_so() -> None:
    handler = UserHandler(None, lambda request: True)
    request = Request(Command(3005, fields={}, body=b""), Wired().connection)
    with pytest.raises(ResponseError, match="authenticationEnabled=false"):
        await handler.list_users(request)
