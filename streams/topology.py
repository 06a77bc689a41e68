"""Which step reads and writes what: read this first. Hosts (`runner` on SQLite, `app` on Kafka) run these same steps.

audits, lifecycle ──> carrier ──> claims ──> folder ──> verdicts, node-resources, snapshots, digests, findings
requests, results, claims ──> scheduler ──> claims, results, and in short which requests were answered
every other topic ──> watcher ──> dead-letters
"""

from __future__ import annotations

from msgspec import Struct

from schemas import topics

DERIVED_TOPICS = (topics.VERDICTS, topics.NODE_RESOURCES, topics.SNAPSHOTS, topics.FINDINGS, topics.DIGESTS)
WATCHED_TOPICS = (topics.REQUESTS, topics.RESULTS, *DERIVED_TOPICS, topics.ANSWERED)
"""Topics that no fold judges record by record: the watcher looks for what cannot be read there."""


class Wiring(Struct, frozen=True):
    """One step of the system."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    shared_by: str
    """The topic whose partitions are the work that processes share out."""


WIRING = (
    # An observation in, one record of `claims` out. A letter that is there already is not written again.
    Wiring(
        "carrier",
        (topics.AUDITS, topics.LIFECYCLE, topics.CLAIMS, topics.DEAD_LETTERS),
        (topics.CLAIMS, topics.DEAD_LETTERS),
        topics.STREAM_PARTITIONS,
    ),
    # The fold, and all that follows from it, but for letters and double claims that others have said. The newest verdict says how far a
    # processor came. Into `claims` goes that a node has fallen silent.
    Wiring(
        "folder",
        (topics.CLAIMS, topics.SNAPSHOTS, topics.DEAD_LETTERS, topics.FINDINGS, topics.VERDICTS),
        (*DERIVED_TOPICS, topics.DEAD_LETTERS, topics.CLAIMS),
        topics.STREAM_PARTITIONS,
    ),
    # Node rows that an owner of former times wrote behind the newer ones.
    Wiring("republisher", (topics.NODE_RESOURCES,), (topics.NODE_RESOURCES,), topics.STREAM_PARTITIONS),
    Wiring("watcher", (*WATCHED_TOPICS, topics.DEAD_LETTERS), (topics.DEAD_LETTERS,), topics.STREAM_PARTITIONS),
    # Every folding process has one. Who turns out to be wrong writes the snapshot of the right state.
    Wiring("digest-check", (topics.DIGESTS, topics.CLAIMS, topics.SNAPSHOTS), (topics.SNAPSHOTS,), topics.STREAM_PARTITIONS),
    Wiring(
        "scheduler",
        (topics.REQUESTS, topics.RESULTS, topics.CLAIMS, topics.SNAPSHOTS, topics.ANSWERED),
        (topics.CLAIMS, topics.RESULTS, topics.ANSWERED, topics.DIGESTS),
        topics.REQUESTS,
    ),
)
