"""Nova's JsonFilter: the hint `query`, such as `["and", [">=", "$free_ram_mb", 1024], ["not", "$service.disabled"]]`.

`$name.key` is a fact of the node; one that is not known is left out of its list. Nothing asked is true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.facts import facts_of
from streams.scheduling.options import Options

NESTING_MAX = 32
"""As deep as a record may nest: a query travels as a text in one, and its depth is nobody's else to limit."""


class QueryError(ValueError):
    """The query cannot be understood: the message says what is known."""


def json_query(ask: Ask, _: Options) -> Check | None:
    """Nodes for which the query holds; with one that cannot be understood, none."""
    text = ask.request.hints.query
    if not text:
        return None
    try:
        query = parsed(text)
    except QueryError as error:
        message = str(error)
        return per_node(lambda _room: message)
    return per_node(lambda room: None if holds(query, facts_of(room)) else "the request's query does not hold for it")


def parsed(text: str) -> Any:
    """The query in a JSON text; what asks nothing (an empty list, null, 0 …) is None.

    Raises QueryError for what is not JSON, nests too deep, or has an operator that is not known.
    """
    try:
        query = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise QueryError(f"hint query: not JSON: {error}") from None
    except RecursionError:
        raise QueryError(_too_deep()) from None
    if not query:
        return None
    _checked(query)
    return query


def holds(query: Any, facts: Mapping[str, Any]) -> bool:
    """Whether a parsed query holds; where its outcome is a list (of `not`), whether anything in it does."""
    result = _value(query, facts)
    return any(result) if isinstance(result, list) else bool(result)


def _too_deep() -> str:
    return f"hint query: expected at most {NESTING_MAX} lists in one another"


def _checked(query: Any, depth: int = 1) -> None:
    if depth > NESTING_MAX:
        raise QueryError(_too_deep())
    if not isinstance(query, (list, dict)):
        raise QueryError(f"hint query: expected a list that begins with an operator, got {query!r}")
    if not query:
        return
    if isinstance(query, dict) or not isinstance(query[0], str) or query[0] not in OPERATORS:
        name = "an object" if isinstance(query, dict) else repr(query[0])
        raise QueryError(f"hint query: operator {name} is not known; known: {', '.join(OPERATORS)}")
    for argument in query[1:]:
        if isinstance(argument, list):
            _checked(argument, depth + 1)


def _value(query: Any, facts: Mapping[str, Any]) -> Any:
    if not query:
        return True
    arguments = [_argument(argument, facts) for argument in query[1:]]
    return OPERATORS[query[0]]([argument for argument in arguments if argument is not None])


def _argument(argument: Any, facts: Mapping[str, Any]) -> Any:
    if isinstance(argument, list):
        return _value(argument, facts)
    if not isinstance(argument, str):
        return argument
    if not argument.startswith("$"):
        return argument or None
    value: Any = facts
    for name in argument[1:].split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _compare(compared: Callable[[Any, Any], bool]) -> Callable[[Sequence[Any]], bool]:
    """The first argument against each of the others; one alone compares with nothing, and fails."""

    def holds_for(arguments: Sequence[Any]) -> bool:
        try:
            return len(arguments) > 1 and all(compared(arguments[0], other) for other in arguments[1:])
        except TypeError:
            return False  # Values of kinds that have no order.

    return holds_for


OPERATORS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "=": _compare(operator.eq),
    "<": _compare(operator.lt),
    ">": _compare(operator.gt),
    "in": lambda arguments: len(arguments) > 1 and arguments[0] in arguments[1:],
    "<=": _compare(operator.le),
    ">=": _compare(operator.ge),
    "not": lambda arguments: [not argument for argument in arguments],
    "or": any,
    "and": all,
}
