"""Options that several commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cometmq.cli import server_options


def typer_option(option: server_options.Option) -> Any:
    """Return an option of the server commands as the command-line library takes it."""
    lowest, highest = option.bounds or (None, None)
    return typer.Option(
        *option.names,
        help=option.help,
        show_default=option.default,
        min=lowest,
        max=highest,
        metavar=option.metavar,
        envvar=option.environment,
    )


Certificate = Annotated[
    Path | None,
    typer.Option(help="Certificate for TLS, PEM.", metavar="FILE", show_default="none"),
]
CertificateKey = Annotated[
    Path | None,
    typer.Option(help="Key of the certificate, PEM.", metavar="FILE", show_default="none"),
]
Store = Annotated[Path | None, typer_option(server_options.STORE)]
ConfigFile = Annotated[Path | None, typer_option(server_options.CONFIG)]
NameServers = Annotated[str | None, typer_option(server_options.NAME_SERVERS)]
ClientNameServers = Annotated[str, typer_option(server_options.NAME_SERVERS._replace(default=True))]
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with the settings of the connections to the cluster.",
        metavar="FILE",
        show_default="the one COMETMQ_CONFIG names",
    ),
]
