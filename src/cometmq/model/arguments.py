"""Refuses arguments of a wrong type where an application calls the library.

The annotations of a public method are the rule: `checks_arguments` compares each argument with its
annotation before the method runs, so that a wrong one is named with what was expected, and nothing
was done. Durations and points in time are checked by `cometmq.model.times`.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from reprlib import repr as short
from typing import Any, TypeVar

from cometmq.model.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def checks_arguments(*, unchecked: Collection[str] = ()) -> Callable[[type[T]], type[T]]:
    """Let the public methods of a class, and of its bases, refuse wrong arguments.

    A wrong type is a TypeError; text that UTF-8 cannot encode, and that no request can contain, is
    a ConfigError.

    Args:
        unchecked: the names of methods that check their arguments themselves.
    """

    def decorate(decorated: type[T]) -> type[T]:
        package = decorated.__module__.partition(".")[0]
        for base in decorated.__mro__:
            if base.__module__.partition(".")[0] == package:
                _check_methods(base, unchecked)
        return decorated

    return decorate


def _check_methods(owner: type, unchecked: Collection[str]) -> None:
    """Replace the public methods of a class that take arguments, each once."""
    for name, method in list(vars(owner).items()):
        if name.startswith("_") or name in unchecked or not inspect.isfunction(method):
            continue
        if not hasattr(method, "__wrapped__") and len(inspect.signature(method).parameters) > 1:
            setattr(owner, name, _checked(method))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        _check(method, arguments, named)
        return method(*arguments, **named)

    @functools.wraps(method)
    async def call_and_wait(*arguments: Any, **named: Any) -> Any:
        _check(method, arguments, named)
        return await method(*arguments, **named)

    return call_and_wait if inspect.iscoroutinefunction(method) else call


def _check(method: Callable[..., Any], arguments: Any, named: Any) -> None:
    signature, hints = _signature_and_types(method)
    if not named.keys() <= signature.parameters.keys():
        _refuse_unknown(f"{type(arguments[0]).__name__}.{method.__name__}", signature, named)
    if not hints:
        return
    try:
        given = signature.bind(*arguments, **named).arguments
    except TypeError:
        return  # Python raises an error that names the missing argument
    for name, hint in hints.items():
        if name not in given:
            continue
        is_several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        for value in given[name] if is_several else (given[name],):
            if not _fits(value, hint):
                expected = signature.parameters[name].annotation
                raise TypeError(f"{method.__name__}({name}={short(value)}): expected {expected}")
            if hint is not object and not _is_utf8(value):
                raise ConfigError(
                    f"{method.__name__}({name}={short(value)}): expected text that UTF-8 can encode"
                )


def _refuse_unknown(call: str, signature: inspect.Signature, named: Iterable[str]) -> None:
    """Refuse keywords that a method does not have, unless it takes any."""
    parameters = signature.parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    name = next(name for name in named if name not in parameters)
    expected = ", ".join(each for each in parameters if each != "self")
    raise TypeError(
        f"{call}() got an unexpected keyword argument {name!r}: expected one of {expected}"
    )


@functools.cache
def _signature_and_types(method: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return the signature, and the types of the parameters to check."""
    hints = typing.get_type_hints(method)
    hints.pop("return", None)
    times = {timedelta, datetime}
    return inspect.signature(method), {
        name: hint for name, hint in hints.items() if times.isdisjoint(typing.get_args(hint))
    }


def _is_utf8(value: Any) -> bool:
    """Return whether UTF-8 can encode a text, or all texts of a collection: surrogates it cannot.

    Python makes surrogates of arguments and names of files that are not in UTF-8.
    """
    if isinstance(value, str):
        if value.isascii():
            return True
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True
    if isinstance(value, Mapping):
        return all(map(_is_utf8, value)) and all(map(_is_utf8, value.values()))
    return not isinstance(value, list | tuple | Set) or all(map(_is_utf8, value))


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value may be passed where a type is expected; True for types of no class."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in parts)
    if origin is Callable:
        return callable(value)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return isinstance(value, origin) and _items_fit(value, origin, parts)
    if hint is float:
        hint = (int, float)
    elif hint is bytes:
        hint = (bytes, bytearray, memoryview)
    elif not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    is_wrong_bool = isinstance(value, bool) and hint in (int, (int, float))
    return isinstance(value, hint) and not is_wrong_bool


def _items_fit(value: Any, origin: type, parts: tuple[Any, ...]) -> bool:
    """Return whether the items of a collection fit; an iterator is not read."""
    if issubclass(origin, Mapping):
        key, item = parts
        return all(_fits(k, key) and _fits(each, item) for k, each in value.items())
    if isinstance(value, str | bytes | Mapping):
        return False
    return not isinstance(value, Collection) or all(_fits(each, parts[0]) for each in value)


def check_provides(owner: str, name: str, value: object, protocol: type) -> None:
    """Refuse an object that lacks a method of a protocol, or a class in its place.

    Args:
        owner: names the object that takes it, for the error.
        name: the name of the parameter.
        value: what the application passed.
        protocol: defines the methods.

    Raises:
        ConfigError: the object lacks one; the error says what was met and what is expected.
    """
    methods = [each for each, what in vars(protocol).items() if each[0] != "_" and callable(what)]
    if isinstance(value, type) or not all(callable(getattr(value, each, None)) for each in methods):
        raise ConfigError(
            f"{owner}: {name}={short(value)}: expected an object with the methods of "
            f"{protocol.__name__}: {', '.join(methods)}"
        )


def check_callable(owner: str, name: str, value: object) -> None:
    """Refuse what is no function.

    Raises:
        ConfigError: says what was met and what is expected.
    """
    if not callable(value):
        raise ConfigError(f"{owner}: {name}={short(value)}: expected a function")


def check_parameters(owner: str, function: Callable[..., object], arguments: Sequence[str]) -> None:
    """Refuse a function that does not take this number of arguments: each call would fail.

    Args:
        owner: names the function, for the error.
        function: what the application passed.
        arguments: what stands for each argument in the error.

    Raises:
        ConfigError: says which parameters were met and which are expected.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ConfigError(
            f"{owner} has the parameters ({', '.join(signature.parameters)}): "
            f"expected ({', '.join(arguments)})"
        ) from None


def check_several(owner: str, name: str, values: object, *classes: type) -> None:
    """Refuse anything but a collection of objects of these classes, whose methods are plain.

    The call of an async method would make a coroutine that nothing awaits.

    Raises:
        ConfigError: says what was met and what is expected.
    """
    is_several = isinstance(values, Collection) and not isinstance(values, str | bytes | Mapping)
    if not is_several or not all(isinstance(each, classes) for each in values):  # type: ignore[attr-defined]
        expected = " or ".join(each.__name__ for each in classes)
        raise ConfigError(f"{owner}: {name}={short(values)}: expected a list of {expected} objects")
    for each in values:  # type: ignore[attr-defined]
        for method in {method for kind in classes for method in vars(kind) if method[0] != "_"}:
            if inspect.iscoroutinefunction(getattr(each, method, None)):
                raise ConfigError(
                    f"{owner}: {name}: {type(each).__name__}.{method} is an async def function: "
                    "expected a plain one"
                )


def shows_line(line: str, meant: Mapping[str, str]) -> Callable[[F], F]:
    """Let a wrong call of a function show the right line.

    Args:
        line: a call that works.
        meant: the parameters, by their names in other libraries.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except TypeError as error:
                if is_from_within(error):
                    raise
                raise TypeError(with_line(error, named, meant, line)) from None

        return typing.cast(F, call)

    return decorate


def is_from_within(error: TypeError) -> bool:
    """Return whether a called function raised the error, and not the call of it."""
    trace = error.__traceback__
    return trace is None or trace.tb_next is not None


def with_line(error: TypeError, named: Iterable[str], meant: Mapping[str, str], line: str) -> str:
    """Return the text of a wrong call, with what was meant by its names and the right line."""
    hints = [f"{name} is {meant[name]} here" for name in named if name in meant]
    return "; ".join([str(error), *hints, f"write {line}"])
