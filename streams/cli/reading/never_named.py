"""What to say of a subject that no record names: a wrong name is told, and never answered with nothing."""

from __future__ import annotations

from projections.subjects import KINDS, Kind, Subject, mentions
from schemas.codec import Unreadable, decode_keyed
from schemas.topics import AUDITS, CLAIMS, FINDINGS, LIFECYCLE, REQUESTS, RESULTS, VERDICTS
from streams.cli.given.timegrammar import Moment
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.naming import Naming
from streams.cli.reading.records import Range, begins_late, records_of
from streams.log.base import Log
from streams.log.reading import READ_RECORDS

NAMING = (REQUESTS, AUDITS, LIFECYCLE, CLAIMS, VERDICTS, FINDINGS, RESULTS)
"""Topics whose records name nodes, instances and requests."""


def check_named(log: Log, subject: Subject, until: Moment | None = None) -> None:
    """Return if any record before `until` names the subject.

    Raises UsageProblem if none does, with the kind under which the name is known, if it is; AnswerIncomplete if records that might name it
    are not at hand.
    """
    within = Range(None, until).naming(log, NAMING)
    kinds = _kinds(log, subject, within)
    if subject.kind in kinds:
        return
    said = f"no record of this log{' before --until' if until is not None else ''} names {subject}"
    if late := begins_late(log, NAMING, within):
        raise AnswerIncomplete(f"{said}; {late[0]}")
    others = " and ".join(str(Subject(kind, subject.name)) for kind in KINDS if kind in kinds)
    raise UsageProblem(f"{said}" + (f"; there is {others}" if others else "; expected node/NODE, instance/INSTANCE or request/REQUEST"))


def _kinds(log: Log, subject: Subject, within: Range) -> set[Kind]:
    """The kinds of subjects under which records name this one; no more are looked for once its own kind is among them."""
    found: set[Kind] = set()
    naming = Naming([subject.name])
    for record in filter(naming.may_name, records_of(log, NAMING, within, READ_RECORDS)):
        event = decode_keyed(record.topic, record.key, record.value)
        if not isinstance(event, Unreadable):
            found |= {kind for kind in KINDS if kind not in found and mentions(event, Subject(kind, subject.name))}
        if subject.kind in found:
            break
    return found
