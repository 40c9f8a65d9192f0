"""Try SQL92 expressions on the properties of messages; no server is needed."""

from cometmq.sql92 import EvaluationError, SqlError, compile_expression

MESSAGES = (
    {"color": "blue", "price": "15"},
    {"color": "red", "price": "9.5"},
    {"region": "eu"},
)


def show(expression: str) -> None:
    try:
        compiled = compile_expression(expression)
    except SqlError as error:
        print(f"{expression}: {error}")
        return
    values = []
    for properties in MESSAGES:
        try:
            values.append(compiled.evaluate(properties))
        except EvaluationError:
            values.append("no match")
    print(f"{expression}: {values}")


def main(*expressions: str) -> None:
    for expression in expressions:
        show(expression)


if __name__ == "__main__":
    main(
        "color = 'blue' AND price > 10",
        "price > 9",
        "price > 9.0",
        "color <> 'red'",
        "NOT (region IN ('us')) OR region IS NULL",
        "color LIKE 'b%'",
        "price > '9'",
    )
