"""Placement: requests in, claims and results out. A pure state machine: no clock, no log; the shell is `streams.scheduler`.

The rules (docs/architecture.md, "Placing an instance"):

- A claim is a proposal, the fold's verdict on it the answer; a refused one is decided again on the newer fold.
- The result is the commit point. It is written when all claims of the request are held, and acted on when it is read back and counts.
- Claims are released only after the request's counting result was read and does not name them. A failure is a result first.
- A cancellation acts by becoming the counting failure, or after a placement as a release with reason `cancelled`.
- Members of an affinity group are claimed on their group's home only; that it is one is read back first (`homes`).
- What is not read back is not done: it stays laid over the fold, is sent again byte for byte, and holds the commit back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import ge

import msgspec

from projections.ledger_state import Step
from projections.placements import Answered, Asked, Cancel, Named, Placements
from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested, GroupHomeClosed, GroupHomeProposed
from schemas.ids import claim_id as make_claim_id
from schemas.requests import PlacementRequested
from schemas.results import ClaimOutcome, Decision, FailureReason, Placement
from streams.evidence import shortened
from streams.log.base import Message
from streams.placement.cancels import cancelled, released
from streams.placement.checks import gave_up, no_valid_node, unfit
from streams.placement.homes import Chosen, Homes
from streams.placement.messages import Sender, too_large
from streams.placement.unsettled import Unsettled
from streams.placement.work import Cancelling, Counters, Desk, Seat, Work, desk_of, placements_of, seats_of
from streams.scheduling.fleet import Fleet, GroupHome
from streams.scheduling.holding import choose, nodes_begun, nodes_held
from streams.scheduling.keeping import kept_item, refused_move
from streams.scheduling.limits import claimed
from streams.scheduling.overlay import InFlight
from streams.scheduling.policy import Policy, digest
from streams.scheduling.select import Engine

# Works of one partition in flight at once: enough to fill a batch, few enough that every request is answered soon after it is taken up.
WORKS_MAX = 512
# Decisions of one turn at first: the batch that shares one append. The shell makes it larger or smaller by how long a turn takes.
DECISIONS_PER_TURN = 64
# One instance is decided at most this often; a conflict is rare and a second one in a row rarer.
ATTEMPTS_MAX = 20
# What lies between two turns beyond this is no time that a request was worked on: the process was stopped, or starved by others.
PAUSE_MS_MAX = 1000
# A scheduler that was held up begins a request again, as a new owner of it would; one that is held up again and again gives up.
RESTARTS_MAX = 3

_CLOSING = frozenset({"released", "departed", "deleted", "expired", "vanished"})


class Placer:
    """One scheduler's state. `fleet` reads ledgers that the caller folds; every folded step is to be told to `folded`."""

    def __init__(self, owner: str, epoch: int, fleet: Fleet, policy: Policy, engine: Engine, request_partitions: int) -> None:
        self.owner = owner
        self.epoch = epoch
        self.process = f"{owner}-{epoch}"
        self.fleet = fleet
        self.policy = policy
        self.policy_digest = digest(policy)
        self.counters = Counters()
        self.desks: dict[int, Desk] = {}
        self._engine = engine
        self._request_partitions = request_partitions
        self.sender = Sender(owner)
        self._homes = Homes(fleet, self.sender)
        self._unsettled = Unsettled(fleet)
        self._sent: dict[str, tuple[Work, Seat]] = {}
        self._in_flight = InFlight(self.process)
        self._counter = 0
        self._decided_before = self._turn = 0
        self.decisions_per_turn = DECISIONS_PER_TURN
        self.wants_ends = False
        """Whether a request waits for the ends of `claims`: see `ends_are`."""
        self._acted_ms = self._awake_ms = 0

    def own(self, partition: int, placements: Placements, claims_ends: Sequence[int], committed: int = 0) -> None:
        """Take over a partition of requests. `placements` must hold every result up to the end, `claims_ends` be read after that.

        Cancellations below `committed` are done with: their releases were read back. Afterwards tell `look_for_losers` once of all that
        were taken over together.
        """
        desk = self.desks[partition] = Desk(placements, tuple(claims_ends))
        desk.queue.extend((asked, tuple(claims_ends)) for asked in placements.open.values())
        due = [cancel for cancel in placements.cancels.values() if cancel.offset >= committed]
        desk.cancels.update((cancel.request_id, Cancelling(cancel)) for cancel in due)
        desk.leave(self.fleet.laid())

    def look_for_losers(self, partitions: Collection[int]) -> None:
        """Go through all held claims for those of requests of these partitions: a former owner may have left some that nobody names."""
        fresh = {partition: desk for partition, desk in self.desks.items() if partition in partitions}
        for ledger in self.fleet.ledgers:
            for claim in ledger.claims.values():
                desk = desk_of(claim.request_id, fresh, self._request_partitions)
                if desk is not None:
                    desk.granted(claim.request_id, Named(claim.claim_id, ledger.partition, claim.node_id), claim.offset)

    def disown(self, partition: int) -> None:
        """Let go of a partition: its new owner answers with claims of its own, and releases ours if they are not named."""
        desk = self.desks.pop(partition, None)
        for work in desk.works.values() if desk is not None else ():
            self._forget(work)

    def asked(self, partition: int, found: Asked | Cancel, claims_ends: Sequence[int] | None = None) -> None:
        """A request or cancellation was read. `claims_ends`: the ends of `claims`, read afterwards: nothing is decided before that fold.

        Without them it is decided at once; where it would be refused, or has few nodes to fall back on, they are asked for (`wants_ends`).
        """
        desk = self.desks[partition]
        if isinstance(found, Asked):
            desk.queue.append((found, None if claims_ends is None else tuple(claims_ends)))
        else:
            desk.cancels.setdefault(found.request_id, Cancelling(found))

    def ends_are(self, claims_ends: Sequence[int]) -> None:
        """The ends of `claims`, read after `wants_ends` was found to be true."""
        self.wants_ends = False
        for desk in self.desks.values():
            for work in desk.works.values():
                if work.ends is None:
                    work.ends = tuple(claims_ends)

    def answered(self, partition: int, answered: Answered) -> None:
        """A result was read and folded."""
        desk, answer = self.desks[partition], answered.answer
        work = desk.works.get(answer.request_id)
        if not answered.counts:
            if answer.late and work is not None and answer.owner == self.owner:
                work.late = True
                work.result_sent = False
                self.counters.late_results += 1
            return
        if answer.owner == self.owner and answered.asked is not None:
            self.counters.answered(answer.reason, answer.time_ms - answered.asked.time_ms)
        if work is not None:
            self.counters.lost_races += answer.owner != self.owner
            self._forget(desk.works.pop(answer.request_id))
        desk.release_losers(answer.request_id, answered.asked.offset if answered.asked is not None else -1)

    def folded(self, partition: int, step: Step) -> None:
        """A record of `claims` was folded: an own claim's verdict, a release read back, somebody else's claim."""
        self.fleet.touch(partition, step.node_ids)
        event = step.event
        if type(event) is ClaimRequested:
            self._unsettled.claimed(partition, event)
            for item in event.items if event.owner == self.owner else ():
                self._lift(item)
        elif type(event) is ClaimReleased:
            for desk in self.desks.values():
                desk.releases.pop(event.record_id, None)
        elif type(event) is GroupHomeProposed or type(event) is GroupHomeClosed:
            self._homes.read_back(event.record_id)
        self._unsettled.became(step.outcomes, self._acted_ms)
        for outcome in step.outcomes:
            self._outcome(partition, step.offset, outcome)

    def act(self, now_ms: int, boot_ms: int) -> list[Message]:
        """Everything that is to be appended now, in order. `now_ms` is the wall clock, `boot_ms` a clock that only runs."""
        messages: list[Message] = []
        self._decided_before = self.counters.decisions
        self._awake_ms += min(max(boot_ms - self._acted_ms, 0), PAUSE_MS_MAX)
        self._acted_ms = boot_ms
        for desk in self.desks.values():
            messages.extend(cancelled(desk, self.sender, self._evidence, now_ms, ledgers=self.fleet.ledgers, is_folded=self._is_folded))
            for work in list(desk.works.values()):
                if not work.result_sent:
                    messages.extend(self._go_on(work, now_ms, boot_ms))
            messages.extend(released(desk, self.sender, self.counters, now_ms))
        # The desk that comes first may fill the batch: each turn another one does.
        desks = list(self.desks.values())
        self._turn = (self._turn + 1) % max(len(desks), 1)
        for desk in desks[self._turn :] + desks[: self._turn]:
            messages.extend(self._take_up(desk, now_ms, boot_ms))
        return messages

    def commit_offsets(self) -> dict[int, int]:
        """The next offset of each owned partition of requests that a new owner would have to start at."""
        return {partition: desk.commit_offset() for partition, desk in self.desks.items()}

    def is_idle(self) -> bool:
        """Whether nothing is open in any owned partition."""
        return all(desk.is_idle() for desk in self.desks.values())

    def may_act(self) -> bool:
        """Whether `act` may have something to send without anything more being read: requests wait that a full batch left over."""
        return any(desk.queue for desk in self.desks.values())

    def _outcome(self, partition: int, offset: int, outcome: ClaimOutcome) -> None:
        kind, claim_id = outcome.outcome, outcome.claim_id
        if kind == "granted":
            if (sent := self._sent.pop(claim_id, None)) is not None:
                _, seat = sent
                seat.state, seat.node_id, seat.partition = "held", outcome.node_id, partition
                self.counters.alternates_used += seat.decision is not None and seat.decision.chosen != outcome.node_id
            if (desk := desk_of(outcome.request_id, self.desks, self._request_partitions)) is not None:
                desk.granted(outcome.request_id, Named(claim_id, partition, outcome.node_id), offset)
        elif kind == "refused":
            if (sent := self._sent.pop(claim_id, None)) is not None:
                work, seat = sent
                work.ends = None  # Others are at work: what they claimed elsewhere meanwhile is folded before it is refused.
                seat.state, seat.refused = "open", outcome.shortfalls[0] if outcome.shortfalls else ()
                self.counters.conflicts += 1
        elif kind in _CLOSING and (desk := desk_of(outcome.request_id, self.desks, self._request_partitions)) is not None:
            desk.closed(outcome.request_id, claim_id)

    def _take_up(self, desk: Desk, now_ms: int, boot_ms: int) -> Iterator[Message]:
        """Begin with waiting requests whose fold is fresh enough, as many as fit one batch."""
        enough = self._decided_before + self.decisions_per_turn
        while desk.queue and len(desk.works) < WORKS_MAX and self.counters.decisions < enough:
            asked, ends = desk.queue[0]
            if ends is not None and not self._is_folded(ends):
                return
            desk.queue.popleft()
            request = asked.request
            if request.request_id not in desk.placements.open or request.request_id in desk.cancels:
                continue  # Answered in the meantime, or cancelled before it was taken up.
            work = Work(asked, desk.time_ms(now_ms), boot_ms, self._awake_ms, seats_of(request), ends, desk)
            work.behind = desk.left.pop(request.request_id, work.behind)
            desk.works[request.request_id] = work
            problem = unfit(request, self.policy, self.owner, self.epoch, self.fleet)
            if problem:
                yield self._fail(work, "invalid", problem, now_ms)
            elif not self.fleet.is_any_laid(work.behind):
                yield from self._decide(work, work.seats, now_ms)

    def _go_on(self, work: Work, now_ms: int, boot_ms: int) -> Iterable[Message]:
        """What a work needs next: give up, decide refused seats again, or commit."""
        if work.late or boot_ms - work.taken_up_boot_ms > work.give_up_ms:
            if work.restarts >= RESTARTS_MAX or not (work.late or self._awake_ms - work.taken_up_awake_ms <= work.give_up_ms):
                return [self._fail(work, "gave-up", gave_up(work), now_ms)]
            self._forget(work)
            work.begin_again(now_ms, boot_ms, self._awake_ms)
        if self._homes.is_awaited(work) or self.fleet.is_any_laid(work.behind) or (work.is_stale and self._is_stale(work)):
            return ()
        if work.is_delayed and self._unsettled.is_to_wait(work, boot_ms):
            return ()
        for seat in work.seats:
            if seat.state == "held" and not seat.is_held_by(self.fleet.ledgers):
                seat.state = "open"  # It was closed since: expired, or released by an operator.
        undecided = [seat for seat in work.seats if seat.state == "open"]
        if undecided:
            return self._decide(work, undecided, now_ms)
        if all(seat.state == "held" for seat in work.seats):
            # All claims are held in this fold: write the result that makes them a placement.
            return [self._placed(work, placements_of(work, keeps=False), now_ms, placements_of(work, keeps=True))]
        return ()

    def _decide(self, work: Work, seats: Sequence[Seat], now_ms: int) -> Iterable[Message]:
        """Choose a node for each seat, each choice laid over the fold for the next, and claim them; or fail if one has none."""
        request = work.asked.request
        self._homes.let_go(work)
        for seat in seats:
            seat.decision = None  # The evidence of a failure is what failed now, not what was thought of the seats behind it before.
        if request.dry_run and self._is_stale(work):
            return []
        homeless = self._homes.to_find(request)
        if homeless is not None:
            return self._find_home(work, homeless, now_ms)
        items: dict[int, list[ClaimItem]] = {}
        for seat in seats:
            if seat.attempt >= ATTEMPTS_MAX:
                lacks = "; ".join(map(str, seat.refused))
                return self._refuse(work, items, "refused", f"instance {seat.index}: refused {ATTEMPTS_MAX} times, last: {lacks}", now_ms)
            if seat.keeps and self._keep(request, seat, items):
                continue
            decision, wanted = self._choose(work, work.seats[seat.index])
            if not decision.chosen:
                self._lift_all(items)
                return self._no_place(work, seat, decision, now_ms)
            few = len(decision.alternates) < self.policy.alternates_max
            if (few and self._is_stale(work)) or self._homes.keeps_from(work, seat, Chosen(decision, wanted), self._choose):
                self._lift_all(items)  # Too few to fall back on: others may be after the same ones, so their claims are folded first.
                return []
            seat.partition = self.fleet.partition_of_node(decision.chosen)
            seat.claim_id = self._claim_id(request, seat.index)
            item = seat.item = msgspec.structs.replace(wanted, claim_id=seat.claim_id)
            self.fleet.lay(item, decision.chosen, seat.partition)
            self._in_flight.lay(seat.claim_id, self._counter)
            items.setdefault(seat.partition, []).append(item)
        if request.dry_run:
            self._lift_all(items)
            return [self._placed(work, (), now_ms)]
        bases = {partition: self.fleet.ledgers[partition].next_offset - 1 for partition in sorted(items)}
        messages = [message for p, basis in bases.items() for message in self.sender.claims(request, p, basis, items[p], now_ms)]
        if problem := too_large(messages):
            return self._refuse(work, items, "invalid", problem, now_ms)
        for seat in seats:
            seat.state = "sent"
            seat.attempt += 1
            self._sent[seat.claim_id] = (work, seat)
        self.counters.claims += len(seats)
        return messages

    def _refuse(self, work: Work, items: dict[int, list[ClaimItem]], reason: FailureReason, message: str, now_ms: int) -> list[Message]:
        self._lift_all(items)
        return [] if self._is_stale(work) else [self._fail(work, reason, message, now_ms)]

    def _find_home(self, work: Work, home: GroupHome, now_ms: int) -> list[Message]:
        """The group has no open home: choose a node that takes all of the request, and propose it; what is read back is the home."""
        request, seat = work.asked.request, work.seats[0]
        if self._homes.joins(work, home.epoch):
            return []
        if work.homes >= ATTEMPTS_MAX:
            return [self._fail(work, "refused", f"its group had no home for long enough: {ATTEMPTS_MAX} homes were closed again", now_ms)]
        chosen = Chosen(*self._choose(work, seat))
        if not chosen.decision.chosen:
            return self._no_place(work, seat, chosen.decision, now_ms)
        chosen = self._homes.beside(work, seat, chosen, self._choose)
        if not chosen.decision.chosen:
            return []
        work.homes += 1
        return [self._homes.propose(work, home.epoch, chosen, f"{self._claim_id(request, 0)}/home", now_ms)]

    def _no_place(self, work: Work, seat: Seat, decision: Decision, now_ms: int) -> list[Message]:
        """An instance fits nowhere, or is refused. A failure, unless own claims in flight may be in the way or its group may move.

        Claims are laid over their first node and may be granted on another: what they leave no room for is decided again without them.
        """
        request, in_flight = work.asked.request, self.fleet.laid()
        if problem := refused_move(self.fleet, request, seat.index):
            return self._refuse(work, {}, "refused", problem, now_ms)
        if in_flight and work.waits < ATTEMPTS_MAX:
            work.waits += 1
            work.behind = in_flight
            return []
        if self._is_stale(work) or self._unsettled.delay(work, self._acted_ms):
            return []
        home = self._homes.to_leave(work)
        if home is None or work.homes >= ATTEMPTS_MAX:
            return [self._fail(work, "no-valid-node", no_valid_node(request, seat.index, decision, self.fleet.is_known), now_ms)]
        return self._homes.close(work, home, f"{self._claim_id(request, 0)}/home", now_ms)

    def _choose(self, work: Work, seat: Seat) -> tuple[Decision, ClaimItem]:
        """The decision for a seat, and what is to be claimed by it: where its request holds it already, as long as that will do."""
        request = work.asked.request
        ask = self.fleet.ask(request, seat.index, owner=self.owner, attempt=seat.attempt + 1, options=self.policy.options)
        claims = work.desk.held_claims(self.fleet.ledgers, request)
        ask = ask.unless(refused_move(self.fleet, request, seat.index)).begun_on(nodes_begun(claims, request))
        ask, decision = choose(self._engine, self.fleet, ask, self.policy, self.policy_digest, nodes_held(claims, request, seat.index))
        if seat.refused or decision.overlay:
            decision = msgspec.structs.replace(decision, overlay=self._in_flight.texts(), refused=seat.refused)
        seat.decision = decision
        self.counters.decisions += 1
        return decision, claimed(self.fleet, ask, self.policy, decision) if decision.chosen else ask.item

    def _keep(self, request: PlacementRequested, seat: Seat, items: dict[int, list[ClaimItem]]) -> bool:
        """Claim what an instance uses on the node that it leaves. Where that is nothing, its own decision is to say so: no node will do."""
        if (item := kept_item(self.fleet, request, seat.index)) is None:
            return False
        seat.partition, seat.claim_id = self.fleet.partition_of_node(request.source_node), self._claim_id(request, seat.index)
        seat.item = msgspec.structs.replace(item, claim_id=seat.claim_id)
        items.setdefault(seat.partition, []).append(seat.item)
        return True

    def _placed(self, work: Work, placements: Sequence[Placement], now_ms: int, kept: Sequence[Placement] = ()) -> Message:
        work.result_sent = True
        request_id = work.asked.request.request_id
        return self.sender.placed(request_id, work.taken_up_ms, work.commit_by_ms, placements, self._evidence(work), now_ms, kept=kept)

    def _fail(self, work: Work, reason: FailureReason, message: str, now_ms: int) -> Message:
        work.result_sent = True
        decisions = () if reason == "invalid" else self._evidence(work)  # Nothing that was decided has to do with it.
        return self.sender.failed(work.asked.request.request_id, work.taken_up_ms, reason, message, decisions, now_ms)

    def _is_folded(self, ends: Sequence[int]) -> bool:
        return all(map(ge, self.fleet.cut, ends))

    def _is_stale(self, work: Work) -> bool:
        """Whether the fold may lack what was there when the request was read: then it is not refused, but decided again when it has it."""
        self.wants_ends |= work.ends is None
        work.is_stale = work.ends is None or not self._is_folded(work.ends)
        return work.is_stale

    def _lift(self, item: ClaimItem) -> None:
        self.fleet.lift(item.claim_id)
        self._in_flight.lift(item.claim_id)

    def _lift_all(self, items: dict[int, list[ClaimItem]]) -> None:
        for each in items.values():
            for item in each:
                self._lift(item)

    def _evidence(self, work: Work) -> tuple[Decision, ...]:
        made = [(seat.decision, seat.claim_id) for seat in work.seats if seat.decision is not None]
        return (*self._homes.own_choice(work), *shortened([each for each, _ in made], [claim_id for _, claim_id in made], self.process))

    def _forget(self, work: Work) -> None:
        """The work is over. Claims in flight stay laid over the fold until they are read back."""
        self._homes.let_go(work)
        for seat in work.seats:
            self._sent.pop(seat.claim_id, None)

    def _claim_id(self, request: PlacementRequested, index: int) -> str:
        self._counter += 1
        return make_claim_id(request.request_id, index, self.owner, self.epoch, self._counter)
