"""What a scheduler keeps of requests it is answering: seats, works, cancellations and the desk of each partition it owns."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from projections.ledger import Ledger
from projections.node import Claim
from projections.placements import Asked, Cancel, Named, Placements
from projections.rules import SKEW_MS
from schemas.claims import ClaimItem, ReleaseReason
from schemas.partitioner import partition_of
from schemas.requests import PlacementRequested
from schemas.resources import Shortfall
from schemas.results import Decision, FailureReason, Placement
from streams.scheduling.keeping import has_to_keep

LATENCIES_KEPT = 10_000


class Seat(Struct, gc=False):
    """One claim of a work: `open` (to be decided), `sent` (not read back yet) or `held` (granted on `node_id`).

    Each instance has one, and one that leaves its node a second with `keeps`. `item` is what was claimed for it last.
    """

    index: int
    state: Literal["open", "sent", "held"] = "open"
    decision: Decision | None = None
    claim_id: str = ""
    partition: int = -1
    node_id: str = ""
    attempt: int = 0
    refused: tuple[Shortfall, ...] = ()
    keeps: bool = False
    item: ClaimItem | None = None

    def is_held_by(self, ledgers: Sequence[Ledger]) -> bool:
        """Whether its claim is still held where it was granted."""
        claim = ledgers[self.partition].claims.get(self.claim_id)
        return claim is not None and claim.node_id == self.node_id


def seats_of(request: PlacementRequested) -> list[Seat]:
    """The seats of a request: one an instance, and for a migration that can be reverted another one on the node that each leaves."""
    seats = [Seat(index) for index in range(request.count)]
    if has_to_keep(request):
        seats += [Seat(index, keeps=True) for index in range(request.count)]
    return seats


class Work(Struct):
    """One request taken up.

    `taken_up_ms` is on the clock of its results (`Desk.time_ms`), which says whether they are late.
    `taken_up_boot_ms` is on the boot-time clock, which neither steps nor stands still while the machine sleeps, `taken_up_awake_ms` on one
    that stands still while this scheduler is held up.

    `awaits` is the record about its group's home that is to be read back, `homes` how many of them it waited for, `proposed` the epoch of
    the last home that it proposed itself, `home` how that was chosen. `behind` are own claims in flight that may have been in its way, or
    were made for it before it was begun; `waits`: how often it waited for those in its way. `restarts`: how often it was begun again.
    `ends` are those of `claims` that the fold must have reached before it is refused, None as long as nobody read them; `is_stale`: it
    waits for that. `is_delayed`: it waits for room that others may give back in a moment, until `delayed_until_ms` on the boot-time clock
    at most (−1: it never did); it was decided last at `delayed_cut`, and is again from `delayed_again_ms` on if there is more.
    """

    asked: Asked
    taken_up_ms: int
    taken_up_boot_ms: int
    taken_up_awake_ms: int
    seats: list[Seat]
    ends: tuple[int, ...] | None
    desk: Desk
    result_sent: bool = False
    is_stale: bool = False
    late: bool = False
    awaits: str = ""
    homes: int = 0
    proposed: int = 0
    home: Decision | None = None
    behind: frozenset[str] = frozenset()
    waits: int = 0
    restarts: int = 0
    is_delayed: bool = False
    delayed_until_ms: int = -1
    delayed_cut: tuple[int, ...] = ()
    delayed_again_ms: int = 0

    def begin_again(self, now_ms: int, boot_ms: int, awake_ms: int) -> None:
        """Take it up once more, as a new owner would: with claims of its own, made from now on; the old ones go when they are not named."""
        self.taken_up_ms, self.taken_up_boot_ms, self.taken_up_awake_ms = self.desk.time_ms(now_ms), boot_ms, awake_ms
        self.late, self.awaits = False, ""
        self.behind = frozenset(seat.claim_id for seat in self.seats if seat.state == "sent")
        self.seats = seats_of(self.asked.request)
        self.restarts += 1

    @property
    def give_up_ms(self) -> int:
        """How long it may take: a quarter of the time that claims may stay unconfirmed, so that the rest is left for the start."""
        return self.asked.request.ttl_ms // 4

    @property
    def commit_by_ms(self) -> int:
        """When its result has to be appended to count."""
        return self.taken_up_ms + self.give_up_ms + SKEW_MS


def placements_of(work: Work, *, keeps: bool) -> list[Placement]:
    """The places that a work's result names: where its instances go, or those that they leave and keep."""
    return [
        Placement(
            instance_id=seat.item.instance_id,
            claim_id=seat.claim_id,
            partition=seat.partition,
            node_id=seat.node_id,
            resources=seat.item.resources,
        )
        for seat in work.seats
        if seat.keeps == keeps and seat.item is not None
    ]


class Cancelling(Struct):
    """A cancellation at work: first the failure that may count, or after a placement the releases (`releases`, by record id).

    `kept` are the places that its instances keep where they come from: they are released after all others, or not at all.
    """

    cancel: Cancel
    failure_sent: bool = False
    releases: set[str] | None = None
    kept: tuple[Named, ...] = ()


class Release(Struct, gc=False):
    """A release that is to be sent, or sent and not read back. `offset` is that of the request or cancellation it holds back, −1: none."""

    claim: Named
    reason: ReleaseReason
    offset: int
    sent: bool = False

    @property
    def record_id(self) -> str:
        """The same for every scheduler that sends it, so that copies are known for copies."""
        return f"{self.claim.claim_id}/{self.reason}"


class Filing(Struct, frozen=True):
    """Answers before `before_ms` that are to be filed away once the fold has reached `claims_ends`, which were read after these answers."""

    before_ms: int
    claims_ends: tuple[int, ...]


class Counters(Struct):
    """What a scheduler did since it started.

    `lost_races`: works whose request another owner's result answered first. `late_results`: own results that came too late to count.
    """

    placed: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    decisions: int = 0
    claims: int = 0
    conflicts: int = 0
    alternates_used: int = 0
    lost_races: int = 0
    late_results: int = 0
    releases: int = 0
    latencies_ms: deque[int] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))
    """From the append of a request to the append of its counting result, for own results."""

    def answered(self, reason: FailureReason | None, latency_ms: int) -> None:
        """An own result counts; `reason` is why it is a failure, None for a placement."""
        self.latencies_ms.append(latency_ms)
        if reason is None:
            self.placed += 1
        else:
            self.failed[reason] = self.failed.get(reason, 0) + 1


class Desk:
    """One owned partition of requests: its answers, what is open, and what stands in the way of a commit.

    `claims_ends` are those of `claims` when it was taken over: a fold that has not reached them may lack claims that were granted before.
    """

    def __init__(self, placements: Placements, claims_ends: tuple[int, ...]) -> None:
        self.placements, self.claims_ends = placements, claims_ends
        self.queue: deque[tuple[Asked, tuple[int, ...] | None]] = deque()
        """Requests not taken up, each with the ends of `claims` that the fold must have reached before it is taken up, if it must."""
        self.works: dict[str, Work] = {}
        self.cancels: dict[str, Cancelling] = {}
        self.releases: dict[str, Release] = {}
        self.held: dict[str, dict[str, Named]] = {}
        """Held claims of requests without counting result, by request and claim."""
        self.filing: Filing | None = None
        self.left: dict[str, frozenset[str]] = {}
        """Own claims for requests not taken up that were in flight when the partition was taken over: it was owned before."""

    def time_ms(self, now_ms: int) -> int:
        """Now by the append times of results, which never go back: after a writer whose clock was ahead they stand there."""
        return max(now_ms, self.placements.results_time_ms)

    def leave(self, laid: Collection[str]) -> None:
        """These own claims are in flight: what they are for waits until it is known what became of them."""
        for claim_id in laid:
            request_id = claim_id.rsplit("/", 2)[0]
            if request_id in self.placements.open:
                self.left[request_id] = self.left.get(request_id, frozenset()) | {claim_id}

    def held_claims(self, ledgers: Sequence[Ledger], request: PlacementRequested) -> list[Claim]:
        """What of a request is held already: for a former owner of the request, or from before it was begun again."""
        named = self.held.get(request.request_id, {})
        claims = [ledgers[each.partition].claims.get(each.claim_id) for each in named.values()]
        return [claim for claim in claims if claim is not None]

    def commit_offset(self) -> int:
        """Everything below is done with: answered, and its cancellation and loser releases read back."""
        placements = self.placements
        offsets = [placements.requests_next]
        for asked in placements.open.values():
            offsets.append(asked.offset)
            break  # They are in the order of the log.
        offsets += [cancelling.cancel.offset for cancelling in self.cancels.values()]
        offsets += [release.offset for release in self.releases.values() if release.offset >= 0]
        return min(offsets)

    def is_idle(self) -> bool:
        """Whether nothing is open."""
        return not (self.queue or self.works or self.cancels or self.releases)

    def granted(self, request_id: str, claim: Named, offset: int) -> None:
        """A claim of this partition's request is held since `offset`: remember it until the request is answered; a loser goes at once.

        Unless it may be the winner: who loses without a word of ours expires, since no guest is started under it. What is named by an
        answer that is filed away was granted below `claims_ends`, or was folded before that was filed away.
        """
        answer = self.placements.answers.get(request_id)
        if answer is None and offset >= self.claims_ends[claim.partition] and request_id in self.placements.filed:
            self.release(claim, "loser", -1)
        elif answer is None:
            self.held.setdefault(request_id, {})[claim.claim_id] = claim
        elif not answer.names(claim.claim_id) and answer.time_ms > self.placements.doubtful_ms:
            self.release(claim, "loser", -1)

    def closed(self, request_id: str, claim_id: str) -> None:
        """A claim is no longer held."""
        claims = self.held.get(request_id)
        if claims is not None and claims.pop(claim_id, None) is not None and not claims:
            del self.held[request_id]

    def release_losers(self, request_id: str, offset: int) -> None:
        """The request has its counting result: release what is held and not named."""
        answer = self.placements.answers[request_id]
        for claim in self.held.pop(request_id, {}).values():
            if not answer.names(claim.claim_id):
                self.release(claim, "loser", offset)

    def release(self, claim: Named, reason: ReleaseReason, offset: int) -> str:
        """Have the claim released; returns the id of the record."""
        release = Release(claim, reason, offset)
        self.releases.setdefault(release.record_id, release)
        return release.record_id


def desk_of(request_id: str, desks: Mapping[int, Desk], partitions: int) -> Desk | None:
    """The desk of the request's partition. Looked up first, because most requests are answered and a murmur2 costs microseconds."""
    for desk in desks.values():
        if request_id in desk.placements.answers:
            return desk
    return desks.get(partition_of(request_id.encode(), partitions))
