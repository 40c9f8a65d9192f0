"""Parses SQL92 expressions and translates them, in one pass.

    or         := and { OR and }
    and        := equality { AND equality }
    equality   := comparison { = comparison | <> comparison | IS [NOT] NULL }
    comparison := unary { (> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary
                  | [NOT] IN ( text { , text } ) | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    unary      := { + | - | NOT } primary
    primary    := TRUE | FALSE | NULL | integer | decimal | text | property | ( or )

What follows an expression is ignored, except that the next token must be one. Operands that cannot
be compared are an error here, others when a message is evaluated.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from cometmq.sql92.expression import (
    COMBINE,
    CONTAINS,
    DOUBLE,
    ENDS_WITH,
    EQUAL,
    ERROR,
    FALSE,
    GREATER,
    INTEGER,
    LESS,
    LONG,
    MAP,
    NULL,
    ONE_OF,
    PRESENT,
    PROPERTIES_MAX,
    PROPERTY_ORDER,
    PUSH,
    SAME_PROPERTIES,
    SAME_TEXT,
    SKIP_IF,
    SKIP_IF_ABSENT,
    STARTS_WITH,
    TRUE,
    TRUE_TEXT,
    EvaluationError,
    Expression,
    Instruction,
    SqlError,
    SqlLimitError,
    compare_doubles,
)

LENGTH_MAX = 65_536
"""The limit of characters; with `TOKENS_MAX` it bounds the time of `compile_expression`, 30 ms."""
TOKENS_MAX = 4096
NESTING_MAX = 100
"""The limit of parentheses in parentheses: each takes six of Python's 1000 nested calls."""
CONTAINS_MAX = 64
"""The limit of CONTAINS, which takes up to 0.3 ms in a property of 32 KB; other tests are fast."""

_BLANKS = re.compile(r"[ \t\n\r\f]*")
_LINE_END = re.compile(r"[\n\r]")
_TOKEN = re.compile(
    r"""
      (?P<decimal>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    | (?P<integer>0|[1-9][0-9]*[lL]?)
    | (?P<property>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<text>'[^']*(?:''[^']*)*')
    | (?P<symbol><>|>=|<=|[=<>(),+-])
    """,
    re.VERBOSE,
)
_LITERALS = {"TRUE": TRUE, "FALSE": FALSE, "NULL": NULL}
_TEXT_TESTS = {"CONTAINS": CONTAINS, "STARTSWITH": STARTS_WITH, "ENDSWITH": ENDS_WITH}
_KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "IS", *_LITERALS, *_TEXT_TESTS),
)
_END = "end"
_ORDERS = {">": GREATER, ">=": GREATER | EQUAL, "<": LESS, "<=": LESS | EQUAL}
_MIRRORED = {
    GREATER: LESS,
    GREATER | EQUAL: LESS | EQUAL,
    LESS: GREATER,
    LESS | EQUAL: GREATER | EQUAL,
}
_NOT = (TRUE, FALSE, NULL)
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_INFINITY = float("inf")


def _table(rows: tuple[tuple[int, int, int], ...]) -> int:
    """The operand of COMBINE: an entry for each left and right value."""
    return sum(
        value << 2 * (3 * left + right)
        for left, row in enumerate(rows)
        for right, value in enumerate(row)
    )


# Rows are the left value, columns the right one, each FALSE, TRUE and NULL.
_AND = _table(((FALSE, FALSE, FALSE), (FALSE, TRUE, NULL), (FALSE, NULL, NULL)))
_OR = _table(((FALSE, TRUE, NULL), (TRUE, TRUE, TRUE), (NULL, TRUE, NULL)))
_SAME = _table(((TRUE, FALSE, FALSE), (FALSE, TRUE, FALSE), (NULL, NULL, TRUE)))
_SAME_AS_PROPERTY = _table(((ERROR, ERROR, FALSE), (ERROR, ERROR, FALSE), (NULL, NULL, TRUE)))
"""RocketMQ fails to compare a truth value on the left with a property on the right."""


class Form(enum.Enum):
    """The form of an operand."""

    NUMBER = enum.auto()
    TEXT = enum.auto()
    PROPERTY = enum.auto()
    LOGICAL = enum.auto()
    """Its code leaves a truth value."""
    NEGATED = enum.auto()
    """Minus something that is no number: its code leaves NULL."""


_CONSTANT = (Form.NUMBER, Form.TEXT)
_NO_EQUALS = ((Form.LOGICAL, Form.NUMBER), (Form.LOGICAL, Form.TEXT))


@dataclass(slots=True)
class Operand:
    """A part of an expression that is parsed."""

    form: Form
    at: int
    """The position of its first character in the text."""
    is_literal: bool = False
    number: int | float = 0
    text: str = ""
    slot: int = 0
    code: list[Instruction] = field(default_factory=list)
    stack_size: int = 0
    """The most values that the code has on the stack."""


class Token(NamedTuple):
    """A token: a keyword or symbol, or a named group of `_TOKEN`."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= 40 else f"{self.text[:40]}..."
        return f"the {_END}" if self.kind == _END else repr(shown)


class Parser:
    """Parses one expression; see `compile_expression`."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise SqlLimitError(
                f"{len(text)} characters", f"at most {LENGTH_MAX} characters", LENGTH_MAX
            )
        self._text = text
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        self._slots: dict[str, int] = {}
        self._tokens = 0
        self._nesting = 0
        self._searches = 0
        self._token = self._read_token(0)

    def parse(self) -> Expression:
        """Return the compiled expression."""
        whole = self._logical(self._or())
        names = [name.encode() for name in self._slots]
        return Expression(self._text, names, whole.code, whole.stack_size)

    def rest(self) -> str:
        """Return the text from the first token on that is not read; a comment is none."""
        rest = self._text[self._token.at :].rstrip()
        return "" if rest.startswith("--") else rest

    # Tokens.

    def _read_token(self, at: int) -> Token:
        text = self._text
        at = self._skip_comments(at)
        self._tokens += 1
        if self._tokens > TOKENS_MAX:
            raise SqlLimitError("another token", f"at most {TOKENS_MAX} tokens", at)
        if at == len(text):
            return Token(_END, "", at)
        found = _TOKEN.match(text, at)
        if found is None:
            met = "a text without its closing quote" if text[at] == "'" else repr(text[at])
            raise SqlError(met, "a number, a text in single quotes, a name or an operator", at)
        kind = str(found.lastgroup)
        if kind == "symbol":
            kind = found[0]
        elif kind == "property" and found[0].upper() in _KEYWORDS:
            kind = found[0].upper()
        return Token(kind, found[0], at)

    def _skip_comments(self, at: int) -> int:
        text = self._text
        while True:
            at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
            if at < self._last_line_end and text.startswith("--", at):
                at = _LINE_END.search(text, at).end()  # type: ignore[union-attr]
            elif text.startswith("/*", at):
                end = text.find("*/", at + 2)
                if end < 0:
                    raise SqlError("a comment without its end", "'*/'", at)
                at = end + 2
            else:
                return at

    def _advance(self) -> Token:
        """Return the token, and read the next one."""
        token = self._token
        self._token = self._read_token(token.at + len(token.text))
        return token

    def _accept(self, *kinds: str) -> Token | None:
        """Return the token and read the next one, if it is of one of these kinds."""
        return self._advance() if self._token.kind in kinds else None

    def _expect(self, kind: str, expected: str) -> Token:
        if self._token.kind != kind:
            raise SqlError(str(self._token), expected, self._token.at)
        return self._advance()

    def _expect_text(self) -> str:
        image = self._expect("text", "a text in single quotes").text
        return image[1:-1].replace("''", "'")

    # Rules of the grammar.

    def _or(self) -> Operand:
        left = self._and()
        while self._accept("OR"):
            left = _joined(_OR, TRUE, self._logical(left), self._logical(self._and()))
        return left

    def _and(self) -> Operand:
        left = self._equality()
        while self._accept("AND"):
            left = _joined(_AND, FALSE, self._logical(left), self._logical(self._equality()))
        return left

    def _equality(self) -> Operand:
        left = self._comparison()
        while token := self._accept("=", "<>", "IS"):
            if token.kind == "IS":
                negated = self._accept("NOT") is not None
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = _is_null(left)
            else:
                negated = token.kind == "<>"
                left = _equal(left, self._comparison())
            if negated:
                left = _mapped(left, _NOT)
        return left

    def _comparison(self) -> Operand:
        left = self._unary()
        while True:
            if token := self._accept(*_ORDERS):
                left = _ordered(_ORDERS[token.kind], left, self._unary())
                continue
            negated = self._accept("NOT") is not None
            if self._accept("BETWEEN"):
                low = self._unary()
                self._expect("AND", "AND and the upper bound of BETWEEN")
                left = _between(left, low, self._unary(), negated=negated)
            elif token := self._accept("IN"):
                left = self._in(left, token.at, negated=negated)
            elif token := self._accept(*_TEXT_TESTS):
                left = self._text_test(left, token, negated=negated)
            elif negated:
                expected = "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH behind NOT"
                raise SqlError(str(self._token), expected, self._token.at)
            else:
                return left

    def _in(self, left: Operand, at: int, *, negated: bool) -> Operand:
        self._expect("(", "'(' and the texts of IN")
        choices = {self._expect_text()}
        while self._accept(","):
            choices.add(self._expect_text())
        self._expect(")", "',' or ')'")
        if left.form is not Form.PROPERTY:
            raise SqlError("another operand of IN", "a property on its left", left.at)
        test = Instruction(
            ONE_OF, left.slot, choices=frozenset(_encoded(choice) for choice in choices)
        )
        return _mapped(_single(test, left.at), _NOT) if negated else _single(test, left.at)

    def _text_test(self, left: Operand, token: Token, *, negated: bool) -> Operand:
        if token.kind == "CONTAINS":
            self._searches += 1
            if self._searches > CONTAINS_MAX:
                raise SqlLimitError("another CONTAINS", f"at most {CONTAINS_MAX}", token.at)
        return _text_test(_TEXT_TESTS[token.kind], left, self._expect_text(), negated=negated)

    def _unary(self) -> Operand:
        operators = []
        while token := self._accept("+", "-", "NOT"):
            operators.append(token)
        operand = self._primary()
        for token in reversed(operators):
            if token.kind == "-":
                operand = _negated(operand, token.at)
            elif token.kind == "NOT":
                operand = _mapped(self._logical(operand), _NOT)
        return operand

    def _primary(self) -> Operand:
        token = self._token
        if token.kind == "(":
            if self._nesting == NESTING_MAX:
                expected = f"at most {NESTING_MAX} parentheses in each other"
                raise SqlLimitError("another parenthesis", expected, token.at)
            self._nesting += 1
            self._advance()
            inner = self._or()
            self._expect(")", "')'")
            self._nesting -= 1
            return inner
        read = self._OPERANDS.get(token.kind)
        if read is None:
            raise SqlError(str(token), "a property, a number, a text or '('", token.at)
        operand = read(self, token)
        self._advance()
        return operand

    def _property(self, token: Token) -> Operand:
        slot = self._slots.setdefault(token.text, len(self._slots))
        if slot == PROPERTIES_MAX:
            expected = f"at most {PROPERTIES_MAX} different properties"
            raise SqlLimitError(f"another property, {token}", expected, token.at)
        return Operand(Form.PROPERTY, token.at, slot=slot)

    def _string(self, token: Token) -> Operand:
        text = token.text[1:-1].replace("''", "'")
        return Operand(Form.TEXT, token.at, is_literal=True, text=text)

    def _integer(self, token: Token) -> Operand:
        digits = token.text.rstrip("lL")
        number = int(digits) if len(digits) <= 19 else _LONG_MAX + 1
        if number > _LONG_MAX:
            raise SqlError(str(token), f"an integer up to {_LONG_MAX}", token.at)
        return Operand(Form.NUMBER, token.at, is_literal=True, number=number)

    def _decimal(self, token: Token) -> Operand:
        number = float(token.text)
        if not 0 < number < _INFINITY:
            expected = "a decimal number above 0 and below 1.8e308, or an integer"
            raise SqlError(str(token), expected, token.at)
        return Operand(Form.NUMBER, token.at, is_literal=True, number=number)

    def _literal(self, token: Token) -> Operand:
        operand = _pushed(_LITERALS[token.kind], token.at)
        operand.is_literal = True
        return operand

    _OPERANDS: ClassVar[dict[str, Callable[[Parser, Token], Operand]]] = {
        "property": _property,
        "text": _string,
        "integer": _integer,
        "decimal": _decimal,
        **dict.fromkeys(_LITERALS, _literal),
    }

    def _logical(self, operand: Operand) -> Operand:
        """Return an operand of AND, OR or NOT, or a whole expression; a property is never true."""
        if operand.form is Form.LOGICAL:
            return operand
        if operand.form is Form.PROPERTY:
            present = Instruction(PRESENT, operand.slot, results=(FALSE, FALSE, NULL))
            return _single(present, operand.at)
        raise SqlError("a value that is no truth value", "a comparison or a property", operand.at)


# Code of operands.


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _single(instruction: Instruction, at: int) -> Operand:
    return Operand(Form.LOGICAL, at, code=[instruction], stack_size=1)


def _pushed(value: int, at: int) -> Operand:
    return _single(Instruction(PUSH, operand=value), at)


def _mapped(operand: Operand, results: tuple[int, int, int]) -> Operand:
    """Return an operand with its value replaced by an entry of ``results``."""
    code = operand.code
    last = code[-1]
    if last.operation == PUSH and len(code) == 1:
        return _pushed((*results, ERROR)[last.operand], operand.at)
    if last.operation == MAP or (len(code) == 1 and last.operation <= PROPERTY_ORDER):
        false, true, null = ((*results, ERROR)[value] for value in last.results)
        code[-1] = last._replace(results=(false, true, null))
    else:
        code.append(Instruction(MAP, results=results))
    return Operand(Form.LOGICAL, operand.at, code=code, stack_size=operand.stack_size)


def _combined(table: int, left: Operand, right: Operand) -> Operand:
    """Return the code of both operands, and then COMBINE."""
    left.code += right.code
    left.code.append(Instruction(COMBINE, operand=table))
    size = max(left.stack_size, 1 + right.stack_size)
    return Operand(Form.LOGICAL, left.at, code=left.code, stack_size=size)


def _joined(table: int, decisive: int, left: Operand, right: Operand) -> Operand:
    """Return AND or OR; if the left value is decisive, the right one is not evaluated."""
    skip = Instruction(SKIP_IF, operand=len(right.code) + 1, orders=decisive)
    left.code.append(skip)
    return _combined(table, left, right)


def _negated(operand: Operand, at: int) -> Operand:
    """Return minus an operand: null if it is no number, and never a literal."""
    if operand.form is Form.NUMBER:
        return Operand(Form.NUMBER, at, number=-operand.number)
    if operand.form in (Form.TEXT, Form.PROPERTY):
        operand = _pushed(NULL, at)
    operand = _mapped(operand, (NULL, NULL, NULL))
    return Operand(Form.NEGATED, at, code=operand.code, stack_size=operand.stack_size)


def _is_null(operand: Operand) -> Operand:
    if operand.form in _CONSTANT:
        return _pushed(FALSE, operand.at)
    if operand.form is Form.PROPERTY:
        test = Instruction(PRESENT, operand.slot, results=(FALSE, FALSE, TRUE))
        return _single(test, operand.at)
    return _mapped(operand, (FALSE, FALSE, TRUE))


def _text_test(operation: int, operand: Operand, wanted: str, *, negated: bool) -> Operand:
    """Return CONTAINS, STARTSWITH or ENDSWITH: false, negated too, without a text to test."""
    at = operand.at
    if not wanted or operand.form is Form.NUMBER:
        return _pushed(FALSE, at)
    if operand.form in (Form.LOGICAL, Form.NEGATED):
        return _mapped(operand, (FALSE, FALSE, FALSE))
    results = (TRUE, FALSE, FALSE) if negated else (FALSE, TRUE, FALSE)
    test = Instruction(operation, operand.slot, results=results, text=_encoded(wanted))
    return _tested(test, operand)


def _tested(test: Instruction, operand: Operand) -> Operand:
    """Return the test of a property, or the value of the test for a text."""
    if operand.form is Form.PROPERTY:
        return _single(test, operand.at)
    alone = Expression("", [b"text"], [test._replace(slot=0)], 1)
    try:
        value = alone.evaluate({"text": operand.text})
    except EvaluationError:
        return _pushed(ERROR, operand.at)
    return _pushed(NULL if value is None else int(value), operand.at)


def _compared(orders: int, operand: Operand, number: int | float, absent: int = NULL) -> Operand:
    """Return the comparison of a property or text with a number."""
    if isinstance(number, float):
        test = Instruction(DOUBLE, operand.slot, orders=orders, number=number)
    else:
        operation = INTEGER if abs(number) <= _INT_MAX else LONG
        test = Instruction(operation, operand.slot, orders=orders, integer=number)
    return _tested(test._replace(results=(FALSE, TRUE, absent)), operand)


def _order(one: int | float, other: int | float) -> int:
    """Return the order of two numbers, which are doubles if one of them is."""
    if isinstance(one, float) or isinstance(other, float):
        return compare_doubles(float(one), float(other))
    return (one > other) - (one < other)


def _truth(operand: Operand) -> Operand:
    """Return whether a property is the text ``true``; another operand as it is."""
    if operand.form is Form.PROPERTY:
        return _single(Instruction(TRUE_TEXT, operand.slot), operand.at)
    return operand


def _equal(left: Operand, right: Operand) -> Operand:
    """Return ``left = right``."""
    at = left.at
    for side in (left, right):
        if side.is_literal and side.form is Form.LOGICAL and side.code[0].operand == NULL:
            raise SqlError("NULL as an operand of = or <>", "IS NULL or IS NOT NULL", side.at)
    if left.is_literal and right.is_literal and (left.form, right.form) in _NO_EQUALS:
        raise SqlError("a truth value = another constant", "a truth value", right.at)
    if left.form in _CONSTANT and right.form in _CONSTANT:
        return _equal_constants(left, right)
    if left.form is Form.PROPERTY and right.form is Form.PROPERTY:
        return _single(Instruction(SAME_PROPERTIES, left.slot, right.slot), at)
    if left.form is Form.PROPERTY and right.form in _CONSTANT:
        return _equal_property(left, right, NULL)
    if left.form in _CONSTANT and right.form is Form.PROPERTY:
        return _equal_property(right, left, FALSE)
    # At least one of both has code.
    if right.form is Form.TEXT:
        return _mapped(left, (ERROR, ERROR, NULL))
    if right.form is Form.NUMBER:
        return _mapped(left, (FALSE, FALSE, NULL))
    if left.form is Form.TEXT:
        is_true = left.text.isascii() and left.text.lower() == "true"
        return _mapped(right, (FALSE, TRUE, FALSE) if is_true else (TRUE, FALSE, FALSE))
    if left.form is Form.NUMBER:
        return _mapped(right, (FALSE, FALSE, FALSE))
    if left.form is Form.LOGICAL and right.form is Form.PROPERTY:
        return _combined(_SAME_AS_PROPERTY, left, _truth(right))
    return _combined(_SAME, _truth(left), _truth(right))


def _equal_property(operand: Operand, constant: Operand, absent: int) -> Operand:
    if constant.form is Form.NUMBER:
        return _compared(EQUAL, operand, constant.number, absent)
    results = (FALSE, TRUE, absent)
    test = Instruction(SAME_TEXT, operand.slot, results=results, text=_encoded(constant.text))
    return _single(test, operand.at)


def _equal_constants(left: Operand, right: Operand) -> Operand:
    if left.form is Form.TEXT and right.form is Form.TEXT:
        return _pushed(int(left.text == right.text), left.at)
    if left.form is Form.NUMBER and right.form is Form.NUMBER:
        return _pushed(int(_order(left.number, right.number) == 0), left.at)
    if left.form is Form.NUMBER:
        left, right = right, left
    return _compared(EQUAL, left, right.number)


def _ordered(orders: int, left: Operand, right: Operand) -> Operand:
    """Return a comparison by >, >=, < or <=."""
    for side in (left, right):
        if side.form in (Form.TEXT, Form.LOGICAL):
            met = "a text" if side.form is Form.TEXT else "a truth value"
            raise SqlError(f"{met} as an operand of > >= < <=", "a number or property", side.at)
    at = left.at
    if left.form is Form.NEGATED:  # null; the right one is not evaluated
        return Operand(Form.LOGICAL, at, code=left.code, stack_size=left.stack_size)
    if right.form is Form.NEGATED:
        code = right.code
        if left.form is Form.PROPERTY:  # MAP is where both ways meet: `_mapped` may change it
            skip = Instruction(SKIP_IF_ABSENT, left.slot, len(code))
            code = [skip, *code, Instruction(MAP)]
        return Operand(Form.LOGICAL, at, code=code, stack_size=right.stack_size)
    if left.form is Form.PROPERTY and right.form is Form.PROPERTY:
        return _single(Instruction(PROPERTY_ORDER, left.slot, right.slot, orders), at)
    if left.form is Form.PROPERTY:
        return _compared(orders, left, right.number)
    if right.form is Form.PROPERTY:
        return _compared(_MIRRORED[orders], right, left.number)
    order = _order(left.number, right.number)
    return _pushed(orders >> (order + 1) & 1, at)


def _between(value: Operand, low: Operand, high: Operand, *, negated: bool) -> Operand:
    are_numbers = low.is_literal and high.is_literal and low.form is high.form is Form.NUMBER
    if are_numbers and not negated and _order(high.number, low.number) < 0:
        raise SqlError("BETWEEN with its bounds exchanged", "the lower bound first", low.at)
    if value.form is Form.NEGATED:  # null, however often it is evaluated
        for bound in (low, high):
            _ordered(LESS, value, bound)  # which checks it
        return Operand(Form.LOGICAL, value.at, code=value.code, stack_size=value.stack_size)
    if negated:
        return _joined(_OR, TRUE, _ordered(LESS, value, low), _ordered(GREATER, value, high))
    above = _ordered(GREATER | EQUAL, value, low)
    return _joined(_AND, FALSE, above, _ordered(LESS | EQUAL, value, high))
