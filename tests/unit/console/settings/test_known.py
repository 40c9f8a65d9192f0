"""What the console knows of settings, of our servers and of RocketMQ's."""

from __future__ import annotations

import pytest

from cometmq.broker.app import SETTINGS as BROKER_SETTINGS
from cometmq.console.settings.known import ROCKETMQ_KEYS, refusal, settings_of
from cometmq.system.configuration import Configuration
from cometmq.system.rocketmq_keys import BROKER_KEYS

OURS = Configuration(BROKER_SETTINGS, known_keys=BROKER_KEYS)
TABLE = OURS.without_effect() | OURS.properties()
ROCKETMQS = {key: value or "" for key, value in BROKER_KEYS().items()}


def test_each_setting_that_our_broker_shows_is_known() -> None:
    known = settings_of("broker", TABLE)
    assert known.is_ours
    assert [key for key in TABLE if key not in known.by_key] == []
    assert known.of("slaveTimeout").live is True
    assert known.of("slaveTimeout").default == "3000"
    assert known.of("slaveTimeout").expected == "a whole number from 1 to 600000 (ms)"
    assert known.of("listenPort").live is False
    assert known.of("brokerName").default is None, "it depends on the machine"
    assert "no effect here" in known.of("accountStatsEnable").description


def test_settings_of_rocketmq_have_its_defaults_and_are_not_known_to_be_live() -> None:
    known = settings_of("broker", ROCKETMQS)
    assert not known.is_ours
    assert known.of("allAckInSyncStateSet").default == "false"
    assert known.of("slaveTimeout").live is None
    assert known.of("slaveTimeout").description.startswith("How long a send waits")
    assert known.of("brokerConfigPath").live is False


def test_every_kind_of_server_has_settings() -> None:
    for kind, keys in ROCKETMQ_KEYS.items():
        assert len(settings_of(kind, {"bindAddress": "", **dict.fromkeys(keys(), "")}).by_key) > 50


@pytest.mark.parametrize(
    ("table", "key", "text"),
    [
        (TABLE, "slaveTimeout", ""),
        (ROCKETMQS, "slaveTimeout", ""),
        (TABLE, "listenPort", "listenPort is not live"),
        (ROCKETMQS, "listenPort", "listenPort is not live"),
        (ROCKETMQS | {"brokerConfigPath": ""}, "brokerConfigPath", "brokerConfigPath is not live"),
        (ROCKETMQS, "brokerIP2", "brokerIP2 is not live"),
        (ROCKETMQS, "nosuch", "there is no setting nosuch"),
        (ROCKETMQS, "initAuthenticationUser", "initAuthenticationUser is a secret"),
    ],
)
def test_what_the_console_does_not_change_has_a_reason(
    table: dict[str, str], key: str, text: str
) -> None:
    reason = refusal(settings_of("broker", table), table, key)
    assert reason.startswith(text) if text else reason == ""
