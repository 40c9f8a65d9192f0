"""Options that several commands share, with their help.

Short names are those of RocketMQ's start scripts, if these have them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cometmq.cli.quick import PROCESSES_MAX

NAMESRV_PORT = 9876
BROKER_PORT = 10911
CONTROLLER_PORT = 9878

Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        help="Local address to listen on; 0.0.0.0 for all IPv4 addresses.",
        show_default="127.0.0.1",
    ),
]
NamesrvPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65_535, help="TCP port of the name server; 0 for a free port.",
        show_default=str(NAMESRV_PORT),
    ),
]  # fmt: skip
BrokerPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65_535, help="TCP port of the broker, which also listens on this port minus 2; "
        "0 for free ports.", show_default=str(BROKER_PORT),
    ),
]  # fmt: skip
FilterServerPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65_535, help="TCP port of the filter server; 0 for a free port.",
        show_default="0",
    ),
]  # fmt: skip
ControllerPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65_535, help="TCP port of the controller; 0 for a free port.",
        show_default=str(CONTROLLER_PORT),
    ),
]  # fmt: skip
FilteredBroker = Annotated[
    str | None,
    typer.Option(
        "--broker", help="Broker whose messages are filtered: host:port.",
        show_default=f"127.0.0.1:{BROKER_PORT}",
    ),
]  # fmt: skip
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes", min=1, max=PROCESSES_MAX, metavar="N", show_default="none",
        help="Run N brokers of one cluster, each in its own process with its own name, ports and "
        "store.",
    ),
]  # fmt: skip
Store = Annotated[
    Path | None,
    typer.Option("--store", help="Directory of the broker's store.", show_default="~/store"),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("-c", "--config", help="Properties file with RocketMQ's keys.", metavar="FILE"),
]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print every setting in effect and its source."),
]
NameServers = Annotated[
    str | None,
    typer.Option(
        "-n", "--namesrv",
        help="Addresses of the name servers: host:port;host:port.",
        envvar="NAMESRV_ADDR",
        show_default="none",
    ),
]  # fmt: skip
ClientNameServers = Annotated[
    str,
    typer.Option(
        "-n", "--namesrv",
        help="Addresses of the name servers: host:port;host:port.",
        envvar="NAMESRV_ADDR",
    ),
]  # fmt: skip
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        help="Format of log lines: text, or json for one object per line.",
        show_default="text",
    ),
]
LogLevel = Annotated[
    str,
    typer.Option("--log-level", help="Minimum level of log lines: debug, info, warning or error."),
]
