"""Random SQL92 expressions: RocketMQ's filter module and ours give the same results.

Expressions: 2,000, on long runs 100,000; each is evaluated for four messages.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections import Counter
from typing import Any

import pytest
import toolchain

from cometmq.protocol.properties import encode_properties
from cometmq.sql92 import EvaluationError, SqlError, compile_expression
from support.runner.tiers import is_long_run, new_seed, rounds
from support.runner.versions import ALL_VERSIONS, VERSIONS

EXPRESSIONS = rounds(test=2_000, long=100_000)
MESSAGES = 4
JAVA_SECONDS_MAX = 600
NEW_IN_5 = re.compile("contains|startswith|endswith", re.IGNORECASE)
"""Words that are names for 4.9."""

NAMES = ("a", "b", "c", "_d$", "$", "notA", "A")
TEXTS = ("", "x", "xy", "it''s", "1", "1.0", " 5 ", "true", "TRUE", "中文 🚀", "10", "-- ", "/*")
INTEGERS = (
    "0", "1", "5", "10", "007", "0L", "5l", "10L", "2147483647", "2147483648", "3000000000l",
    "9223372036854775807", "9223372036854775808", "99999999999999999999",
)  # fmt: skip
DECIMALS = (
    "1.0", "5.", ".5", "0.0", "1e2", "5E-1", "1.e1", ".5e+3", "1e309", "4.9e-324", "1e-400",
    "1.7976931348623157e308", "9007199254740993.0", "2147483648.0", "00.5", "5.0d", "0e0",
)  # fmt: skip
VALUES = (
    "", "x", "xy", "it's", "true", "TRUE", "tRue", "false", "中文 🚀", "中文", "0", "-0", "1", "+1",
    "5", "-5", "10", "007", "1.0", "-0.0", " 5 ", "5 ", "\t5\x00", "5.", ".5", ".", "+", "1e2",
    "1E+2", "1e", "5d", "5f", "5L", "NaN", "-NaN", "nan", "Infinity", "-Infinity", "Infinityd",
    "inf", "0x1p3", "0x.8P-1f", "0x1", "0x1.8p1024", "0x1p99999999999", "-0x1p-99999999999",
    "0x0p0",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "3000000000", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "9007199254740993",
    "1e309", "-1e309", "1e-400", "4.9e-324", "2.4703282292062328e-324", "1.7976931348623159e308",
    "123456789.123456789", "0.1", "1_0", "\uff15", "\u0665", "1\uff12", "\xbd", "\xa05",
    "1e99999999999999999999",
    "0e99999999999999999999", "0000000000000000000000001", "1" * 30, "-- ",
)  # fmt: skip
JUNK = (
    "!", "!=", "==", "%", "*", ";", "'", "''", '"', ".", "é", "\\", "/", "/*", "*/", "--", "-- x\n",
    "/* ' */", "\n", "\x00", "#", "foo", "LIKE", "L", "e5", "1e", "NOT", "AND", "NULL", "(", ")",
    "IS",
)  # fmt: skip


class Expressions:
    """Random expressions, most of which compile, and random properties."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def expression(self) -> str:
        tokens = self._logical(self._random.choice((0, 1, 1, 2, 2, 3, 4)))
        if self._random.random() < 0.15:
            self._damage(tokens)
        text = ""
        for token in tokens:
            is_apart = text[-1:].isalnum() and token[:1].isalnum()
            blank = " " if is_apart and self._random.random() < 0.99 else ""
            text += blank + self._random.choice(("", " ", " ", " ", "\t\r\n\f")) + token
        return text

    def properties(self) -> dict[str, str]:
        names = self._random.sample(NAMES, self._random.randrange(1 + len(NAMES)))
        return {name: self._value() for name in names}

    def _value(self) -> str:
        choice = self._random.random()
        if choice < 0.7:
            return self._random.choice(VALUES)
        if choice < 0.9:
            digits = "".join(self._random.choices("0123456789", k=self._random.randrange(1, 22)))
            point = self._random.randrange(len(digits) + 1)
            number = digits[:point] + self._random.choice((".", "")) + digits[point:]
            power = self._random.choice(("", "", f"e{self._random.randrange(-330, 310)}"))
            return self._random.choice(("", "-", "+", " ")) + number + power
        return "".join(self._random.choices("0123456789.eExXpPdDfF+- aN", k=5))

    def _logical(self, depth: int) -> list[str]:
        choose = self._random.random()
        if depth == 0 or choose < 0.25:
            return self._comparison(depth)
        if choose < 0.75:
            joint = self._word(self._random.choice(("AND", "OR")))
            return [*self._logical(depth - 1), joint, *self._logical(depth - 1)]
        if choose < 0.9:
            return ["(", *self._logical(depth - 1), ")"]
        return [self._word("NOT"), "(", *self._logical(depth - 1), ")"]

    def _comparison(self, depth: int) -> list[str]:
        choose = self._random.random()
        left = self._operand(depth, texts=choose >= 0.35)
        negation = [self._word("NOT")] if self._random.random() < 0.4 else []
        if choose < 0.35:
            symbol = self._random.choice((">", ">=", "<", "<="))
            return [*left, symbol, *self._operand(depth, texts=False)]
        if choose < 0.65:
            return [*left, self._random.choice(("=", "<>")), *self._operand(depth)]
        if choose < 0.72:
            return [*left, self._word("IS"), *negation, self._word("NULL")]
        if choose < 0.8:
            left = self._operand(depth, texts=False)
            low, high = (self._operand(depth, texts=False) for _ in range(2))
            between, and_ = self._word("BETWEEN"), self._word("AND")
            return [*left, *negation, between, *low, and_, *high]
        if choose < 0.87:
            listed = [
                token for _ in range(self._random.randrange(8)) for token in (",", self._text())
            ]
            name = self._random.choice(NAMES)
            return [name, *negation, self._word("IN"), "(", self._text(), *listed, ")"]
        if choose < 0.95:
            test = self._random.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
            return [*left, *negation, self._word(test), self._text()]
        return [self._random.choice((*NAMES, "TRUE", "FALSE", "NULL"))]

    def _operand(self, depth: int, *, texts: bool = True) -> list[str]:
        choose = self._random.random()
        if choose < 0.5:
            return [self._random.choice(NAMES)]
        if choose < 0.65:
            return [self._random.choice(INTEGERS)]
        if choose < 0.75:
            return [self._random.choice(DECIMALS)]
        if choose < 0.85:
            sign = self._random.choice("+-")
            return [sign, *self._operand(depth, texts=texts)]
        if choose < 0.87:
            return [self._random.choice("+-"), "(", *self._logical(max(0, depth - 1)), ")"]
        if choose < 0.9 or not texts:
            return ["(", *self._operand(depth, texts=texts), ")"]
        if choose < 0.95:
            return [self._text()]
        if choose < 0.98:
            return [self._word(self._random.choice(("TRUE", "FALSE", "NULL")))]
        return ["(", *self._logical(max(0, depth - 1)), ")"]

    def _text(self) -> str:
        return f"'{self._random.choice(TEXTS)}'"

    def _word(self, word: str) -> str:
        return self._random.choice((word, word, word.lower(), word.title()))

    def _damage(self, tokens: list[str]) -> None:
        for _ in range(self._random.randrange(1, 3)):
            at = self._random.randrange(len(tokens))
            choose = self._random.randrange(4)
            if choose == 0 and len(tokens) > 1:
                del tokens[at]
            elif choose == 1:
                tokens.insert(at, self._random.choice(tokens))
            elif choose == 2:
                tokens.insert(at, self._random.choice(JUNK))
            else:
                tokens.append(self._random.choice(JUNK))


def java_values(version: str, cases: list[tuple[str, list[dict[str, str]]]]) -> list[str]:
    """What RocketMQ's module says of each expression: see java/filter/Expressions.java."""
    classes = toolchain.java_classes("filter", toolchain.rocketmq_jars("servers", version))
    lines = [json.dumps({"expression": text, "messages": messages}) for text, messages in cases]
    ran = subprocess.run(
        [toolchain.command("java"), "-XX:+UseSerialGC", "-cp", classes, "Expressions"],
        input="\n".join(lines) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        timeout=JAVA_SECONDS_MAX,
        check=True,
    )
    return ran.stdout.splitlines()


def our_values(text: str, messages: list[dict[str, str]]) -> str:
    """The same of ours."""
    try:
        expression = compile_expression(text)
    except SqlError:
        return "!"
    values = ""
    for properties in messages:
        try:
            value = "N" if (found := expression.evaluate(properties)) is None else "FT"[found]
        except EvaluationError:
            value = "E"
        if not {"\x01", "\x02"} & {*"".join(properties.values())} and "" not in properties.values():
            record = encode_properties(properties)
            assert expression.matches(record, 0, len(record)) is (value == "T"), text
        values += value
    return values


@pytest.mark.timeout(2 * JAVA_SECONDS_MAX)
@pytest.mark.parametrize("version", ALL_VERSIONS if is_long_run() else VERSIONS[-1:])
def test_expressions_have_the_same_values_as_in_java(version: str) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    expressions = Expressions(random.Random(seed))
    cases: list[tuple[str, list[dict[str, str]]]] = []
    while len(cases) < EXPRESSIONS:
        text = expressions.expression()
        if version.startswith("5.") or not NEW_IN_5.search(text):
            cases.append((text, [expressions.properties() for _ in range(MESSAGES)]))

    theirs = java_values(version, cases)

    assert len(theirs) == len(cases)
    different: list[Any] = []
    seen: Counter[str] = Counter()
    for (text, messages), expected in zip(cases, theirs, strict=True):
        found = our_values(text, messages)
        seen.update(found)
        if found != expected:
            different.append((text, messages, f"{found}, in Java {expected}"))
    assert not different, f"seed={seed}: {len(different)} differ, first {different[:3]}"
    assert min(seen[value] for value in "TFNE!") > EXPRESSIONS / 20, f"one kind is rare: {seen}"
