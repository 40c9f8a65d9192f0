"""Namespaces of the old style: a prefix of names, which the client adds and removes.

    name := [ "%RETRY%" | "%DLQ%" ] [ namespace "%" ] plain name

Source: NamespaceUtil, RocketMQ 5.3.
"""

from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

_SEPARATOR = "%"
_SYSTEM_GROUPS = frozenset(
    {
        "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER",
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    }
)
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def is_system_group(name: str) -> bool:
    """Whether a group is a system group of RocketMQ, by its name."""
    return name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIX)


def _split(resource: str) -> tuple[str, str]:
    """Split off the prefix of a retry or dead-letter topic."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource[len(prefix) :]
    return "", resource


def wrap_namespace(namespace: str | None, resource: str) -> str:
    """Add a namespace to a name, unless the name has it or is a system name."""
    prefix, plain = _split(resource)
    if not namespace or not plain or is_system_topic(resource) or is_system_group(resource):
        return resource
    if plain.startswith(namespace + _SEPARATOR):
        return resource
    return f"{prefix}{namespace}{_SEPARATOR}{plain}"


def without_namespace(resource: str, namespace: str | None = None) -> str:
    """Remove the namespace of a name; if one is given, only that one."""
    if is_system_topic(resource) or is_system_group(resource):
        return resource
    prefix, plain = _split(resource)
    found = namespace_of(resource)
    if not found or (namespace is not None and namespace != found):
        return resource
    return prefix + plain[len(found) + len(_SEPARATOR) :]


def namespace_of(resource: str) -> str:
    """Return the namespace of a name, empty if it has none."""
    if not resource or is_system_topic(resource) or is_system_group(resource):
        return ""
    _, plain = _split(resource)
    namespace, separator, _ = plain.partition(_SEPARATOR)
    return namespace if separator else ""
