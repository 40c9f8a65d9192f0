"""Try SQL92 conditions on the properties of messages; no server is needed."""

from cometmq.sql92 import EvaluationError, SqlError, compile_expression

MESSAGES = (
    {"color": "blue", "price": "15"},
    {"color": "red", "price": "9.5"},
    {"region": "eu"},
)


def show(condition: str) -> None:
    try:
        compiled = compile_expression(condition)
    except SqlError as error:
        print(f"{condition}: {error}")
        return
    values = []
    for properties in MESSAGES:
        try:
            values.append(compiled.evaluate(properties))
        except EvaluationError:
            values.append("no match")
    print(f"{condition}: {values}")


def main(*conditions: str) -> None:
    for condition in conditions:
        show(condition)


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
