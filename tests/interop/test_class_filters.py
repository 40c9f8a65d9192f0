"""The Java client of RocketMQ 4.9 and our filter server, whose classes are Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from programs import JAVA_49, Client, Kind
from servers import Cluster, write_settings

STOP_S = 60.0
SOURCE = """
class EvenOnly:
    def match(self, message, context):
        return int(message.properties["n"]) % 2 == 0
"""


@pytest.fixture(scope="module")
def filter_server(
    cluster: Cluster, target: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    if target != "comet":
        pytest.skip("RocketMQ's brokers since 4.9.6 have no filter servers")
    config = write_settings(
        tmp_path_factory.mktemp("filtersrv") / "filtersrv.conf",
        {"connectWhichBroker": cluster.broker, "clientUploadFilterClassEnable": True},
    )
    command = [sys.executable, "-m", "cometmq", "filtersrv", "-c", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready filtersrv=")
            yield
            process.terminate()
            assert process.wait(STOP_S) == 0
        finally:
            process.kill()


@pytest.mark.usefixtures("filter_server")
def test_the_java_client_uploads_a_class_and_receives_what_it_matches(
    clients: Callable[[Kind], Client],
    make_topic: Callable[..., str],
    make_group: Callable[[], str],
) -> None:
    java, topic = clients(JAVA_49), make_topic()
    large = "x" * 20_000
    messages = [{"body": f"{n} {large}", "properties": {"n": str(n)}} for n in range(20)]
    java.send(topic, messages)
    group = java.group(
        make_group(), topic, members=1, expression="org.example.EvenOnly", class_source=SOURCE
    )

    received = group.wait_for(f"{n} {large}" for n in range(0, 20, 2))
    group.stop()

    assert sorted(event["body"].split()[0] for event in received) == sorted(
        str(n) for n in range(0, 20, 2)
    )
