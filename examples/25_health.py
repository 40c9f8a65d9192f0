"""Let Kubernetes see over HTTP whether a consumer is alive and ready.

``/live`` and ``/ready`` respond with 200 or 503. They run in the event loop of the consumer, so a
blocked loop does not respond. Run: ``python 25_health.py [name server] [port]``.
"""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter

from cometmq.client import AdminClient, ClientClosedError, PushConsumer, StoredMessage

TOPIC = "heartbeats"


async def handle(message: StoredMessage) -> None:
    print(f"handled {message.body.decode()}")


async def is_ready(consumer: PushConsumer) -> bool:
    try:
        await consumer.ready(timeout=0.5)
    except (TimeoutError, ClientClosedError):
        return False
    return True


async def main(name_server: str = "127.0.0.1:9876", port: str = "8080") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)
    consumer = PushConsumer(
        name_server, group="monitor", handler=handle, subscriptions={TOPIC: "*"}
    )

    async def respond(reader: StreamReader, writer: StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        good = consumer.healthy
        if request.startswith(b"GET /ready "):
            good = await is_ready(consumer)
        status = "200 OK" if good else "503 Service Unavailable"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(respond, "", int(port)):
        await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
