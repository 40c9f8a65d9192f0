"""What is known of the settings of servers: defaults, limits, descriptions, and which are live.

Of CometMQ's servers it is what their settings classes declare; of RocketMQ's the defaults.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from cometmq.system.rocketmq_keys import (
    BROKER_KEYS,
    CONTROLLER_KEYS,
    NAMESRV_KEYS,
    PROTECTED_KEYS,
    Keys,
    is_secret_key,
)
from cometmq.system.settings import describe, field_texts

BROKER, NAME_SERVER, CONTROLLER = "broker", "name server", "controller"
ROCKETMQ_KEYS: dict[str, Keys] = {
    BROKER: BROKER_KEYS,
    NAME_SERVER: NAMESRV_KEYS,
    CONTROLLER: CONTROLLER_KEYS,
}


_PLACE = re.compile("Path|Port$|IP|Home")
"""The names of paths, ports and addresses."""


class Known(NamedTuple):
    """What is known of one setting of one kind of server."""

    default: str | None
    """None if it depends on the machine, or is not known."""
    live: bool | None
    """Whether a request may change it; None if that is not known."""
    expected: str = ""
    description: str = ""


class Settings(NamedTuple):
    """What is known of the settings of a server."""

    is_ours: bool
    """Whether it is a server of CometMQ."""
    by_key: Mapping[str, Known]

    def of(self, key: str) -> Known:
        """Return what is known of a setting."""
        return self.by_key.get(key, Known(None, None))


def settings_of(kind: str, table: Mapping[str, str]) -> Settings:
    """Return what is known of the settings of a server.

    Args:
        kind: a key of `ROCKETMQ_KEYS`.
        table: the settings that it shows: only CometMQ's servers have keys that RocketMQ lacks.
    """
    ours, rocketmqs = _ours(kind), ROCKETMQ_KEYS[kind]()
    if table.keys() & ours.keys() - rocketmqs.keys():
        without_effect = "A setting of RocketMQ, which has no effect here."
        others = {
            key: Known(default, live=False, description=without_effect)
            for key, default in rocketmqs.items()
        }
        return Settings(is_ours=True, by_key=others | ours)
    return Settings(
        is_ours=False,
        by_key={
            key: Known(
                default,
                live=False if _is_fixed(key, ours.get(key)) else None,
                description=ours[key].description if key in ours else "",
            )
            for key, default in rocketmqs.items()
        },
    )


def _is_fixed(key: str, known: Known | None) -> bool:
    """Return whether a setting of RocketMQ is none that the console changes in a running server.

    RocketMQ's brokers take a new port, and register with it, although they do not listen there.

    Args:
        key: the setting.
        known: what is known of the same setting of our servers.
    """
    is_place = _PLACE.search(key) is not None
    return key in PROTECTED_KEYS or is_place or (known is not None and not known.live)


@functools.cache
def _ours(kind: str) -> dict[str, Known]:
    """Return the settings of CometMQ's servers of a kind; a key of two classes is live if it is
    live in both."""
    found: dict[str, Known] = {}
    for settings_class in _classes(kind):
        texts = field_texts(settings_class)
        for each in describe(settings_class):
            live = each.remote and (each.key not in found or found[each.key].live is True)
            default = None if each.depends_on_machine else each.render(each.default())
            text = texts.get(each.name, "").replace("``", "")
            known = Known(default, live, each.expectation, text)
            found[each.key] = found.get(each.key, known)._replace(live=live)
    return found


def _classes(kind: str) -> tuple[type, ...]:
    """Return the settings classes of a server, which are loaded when the page is first read."""
    if kind == BROKER:
        from cometmq.broker.app import SETTINGS

        return tuple(SETTINGS)
    if kind == NAME_SERVER:
        from cometmq.namesrv.app import SETTINGS as OF_NAME_SERVER

        return tuple(OF_NAME_SERVER)
    from cometmq.controller.app import SETTINGS as OF_CONTROLLER

    return tuple(OF_CONTROLLER)


def refusal(settings: Settings, table: Mapping[str, str], key: str) -> str:
    """Return why the console does not change a setting of a server; empty if it does.

    Args:
        settings: what is known of the server's settings.
        table: the settings that it shows.
        key: the setting.
    """
    if is_secret_key(key):
        return f"{key} is a secret: set it in the file of the server"
    if key not in table:  # RocketMQ's servers ignore such a key without an error
        return f"there is no setting {key}"
    if settings.of(key).live is False:
        return f"{key} is not live: set it in the file, and start the server again"
    return ""
