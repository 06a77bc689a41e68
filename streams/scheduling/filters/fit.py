"""The last filter: what the ledger itself would say (`projections.fit`), so that nothing is asked for that cannot be granted now."""

from __future__ import annotations

from projections.room import keep_fitting
from streams.scheduling.ask import Ask, Check
from streams.scheduling.filters.amounts import lacks_of
from streams.scheduling.options import Options


def fit(ask: Ask, _: Options) -> Check:
    """All of `fits`: units, limits, dedicated CPUs, a resize in flight, and whatever a policy leaves its other filters out for."""
    return Check(keep_fitting(ask.item), lambda room: "; ".join(str(lack) for lack in lacks_of(ask, room)))
