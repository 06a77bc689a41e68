"""One grammar for every moment on the command line: `--at`, `--since`, `--until`.

    2026-11-21T10:42:07Z   RFC 3339, with its offset; seconds and fractions may be left out, fractions below a millisecond are dropped
    2026-11-21             that day's first moment, UTC
    -2h  -1d12h  +30s      from now; d h m s ms
    1795257727  ...113     unix seconds (a fraction may follow) or milliseconds
    now
    cut:...                an exact place in the log, from any answer

Everything is UTC and explicit, so that a line copied from one terminal means the same in another.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import assert_never

from msgspec import Struct

from projections.cut import PREFIX, Cut, CutError
from streams.cli.given.units_in import length_ms
from streams.cli.printed import units

GRAMMAR = "2026-11-21T10:42:07Z, 2026-11-21, -2h, unix seconds or milliseconds, now, cut:..."

# Up to this many digits a number is seconds (until the year 5138), above it milliseconds (since 1973).
_SECONDS_DIGITS_MAX = 11

_RELATIVE = re.compile(r"([+-])((?:\d{1,15}(?:d|h|ms|m|s))+)", re.ASCII)
_UNIX = re.compile(r"(\d{1,15})(?:\.(\d+))?", re.ASCII)
# A year, month, day, minute or second without hyphens; as unix time these lie in 1970, 1976 and 2612.
_WITHOUT_HYPHENS = re.compile(r"(?:19|20)(?:\d\d|\d{4}|\d{6}|\d{10}|\d{12})", re.ASCII)
_RFC_3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class Instant(Struct, frozen=True):
    """A time: milliseconds since 1970, UTC."""

    time_ms: int


Moment = Instant | Cut


class MomentError(ValueError):
    """A text that is no moment; the message says how to write one."""


def parse(text: str, now_ms: int) -> Moment:
    """The moment that `text` names; `now_ms` is the time relative ones count from. Raises MomentError."""
    text = text.strip()
    if text.startswith(PREFIX):
        try:
            return Cut.parse(text)
        except CutError as problem:
            raise MomentError(str(problem)) from None
    time_ms = _time_ms(text, now_ms)
    if not 0 <= time_ms <= units.MOMENT_MS_MAX:
        raise MomentError(f"{text!r} is before 1970 or after 9999")
    return Instant(time_ms)


def written(moment: Moment) -> str:
    """A text that `parse` reads as `moment` again, whenever it is read."""
    match moment:
        case Cut():
            return str(moment)
        case Instant(time_ms):
            return units.moment(time_ms)
        case _:
            assert_never(moment)


def _time_ms(text: str, now_ms: int) -> int:
    if text == "now":
        return now_ms
    if found := _RELATIVE.fullmatch(text):
        distance_ms = length_ms(found[2])
        return now_ms - distance_ms if found[1] == "-" else now_ms + distance_ms
    if found := _UNIX.fullmatch(text):
        return _from_unix(text, found[1], found[2])
    if _DATE.fullmatch(text):
        return _from_calendar(text, text, "00", "00", None, None, "Z")
    if found := _RFC_3339.fullmatch(text):
        return _from_calendar(text, *found.groups())
    raise MomentError(f"{text!r} is no time; write one of: {GRAMMAR}")


def _milliseconds(fraction: str | None) -> int:
    return int((fraction or "")[:3].ljust(3, "0"))


def _from_unix(text: str, whole: str, fraction: str | None) -> int:
    number = int(whole)
    if _WITHOUT_HYPHENS.fullmatch(text):
        raise MomentError(
            f"{text!r} looks like a date, and as unix time it is far away; write a date as 2026-11-21 or 2026-11-21T10:42:07Z"
        )
    if len(str(number)) <= _SECONDS_DIGITS_MAX:
        return number * 1000 + _milliseconds(fraction)
    if fraction is not None:
        raise MomentError(f"{text!r}: milliseconds have no fraction, and seconds at most {_SECONDS_DIGITS_MAX} digits")
    return number


def _from_calendar(text: str, date: str, hour: str, minute: str, second: str | None, fraction: str | None, zone: str | None) -> int:
    if zone is None:
        raise MomentError(f"{text!r} does not say which zone it is in; write {text}Z for UTC, or an offset such as {text}+01:00")
    # 23:59:60 is a leap second: as unix time has none, it is the second after :59.
    leap = second == "60"
    try:
        at = datetime.fromisoformat(f"{date}T{hour}:{minute}:{'59' if leap else second or '00'}{zone.upper()}")
    except ValueError as problem:
        raise MomentError(f"{text!r} is not in the calendar: {problem}") from None
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since // timedelta(seconds=1) + leap) * 1000 + _milliseconds(fraction)
