"""Quantities as people read them. Every text is exact: columns of a table still add up."""

from __future__ import annotations

from datetime import UTC, datetime

MOMENT_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, as far as RFC 3339 goes; a producer's clock may say anything up to the bound of a record."""
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def count(number: int) -> str:
    """`23,353`."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """`1 finding`, `2 findings`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def signed(text: str) -> str:
    """`+512 MiB` for what has no sign of its own; zero has none."""
    return text if text.startswith(("-", "0 ")) or text == "0" else f"+{text}"


def span(length_ms: int) -> str:
    """A length of time in ms by its two largest units, rounded down: `3h12m`, `45s`, `850ms`."""
    if length_ms < 0:
        return f"-{span(-length_ms)}"
    if 0 < length_ms < 1_000:
        return f"{length_ms}ms"
    for position, (unit_ms, name) in enumerate(_SPANS):
        if length_ms >= unit_ms:
            whole, rest = divmod(length_ms, unit_ms)
            next_ms, next_name = _SPANS[position + 1] if position + 1 < len(_SPANS) else (unit_ms, "")
            return f"{whole}{name}" + (f"{rest // next_ms}{next_name}" if rest >= next_ms else "")
    return "0s"


def age(then_ms: int | None, now_ms: int) -> str:
    """How long ago: `3h12m`; `never` for None, `in 5s` for what is still to come."""
    if then_ms is None:
        return "never"
    return span(now_ms - then_ms) if then_ms <= now_ms else f"in {span(then_ms - now_ms)}"


def ago(then_ms: int | None, now_ms: int) -> str:
    """The same within a sentence: `3h12m ago`, `in 5s`, `never`."""
    said = age(then_ms, now_ms)
    return said if then_ms is None or then_ms > now_ms else f"{said} ago"


def moment(time_ms: int) -> str:
    """A time in ms since 1970 as the time grammar reads it again: `2026-11-21T10:42:07.113Z`; one after the year 9999 as its ms."""
    if not 0 <= time_ms <= MOMENT_MS_MAX:
        return f"{time_ms}ms"
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"


def ratio(ratio_milli: int | None) -> str:
    """An allocation ratio in thousandths: `1.5`, `16`; `none` where there is no limit."""
    return "none" if ratio_milli is None else f"{ratio_milli / 1000:.3f}".rstrip("0").rstrip(".")
