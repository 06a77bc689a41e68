"""Run a recorded decision again at its cut and see whether it comes out the same; and the funnel as lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from projections.ledger import Ledger
from schemas.claims import ClaimItem
from schemas.ids import claim_id as make_claim_id
from schemas.requests import PlacementRequested
from schemas.results import Decision, NearestMiss, Weighed
from streams.scheduling import overlay
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet
from streams.scheduling.holding import nodes_begun_by, nodes_chosen_from
from streams.scheduling.keeping import refused_move
from streams.scheduling.matrix import UNUSABLE
from streams.scheduling.policy import Policy, digest, digest_of
from streams.scheduling.reference import is_too_small, rooms_for
from streams.scheduling.select import ENGINES, engine

_NOWHERE = "?"
_OWN = "own", 0, 0
"""Process, epoch and counter of a claim that is put back: what it was claimed as stands nowhere in the decision."""


class CannotRerun(ValueError):
    """What the decision was made on is not at hand; the message says what is missing."""


class Rerun(Struct, frozen=True):
    """The recorded decision and the one made again. `differences`: the fields that differ; none is the same choice for the same reasons."""

    recorded: Decision
    again: Decision
    differences: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def whole(self) -> Decision:
        """What was recorded, with what its result had no room for as it comes out again; only what was recorded if that differs."""
        fields = _left_out(self.recorded) if self.same else ()
        return replace(self.recorded, **{name: getattr(self.again, name) for name in fields})


class FunnelLine(Struct, frozen=True):
    """One filter: how many nodes came, were rejected and went on, and why the first was rejected."""

    filter: str
    entered: int
    rejected: int
    left: int
    example: str


def spelled_out(request: PlacementRequested, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """The decisions of one result with every overlay in full: what `streams.evidence.shortened` left out put back.

    A decision without overlay that shares its cut with the one before was made with that one's overlay and choice laid over. Where the
    result had no room for the one before, that cannot be known, and the overlay names what is missing.
    """
    full: list[Decision] = []
    numbers = {request.instance(index): index for index in range(request.count)} if len(decisions) > 1 else {}
    for decision in decisions:
        before = full[-1] if full else None
        if before is not None and not decision.overlay and decision.cut == before.cut and before.chosen:
            own = _laid_before(request, numbers.get(before.instance_id, 0), numbers.get(decision.instance_id, 0), before.chosen)
            full.append(msgspec.structs.replace(decision, overlay=(*before.overlay, own)))
        else:
            full.append(decision)
    return tuple(full)


def _laid_before(request: PlacementRequested, before: int, index: int, chosen: str) -> str:
    """The own claim that the decision for instance number `before` laid over the one for `index`; in words where others lie between."""
    if index > before + 1:
        return f"what was chosen for the instances {before + 1} to {index - 1} of the request@{_NOWHERE}"
    return f"{make_claim_id(request.request_id, before, *_OWN)}@{chosen}"


def named_in_log(request: PlacementRequested, overlay: Sequence[str]) -> tuple[str, ...]:
    """What of an overlay that was spelled out may stand among the claims of the log: all but what was put back."""
    begin, end = f"{request.request_id}/", make_claim_id("", 0, *_OWN)[2:]
    return tuple([text for text in overlay if not (text.startswith(begin) and text.rpartition("@")[0].endswith(end))])


class Laid:
    """The fleet as the decisions of one request saw it, one after the other.

    Each of many instances is decided under what was chosen for those before: that stays laid, and what engines keep of the fleet is kept.
    """

    def __init__(self, request: PlacementRequested) -> None:
        self._request = request
        self._ledgers: Sequence[Ledger] = ()
        self._policy: Policy | None = None
        self._fleet: Fleet | None = None
        self._overlay: tuple[str, ...] = ()
        self._claim_ids: set[str] = set()

    def under(self, ledgers: Sequence[Ledger], recorded: Decision, items: Mapping[str, ClaimItem], policy: Policy) -> Fleet:
        """The fold at the decision's cut, and over it the claims that were in flight. Raises CannotRerun.

        `recorded.overlay` must be spelled out. `items` has the overlaid claims of other requests by claim id, as they stand in `claims`
        after the cut. The fleet is this decision's until the next is asked for; what was laid over it besides is lifted then.
        """
        fleet, self._fleet = self._fleet, None
        known = len(self._overlay)
        if fleet is None or ledgers is not self._ledgers or policy != self._policy or recorded.overlay[:known] != self._overlay:
            fleet, known, self._claim_ids = Fleet(ledgers), 0, set()
        if fleet.cut != recorded.cut:
            raise CannotRerun(f"{recorded.instance_id}: decided at the cut {recorded.cut}, the ledgers are folded to {fleet.cut}")
        for claim_id in fleet.laid() - self._claim_ids:
            fleet.lift(claim_id)
        for text in recorded.overlay[known:]:
            for item, node_id in self._named(text, items, policy, fleet):
                fleet.lay(item, node_id, _partition(fleet, node_id))
                self._claim_ids.add(item.claim_id)
        self._ledgers, self._policy, self._overlay, self._fleet = ledgers, policy, recorded.overlay, fleet
        return fleet

    def _named(self, text: str, items: Mapping[str, ClaimItem], policy: Policy, fleet: Fleet) -> list[tuple[ClaimItem, str]]:
        """The claims that one text of an overlay stands for, with their nodes."""
        if overlay.is_numbered(text):
            try:
                return [(items[claim_id], items[claim_id].nodes[0]) for claim_id in overlay.spelled(text, items)]
            except KeyError as missing:
                raise CannotRerun(_missing(missing.args[0])) from None
        claim_id, _, node_id = text.rpartition("@")
        if node_id == _NOWHERE:
            raise CannotRerun(f"{claim_id} was laid over the decision, and the result had no room for it")
        return [(_item(self._request, claim_id, items, policy, fleet), node_id)]


def rerun_on(fleet: Fleet, request: PlacementRequested, index: int, recorded: Decision, policy: Policy, written: str = "") -> Rerun:
    """Decide again for instance number `index` of `request`, on the fleet as the decision saw it (`Laid`).

    `policy` must be the one of the decision's digest. `written` is its text in the log: one of an older version may lack what today's has,
    and the digest is of what was written then. Raises CannotRerun.
    """
    given = digest_of(written) if written else digest(policy)
    if given != recorded.policy_digest:
        raise CannotRerun(
            f"{recorded.instance_id}: decided by policy {recorded.policy_digest}, got {given}; its text is in a scheduler-started"
        )
    ask = asked_again(fleet, request, index, recorded, policy)
    again = engine(engine_of(recorded))(fleet, ask, policy, recorded.policy_digest)
    left_out = _left_out(recorded)
    uncompared = {"overlay", "refused", "best", *left_out}
    different = [name for name in Decision.__struct_fields__ if name not in uncompared and getattr(recorded, name) != getattr(again, name)]
    if "nearest_miss" in different and [_is_too_small(fleet, ask, each.nearest_miss) for each in (recorded, again)] == [True, False]:
        # Earlier versions took a node that is too small when empty for as near as one that more room would help.
        different.remove("nearest_miss")
    if "best" not in left_out and _telling(recorded) != _telling(again):
        different.append("best")
    return Rerun(recorded, again, tuple(different))


def engine_of(recorded: Decision) -> str:
    """The name of the engine that it was decided by. Raises CannotRerun for one that only another version has."""
    if recorded.engine in ENGINES:
        return recorded.engine
    text = f"decided by the engine {recorded.engine!r} of another version of claimlog; known: {', '.join(ENGINES)}"
    raise CannotRerun(f"{recorded.instance_id}: {text}")


def asked_again(fleet: Fleet, request: PlacementRequested, index: int, recorded: Decision, policy: Policy) -> Ask:
    """The ask of a recorded decision, on the fleet as it saw it (`Laid`).

    Of a move that is refused now, earlier versions recorded the node that was, or would have been, chosen: that is made again as it was.
    """
    ask = fleet.ask_seeded(request, index, seed=recorded.seed, attempt=recorded.attempt, options=policy.options)
    if any(each.filter == UNUSABLE and each.rejected for each in recorded.rejections):
        ask = ask.unless(refused_move(fleet, request, index))
    return ask.begun_on(nodes_begun_by(fleet, request)).only_on(nodes_chosen_from(fleet, request, index, recorded))


def funnel(decision: Decision) -> list[FunnelLine]:
    """The filters in order, as the decision counted them."""
    return [
        FunnelLine(
            filter=each.filter,
            entered=each.entered,
            rejected=each.rejected,
            left=each.entered - each.rejected,
            example=f"{each.node_id}: {each.reason}" if each.rejected else "",
        )
        for each in decision.rejections
    ]


def _is_too_small(fleet: Fleet, ask: Ask, miss: NearestMiss | None) -> bool | None:
    """Whether the node of a miss could not hold the instance were it empty; None if there is no miss."""
    return None if miss is None else any(room.node_id == miss.node_id and is_too_small(ask, room) for room in rooms_for(fleet.rooms(), ask))


def _left_out(recorded: Decision) -> frozenset[str]:
    """What the result of a large request had no room for (`streams.evidence.within_bounds`): nothing can be held against it."""
    scores = frozenset({"best"} if recorded.chosen and not recorded.best else ())
    if recorded.rejections:  # Filters that reject nobody are counted, too, and no policy is without any.
        return scores
    return scores | {"rejections", "nearest_miss"} | (frozenset() if recorded.alternates else {"alternates"})


def _telling(decision: Decision) -> list[Weighed]:
    """Its best few without the weights that say nothing: earlier versions recorded those of weighers that are left out today."""
    return [replace(each, weights=tuple([w for w in each.weights if w.raw or w.multiplied])) for each in decision.best]


def _item(request: PlacementRequested, claim_id: str, items: Mapping[str, ClaimItem], policy: Policy, fleet: Fleet) -> ClaimItem:
    """An overlaid claim: from the log, or of this very request, whose claims may never have been appended."""
    if claim_id in items:
        return items[claim_id]
    prefix = f"{request.request_id}/"
    number = claim_id.removeprefix(prefix).split("/")[0]
    if claim_id.startswith(prefix) and number.isdecimal() and int(number) < request.count:
        ask = fleet.ask_seeded(request, int(number), seed=0, options=policy.options)
        return msgspec.structs.replace(ask.item, claim_id=claim_id)
    raise CannotRerun(_missing(claim_id))


def _missing(claim_id: str) -> str:
    name = claim_id or "a claim without a name"
    return f"{name} was laid over the decision and is not among the claims at hand; read `claims` from the cut on"


def _partition(fleet: Fleet, node_id: str) -> int:
    for ledger in fleet.ledgers:
        if node_id in ledger.nodes:
            return ledger.partition
    raise CannotRerun(f"node {node_id} is in no ledger at hand; fold all partitions to the decision's cut")
