"""The groups of ``cometmq admin``. The module of a group is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

GROUPS = ("topic", "dlq")
"""The names of the groups, which are those of their modules, in the order of the help."""


class _Modules(MutableMapping[str, Any]):
    """The commands of the groups by name; each is made when it is read."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            if name not in GROUPS:
                raise KeyError(name)
            module = import_module(f"cometmq.cli.admin.{name}")
            command = typer.main.get_command(module.app)
            command.name = name
            self._made[name] = command
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(GROUPS)

    def __len__(self) -> int:
        return len(GROUPS)


class Groups(TyperGroup):
    """The groups, without a module of theirs until one is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": _Modules()})


app = typer.Typer(
    cls=Groups,
    help="Manage topics, groups, messages, brokers and everything else of a cluster.",
    no_args_is_help=True,
)
