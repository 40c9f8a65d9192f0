"""From file, command line and environment to settings, and changes while the server runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ConfigError
from cometmq.namesrv.config import NameServerSettings
from cometmq.remoting import RemotingSettings, TlsClientSettings, TlsSettings
from cometmq.store.config import StoreSettings
from cometmq.system import java_properties
from cometmq.system.configuration import (
    COMMAND_LINE,
    DEFAULT,
    Configuration,
    ProtectedSettingError,
    load,
    write_changes,
)
from cometmq.system.files import Files
from cometmq.system.rocketmq_keys import BROKER_KEYS, NAMESRV_KEYS
from cometmq.system.settings import describe, setting

VECTORS = Path(__file__).parents[2] / "vectors" / "frames"
BROKER_PARTS = (BrokerSettings, StoreSettings, RemotingSettings, TlsSettings, TlsClientSettings)
NAMESRV_PARTS = (NameServerSettings, RemotingSettings, TlsSettings, TlsClientSettings)
KNOWN = {"knownButUnused": "5", "alsoUnused": None, "socksProxyConfig": "{}"}.copy


@dataclass(frozen=True)
class Network:
    """Settings of one part."""

    port: int = setting(10, key="listenPort", low=0, high=99)
    """A port."""
    peers: tuple[str, ...] = setting((), key="namesrvAddr", environment="NAMESRV_ADDR")
    """Peers."""


@dataclass(frozen=True)
class Limits:
    """Settings of another part, one key shared with the first."""

    port: int = setting(10, key="listenPort", low=0, high=99)
    """The same port."""
    speed: int = setting(1, low=0, high=9, remote=True)
    """A limit that may change."""
    folder: Path = setting(factory=lambda: Path("/x"))
    """A folder, which must not."""
    password: str = setting("", secret=True)
    """A secret."""

    def __post_init__(self) -> None:
        """Refuse a pair of values that do not go together."""
        if self.speed == 9 and self.port == 9:
            raise ConfigError("speed and port cannot both be 9")


def loaded(text: str = "", **sources: Mapping[str, str]) -> Configuration:
    values = {entry.key: entry.value for entry in java_properties.parse(text)}
    return load(
        (Network, Limits),
        known_keys=KNOWN,
        command_line={**values, **sources.get("command_line", {})},
        environment=sources.get("environment"),
    )


def from_file(path: Path, text: str, **sources: Mapping[str, str]) -> Configuration:
    path.write_text(text)
    return load((Network, Limits), known_keys=KNOWN, file=path, **sources)  # type: ignore[arg-type]


# --- sources --------------------------------------------------------------------------------------


def test_command_line_wins_over_file_over_environment_over_default(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    environment = {"NAMESRV_ADDR": "e:1", "OTHER": "x"}
    by_default = from_file(file, "")
    by_environment = from_file(file, "", environment=environment)
    by_file = from_file(file, "\nnamesrvAddr=f:1;g:1", environment=environment)
    said = {"namesrvAddr": "c:1"}
    by_all = from_file(file, "namesrvAddr=f:1", environment=environment, command_line=said)
    found = [c[Network].peers for c in (by_default, by_environment, by_file, by_all)]
    assert found == [(), ("e:1",), ("f:1", "g:1"), ("c:1",)]
    origins = [c.origin("namesrvAddr") for c in (by_default, by_environment, by_file, by_all)]
    assert origins == [DEFAULT, "environment NAMESRV_ADDR", f"{file}:2", COMMAND_LINE]


def test_a_key_that_two_classes_claim_sets_both() -> None:
    configuration = loaded("listenPort=42")
    assert (configuration[Network].port, configuration[Limits].port) == (42, 42)


def test_the_last_of_two_equal_keys_in_a_file_wins(tmp_path: Path) -> None:
    configuration = from_file(tmp_path / "a.conf", "listenPort=1\nlistenPort=2\n")
    assert configuration[Network].port == 2
    assert configuration.origin("listenPort").endswith("a.conf:2")


def test_unknown_keys_are_refused_with_the_nearest_known_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        from_file(tmp_path / "a.conf", "# x\nlistnPort=1\nnothingLikeIt=1\n")
    first, second = str(refused.value).splitlines()
    assert first.endswith("a.conf:2: there is no setting 'listnPort'; did you mean listenPort?")
    assert second.endswith("a.conf:3: there is no setting 'nothingLikeIt'")


def test_keys_without_effect_are_named_in_one_warning(tmp_path: Path) -> None:
    configuration = from_file(tmp_path / "a.conf", "knownButUnused=1\nspeed=2\nalsoUnused=3\n")
    warning = configuration.warning()
    assert warning is not None
    assert warning.index("alsoUnused") < warning.index("knownButUnused")
    assert "speed" not in warning
    assert loaded("speed=2").warning() is None


def test_every_bad_value_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        from_file(tmp_path / "a.conf", "listenPort=100\nspeed=fast\n")
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert "a.conf:1: listenPort=100: expected a whole number from 0 to 99" in lines[0]
    assert "a.conf:2: speed=fast: expected a whole number from 0 to 9" in lines[1]


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.conf"):
        load((Network,), known_keys=KNOWN, file=tmp_path / "nowhere.conf")


def test_endless_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="larger than"):
        load((Network,), known_keys=KNOWN, file=Path("/dev/zero"))


def test_values_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot both be 9"):
        loaded("speed=9\nlistenPort=9")


# --- showing --------------------------------------------------------------------------------------


def test_rendered_settings_are_read_back() -> None:
    configuration = loaded("listenPort=3\nnamesrvAddr=a:1;b:2")
    again = loaded(configuration.render())
    assert again[Network] == configuration[Network]
    assert again[Limits] == configuration[Limits]


def test_each_value_is_shown_with_its_origin() -> None:
    text = loaded("listenPort=3").render_with_origins()
    assert "# command line\nlistenPort=3\n" in text
    assert "# default\nspeed=1\n" in text


def test_secrets_are_never_shown() -> None:
    configuration = loaded("password=hunter2")
    assert configuration[Limits].password == "hunter2"
    assert "hunter2" not in configuration.render() + configuration.render_with_origins()
    assert configuration.properties()["password"] == "********"
    assert loaded().properties()["password"] == ""


def test_settings_objects_can_be_the_source() -> None:
    configuration = Configuration.of(Network(port=7), Limits(port=7, speed=3))
    assert (configuration[Network].port, configuration[Limits].speed) == (7, 3)
    assert configuration.origin("speed") == "program"
    assert configuration.origin("folder") == DEFAULT


# --- changes --------------------------------------------------------------------------------------


def test_remote_setting_changes_and_views_follow() -> None:
    configuration = loaded()
    view = configuration.reader_of(Limits)
    before = view()
    assert configuration.change({"speed": "4"}, "request") == {"speed": "4"}
    assert (before.speed, view().speed) == (1, 4)
    assert configuration.origin("speed") == "request"
    assert configuration.changes == 1


def test_unknown_keys_of_a_change_are_left_out() -> None:
    configuration = loaded()
    assert configuration.change({"noSuch": "1"}, "request") == {}
    assert configuration.changes == 0


def test_settings_without_effect_are_refused_in_a_change_but_with_the_value_shown() -> None:
    configuration = loaded()
    with pytest.raises(ConfigError, match="no effect here cannot be changed: knownButUnused=2"):
        configuration.change({"knownButUnused": "2", "speed": "4"}, "request")
    assert configuration[Limits].speed == 1


@pytest.mark.parametrize("key", ["folder", "listenPort", "password", "configBlackList"])
def test_one_protected_key_spoils_the_whole_change(key: str) -> None:
    configuration = loaded()
    with pytest.raises(ProtectedSettingError, match=key):
        configuration.change({"speed": "4", key: "1"}, "request")
    assert configuration[Limits].speed == 1


@pytest.mark.parametrize("text", ["10", "-1", "fast", ""])
def test_bad_value_changes_nothing(text: str) -> None:
    configuration = loaded()
    with pytest.raises(ConfigError):
        configuration.change({"speed": text}, "request")
    assert configuration[Limits].speed == 1


def test_change_that_does_not_go_together_with_the_rest_changes_nothing() -> None:
    configuration = loaded("listenPort=9")
    with pytest.raises(ConfigError, match="cannot both be 9"):
        configuration.change({"speed": "9"}, "request")
    assert configuration[Limits].speed == 1


def test_changes_are_written_into_the_file_and_its_comments_stay(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("# how fast\nspeed=1\n")
    write_changes(file, {"speed": "5"}, Files())
    assert file.read_text() == "# how fast\nspeed=5\n"
    assert from_file(file, file.read_text())[Limits].speed == 5


def test_a_changed_file_with_a_password_stays_unreadable_for_others(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("password=secret\nspeed=1\n")
    file.chmod(0o640)
    for speed in ("5", "6"):
        write_changes(file, {"speed": speed}, Files())
    modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.iterdir()}
    assert modes == {"a.conf": 0o640, "a.conf.bak": 0o640}


def test_changes_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder must be")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_changes(tmp_path / "blocked" / "a.conf", {"speed": "5"}, Files())


def test_program_may_set_what_requests_may_not() -> None:
    configuration = loaded()
    configuration.set({"listenPort": "77"})
    assert configuration[Network].port == configuration[Limits].port == 77
    with pytest.raises(ConfigError, match="noSuch"):
        configuration.set({"noSuch": "1"})


# --- the servers' own settings --------------------------------------------------------------------


def recorded_config(version: str, name: str) -> str:
    """The settings that a real server printed."""
    for line in (VECTORS / version / "mqadmin.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["name"] == name:
            frame = bytes.fromhex(record["hex"])
            body_at = 8 + (int.from_bytes(frame[4:8], "big") & 0xFFFFFF)
            return frame[body_at:].decode()
    raise AssertionError(f"{name} was not recorded")


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_settings_printed_by_a_real_broker_are_a_configuration_file_for_ours(
    version: str, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(recorded_config(version, "GET_BROKER_CONFIG_RESPONSE"))
    configuration = load(BROKER_PARTS, known_keys=BROKER_KEYS, file=file)
    settings = configuration[BrokerSettings]
    assert (settings.broker_name, settings.listen_port) == ("broker-a", 19911)
    assert settings.namesrv_addr == ("127.0.0.1:19876",)
    assert settings.default_topic_queue_nums == 4
    assert "writeBufferLowWaterMark" in (configuration.warning() or "")
    assert configuration[StoreSettings].index_slots == 1000


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_settings_printed_by_a_real_name_server_are_a_configuration_file_for_ours(
    version: str, tmp_path: Path
) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(recorded_config(version, "GET_NAMESRV_CONFIG_RESPONSE"))
    configuration = load(NAMESRV_PARTS, known_keys=NAMESRV_KEYS, file=file)
    assert configuration[NameServerSettings].listen_port == 19876


@pytest.mark.parametrize("kind", [*BROKER_PARTS, NameServerSettings])
def test_no_path_command_or_secret_can_be_changed_by_a_request(kind: type) -> None:
    for found in describe(kind):
        if found.remote:
            assert found.kind is not Path
            assert not found.secret
            assert not any(word in found.key.lower() for word in ("path", "class", "addr", "ip1"))


@pytest.mark.parametrize("kind", [*BROKER_PARTS, NameServerSettings])
def test_passwords_are_secrets(kind: type) -> None:
    for found in describe(kind):
        assert found.secret or "password" not in found.key.lower()


@pytest.mark.parametrize(
    "bad",
    [
        {"brokerName": "a b"},
        {"brokerName": ".."},
        {"brokerClusterName": "../x"},
        {"namesrvAddr": "host"},
        {"namesrvAddr": "host:1;:2"},
        {"brokerPermission": "8"},
        {"msgTraceTopicName": "a/b"},
    ],
)
def test_broker_refuses_names_and_addresses_that_are_none(bad: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        load((BrokerSettings,), known_keys=BROKER_KEYS, command_line=bad)
