"""A recorded decision made again on the records it was made on: the same choice or not, and why not another node."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from projections.cut import Cut, CutError
from projections.ledger import Ledger
from projections.projection import ProjectionError
from schemas.claims import ClaimItem, ClaimRequested
from schemas.codec import decode
from schemas.requests import PlacementRequested
from schemas.results import Decision
from schemas.topics import CLAIMS
from streams.cli.answers import policy_text
from streams.cli.exits import AnswerIncomplete, UsageProblem
from streams.cli.nodes import unknown_node
from streams.cli.state import state_at
from streams.log.base import Log, OffsetOutOfRange
from streams.scheduling.explain import CannotRerun, rerun
from streams.scheduling.filters import LAST, RESTRICTIONS, filters_of, reason
from streams.scheduling.fleet import Fleet
from streams.scheduling.loading import PolicyError, from_text
from streams.scheduling.policy import Policy
from streams.scheduling.reference import rooms_for

READ_RECORDS = 2_000
# How far behind the cut overlaid claims are looked for: they were in flight, so they follow within a turn or two.
BEHIND_THE_CUT_MAX = 50_000


class OneNode(Struct, frozen=True):
    """What every filter says of one node: its name and the reason, or `passes`."""

    node_id: str
    verdicts: tuple[tuple[str, str], ...]

    @property
    def width(self) -> int:
        """The longest name of a filter."""
        return max(len(name) for name, _ in self.verdicts)


class Again(Struct, frozen=True, kw_only=True):
    """A decision made again. `same` is None if it could not be; `told` says how it went."""

    same: bool | None
    told: str
    differences: tuple[str, ...] = ()
    node: OneNode | None = None


class Reruns:
    """Makes decisions of one request again; those of one cut share a fold."""

    def __init__(self, log: Log, request: PlacementRequested) -> None:
        self._log = log
        self._request = request
        self._ledgers: dict[tuple[int, ...], list[Ledger]] = {}
        self._policies: dict[str, Policy] = {}

    def again(self, decision: Decision, node: str = "") -> Again:
        """Make one decision, its overlay spelled out, again; with `node`, what each filter says of that one.

        Raises UsageProblem for a node that was not known then, AnswerIncomplete for `node` where the records are not at hand.
        """
        index = _index(self._request, decision.instance_id)
        try:
            ledgers = self._folded(decision)
            policy = self._policy(decision)
            items = _overlaid(self._log, decision)
            done = rerun(ledgers, self._request, index, decision, items, policy)
        except (CannotRerun, PolicyError, CutError, OffsetOutOfRange, AnswerIncomplete, ProjectionError) as problem:
            if node:
                raise AnswerIncomplete(f"the decision cannot be made again: {problem}") from None
            return Again(same=None, told=f"it cannot be made again: {problem}")
        told = "made again, it gives the same choice" if done.same else f"MADE AGAIN, IT DIFFERS in {', '.join(done.differences)}"
        verdicts = _one_node(ledgers, self._request, index, decision, items, policy, node) if node else None
        return Again(same=done.same, told=told, differences=done.differences, node=verdicts)

    def _folded(self, decision: Decision) -> list[Ledger]:
        if not decision.cut:
            raise CannotRerun("no cut is recorded with it")
        if decision.cut not in self._ledgers:
            cut = Cut.of({(CLAIMS, number): end for number, end in enumerate(decision.cut)})
            state = state_at(self._log, cut, views=False, pending=False)
            self._ledgers[decision.cut] = [ledger for _, ledger in sorted(state.ledgers.items())]
        return self._ledgers[decision.cut]

    def _policy(self, decision: Decision) -> Policy:
        if decision.policy_digest not in self._policies:
            text = policy_text(self._log, decision.policy_digest)
            if text is None:
                raise CannotRerun(f"the text of its policy {decision.policy_digest} is not at hand")
            self._policies[decision.policy_digest] = from_text(text)
        return self._policies[decision.policy_digest]


def _index(request: PlacementRequested, instance_id: str) -> int:
    return next((index for index in range(request.count) if request.instance(index) == instance_id), 0)


def _overlaid(log: Log, decision: Decision) -> dict[str, ClaimItem]:
    """The overlaid claims by id, as they were appended behind the cut; own ones that never were are missing."""
    wanted = {text.rpartition("@")[0] for text in decision.overlay}
    items: dict[str, ClaimItem] = {}
    for number, end in enumerate(decision.cut):
        at, until = end, min(log.end(CLAIMS, number), end + BEHIND_THE_CUT_MAX)
        while at < until and len(items) < len(wanted):
            records = log.read(CLAIMS, number, at, READ_RECORDS)
            if not records:
                break
            for record in records:
                event = decode(CLAIMS, record.value)
                if isinstance(event, ClaimRequested):
                    items |= {item.claim_id: item for item in event.items if item.claim_id in wanted}
            at = records[-1].offset + 1
    return items


def _one_node(
    ledgers: list[Ledger],
    request: PlacementRequested,
    index: int,
    decision: Decision,
    items: dict[str, ClaimItem],
    policy: Policy,
    node_id: str,
) -> OneNode:
    """Every filter's word on one node, not only the first one's that rejects it."""
    fleet = Fleet(ledgers)
    known = [room.node_id for room in fleet.rooms()]
    if node_id not in known:
        raise UsageProblem(f"at the decision's cut {unknown_node(node_id, known)}")
    for claim_id, there in _overlay(decision):
        number = _index_of_claim(claim_id, request)
        item = items.get(claim_id) or fleet.ask_seeded(request, number, seed=0).item
        fleet.lay(item, there, fleet.partition_of_node(there))
    ask = fleet.ask_seeded(request, index, seed=decision.seed, attempt=decision.attempt)
    room = next(room for room in rooms_for(fleet.rooms(), ask) if room.node_id == node_id)
    chosen = () if ask.item.forced else filters_of(policy)
    filters = (*RESTRICTIONS, *chosen, LAST)
    return OneNode(node_id, tuple((each.name, reason(each, ask, room) or "passes") for each in filters if each.prepare(ask) is not None))


def _overlay(decision: Decision) -> Iterator[tuple[str, str]]:
    for text in decision.overlay:
        claim_id, _, node_id = text.rpartition("@")
        yield claim_id, node_id


def _index_of_claim(claim_id: str, request: PlacementRequested) -> int:
    """The instance number in an own claim's id; `rerun` has refused whatever is no claim of this request."""
    number = claim_id.removeprefix(f"{request.request_id}/").split("/")[0]
    return int(number) if number.isdigit() else 0
