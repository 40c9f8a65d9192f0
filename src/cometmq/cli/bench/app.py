"""``cometmq bench``: its commands and options. A load is imported when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cometmq.model.errors import ConfigError

TOPIC = "cometmq-bench"
IN_FLIGHT_MAX, BATCH_MAX, SIZE_MAX = 100_000, 10_000, 4 * 1024 * 1024
HELP = {
    "producer": "Send messages, each acknowledged.",
    "consumer": "Consume what there is; with --rate, what is sent meanwhile.",
    "batch": "Send batches.",
    "delay": "Send delayed messages, and measure how late they are delivered.",
    "transaction": "Send messages in transactions.",
    "pop": "Receive and acknowledge by pop; with --rate, what is sent meanwhile.",
}

app = typer.Typer(
    help="Load a server of CometMQ, RocketMQ, Kafka or NATS, and measure it.", no_args_is_help=True
)


def _option(text: str, **more: Any) -> Any:
    return typer.Option(help=text, **more)


def _add(kind: str) -> None:
    @app.command(kind, help=HELP[kind])
    def command(
        servers: Annotated[
            str, _option("Addresses: name servers, or those of Kafka or NATS.", metavar="HOST:PORT")
        ] = "127.0.0.1:9876",
        against: Annotated[str, _option("cometmq, rocketmq, kafka or nats.")] = "cometmq",
        topic: Annotated[str, _option("The topic; it is created if there is none.")] = TOPIC,
        seconds: Annotated[float, _option("Measured seconds.", min=0.1)] = 10.0,
        warm_up: Annotated[float, _option("Seconds of load before them.", min=0.0)] = 2.0,
        size: Annotated[int, _option("Bytes of a body.", min=12, max=SIZE_MAX)] = 128,
        in_flight: Annotated[
            int, _option("Requests that wait for a response.", min=1, max=IN_FLIGHT_MAX)
        ] = 32,
        batch: Annotated[int, _option("Messages of a batch.", min=1, max=BATCH_MAX)] = 32,
        rate: Annotated[
            float, _option("Messages a second that are sent; 0 for no limit.", min=0.0)
        ] = 0.0,
        fill: Annotated[int, _option("Messages that are sent before the load.", min=0)] = 0,
        delay: Annotated[float, _option("Seconds of delayed messages.", min=0.0)] = 1.0,
        queues: Annotated[int, _option("Queues of a topic that is created.", min=1)] = 8,
        rollback: Annotated[
            float, _option("The part of transactions that is rolled back.", min=0.0, max=1.0)
        ] = 0.0,
        server_pid: Annotated[
            list[int] | None,
            _option("A process of the servers here, for its processor time.", metavar="PID"),
        ] = None,
        result: Annotated[
            Path | None, _option("Write the result into a file, as JSON.", metavar="FILE")
        ] = None,
    ) -> None:
        from cometmq.cli.bench import results, run
        from cometmq.cli.bench.meter import Load
        from cometmq.cli.event_loop import run as run_loop

        load = Load(
            kind=kind, topic=topic, seconds=seconds, warm_s=warm_up, size=size,
            in_flight=in_flight, batch=batch, rate=rate, fill=fill, delay_s=delay, queues=queues,
            rollback=rollback,
        )  # fmt: skip
        found = run_loop(run.run(against, servers, load, server_pid or (), _show))
        sys.stdout.write(results.text_of(found))
        if result is not None:
            results.write(found, result)
        raise typer.Exit(1 if found.errors else 0)


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


for _kind in HELP:
    _add(_kind)


@app.command()
def compare(
    files: Annotated[list[Path], typer.Argument(help="Files of results.", metavar="FILE...")],
) -> None:
    """Show results of one load side by side, against the first."""
    from cometmq.cli.bench import results

    if len(files) < 2:
        raise ConfigError("one file of a result: expected two or more")
    sys.stdout.write(results.compared([results.read(each) for each in files]))
