"""Writes the sample configuration files from the settings classes: ``python conf/update.py``."""

from __future__ import annotations

from pathlib import Path

from cometmq.access.account_settings import AccountSettings
from cometmq.access.user_settings import UserSettings
from cometmq.broker.config import BrokerSettings
from cometmq.controller.config import ControllerSettings, EtcdSettings
from cometmq.filtersrv.config import FilterServerSettings
from cometmq.namesrv.config import NameServerSettings
from cometmq.remoting.config import RemotingSettings, TlsClientSettings, TlsSettings
from cometmq.store.config import StoreSettings
from cometmq.system.log_format import LogSettings
from cometmq.system.settings_sample import sample

FOLDER = Path(__file__).parent
RULES = (
    "Java properties: key=value, one a line; # begins a comment. Every key stands here with its"
    " default: take the # away to set it. An empty default means none, unless the comment states"
    " one. Keys that RocketMQ has and that have no effect here are named in one warning at the"
    " start, unknown keys stop it."
)
NETWORK: dict[str, list[type]] = {
    "network": [RemotingSettings],
    "TLS": [TlsSettings],
    "TLS of outgoing connections": [TlsClientSettings],
    "logs": [LogSettings],
}
PARTS: dict[str, dict[str, list[type]]] = {
    "broker.conf": {
        "broker": [BrokerSettings],
        "users and policies": [UserSettings],
        "store": [StoreSettings],
        **NETWORK,
    },
    "namesrv.conf": {
        "name server": [NameServerSettings],
        "access control": [AccountSettings],
        **NETWORK,
    },
    "filtersrv.conf": {"filter server": [FilterServerSettings], **NETWORK},
    "controller.conf": {
        "controller": [ControllerSettings],
        "etcd": [EtcdSettings],
        "access control": [AccountSettings],
        **NETWORK,
    },
}
TITLES = {
    "broker.conf": "A broker's settings: cometmq broker -c broker.conf.",
    "namesrv.conf": "A name server's settings: cometmq namesrv -c namesrv.conf.",
    "filtersrv.conf": "A filter server's settings: cometmq filtersrv -c filtersrv.conf.",
    "controller.conf": "A controller's settings: cometmq controller -c controller.conf.",
}


def samples() -> dict[str, str]:
    """Return the text of every sample file by its name."""
    return {name: sample(f"{TITLES[name]} {RULES}", parts) for name, parts in PARTS.items()}


if __name__ == "__main__":
    for name, text in samples().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
