"""Reading and changing the settings of a running broker by requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cometmq.broker.admin.handler import ConfigHandler
from cometmq.broker.config import BrokerSettings
from cometmq.broker.role import SLAVE, SYNC_MASTER, Role
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request
from cometmq.remoting.config_update import BODY_BYTES_MAX
from cometmq.store.config import StoreSettings
from cometmq.system import java_properties
from cometmq.system.configuration import COMMAND_LINE, Configuration, Value
from cometmq.system.files import Files
from cometmq.system.rocketmq_keys import BROKER_KEYS, PROTECTED_KEYS, Keys
from support.checks.manual_clock import ManualClock
from support.wire.memory_link import link
from support.wire.recorded import VERSIONS, frames

NAME = {"brokerName": Value("broker-a", COMMAND_LINE)}


class Running:
    """The settings of a broker that runs, and what it was told of changes."""

    def __init__(self, file: Path | None = None, known_keys: Keys = dict) -> None:
        self.clock = ManualClock()
        self.configuration = Configuration(
            (BrokerSettings, StoreSettings), NAME, known_keys=known_keys
        )
        self.role = Role()
        self.told: list[Mapping[str, str]] = []
        self.handler = ConfigHandler(
            self.configuration,
            role=self.role,
            resolved=lambda: {"brokerIP1": "10.0.0.1"},
            file=file,
            files=Files(),
            clock=self.clock,
            started_ms=self.clock.now_ms(),
            on_change=self._note,
        )
        self.connection, _ = link()

    @property
    def settings(self) -> BrokerSettings:
        return self.configuration[BrokerSettings]

    async def show(self) -> tuple[dict[str, str], dict[str, int]]:
        response = await self.handler.show(self.request(RequestCode.GET_BROKER_CONFIG))
        assert isinstance(response.body, bytes)
        fields = response.all_fields()
        assert fields is not None
        entries = java_properties.parse(response.body.decode())
        return {entry.key: entry.value for entry in entries}, json.loads(fields["version"])

    async def _note(self, changes: Mapping[str, str]) -> None:
        self.told.append(changes)

    async def update(self, body: bytes) -> None:
        response = await self.handler.update(self.request(RequestCode.UPDATE_BROKER_CONFIG, body))
        assert response.code == 0

    async def refuse(self, body: bytes) -> ResponseError:
        with pytest.raises(ResponseError) as caught:
            await self.update(body)
        return caught.value

    def request(self, code: int, body: bytes = b"") -> Request:
        return Request(Command(code, body=body), self.connection)


async def test_all_settings_are_shown_as_properties() -> None:
    shown, version = await Running().show()

    assert shown["brokerName"] == "broker-a"
    assert shown["listenPort"] == "10911"
    assert shown["brokerPermission"] == "6"
    assert version == {"counter": 0, "stateVersion": 0, "timestamp": 1_700_000_000_000}


async def test_the_role_in_force_is_shown_not_the_one_of_the_start() -> None:
    running = Running()
    started = (await running.show())[0]

    running.role.change(SLAVE, 2)
    as_slave = (await running.show())[0]
    running.role.change(SYNC_MASTER, 0)
    as_master = (await running.show())[0]

    assert (started["brokerRole"], started["brokerId"]) == ("ASYNC_MASTER", "0")
    assert (as_slave["brokerRole"], as_slave["brokerId"]) == ("SLAVE", "2")
    assert (as_master["brokerRole"], as_master["brokerId"]) == ("SYNC_MASTER", "0")
    assert as_slave.keys() == started.keys()


async def test_a_change_holds_at_once_and_counts_the_version_up() -> None:
    running = Running()
    running.clock.advance(5)
    await running.update(b"brokerPermission=4\n")

    shown, version = await running.show()
    assert running.settings.broker_permission == 4
    assert shown["brokerPermission"] == "4"
    assert version == {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_005}
    assert running.told == [{"brokerPermission": "4"}]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_recorded_change_is_taken(version: str) -> None:
    running = Running()
    bodies = [c.body for name, c in frames(version, "mqadmin") if name == "UPDATE_BROKER_CONFIG"]
    for body in bodies:
        await running.update(body)

    assert bodies == [b"flushIntervalCommitLog=600\n", b"noSuchKey=1\n"]
    assert running.configuration[StoreSettings].flush_interval_ms == 600


async def test_each_setting_that_is_shown_is_taken_or_refused() -> None:
    """Also those that only RocketMQ has: 0 would say that they have changed."""
    running = Running(known_keys=BROKER_KEYS)
    shown, _ = await running.show()
    assert {"enablePopBufferMerge", "estimateAccumulation", "brokerPermission"} <= shown.keys()
    silent = []
    for key, text in shown.items():
        other = {"true": "false", "false": "true"}.get(text, "77")
        try:
            await running.update(f"{key}={other}\n".encode())
        except ResponseError as refused:
            if key not in refused.remark and key not in PROTECTED_KEYS:
                silent.append(key)
            continue
        after = (await running.show())[0]
        if after[key] != other:
            silent.append(key)
    assert silent == []


async def test_what_is_shown_of_a_setting_without_effect_may_be_sent_back() -> None:
    running = Running(known_keys=BROKER_KEYS)
    await running.update(b"enablePopBufferMerge=false\nbrokerPermission=4\n")
    assert running.settings.broker_permission == 4
    with pytest.raises(ResponseError) as refused:
        await running.update(b"enablePopBufferMerge=true\nbrokerPermission=6\n")
    assert refused.value.remark == (
        "settings of RocketMQ that have no effect here cannot be changed: enablePopBufferMerge=true"
    )
    assert running.settings.broker_permission == 4


async def test_unknown_keys_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    await running.update(b"noSuchKey=1\n")
    assert "unknown settings ignored" in caplog.text
    assert "keys=['noSuchKey']" in caplog.text

    shown, version = await running.show()
    assert "noSuchKey" not in shown
    assert version["counter"] == 0
    assert running.told == []


@pytest.mark.parametrize(
    "key",
    ["brokerConfigPath", "configBlackList", "rocketmqHome", "storePathRootDir", "listenPort"],
)
async def test_a_protected_key_spoils_the_whole_change(key: str) -> None:
    running = Running()
    refusal = await running.refuse(f"brokerPermission=2\n{key}=/etc\n".encode())

    assert refusal.code == 16
    words = "Can not update config in black list."
    fixed = "" if key in PROTECTED_KEYS else f" {key} cannot be changed while the server runs: "
    assert refusal.remark.startswith(f"{words}{fixed}")
    assert bool(fixed) == (refusal.remark != words)
    assert running.settings.broker_permission == 6


async def test_a_value_out_of_range_changes_nothing() -> None:
    running = Running()
    refusal = await running.refuse(b"traceOn=false\nbrokerPermission=99\n")

    assert refusal.code == 29
    assert "brokerPermission=99" in refusal.remark
    assert running.settings.trace_on is True


async def test_a_body_too_large_is_refused() -> None:
    refusal = await Running().refuse(b"#" * (BODY_BYTES_MAX + 1))

    assert refusal.code == 29
    assert str(BODY_BYTES_MAX) in refusal.remark


async def test_broken_text_is_code_1() -> None:
    assert (await Running().refuse(b"a=\\u12")).code == 1


async def test_the_change_is_written_into_the_file_and_the_rest_of_it_stays(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# ours\nbrokerPermission = 6\nlistenPort=10911\n")
    running = Running(file)
    await running.update(b"brokerPermission=4\ntraceOn=false\nnoSuchKey=1\n")

    lines = file.read_text().splitlines()
    entries = {entry.key: entry.value for entry in java_properties.parse(file.read_text())}
    assert lines[0] == "# ours"
    assert entries == {"brokerPermission": "4", "listenPort": "10911", "traceOn": "false"}


async def test_a_change_that_cannot_be_written_is_refused_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "broker.conf"
    folder.mkdir()
    running = Running(folder)
    refusal = await running.refuse(b"brokerPermission=4\n")

    assert refusal.code == 1
    assert "cannot be written" in refusal.remark
    assert "the change is refused" in caplog.text
    assert running.settings.broker_permission == 6
    assert running.told == []


async def test_changes_at_the_same_time_are_all_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("")
    running = Running(file)
    await asyncio.gather(
        *(running.update(line) for line in (b"brokerPermission=4", b"traceOn=false"))
    )

    assert sorted(file.read_text().split()) == ["brokerPermission=4", "traceOn=false"]
    assert (running.settings.broker_permission, running.settings.trace_on) == (4, False)


async def test_the_hours_of_deletion_can_be_changed() -> None:
    running = Running()
    await running.update(b"deleteWhen=05;17\n")
    assert running.configuration[StoreSettings].delete_when == ("05", "17")

    refusal = await running.refuse(b"deleteWhen=24\n")
    assert "deleteWhen" in str(refusal)
    assert running.configuration[StoreSettings].delete_when == ("05", "17")
