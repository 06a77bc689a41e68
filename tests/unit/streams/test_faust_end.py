"""How a worker ends where Faust does not."""

from __future__ import annotations

import asyncio

from streams.app import in_time


def test_what_never_ends_is_given_up_and_what_ends_is_not() -> None:
    async def both() -> list[bool]:
        return [await in_time(asyncio.Event().wait(), 0.01), await in_time(asyncio.sleep(0), 60.0)]

    assert asyncio.run(both()) == [False, True]
