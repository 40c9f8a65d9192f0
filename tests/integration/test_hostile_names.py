"""Command line tools with hostile names and texts of clients and servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from cometmq.cli.mqadmin import queries
from cometmq.cli.mqadmin.app import run
from cometmq.client import Message, Producer
from cometmq.protocol.bodies.client import ConsumerRunningInfo
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import RemotingClient, RemotingServer, Request, Response
from cometmq.testing import Cluster
from support.processes import forks

REMARK = "\x1b]0;owned\x07\x1b[2J\x9b31mdone\u202e"
BODY = b"ssh-ed25519 AAAA"


def files_in(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


@pytest.mark.parametrize("name", ["{folder}/keys", "../keys", "..", "a/../../keys"])
async def test_the_body_of_a_message_is_written_below_one_folder_whatever_its_id_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = tmp_path / "msgbodys"
    monkeypatch.setattr(queries, "BODIES", bodies)
    keys = tmp_path / "keys"
    keys.write_text("mine")
    unique_id = name.format(folder=tmp_path)
    values = ["p", "TBW102", "TBW102", "4", "0", "0", "1", "0", f"UNIQ_KEY\x01{unique_id}\x02"]
    fields = dict(zip("abcdefghi", values, strict=True))
    async with Cluster() as cluster:
        [address] = cluster.broker_addresses
        client = RemotingClient(name="c")
        sent = await client.call(
            address, RequestCode.SEND_MESSAGE_V2, fields=fields, body=BODY, timeout=15
        )
        await client.close()
        offset_id = sent.fields["msgId"]
        words = ["queryMsgById", "-n", cluster.name_servers, "-t", "TBW102", "-i", offset_id]
        assert await run(words) == 0
    assert unique_id in capsys.readouterr().out
    assert keys.read_text() == "mine"
    assert [each.read_bytes() for each in files_in(bodies)] == [BODY]


async def test_what_consumers_tell_is_written_below_one_folder_whatever_their_ids_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("mine")
    heartbeat = {
        "clientID": str(keys),
        "consumerDataSet": [{"groupName": "g", "consumeType": "CONSUME_PASSIVELY"}],
    }

    async def tell(request: Request) -> Response:
        return Response(body=ConsumerRunningInfo(properties={"a": "b"}).encode())

    async with Cluster() as cluster:
        [address] = cluster.broker_addresses
        client = RemotingClient(name="c", handlers={RequestCode.GET_CONSUMER_RUNNING_INFO: tell})
        body = json.dumps(heartbeat).encode()
        await client.call(address, RequestCode.HEART_BEAT, body=body, timeout=15)
        assert await run(["consumerStatus", "-n", cluster.name_servers, "-g", "g"]) == 0
        await client.close()
    assert "Same subscription" in capsys.readouterr().out
    assert keys.read_text() == "mine"
    written = [each for each in files_in(tmp_path) if each != keys]
    assert [each.parent.parent for each in written] == [tmp_path]


def _read_to_end(descriptor: int) -> bytes:
    """Return all that was written to a pipe or a terminal, which returns it in pieces."""
    pieces = []
    # Linux tells the end of a terminal by an error.
    with open(descriptor, "rb", buffering=0) as stream, contextlib.suppress(OSError):
        while piece := stream.read(65_536):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_a_message_controls_no_terminal_and_reaches_a_program_as_it_is(
    *, is_terminal: bool
) -> None:
    async with Cluster() as cluster:
        async with Producer(cluster.name_servers, group="p") as producer:
            await producer.send(Message("TBW102", REMARK.encode(), tags="\x1b[2J"))
        read, write = os.openpty() if is_terminal else os.pipe()
        process = await asyncio.create_subprocess_exec(
            *forks.python(), "-m", "cometmq", "mqadmin", "printMsg",
            "-n", cluster.name_servers, "-t", "TBW102", "-d", "true",
            stdout=write, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        os.close(write)
        _, err = await process.communicate()
        out = _read_to_end(read).decode()
    assert process.returncode == 0, err
    assert ("BODY: " + REMARK in out) != is_terminal
    assert ("\\x1b[2J\\x9b31mdone\\u202e" in out) == is_terminal
    assert not (is_terminal and set(out) & set("\x1b\x07\x9b\u202e"))


@pytest.mark.parametrize(
    "command", ["admin topic list", "admin dlq groups", "doctor", "mqadmin topicList"]
)
async def test_the_error_of_a_server_controls_no_terminal(command: str) -> None:
    def refuse(request: Request) -> Response:
        return Response(1, REMARK)

    server = RemotingServer({}, unknown=refuse)
    await server.start("127.0.0.1", 0)
    try:
        process = await asyncio.create_subprocess_exec(
            *forks.python(), "-m", "cometmq", *command.split(),
            env=os.environ | {"NAMESRV_ADDR": f"127.0.0.1:{server.port}"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
    finally:
        await server.stop(0.1)
    text = (out + err).decode()
    assert "\\x1b[2J\\x9b31mdone\\u202e" in text
    assert not set(text) & set("\x1b\x07\x9b\u202e")
