"""Filters and weighers from outside, named in a policy by `module:function` or, Nova's way, by `module.Class`.

A filter's function gets the ask and the node's room and returns None or why not; a weigher's returns a number, larger is better. Of a class
in Nova's style `host_passes(host_state, spec)` or `_weigh_object(host_state, spec)` is called: the host state has the facts of
`scheduling.facts` as attributes, the spec is the request by the names of Nova's RequestSpec, and by our own. All must be pure: a decision
is made again to be explained. What they write into what they are given reaches nobody else (`custom_copies`).

A filter that raises, or answers what is no answer, rejects the node and says so in the evidence: one mistake in it must not end a
scheduler. A weigher has no such way out: it raises CustomError, with its name and the node.

A class that Nova would run once per request is asked of each node as it stood before the request's other instances. Nova asks it for the
first one and never looks again at what it rejected; here each instance is decided by itself, and comes out the same when it is decided
again alone, so every one of them is asked about what the first one met.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache
from importlib import import_module
from math import nan
from numbers import Real
from typing import Any, NamedTuple

from msgspec.structs import replace

from projections.node import Node
from projections.room import Room, room, room_for
from schemas.requests import Flavor, PlacementRequested
from streams.scheduling.ask import Ask
from streams.scheduling.custom_copies import Copies
from streams.scheduling.custom_error import CustomError, NowhereError
from streams.scheduling.nova_names import host_state, spec_on
from streams.scheduling.options import NUMBER_MAX

REQUESTS_KEPT = 64
"""Of so many requests the numbers of their instances are kept: each is asked about again for every one of up to a thousand instances."""

FAILURES = (Exception, SystemExit, CancelledError, GeneratorExit)
"""What code from outside may end in; whoever calls `sys.exit` there, or cancels a task, means its own end, not the scheduler's."""

Why = Callable[[Room], str | None]


class CustomWeigher(NamedTuple):
    """A weigher from outside: its figure of a node for an ask, its bounds (`minval`, `maxval`) if it has any, and its own multiplier."""

    figure: Callable[[Ask], Callable[[Room], float]]
    lowest: float | None = None
    highest: float | None = None
    multiplier: Callable[[Room], float] | None = None


def is_custom(name: str) -> bool:
    """Whether a name leads outside."""
    return ":" in name or "." in name


def custom_why(name: str) -> Callable[[Ask], Why]:
    """The filter of that name: made ready for an ask, it says of a node why not. Raises CustomError."""
    found = _found(name)
    if not isinstance(found, type):
        function = _function(found, name)
        return _careful(lambda ask: lambda room: function(ask, room), name)
    made, host_passes = _made(found, "host_passes", name)

    def says_for(ask: Ask) -> Why:
        spec = spec_on(ask)

        def says(room: Room) -> str | None:
            there = _before_others(room, ask) if _is_run_before(made, ask) else room
            return None if host_passes(host_state(there), spec(there)) else f"{found.__name__} does not let it pass"

        return says

    return _careful(says_for, name)


def _careful(says_for: Callable[[Ask], Callable[[Room], Any]], name: str) -> Callable[[Ask], Why]:
    copies = Copies()

    def why_for(ask: Ask) -> Why:
        says = says_for(deepcopy(ask))

        def why(room: Room) -> str | None:
            there = copies.of(room)
            try:
                said = says(there)
            except FAILURES as error:
                return f"{name} failed: {_told(error)}"
            if said is None or (isinstance(said, str) and said.strip()):
                return said and _writable(said)
            return f"{name} failed: expected None or why not, in words, got {_shown(said)}"

        return why

    return why_for


def custom_weigher(name: str) -> CustomWeigher:
    """The weigher of that name. Raises CustomError."""
    found = _found(name)
    if not isinstance(found, type):
        function = _function(found, name)
        figure = _finite(lambda ask: lambda room: function(ask, room), name)
        return CustomWeigher(figure, *_bounds(found, name))
    made, weigh_object = _made(found, "_weigh_object", name)

    def weight_for(ask: Ask) -> Callable[[Room], Any]:
        spec = spec_on(ask)
        return lambda room: weigh_object(host_state(room), spec(room))

    figure = _finite(weight_for, name)
    return CustomWeigher(figure, *_bounds(made, name), _own_multiplier(made, name))


def _own_multiplier(made: Any, name: str) -> Callable[[Room], float] | None:
    """Nova's `weight_multiplier(host_state)`, or the number that is there in its place."""
    own = getattr(made, "weight_multiplier", None)
    if own is None:
        return None
    copies, place = Copies(), f"{name}.weight_multiplier"
    return lambda room: _number(lambda there: own(host_state(there)) if callable(own) else own, place, copies.of(room))


def _finite(weighs_for: Callable[[Ask], Callable[[Room], Any]], name: str) -> Callable[[Ask], Callable[[Room], float]]:
    copies = Copies()

    def figure(ask: Ask) -> Callable[[Room], float]:
        weighs = weighs_for(deepcopy(ask))
        return lambda room: _number(weighs, name, copies.of(room))

    return figure


def _number(says: Callable[[Room], Any], name: str, room: Room) -> float:
    try:
        said = says(room)
    except FAILURES as error:
        raise CustomError(f"weigher {name!r} failed on node {room.node_id}: {_told(error)}") from error
    if not abs(number := _as_float(said)) <= NUMBER_MAX:
        raise CustomError(f"weigher {name!r} failed on node {room.node_id}: expected a number up to {NUMBER_MAX:g}, got {_shown(said)}")
    return number


def _bounds(found: Any, name: str) -> tuple[float | None, float | None]:
    lowest, highest = (_bound(found, bound, name) for bound in ("minval", "maxval"))
    if lowest is not None and highest is not None and lowest > highest:
        raise CustomError(f"{name!r}: minval {lowest:g} is above maxval {highest:g}: every node would be worth the same")
    return lowest, highest


def _bound(found: Any, bound: str, name: str) -> float | None:
    said = getattr(found, bound, None)
    if said is None:
        return None
    if abs(number := _as_float(said)) <= NUMBER_MAX:
        return number
    raise CustomError(f"{name!r}: {bound}: expected None or a number up to {NUMBER_MAX:g}, got {_shown(said)}")


def _as_float(said: Any) -> float:
    """A number of whatever kind as results have it; nan for what is none, or too large to be one."""
    try:
        return float(said) if isinstance(said, Real) else nan
    except FAILURES:
        return nan


def _told(error: BaseException) -> str:
    """An error's kind and words; one whose words cannot be had has its kind alone."""
    try:
        return _writable(f"{type(error).__name__}: {error}")
    except FAILURES:
        return type(error).__name__


def _shown(said: Any) -> str:
    try:
        return _writable(repr(said))
    except FAILURES:
        return f"a {type(said).__name__} that cannot be shown"


def _writable(text: str) -> str:
    """The text without what no record can carry: half a character, as names of files may have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _is_run_before(made: Any, ask: Ask) -> bool:
    """Whether Nova would run this filter for earlier instances of the request alone; one in company is asked about as the last of them."""
    index = ask.index + len(ask.company)
    run_for = getattr(made, "run_filter_for_index", None)
    if callable(run_for):
        return index > 0 and not run_for(index)
    return index > 0 and bool(getattr(made, "run_filter_once_per_request", False))


def _before_others(there: Room, ask: Ask) -> Room:
    """The node as it stood before the instances of the request that come before this one: neither laid over it nor held there."""
    request, last = ask.request, ask.index + len(ask.company)
    numbers = _numbers(request.request_id, request.instance_ids, request.count)

    def is_other(instance_id: str) -> bool:
        return instance_id != ask.instance_id and numbers.get(instance_id, last + 1) <= last

    overlay = tuple([item for item in there.overlay if not is_other(item.instance_id)])
    node = _node_without(there.node, request, frozenset(filter(is_other, there.node.claims.keys() & numbers.keys())))
    if node is there.node and len(overlay) == len(there.overlay):
        return there
    before = room(node, there.partition, there.mark, overlay)
    return before if there.lacks is None else room_for(before, ask.item, request.request_id)


@lru_cache(maxsize=REQUESTS_KEPT)
def _numbers(request_id: str, instance_ids: tuple[str, ...], count: int) -> Mapping[str, int]:
    request = PlacementRequested(request_id=request_id, flavor=Flavor(), instance_ids=instance_ids, count=count)
    return {request.instance(index): index for index in range(count)}


def _node_without(node: Node, request: PlacementRequested, others: frozenset[str]) -> Node:
    """The node without what this request holds for others of its instances, and without those that it created."""
    held = {instance_id: [claim for claim in node.claims[instance_id] if claim.request_id != request.request_id] for instance_id in others}
    gone = [each for each, left in held.items() if len(left) < len(node.claims[each])]
    if not gone:
        return node
    claims, shown, io_claims = dict(node.claims), dict(node.shown), node.io_claims
    for instance_id in gone:
        io_claims += sum(claim.confirmed_ms is None for claim in held[instance_id])
        io_claims -= sum(claim.confirmed_ms is None for claim in claims.pop(instance_id))
        if held[instance_id]:
            claims[instance_id] = held[instance_id]
        elif request.action == "create":
            shown.pop(instance_id, None)
    uses, used, groups_of = dict(node.uses), list(node.used), dict(node.groups_of)
    before = replace(node, claims=claims, shown=shown, uses=uses, used=used, groups_of=groups_of, io_claims=io_claims)
    for instance_id in gone:
        before.recount(instance_id)
    return before


def _found(name: str) -> Any:
    path, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    try:
        module = import_module(path)
    except ImportError as error:
        raise NowhereError(name, f"{error}; expected module:function or module.Class that can be imported here") from None
    except FAILURES as error:
        raise NowhereError(name, f"importing {path!r} failed: {_told(error)}") from error
    if not hasattr(module, attribute):
        raise NowhereError(name, f"module {path} has no {attribute}")
    return getattr(module, attribute)


def _function(found: Any, name: str) -> Any:
    if not callable(found):
        raise CustomError(f"{name!r}: expected a function or a class, got {type(found).__name__}")
    return found


def _made(found: type, method: str, name: str) -> tuple[Any, Any]:
    """One of that class, and its method."""
    if not callable(getattr(found, method, None)):
        also = "; filter_all looks at all nodes at once, here each is asked about by itself" if hasattr(found, "filter_all") else ""
        raise CustomError(f"{name!r}: expected a class with {method}(host_state, spec){also}")
    try:
        made = found()
    except FAILURES as error:
        raise CustomError(f"{name!r}: expected a class that is made without arguments; {_told(error)}") from error
    return made, getattr(made, method)
