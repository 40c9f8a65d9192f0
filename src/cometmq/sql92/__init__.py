"""SQL92 expressions, which select messages by their properties.

`compile_expression` parses an expression once; the `Expression` that it returns is evaluated for
each message, over the property string of its record.

Source: SelectorParser and the expressions of rocketmq-filter 5.3, and what they return for the
recorded expressions in tests/vectors.
"""

from cometmq.sql92.expression import EvaluationError, Expression
from cometmq.sql92.parser import SqlError, SqlLimitError, compile_expression

__all__ = ["EvaluationError", "Expression", "SqlError", "SqlLimitError", "compile_expression"]
