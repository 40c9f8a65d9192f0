"""Writes the parts of the documentation that follow from the code, and tells when they are stale.

Two kinds: whole pages made from settings classes, commands and codes, and included files: a code
block below a comment ``<!-- include: path -->`` is that file. ``python docs/pages.py`` writes all
of them anew; a test fails while one is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r"(<!-- include: (\S+) -->\n```\w*\n).*?(```)", re.DOTALL)
MACHINE_DEFAULT = "(the machine's)"


def pages() -> list[Path]:
    """Every page of the documentation, those at the project's root included."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def wanted() -> Iterator[tuple[Path, str]]:
    """Give each page that has a made part, and the text it should have."""
    for path, make in GENERATED.items():
        yield path, make()
    for path in pages():
        text = path.read_text()
        if path not in GENERATED and INCLUDE.search(text):
            yield path, INCLUDE.sub(_included, text)


def stale() -> list[Path]:
    """Pages whose made parts no longer follow from the code."""
    return [path for path, text in wanted() if not path.exists() or path.read_text() != text]


def _included(match: re.Match[str]) -> str:
    head, name, end = match.groups()
    return head + (ROOT / name).read_text() + end


def configuration_page() -> str:
    """Every key of the servers' files."""
    from cometmq.broker.config import BrokerSettings
    from cometmq.namesrv.config import NameServerSettings
    from cometmq.remoting.config import RemotingSettings, TlsSettings
    from cometmq.store.config import StoreSettings

    lines = [
        "# Configuration",
        "",
        "The keys of `broker.conf` and `namesrv.conf`, in the format of Java properties files. The",
        "names are RocketMQ's; keys in *italics* exist only here. How the files are read is told",
        "in [Configure](../howto/configure.md). **Live** keys can be changed while it runs.",
    ]
    parts = {
        "Broker": BrokerSettings,
        "Store": StoreSettings,
        "Name server": NameServerSettings,
        "Connections (all servers)": RemotingSettings,
        "TLS (all servers)": TlsSettings,
    }
    for title, settings in parts.items():
        lines += ["", f"## {title}", "", "| Key | Default | Expected | Meaning |"]
        lines += ["|---|---|---|---|", *_settings_rows(settings)]
    return "\n".join(lines) + "\n"


def _settings_rows(settings: type) -> Iterator[str]:
    from cometmq.system.rocketmq_keys import BROKER_KEYS, NAMESRV_KEYS
    from cometmq.system.settings import describe
    from cometmq.system.settings_sample import field_texts

    theirs = BROKER_KEYS | NAMESRV_KEYS
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
        "`cometmq --help` and `cometmq COMMAND --help` say the same. Servers print one line that",
        "starts with `ready` once they serve, log to standard error, and stop in order on SIGTERM",
        "or Ctrl-C. Exit codes: 0 done, 1 failed, 2 misused.",
    ]
    for name, command in _commands("cometmq", typer.main.get_command(app)):
        lines += ["", f"## {name}", "", _sentence(command.help), ""]
        lines += _parameters(command)
    return "\n".join(lines).rstrip() + "\n"


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
    name = " ".join(f"`{text}`" for text in parameter.opts) if is_option else parameter.name.upper()
    shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if callable(shown) or shown is None or shown is False or shown == "" or parameter.required:
        shown = ""
    if parameter.required and not is_option:
        name += " (needed)"
    return name, str(shown), _sentence(getattr(parameter, "help", None))


def codes_page() -> str:
    """All response codes below a text that is written by hand."""
    from cometmq.protocol.codes import ResponseCode

    rows = [_row(f"{int(code)}", f"`{code.name}`") for code in sorted(ResponseCode)]
    head = (ROOT / "docs/reference/parts/errors.md").read_text().rstrip()
    return "\n".join([head, "", "| Code | Name |", "|---|---|", *rows]) + "\n"


def client_page() -> str:
    """The public names of the client with their docstrings."""
    import cometmq.client

    lines = [(ROOT / "docs/reference/parts/client.md").read_text().rstrip()]
    for name in cometmq.client.__all__:
        thing = getattr(cometmq.client, name)
        if issubclass(thing, Exception):
            continue
        lines += ["", f"## {name}", "", *_docstring(thing)]
        for method_name, method in vars(thing).items():
            is_call = inspect.isfunction(method) or isinstance(method, classmethod)
            if method_name.startswith("_") or not is_call:
                continue
            call = getattr(thing, method_name)
            lines += ["", f"### {name}.{method_name}", "", *_signature(call), *_docstring(call)]
    return "\n".join(lines) + "\n"


def _signature(call: Callable[..., Any]) -> Iterator[str]:
    signature = inspect.signature(call)
    parameters = [str(p) for n, p in signature.parameters.items() if n != "self"]
    prefix = "await " if inspect.iscoroutinefunction(call) else ""
    parameters = [text.replace("'", "") for text in parameters]
    if any(p.kind is p.KEYWORD_ONLY for p in signature.parameters.values()):
        first = next(
            number
            for number, p in enumerate(q for n, q in signature.parameters.items() if n != "self")
            if p.kind is p.KEYWORD_ONLY
        )
        parameters.insert(first, "*")
    returns = str(signature.return_annotation).strip("'")
    yield from ("```text", f"{prefix}{call.__name__}({', '.join(parameters)}) -> {returns}", "```")
    yield ""


def _docstring(thing: Any) -> Iterator[str]:
    """The docstring: its first sentence as text, all else as it stands."""
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n\n")
    yield _sentence(first).replace("``", "`")
    if rest.strip():
        yield from ("", "```text", *rest.strip().splitlines(), "```")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


GENERATED: dict[Path, Callable[[], str]] = {
    ROOT / "docs/reference/configuration.md": configuration_page,
    ROOT / "docs/reference/cli.md": cli_page,
    ROOT / "docs/reference/errors.md": codes_page,
    ROOT / "docs/reference/client.md": client_page,
}


def main() -> int:
    """Write every made part anew."""
    for path in stale():
        path.write_text(dict(wanted())[path])
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
