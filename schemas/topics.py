"""The topic table: what stands on each topic, how it is keyed, cut into partitions and kept. The wiring of the whole system starts here."""

from typing import Any, Literal

from msgspec import Struct

from schemas.audits import AuditRecord
from schemas.claims import ClaimsRecord
from schemas.findings import FindingRecord
from schemas.lifecycle import LifecycleRecord
from schemas.requests import RequestRecord
from schemas.results import ClaimOutcome, LedgerDigest, NodeResources, RequestsAnswered, ResultRecord, SnapshotChunk

AUDITS = "hypervisor-audits"
LIFECYCLE = "instance-lifecycle"
CLAIMS = "claims"
REQUESTS = "placement-requests"
RESULTS = "placement-results"
ANSWERED = "answered-requests"
VERDICTS = "claim-verdicts"
NODE_RESOURCES = "node-resources"
SNAPSHOTS = "ledger-snapshots"
FINDINGS = "leak-findings"
DEAD_LETTERS = "dead-letters"
DIGESTS = "ledger-digests"
STREAM_PARTITIONS = "stream-partitions"
FOLDED = (CLAIMS, AUDITS, LIFECYCLE)
"""What answers about the ledger are folded from; a cut or a copy of a log may have more."""

KIB = 1024
DERIVED_BYTES_MAX = 900_000
"""Of what is said of records of 256 KiB each: it repeats their words, and Kafka's brokers let in a mebibyte."""


class Topic(Struct, frozen=True, kw_only=True):
    """One topic.

    `partitions` names the count it shares: `ledger` topics have equally many, and so do `requests` topics, so that what belongs together
    meets in partitions of one number. `kept`: `ever`; `derived` (can be made again); `compacted` (the newest of each key); `last-few`.
    """

    name: str
    key: str
    records: Any
    partitions: Literal["ledger", "requests", "one"]
    kept: Literal["ever", "derived", "compacted", "last-few", "nothing"]
    written_by: str
    value_bytes_max: int = 256 * KIB


TOPICS: dict[str, Topic] = {
    topic.name: topic
    for topic in (
        Topic(name=AUDITS, key="node", records=AuditRecord, partitions="ledger", kept="ever", written_by="producers"),
        Topic(name=LIFECYCLE, key="node", records=LifecycleRecord, partitions="ledger", kept="ever", written_by="producers"),
        Topic(
            name=CLAIMS,
            key="node or group",
            records=ClaimsRecord,
            partitions="ledger",
            kept="ever",
            written_by="reconciler, schedulers, operators",
        ),
        Topic(name=REQUESTS, key="request", records=RequestRecord, partitions="requests", kept="ever", written_by="anyone"),
        Topic(
            name=RESULTS,
            key="request",
            records=ResultRecord,
            partitions="requests",
            kept="ever",
            written_by="schedulers",
            value_bytes_max=DERIVED_BYTES_MAX,
        ),
        Topic(name=ANSWERED, key="partition", records=RequestsAnswered, partitions="requests", kept="derived", written_by="schedulers"),
        Topic(
            name=VERDICTS,
            key="node",
            records=ClaimOutcome,
            partitions="ledger",
            kept="derived",
            written_by="stream processor",
            value_bytes_max=DERIVED_BYTES_MAX,
        ),
        Topic(
            name=NODE_RESOURCES,
            key="node",
            records=NodeResources,
            partitions="ledger",
            kept="compacted",
            written_by="stream processor",
            value_bytes_max=DERIVED_BYTES_MAX,
        ),
        Topic(
            name=SNAPSHOTS,
            key="partition",
            records=SnapshotChunk,
            partitions="ledger",
            kept="last-few",
            written_by="stream processor",
            value_bytes_max=950_000,
        ),
        Topic(
            name=FINDINGS,
            key="finding",
            records=FindingRecord,
            partitions="ledger",
            kept="ever",
            written_by="stream processor",
            value_bytes_max=DERIVED_BYTES_MAX,
        ),
        Topic(
            name=DEAD_LETTERS,
            key="source position",
            records=None,
            partitions="one",
            kept="ever",
            written_by="stream processor",
            value_bytes_max=512 * KIB,
        ),
        Topic(
            name=DIGESTS,
            key="partition/process",
            records=LedgerDigest,
            partitions="ledger",
            kept="compacted",
            written_by="any folding process",
        ),
        Topic(name=STREAM_PARTITIONS, key="", records=None, partitions="ledger", kept="nothing", written_by="nobody"),
    )
}
"""Every topic by name. `dead-letters` holds original bytes, `stream-partitions` nothing: these two have no records of their own."""
MADE_AGAIN = frozenset({VERDICTS, NODE_RESOURCES, SNAPSHOTS, FINDINGS, DIGESTS, ANSWERED, STREAM_PARTITIONS})
"""Topics that may be deleted: `claimlog topics apply` makes them, and whoever writes there says again what counts. No copy has them."""
