"""Filters and weighers from outside, named in a policy by `module:function` or, Nova's way, by `module.Class`.

A filter's function gets the ask and the node's room and returns None or why not; a weigher's returns a number, larger is better. Of a class
in Nova's style `host_passes(host_state, spec)` or `_weigh_object(host_state, spec)` is called: the host state has the facts of
`scheduling.facts` as attributes, the spec is the request. All must be pure: a decision is made again to be explained.

A filter that raises, or answers what is no answer, rejects the node and says so in the evidence: one mistake in it must not end a
scheduler. A weigher has no such way out: it raises CustomError, with its name and the node.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from projections.room import Room
from streams.scheduling.ask import Ask
from streams.scheduling.custom_error import CustomError
from streams.scheduling.facts import facts_of
from streams.scheduling.options import NUMBER_MAX


def is_custom(name: str) -> bool:
    """Whether a name leads outside."""
    return ":" in name or "." in name


def custom_why(name: str) -> Callable[[Ask, Room], str | None]:
    """The filter of that name, as a function that says why not. Raises CustomError."""
    found = _found(name)
    if not isinstance(found, type):
        return _careful(_function(found, name), name)
    host_passes = _method(found, "host_passes", name)

    def passes(ask: Ask, room: Room) -> str | None:
        return None if host_passes(_host_state(room), ask.request) else f"{found.__name__} does not let it pass"

    return _careful(passes, name)


def _careful(says: Callable[[Ask, Room], Any], name: str) -> Callable[[Ask, Room], str | None]:
    def why(ask: Ask, room: Room) -> str | None:
        try:
            said = says(ask, room)
        except Exception as error:
            return f"{name} failed: {type(error).__name__}: {error}"
        return said if said is None or isinstance(said, str) else f"{name} failed: expected None or why not, in words, got {said!r}"

    return why


def custom_raw(name: str) -> tuple[Callable[[Ask, Room], float], float | None, float | None]:
    """The weigher of that name, and its bounds (`minval`, `maxval`) if it has any. Raises CustomError."""
    found = _found(name)
    if not isinstance(found, type):
        return _finite(_function(found, name), name), getattr(found, "minval", None), getattr(found, "maxval", None)
    weigh_object = _method(found, "_weigh_object", name)

    def weight(ask: Ask, room: Room) -> float:
        return float(weigh_object(_host_state(room), ask.request))

    return _finite(weight, name), getattr(found, "minval", None), getattr(found, "maxval", None)


def _finite(weighs: Callable[[Ask, Room], Any], name: str) -> Callable[[Ask, Room], float]:
    def raw(ask: Ask, room: Room) -> float:
        try:
            said = weighs(ask, room)
        except Exception as error:
            raise CustomError(f"weigher {name!r} failed on node {room.node_id}: {type(error).__name__}: {error}") from error
        if not isinstance(said, (int, float)) or not abs(said) <= NUMBER_MAX:
            raise CustomError(f"weigher {name!r} failed on node {room.node_id}: expected a number up to {NUMBER_MAX:g}, got {said!r}")
        return said

    return raw


def _host_state(room: Room) -> SimpleNamespace:
    facts = facts_of(room)
    return SimpleNamespace(**facts, instances=dict.fromkeys(room.instances), aggregates=list(room.node.aggregates))


def _found(name: str) -> Any:
    path, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    try:
        return getattr(import_module(path), attribute)
    except ImportError as error:
        raise CustomError(f"{name!r}: {error}; expected module:function or module.Class that can be imported here") from None
    except AttributeError:
        raise CustomError(f"{name!r}: module {path} has no {attribute}") from None


def _function(found: Any, name: str) -> Any:
    if not callable(found):
        raise CustomError(f"{name!r}: expected a function or a class, got {type(found).__name__}")
    return found


def _method(found: type, method: str, name: str) -> Any:
    if not callable(getattr(found, method, None)):
        raise CustomError(f"{name!r}: expected a class with {method}(host_state, spec)")
    return getattr(found(), method)
