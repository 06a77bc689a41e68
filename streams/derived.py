"""The messages that the stream processor derives from records of `claims`: verdicts, rows of nodes, digests, snapshots.

Each stands in the partition of the ledger that it comes from, under its own key. Its id names the record of `claims` that it comes from,
so a batch published again has the same ids.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from schemas import topics
from schemas.codec import encode, event_type, key_of
from schemas.envelope import CONTENT_TYPE, SPEC_VERSION, TYPE_PREFIX
from schemas.results import ClaimOutcome
from streams.evidence import verdict_within_bounds
from streams.log.base import Headers, Message

_HEADERS = (("ce_specversion", SPEC_VERSION), ("ce_source", b"claimlog/folder"), ("content-type", CONTENT_TYPE))


def derived(topic: str, event: Any, number: int = 0, request_id: str = "") -> Message:
    """A derived record; `number` tells records of one origin apart. What comes of a request is correlated with it, by its id."""
    partition = event.partition
    constant, middle = _of_type(event_type(event))
    origin = f"{topics.CLAIMS}/{partition}@{event.offset}"
    own: Headers = (("ce_id", f"{origin}{middle}{number}".encode()), ("ce_causationid", origin.encode()))
    if request_id:
        own = (*own, ("ce_correlationid", request_id.encode()))
    return Message(topic, key_of(event) or b"", encode(event), constant + own, partition)


def verdict(outcome: ClaimOutcome, number: int) -> Message:
    """An outcome, with as many of its shortfalls as a derived record has room for."""
    message = derived(topics.VERDICTS, outcome, number, outcome.request_id)
    if len(message.value) > topics.DERIVED_BYTES_MAX:
        message = derived(topics.VERDICTS, verdict_within_bounds(outcome), number, outcome.request_id)
    return message


@cache
def _of_type(named: str) -> tuple[Headers, str]:
    """The headers that all records of this type have, and the middle of their ids."""
    return (*_HEADERS, ("ce_type", f"{TYPE_PREFIX}{named}".encode())), f"/{named}/"
