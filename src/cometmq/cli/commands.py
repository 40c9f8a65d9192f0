"""The commands and their options; what they do is imported when one of them runs.

Source: ours; ``namesrv`` and ``broker`` take the options of mqnamesrv and mqbroker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cometmq.cli import options

app = typer.Typer(
    name="cometmq",
    help="Apache RocketMQ's message platform in Python: name server, broker, store and client.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
store_app = typer.Typer(
    help="Look into the files of a store, without changing them.", no_args_is_help=True
)
app.add_typer(store_app, name="store")


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
    """Take the options that come before a command."""


@app.command()
def version() -> None:
    """Show the version and which build runs: compiled or interpreted."""
    from cometmq.cli.build import version_line

    typer.echo(version_line())


@app.command()
def standalone(
    namesrv_port: options.NamesrvPort = None,
    broker_port: options.BrokerPort = None,
    host: options.Host = None,
    store: options.Store = None,
    config: options.ConfigFile = None,
    print_config: options.PrintConfig = False,
    log_level: options.LogLevel = "info",
) -> None:
    """Run a name server and a broker in one process until SIGTERM or Ctrl-C."""
    from cometmq.cli import servers

    raise typer.Exit(
        servers.standalone(
            namesrv_port=namesrv_port,
            broker_port=broker_port,
            host=host,
            store=store,
            config=config,
            print_config=print_config,
            log_level=log_level,
        )
    )


@app.command()
def namesrv(
    port: options.NamesrvPort = None,
    host: options.Host = None,
    config: options.ConfigFile = None,
    print_config: options.PrintConfig = False,
    log_level: options.LogLevel = "info",
) -> None:
    """Run a name server until SIGTERM or Ctrl-C."""
    from cometmq.cli import servers

    raise typer.Exit(
        servers.name_server(
            port=port, host=host, config=config, print_config=print_config, log_level=log_level
        )
    )


@app.command()
def broker(
    port: options.BrokerPort = None,
    host: options.Host = None,
    store: options.Store = None,
    namesrv: options.NameServers = None,
    config: options.ConfigFile = None,
    print_config: options.PrintConfig = False,
    log_level: options.LogLevel = "info",
) -> None:
    """Run a broker until SIGTERM or Ctrl-C."""
    from cometmq.cli import servers

    raise typer.Exit(
        servers.broker(
            port=port,
            host=host,
            store=store,
            namesrv=namesrv,
            config=config,
            print_config=print_config,
            log_level=log_level,
        )
    )


@app.command()
def send(
    topic: Annotated[str, typer.Argument(help="Where to send.")],
    body: Annotated[str, typer.Argument(help="Text to send; - sends each line of the input.")],
    namesrv: options.ClientNameServers = "127.0.0.1:9876",
    tag: Annotated[str | None, typer.Option(help="Tag to filter by.", show_default="none")] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Key to look it up by; give it again for more.")
    ] = None,
    order_key: Annotated[
        str | None,
        typer.Option(help="Send to the queue of this key, in order.", show_default="none"),
    ] = None,
    delay_level: Annotated[
        int, typer.Option(min=0, max=18, help="0 for at once, else the broker's delay level.")
    ] = 0,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds to wait for each.")] = 3.0,
) -> None:
    """Send messages and show where they are stored."""
    from cometmq.cli import messages
    from cometmq.cli.event_loop import run

    wanted = messages.Sending(
        topic, tag=tag, keys=tuple(key or ()), order_key=order_key,
        delay_level=delay_level, timeout=timeout,
    )  # fmt: skip
    run(messages.send(namesrv, wanted, messages.bodies(body)))


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="What to read.")],
    namesrv: options.ClientNameServers = "127.0.0.1:9876",
    last: Annotated[
        int, typer.Option(min=0, help="Messages of each queue to begin with; 0 for new ones only.")
    ] = 10,
    count: Annotated[
        int, typer.Option(min=0, help="End after this many messages; 0 for never.")
    ] = 0,
    tag: Annotated[str, typer.Option(help="Tags to read: a || b; * for all.")] = "*",
    sql: Annotated[
        str | None, typer.Option(help="SQL92 over properties, instead of tags.", show_default="no")
    ] = None,
) -> None:
    """Show a topic's messages as they come, without committing anything."""
    from cometmq.cli import messages
    from cometmq.cli.event_loop import run

    run(messages.tail(namesrv, topic, tags=tag, sql=sql, last=last, count=count))


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(min=5, max=600, help="Seconds the whole demo takes.")
    ] = 30.0,
    rate: Annotated[int, typer.Option(min=1, max=5_000, help="Messages sent per second.")] = 500,
) -> None:
    """Show a server at work: live figures, a SIGKILL in the middle, and nothing lost."""
    from cometmq.cli.demo import run_demo

    raise typer.Exit(run_demo(seconds=seconds, rate=rate))


@app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
def pipeline(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Name of the pipeline and its options, or --list; NAME --help shows them.",
            metavar="NAME [OPTIONS]",
        ),
    ] = None,
    script: Annotated[
        bool, typer.Option("--script", help="Show the file to hand to spark-submit.")
    ] = False,
) -> None:
    """Run a data pipeline on Spark: archive, replay, verify, audit and others."""
    from cometmq.cli import pipeline as pipelines

    if script:
        typer.echo(pipelines.script())
        raise typer.Exit
    raise typer.Exit(pipelines.run(words or ()))


@app.command("pipeline-demo")
def pipeline_demo(
    seconds: Annotated[float, typer.Option(min=2, max=600, help="Seconds of orders.")] = 20.0,
    rate: Annotated[int, typer.Option(min=1, max=2_000, help="Orders per second.")] = 200,
    folder: Annotated[
        Path, typer.Option(help="Gets a folder with the archive and the reports.")
    ] = Path("pipeline-demo"),
) -> None:
    """Show data pipelines at work: live totals, an archive, dead letters, an audit, reports."""
    from cometmq.cli.pipeline_demo import run_pipeline_demo

    raise typer.Exit(run_pipeline_demo(seconds=seconds, rate=rate, folder=folder))


StorePath = Annotated[Path, typer.Argument(help="Directory of the store.", metavar="DIR")]


@store_app.command("list")
def store_list(path: StorePath, config: options.ConfigFile = None) -> None:
    """List the queues of a store: their bounds and their messages."""
    from cometmq.cli import store_files

    store_files.list_queues(path, config)


@store_app.command("show")
def store_show(
    path: StorePath,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    queue: Annotated[int, typer.Option(min=0, help="The queue's number.")] = 0,
    offset: Annotated[
        int | None, typer.Option(help="First queue offset.", show_default="the oldest")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Messages to show.")] = 10,
    config: options.ConfigFile = None,
) -> None:
    """Show messages of one queue of a store."""
    from cometmq.cli import store_files

    store_files.show(path, config, topic, queue, offset, count)


@store_app.command("verify")
def store_verify(path: StorePath, config: options.ConfigFile = None) -> None:
    """Check every record, queue entry and index entry of a store; exit code 1 if one is bad."""
    from cometmq.cli import store_files

    raise typer.Exit(0 if store_files.verify(path, config) else 1)
