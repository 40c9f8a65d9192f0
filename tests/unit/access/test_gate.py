"""The account of a request decides who manages the server, and whose timer messages it recalls."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.access.gate import Gate
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import FORWARDED, RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request
from cometmq.system.clock import Clock
from cometmq.system.files import Files
from support.wire.fake_transport import Wired

ACCOUNTS = """
globalWhiteRemoteAddresses: [10.0.0.*]
accounts:
- {accessKey: Limited-1, secretKey: limited-secret, defaultTopicPerm: PUB}
- {accessKey: Administrator, secretKey: admin-secret, admin: true}
"""
OUTSIDE, WHITE = "192.0.2.1", "10.0.0.1"


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    file = tmp_path / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(ACCOUNTS)
    accounts = PlainAccounts(tmp_path, Files(), Clock())
    accounts.load()
    return Gate(accounts, 1, open_codes=frozenset({RequestCode.GET_BROKER_RUNTIME_INFO}))


def request(access_key: str, host: str, code: int = 370, remark: str | None = None) -> Request:
    fields = {"AccessKey": access_key} if access_key else {}
    command = Command(code, remark=remark, fields=fields)
    return Request(command, Wired(peer=(host, 4000)).connection)


async def test_an_administrator_is_one_by_account_or_address(gate: Gate) -> None:
    assert gate.is_administrator(request("Administrator", OUTSIDE))
    assert gate.is_administrator(request("", WHITE))
    assert not gate.is_administrator(request("Limited-1", OUTSIDE))
    assert not gate.is_administrator(request("deleted", OUTSIDE))


async def test_a_request_that_needs_no_account_proves_none(gate: Gate) -> None:
    opened = request("Administrator", OUTSIDE, RequestCode.GET_BROKER_RUNTIME_INFO)
    assert gate.account_of(opened) is None
    assert not gate.is_administrator(opened)


async def test_the_address_of_a_forwarded_request_is_that_of_a_slave(gate: Gate) -> None:
    """Its account is the one that it names."""
    forwarded = request("Limited-1", WHITE, remark=FORWARDED)
    found = gate.account_of(forwarded)
    assert found is not None
    assert (found.name, found.is_administrator) == ("Limited-1", False)
    assert not gate.is_administrator(forwarded)
    assert gate.is_administrator(request("Administrator", WHITE, remark=FORWARDED))
    with pytest.raises(ResponseError):
        gate.account_of(request("", WHITE, remark=FORWARDED))
