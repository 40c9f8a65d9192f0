"""RocketMQ's settings without effect here: their names and defaults, and how they are shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cometmq.broker.app import SETTINGS as BROKER
from cometmq.controller.app import SETTINGS as CONTROLLER
from cometmq.namesrv.app import SETTINGS as NAMESRV
from cometmq.system import java_properties
from cometmq.system.configuration import Configuration, load
from cometmq.system.rocketmq_keys import (
    BROKER_KEYS,
    CONTROLLER_KEYS,
    NAMESRV_KEYS,
    Keys,
    shown_setting,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "mqadmin"
SERVERS = {
    "getBrokerConfig": (BROKER, BROKER_KEYS),
    "getNamesrvConfig": (NAMESRV, NAMESRV_KEYS),
}
OF_THE_RECORDED_SERVER = {
    "aclEnable", "authConfigPath", "authenticationMetadataProvider", "bindAddress",
    "authorizationMetadataProvider", "brokerIP1", "brokerIP2", "brokerName", "configStorePath",
    "diskMaxUsedSpaceRatio", "enablePropertyFilter", "haListenPort", "kvConfigPath",
    "listenPort", "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue",
    "mappedFileSizeTimerLog", "maxHashSlotNum", "maxIndexNum", "namesrvAddr", "rocketmqHome",
    "storePathCommitLog", "storePathRootDir", "transactionCheckInterval",
}  # fmt: skip
"""Settings that the files of the recorded servers set, and what differs from machine to machine."""
OTHER_DEFAULTS = {
    "allAckInSyncStateSet", "bindAddress", "brokerName", "configStorePath", "flushDiskType",
    "haListenPort", "inSyncReplicas", "kvConfigPath", "storePathRootDir",
}  # fmt: skip
"""Settings of ours whose defaults are not RocketMQ's: paths, ports, and safer ones."""


def recorded(version: str, command: str) -> dict[str, str]:
    calls = json.loads((VECTORS / f"{version}.json").read_text())["calls"]
    (text,) = [call["out"] for call in calls if call["id"] == command]
    lines = re.findall(r"^(\w+) += {1,2}(.*)$", text, re.MULTILINE)
    return {key: value.strip() for key, value in lines}


def shown_by(command: str) -> dict[str, str]:
    kinds, keys = SERVERS[command]
    text = load(kinds, known_keys=keys).render()
    return {entry.key: entry.value for entry in java_properties.parse(text)}


@pytest.mark.parametrize("command", SERVERS)
@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
def test_a_server_shows_all_settings_that_rocketmq_shows(version: str, command: str) -> None:
    theirs = recorded(version, command)
    of_its_file = {"authenticationMetadataProvider", "authorizationMetadataProvider"}

    assert len(theirs) >= {"getBrokerConfig": 170, "getNamesrvConfig": 20}[command]
    assert theirs.keys() - shown_by(command).keys() <= of_its_file


@pytest.mark.parametrize("command", SERVERS)
def test_the_defaults_are_those_that_rocketmq_shows(command: str) -> None:
    theirs, keys = recorded("5.3.3", command), SERVERS[command][1]()
    same = theirs.keys() - OF_THE_RECORDED_SERVER

    assert {key: keys[key] for key in same} == {key: theirs[key] for key in same}


@pytest.mark.parametrize("command", SERVERS)
def test_our_defaults_are_those_of_rocketmq_with_few_exceptions(command: str) -> None:
    kinds, keys = SERVERS[command]
    theirs = {key: text for key, text in keys().items() if text is not None}
    ours = Configuration(kinds).properties()
    same = ours.keys() & theirs.keys() - OTHER_DEFAULTS

    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}


def test_the_controller_shows_defaults_of_rocketmq_too() -> None:
    """Those of its controller are not recorded; the network layer is that of all servers."""
    shown = load(CONTROLLER, known_keys=CONTROLLER_KEYS).without_effect()
    namesrv, controller = NAMESRV_KEYS(), CONTROLLER_KEYS()
    network = [key for key in namesrv if key.startswith(("server", "writeBuffer"))]

    assert {key: controller[key] for key in network} == {key: namesrv[key] for key in network}
    assert (shown["controllerThreadPoolNums"], shown["serverWorkerThreads"]) == ("16", "8")
    assert "controllerDLegerPeers" not in shown
    ours = Configuration(CONTROLLER).properties()
    own = {"bindAddress", "configStorePath", "listenPort"}
    same = {key for key in ours if controller.get(key) is not None} - own
    assert len(same) >= 4
    assert {key: ours[key] for key in same} == {key: controller[key] for key in same}


def of_file(text: str, keys: Keys, folder: Path) -> Configuration:
    file = folder / "broker.conf"
    file.write_text(text)
    return load(BROKER, known_keys=keys, file=file)


def test_settings_without_effect_are_shown_as_the_file_has_them(tmp_path: Path) -> None:
    configuration = of_file("commercialBaseCount = 3\n", BROKER_KEYS, tmp_path)
    text = configuration.render()

    assert "\ncommercialBaseCount=3\n" in text
    assert "\nsendMessageThreadPoolNums=2\n" in text
    assert "haMasterAddress" not in configuration.without_effect()


def test_the_shown_settings_are_a_configuration_file_again(tmp_path: Path) -> None:
    first = load(BROKER, known_keys=BROKER_KEYS, command_line={"brokerPermission": "4"})
    again = of_file(first.render(), BROKER_KEYS, tmp_path)

    assert [again[kind] for kind in BROKER] == [first[kind] for kind in BROKER]
    assert again.render() == first.render()


def test_settings_without_effect_are_marked_beside_their_origins(tmp_path: Path) -> None:
    configuration = of_file("commercialBaseCount=3\nbrokerPermission=4\n", BROKER_KEYS, tmp_path)
    text = configuration.render_with_origins()
    effective, others = text.split("# Settings of RocketMQ without effect here")

    assert f"# {tmp_path / 'broker.conf'}:2\nbrokerPermission=4\n" in effective
    assert "commercialBaseCount" not in effective
    assert f"# {tmp_path / 'broker.conf'}:1\n#commercialBaseCount=3\n" in others
    assert "\n#sendMessageThreadPoolNums=2\n" in others
    assert java_properties.parse(others.split("\n", 1)[1]) == []


def test_secrets_without_effect_are_never_shown(tmp_path: Path) -> None:
    secrets = {
        "innerClientAuthenticationCredentials": "hunter1",
        "initAuthenticationUser": '{"username":"u","password":"hunter2"}',
        "metricsGrpcExporterHeader": "hunter3",
        "socksProxyConfig": "hunter4",
    }
    configuration = of_file(java_properties.render(secrets), BROKER_KEYS, tmp_path)

    assert "hunter" not in configuration.render() + configuration.render_with_origins()
    assert "socksProxyConfig=********" in configuration.render()
    assert "\nsocksProxyConfig={}\n" in load(BROKER, known_keys=BROKER_KEYS).render()


@pytest.mark.parametrize(
    "key",
    ["initAuthenticationUser", "innerClientAuthenticationCredentials", "tls.server.keyPassword",
     "metricsGrpcExporterHeader", "secretKey", "controllerStoreToken"],
)  # fmt: skip
def test_secrets_of_other_servers_are_shown_as_stars(key: str) -> None:
    assert shown_setting(key, '{"password":"hush"}') == "***"
    assert shown_setting(key, "") == ""


def test_other_settings_are_shown() -> None:
    assert shown_setting("brokerName", "broker-a") == "broker-a"
