"""Every history of the ledger machine keeps its invariants. `CLAIMLOG_SOAK=N` writes N histories, each twice as long."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.properties.ledger_machine import LedgerMachine

_SOAK = int(os.environ.get("CLAIMLOG_SOAK") or 0)

TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=max(_SOAK, 100), stateful_step_count=100 if _SOAK else 50)
