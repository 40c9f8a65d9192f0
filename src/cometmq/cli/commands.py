"""The commands and their options. The code of a command is imported when it runs."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Annotated, Any

import typer

from cometmq.cli import options, server_options
from cometmq.cli.admin.app import app as admin_app
from cometmq.cli.bench.app import app as bench_app
from cometmq.cli.server_options import ServerCommand, ServerOptions

app = typer.Typer(
    name="cometmq",
    help="A durable message queue in Python, with the protocol and the files of Apache RocketMQ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
store_app = typer.Typer(
    help="Inspect and back up the files of a store without changing them.", no_args_is_help=True
)
app.add_typer(store_app, name="store")
app.add_typer(admin_app, name="admin")
app.add_typer(bench_app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """The options before a command."""


@app.command()
def version() -> None:
    """Show the version and which build runs: compiled or interpreted."""
    from cometmq.cli.build import version_line

    typer.echo(version_line())


def _add_server(name: str, server: ServerCommand) -> None:
    def command(**values: Any) -> None:
        from cometmq.cli import servers

        raise typer.Exit(servers.COMMANDS[name](ServerOptions(**values)))

    usual = ServerOptions()
    kinds = typing.get_type_hints(ServerOptions)
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                each.parameter,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(usual, each.parameter),
                annotation=Annotated[kinds[each.parameter], options.typer_option(each)],
            )
            for each in server.options
        ]
    )
    app.command(name, help=server.help)(command)


for _name, _server in server_options.COMMANDS.items():
    _add_server(_name, _server)


@app.command()
def send(
    topic: Annotated[str, typer.Argument(help="Topic to send to.")],
    body: Annotated[
        str,
        typer.Argument(help="Text to send; - sends each line of standard input that is not empty."),
    ],
    namesrv: options.ClientNameServers = "127.0.0.1:9876",
    tag: Annotated[str | None, typer.Option(help="Tag to filter by.", show_default="none")] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Key for lookups; repeat for several keys.")
    ] = None,
    order_key: Annotated[
        str | None,
        typer.Option(
            help="Messages with the same order key go to the same queue.", show_default="none"
        ),
    ] = None,
    delay_level: Annotated[
        int, typer.Option(min=0, help="Delay level of the broker; 0 for no delay.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.01, help="Timeout of each send in seconds.")
    ] = 3.0,
) -> None:
    """Send messages and print queue, offset and id of each."""
    from cometmq.cli import messages
    from cometmq.cli.event_loop import run

    wanted = messages.Sending(
        topic, tag=tag, keys=tuple(key or ()), order_key=order_key,
        delay_level=delay_level, timeout=timeout,
    )  # fmt: skip
    run(messages.send(namesrv, wanted, messages.bodies(body)))


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="Topic to read.")],
    namesrv: options.ClientNameServers = "127.0.0.1:9876",
    last: Annotated[
        int, typer.Option(min=0, help="Start this many messages before the end of each queue.")
    ] = 10,
    count: Annotated[
        int, typer.Option(min=0, help="Stop after this many messages; 0 for no limit.")
    ] = 0,
    tag: Annotated[str, typer.Option(help="Tags to read: a || b; * for all.")] = "*",
    sql: Annotated[
        str | None,
        typer.Option(
            help="SQL92 filter instead of tags; needs enablePropertyFilter=true at the brokers.",
            show_default="no",
        ),
    ] = None,
) -> None:
    """Print a topic's messages as they arrive, without committing offsets."""
    from cometmq.cli import messages
    from cometmq.cli.event_loop import run

    run(messages.tail(namesrv, topic, tags=tag, sql=sql, last=last, count=count))


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(min=5, max=600, help="Duration of the demo in seconds.")
    ] = 15.0,
    rate: Annotated[int, typer.Option(min=1, max=5_000, help="Messages sent per second.")] = 500,
) -> None:
    """Run a server under load, kill it with SIGKILL, and check that no message is lost."""
    from cometmq.cli.demo import run_demo

    raise typer.Exit(run_demo(seconds=seconds, rate=rate))


@app.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []}, hidden=True
)
def pipeline(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Name of a pipeline of an earlier version.", metavar="NAME [OPTIONS]"),
    ] = None,
) -> None:
    """Print what to use instead of a pipeline of an earlier version."""
    from cometmq.cli import pipeline as pipelines

    pipelines.run(words or ())


@app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
def mqadmin(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Command of RocketMQ's mqadmin and its flags; none lists the commands.",
            metavar="[--like 4.9] NAME [FLAGS]",
        ),
    ] = None,
) -> None:
    """Manage a cluster with the commands of RocketMQ's mqadmin."""
    from cometmq.cli.mqadmin import app as tool

    raise typer.Exit(tool.main(words or ()))


@app.command()
def doctor(
    server: Annotated[
        str,
        typer.Option(
            help="Server that the configuration file is for: broker, namesrv or controller."
        ),
    ] = "broker",
    config: options.ConfigFile = None,
    store: options.Store = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrv",
            help="Addresses of the name servers of a cluster to examine: host:port;host:port.",
            envvar="NAMESRV_ADDR",
            show_default="none",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print all findings as one JSON object.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="List also what is as expected.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 on a warning, too.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=600, help="Timeout of each check in seconds.")
    ] = 10.0,
) -> None:
    """Check a server on its host, or a cluster, and say what to do; exit code 1 on a problem."""
    from cometmq.cli.doctor.app import doctor as examine

    raise typer.Exit(
        examine(
            server=server,
            config=config,
            store=store,
            namesrv=namesrv,
            as_json=json,
            everything=everything,
            strict=strict,
            timeout_s=timeout,
        )
    )


@app.command()
def proxy(
    namesrv: options.ClientNameServers = "127.0.0.1:9876",
    config: options.ClientConfig = None,
    host: Annotated[str, options.typer_option(server_options.HOST)] = "127.0.0.1",
    port: Annotated[int, options.typer_option(server_options.PROXY_PORT)] = 8081,
    certificate: options.Certificate = None,
    key: options.CertificateKey = None,
) -> None:
    """Serve the gRPC clients of RocketMQ 5, until SIGTERM or Ctrl-C."""
    from cometmq.cli.proxy import run_proxy

    run_proxy(namesrv, config, host=host, port=port, certificate=certificate, key=key)


@app.command()
def console(
    namesrv: options.ClientNameServers = "127.0.0.1:9876",
    config: options.ClientConfig = None,
    host: Annotated[str, options.typer_option(server_options.HOST)] = "127.0.0.1",
    port: Annotated[int, options.typer_option(server_options.CONSOLE_PORT)] = 8082,
    users: Annotated[
        Path | None,
        typer.Option(
            help="File of users, who sign in; without it there is no sign-in, on loopback only.",
            metavar="FILE",
            show_default="none",
        ),
    ] = None,
    audit_log: Annotated[
        Path | None,
        typer.Option(
            help="File that gets a line for each sign-in, and two for each change.",
            metavar="FILE",
            show_default="audit.log beside the users",
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse changes, whatever the role of a user.")
    ] = False,
    certificate: options.Certificate = None,
    key: options.CertificateKey = None,
) -> None:
    """Serve a web application that shows a cluster, until SIGTERM or Ctrl-C."""
    from cometmq.cli.console import serve

    raise typer.Exit(
        serve(
            namesrv,
            config,
            host=host,
            port=port,
            users=users,
            audit_log=audit_log,
            read_only=read_only,
            certificate=certificate,
            key=key,
        )
    )


@app.command()
def console_user(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    users: Annotated[Path, typer.Option(help="File of users.", metavar="FILE")],
    role: Annotated[str, typer.Option(help="reader, operator or administrator.")] = "reader",
) -> None:
    """Add a user of the console, or change one; reads the password from the terminal."""
    from cometmq.cli.console import add_user

    add_user(users, name, role)


StorePath = Annotated[Path, typer.Argument(help="Directory of the store.", metavar="DIR")]


@store_app.command("list")
def store_list(path: StorePath, config: options.ConfigFile = None) -> None:
    """List the queues of a store with their offsets and message counts."""
    from cometmq.cli import store_files

    store_files.list_queues(path, config)


@store_app.command("show")
def store_show(
    path: StorePath,
    topic: Annotated[str, typer.Argument(help="Topic of the queue.")],
    queue: Annotated[int, typer.Option(min=0, help="Queue id.")] = 0,
    offset: Annotated[
        int | None,
        typer.Option(help="Queue offset of the first message.", show_default="the oldest"),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of messages to print.")] = 10,
    config: options.ConfigFile = None,
) -> None:
    """Print messages of one queue of a store."""
    from cometmq.cli import store_files

    store_files.show(path, config, topic, queue, offset, count)


@store_app.command("verify")
def store_verify(path: StorePath, config: options.ConfigFile = None) -> None:
    """Check all records, consume-queue units and index entries; exit code 1 on a finding."""
    from cometmq.cli import store_files

    raise typer.Exit(0 if store_files.verify(path, config) else 1)


@store_app.command("backup")
def store_backup(
    path: StorePath,
    to: Annotated[Path, typer.Option(help="Directory to make.", metavar="DIR")],
    link: Annotated[
        bool, typer.Option("--link", help="Make hard links to full log files instead of copies.")
    ] = False,
    config: options.ConfigFile = None,
) -> None:
    """Make a consistent backup of a store, which a broker may use meanwhile."""
    from cometmq.cli import store_files

    store_files.backup(path, to, config, link=link)


@store_app.command("restore")
def store_restore(
    path: Annotated[Path, typer.Argument(help="Directory of the backup.", metavar="BACKUP")],
    to: Annotated[Path, typer.Option(help="Directory of the new store.", metavar="DIR")],
    config: options.ConfigFile = None,
) -> None:
    """Make a store of a backup; exit code 1 if any file of it has changed."""
    from cometmq.cli import store_files

    store_files.restore(path, to, config)
