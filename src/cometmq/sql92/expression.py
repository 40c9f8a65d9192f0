# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Evaluates compiled SQL92 expressions over the property string of a record.

A program is a list of instructions that push the truth values FALSE, TRUE and NULL on a stack; the
last one stays. An ERROR ends it at once. Each test of a property is one instruction; ``results``
maps its outcome to the value that it pushes, so that NOT costs nothing.

One scan of the property string finds the properties that the expression names; a number is read at
most once per message. Compiled, no Python object is made for a message, except to read numbers of
more than 15 digits and hexadecimal ones.

Numbers are read as Java reads them: Integer.valueOf, Long.valueOf and Double.valueOf of OpenJDK 17.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from cometmq.model.errors import CometError
from cometmq.protocol import octets
from cometmq.protocol.octets import Memory

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.math import copysign  # type: ignore
    from cython.cimports.libc.string import memcmp, memcpy  # type: ignore
else:
    from math import copysign

PROPERTIES_MAX = 64
"""The limit of different properties in one expression."""
STACK_MAX = 512
"""The limit of values on the stack of a program."""

# The orders of two numbers that satisfy a comparison, as bits.
LESS, EQUAL, GREATER = 1, 2, 4

if not cython.compiled:  # compiled, these are constants of C: see the declarations
    FALSE, TRUE, NULL, ERROR = 0, 1, 2, 3
    # Tests of properties; "absent" is the outcome NULL unless something else is said.
    PRESENT = 0  # TRUE
    SAME_TEXT = 1
    ONE_OF = 2
    CONTAINS, STARTS_WITH, ENDS_WITH = 3, 4, 5
    TRUE_TEXT = 6  # "true", whatever the case of its letters
    INTEGER, LONG, DOUBLE = 7, 8, 9  # the order of the property and a number
    SAME_PROPERTIES = 10  # the first absent: NULL, the second: FALSE, both: TRUE
    PROPERTY_ORDER = 11  # as numbers
    # What combines values.
    PUSH = 12
    MAP = 13  # replaces the last value by its entry in ``results``
    COMBINE = 14  # replaces the last two values by their entry in a table
    SKIP_IF = 15  # jumps if the last value is the operand
    SKIP_IF_ABSENT = 16  # pushes NULL and jumps if the property is absent

_NAME_END, _VALUE_END = 1, 2
_BLOCK_BYTES = 64
"""See ``marks_in`` in the declarations of this module."""
_SEVERAL = 255
"""Several names begin with the same byte."""
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_LONG_MAX = 2**63 - 1
_LONG_MAX_TENTH = _LONG_MAX // 10
_GOOD, _BAD = 1, 2
_EXACT_DIGITS = 15
"""A double represents each integer of up to this number of digits exactly."""
_EXACT_POWER = 22
"""A double represents the powers of ten up to this one exactly."""
_EXPONENT_MAX = 100_000
_NAN, _INFINITY = float("nan"), float("inf")

_HEX_NUMBER = re.compile(
    rb"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)

_DIGIT_ZEROS = "".join(
    map(
        chr,
        (
            0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6,
            0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0,
            0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0,
            0xAA50, 0xABF0, 0xFF10,
        ),
    )
).encode("utf-16-be")  # fmt: skip
"""The zeros of the decimal digits of other scripts that Character.digit accepts."""


class SqlError(CometError):
    """A text is no SQL92 expression.

    Args:
        met: what stands in the text.
        expected: what may stand there.
        position: where, as an index of the text.
    """

    def __init__(self, met: str, expected: str, position: int) -> None:
        super().__init__(f"SQL92 at character {position + 1}: met {met}, expected {expected}")
        self.met = met
        self.expected = expected
        self.position = position


class SqlLimitError(SqlError):
    """An expression is longer, nested more deeply or names more properties than CometMQ allows."""


class EvaluationError(CometError):
    """An expression has no value for a message: the message does not match."""


class Instruction(NamedTuple):
    """One step of a program."""

    operation: int
    slot: int = 0
    """The property that is tested."""
    operand: int = 0
    """The second property, the pushed value, the table, or how many instructions are skipped."""
    orders: int = 0
    """The orders that satisfy a comparison; the value for SKIP_IF."""
    results: tuple[int, int, int] = (FALSE, TRUE, NULL)
    """The value that is pushed if the outcome is FALSE, TRUE or NULL."""
    integer: int = 0
    number: float = 0.0
    text: bytes = b""
    choices: frozenset[bytes] = frozenset()


class _Slot:
    """The position of the value of a property in a message; the number that it is, if that was
    read."""

    __slots__ = ("integer", "integer_state", "number", "number_state", "start", "stop")
    start: int
    stop: int
    integer: int
    integer_state: int
    number: float
    number_state: int


class Expression:
    """A compiled expression. Its evaluation changes nothing in it.

    Args:
        text: the expression.
        names: of the properties that it names, at most `PROPERTIES_MAX`; their indexes are slots.
        program: the instructions.
        stack_size: the most values that they have on the stack, at most `STACK_MAX`.
    """

    _steps: Any
    _texts: Any
    _choices: Any
    _firsts: Any
    _sizes: Any

    def __init__(
        self, text: str, names: list[bytes], program: list[Instruction], stack_size: int
    ) -> None:
        if len(names) > PROPERTIES_MAX or stack_size > STACK_MAX:
            raise ValueError(f"{len(names)} properties and {stack_size} values are too many")
        self.text = text
        self._names = {name: slot for slot, name in enumerate(names)}
        self._slots = len(names)
        self._length = len(program)
        self._stack_size = stack_size
        self._kept: Any = program
        if cython.compiled:
            self._copy(program)
        else:
            self._steps = program
            self._sizes = [len(name) for name in names]

    def _copy(self, program: list[Instruction]) -> None:
        """Copy names and instructions into C arrays; only compiled."""
        if cython.compiled:
            choices: list[tuple[int, bytes]] = []
            texts: list[bytes] = []
            space = bytearray((len(program) or 1) * cython.sizeof(Step))  # type: ignore[name-defined]  # noqa: F821
            self._steps = cython.cast(cython.pointer(Step), cython.cast(cython.p_uchar, space))  # type: ignore[name-defined]  # noqa: F821
            for at in range(self._length):
                instruction = program[at]
                text = instruction.text
                texts.append(text)
                false, true, null = instruction.results
                self._steps[at].operation = instruction.operation
                self._steps[at].slot = instruction.slot
                self._steps[at].operand = instruction.operand
                self._steps[at].orders = instruction.orders
                self._steps[at].results = false | true << 2 | null << 4
                self._steps[at].integer = instruction.integer
                self._steps[at].number = instruction.number
                self._steps[at].text = cython.cast(cython.p_uchar, text)
                self._steps[at].size = len(text)
                if instruction.operation == ONE_OF:
                    self._steps[at].operand = len(choices)
                    self._steps[at].orders = len(instruction.choices)
                    choices += sorted([(len(choice), choice) for choice in instruction.choices])
            names = sorted([(len(name), name) for name in self._names])
            room = bytearray((len(names) + len(choices) or 1) * cython.sizeof(Text))  # type: ignore[name-defined]  # noqa: F821
            self._texts = cython.cast(cython.pointer(Text), cython.cast(cython.p_uchar, room))  # type: ignore[name-defined]  # noqa: F821
            self._choices = self._texts + len(names)
            for at in range(len(names)):
                text = names[at][1]
                self._texts[at].start = cython.cast(cython.p_uchar, text)
                self._texts[at].size = len(text)
                self._texts[at].slot = self._names[text]
                self._sizes[self._names[text]] = len(text)
                # Names end with byte 1 in the property string: one comparison of eight bytes tells
                # a short name from longer ones that begin with it.
                prefix = (text + b"\x01")[:8]
                self._texts[at].head = int.from_bytes(prefix.ljust(8, b"\x00"), sys.byteorder)
                mask = (b"\xff" * len(prefix)).ljust(8, b"\x00")
                self._texts[at].mask = int.from_bytes(mask, sys.byteorder)
                first = self._texts[at].start[0]
                self._firsts[first] = _SEVERAL if self._firsts[first] else at + 1
            for at in range(len(choices)):
                text = choices[at][1]
                self._choices[at].start = cython.cast(cython.p_uchar, text)
                self._choices[at].size = len(text)
            self._kept = (space, room, texts, names, choices)

    def matches(self, data: bytes | bytearray | memoryview, start: int, stop: int) -> bool:
        """Return whether the expression is true for a message.

        Args:
            data: a buffer that contains the property string of the message.
            start, stop: where it is.
        """
        if not 0 <= start <= stop <= len(data):
            raise ValueError(f"{start} to {stop}: expected a part of {len(data)} bytes")
        if isinstance(data, (bytes, bytearray)):
            return self.matches_in(octets.start_of(data), start, stop)
        if start == stop:
            return self.matches_in(b"", 0, 0)
        return self.matches_in(octets.memory_of(data), start, stop)

    def matches_in(self, memory: Memory, start: int, stop: int) -> bool:
        """Return `matches` for what `octets` calls memory."""
        return self._outcome(memory, start, stop, None) == TRUE

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return the value of the expression for properties by name; None is SQL's null.

        Raises:
            EvaluationError: there is no value: a property that is compared with a number is none,
                or a truth value is compared with a text.
        """
        data = bytearray()
        spans = []
        for name, slot in self._names.items():
            value = properties.get(name.decode())
            if value is not None:
                start = len(data)
                data += value.encode("utf-8", "surrogatepass")
                spans.append((slot, start, len(data)))
        outcome = self._outcome(octets.start_of(data), 0, len(data), spans)
        if outcome == ERROR:
            known = {name.decode(): properties.get(name.decode()) for name in self._names}
            raise EvaluationError(
                f"no value for {known}: expected a number where a property is compared with one,"
                " and no text where a truth value is compared"
            )
        return None if outcome == NULL else outcome == TRUE

    def _outcome(self, memory: Memory, start: int, stop: int, spans: Any) -> int:
        """Return the value of the expression.

        Args:
            memory: a buffer.
            start, stop: where the property string is in it.
            spans: slot, start and stop of each value that is there, instead of a property string.
        """
        if not cython.compiled:
            memory, start, stop = bytes(memory[start:stop]), 0, stop - start
            slots: Any = [_Slot() for _ in range(self._slots)]
            stack: Any = bytearray(self._stack_size + 1)
        for slot in range(self._slots):
            slots[slot].start = -1
            slots[slot].integer_state = slots[slot].number_state = 0
        if self._slots == 0:
            pass
        elif spans is None:
            self._locate(memory, start, stop, slots)
        else:
            for span in spans:
                slot = span[0]
                slots[slot].start = span[1]
                slots[slot].stop = span[2]
        return self._run(memory, slots, stack)

    def _locate(self, memory: Memory, at: int, stop: int, slots: Any) -> None:
        """Find the properties of the expression; of equal names the last one wins."""
        if cython.compiled:
            first = block = at
            texts = self._texts
            head = cython.cast(cython.ulonglong, 0)
            while block < stop:  # the separators of 64 bytes at a time
                marks = marks_in(memory, first, block, stop)  # type: ignore[name-defined]  # noqa: F821
                while marks:
                    end = block + __builtin_ctzll(marks)  # type: ignore[name-defined]  # noqa: F821
                    place = self._firsts[memory[at]] - 1
                    if place < 0:  # most entries are none of ours
                        pass
                    elif place == _SEVERAL - 1 or at + 8 > stop:
                        self._take(memory, at, end, slots)
                    else:  # the separator is compared with a short name
                        memcpy(cython.address(head), memory + at, 8)
                        if not (head ^ texts[place].head) & texts[place].mask:
                            start = at + texts[place].size + 1
                            if texts[place].size >= 8:
                                self._take(memory, at, end, slots)
                            elif start < end:  # an empty value is none
                                slots[texts[place].slot].start = start
                                slots[texts[place].slot].stop = end
                    at = end + 1
                    marks &= marks - 1
                block += _BLOCK_BYTES
            if at < stop:
                self._take(memory, at, stop, slots)
            return
        while at < stop:
            end = octets.end_of_run(memory, at, stop, _VALUE_END)
            self._take(memory, at, end, slots)
            at = end + 1

    def _take(self, memory: Memory, at: int, end: int, slots: Any) -> None:
        """Note where the value of an entry is, if the expression names its property.

        Args:
            memory: a buffer.
            at, end: where the entry is.
            slots: of the properties.
        """
        slot = self._slot_at(memory, at, end)
        if slot >= 0:
            start = at + self._sizes[slot] + 1
            if start < end:  # an empty value is none
                slots[slot].start = start
                slots[slot].stop = end

    def _slot_at(self, memory: Memory, at: int, end: int) -> int:
        """Return the slot of the name that an entry begins with; -1 if it is none of ours."""
        if cython.compiled:
            place = self._firsts[memory[at]] - 1
            if place < 0:
                return -1
            if place == _SEVERAL - 1:
                size = octets.end_of_run(memory, at, end, _NAME_END) - at
                found = _search(self._texts, 0, self._slots, memory + at, size)
                return -1 if found < 0 or at + size == end else self._texts[found].slot
            size = self._texts[place].size
            if at + size >= end or memory[at + size] != _NAME_END:
                return -1
            is_same = memcmp(memory + at, self._texts[place].start, size) == 0
            return self._texts[place].slot if is_same else -1
        name, mark, _ = memory[at:end].partition(b"\x01")
        return self._names.get(name, -1) if mark else -1

    def _is_choice(self, memory: Memory, at: int, size: int, step: int) -> bool:
        """Return whether a value is in the list of an instruction."""
        if cython.compiled:
            first = self._steps[step].operand
            last = first + self._steps[step].orders
            return _search(self._choices, first, last, memory + at, size) >= 0
        return memory[at : at + size] in self._steps[step].choices

    def _run(self, memory: Memory, slots: Any, stack: Any) -> int:
        """Run the program; return the value that stays.

        The last value is kept beside the stack.
        """
        at = top = 0
        value = NULL
        steps = self._steps
        length = self._length
        while at < length:
            operation = steps[at].operation
            if operation <= PROPERTY_ORDER:
                stack[top] = value
                top += 1
                value = self._test(memory, slots, at)
                if value != ERROR:
                    value = self._result(at, value)
            elif operation == SKIP_IF:
                if value == steps[at].orders:
                    at += steps[at].operand
            elif operation == COMBINE:
                top -= 1
                value = steps[at].operand >> 2 * (3 * stack[top] + value) & 3
            elif operation == MAP:
                value = self._result(at, value)
            elif operation == PUSH:
                stack[top] = value
                top += 1
                value = steps[at].operand
            elif slots[steps[at].slot].start < 0:  # SKIP_IF_ABSENT
                stack[top] = value
                top += 1
                value = NULL
                at += steps[at].operand
            if value == ERROR:
                return ERROR
            at += 1
        return value

    def _result(self, step: int, outcome: int) -> int:
        """Return the value that an instruction makes of an outcome."""
        if cython.compiled:
            return self._steps[step].results >> 2 * outcome & 3  # type: ignore[no-any-return]
        return self._steps[step].results[outcome]  # type: ignore[no-any-return]

    def _test(self, memory: Memory, slots: Any, step: int) -> int:
        """Return the outcome of an instruction that tests a property."""
        operation = self._steps[step].operation
        slot = self._steps[step].slot
        start = slots[slot].start
        if operation >= SAME_PROPERTIES:
            return self._test_two(memory, slots, step)
        if start < 0:
            return NULL
        size = slots[slot].stop - start
        length = self._size_of(step)
        if operation == SAME_TEXT:
            return _equals(memory, start, size, self._steps[step].text, length)
        if operation in (INTEGER, LONG):
            if not _read_integer(memory, slots, slot):
                return ERROR
            integer = slots[slot].integer
            if operation == INTEGER and not _INT_MIN <= integer <= _INT_MAX:
                return ERROR
            return _satisfies(
                self._steps[step].orders,
                (integer > self._steps[step].integer) - (integer < self._steps[step].integer),
            )
        if operation == DOUBLE:
            if not _read_number(memory, slots, slot):
                return ERROR
            order = compare_doubles(slots[slot].number, self._steps[step].number)
            return _satisfies(self._steps[step].orders, order)
        if operation == ONE_OF:
            return self._is_choice(memory, start, size, step)
        if operation == PRESENT:
            return TRUE
        if operation == TRUE_TEXT:
            return _is_true(memory, start, size)
        if size < length:
            return FALSE
        if operation == CONTAINS:
            return _contains(memory, start, size, self._steps[step].text, length)
        if operation == ENDS_WITH:
            start += size - length
        return _equals(memory, start, length, self._steps[step].text, length)

    def _test_two(self, memory: Memory, slots: Any, step: int) -> int:
        """Return the outcome of an instruction that compares two properties."""
        slot = self._steps[step].slot
        other = self._steps[step].operand
        start = slots[slot].start
        second = slots[other].start
        if self._steps[step].operation == SAME_PROPERTIES:
            if start < 0:
                return TRUE if second < 0 else NULL
            if second < 0:
                return FALSE
            size = slots[slot].stop - start
            if slots[other].stop - second != size:
                return FALSE
            return octets.are_same(memory, start, second, size)
        if start < 0 or second < 0:
            return NULL
        if not _read_number(memory, slots, slot) or not _read_number(memory, slots, other):
            return ERROR
        order = compare_doubles(slots[slot].number, slots[other].number)
        return _satisfies(self._steps[step].orders, order)

    def _size_of(self, step: int) -> int:
        """Return the length of an instruction's text."""
        if cython.compiled:
            return self._steps[step].size  # type: ignore[no-any-return]
        return len(self._steps[step].text)


def _satisfies(orders: int, order: int) -> int:
    """Return whether -1, 0 or 1 is among the orders."""
    return orders >> (order + 1) & 1


def compare_doubles(one: float, other: float) -> int:
    """Return the order of two numbers as Double.compare does: -0.0 before 0.0, NaN at the end."""
    if one < other:
        return -1
    if one > other:
        return 1
    if one == other:
        if one != 0:
            return 0
        first = copysign(1.0, one)
        second = copysign(1.0, other)
        return (first > second) - (first < second)  # type: ignore[no-any-return]
    return (one != one) - (other != other)


def _search(texts: Any, low: int, high: int, wanted: Any, size: int) -> int:
    """Position of a text among sorted ones, shorter ones first; -1 if it is not there; only
    compiled."""
    if cython.compiled:
        while low < high:
            middle = (low + high) >> 1
            order = size - texts[middle].size
            if order == 0:
                order = memcmp(wanted, texts[middle].start, size)
            if order == 0:
                return middle
            if order < 0:
                high = middle
            else:
                low = middle + 1
        return -1
    raise NotImplementedError


def _equals(memory: Memory, at: int, size: int, text: Any, length: int) -> int:
    if cython.compiled:
        return size == length and memcmp(memory + at, text, size) == 0
    return memory[at : at + size] == text  # type: ignore[no-any-return]


def _contains(memory: Memory, at: int, size: int, text: Any, length: int) -> int:
    if cython.compiled:
        return memmem(memory + at, size, text, length) != cython.NULL  # type: ignore  # noqa: F821
    return memory.find(text, at, at + size) >= 0  # type: ignore[no-any-return]


def _is_true(memory: Memory, at: int, size: int) -> int:
    """Return whether a value is ``true``, in lower or upper case."""
    return (
        size == 4
        and memory[at] | 32 == 116
        and memory[at + 1] | 32 == 114
        and memory[at + 2] | 32 == 117
        and memory[at + 3] | 32 == 101
    )


def _read_integer(memory: Memory, slots: Any, slot: int) -> int:
    """Read a property as Long.valueOf does; return whether it is a 64-bit integer."""
    if slots[slot].integer_state:
        return slots[slot].integer_state == _GOOD  # type: ignore[no-any-return]
    slots[slot].integer_state = _BAD
    at = slots[slot].start
    stop = slots[slot].stop
    is_negative = False
    if at < stop and (memory[at] == 45 or memory[at] == 43):
        is_negative = memory[at] == 45
        at += 1
    if at == stop:
        return False
    magnitude = 0
    while at < stop:
        digit = memory[at] - 48
        if 0 <= digit <= 9:
            at += 1
        else:
            digit = _wide_digit(memory, at, stop)
            if digit < 0:
                return False
            at += digit >> 4
            digit &= 15
        if magnitude > _LONG_MAX_TENTH:
            return False
        magnitude = magnitude * 10 + digit
        if magnitude > _LONG_MAX + is_negative:
            return False
    slots[slot].integer = -magnitude if is_negative else magnitude
    slots[slot].integer_state = _GOOD
    return True


def _wide_digit(memory: Memory, at: int, stop: int) -> int:
    """Return the digit of another script, and the number of its bytes times 16; -1 if none."""
    lead = memory[at]
    if lead & 0xE0 == 0xC0 and at + 1 < stop and memory[at + 1] & 0xC0 == 0x80:
        point = (lead & 0x1F) << 6 | memory[at + 1] & 0x3F
        width = 2
        least = 0x80
    elif (
        lead & 0xF0 == 0xE0
        and at + 2 < stop
        and memory[at + 1] & 0xC0 == 0x80
        and memory[at + 2] & 0xC0 == 0x80
    ):
        point = (lead & 0x0F) << 12 | (memory[at + 1] & 0x3F) << 6 | memory[at + 2] & 0x3F
        width = 3
        least = 0x800
    else:
        return -1
    if point < least:  # an overlong form, which is not UTF-8
        return -1
    zeros = octets.start_of(_DIGIT_ZEROS)
    for index in range(0, len(_DIGIT_ZEROS), 2):
        zero = zeros[index] << 8 | zeros[index + 1]
        if zero <= point <= zero + 9:
            return width << 4 | (point - zero)  # type: ignore[no-any-return]
    return -1


def _read_number(memory: Memory, slots: Any, slot: int) -> int:
    """Read a property as Double.valueOf does; return whether it is a number."""
    if slots[slot].number_state:
        return slots[slot].number_state == _GOOD  # type: ignore[no-any-return]
    slots[slot].number_state = _BAD
    at = slots[slot].start
    stop = slots[slot].stop
    while at < stop and memory[at] <= 32:
        at += 1
    while at < stop and memory[stop - 1] <= 32:
        stop -= 1
    start = at
    is_negative = False
    if at < stop and (memory[at] == 45 or memory[at] == 43):
        is_negative = memory[at] == 45
        at += 1
    first = at
    mantissa = digits = scale = exponent = 0
    has_digit = has_point = False
    while at < stop:
        digit = memory[at] - 48
        if 0 <= digit <= 9:
            has_digit = True
            if digits or digit:
                digits += 1
            # A mantissa of so many digits and a small power of ten are exact doubles: one operation
            # rounds once, as Java does. All other numbers go to Python's parser.
            if digits <= _EXACT_DIGITS:
                mantissa = mantissa * 10 + digit
                if has_point:
                    scale -= 1
        elif digit == -2 and not has_point:
            has_point = True
        else:
            break
        at += 1
    if not has_digit:
        number = _NAN
        if stop - first == 8 and octets.equals(memory, first, 8, b"Infinity"):
            number = _INFINITY
        elif stop - first != 3 or not octets.equals(memory, first, 3, b"NaN"):
            return False
    elif at - first == 1 and memory[first] == 48 and at < stop and memory[at] | 32 == 120:
        found = _hex_number(octets.bytes_in(memory, start, stop - start))
        if found is None:
            return False
        number = found
        is_negative = False
    else:
        if at < stop and memory[at] | 32 == 101:
            at += 1
            falls = False
            if at < stop and (memory[at] == 45 or memory[at] == 43):
                falls = memory[at] == 45
                at += 1
            exponent_at = at
            while at < stop and 48 <= memory[at] <= 57:
                if exponent < _EXPONENT_MAX:
                    exponent = exponent * 10 + memory[at] - 48
                at += 1
            if at == exponent_at:
                return False
            if falls:
                exponent = -exponent
        end = at
        if at < stop and (memory[at] | 32 == 102 or memory[at] | 32 == 100):  # 1f, 1d
            at += 1
        if at < stop:
            return False
        scale += exponent
        if digits == 0:
            number = 0.0
        elif digits <= _EXACT_DIGITS and -_EXACT_POWER <= scale <= _EXACT_POWER:
            number = _scaled(mantissa, scale)
        else:
            number = float(octets.bytes_in(memory, first, end - first))
    slots[slot].number = -number if is_negative else number
    slots[slot].number_state = _GOOD
    return True


def _scaled(mantissa: int, scale: int) -> float:
    """Return ``mantissa * 10**scale``; both numbers are exact, so it is rounded once."""
    power = 1.0
    factors = abs(scale)
    while factors > 0:
        power *= 10.0
        factors -= 1
    return mantissa * power if scale >= 0 else mantissa / power


def _hex_number(text: bytes) -> float | None:
    """Read a hexadecimal number; None if it is none."""
    found = _HEX_NUMBER.fullmatch(text)
    if found is None:
        return None
    number = found[1].decode()
    try:
        return float.fromhex(number)
    except OverflowError:
        return copysign(_INFINITY, -1.0 if number[0] == "-" else 1.0)  # type: ignore[no-any-return]
