"""The console over a broker with access control: each role sees what its account may see."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from cometmq.access.account_settings import AccountSettings
from cometmq.client import Message, Producer
from cometmq.client.settings import ClientSettings
from cometmq.console.access.users import add_user
from cometmq.console.pages import Role
from support.brokers.pairs import running_pairs

ACCOUNTS = """
accounts:
- {accessKey: operations, secretKey: secret-of-operations, admin: true}
- {accessKey: viewers, secretKey: secret-of-viewers, defaultTopicPerm: SUB, defaultGroupPerm: SUB,
   topicPerms: [payments=DENY]}
"""
PASSWORD = "correct horse battery"
CONFIG = """
[client]
access_key = "nobody"
secret_key = "secret-of-nobody"
[console.accounts.reader]
access_key = "viewers"
secret_file = "viewers.secret"
[console.accounts.administrator]
access_key = "operations"
"""
PATHS = ("topics", "messages?topic=payments&key=key", "messages?topic=orders&key=key", "overview")
LIMIT_S = 60.0


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[str]:
    """The name servers of a broker with access control, and with two messages."""
    path = tmp_path / "home" / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    inner = '{"accessKey":"operations","secretKey":"secret-of-operations"}'
    accounts = AccountSettings(
        acl_enable=True, rocketmq_home=tmp_path / "home", inner_client_credentials=inner
    )
    settings = ClientSettings(access_key="operations", secret_key="secret-of-operations")
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(tmp_path, accounts=accounts))
        await pairs.start(
            "a",
            aclEnable="true",
            rocketmqHome=str(tmp_path / "home"),
            innerClientAuthenticationCredentials=inner,
        )
        async with Producer(pairs.name_server.address, group="shop", client=settings) as producer:
            for topic in ("orders", "payments"):
                await producer.send(Message(topic, b"a secret", keys=["key"]))
        yield pairs.name_server.address


async def test_each_role_sees_what_its_account_may_see(names: str, tmp_path: Path) -> None:
    (tmp_path / "viewers.secret").write_text("secret-of-viewers\n")
    (tmp_path / "console.toml").write_text(CONFIG)
    for role in Role:
        add_user(tmp_path / "users", role.name, role, PASSWORD)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cometmq", "console", "-n", names, "--port", "0"),
        *("--users", str(tmp_path / "users"), "--config", str(tmp_path / "console.toml")),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "COMETMQ_CONSOLE_ADMINISTRATOR_SECRET": "secret-of-operations"},
    )
    found: dict[Role, dict[str, tuple[int, str]]] = {}
    try:
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            ready = re.search(rb"http\S+", await process.stdout.readline())
        assert ready
        # The administrator is the first one: what the console keeps is not for the others.
        for role in (Role.ADMINISTRATOR, Role.READER, Role.OPERATOR):
            async with httpx.AsyncClient(base_url=ready[0].decode(), timeout=LIMIT_S) as visits:
                given = {"user": role.name, "password": PASSWORD}
                assert (await visits.post("/api/session", json=given)).status_code == 200
                pages = {path: await visits.get(f"/api/{path}") for path in PATHS}
                found[role] = {path: (each.status_code, each.text) for path, each in pages.items()}
    finally:
        process.terminate()
        await process.wait()
    status = {role: [code for code, _ in pages.values()] for role, pages in found.items()}
    assert status == {
        Role.ADMINISTRATOR: [200, 200, 200, 200],
        Role.READER: [200, 502, 200, 200],
        Role.OPERATOR: [502, 502, 502, 200],  # it has the account of [client]
    }
    assert "No default permission for topic:payments" in found[Role.READER][PATHS[1]][1]
    assert '"topic":"orders"' in found[Role.READER][PATHS[0]][1]
    for path in PATHS[:3]:
        assert found[Role.OPERATOR][path][1].endswith('No acl config for nobody"}')
    overviews = {role: json.loads(pages["overview"][1]) for role, pages in found.items()}
    assert [len(each["brokers"]) for each in overviews.values()] == [1, 1, 0]
