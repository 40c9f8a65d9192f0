"""Which settings several broker processes get, and which they cannot share."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.cli.broker_processes import BrokerFamily, Member, warn_of_stores_left
from cometmq.cli.server_options import ServerOptions
from cometmq.metrics.config import MetricsSettings
from cometmq.model.errors import ConfigError
from cometmq.remoting.ports import LOOPBACK, free_broker_port
from cometmq.store import StoreSettings


def family(tmp_path: Path, text: str = "", processes: int = 2, port: int = 10911) -> BrokerFamily:
    config = tmp_path / "broker.conf"
    config.write_text(f"brokerName=broker-a\n{text}\n")
    options = ServerOptions(port=port, store=tmp_path / "store", config=config)
    return BrokerFamily(processes, options)


def test_each_broker_has_its_own_name_ports_and_store_and_the_other_settings(
    tmp_path: Path,
) -> None:
    found = family(tmp_path, "fileReservedTime=5\nbrokerClusterName=c", processes=3)

    parts = found.configurations()
    settings = [each[BrokerSettings] for each in parts]
    assert [each.broker_name for each in settings] == ["broker-a-0", "broker-a-1", "broker-a-2"]
    assert [each.listen_port for each in settings] == [10911, 10921, 10931]
    roots = [each[StoreSettings].root for each in parts]
    assert roots == [tmp_path / "store" / f"broker-{i}" for i in range(3)]
    assert {each[StoreSettings].file_reserved_hours for each in parts} == {5}
    assert [each[MetricsSettings].port for each in parts] == [5557, 5558, 5559]
    assert {each.broker_cluster_name for each in settings} == {"c"}


def test_no_two_brokers_have_a_port_in_common(tmp_path: Path) -> None:
    found = family(tmp_path, processes=64)

    ports = [port for member in found.members for port in member.ports(BrokerSettings())]
    assert len(ports) == len(set(ports)) == 3 * 64


def test_a_file_of_changes_takes_precedence_over_the_shared_file(tmp_path: Path) -> None:
    changes = tmp_path / "store" / "broker-1" / "config" / "broker.properties"
    changes.parent.mkdir(parents=True)
    changes.write_text("fileReservedTime=9\n")

    parts = family(tmp_path, "fileReservedTime=5").configurations()

    assert [each[StoreSettings].file_reserved_hours for each in parts] == [5, 9]
    assert parts[1].origin("fileReservedTime") == f"{changes}:1"


@pytest.mark.parametrize(
    ("text", "port", "message"),
    [
        (
            "storePathCommitLog=/log", 10911,
            r"storePathCommitLog=/log \(\S+:2\): brokers cannot share a commit log",
        ),
        (
            "", 65_525,
            "broker 1 of 2, broker-a-1, needs the port 65536, above 65535; listenPort or --port",
        ),
        (
            "namesrvAddr=10.0.0.1:10921;localhost:10919", 10911,
            "broker 1 of 2, broker-a-1, needs the port of namesrvAddr=localhost:10919; listenPort",
        ),
        (
            "haMasterAddress=10.0.0.1:10912", 10911,
            r"haMasterAddress=10.0.0.1:10912 \(\S+:2\): several brokers cannot follow one master",
        ),
        (
            "haListenPort=10912", 10911,
            r"haListenPort=10912 \(\S+:2\): several brokers cannot listen on one port",
        ),
        (f"brokerName={'x' * 126}", 10911, "brokerName=x+-0: expected 1 to 127 characters"),
        ("fileReservedTime=no", 10911, "fileReservedTime"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_shared_are_refused(
    tmp_path: Path, text: str, port: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        family(tmp_path, text, port=port)


def test_the_store_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)

    with pytest.raises(ConfigError, match="is the store of a single broker, and none of 2 proc"):
        family(tmp_path)


def test_a_port_in_use_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    port = free_broker_port()
    with socket.create_server((LOOPBACK, port + 10 - 2)):
        wanted = re.escape(f"broker-a-1, cannot listen on {LOOPBACK}:{port + 8}: Address already")
        with pytest.raises(ConfigError, match=wanted):
            family(tmp_path, port=port).run()

    assert not (tmp_path / "store").exists()


def test_a_broker_whose_fast_port_is_off_does_not_need_it() -> None:
    member = Member(0, 1, "n", 10911, Path("/s"))

    assert member.ports(BrokerSettings()) == [10909, 10911, 10912]
    assert member.ports(BrokerSettings(fast_port_enable=False)) == [10911, 10912]


@pytest.mark.parametrize(
    ("processes", "named"), [(0, "broker-0, broker-2"), (1, "broker-2"), (2, "broker-2"), (3, "")]
)
def test_stores_that_no_broker_opens_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, processes: int, named: str
) -> None:
    for name in ("broker-0", "broker-2", "broker-x", "other"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
    (tmp_path / "broker-7").mkdir()  # without messages

    warn_of_stores_left(tmp_path, processes)

    end = f"not delivered: {named} in {tmp_path}; --processes 3 opens them"
    assert [message.endswith(end) for message in caplog.messages] == ([True] if named else [])
