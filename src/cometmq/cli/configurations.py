"""Reads the settings of servers from options, files and the environment.

The broker and its store read one properties file. An option of the command line takes precedence
over it, as in RocketMQ. A name server in the same process does not read that file.

All functions raise `ConfigError` if a setting is unknown or its value is wrong, or if a file cannot
be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cometmq.cli.server_options import ServerOptions
from cometmq.system.configuration import Configuration, load
from cometmq.system.rocketmq_keys import (
    BROKER_KEYS,
    CONTROLLER_KEYS,
    FILTERSRV_KEYS,
    NAMESRV_KEYS,
    Keys,
)


def namesrv_configuration(options: ServerOptions, *, home: Path | None = None) -> Configuration:
    """Read the settings of a name server.

    Args:
        options: of the command line.
        home: the directory of a broker's store, in which the name server keeps its files.
    """
    from cometmq.namesrv.app import SETTINGS
    from cometmq.namesrv.config import files_below

    said = options.settings(configStorePath=options.config)
    if home is not None:
        said |= files_below(home / "namesrv")
    return _load(SETTINGS, NAMESRV_KEYS, options, said)


def broker_configuration(options: ServerOptions, changes: Path | None = None) -> Configuration:
    """Read the settings of a broker.

    Args:
        options: of the command line.
        changes: another file, of settings that requests have changed; it takes precedence.
    """
    from cometmq.broker.app import SETTINGS

    return _load(SETTINGS, BROKER_KEYS, options, options.settings(), changes)


def filtersrv_configuration(options: ServerOptions) -> Configuration:
    """Read the settings of a filter server."""
    from cometmq.filtersrv.app import SETTINGS

    return _load(SETTINGS, FILTERSRV_KEYS, options, options.settings())


def controller_configuration(options: ServerOptions) -> Configuration:
    """Read the settings of a controller."""
    from cometmq.controller.app import SETTINGS

    said = options.settings(configStorePath=options.config)
    return _load(SETTINGS, CONTROLLER_KEYS, options, said)


def _load(
    settings_classes: Iterable[type],
    known_keys: Keys,
    options: ServerOptions,
    said: dict[str, str],
    changes: Path | None = None,
) -> Configuration:
    return load(
        settings_classes,
        known_keys=known_keys,
        file=options.config,
        changes=changes,
        command_line=said,
        environment=os.environ,
    )
