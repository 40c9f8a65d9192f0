"""SQL92 expressions, which select messages by their properties.

`compile_expression` parses an expression once; the `Expression` that it returns is evaluated for
each message, over the property string of its record.

Source: SelectorParser and the expressions of rocketmq-filter 5.3, and what they return for the
recorded expressions in tests/vectors.
"""

from cometmq.sql92.expression import EvaluationError, Expression, SqlError, SqlLimitError

__all__ = [
    "EvaluationError",
    "Expression",
    "SqlError",
    "SqlLimitError",
    "compile_expression",
    "ignored_part",
]


def compile_expression(text: str) -> Expression:
    """Parse an expression.

    Raises:
        SqlError: the text is no expression; the error says what was met, what was expected and
            where.
        SqlLimitError: the expression breaks one of CometMQ's limits.
    """
    from cometmq.sql92.parser import Parser  # 170 KiB, which most processes never need

    return Parser(text).parse()


def ignored_part(text: str) -> str:
    """Return what follows a complete expression, which RocketMQ's brokers and ours ignore.

    Raises:
        SqlError, SqlLimitError: as for `compile_expression`.
    """
    from cometmq.sql92.parser import Parser

    parser = Parser(text)
    parser.parse()
    return parser.rest()
