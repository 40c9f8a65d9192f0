"""Makes the files that follow from the settings classes.

These are the samples in ``conf``, and a module with the types of the keywords of clients.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cometmq.access.account_settings import AccountSettings
from cometmq.access.user_settings import UserSettings
from cometmq.broker.config import BrokerSettings
from cometmq.broker.pop.config import PopSettings
from cometmq.client import settings as of_clients
from cometmq.client.settings import TIME_UNITS, ClientSettings
from cometmq.controller.config import ControllerSettings, EtcdSettings
from cometmq.filtersrv.config import FilterServerSettings
from cometmq.namesrv.config import NameServerSettings
from cometmq.remoting.config import RemotingSettings, TlsClientSettings, TlsSettings
from cometmq.store.config import StoreSettings
from cometmq.system import java_properties
from cometmq.system.log_format import LogSettings
from cometmq.system.settings import Setting, describe, field_texts
from tools.generate.root import ROOT

FOLDER = ROOT / "conf"
OPTIONS = ROOT / "src/cometmq/client/options.py"
LINE_CHARS_MAX = 96
CODE_CHARS_MAX = 100
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
        "pop consumption": [PopSettings],
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


def sample(title: str, parts: Mapping[str, Iterable[type]]) -> str:
    """Return a properties file that names every key, commented out, at its default.

    Args:
        title: the comment at the top.
        parts: heading → the settings classes below it.
    """
    lines = [f"# {line}" for line in textwrap.wrap(title, LINE_CHARS_MAX)]
    seen: set[str] = set()
    for heading, settings_classes in parts.items():
        lines += ["", f"# ---- {heading} ".ljust(LINE_CHARS_MAX + 2, "-")]
        for settings_class in settings_classes:
            for setting in describe(settings_class):
                if setting.key not in seen:
                    seen.add(setting.key)
                    lines += ["", *_entry(setting, field_texts(settings_class)[setting.name])]
    return "\n".join(lines) + "\n"


def _entry(setting: Setting, text: str) -> list[str]:
    words = f"{text} Expected: {setting.expectation}."
    if setting.remote:
        words += " Can be changed while the server runs."
    lines = [f"# {line}" for line in textwrap.wrap(words, LINE_CHARS_MAX)]
    return [*lines, "#" + java_properties.render({setting.key: _default_text(setting)}).rstrip()]


def _default_text(setting: Setting) -> str:
    """The default as text; one that depends on the machine is left to the machine."""
    return "" if setting.depends_on_machine else setting.render(setting.default())


def client_settings() -> list[Any]:
    """The settings classes of the client, in the order of their page."""
    return [getattr(of_clients, name) for name in of_clients.__all__]


def client_sample() -> str:
    """A TOML file that names every client setting, commented out, at its default."""
    lines = [
        "# Settings of CometMQ's client. Name this file in COMETMQ_CONFIG, or pass it as config=.",
        "# Every line is at its default. Environment variables, settings objects and keywords take",
        "# precedence over this file.",
    ]
    for kind in client_settings():
        lines += ["", f"[{kind.section}]"]
        for setting in describe(kind):
            text = f"{field_texts(kind)[setting.name]} Expected: {setting.expectation}.".replace(
                "``", "`"
            )
            lines += ["", *(f"# {line}" for line in textwrap.wrap(text, LINE_CHARS_MAX))]
            lines.append(f"#{setting.name} = {_toml(setting.default())}")
    return "\n".join(lines) + "\n"


def client_options() -> str:
    """A module that tells type checkers the keywords of constructors, and their types.

    Constructors have a parameter for the addresses of the name servers, so their keywords are the
    other settings of a connection, and those of one kind of client.
    """
    addresses, *connection = describe(ClientSettings)
    lines = [
        '"""Types of the settings that constructors take by name. Made by tools/generate."""',
        "",
        "from datetime import timedelta",
        "from pathlib import Path",
        "from typing import Literal, TypedDict",
        *_typed_dict("ConnectionOptions", "TypedDict", "Settings of connections.", connection),
        *_typed_dict("ClientOptions", "ConnectionOptions", "`ClientSettings`.", [addresses]),
    ]
    for kind in client_settings()[1:]:
        name, text = kind.__name__.removesuffix("Settings"), f"`{kind.__name__}`."
        lines += _typed_dict(f"{name}OnlyOptions", "TypedDict", text, describe(kind))
        if kind.section == "trace":
            continue  # no constructor takes these by name
        bases = f"{name}OnlyOptions, ConnectionOptions"
        lines += _typed_dict(f"{name}Options", bases, text[:-1] + " and settings of connections.")
    return "\n".join(lines) + "\n"


def _typed_dict(
    name: str, bases: str, text: str, settings: Iterable[Setting] = ()
) -> Iterator[str]:
    yield from ("", "", f"class {name}({bases}, total=False):", f'    """{text}"""')
    if options := [_option(setting) for setting in settings]:
        yield from ("", *options)


def _option(setting: Setting) -> str:
    """A setting in a program, where a time may be a `timedelta`."""
    if setting.choices:
        choices = [json.dumps(choice) for choice in setting.choices]
        line = f"    {setting.name}: Literal[{', '.join(choices)}]"
        if len(line) <= CODE_CHARS_MAX:
            return line
        return f"    {setting.name}: Literal[\n        " + ",\n        ".join(choices) + ",\n    ]"
    text = inspect.formatannotation(setting.kind, setting.kind.__module__)
    others = ["timedelta"] * (setting.unit in TIME_UNITS) + ["str"] * (setting.kind is Path)
    others += ["None"] * setting.optional
    return f"    {setting.name}: " + " | ".join([text, *others])


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float | tuple):
        return json.dumps(value)
    return json.dumps("" if value is None else str(value))


def files() -> Iterator[tuple[Path, str]]:
    """The samples and the module of options."""
    for name, text in samples().items():
        yield FOLDER / name, text
    yield FOLDER / "client.toml", client_sample()
    yield OPTIONS, client_options()
