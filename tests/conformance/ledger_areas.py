"""What the ledger's vectors say (claims, tracker, stats, placement, NUMA, PCI, host state), in the product's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AREAS: dict[str, Callable[[dict[str, Any]], object]] = {}
