"""Bodies made smaller by their sender: zlib, LZ4 frames or zstd.

The message's flag names the kind; without a name it is zlib. Zlib is always there, the other two
if their package is installed: ``lz4`` and ``zstandard``.

Source: Compressor and CompressionType, RocketMQ 5.3.
"""

import importlib
import zlib
from typing import Any

from cometmq.model.errors import CometError
from cometmq.model.flags import SysFlag

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""No body grows beyond this."""

_ZLIB_KINDS = (0, SysFlag.ZLIB)


class CompressionError(CometError):
    """A body cannot be compressed or decompressed.

    Reading `StoredMessage.body` raises it if the body is damaged, or if a package is missing.

    Example:
        async def bill(message: StoredMessage) -> None:
            try:
                print(message.body)
            except CompressionError as error:
                raise ConsumeLater(delay_level=-1) from error  # a dead letter at once
    """


class MissingPackageError(CompressionError):
    """The package that decompresses a body is not installed: no consumer without it can go on."""


class InflatedTooLargeError(CompressionError):
    """A body would be larger than is allowed."""


def compress_body(body: bytes, kind: int = SysFlag.ZLIB, level: int = 5) -> bytes:
    """Compress a body; the message then needs ``SysFlag.COMPRESSED | kind`` in its flag.

    Raises:
        CompressionError: the kind is unknown or its package is missing.
    """
    if kind == SysFlag.ZLIB:
        return zlib.compress(body, level)
    if kind == SysFlag.LZ4:
        return bytes(_module(*_PACKAGES[kind]).compress(body))
    if kind == SysFlag.ZSTD:
        return bytes(_module(*_PACKAGES[kind]).ZstdCompressor(level=level).compress(body))
    raise CompressionError(f"compression type {kind >> 8} is unknown")


def decompress_body(
    body: bytes, sys_flag: int, *, inflated_bytes_max: int = INFLATED_BYTES_MAX
) -> bytes:
    """Return a body as its sender had it; one that is not compressed stays as it is.

    Raises:
        InflatedTooLargeError: the body would have more than ``inflated_bytes_max`` bytes.
        CompressionError: the body is damaged, of an unknown kind, or its package is missing.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind in _ZLIB_KINDS:
        return _inflate(zlib.decompressobj(), body, zlib.error, inflated_bytes_max)
    if kind == SysFlag.LZ4:
        lz4 = _module(*_PACKAGES[kind])
        return _inflate(lz4.LZ4FrameDecompressor(), body, RuntimeError, inflated_bytes_max)
    if kind == SysFlag.ZSTD:
        zstandard = _module(*_PACKAGES[kind])
        return _decompress_zstd(zstandard, body, inflated_bytes_max)
    raise CompressionError(f"a body of compression type {kind >> 8}, which is unknown")


_PACKAGES = {SysFlag.LZ4: ("lz4.frame", "lz4"), SysFlag.ZSTD: ("zstandard", "zstandard")}


def check_package(sys_flag: int) -> None:
    """Check that the package which decompresses a compressed body is there.

    Raises:
        MissingPackageError: it is not.
    """
    package = _PACKAGES.get(sys_flag & SysFlag.COMPRESSION_MASK)
    if package is not None:
        _module(*package)


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackageError(
            f"the package {package} is needed for this body: pip install '.[compression]'"
        ) from None


def _inflate(inflater: Any, body: bytes, failure: type[Exception], bytes_max: int) -> bytes:
    try:
        plain = inflater.decompress(body, bytes_max)
        # LZ4 keeps what it has not used itself.
        more = b"" if inflater.eof else inflater.decompress(_unused_by(inflater), 1)
    except failure as error:
        raise CompressionError(f"a compressed body is damaged: {error}") from None
    if more:
        raise _too_large(bytes_max)
    if not inflater.eof:
        raise CompressionError("a compressed body is cut short")
    return bytes(plain)


def _unused_by(inflater: Any) -> bytes:
    return bytes(getattr(inflater, "unconsumed_tail", b""))


def _decompress_zstd(zstandard: Any, body: bytes, bytes_max: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain = reader.read(bytes_max + 1)
    except zstandard.ZstdError as error:
        raise CompressionError(f"a compressed body is damaged: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large(bytes_max)
    return bytes(plain)


def _too_large(bytes_max: int) -> InflatedTooLargeError:
    return InflatedTooLargeError(f"a compressed body exceeds {bytes_max} bytes")
