"""What the scheduler's vectors say (filters, weighers, extra specs, aggregates, choice of hosts), in the product's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.scheduling.weighers import normalise


def _normalize(vector: dict[str, Any]) -> dict[str, Any]:
    given = vector["given"]
    return {"weights": normalise(given["values"], given["minval"], given["maxval"])}


AREAS: dict[str, Callable[[dict[str, Any]], object]] = {
    "normalize": _normalize,
}
