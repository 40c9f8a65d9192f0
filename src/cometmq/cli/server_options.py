"""The server commands and their options: one table of names, checks, help and settings.

The table is read without the command-line library, which loads slower than a server starts:
`parse` reads plain options and leaves other arguments (help, mistakes) to the full command line,
which takes its options from the same table.

Short names are those of RocketMQ's start scripts, if these have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cometmq.model.errors import ConfigError

PROCESSES_MAX = 64
PORT_MAX = 65_535


class ServerOptions(NamedTuple):
    """The values of the options of a server command."""

    port: int | None = None
    namesrv_port: int | None = None
    broker_port: int | None = None
    console: bool = False
    console_port: int = 8082
    host: str | None = None
    store: Path | None = None
    namesrv: str | None = None
    broker: str | None = None
    processes: int | None = None
    config: Path | None = None
    print_config: bool = False
    log_level: str = "info"
    log_format: str | None = None
    set: list[str] | None = None

    def settings(self, **more: object) -> dict[str, str]:
        """Return the settings that the options are, and further ones, by RocketMQ's keys.

        Raises:
            ConfigError: a value of ``--set`` has no key.
        """
        values = {
            "bindAddress": self.host,
            "listenPort": self.port,
            "storePathRootDir": self.store,
            "namesrvAddr": self.namesrv,
            "connectWhichBroker": self.broker,
            **more,
        }
        texts = {key: str(value) for key, value in values.items() if value is not None}
        for word in self.set or ():
            key, equals, text = word.partition("=")
            if not (key and equals):
                raise ConfigError(f"--set {word}: expected KEY=VALUE, such as brokerName=broker-a")
            texts[key] = text
        return texts


class Option(NamedTuple):
    """One option: how it is written, and what its help says."""

    parameter: str
    """Its field in `ServerOptions`."""
    names: tuple[str, ...]
    help: str
    default: str | bool = True
    """The default that the help shows; True for the value itself."""
    kind: type = str
    bounds: tuple[int, int] | None = None
    metavar: str | None = None
    environment: str | None = None
    repeats: bool = False
    """Whether it may be given several times."""

    def read(self, text: str) -> Any:
        """Return the value that a text stands for.

        Raises:
            ValueError: it stands for none.
        """
        if self.bounds is None:
            return self.kind(text)
        lowest, highest = self.bounds
        if not (text.isascii() and text.isdigit() and lowest <= int(text) <= highest):
            raise ValueError(text)
        return int(text)


def _port(server: str, default: int, name: str = "port", more: str = "") -> Option:
    text = f"TCP port of the {server}{more}; 0 for {'free ports' if more else 'a free port'}."
    option = f"--{name.replace('_', '-')}"
    return Option(name, (option,), text, str(default), int, (0, PORT_MAX))


NAMESRV_PORT, BROKER_PORT, CONTROLLER_PORT = 9876, 10911, 9878
_BROKER_PORTS = ", which also listens on this port minus 2"
CONSOLE_PORT = _port("console", 8082)
PROXY_PORT = _port("proxy", 8081)
CONSOLE = Option(
    "console",
    ("--console",),
    "Serve the console, too, which shows the server in a browser, on loopback.",
    kind=bool,
)
HOST = Option(
    "host", ("--host",), "Local address to listen on; 0.0.0.0 for all IPv4 addresses.", "127.0.0.1"
)
STORE = Option("store", ("--store",), "Directory of the broker's store.", "~/store", Path)
NAME_SERVERS = Option(
    "namesrv",
    ("-n", "--namesrv"),
    "Addresses of the name servers: host:port;host:port.",
    "none",
    environment="NAMESRV_ADDR",
)
FILTERED_BROKER = Option(
    "broker",
    ("--broker",),
    "Broker whose messages are filtered: host:port.",
    f"127.0.0.1:{BROKER_PORT}",
)
PROCESSES = Option(
    "processes",
    ("--processes",),
    "Run N brokers of one cluster, each in its own process with its own name, ports and store.",
    "none",
    int,
    (1, PROCESSES_MAX),
    "N",
)
CONFIG = Option(
    "config", ("-c", "--config"), "Properties file with RocketMQ's keys.", kind=Path, metavar="FILE"
)
COMMON = (
    CONFIG,
    Option(
        "set",
        ("--set",),
        "Set one setting by RocketMQ's key; it takes precedence over the file. May be repeated.",
        "none",
        metavar="KEY=VALUE",
        repeats=True,
    ),
    Option(
        "print_config",
        ("--print-config",),
        "Print every setting in effect and its source.",
        kind=bool,
    ),
    Option(
        "log_level", ("--log-level",), "Minimum level of log lines: debug, info, warning or error."
    ),
    Option(
        "log_format",
        ("--log-format",),
        "Format of log lines: text, or json for one object per line.",
        "text",
    ),
)


class ServerCommand(NamedTuple):
    """A command that runs a server."""

    help: str
    options: tuple[Option, ...]


COMMANDS: Mapping[str, ServerCommand] = {
    "standalone": ServerCommand(
        "Run a name server and a broker in one process until SIGTERM or Ctrl-C.",
        (
            _port("name server", NAMESRV_PORT, "namesrv_port"),
            _port("broker", BROKER_PORT, "broker_port", _BROKER_PORTS),
            CONSOLE,
            _port("console", 8082, "console_port"),
            HOST,
            STORE,
            *COMMON,
        ),
    ),
    "namesrv": ServerCommand(
        "Run a name server until SIGTERM or Ctrl-C.",
        (_port("name server", NAMESRV_PORT), HOST, *COMMON),
    ),
    "broker": ServerCommand(
        "Run a broker, or several with --processes, until SIGTERM or Ctrl-C.",
        (
            _port("broker", BROKER_PORT, more=_BROKER_PORTS),
            HOST,
            STORE,
            NAME_SERVERS,
            PROCESSES,
            *COMMON,
        ),
    ),
    "filtersrv": ServerCommand(
        "Run a filter server, which serves class filters, until SIGTERM or Ctrl-C.",
        (_port("filter server", 0), HOST, FILTERED_BROKER, *COMMON),
    ),
    "controller": ServerCommand(
        "Run a controller, which elects masters of brokers, until SIGTERM or Ctrl-C.",
        (_port("controller", CONTROLLER_PORT), HOST, *COMMON),
    ),
}
"""The server commands; ``namesrv``, ``broker`` and ``filtersrv`` have the options of mqnamesrv,
mqbroker and mqfiltersrv."""


def parse(arguments: list[str]) -> ServerOptions | None:
    """Read the arguments of a server command; None if they take more than this to read."""
    if not arguments or arguments[0] not in COMMANDS:
        return None
    known = {name: each for each in COMMANDS[arguments[0]].options for name in each.names}
    values: dict[str, Any] = {}
    words = iter(arguments[1:])
    for word in words:
        name, equals, text = word.partition("=")
        option = known.get(name)
        if option is CONSOLE and not equals:
            values[option.parameter] = True
            continue
        value = text if equals else next(words, None)
        if option is None or option.kind is bool or value is None:
            return None
        if equals and not name.startswith("--"):
            return None
        try:
            if option.repeats:
                values.setdefault(option.parameter, []).append(option.read(value))
            else:
                values[option.parameter] = option.read(value)
        except ValueError:
            return None
    return ServerOptions(**values)
