"""Registers commands of ``cometmq admin``, with the options that they share, and runs them.

A command is an async function whose first parameter is a `Call`. The code that a command needs is
imported when it runs, so that ``--help`` and shell completion are fast.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from cometmq.cli import options
from cometmq.cli.admin.arguments import Broker, Cluster
from cometmq.cli.admin.output import PLANNED, Change, Output, Row, confirmed, make
from cometmq.cli.exit_codes import FAILED, print_error
from cometmq.model.errors import CometError, ConfigError
from cometmq.protocol.bodies.route import MASTER_ID, RegisteredBroker

if TYPE_CHECKING:
    from cometmq.client import AdminClient, ClientInstance

WATCH_S = 2.0
"""Seconds between two rounds of ``--watch`` without a number."""

ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--config", help="TOML file with the settings of the client: account, TLS, timeouts.",
        metavar="FILE", envvar="COMETMQ_CONFIG", show_default="none",
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Watch = Annotated[
    float | None,
    typer.Option(
        "--watch", min=0.1, metavar="[SECONDS]", show_default="once",
        help=f"Print again and again until Ctrl-C; {WATCH_S:g} s apart if no number is given.",
    ),
]  # fmt: skip
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be changed, and change nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a change that loses data.")]

A = TypeVar("A")
T = TypeVar("T")
Options = Mapping[str, tuple[Any, Any]]
"""The annotation and the default of options, by the name of their parameter."""
COMMON: Options = {
    "namesrv": (options.NameServers, None),
    "config": (ClientConfig, None),
    "json": (Json, False),
}
CHANGING: Options = {"dry_run": (DryRun, False), "yes": (Yes, False)}
WATCHING: Options = {"watch": (Watch, None)}
NOTHING: Options = {}
CLUSTER: Options = {"cluster": (Cluster, None)}
BROKERS: Options = {"broker": (Broker, None), **CLUSTER}
"""The options that choose brokers; `Call.servers` returns these."""


@dataclass(slots=True)
class Call:
    """One run of a command: its connections and its output."""

    admin: AdminClient
    output: Output
    instance: ClientInstance
    """The connections, which producers and consumers of the command share."""
    dry_run: bool = False
    """Whether changes are only shown."""
    broker: str | None = None
    """The only broker, by ``--broker``."""
    cluster: str | None = None
    """The only cluster, by ``--cluster``."""
    failed: bool = False

    def fail(self, error: CometError, where: str = "") -> None:
        """Print an error; the command goes on, and ends with exit code 1."""
        self.failed = True
        print_error(f"cometmq admin: {where}{': ' if where else ''}{error}")

    async def servers(self, *, slaves: bool = False) -> list[RegisteredBroker]:
        """Return the brokers that `BROKERS` or `CLUSTER` choose, as `registered` does."""
        return await self.registered(broker=self.broker, cluster=self.cluster, slaves=slaves)

    async def side_by_side(self, items: Iterable[A], read: Callable[[A], Awaitable[T]]) -> list[T]:
        """Return what ``read`` gives for each item, in order; some requests run at a time."""
        from cometmq.remoting.tasks import side_by_side

        return await side_by_side(items, read)

    async def each_broker(
        self, find: Callable[[RegisteredBroker], Awaitable[list[Row]]], *, slaves: bool = False
    ) -> list[Row]:
        """Return the rows of the brokers that were chosen.

        One that does not respond makes the command fail later.
        """

        async def rows_of(server: RegisteredBroker) -> list[Row]:
            try:
                return await find(server)
            except CometError as error:
                self.fail(error, f"{server.name} {server.address}")
                return []

        found = await self.side_by_side(await self.servers(slaves=slaves), rows_of)
        return [row for rows in found for row in rows]

    async def change_each(
        self,
        change: str,
        run: Callable[[str], Awaitable[object]],
        detail: str = "",
        *,
        slaves: bool = False,
        destroys: bool = False,
    ) -> list[Change]:
        """Return a change for each broker that was chosen; ``run`` gets its address."""
        return [
            Change(
                change, f"{each.name} {each.address}", partial(run, each.address), detail, destroys
            )
            for each in await self.servers(slaves=slaves)
        ]

    def change_name_servers(
        self,
        change: str,
        run: Callable[[], Awaitable[object]],
        detail: str = "",
        *,
        destroys: bool = False,
    ) -> list[Change]:
        """Return the change that ``run`` makes at all name servers."""
        return [Change(change, ", ".join(self.admin.name_servers), run, detail, destroys)]

    async def registered(
        self, *, broker: str | None = None, cluster: str | None = None, slaves: bool = False
    ) -> list[RegisteredBroker]:
        """Return registered brokers in order of cluster, name and id.

        Args:
            broker: only this one, by name or by address; an address needs not be registered.
            cluster: only the brokers of this cluster.
            slaves: slaves too, not only masters.

        Raises:
            ConfigError: there is no such broker or cluster.
        """
        if broker is not None and ":" in broker:
            return [RegisteredBroker("", broker, MASTER_ID, broker)]
        info = await self.admin.cluster_info()
        clusters = info.cluster_addr_table
        if cluster is not None and cluster not in clusters:
            raise ConfigError(f"no cluster {cluster}; known are {', '.join(sorted(clusters))}")
        found = [
            each
            for each in info.registered(cluster)
            if broker in (None, each.name) and (slaves or each.is_master)
        ]
        if not found:
            known = ", ".join(sorted(info.broker_addr_table)) or "none"
            wanted = "broker" if slaves else "master"
            name = f" {broker}" if broker else ""
            raise ConfigError(f"no {wanted}{name} is registered; known are {known}")
        return found


async def show_rows(
    call: Call,
    find: Callable[[], Awaitable[Any]],
    keys: Sequence[str],
    *,
    one: bool = False,
    watch: float | None = None,
    rounds: int | None = None,
) -> None:
    """Print what a command finds, with ``watch`` again and again.

    Args:
        call: prints.
        find: gives the rows, or the only one.
        keys: the keys of a row.
        one: whether there is one row only.
        watch: seconds between two rounds; None for one round.
        rounds: the number of rounds; None for no limit.
    """
    show = call.output.record if one else call.output.rows
    if watch is None:
        show(keys, await find())
        return
    done = 0
    while rounds is None or done < rounds:
        if done:
            await asyncio.sleep(watch)
        done += 1
        try:
            found = await find()
        except CometError as error:  # a server that restarts; the next round asks again
            call.fail(error, f"{datetime.now():%H:%M:%S}")
            continue
        call.output.round(f"{datetime.now():%Y-%m-%d %H:%M:%S}")
        show(keys, found, line=True)


async def make_changes(call: Call, changes: Sequence[Change], *, dry_run: bool, yes: bool) -> None:
    """Print changes and make them, unless it is a dry run; ask before if one loses something.

    Raises:
        ConfigError: there is no terminal to ask on; nothing was changed.
    """
    if dry_run:
        call.output.changes(changes, [PLANNED] * len(changes))
        return
    if not yes and any(each.destroys for each in changes) and not confirmed(changes):
        call.failed = True
        print("nothing was changed", file=sys.stderr)
        return
    states = await make(changes)
    call.failed = call.failed or any(state == "failed" for state, _ in states)
    call.output.changes(changes, states)


class WatchCommand(TyperCommand):
    """A command whose ``--watch`` needs no number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, with the usual number after ``--watch``."""
        return super().parse_args(ctx, with_interval(args))


def with_interval(words: Sequence[str]) -> list[str]:
    """Return a command line with a number after each ``--watch``."""
    found: list[str] = []
    for position, word in enumerate(words):
        found.append(word)
        following = words[position + 1] if position + 1 < len(words) else ""
        if word == "--watch" and not following.replace(".", "", 1).isdecimal():
            found.append(f"{WATCH_S:g}")
    return found


Function = Callable[..., Awaitable[Any]]


class Commands(typer.Typer):
    """The commands of one group.

    Example:
        app = Commands("Topics: their settings, routes and queues.")

        @app.show("status", "broker queue min_offset max_offset", watch=True)
        async def status(call: Call, topic: TopicName) -> Rows:
            return [...]
    """

    def __init__(self, help: str) -> None:
        super().__init__(help=help, no_args_is_help=True)

    def show(
        self,
        name: str,
        keys: str,
        *,
        one: bool = False,
        watch: bool = False,
        chooses: Options = NOTHING,
    ) -> Callable[[Function], Function]:
        """Register a command that changes nothing.

        Args:
            name: of the command.
            keys: of the values of a row, with blanks between them; see `output`.
            one: the function returns one row instead of an iterable of rows.
            watch: the command has the option ``--watch``.
            chooses: `BROKERS` or `CLUSTER`, if the command has these options.
        """
        names = keys.split()

        def register(function: Function) -> Function:
            async def run(call: Call, shared: Mapping[str, Any], values: dict[str, Any]) -> None:
                def find() -> Awaitable[Any]:
                    return function(call, **values)

                await show_rows(call, find, names, one=one, watch=shared.get("watch"))

            shared = {**chooses, **COMMON, **(WATCHING if watch else {})}
            text = _keys_text(names)
            self._register(name, function, shared, run, text, WatchCommand if watch else None)
            return function

        return register

    def each(
        self,
        name: str,
        keys: str,
        *,
        slaves: bool = False,
        watch: bool = False,
        chooses: Options = BROKERS,
    ) -> Callable[[Function], Function]:
        """Register a command as `show` does, whose function returns the rows of one broker.

        The second parameter of the function is a `RegisteredBroker`: in turn each that was chosen,
        with ``slaves`` slaves too.
        """

        def register(function: Function) -> Function:
            async def rows(call: Call, **values: Any) -> list[Row]:
                def find(server: RegisteredBroker) -> Awaitable[list[Row]]:
                    return function(call, server, **values)

                return await call.each_broker(find, slaves=slaves)

            hints = typing.get_type_hints(function, include_extras=True)
            first, _, *others = inspect.signature(function).parameters.values()
            rows.__signature__ = inspect.Signature([first, *others])  # type: ignore[attr-defined]
            rows.__annotations__ = {each.name: hints[each.name] for each in others}
            rows.__doc__ = function.__doc__
            self.show(name, keys, watch=watch, chooses=chooses)(rows)
            return function

        return register

    def change(
        self,
        name: str,
        *,
        settings: Mapping[str, Any] | None = None,
        chooses: Options = NOTHING,
    ) -> Callable[[Function], Function]:
        """Register a command that changes something: its function returns a list of `Change`.

        The function changes nothing itself, so that ``--dry-run`` can show what it returns.

        Args:
            name: of the command.
            settings: further options by the names of settings, for types of which None means that
                a setting is not given; the function has a parameter ``settings`` for the others.
            chooses: as in `show`.
        """
        optional = {each: (annotation, None) for each, annotation in (settings or {}).items()}

        def register(function: Function) -> Function:
            async def run(call: Call, shared: Mapping[str, Any], values: dict[str, Any]) -> None:
                if settings is not None:
                    given = {each: values.pop(each) for each in settings}
                    values["settings"] = {
                        each: value for each, value in given.items() if value is not None
                    }
                changes = await function(call, **values)
                dry_run, yes = shared["dry_run"], shared["yes"]
                await make_changes(call, changes, dry_run=dry_run, yes=yes)

            shared = {**chooses, **COMMON, **CHANGING}
            self._register(name, function, shared, run, own=optional)
            return function

        return register

    def action(
        self, name: str, *, changes: bool = False, keys: str = "", chooses: Options = NOTHING
    ) -> Callable[[Function], Function]:
        """Register a command that prints itself.

        Args:
            name: of the command.
            changes: the function has parameters ``dry_run`` and ``yes``, for these options.
            keys: what it prints as JSON, for its help; empty if that is no object.
            chooses: as in `show`.
        """

        def register(function: Function) -> Function:
            async def run(call: Call, shared: Mapping[str, Any], values: dict[str, Any]) -> None:
                flags = {key: shared[key] for key in CHANGING} if changes else {}
                await function(call, **values, **flags)

            shared = {**chooses, **COMMON, **(CHANGING if changes else {})}
            self._register(name, function, shared, run, _keys_text(keys.split()) if keys else None)
            return function

        return register

    def _register(
        self,
        name: str,
        function: Function,
        shared: Options,
        run: Callable[[Call, Mapping[str, Any], dict[str, Any]], Awaitable[None]],
        epilog: str | None = None,
        cls: type[TyperCommand] | None = None,
        own: Options | None = None,
    ) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        declared = [*inspect.signature(function).parameters.values()][1:]
        parameters = [
            each.replace(annotation=hints[each.name])
            for each in declared
            if each.name not in shared and not (own and each.name == "settings")
        ] + [
            Parameter(each, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for each, (annotation, default) in {**(own or {}), **shared}.items()
        ]

        def command(**values: Any) -> None:
            given = {each: values.pop(each) for each in shared}
            raise typer.Exit(execute(lambda call: run(call, given, values), given))

        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
        )
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__doc__ = function.__doc__
        self.command(name, epilog=epilog, cls=cls)(command)


def _keys_text(keys: Sequence[str]) -> str:
    return f"JSON keys: {', '.join(f'`{each}`' for each in keys)}."


def execute(work: Callable[[Call], Awaitable[None]], shared: Mapping[str, Any]) -> int:
    """Run a command with a client of its own; return the exit code."""
    from cometmq.cli.event_loop import run

    return run(_with_client(work, shared))


async def _with_client(work: Callable[[Call], Awaitable[None]], shared: Mapping[str, Any]) -> int:
    from cometmq.cli.account import connection_settings
    from cometmq.client import AdminClient, ClientInstance

    config: Path | None = shared["config"]
    name_servers = shared["namesrv"] or ""
    async with (
        ClientInstance(name_servers, settings=connection_settings(config)) as instance,
        AdminClient(instance=instance) as admin,
    ):
        output = Output(shared["json"])
        given = {key: shared[key] for key in ("dry_run", "broker", "cluster") if key in shared}
        call = Call(admin, output, instance, **given)
        await work(call)
        return FAILED if call.failed else 0
