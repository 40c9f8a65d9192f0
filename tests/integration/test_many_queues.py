"""More queues than the system lets one process map: all are served, and opened again."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cometmq.client import AdminClient, Message, MessageQueue, Producer, PullConsumer, StartFrom
from cometmq.remoting.ports import free_broker_port, free_port

QUEUES = 600
DESCRIPTORS = 400
LIMIT_S = 120.0


@asynccontextmanager
async def server(folder: Path, namesrv: int, broker: int) -> AsyncIterator[None]:
    """A server that may open few files."""
    config = folder / "broker.conf"
    config.write_text(
        "mappedFileSizeCommitLog=4194304\nmaxHashSlotNum=1000\nmaxIndexNum=200000\n"
        "brokerFastFailureEnable=false\n"
    )
    command = f"ulimit -n {DESCRIPTORS}; exec {sys.executable} -m cometmq standalone"
    command += f" --namesrv-port {namesrv} --broker-port {broker} --store {folder / 'store'}"
    with (folder / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", f"{command} -c {config}", stdin=DEVNULL, stdout=PIPE, stderr=log
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            assert (await process.stdout.readline()).startswith(b"ready"), (
                folder / "log"
            ).read_text()
            yield
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_more_queues_than_descriptors_are_written_read_and_opened_again(
    tmp_path: Path,
) -> None:
    ports = free_port(), free_broker_port()
    name_servers = f"127.0.0.1:{ports[0]}"
    async with server(tmp_path, *ports):
        async with AdminClient(name_servers) as admin:
            queues = await admin.create_topic("t", queues=QUEUES)
        await send_to_each(name_servers, queues, 0)
    async with server(tmp_path, *ports):
        await send_to_each(name_servers, queues, 1)
        consumer = PullConsumer(name_servers, group="c", start_from=StartFrom.FIRST)
        bodies: list[bytes] = []
        async with consumer:
            await consumer.assign(queues)
            while len(set(bodies)) < 2 * QUEUES:
                bodies += [message.body for message in await consumer.poll()]

    assert sorted(bodies) == sorted(
        b"%d %d" % (queue.queue_id, number) for queue in queues for number in (0, 1)
    )


async def send_to_each(name_servers: str, queues: list[MessageQueue], number: int) -> None:
    async with Producer(name_servers, group="g") as producer:
        await asyncio.gather(
            *(
                producer.send(Message("t", b"%d %d" % (queue.queue_id, number)), queue=queue)
                for queue in queues
            )
        )
