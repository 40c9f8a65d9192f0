"""Settings by name: type checkers know each of them and its type."""

from datetime import timedelta
from pathlib import Path

from cometmq.client import (
    AdminClient,
    ClientInstance,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
    blocking,
)
from cometmq.client.settings import ClientSettings, ProducerSettings, PushSettings


def handle(message: StoredMessage) -> None:
    print(message.body)


producer = Producer("127.0.0.1:9876", group="shop", retries=0, use_tls=True)
Producer(group="shop", timeout_ms=timedelta(seconds=5), compress_type="zstd", topics=("orders",))
Producer(group="shop", retires=0)  # error
Producer(group="shop", retries="0")  # error
Producer(group="shop", compress_type="gzip")  # error
Producer(group="shop", concurrency=3)  # error
Producer(group="shop", config="client.toml")  # error
Producer("127.0.0.1:9876")

PushConsumer(group="billing", handler=handle, concurrency=4, retry_ms=timedelta(seconds=2))
PushConsumer(group="billing", handler=handle, consume_minutes_max=timedelta(hours=1))
PushConsumer(group="billing", handler=handle, concurrency=timedelta(seconds=4))  # error
PushConsumer(group="billing", handler=handle, auto_commit_ms=1_000)  # error

PullConsumer(group="audit", auto_commit_ms=timedelta(seconds=1), key_file=Path("keys"))
PullConsumer(group="audit", auto_commit_ms="1 s")  # error

PopConsumer(group="billing", handler=handle, invisible_ms=timedelta(minutes=1))
PopConsumer(group="billing", handler=handle, pull_batch=32)  # error

AdminClient(call_timeout_ms=500, namespace="tests")
AdminClient(call_timeout=500)  # error

ClientInstance("127.0.0.1:9876", settings=ClientSettings(heartbeat_ms=timedelta(seconds=10)))
ClientSettings(heartbeat=10)  # error
ProducerSettings(retries=0, timeout_ms=timedelta(seconds=1))
ProducerSettings(use_tls=True)  # error
PushSettings(concurrency=True, stop_ms=1.5)  # error

blocking.Producer(group="shop", retries=0, timeout_ms=timedelta(seconds=5))
blocking.Producer(group="shop", retires=0)  # error
blocking.PullConsumer(group="audit", fetched_max=10)

retries: int = producer.settings.retries
timeout_ms: int = producer.settings.timeout_ms
timeout_text: str = producer.settings.timeout_ms  # error
