"""The command line: its options, its help, and the shortest start of a server."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import cometmq
from cometmq.broker.config import BrokerSettings
from cometmq.cli import build, event_loop
from cometmq.cli.bench.app import HELP
from cometmq.cli.commands import app
from cometmq.cli.configurations import broker_configuration
from cometmq.cli.server_options import ServerOptions, parse
from cometmq.model.errors import ConfigError
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
        "demo", "doctor", "console", "console-user", "proxy", "mqadmin", "pipeline",
        *(f"bench {kind}" for kind in (*HELP, "compare")),
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
        " --set brokerName=b --set=brokerIP1="
    )

    assert parse(words.split()) == ServerOptions(
        processes=4,
        port=0,
        store=Path("/s"),
        namesrv="a:1;b:2",
        config=Path("/f"),
        log_level="debug",
        host="0.0.0.0",
        set=["brokerName=b", "brokerIP1="],
    )
    assert parse(["standalone", "--console", "--console-port=0"]) == ServerOptions(
        console=True, console_port=0
    )


def test_a_setting_of_the_command_line_takes_precedence_over_file_and_option(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=of-the-file\nbrokerIP1=192.0.2.1\n")
    options = ServerOptions(config=file, port=1, set=["brokerName=a=b", "listenPort=2"])
    settings = broker_configuration(options)[BrokerSettings]

    assert (settings.broker_name, settings.listen_port) == ("a=b", 2)
    assert settings.broker_ip1 == "192.0.2.1"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("brokerName", "--set brokerName: expected KEY=VALUE"),
        ("=b", "--set =b: expected KEY=VALUE"),
        ("brokerNmae=b", "command line: there is no setting 'brokerNmae'; did you mean brokerName"),
    ],
)
def test_a_setting_of_the_command_line_that_is_wrong_is_named(word: str, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        broker_configuration(ServerOptions(set=[word]))


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
