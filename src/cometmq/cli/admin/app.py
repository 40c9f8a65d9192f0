"""The groups of ``cometmq admin``. The module of a group is imported when it is used."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

GROUPS = (
    "topic",
    "group",
    "message",
    "offset",
    "dlq",
    "broker",
    "cluster",
    "config",
    "trace",
    "timer",
    "acl",
    "controller",
    "namesrv",
)
"""The names of the groups and of their modules, in the order of the help."""


@functools.cache
def _group(name: str) -> Any:
    group = typer.main.get_group(import_module(f"cometmq.cli.admin.{name}").app)
    group.name = name
    return group


class _Modules(Mapping[str, Any]):
    """The groups by name; each is made when it is read."""

    def __getitem__(self, name: str) -> Any:
        if name not in GROUPS:
            raise KeyError(name)
        return _group(name)

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
