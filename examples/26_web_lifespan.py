"""Send and consume in a web application: the clients start and close with the application.

FastAPI and Starlette call the lifespan in each worker process: ``FastAPI(lifespan=lifespan)``. Here
``main`` stands in for the web server. The environment variable NAMESRV_ADDR names the name servers.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom, StoredMessage

TOPIC = "sign-ups"
greeted = asyncio.Event()


class State(TypedDict):
    """What handlers of HTTP requests use: ``request.state.producer``."""

    producer: Producer
    consumer: PushConsumer


async def greet(message: StoredMessage) -> None:
    print(f"welcome, {message.body.decode()}")
    greeted.set()


@asynccontextmanager
async def lifespan(app: object) -> AsyncIterator[State]:
    async with (
        Producer(group="web") as producer,
        PushConsumer(
            group="greeters",
            handler=greet,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
            stop_ms=20_000,
        ) as consumer,
    ):
        yield {"producer": producer, "consumer": consumer}


async def main(name_server: str = "127.0.0.1:9876") -> None:
    os.environ["NAMESRV_ADDR"] = name_server
    async with AdminClient() as admin:  # once, when the application is deployed
        await admin.create_topic(TOPIC, queues=4)

    async with lifespan(None) as state:
        await state["producer"].send(Message(topic=TOPIC, body=b"Ann"))
        await greeted.wait()
        print(f"healthy: {state['consumer'].healthy}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
