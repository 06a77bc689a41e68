"""A recorded decision made again on the records it was made on: the same choice or not, and every filter's word on every node."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from projections.cut import Cut, CutError
from projections.ledger import Ledger
from projections.reading import ProjectionError, between
from schemas.claims import ClaimItem, ClaimRequested
from schemas.codec import decode
from schemas.requests import PlacementRequested
from schemas.results import Decision
from schemas.topics import CLAIMS
from streams.cli.given.node_names import unknown_node
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.answers import policy_text
from streams.cli.reading.state_at import state_at
from streams.log.base import Log, OffsetOutOfRange
from streams.log.reading import READ_RECORDS
from streams.scheduling.custom_error import CustomError
from streams.scheduling.explain import CannotRerun, Laid, asked_again, named_in_log, rerun_on
from streams.scheduling.fleet import Fleet
from streams.scheduling.loading import NotVouchedFor, PolicyError, from_text
from streams.scheduling.matrix import Matrix, Without, matrix, without_each
from streams.scheduling.overlay import Named
from streams.scheduling.policy import DEFAULT, Policy
from streams.scheduling.supply import Supply, supplies, supplies_on

# How far behind the cut overlaid claims are looked for: they were in flight, so they follow within a turn or two.
BEHIND_THE_CUT_MAX = 50_000


class Again(Struct, frozen=True, kw_only=True):
    """A decision made again. `same` is None if it could not be, and then there is nothing else; `told` says how it went.

    `matrix` has every filter's word on every node, `supplies` what there is of each resource asked for, and `on_node` on the node that the
    answer is about; `without` has the choice without each weigher, `policy` is the one it was made by. `whole` is the decision with what
    its result had no room for.
    """

    same: bool | None
    told: str
    policy: Policy = DEFAULT
    differences: tuple[str, ...] = ()
    matrix: Matrix | None = None
    supplies: tuple[Supply, ...] = ()
    on_node: tuple[Supply, ...] = ()
    without: tuple[Without, ...] = ()
    whole: Decision | None = None


class Reruns:
    """Makes decisions of one request again; those of one cut share a fold.

    `trusted` are the names of code from outside that may be run if a policy in the log names them: whoever asks has named them too.
    """

    def __init__(self, log: Log, request: PlacementRequested, trusted: Collection[str] = ()) -> None:
        self._log = log
        self._request = request
        self._trusted = trusted
        self._ledgers: dict[tuple[int, ...], list[Ledger]] = {}
        self._policies: dict[str, tuple[Policy, str]] = {}
        self._numbers: dict[str, int] = {}
        self._laid = Laid(request)
        self._named: tuple[tuple[int, ...], tuple[str, ...]] | None = None
        self._items: dict[str, ClaimItem] = {}

    def again(self, decision: Decision, node: str = "", *, in_words: bool = False) -> Again:
        """Make one decision, its overlay spelled out, again; `node` is one that the answer will be about.

        `in_words` leaves out the supplies of one that found a node: nobody is told of them.
        Raises UsageProblem if that was not known then, AnswerIncomplete for it where the records are not at hand.
        """
        index = self._index_of(decision)
        try:
            policy, written = self._policy(decision)
            fleet = self.fleet(decision, self.folded(decision), policy)
            done = rerun_on(fleet, self._request, index, decision, policy, written)
        except (CannotRerun, PolicyError, CustomError, CutError, OffsetOutOfRange, AnswerIncomplete, ProjectionError) as problem:
            if node:
                raise AnswerIncomplete(f"the decision cannot be made again: {problem}") from None
            return Again(same=None, told=f"it cannot be made again: {problem}")
        told = "made again, it gives the same choice" if done.same else f"MADE AGAIN, IT DIFFERS in {', '.join(done.differences)}"
        ask = asked_again(fleet, self._request, index, decision, policy)
        made = matrix(fleet, ask, policy)
        if node and made.of(node) is None:
            raise UsageProblem(f"at the decision's cut {unknown_node(node, [line.node_id for line in made.lines])}")
        return Again(
            same=done.same,
            told=told,
            policy=policy,
            differences=done.differences,
            matrix=made,
            supplies=() if in_words and decision.chosen else supplies(fleet, ask),
            on_node=supplies_on(fleet, ask, node) if node else (),
            without=tuple(without_each(fleet, ask, policy, done.again)),
            whole=done.whole,
        )

    def folded(self, decision: Decision) -> list[Ledger]:
        """The ledgers at the decision's cut. Raises CannotRerun, and as `state_at` does."""
        if not decision.cut:
            raise CannotRerun("no cut is recorded with it")
        if len(decision.cut) != (partitions := self._log.topics().get(CLAIMS, 0)):
            raise CannotRerun(f"it was decided on {len(decision.cut)} partitions of {CLAIMS}, this log has {partitions}")
        if decision.cut not in self._ledgers:
            cut = Cut.of({(CLAIMS, number): end for number, end in enumerate(decision.cut)})
            state = state_at(self._log, cut, views=False, pending=False)
            self._ledgers[decision.cut] = list(state.ledgers.values())
        return self._ledgers[decision.cut]

    def fleet(self, decision: Decision, ledgers: list[Ledger], policy: Policy) -> Fleet:
        """The fleet as the decision saw it, until the next is asked for. Raises CannotRerun, and as the log does."""
        named = decision.cut, named_in_log(self._request, decision.overlay)
        if named != self._named:
            self._named, self._items = named, overlaid(self._log, *named)
        return self._laid.under(ledgers, decision, self._items, policy)

    def policy(self, decision: Decision) -> Policy:
        """The policy it was made by. Raises CannotRerun, PolicyError."""
        return self._policy(decision)[0]

    def policy_or_default(self, decision: Decision) -> Policy:
        """The same; the default one where its text is not at hand."""
        try:
            return self.policy(decision)
        except (CannotRerun, PolicyError):
            return DEFAULT

    def _index_of(self, decision: Decision) -> int:
        """The number of its instance in the request."""
        if not self._numbers:
            self._numbers = {self._request.instance(index): index for index in range(self._request.count)}
        return self._numbers.get(decision.instance_id, 0)

    def _policy(self, decision: Decision) -> tuple[Policy, str]:
        """It and its text as it was written."""
        if decision.policy_digest not in self._policies:
            text = policy_text(self._log, decision.policy_digest)
            if text is None:
                raise CannotRerun(f"the text of its policy {decision.policy_digest} is not at hand")
            try:
                self._policies[decision.policy_digest] = (from_text(text, trusted=self._trusted), text)
            except NotVouchedFor as problem:
                raise NotVouchedFor(f"{problem}; a policy file that names it, given with --by, vouches for it") from None
        return self._policies[decision.policy_digest]


def overlaid(log: Log, cut: tuple[int, ...], overlay: Sequence[str]) -> dict[str, ClaimItem]:
    """The overlaid claims by id, as they were appended behind the cut; own ones that never were are missing."""
    wanted = Named(overlay)
    items: dict[str, ClaimItem] = {}
    for number, end in enumerate(cut):
        for record in between(log, CLAIMS, number, end, min(log.end(CLAIMS, number), end + BEHIND_THE_CUT_MAX), READ_RECORDS):
            if len(items) == wanted.size:
                break
            event = decode(CLAIMS, record.value)
            if isinstance(event, ClaimRequested):
                items |= {item.claim_id: item for item in event.items if item.claim_id in wanted}
    return items
