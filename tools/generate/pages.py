"""Makes the parts of the documentation that follow from the code.

These are whole pages about settings classes, commands and codes, and included files: a code block
below a comment ``<!-- include: path -->`` is that file.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.generate.configuration import client_settings
from tools.generate.root import ROOT

INCLUDE = re.compile(r"(<!-- include: (\S+) -->\n```\w*\n).*?(```)", re.DOTALL)
MACHINE_DEFAULT = "(see meaning)"
MADE = "<!-- Made by tools/generate from docstrings and docs/reference/parts: edit these. -->\n\n"
"""The first line of every generated page."""


def pages() -> list[Path]:
    """Every page of the documentation, those at the project's root included."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if path.parent.name != "parts")


def _included(match: re.Match[str]) -> str:
    head, name, end = match.groups()
    return head + (ROOT / name).read_text() + end


def configuration_page() -> str:
    """Every key of the servers' files."""
    from cometmq.access.account_settings import AccountSettings
    from cometmq.access.user_settings import UserSettings
    from cometmq.broker.config import BrokerSettings
    from cometmq.broker.pop.config import PopSettings
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
        "Pop consumption (broker)": PopSettings,
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
    from cometmq.system.settings import describe, field_texts

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
        "A server prints a line that starts with `ready`, logs to standard error, and stops in",
        "good order on SIGTERM or Ctrl-C.",
        "`standalone` prints a second line: where its store is and how much disk it takes. Exit",
        "codes: 0 success; 1 failure, or a finding of `store verify`; 2 wrong usage.",
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


def client_settings_page() -> str:
    """Every setting of clients, with its names in a program, the environment and a file."""
    lines = [(ROOT / "docs/reference/parts/client-settings.md").read_text().rstrip()]
    for kind in client_settings():
        lines += ["", f"## {kind.__name__}", "", *_docstring(kind), ""]
        lines += [f"Table `[{kind.section}]`; variables begin with `{_variable_prefix(kind)}`.", ""]
        lines += ["| Name | Default | Expected | Meaning |", "|---|---|---|---|"]
        lines += _client_setting_rows(kind)
    return "\n".join(lines) + "\n"


def _variable_prefix(kind: Any) -> str:
    from cometmq.client.settings import PREFIX

    return f"{PREFIX}{kind.section}_".upper()


def _client_setting_rows(kind: Any) -> Iterator[str]:
    from cometmq.system.settings import describe, field_texts

    for setting in describe(kind):
        shown = setting.render(setting.default())
        default = MACHINE_DEFAULT if setting.depends_on_machine else f"`{shown}`" if shown else ""
        meaning = field_texts(kind)[setting.name].replace("``", "`")
        if setting.environment:
            meaning += f" Also from the variable `{setting.environment}`."
        yield _row(f"`{setting.name}`", default, setting.expectation, meaning)


def _docstring(thing: Any) -> Iterator[str]:
    """The docstring of a class as Markdown: its paragraphs, and its example."""
    text, _, example = (inspect.getdoc(thing) or "").partition("\nExample:\n")
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        yield from ("",) if number else ()
        yield _sentence(paragraph).replace("``", "`")
    if example:
        code = textwrap.dedent(example).splitlines()
        yield from ("", "<!-- from a docstring -->", "```python", *code, "```")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


GENERATED: dict[Path, Callable[[], str]] = {
    ROOT / "docs/reference/configuration.md": configuration_page,
    ROOT / "docs/reference/cli.md": cli_page,
    ROOT / "docs/reference/admin.md": admin_page,
    ROOT / "docs/reference/errors.md": codes_page,
    ROOT / "docs/reference/client-settings.md": client_settings_page,
}


def files() -> Iterator[tuple[Path, str]]:
    """Each page that is generated or includes a file, and the text it should have."""
    for path, make in GENERATED.items():
        yield path, MADE + make()
    for path in pages():
        text = path.read_text()
        if path not in GENERATED and INCLUDE.search(text):
            yield path, INCLUDE.sub(_included, text)
