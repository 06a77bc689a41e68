"""Requests that schedulers have gone past without an answer, for `claimlog doctor`: who sets their group forward skips them for ever."""

from __future__ import annotations

from collections.abc import Iterator

from projections.placements import Asked
from projections.reading import bare_reading
from schemas.topics import REQUESTS, RESULTS
from streams.cli.doctor.checks import Check
from streams.cli.printed import units
from streams.engines import not_told
from streams.log.base import Log, full_name_of
from streams.log.reading import READ_RECORDS
from streams.placement.history import begun
from streams.scheduler import GROUP


def skipped(log: Log) -> Iterator[Check]:
    """Says nothing where there are none: `schedulers` says how it stands then."""
    found = [(number, asked) for number, stored in sorted(log.committed(GROUP, REQUESTS).items()) for asked in _below(log, number, stored)]
    if not found:
        return
    (number, first), count = found[0], len(found)
    said = "1 request has" if count == 1 else f"{units.count(count)} requests have"
    says = (
        f"{said} no answer and will have none, as schedulers go on behind {'it' if count == 1 else 'them'}: somebody set their offsets "
        f"forward; the first is {first.request.request_id} at {REQUESTS}/{number}@{first.offset}"
    )
    yield Check("warn", "requests", says, _fix(log))


def _fix(log: Log) -> str:
    again = "ask each again: `claimlog place` with the same flags and `--request ID`"
    settings = getattr(log, "settings", None)
    if full_name_of(log) is None or settings is None:
        return again
    return (
        f"{again}. Or stop all schedulers, set group {settings.group(GROUP)} to the first offsets (`kafka-consumer-groups.sh "
        "--reset-offsets --to-earliest`) and start them: what has its answer is not placed again"
    )


def _below(log: Log, number: int, stored: int) -> list[Asked]:
    """The requests of a partition below the stored offset without a counting result, in order, but for those that were taken back.

    Nothing is stored beyond a request whose result was not read back, so what has just come is not among them. A request that was asked
    again, at or behind that offset, is answered there.
    """
    if stored > log.end(REQUESTS, number):
        return []  # That is discarded, and all is read again.
    read = bare_reading(log)
    # As a scheduler begins that knows of no offset: that leaves out what may have been answered by results which are gone.
    placements = begun(log, number, None, None, not_told)
    while records := read(RESULTS, number, placements.results_next, READ_RECORDS):
        for record in records:
            placements.apply_result(record.offset, record.time_ms, record.key, record.value)
    while records := read(REQUESTS, number, placements.requests_next, READ_RECORDS):
        for record in records:
            placements.apply_request(record.offset, record.time_ms, record.key, record.value)
            if record.offset >= stored:
                placements.open.pop(record.key.decode(errors="replace"), None)
    return [asked for asked in placements.open.values() if asked.request.request_id not in placements.cancels]
