"""Where a client's settings come from: keywords, a settings object, the environment, a TOML file.

The first of them that names a setting decides; what none of them names has its default.

    keyword       ``Producer(..., retries=0)``
    object        ``ProducerSettings(retries=0)``
    environment   ``COMETMQ_PRODUCER_RETRIES=0``, and RocketMQ's own variables such as NAMESRV_ADDR
    TOML          ``[producer]`` and ``retries = 0`` in the file that COMETMQ_CONFIG names

Source: ours.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cometmq.client.config.base import Checked, described
from cometmq.model.errors import ConfigError
from cometmq.system.settings import Setting

S = TypeVar("S", bound=Checked)
Tables = Mapping[str, Mapping[str, Any]]
"""What a TOML file says: section to setting to value."""

PREFIX = "COMETMQ_"
FILE_VARIABLE = PREFIX + "CONFIG"
FILE_BYTES_MAX = 1024 * 1024


def layered(
    kind: type[S],
    *,
    keywords: Mapping[str, Any] | None = None,
    given: S | None = None,
    environment: Mapping[str, str] | None = None,
    tables: Tables | None = None,
) -> S:
    """Make the settings of one kind from all that was said about them.

    Args:
        kind: the settings class.
        keywords: what the caller passed by name; every name must be a setting of ``kind``.
        given: what the caller passed as an object; only what was passed to it counts.
        environment: the process's variables; None for those of this process.
        tables: what the TOML file says; None for the file that the environment names, if any.

    Raises:
        ConfigError: a value is out of its range, or a name is unknown; says where it was met.
    """
    variables = os.environ if environment is None else environment
    said = named_file(variables) if tables is None else tables
    values = _from_table(kind, said.get(kind.section, {}))
    values |= _from_environment(kind, variables)
    if given is not None:
        values |= {name: getattr(given, name) for name in given.given}
    if keywords:
        _refuse_unknown(keywords, kind, "keyword")
        values |= keywords
    return kind(**values)


def shared_out(keywords: Mapping[str, Any], *kinds: type[Checked]) -> list[dict[str, Any]]:
    """Give each kind the keywords that are its own, the first kind that has a name taking it.

    Raises:
        ConfigError: no kind has a setting of such a name; says which are near.
    """
    parts: list[dict[str, Any]] = [{} for _ in kinds]
    for name, value in keywords.items():
        for kind, part in zip(kinds, parts, strict=True):
            if name in _names(kind):
                part[name] = value
                break
        else:
            known = [known for kind in kinds for known in _names(kind)]
            raise ConfigError(_unknown(name, known, "keyword"))
    return parts


def named_file(environment: Mapping[str, str]) -> Tables:
    """Read the TOML file that COMETMQ_CONFIG names; nothing when it names none."""
    path = environment.get(FILE_VARIABLE)
    return read_tables(Path(path)) if path else {}


def read_tables(path: Path) -> Tables:
    """Read a TOML file of at most 1 MiB; tables of other programs are kept as they are.

    Raises:
        ConfigError: it cannot be read or is no TOML.
    """
    try:
        with path.expanduser().open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        found = tomllib.loads(data.decode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    return {name: table for name, table in found.items() if isinstance(table, dict)}


def variable_of(kind: type[Checked], setting: Setting) -> str:
    """Give the name of the environment variable that sets a setting."""
    return f"{PREFIX}{kind.section}_{setting.name}".upper()


def _from_table(kind: type[Checked], table: Mapping[str, Any]) -> dict[str, Any]:
    where = f"table [{kind.section}]"
    _refuse_unknown(table, kind, where)
    known = {setting.name: setting for setting in _described(kind)}
    return {name: _parsed(known[name], _text(value), where) for name, value in table.items()}


def _from_environment(kind: type[Checked], variables: Mapping[str, str]) -> dict[str, Any]:
    prefix = f"{PREFIX}{kind.section}_".upper()
    ours = {name.removeprefix(prefix).lower() for name in variables if name.startswith(prefix)}
    _refuse_unknown(sorted(ours), kind, f"environment {prefix}*")
    found: dict[str, Any] = {}
    for setting in _described(kind):
        for name in (variable_of(kind, setting), setting.environment):
            if name and name in variables:
                found[setting.name] = _parsed(setting, variables[name], f"environment {name}")
                break
    return found


def _parsed(setting: Setting, text: str, where: str) -> Any:
    try:
        return setting.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)


def _described(kind: type) -> tuple[Setting, ...]:
    return described(kind)


def _names(kind: type[Checked]) -> list[str]:
    return [setting.name for setting in _described(kind)]


def _refuse_unknown(names: Iterable[str], kind: type[Checked], where: str) -> None:
    known = _names(kind)
    for name in names:
        if name not in known:
            raise ConfigError(_unknown(name, known, where))


def _unknown(name: str, known: Iterable[str], where: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.7)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{where}: there is no setting {name!r}{hint}"
