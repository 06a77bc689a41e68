"""The moment of `--at`, `--since` or `--until`, refused in words where it is none."""

from __future__ import annotations

from streams.cli.given.timegrammar import Instant, Moment, MomentError, parse
from streams.cli.printed import units
from streams.cli.problems import AnswerIncomplete, UsageProblem

AHEAD_MS_MAX = 60_000
"""A broker's clock, whose times people copy from answers, may be so much ahead of ours."""


def moment(text: str, now_ms: int) -> Moment:
    """The moment of `--at`, `--since` or `--until`. Raises UsageProblem."""
    try:
        return parse(text, now_ms)
    except MomentError as problem:
        raise UsageProblem(str(problem)) from None


def past_moment(text: str, now_ms: int) -> Moment:
    """As `moment`. Raises AnswerIncomplete for a time that has not come: of it no record can say anything yet."""
    found = moment(text, now_ms)
    if isinstance(found, Instant) and found.time_ms > now_ms + AHEAD_MS_MAX:
        raise AnswerIncomplete(f"{text} is {units.moment(found.time_ms)}, which has not come yet; for the end of the log write now")
    return found
