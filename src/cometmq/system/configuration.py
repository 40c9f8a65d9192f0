"""Resolves the settings of one process, with the origin of each value, and changes them.

The precedence of values is: command line, configuration file, environment, default. One
file feeds several settings classes; a key that two of them claim sets both. A key that RocketMQ
has and no class claims causes one warning; any other unknown key is an error. Tools of RocketMQ are
shown its keys without effect, too, with the value of the file or RocketMQ's default.

The precedence is that of RocketMQ.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cometmq.model.errors import ConfigError
from cometmq.system import java_properties
from cometmq.system.files import BACKUP_END, FRESH_END, Files, save_with_backup
from cometmq.system.rocketmq_keys import PROTECTED_KEYS, SECRET_KEYS, Keys
from cometmq.system.settings import Setting, describe

T = TypeVar("T")

DEFAULT = "default"
"""The origin of a value that nothing set."""
REQUEST = "request"
"""The origin of a value that a request would set."""
COMMAND_LINE = "command line"
"""The origin of a value from the command line."""
PROGRAM = "program"
"""The origin of a value that code has set."""

_FILE_BYTES_MAX = 1024 * 1024
_SUGGESTIONS_MAX = 2
_HIDDEN = "********"
_WITHOUT_EFFECT = (
    "# Settings of RocketMQ without effect here, as its tools are shown them: as a file sets them,"
    " or with RocketMQ's default.\n"
)


class ProtectedSettingError(ConfigError):
    """The setting exists, and no request may change it.

    Args:
        keys: the settings.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = sorted(keys)
        super().__init__(f"no request may change {', '.join(self.keys)}")


class Value(msgspec.Struct, frozen=True):
    """The text of one setting and its origin (``broker.conf:12``, `COMMAND_LINE`, …)."""

    text: str
    origin: str


class Configuration:
    """The settings of one process: one instance of each class, replaced as a whole by a change.

    Args:
        settings_classes: declare the settings, as `describe` returns them.
        values: key → what was found; keys no class claims must have been taken out before.
        unused: keys that RocketMQ has and no class claims.
        known_keys: the keys of RocketMQ's file for this server (`rocketmq_keys`).

    Raises:
        ConfigError: a value is of the wrong kind or out of range; names every such value.
    """

    def __init__(
        self,
        settings_classes: Iterable[type],
        values: Mapping[str, Value] | None = None,
        unused: Mapping[str, Value] | None = None,
        known_keys: Keys = dict,
    ) -> None:
        self._settings_classes = tuple(settings_classes)
        self._values = dict(values or {})
        self.unused: Mapping[str, Value] = dict(unused or {})
        self._known_keys = known_keys
        self._settings = _instances(self._settings_classes, self._values)
        self.changes = 0
        """How often `change` changed something."""

    @classmethod
    def of(cls, *settings: Any, known_keys: Keys = dict) -> Configuration:
        """Return the configuration that consists of these settings objects."""
        settings_classes: list[type] = [type(instance) for instance in settings]
        values = {
            described.key: Value(described.render(getattr(instance, described.name)), PROGRAM)
            for settings_class, instance in zip(settings_classes, settings, strict=True)
            for described in describe(settings_class)
            if getattr(instance, described.name) != described.default()
        }
        return cls(settings_classes, values, known_keys=known_keys)

    def __contains__(self, settings_class: object) -> bool:
        """Return whether a settings class is part of it."""
        return settings_class in self._settings

    def __getitem__(self, settings_class: type[T]) -> T:
        """Return the current settings of one class."""
        settings: T = self._settings[settings_class]
        return settings

    def reader_of(self, settings_class: type[T]) -> Callable[[], T]:
        """Return a function that gives the settings of one class at the time of the call."""
        return lambda: self[settings_class]

    def origin(self, key: str) -> str:
        """Return the origin of the value of ``key``."""
        value = self._values.get(key)
        return DEFAULT if value is None else value.origin

    def secrets(self) -> dict[str, str]:
        """Return the keys of the passwords and tokens that are set, with the origin of each."""
        found = {
            setting.key: self.origin(setting.key)
            for settings_class in self._settings_classes
            for setting in describe(settings_class)
            if setting.secret
            and setting.render(getattr(self._settings[settings_class], setting.name))
        }
        found |= {
            key: value.origin
            for key, value in self.unused.items()
            if key in SECRET_KEYS and value.text
        }
        return dict(sorted(found.items()))

    def properties(self) -> dict[str, str]:
        """Return the effective value of every key as text, in alphabetical order.

        Of secrets it shows only whether they are set.
        """
        texts = {
            setting.key: _shown(setting, getattr(self._settings[settings_class], setting.name))
            for settings_class in self._settings_classes
            for setting in describe(settings_class)
        }
        return dict(sorted(texts.items()))

    def without_effect(self) -> dict[str, str]:
        """Return the keys of RocketMQ without effect: the text of the file, or its default."""
        defaults = {key: text for key, text in self._known_keys().items() if text is not None}
        of_file = {key: value.text for key, value in self.unused.items()}
        for key in SECRET_KEYS & of_file.keys():
            if of_file[key] not in ("", defaults.get(key)):
                of_file[key] = _HIDDEN
        texts = defaults | of_file
        declared = self._remote_keys()
        return {key: texts[key] for key in sorted(texts) if key not in declared}

    def render(self, in_force: Mapping[str, str] | None = None) -> str:
        """Return the settings as properties text, those without effect too, for tools.

        Args:
            in_force: key → text of settings that the program has replaced since its start, or that
                it has found out.
        """
        return java_properties.render(
            self.without_effect() | self.properties() | dict(in_force or {})
        )

    def render_with_origins(self) -> str:
        """Return the settings as properties text, each below a comment on its origin.

        Those without effect are comments themselves.
        """
        lines = [
            f"# {self.origin(key)}\n{java_properties.render({key: text})}"
            for key, text in self.properties().items()
        ]
        if others := self.without_effect():
            lines.append(_WITHOUT_EFFECT)
        for key, text in others.items():
            value = self.unused.get(key)
            origin = "" if value is None else f"# {value.origin}\n"
            lines.append(f"{origin}#{java_properties.render({key: text})}")
        return "".join(lines)

    def warning(self) -> str | None:
        """Return one sentence on the keys of RocketMQ without effect; None if there are none."""
        if not self.unused:
            return None
        keys = ", ".join(f"{key} ({value.origin})" for key, value in sorted(self.unused.items()))
        return f"settings of RocketMQ that have no effect here: {keys}"

    def set(self, values: Mapping[str, str], origin: str = PROGRAM) -> None:
        """Set values from within the program, such as the port a server was really given.

        Raises:
            ConfigError: a key is unknown or a value is out of range; nothing was changed.
        """
        if unknown := sorted(values.keys() - self._remote_keys().keys()):
            raise ConfigError(f"no such setting: {', '.join(unknown)}")
        self._put(self._with(values, origin))

    def accepted(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the keys and values of a remote request that `change` would apply.

        Only settings declared ``remote`` can be changed. Keys that RocketMQ does not know either
        are left out, as there.

        Raises:
            ProtectedSettingError: a key must not be changed by a request.
            ConfigError: a value is of the wrong kind or out of range, or is another one than is
                shown of a setting of RocketMQ without effect here.
        """
        remote = self._remote_keys()
        refused = [key for key in values if key in PROTECTED_KEYS or not remote.get(key, True)]
        if refused:
            raise ProtectedSettingError(refused)
        if others := values.keys() - remote.keys():
            self._refuse_without_effect({key: values[key] for key in sorted(others)})
        accepted = {key: text for key, text in values.items() if key in remote}
        self._with(accepted, REQUEST)
        return accepted

    def _refuse_without_effect(self, values: Mapping[str, str]) -> None:
        """Refuse changes of settings that only RocketMQ has; tools may send back what is shown."""
        shown, known = self.without_effect(), self._known_keys()
        refused = [
            f"{key}={text[:80]}"
            for key, text in values.items()
            if key in known and text != shown.get(key)
        ]
        if refused:
            raise ConfigError(
                "settings of RocketMQ that have no effect here cannot be changed:"
                f" {', '.join(refused)}"
            )

    def change(self, values: Mapping[str, str], origin: str) -> dict[str, str]:
        """Apply a remote request to change settings: all of it, or nothing.

        Args:
            values: key → text.
            origin: the requester, for `origin`.

        Returns:
            The keys and values that were applied, see `accepted`.

        Raises:
            ProtectedSettingError: a key must not be changed by a request.
            ConfigError: a value is of the wrong kind or out of range.
        """
        applied = self.accepted(values)
        if applied:
            self._put(self._with(applied, origin))
            self.changes += 1
        return applied

    def _remote_keys(self) -> dict[str, bool]:
        """Return by key whether every class that claims it lets requests change it."""
        remote: dict[str, bool] = {}
        for settings_class in self._settings_classes:
            for setting in describe(settings_class):
                remote[setting.key] = setting.remote and remote.get(setting.key, True)
        return remote

    def _with(self, values: Mapping[str, str], origin: str) -> tuple[dict[str, Value], Any]:
        found = self._values | {key: Value(text, origin) for key, text in values.items()}
        return found, _instances(self._settings_classes, found)

    def _put(self, found: tuple[dict[str, Value], dict[type, Any]]) -> None:
        self._values, self._settings = found


def write_changes(path: Path, values: Mapping[str, str], files: Files) -> None:
    """Write changed settings into a properties file; its comments and permissions stay.

    Raises:
        ConfigError: the file cannot be written; it is as it was.
    """
    try:
        text = java_properties.decode(files.read(path) or b"")
        _keep_permissions(path)
        save_with_backup(files, path, java_properties.with_changes(text, values).encode())
    except (OSError, ValueError) as problem:
        raise ConfigError(f"the change cannot be written to {path}: {problem}") from problem


def _keep_permissions(path: Path) -> None:
    """Give the permissions of a file to the files that replace it: it may contain passwords."""
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        return
    for end in (FRESH_END, BACKUP_END):
        descriptor = os.open(path.with_name(path.name + end), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def load(
    settings_classes: Iterable[type],
    *,
    known_keys: Keys,
    file: Path | None = None,
    changes: Path | None = None,
    command_line: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Configuration:
    """Read the settings of one process.

    Args:
        settings_classes: declare the settings that the file may have.
        known_keys: the keys of RocketMQ's file for this server (`rocketmq_keys`).
        file: a properties file of at most 1 MiB; None for none.
        changes: another one, which takes precedence and need not exist: settings that requests
            have changed where several processes share ``file``.
        command_line: key → text, as given by the user.
        environment: the process's environment variables.

    Raises:
        ConfigError: the file cannot be read, a key is unknown (names the nearest known ones), or
            a value is of the wrong kind or out of range.
    """
    settings_classes = tuple(settings_classes)
    declared = {
        setting.key for settings_class in settings_classes for setting in describe(settings_class)
    }
    found = _from_environment(settings_classes, environment or {})
    found |= _from_file(file) if file is not None else {}
    found |= _from_file(changes) if changes is not None and changes.exists() else {}
    found |= {key: Value(text, COMMAND_LINE) for key, text in (command_line or {}).items()}
    if undeclared := {key: value for key, value in found.items() if key not in declared}:
        _refuse_unknown(undeclared, declared.union(known_keys()))
    return Configuration(
        settings_classes,
        values={key: value for key, value in found.items() if key in declared},
        unused=undeclared,
        known_keys=known_keys,
    )


def _shown(setting: Setting, value: Any) -> str:
    text = setting.render(value)
    return _HIDDEN if setting.secret and text else text


def _from_environment(
    settings_classes: Iterable[type], variables: Mapping[str, str]
) -> dict[str, Value]:
    return {
        setting.key: Value(variables[setting.environment], f"environment {setting.environment}")
        for settings_class in settings_classes
        for setting in describe(settings_class)
        if setting.environment is not None and setting.environment in variables
    }


def _from_file(path: Path) -> dict[str, Value]:
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {_FILE_BYTES_MAX} bytes")
        entries = java_properties.parse(java_properties.decode(data))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    return {entry.key: Value(entry.value, f"{path}:{entry.line}") for entry in entries}


def _refuse_unknown(found: Mapping[str, Value], known: set[str]) -> None:
    unknown = [key for key in found if key not in known]
    if unknown:
        raise ConfigError("\n".join(_unknown(key, found[key].origin, known) for key in unknown))


def _unknown(key: str, origin: str, known: Iterable[str]) -> str:
    import difflib  # only for a mistake

    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_lower, n=_SUGGESTIONS_MAX, cutoff=0.7)
    hint = f"; did you mean {' or '.join(by_lower[name] for name in near)}?" if near else ""
    return f"{origin}: there is no setting {key!r}{hint}"


def _instances(settings_classes: Iterable[type], values: Mapping[str, Value]) -> dict[type, Any]:
    problems: list[str] = []
    instances = {
        settings_class: _instance(settings_class, values, problems)
        for settings_class in settings_classes
    }
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return instances


def _instance(settings_class: type, values: Mapping[str, Value], problems: list[str]) -> Any:
    """Build one settings object; add the errors of its values to ``problems``."""
    arguments: dict[str, Any] = {}
    for setting in describe(settings_class):
        if setting.key in values:
            arguments[setting.name] = _parsed(setting, values[setting.key], problems)
    if problems:
        return None
    try:
        return settings_class(**arguments)
    except ConfigError as error:
        problems.append(str(error))
        return None


def _parsed(setting: Setting, value: Value, problems: list[str]) -> Any:
    try:
        return setting.parse(value.text)
    except ConfigError as error:
        problems.append(f"{value.origin}: {error}")
        return None
