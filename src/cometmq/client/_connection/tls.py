"""Whether and how a client's connections are encrypted, from its settings or from a file of them.

Source: TlsHelper and TlsSystemConfig, RocketMQ 5.3.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError
from cometmq.remoting.tls import client_context
from cometmq.system import java_properties
from cometmq.system.settings import describe

FILE_BYTES_MAX = 64 * 1024
_FILE_KEYS = {
    "tls.client.trustCertPath": "tls_trusted",
    "tls.client.authServer": "tls_check_server",
    "tls.client.certPath": "tls_certificate",
    "tls.client.keyPath": "tls_key",
    "tls.client.keyPassword": "tls_key_password",
}


def tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """Give what a client's connections are encrypted with; None for plain ones.

    What the settings leave open is taken from the file they name.

    Raises:
        ConfigError: a file cannot be used.
    """
    if not settings.use_tls:
        return None
    used = with_file(settings)
    return client_context(
        trusted=used.tls_trusted,
        certificate=used.tls_certificate,
        key=used.tls_key,
        key_password=used.tls_key_password,
        check=used.tls_check_server,
        names=_names(settings),
    )


def _names(settings: ClientSettings) -> dict[str, str]:
    """Return what each TLS setting is called where its value comes from."""
    names = {}
    for key, name in _FILE_KEYS.items():
        is_given = settings.tls_file is None or name in settings.given
        names[name.removeprefix("tls_")] = name if is_given else f"{settings.tls_file}: {key}"
    return names


def with_file(settings: ClientSettings) -> ClientSettings:
    """Give the settings with what their TLS file adds.

    Raises:
        ConfigError: the file cannot be read, or a value in it is wrong.
    """
    if settings.tls_file is None:
        return settings
    values = {name: getattr(settings, name) for name in settings.given}
    known = {known.name: known for known in describe(ClientSettings)}
    for key, text in read_properties(settings.tls_file).items():
        name = _FILE_KEYS.get(key)
        if name is not None and name not in values:
            values[name] = known[name].parse(text)
    return ClientSettings(**values)


def read_properties(path: Path) -> dict[str, str]:
    """Read a properties file of at most 64 KiB.

    Raises:
        ConfigError: it cannot be read; never says what is in it.
    """
    try:
        with path.expanduser().open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(f"cannot read the file {path}: {why}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"the file {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        entries = java_properties.parse(java_properties.decode(data))
    except ValueError as error:
        raise ConfigError(f"cannot read the file {path}: {error}") from None
    return {entry.key: entry.value for entry in entries}
