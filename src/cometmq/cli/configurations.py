"""Reads the settings of servers from options, files and the environment.

The broker and its store read one properties file. An option of the command line takes precedence
over it, as in RocketMQ. A name server in the same process does not read that file.
"""

from __future__ import annotations

import os
from pathlib import Path

from cometmq.system.configuration import Configuration, load
from cometmq.system.rocketmq_keys import BROKER_KEYS, CONTROLLER_KEYS, FILTERSRV_KEYS, NAMESRV_KEYS


def namesrv_configuration(
    port: int | None, host: str | None, config: Path | None, *, home: Path | None = None
) -> Configuration:
    """Read the settings of a name server.

    Args:
        port, host: options of the command line.
        config: the configuration file.
        home: the directory of a broker's store, in which the name server keeps its files.

    Raises:
        ConfigError: a setting is unknown or its value is wrong, or the file cannot be read.
    """
    from cometmq.namesrv.app import SETTINGS
    from cometmq.namesrv.config import files_below

    said = _said(bindAddress=host, listenPort=port, configStorePath=config)
    if home is not None:
        said |= files_below(home / "namesrv")
    return load(
        SETTINGS,
        known_keys=NAMESRV_KEYS,
        file=config,
        command_line=said,
        environment=os.environ,
    )


def broker_configuration(
    port: int | None,
    host: str | None,
    store: Path | None,
    namesrv: str | None,
    config: Path | None,
    changes: Path | None = None,
) -> Configuration:
    """Read the settings of a broker.

    Args:
        port, host, store, namesrv: options of the command line.
        config: the configuration file.
        changes: another file, of settings that requests have changed; it takes precedence.

    Raises:
        ConfigError: a setting is unknown or its value is wrong, or a file cannot be read.
    """
    from cometmq.broker.app import SETTINGS

    return load(
        SETTINGS,
        known_keys=BROKER_KEYS,
        file=config,
        changes=changes,
        command_line=_said(
            bindAddress=host, listenPort=port, storePathRootDir=store, namesrvAddr=namesrv
        ),
        environment=os.environ,
    )


def filtersrv_configuration(
    port: int | None, host: str | None, broker: str | None, config: Path | None
) -> Configuration:
    """Read the settings of a filter server.

    Args:
        port, host, broker: options of the command line.
        config: the configuration file.

    Raises:
        ConfigError: a setting is unknown or its value is wrong, or the file cannot be read.
    """
    from cometmq.filtersrv.app import SETTINGS

    return load(
        SETTINGS,
        known_keys=FILTERSRV_KEYS,
        file=config,
        command_line=_said(bindAddress=host, listenPort=port, connectWhichBroker=broker),
        environment=os.environ,
    )


def controller_configuration(
    port: int | None, host: str | None, config: Path | None
) -> Configuration:
    """Read the settings of a controller.

    Args:
        port, host: options of the command line.
        config: the configuration file.

    Raises:
        ConfigError: a setting is unknown or its value is wrong, or the file cannot be read.
    """
    from cometmq.controller.app import SETTINGS

    return load(
        SETTINGS,
        known_keys=CONTROLLER_KEYS,
        file=config,
        command_line=_said(bindAddress=host, listenPort=port, configStorePath=config),
        environment=os.environ,
    )


def _said(**values: object) -> dict[str, str]:
    return {key: str(value) for key, value in values.items() if value is not None}
