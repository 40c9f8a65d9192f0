"""Writes the parts of the documentation that are generated from the code.

These are whole pages about settings classes, commands and codes, and included files: a code block
below a comment ``<!-- include: path -->`` is that file. Two files that follow from the settings of
clients are generated as well: a sample in TOML, and the types of the keywords.
``python docs/pages.py`` writes all of them; a test fails if one of them is stale.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ForwardRef

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
INCLUDE = re.compile(r"(<!-- include: (\S+) -->\n```\w*\n).*?(```)", re.DOTALL)
ANNOTATION = re.compile(r": '([^']*)'")
FUNCTION = re.compile(r"<function (\w+) at 0x[0-9a-f]+>")
MEMBER = re.compile(r"<(\w+\.\w+): (?:[^<>]|<[^<>]*>)*>")
EXAMPLE = re.compile(r"Example: ``(.*)``", re.DOTALL)
LISTS = {"Args": "Parameters", "Raises": "Raises"}
"""The parts of a docstring that are lists, and their titles on a page."""
MODULE = re.compile(r"\b(?:[a-z_]+\.)+(?=\w)")
LINE_CHARS_MAX = 96
CODE_CHARS_MAX = 100
MACHINE_DEFAULT = "(see meaning)"
MADE = "<!-- Made by docs/pages.py from docstrings and docs/reference/parts: change those. -->\n\n"
"""The first line of every generated page."""


@dataclasses.dataclass(frozen=True)
class ClientPage:
    """One page of the client's reference."""

    file: str
    title: str
    text: str
    names: tuple[str, ...]


CLIENT_PAGES = (
    ClientPage(
        "producer.md",
        "Producer",
        "Sends messages to topics, and returns a receipt of each message that a broker has stored. "
        "One producer serves a whole program. Start with the "
        "[tutorial](../../tutorial/first-messages.md). How-to pages: "
        "[batches](../../howto/batches.md), [request and reply](../../howto/request-and-reply.md), "
        "[delays](../../howto/delay-a-message.md).",
        ("Producer", "SendReceipt", "SendStatus", "SendAttempt", "QueueSelector"),
    ),
    ClientPage(
        "transaction-producer.md",
        "TransactionProducer",
        "Sends messages that are delivered only if a local transaction, such as a write to a "
        "database, commits. How-to pages: [transactions](../../howto/transactions.md), "
        "[outbox or transactions](../../howto/outbox.md).",
        ("TransactionProducer", "TransactionReceipt", "TransactionListener", "LocalState"),
    ),
    ClientPage(
        "push-consumer.md",
        "PushConsumer",
        "Calls a handler with each message of its topics: the usual choice for a service. The "
        "members of a group share the queues of a topic, so each message goes to one of them. A "
        "message whose handler raises is redelivered later. How-to pages: "
        "[consume with a handler](../../howto/consume.md), "
        "[run a consumer](../../howto/run-a-consumer.md).",
        ("PushConsumer",),
    ),
    ClientPage(
        "pop-consumer.md",
        "PopConsumer",
        "Calls a handler with messages that the broker delivers one by one. Members have no queues "
        "of their own, so a group may have more members than queues, and a slow member delays no "
        "other. **Brokers of RocketMQ 5 serve it; CometMQ's broker refuses it.** How-to page: "
        "[pop](../../howto/pop.md).",
        ("PopConsumer",),
    ),
    ClientPage(
        "simple-consumer.md",
        "SimpleConsumer",
        "Receives single messages in the application's own loop, which acknowledges each of them. "
        "**Brokers of RocketMQ 5 serve it; CometMQ's broker refuses it.** How-to page: "
        "[pop](../../howto/pop.md).",
        ("SimpleConsumer",),
    ),
    ClientPage(
        "pull-consumer.md",
        "PullConsumer",
        "Reads messages in the application's own loop, as a member of a group or from chosen "
        "queues: for batch jobs, for tools, and wherever a handler does not fit. How-to page: "
        "[pull](../../howto/pull.md).",
        ("PullConsumer", "PullResult", "PullStatus", "QueueBounds"),
    ),
    ClientPage(
        "admin-client.md",
        "AdminClient",
        "Creates topics, shows groups with their members and lag, resets offsets, finds "
        "messages by key, id and time, and sends dead letters again. How-to page: "
        "[inspect a group](../../howto/inspect-a-group.md).",
        ("AdminClient",),
    ),
    ClientPage(
        "admin-results.md",
        "Results of AdminClient",
        "What calls of [AdminClient](admin-client.md) return. How-to pages: "
        "[inspect a group](../../howto/inspect-a-group.md), "
        "[handle dead letters](../../howto/handle-dead-letters.md).",
        (
            "GroupLag",
            "Track",
            "TrackKind",
            "DeadLetter",
            "DeadLetterPage",
            "DeadLetterCount",
            "ResendTo",
            "ResendStatus",
            "Resent",
        ),
    ),
    ClientPage(
        "admin-client-servers.md",
        "AdminClient: servers",
        "What `AdminClient` can do with brokers, name servers, controllers, users and accounts. "
        "How-to page: [administer a cluster](../../howto/administer.md).",
        ("ServerCalls",),
    ),
    ClientPage(
        "messages.md",
        "Messages and subscriptions",
        "The types that producers and consumers share.",
        ("Message", "StoredMessage", "MessageQueue", "Filter", "StartFrom"),
    ),
    ClientPage(
        "handlers.md",
        "Handlers",
        "The functions that an application passes to a consumer, and what they receive and return.",
        (
            *("MessageHandler", "BatchHandler", "OrderedBatchHandler", "Consumed"),
            *("ConsumedInOrder", "ConsumeContext", "OrderedContext", "QueueListener"),
        ),
    ),
    ClientPage(
        "allocation.md",
        "Allocation strategies",
        "How a group allocates the queues of a topic to its members.",
        (
            *("AllocationStrategy", "Averagely", "AveragelyByCircle", "ConsistentHash"),
            *("ByConfiguration", "MachineRoom", "MachineRoomNearby"),
        ),
    ),
    ClientPage(
        "offset-stores.md",
        "Offset stores",
        "Where a group keeps its offsets, if not at the brokers.",
        ("OffsetStore", "RemoteOffsetStore", "LocalOffsetStore"),
    ),
    ClientPage(
        "hooks.md",
        "Hooks",
        "Functions that run around each send, each handler call and each request.",
        (
            *("SendHook", "SendContext", "SendKind", "ForbiddenHook", "ConsumeHook"),
            *("DeliveryContext", "ConsumeEnd", "FailedMessage", "FilterHook"),
            *("EndTransactionHook", "EndContext"),
            *("RpcHook", "OutgoingCall", "Signer", "Credentials"),
        ),
    ),
    ClientPage(
        "instance.md",
        "ClientInstance",
        "The connections that several producers and consumers may share: pass it to them as "
        "`instance=`. Most programs do not need it.",
        ("ClientInstance",),
    ),
)
"""The pages of the client's reference; settings and errors have pages of their own."""

CLIENT_MODULES = (
    "cometmq.client",
    *(f"cometmq.client.{part}" for part in ("admin", "allocation", "errors", "hooks", "offsets")),
)
"""The modules whose public names are on these pages; the first one that has a name counts."""


def client_module(name: str) -> str:
    """The module from which applications import a name of the client."""
    return next(path for path in CLIENT_MODULES if name in importlib.import_module(path).__all__)


def pages() -> list[Path]:
    """Every page of the documentation, those at the project's root included."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if path.parent.name != "parts")


def is_any(_: Path) -> bool:
    """Keeps every page."""
    return True


def wanted(kept: Callable[[Path], bool] = is_any) -> Iterator[tuple[Path, str]]:
    """Give each page that is kept and has a made part, and the text it should have."""
    for path, make in GENERATED.items():
        if kept(path):
            yield path, (MADE if path.suffix == ".md" else "") + make()
    for path in pages():
        text = path.read_text()
        if path not in GENERATED and kept(path) and INCLUDE.search(text):
            yield path, INCLUDE.sub(_included, text)


def needs_spark(path: Path) -> bool:
    """Whether a page is made from code that imports PySpark."""
    return path in GENERATED and path.name.startswith("spark-")


def stale(kept: Callable[[Path], bool] = is_any) -> list[Path]:
    """Pages that are kept and whose made parts no longer follow from the code."""
    return [path for path, text in wanted(kept) if not path.exists() or path.read_text() != text]


def _included(match: re.Match[str]) -> str:
    head, name, end = match.groups()
    return head + (ROOT / name).read_text() + end


def configuration_page() -> str:
    """Every key of the servers' files."""
    from cometmq.access.account_settings import AccountSettings
    from cometmq.access.user_settings import UserSettings
    from cometmq.broker.config import BrokerSettings
    from cometmq.controller.config import ControllerSettings, EtcdSettings
    from cometmq.filtersrv.config import FilterServerSettings
    from cometmq.metrics.config import MetricsSettings
    from cometmq.namesrv.config import NameServerSettings
    from cometmq.remoting.config import RemotingSettings, TlsClientSettings, TlsSettings
    from cometmq.store.config import StoreSettings
    from cometmq.system.log_format import LogSettings

    lines = [
        "# Configuration",
        "",
        "The keys of `broker.conf`, `namesrv.conf`, `filtersrv.conf` and `controller.conf`, in the",
        "format of Java properties files. The names are RocketMQ's. Keys in *italics* are not in",
        "RocketMQ's files: there `tls.*` and `com.rocketmq.remoting.*` are system properties of",
        "Java, and the others exist only in CometMQ. A request can change **live** keys while the",
        "server runs, with access control and without it, and no others: no path, port, address,",
        "credential or name of a class. A value that is a secret is never shown: the settings that",
        "`--print-config` and requests show have asterisks instead.",
        "[Configure](../howto/configure.md) shows how to use the files.",
    ]
    parts = {
        "Broker": BrokerSettings,
        "Users and policies (broker)": UserSettings,
        "Store": StoreSettings,
        "Name server": NameServerSettings,
        "Filter server": FilterServerSettings,
        "Controller": ControllerSettings,
        "Controller's etcd": EtcdSettings,
        "Accounts (name server, controller)": AccountSettings,
        "Connections (all servers)": RemotingSettings,
        "TLS (all servers)": TlsSettings,
        "TLS of outgoing connections (all servers)": TlsClientSettings,
        "Metrics (broker, name server, controller)": MetricsSettings,
        "Logs (all servers)": LogSettings,
    }
    for title, settings in parts.items():
        lines += ["", f"## {title}", "", "| Key | Default | Expected | Meaning |"]
        lines += ["|---|---|---|---|", *_settings_rows(settings)]
    return "\n".join(lines) + "\n"


def _settings_rows(settings: type) -> Iterator[str]:
    from cometmq.system.rocketmq_keys import (
        BROKER_KEYS,
        CONTROLLER_KEYS,
        FILTERSRV_KEYS,
        NAMESRV_KEYS,
    )
    from cometmq.system.settings import describe
    from cometmq.system.settings_sample import field_texts

    theirs = {*BROKER_KEYS(), *NAMESRV_KEYS(), *FILTERSRV_KEYS(), *CONTROLLER_KEYS()}
    for setting in describe(settings):
        name = f"`{setting.key}`" if setting.key in theirs else f"*`{setting.key}`*"
        default = (
            MACHINE_DEFAULT
            if setting.depends_on_machine
            else f"`{setting.render(setting.default())}`"
        )
        meaning = field_texts(settings)[setting.name].replace("``", "`")
        if setting.remote:
            meaning += " **Live.**"
        yield _row(name, "" if default == "``" else default, setting.expectation, meaning)


def cli_page() -> str:
    """Every command with its options."""
    import typer.main

    from cometmq.cli.commands import app

    lines = [
        "# Commands",
        "",
        "`cometmq --help` and `cometmq COMMAND --help` show the same commands and options;",
        "`cometmq pipeline --help` lists the pipelines. A server prints a line that starts with",
        "`ready`, logs to standard error, and stops in good order on SIGTERM or Ctrl-C.",
        "`standalone` prints a second line: where its store is and how much disk it takes. Exit",
        "codes: 0 success; 1 failure, or a finding of `store verify`; 2 wrong usage.",
        "[Pipelines](spark-pipelines.md) have their own exit codes.",
        "",
        "`cometmq --install-completion` adds completion of commands and options to your shell.",
        "",
        "The commands of `cometmq admin` have [a page of their own](admin.md).",
    ]
    for name, command in _commands("cometmq", typer.main.get_command(app)):
        if name.startswith("cometmq admin "):
            continue
        lines += ["", f"## {name}", "", _sentence(command.help), ""]
        lines += _parameters(command)
    return "\n".join(lines).rstrip() + "\n"


def admin_page() -> str:
    """Every command of ``cometmq admin`` with its own options, after those that all have."""
    import typer.main

    from cometmq.cli.admin.app import app
    from cometmq.cli.admin.commands import CHANGING, COMMON, WATCHING

    shared = {**COMMON, **CHANGING, **WATCHING, **dict.fromkeys(("broker", "cluster"))}
    lines = [(ROOT / "docs/reference/parts/admin.md").read_text().rstrip(), ""]
    seen: dict[str, Any] = {}
    for group in typer.main.get_group(app).commands.values():
        lines += [f"## {group.name}", "", _sentence(group.help), ""]
        for name, command in group.commands.items():
            parameters = [each for each in command.params if each.name != "help"]
            common = [each for each in parameters if each.name in shared]
            common = [each for each in common if each.param_type_name == "option"]
            for each in common:
                seen.setdefault(each.name, each)
            own = [each for each in parameters if each not in common]
            lines += _admin_command(f"{group.name} {name}", command, own)
    options = [
        f"- {name}{f' ({default})' if default else ''}: {text}"
        for name, default, text in map(_parameter, (seen[each] for each in shared if each in seen))
    ]
    return "\n".join(lines).replace("<!-- options -->", "\n".join(options)).rstrip() + "\n"


def _admin_command(name: str, command: Any, own: list[Any]) -> Iterator[str]:
    flags = {each.name for each in command.params if each not in own}
    names = ("broker", "cluster", "watch", "dry_run", "yes")
    more = [f"`--{each.replace('_', '-')}`" for each in names if each in flags]
    arguments = [
        (each.metavar or each.name.upper()) for each in own if each.param_type_name == "argument"
    ]
    yield from (f"### {name}", "", f"`cometmq admin {' '.join([name, *arguments])}`")
    keys = f" {_sentence(command.epilog)}" if command.epilog else ""
    also = f" Also: {', '.join(more)}." if more else ""
    yield from (_sentence(command.help) + also + keys, "")
    own = [each for each in own if each.help not in ("Topic.", "Consumer group.")]
    for shown, default, text in map(_parameter, own):
        yield f"- {shown.replace(' (required)', '')}{f' ({default})' if default else ''}: {text}"
    if own:
        yield ""


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield name, command
        return
    for child, inner in children.items():
        yield from _commands(f"{name} {child}", inner)


def _parameters(command: Any) -> Iterator[str]:
    rows = [
        _row(*_parameter(parameter)) for parameter in command.params if parameter.name != "help"
    ]
    if rows:
        yield from ("| Argument or option | Default | Meaning |", "|---|---|---|", *rows)


def _parameter(parameter: Any) -> tuple[str, str, str]:
    is_option = parameter.param_type_name == "option"
    if is_option:
        name = " ".join(f"`{text}`" for text in parameter.opts)
    else:
        name = parameter.metavar or parameter.name.upper()
    shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if callable(shown) or shown is None or shown is False or shown == "" or parameter.required:
        shown = ""
    if parameter.required and not is_option:
        name += " (required)"
    return name, str(shown), _sentence(getattr(parameter, "help", None))


def codes_page() -> str:
    """All response codes below a text that is written by hand."""
    from cometmq.protocol.codes import ResponseCode

    rows = [_row(f"{int(code)}", f"`{code.name}`") for code in sorted(ResponseCode)]
    head = (ROOT / "docs/reference/parts/errors.md").read_text().rstrip()
    head = head.replace("<!-- the tree of errors -->", "\n".join(_error_tree()))
    return "\n".join([head, "", "| Code | Name |", "|---|---|", *rows]) + "\n"


def _error_tree() -> Iterator[str]:
    """Every error a client may raise below the one all derive from, with its first sentence."""
    import cometmq.client
    import cometmq.embedded
    from cometmq.model.errors import CometError

    for module in pkgutil.walk_packages(cometmq.client.__path__, "cometmq.client."):
        importlib.import_module(module.name)
    yield from ("```text", "CometError", *_branches(CometError), "```")


def _branches(error: type[Exception], before: str = "") -> Iterator[str]:
    """The errors below one, drawn as a tree; the servers' own ones are left out."""
    shown = (
        *("cometmq.model.errors", "cometmq.client", "cometmq.embedded", "cometmq.remoting"),
        "cometmq.protocol.compression",
    )
    below = [
        kind
        for kind in error.__subclasses__()
        if kind.__module__.startswith(shown) and "._hints" not in kind.__module__
    ]
    for number, kind in enumerate(sorted(below, key=lambda kind: kind.__name__), start=1):
        last = number == len(below)
        text = (inspect.getdoc(kind) or "").partition("\n")[0].replace("``", "`")
        stem = before + ("└── " if last else "├── ") + kind.__name__
        yield f"{stem:<33}{text}"
        yield from _branches(kind, before + ("    " if last else "│   "))


def client_index_page() -> str:
    """One line for each public name of the client, with a link to its page."""
    lines = [(ROOT / "docs/reference/parts/client.md").read_text().rstrip()]
    for page in CLIENT_PAGES:
        lines += [
            "",
            f"## [{page.title}](client/{page.file})",
            "",
            "| Name | What it is |",
            "|---|---|",
        ]
        for name in page.names:
            module = client_module(name)
            thing = getattr(importlib.import_module(module), name)
            link = f"[`{name}`](client/{page.file}#{name.lower()})"
            lines.append(_row(link, _summary(name, thing, module)))
    return "\n".join(lines) + "\n"


def client_page(page: ClientPage) -> str:
    """The public names of one page of the client, with their docstrings."""
    text = textwrap.fill(page.text, LINE_CHARS_MAX, break_long_words=False, break_on_hyphens=False)
    lines = [f"# {page.title}", "", text, "", "[All names of the client](../client.md)"]
    if imports := list(_imports(page)):
        lines += ["", "```text", *imports, "```"]
    for name in page.names:
        module = client_module(name)
        lines += _described(name, getattr(importlib.import_module(module), name), module)
    return "\n".join(lines) + "\n"


def _imports(page: ClientPage) -> Iterator[str]:
    """How a program imports those names of a page that are not in `cometmq.client`."""
    for module in CLIENT_MODULES[1:]:
        if names := [name for name in page.names if client_module(name) == module]:
            line = f"from {module} import {', '.join(names)}"
            yield line if len(line) <= LINE_CHARS_MAX else f"from {module} import ..."


def module_page(name: str) -> str:
    """The public names of a module of `cometmq` with their docstrings, functions first."""
    module = importlib.import_module(f"cometmq.{name}")
    lines = [(ROOT / f"docs/reference/parts/{name}.md").read_text().rstrip()]
    for each in sorted(module.__all__, key=lambda name: name[0].isupper()):
        lines += _described(each, getattr(module, each), module.__name__)
    return "\n".join(lines) + "\n"


def client_parts_page() -> str:
    """The public names of the client's packages that are imported one by one."""
    from cometmq.client import idempotent, subscription_check, telemetry
    from cometmq.client.idempotent import sqlalchemy

    lines = [(ROOT / "docs/reference/parts/client-parts.md").read_text().rstrip()]
    parts = {
        idempotent: idempotent.__all__,
        sqlalchemy: ["SqlAlchemyMarks", "SqlTransaction", "AsyncSqlTransaction"],
        telemetry: telemetry.__all__,
        subscription_check: subscription_check.__all__,
    }
    for module, names in parts.items():
        lines += ["", f"## {module.__name__}", "", *_docstring(module)]
        for name in names:
            thing = getattr(module, name)
            lines += _described(name, thing, module.__name__, level=3, client_folder="client/")
    return "\n".join(lines) + "\n"


def client_settings_page() -> str:
    """Every setting of clients, with its names in a program, the environment and a file."""
    lines = [(ROOT / "docs/reference/parts/client-settings.md").read_text().rstrip()]
    for kind in client_settings():
        lines += ["", f"## {kind.__name__}", "", *_docstring(kind), ""]
        lines += [f"Table `[{kind.section}]`; variables begin with `{_variable_prefix(kind)}`.", ""]
        lines += ["| Name | Default | Expected | Meaning |", "|---|---|---|---|"]
        lines += _client_setting_rows(kind)
    return "\n".join(lines) + "\n"


def client_settings() -> list[Any]:
    """The settings classes of the client, in the order of their page."""
    from cometmq.client import settings

    return [getattr(settings, name) for name in settings.__all__]


def client_sample() -> str:
    """A TOML file that names every client setting, commented out, at its default."""
    from cometmq.system.settings import describe
    from cometmq.system.settings_sample import field_texts

    lines = [
        "# Settings of CometMQ's client. Name this file in COMETMQ_CONFIG, or pass it as config=.",
        "# Every line is at its default. Environment variables, settings objects and keywords take",
        "# precedence over this file.",
    ]
    for kind in client_settings():
        lines += ["", f"[{kind.section}]"]
        for setting in describe(kind):
            text = f"{field_texts(kind)[setting.name]} Expected: {setting.expectation}.".replace(
                "``", "`"
            )
            lines += ["", *(f"# {line}" for line in textwrap.wrap(text, LINE_CHARS_MAX))]
            lines.append(f"#{setting.name} = {_toml(setting.default())}")
    return "\n".join(lines) + "\n"


def client_options() -> str:
    """A module that tells type checkers the keywords of constructors, and their types.

    Constructors have a parameter for the addresses of the name servers, so their keywords are the
    other settings of a connection, and those of one kind of client.
    """
    from cometmq.client.settings import ClientSettings
    from cometmq.system.settings import describe

    addresses, *connection = describe(ClientSettings)
    lines = [
        '"""Types of the settings that constructors take by name. Made by docs/pages.py."""',
        "",
        "from datetime import timedelta",
        "from pathlib import Path",
        "from typing import Literal, TypedDict",
        *_typed_dict("ConnectionOptions", "TypedDict", "Settings of connections.", connection),
        *_typed_dict("ClientOptions", "ConnectionOptions", "`ClientSettings`.", [addresses]),
    ]
    for kind in client_settings()[1:]:
        name, text = kind.__name__.removesuffix("Settings"), f"`{kind.__name__}`."
        lines += _typed_dict(f"{name}OnlyOptions", "TypedDict", text, describe(kind))
        if kind.section == "trace":
            continue  # no constructor takes these by name
        bases = f"{name}OnlyOptions, ConnectionOptions"
        lines += _typed_dict(f"{name}Options", bases, text[:-1] + " and settings of connections.")
    return "\n".join(lines) + "\n"


def _typed_dict(name: str, bases: str, text: str, settings: Iterable[Any] = ()) -> Iterator[str]:
    yield from ("", "", f"class {name}({bases}, total=False):", f'    """{text}"""')
    if options := [_option(setting) for setting in settings]:
        yield from ("", *options)


def _option(setting: Any) -> str:
    """A setting in a program, where a time may be a `timedelta`."""
    from cometmq.client.settings import TIME_UNITS

    if setting.choices:
        choices = [json.dumps(choice) for choice in setting.choices]
        line = f"    {setting.name}: Literal[{', '.join(choices)}]"
        if len(line) <= CODE_CHARS_MAX:
            return line
        return f"    {setting.name}: Literal[\n        " + ",\n        ".join(choices) + ",\n    ]"
    text = inspect.formatannotation(setting.kind, setting.kind.__module__)
    others = ["timedelta"] * (setting.unit in TIME_UNITS) + ["str"] * (setting.kind is Path)
    others += ["None"] * setting.optional
    return f"    {setting.name}: " + " | ".join([text, *others])


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float | tuple):
        return json.dumps(value)
    return json.dumps("" if value is None else str(value))


def _variable_prefix(kind: Any) -> str:
    from cometmq.client.settings import PREFIX

    return f"{PREFIX}{kind.section}_".upper()


def _client_setting_rows(kind: Any) -> Iterator[str]:
    from cometmq.system.settings import describe
    from cometmq.system.settings_sample import field_texts

    for setting in describe(kind):
        shown = setting.render(setting.default())
        default = MACHINE_DEFAULT if setting.depends_on_machine else f"`{shown}`" if shown else ""
        meaning = field_texts(kind)[setting.name].replace("``", "`")
        if setting.environment:
            meaning += f" Also from the variable `{setting.environment}`."
        yield _row(f"`{setting.name}`", default, setting.expectation, meaning)


def spark_formats_page() -> str:
    """Columns and options of the Spark formats."""
    from docs.spark_pages import formats_page

    return formats_page()


def spark_pipelines_page() -> str:
    """The pipelines and their settings."""
    from docs.spark_pages import pipelines_page

    return pipelines_page()


def _is_kind(thing: Any, kind: type) -> bool:
    return isinstance(thing, type) and issubclass(thing, kind)


def _described(
    name: str, thing: Any, module: str, *, level: int = 2, client_folder: str = ""
) -> Iterator[str]:
    """One public name: what it is, its fields or members, and its methods.

    ``client_folder`` leads from the page to the pages of the client.
    """
    heading = "#" * level
    yield from ("", f"{heading} {name}", "")
    if not isinstance(thing, type):
        yield from _signature(thing) if inspect.isfunction(thing) else ()
        yield from _docstring(thing) if inspect.isfunction(thing) else _alias_text(name, module)
        return
    yield from _constructor(thing)
    yield from _docstring(thing)
    yield from _fields(thing)
    if base := _documented_base(thing):
        page = next(page.file for page in CLIENT_PAGES if base in page.names)
        link = f"[`{base}`]({client_folder}{page}#{base.lower()})"
        yield from ("", f"It also has the methods of {link}.")
    for method_name, method in _methods(thing):
        call = getattr(thing, method_name)
        yield from ("", f"{heading}# {name}.{method_name}", "")
        if isinstance(method, property):
            yield from _docstring(method)
        else:
            yield from (*_signature(call), *_docstring(call))


def _documented_base(thing: type) -> str:
    """The base of a class that the client's reference describes itself, if there is one."""
    names = {name for page in CLIENT_PAGES for name in page.names}
    bases = (base.__name__ for base in thing.__mro__[1:] if base.__name__ in names)
    return next(bases, "") if not getattr(thing, "_is_protocol", False) else ""


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties, those of bases without a page of their own included."""
    seen: set[str] = set()
    described = _documented_base(thing)
    for base in thing.__mro__:
        if described and base.__name__ == described:
            return
        if base is not thing and not base.__module__.startswith("cometmq."):
            continue
        for name, member in vars(base).items():
            kinds = (classmethod, staticmethod, property)
            is_call = inspect.isfunction(member) or isinstance(member, kinds)
            if is_call and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def _fields(thing: type) -> Iterator[str]:
    """The documented fields of a dataclass, or the members of an enumeration."""
    from cometmq.system.settings_sample import field_texts

    if _is_kind(thing, Enum):
        rows = [(f"`{name}`", text) for name, text in _member_texts(thing).items()]
        title = "Member"
    elif dataclasses.is_dataclass(thing):
        texts = field_texts(thing)
        rows = [(f"`{f.name}: {_type(f.type)}`", texts.get(f.name, "")) for f in _shown(thing)]
        title = "Field"
    elif names := getattr(thing, "_fields", getattr(thing, "__struct_fields__", ())):
        texts, types = field_texts(thing), inspect.get_annotations(thing)
        rows = [(f"`{name}: {_type(types[name])}`", texts.get(name, "")) for name in names]
        title = "Field"
    else:
        return
    if rows:
        yield from ("", f"| {title} | Meaning |", "|---|---|")
        yield from (_row(name, text.replace("``", "`")) for name, text in rows)


def _shown(thing: Any) -> list[Any]:
    return [field for field in dataclasses.fields(thing) if not field.name.startswith("_")]


def _type(annotation: Any) -> str:
    """An annotation as the source has it, without the modules of its names."""
    if isinstance(annotation, ForwardRef):  # in a named tuple, before Python 3.14
        return annotation.__forward_arg__
    if isinstance(annotation, str):
        return annotation
    return MODULE.sub("", inspect.formatannotation(annotation))


def _summary(name: str, thing: Any, module: str) -> str:
    """The first sentence of what a name is."""
    if isinstance(thing, type) or inspect.isfunction(thing):
        text = _sentence((inspect.getdoc(thing) or "").partition("\n\n")[0]).replace("``", "`")
    else:
        text = list(_alias_text(name, module))[-1]
    return text.partition(". ")[0].rstrip(".") + "."


def _member_texts(thing: Any) -> dict[str, str]:
    body = ast.parse(inspect.getsource(thing)).body[0].body  # type: ignore[attr-defined]
    texts = dict.fromkeys(thing.__members__, "")
    for member, text in itertools.pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            name = member.targets[0].id  # type: ignore[attr-defined]
            texts[name] = _sentence(ast.literal_eval(text.value))
    return texts


def _alias_text(name: str, module: str) -> Iterator[str]:
    """The text below a name that stands for a type."""
    owner = _owner_of(name, module)
    source = ast.parse(inspect.getsource(owner)).body
    for alias, text in itertools.pairwise(source):
        if (
            isinstance(alias, ast.Assign)
            and getattr(alias.targets[0], "id", "") == name
            and isinstance(text, ast.Expr)
        ):
            yield from ("```text", f"{name} = {ast.unparse(alias.value)}", "```", "")
            yield _sentence(ast.literal_eval(text.value)).replace("``", "`")


def _owner_of(name: str, module: str) -> Any:
    """The module in which a name of a package is written down."""
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.ImportFrom) and any(part.name == name for part in node.names):
            return sys.modules[node.module or ""]
    return sys.modules[module]


def _signature(call: Callable[..., Any]) -> Iterator[str]:
    signature = inspect.signature(call)
    prefix = "await " if inspect.iscoroutinefunction(call) else ""
    returns = _type(signature.return_annotation)
    yield from ("```text", *_call(prefix + call.__name__, signature, f" -> {returns}"), "```", "")


def _constructor(thing: type) -> Iterator[str]:
    """How an object is made, where the class says so itself."""
    made_otherwise = dataclasses.is_dataclass(thing) or _is_kind(thing, Enum)
    if "__init__" in vars(thing) and not made_otherwise and not getattr(thing, "_is_protocol", 0):
        signature = inspect.signature(vars(thing)["__init__"])
        yield from ("```text", *_call(thing.__name__, signature, ""), "```", "")


def _call(name: str, signature: inspect.Signature, end: str) -> Iterator[str]:
    """A call with its parameters, on one line if it fits."""
    shown = [p for n, p in signature.parameters.items() if n != "self"]
    parameters = [_parameter_text(parameter) for parameter in shown]
    kinds = [p.kind for p in shown]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"{name}({', '.join(parameters)}){end}"
    if len(line) <= LINE_CHARS_MAX:
        yield line
    else:
        yield from (f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){end}")


def _parameter_text(parameter: inspect.Parameter) -> str:
    text = ANNOTATION.sub(r": \1", str(parameter), count=1)
    return MEMBER.sub(r"\1", FUNCTION.sub(r"\1", text))


def _docstring(thing: Any) -> Iterator[str]:
    """The docstring as Markdown: paragraphs, lists of parameters and errors, and an example."""
    text = inspect.getdoc(thing) or ""
    blocks = [block for block in re.split(r"\n\n(?! )|\n(?=[A-Z][a-z]+:(?: |$))", text) if block]
    for number, block in enumerate(blocks):
        yield from ("",) if number else ()
        head, _, body = block.partition(":\n")
        single = EXAMPLE.fullmatch(block)
        if head == "Example" or single:
            code = single[1] if single else textwrap.dedent(body)
            yield from ("<!-- from a docstring -->", "```python", *code.splitlines(), "```")
        elif head in LISTS:
            yield from (f"{LISTS[head]}:", "", *_entries(textwrap.dedent(body)))
        elif head in ("Returns", "Yields"):
            yield f"{head}: {_prose(body)}"
        elif "\n    " in f"\n{block}":
            yield from ("```text", *block.splitlines(), "```")
        else:
            yield _prose(block)


def _entries(text: str) -> Iterator[str]:
    """A list of ``name: meaning``; names separated by commas share a meaning."""
    for entry in re.split(r"\n(?! )", text.strip("\n")):
        names, colon, meaning = entry.partition(": ")
        if not colon:
            yield f"- {_prose(entry)}"
            continue
        yield f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {_prose(meaning)}"


def _prose(text: str) -> str:
    return _sentence(text).replace("``", "`")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


GENERATED: dict[Path, Callable[[], str]] = {
    ROOT / "docs/reference/configuration.md": configuration_page,
    ROOT / "docs/reference/cli.md": cli_page,
    ROOT / "docs/reference/admin.md": admin_page,
    ROOT / "docs/reference/errors.md": codes_page,
    ROOT / "docs/reference/client.md": client_index_page,
    **{
        ROOT / "docs/reference/client" / page.file: functools.partial(client_page, page)
        for page in CLIENT_PAGES
    },
    **{
        ROOT / f"docs/reference/{name}.md": functools.partial(module_page, name)
        for name in ("embedded", "testing")
    },
    ROOT / "docs/reference/client-parts.md": client_parts_page,
    ROOT / "docs/reference/client-settings.md": client_settings_page,
    ROOT / "docs/reference/spark-formats.md": spark_formats_page,
    ROOT / "docs/reference/spark-pipelines.md": spark_pipelines_page,
    ROOT / "conf/client.toml": client_sample,
    ROOT / "src/cometmq/client/options.py": client_options,
}


def main() -> int:
    """Write every generated part; those of Spark only if PySpark is installed."""
    kept = is_any if find_spec("pyspark") else lambda path: not needs_spark(path)
    texts = dict(wanted(kept))
    for path in stale(kept):
        path.write_text(texts[path])
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
