"""Set a client up by file, environment, object and keyword; the last of these takes precedence."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from cometmq.client import Message, Producer
from cometmq.client.settings import ProducerSettings

FILE = """
[producer]
retries = 1
timeout_ms = 1000
compress_from_bytes = 1000
compress_level = 1

[client]
instance_name = "till-7"
"""


async def main(name_server: str = "127.0.0.1:9876") -> None:
    path = Path(tempfile.mkdtemp()) / "client.toml"
    path.write_text(FILE)
    os.environ["COMETMQ_CONFIG"] = str(path)
    os.environ["NAMESRV_ADDR"] = name_server
    os.environ["COMETMQ_PRODUCER_TIMEOUT_MS"] = "2000"
    os.environ["COMETMQ_PRODUCER_COMPRESS_FROM_BYTES"] = "2000"

    settings = ProducerSettings(compress_from_bytes=3000, compress_level=9)
    async with Producer(group="shop", settings=settings, compress_level=5) as producer:
        await producer.send(Message(topic="set", body=b"a hat"))
        used = producer.settings
    print(f"file: retries={used.retries}")
    print(f"environment: timeout_ms={used.timeout_ms}")
    print(f"object: compress_from_bytes={used.compress_from_bytes}")
    print(f"keyword: compress_level={used.compress_level}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
