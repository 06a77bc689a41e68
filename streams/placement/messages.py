"""The messages a scheduler sends: claims, releases, results and its start, with their headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from schemas.claims import ITEMS_MAX, ClaimItem, ClaimReleased, ClaimRequested, GroupHomeClosed, GroupHomeProposed
from schemas.codec import encode, event_type, key_of
from schemas.envelope import CARRIED_CHARACTERS_MAX, TRACEPARENT, Envelope, Headers, to_headers
from schemas.requests import PlacementRequested
from schemas.results import Decision, FailureReason, InstancesPlaced, Placement, PlacementFailed, RequestsAnswered, SchedulerStarted
from schemas.topics import ANSWERED, CLAIMS, RESULTS, TOPICS
from streams.evidence import within_bounds
from streams.log.base import Message
from streams.placement.work import Release

CE_SOURCE = "claimlog/scheduler/"
MESSAGE_CHARACTERS_MAX = 2000


class Sender(Struct, frozen=True):
    """Who sends: the scheduler's process. `traces` has the trace context of open requests whose requesters gave one."""

    owner: str
    traces: dict[str, str] = field(default_factory=dict)

    def heard(self, request_id: str, headers: Headers) -> None:
        """Remember the trace that a request belongs to: all that is said for it until its result stands in the log belongs there, too."""
        for name, value in headers:
            if name == TRACEPARENT and len(value) <= CARRIED_CHARACTERS_MAX and value.isascii() and value.decode().isprintable():
                self.traces[request_id] = value.decode()

    def claims(self, request: PlacementRequested, partition: int, basis: int, items: Sequence[ClaimItem], now_ms: int) -> Iterator[Message]:
        """The claims of one request in one partition: one record, or several where one would be too large."""
        first = tuple(items[:ITEMS_MAX])
        record = ClaimRequested(request_id=request.request_id, owner=self.owner, basis=basis, ttl_ms=request.ttl_ms, items=first)
        value = encode(record)
        if len(items) > ITEMS_MAX or (len(value) > TOPICS[CLAIMS].value_bytes_max and len(items) > 1):
            half = min(len(items) // 2, ITEMS_MAX)
            yield from self.claims(request, partition, basis, items[:half], now_ms)
            yield from self.claims(request, partition, basis, items[half:], now_ms)
            return
        yield self._message(CLAIMS, record, value, items[0].claim_id, request.request_id, now_ms, partition)

    def release(self, release: Release, now_ms: int) -> Message:
        """A release of one claim."""
        claim = release.claim
        record = ClaimReleased(node_id=claim.node_id, record_id=release.record_id, claim_id=claim.claim_id, reason=release.reason)
        request_id = claim.claim_id.rsplit("/", 2)[0]
        return self._message(CLAIMS, record, encode(record), release.record_id, request_id, now_ms, claim.partition)

    def home(self, record: GroupHomeProposed | GroupHomeClosed, request_id: str, now_ms: int) -> Message:
        """A word on an affinity group's home, said for a request."""
        return self._message(CLAIMS, record, encode(record), record.record_id, request_id, now_ms)

    def placed(
        self,
        request_id: str,
        taken_up_ms: int,
        commit_by_ms: int,
        placements: Sequence[Placement],
        decisions: Sequence[Decision],
        now_ms: int,
        *,
        kept: Sequence[Placement] = (),
    ) -> Message:
        """The result that commits a placement; a failure where nobody could read it, since no evidence is left to be spared."""
        record, value = within_bounds(
            InstancesPlaced(
                request_id=request_id,
                owner=self.owner,
                taken_up_ms=taken_up_ms,
                commit_by_ms=commit_by_ms,
                placements=tuple(placements),
                decisions=tuple(decisions),
                kept=tuple(kept),
            )
        )
        if len(value) > TOPICS[RESULTS].value_bytes_max:
            problem = f"its result would have {_bytes_of(RESULTS, value)}: ask for fewer instances at once, or by shorter ids"
            return self.failed(request_id, taken_up_ms, "invalid", problem, (), now_ms)
        return self._message(RESULTS, record, value, f"{request_id}/placed/{self.owner}", request_id, now_ms)

    def failed(
        self, request_id: str, taken_up_ms: int, reason: FailureReason, message: str, decisions: Sequence[Decision], now_ms: int
    ) -> Message:
        """The result that ends a request without a placement."""
        record, value = within_bounds(
            PlacementFailed(
                request_id=request_id,
                owner=self.owner,
                taken_up_ms=taken_up_ms,
                reason=reason,
                message=message[:MESSAGE_CHARACTERS_MAX],
                decisions=tuple(decisions),
            )
        )
        return self._message(RESULTS, record, value, f"{request_id}/{reason}/{self.owner}", request_id, now_ms)

    def started(self, epoch: int, policy_digest: str, policy_text: str, version: str, now_ms: int) -> Message:
        """The record that says what `policy_digest` stands for."""
        record = SchedulerStarted(owner=self.owner, started_ms=epoch, policy_digest=policy_digest, policy=policy_text, version=version)
        return self._message(RESULTS, record, encode(record), f"{self.owner}-{epoch}", "", now_ms)

    def answered(self, record: RequestsAnswered, now_ms: int) -> Message:
        """What was filed away of one partition's requests."""
        event_id = f"{record.partition}/{record.last_offset}/{record.digest}"
        return self._message(ANSWERED, record, encode(record), event_id, "", now_ms, record.partition)

    def _message(
        self, topic: str, record: Struct, value: bytes, event_id: str, request_id: str, now_ms: int, partition: int | None = None
    ) -> Message:
        key = key_of(record)
        assert key is not None
        envelope = Envelope(
            event_id=event_id,
            event_type=event_type(record),
            source=CE_SOURCE + self.owner,
            time_ms=now_ms,
            subject=key.decode(),
            correlation_id=request_id,
            causation_id=request_id,
            traceparent=self.traces.get(request_id, ""),
        )
        return Message(topic, key, value, to_headers(envelope), partition)


def too_large(claims: Sequence[Message]) -> str:
    """Why the ledger would pass over one of these records, so that nobody heard what became of it; empty if it would not."""
    largest = max([message.value for message in claims], key=len)
    if len(largest) <= TOPICS[CLAIMS].value_bytes_max:
        return ""
    return f"the claim of one instance would have {_bytes_of(CLAIMS, largest)}: ask for less of devices and cells, or in fewer words"


def _bytes_of(topic: str, value: bytes) -> str:
    return f"{len(value)} bytes, of {TOPICS[topic].value_bytes_max} that a record may have"
