"""Arguments and options of several commands, their completion, and how their texts are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from cometmq.cli.admin.output import Change
from cometmq.model.errors import ConfigError
from cometmq.model.nouns import counted
from cometmq.protocol.bodies.route import RegisteredBroker

COMPLETED_MAX = 200
"""Words that a shell is offered."""
NAMED_MAX = 20
"""Names of a file that a change shows."""


def _names(kind: str) -> Callable[[Any, str], list[str]]:
    """Return a completion with the names that a name server knows: topics, groups and so on."""

    def complete(ctx: Any, incomplete: str) -> list[str]:
        from cometmq.cli.admin.completion import names

        found: Iterable[str] = names(
            kind, ctx.params.get("namesrv") or "", ctx.params.get("config")
        )
        return [each for each in found if each.startswith(incomplete)][:COMPLETED_MAX]

    return complete


TopicName = Annotated[str, typer.Argument(help="Topic.", autocompletion=_names("topics"))]
OptionalTopic = Annotated[
    str | None,
    typer.Option(
        "--topic", help="Only this topic.", autocompletion=_names("topics"), show_default="all"
    ),
]
GroupName = Annotated[str, typer.Argument(help="Consumer group.", autocompletion=_names("groups"))]
BrokerArgument = Annotated[
    str,
    typer.Argument(
        help="Broker: its name, or its address host:port.", autocompletion=_names("brokers")
    ),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker", help="Only this broker: its name, or its address host:port.",
        autocompletion=_names("brokers"), show_default="all",
    ),
]  # fmt: skip
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="Only the brokers of this cluster.", autocompletion=_names("clusters"),
        show_default="all",
    ),
]  # fmt: skip
SettingsFile = Annotated[
    Path, typer.Argument(help="JSON file with a list of settings.", metavar="FILE")
]


def queue_of(text: str) -> tuple[str, int]:
    """Return the broker's name and the number of a queue that is written ``broker:number``.

    Raises:
        ConfigError: the text has another form.
    """
    broker, _, number = text.rpartition(":")
    if not broker or not (number.isascii() and number.isdecimal()):
        raise ConfigError(f"queue {text}: expected BROKER:NUMBER, such as broker-a:0")
    return broker, int(number)


S = TypeVar("S", bound=msgspec.Struct)


def settings_in(file: Path, kind: type[S]) -> list[S]:
    """Read a JSON file with a list of settings.

    Raises:
        ConfigError: the file cannot be read, or is not such a list.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[kind])  # type: ignore[valid-type]
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file}: expected a JSON list of settings: {error}") from None


def settings_changes(
    file: Path,
    configs: list[S],
    noun: str,
    servers: Iterable[RegisteredBroker],
    apply: Callable[[str, list[S]], Awaitable[object]],
    warnings: Mapping[str, str] | None = None,
) -> list[Change]:
    """Return the changes that apply the settings of a JSON file to brokers.

    Args:
        file: names them.
        configs: the settings, see `settings_in`; their field ``topic_name`` or ``group_name`` names
            each.
        noun: ``topic`` or ``group``.
        servers: the brokers.
        apply: applies settings to the broker at an address.
        warnings: what the change of a broker loses, by the name of the broker.
    """
    detail = names_shown([getattr(each, f"{noun}_name") for each in configs])
    what = f"apply {counted(len(configs), noun)} of {file}"
    changes = []
    for each in servers:
        lost = (warnings or {}).get(each.name, "")
        run = partial(apply, each.address, configs)
        text = f"{detail}; {lost}" if lost else detail
        changes.append(Change(what, each.name, run, text, destroys=True))
    return changes


def names_shown(names: Sequence[str]) -> str:
    """Return the first of many names, and how many more there are."""
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def print_settings(tables: Iterable[Mapping[str, msgspec.Struct]]) -> None:
    """Print the settings of brokers as one JSON list, which `settings_in` reads.

    Raises:
        ConfigError: two brokers have different settings of one name.
    """
    found: dict[str, msgspec.Struct] = {}
    for table in tables:
        for name, config in table.items():
            if found.setdefault(name, config) != config:
                raise ConfigError(
                    f"the settings of {name} differ between brokers: export one with --broker"
                )
    listed = [found[name] for name in sorted(found)]
    print(msgspec.json.format(msgspec.json.encode(listed), indent=2).decode())
