"""Claims that stand for more than is shown of a guest, of which no finding says so: one history each."""

from __future__ import annotations

import pytest

from schemas.inventory import Hypervisor, PciDevice
from schemas.requests import PciWant
from streams.cli.leaks.claimed_beyond import claimed_beyond
from tests.ledger_history import History


def test_a_device_that_only_an_older_claim_of_a_guest_holds_is_more_than_is_reported() -> None:
    history, device = History(), PciDevice(address="a")
    host = Hypervisor(vcpus=8, pcpus=0, memory_mib=64, disk_mib=64, pci_devices=(device,))
    history.audit({}, at_s=0, hypervisor=host)
    history.claim("with", "i", 4, at_s=1, pci=(PciWant(specs=({},)),))
    history.claim("without", "i", 4, request_id="another", at_s=2)
    told = []
    for at_s in (60, 120):
        history.audit({"i": 4}, at_s=at_s, hypervisor=host)
        told.append(claimed_beyond(history.node()))

    assert told == [[], ["i"]]


@pytest.mark.parametrize("then", ["departed", "unseen", "resized"])
def test_nothing_is_claimed_beyond_what_is_shown_of_a_guest_that_leaves_has_left_or_was_resized(then: str) -> None:
    history = History()
    history.audit({}, at_s=0)
    history.claim("c", "i", 4, at_s=1)
    history.claim("other", "i", 2, request_id="another", resize=then == "resized", at_s=2)
    for at_s in (60, 120):
        history.audit({"i": 2}, at_s=at_s)
    if then == "departed":
        history.event("departed", "i", at_s=130)
    if then == "unseen":
        history.audit({}, at_s=180)

    assert claimed_beyond(history.node()) == []
