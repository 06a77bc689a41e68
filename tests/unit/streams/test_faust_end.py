"""How a worker ends where Faust does not."""

from __future__ import annotations

import asyncio
import io
import os
import time
from pathlib import Path

import pytest

from projections.reading import HistoryMissing
from streams.app import FaustHost, in_time
from streams.cli.exits import Exit, exit_of
from streams.log.base import LogUnreachable
from streams.log.kafka_settings import KafkaSettings
from streams.metrics import Health


def test_what_never_ends_is_given_up_and_what_ends_is_not() -> None:
    async def both() -> list[bool]:
        return [await in_time(asyncio.Event().wait(), 0.01), await in_time(asyncio.sleep(0), 60.0)]

    assert asyncio.run(both()) == [False, True]


@pytest.mark.parametrize(
    ("failure", "code"),
    [(None, Exit.ERROR), (HistoryMissing("records were lost"), Exit.INCOMPLETE), (LogUnreachable("nobody answers"), Exit.UNREACHABLE)],
)
def test_a_process_that_hangs_at_its_end_ends_with_the_code_of_what_had_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException | None, code: Exit
) -> None:
    def ended(number: int) -> None:
        raise SystemExit(number)

    monkeypatch.setattr(os, "_exit", ended)
    said = io.StringIO()
    settings = KafkaSettings(bootstrap="127.0.0.1:1", prefix="x", single_broker=True)
    host = FaustHost(settings, tmp_path, "w", 1, lambda _log: [], Health(time.monotonic), said, exit_code=exit_of)
    host._failure = failure

    with pytest.raises(SystemExit) as end:
        host._give_up("the end took more than 10 s")

    assert end.value.code == code
    assert said.getvalue() == "claimlog: the end took more than 10 s" + (f"; before that: {failure}" if failure else "") + "\n"
