"""The command line: its options, its help, and the shortest start of a server."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import cometmq
from cometmq.cli import build, event_loop
from cometmq.cli.commands import app
from cometmq.cli.server_options import ServerOptions, parse
from support.runner.build import compiled_modules

ROOT = typer.main.get_command(app)


def commands(group: Any = ROOT, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its full name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(commands())


def test_the_commands_are_all_there() -> None:
    assert {name for name in COMMANDS if not name.startswith("admin ")} == {
        "version", "standalone", "namesrv", "broker", "filtersrv", "controller", "send", "tail",
        "demo", "doctor", "console", "console-user", "mqadmin", "pipeline",
        "store list", "store show", "store verify", "store backup", "store restore",
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    command = COMMANDS[name]

    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name}"


def test_the_short_way_reads_plain_options() -> None:
    words = (
        "broker --processes 4 --port 0 --store=/s -n a:1;b:2 -c /f --log-level debug --host 0.0.0.0"
    )

    assert parse(words.split()) == ServerOptions(
        processes=4,
        port=0,
        store=Path("/s"),
        namesrv="a:1;b:2",
        config=Path("/f"),
        log_level="debug",
        host="0.0.0.0",
    )
    assert parse(["standalone", "--console", "--console-port=0"]) == ServerOptions(
        console=True, console_port=0
    )


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--version",
        "send t b",
        "broker --help",
        "broker --print-config",
        "broker --port",
        "broker --port x",
        "broker --port 65536",
        "broker --processes 0",
        "broker --processes 65",
        "broker --processes x",
        "broker --unknown 1",
        "broker extra",
        "broker -c=/f",
        "broker --console",
        "standalone --console=yes",
    ],
)
def test_the_short_way_leaves_anything_else_to_the_full_command_line(words: str) -> None:
    assert parse(words.split()) is None


def test_version_tells_which_build_runs() -> None:
    result = CliRunner().invoke(app, ["--version"])

    compiled = compiled_modules()
    kind = f"compiled: {len(compiled)} modules" if compiled else "interpreted"
    assert result.exit_code == 0
    assert result.output.startswith(f"cometmq {cometmq.__version__} ({kind}), Python 3.")


def test_the_build_is_the_one_that_is_under_test() -> None:
    """The tests know the modules by the list of the build, the command by what lies on disk."""
    assert build.compiled_modules() == sorted(compiled_modules())
    assert build.build() == ("compiled" if compiled_modules() else "interpreted")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--port", "70000"), ("--processes", "0"), ("--processes", "65"), ("--processes", "two")],
)
def test_a_mistake_is_named_and_ends_with_code_2(option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["broker", option, value])

    assert result.exit_code == 2
    assert option in result.output


def test_the_garbage_collector_is_on_in_the_event_loop_of_a_command() -> None:
    async def is_on() -> bool:
        return gc.isenabled()

    gc.disable()  # as the start of a server does
    try:
        assert event_loop.run(is_on())
    finally:
        gc.enable()  # what was frozen stays so, as the tests that were collected
