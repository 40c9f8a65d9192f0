"""A process that forks while its client runs: which of the two processes may use the client."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import pytest

from support.wire.unique_ids import decode_unique_id

PROGRAM = """
import asyncio, json, os, sys, warnings
from cometmq.client import ClientClosedError, Message, Producer
from cometmq.client.settings import ClientSettings

warnings.simplefilter("ignore")
ADDRESS, TOPIC = sys.argv[1:]
NAMED = ClientSettings(instance_name="forked")


def new_producer():
    return Producer(ADDRESS, group="g", client=NAMED)


def sockets():
    links = (os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if os.path.lexists(link)
            and os.readlink(link).startswith("socket:")}


async def send(producer):
    return (await producer.send(Message(topic=TOPIC, body=b"x"))).message_id


async def in_child(inherited):
    before = sockets()
    refused = None
    try:
        await send(inherited)
    except ClientClosedError as error:
        refused = str(error)
    await inherited.close()
    assert sockets() == before, "the child opened or closed a socket"
    async with new_producer() as fresh:
        ids = [await send(fresh) for _ in range(3)]
        own = len(sockets() - before)
    return {"refused": refused, "ids": ids, "own": own, "pid": os.getpid()}


async def main():
    async with new_producer() as producer:
        first = await send(producer)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            told = {}
            try:
                asyncio._set_running_loop(None)
                told = asyncio.run(in_child(producer))
            except BaseException as error:
                told = {"error": repr(error)}
            finally:
                os.write(writing, json.dumps(told).encode())
                os._exit(0)
        os.close(writing)
        await asyncio.to_thread(os.waitpid, child, 0)
        told = json.loads(os.read(reading, 65536))
        after = [await send(producer) for _ in range(3)]
    print(json.dumps({"child": told, "pid": os.getpid(), "ids": [first, *after]}))


asyncio.run(main())
"""


@pytest.fixture
async def told(name_servers: str, topic: str) -> dict[str, Any]:
    """What a program says that sent something, forked, and sent something in both processes."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, name_servers, topic),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    try:
        async with asyncio.timeout(120):
            out, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
    assert program.returncode == 0
    found: dict[str, Any] = json.loads(out)
    assert "error" not in found["child"], found["child"]["error"]
    return found


async def test_after_a_fork_each_process_has_sockets_and_ids_of_its_own(
    told: dict[str, Any],
) -> None:
    """The child may not use the client it inherited; the parent goes on with it."""
    child = told["child"]

    assert "belongs to the parent process" in child["refused"]
    assert child["own"] >= 2, "a name server's and a broker's"
    assert {decode_unique_id(text).pid for text in told["ids"]} == {told["pid"] & 0xFFFF}
    assert {decode_unique_id(text).pid for text in child["ids"]} == {child["pid"] & 0xFFFF}
    assert len({*told["ids"], *child["ids"]}) == 7
