"""Nova's JsonFilter: the hint `query`, such as `["and", [">=", "$free_ram_mb", 1024], ["not", "$service.disabled"]]`.

`$name.key` is a fact of the node; one that is not known is left out of its list. Nothing asked is true. Where Nova's filter ends with an
error, a node is rejected and the reason says what could not be worked out, wherever in the query that stands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from schemas.few import few
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.facts import facts_of
from streams.scheduling.options import Options

NESTING_MAX = 32
"""As deep as a record may nest: a query travels as a text in one, and its depth is nobody's else to limit."""


class QueryError(ValueError):
    """The query cannot be understood, or not be worked out for a node: the message says why, `in_nova` what Nova's filter raises."""

    def __init__(self, message: str, in_nova: str = "KeyError") -> None:
        super().__init__(f"hint query: {message}")
        self.in_nova = in_nova


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
    return per_node(lambda room: _against(query, facts_of(room)))


def _against(query: Any, facts: Mapping[str, Any]) -> str | None:
    try:
        return None if holds(query, facts) else "the request's query does not hold for it"
    except QueryError as error:
        return str(error)


def parsed(text: str) -> Any:
    """The query in a JSON text; what asks nothing (an empty list, null, 0 …) is None.

    Raises QueryError for what is not JSON, nests too deep, or has an operator that is not known.
    """
    try:
        query = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise QueryError(f"not JSON: {error}", "JSONDecodeError") from None
    except RecursionError:
        raise QueryError(_too_deep(), "RecursionError") from None
    if not query:
        return None
    _checked(query)
    return query


def holds(query: Any, facts: Mapping[str, Any]) -> bool:
    """Whether a parsed query holds; where its outcome is a list (of `not`), whether anything in it does.

    Raises QueryError for a comparison of values that have no order, and for a part of a fact that has none.
    """
    result = _value(query, facts)
    return any(result) if isinstance(result, list) else bool(result)


def _too_deep() -> str:
    return f"expected at most {NESTING_MAX} lists in one another"


def _checked(query: Any, depth: int = 1) -> None:
    if depth > NESTING_MAX:
        raise QueryError(_too_deep(), "RecursionError")
    if not isinstance(query, (list, dict)):
        raise QueryError(f"expected a list that begins with an operator, got {query!r}")
    if not query:
        return
    if isinstance(query, dict) or not isinstance(query[0], str) or query[0] not in OPERATORS:
        name = "an object" if isinstance(query, dict) else repr(query[0])
        raise QueryError(f"operator {name} is not known; known: {', '.join(OPERATORS)}")
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
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise QueryError(f"{argument}: {value!r} has no parts", "AttributeError")
        value = value.get(name)
    return value


def _compare(compared: Callable[[Any, Any], bool], sign: str) -> Callable[[Sequence[Any]], bool]:
    """The first argument against each of the others, also behind one that fails; one alone compares with nothing, and fails."""

    def holds_for(arguments: Sequence[Any]) -> bool:
        first, *others = arguments or (None,)
        try:
            outcomes = [compared(first, other) for other in others]
        except TypeError:
            raise QueryError(f"{sign} of {few([repr(each) for each in arguments])}: they have no order", "TypeError") from None
        return bool(outcomes) and all(outcomes)

    return holds_for


OPERATORS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "=": _compare(operator.eq, "="),
    "<": _compare(operator.lt, "<"),
    ">": _compare(operator.gt, ">"),
    "in": lambda arguments: len(arguments) > 1 and arguments[0] in arguments[1:],
    "<=": _compare(operator.le, "<="),
    ">=": _compare(operator.ge, ">="),
    "not": lambda arguments: [not argument for argument in arguments],
    "or": any,
    "and": all,
}
