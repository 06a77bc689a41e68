"""What devices a flavor wants by the operator's aliases; the expected values are what Nova 34 makes of the same texts."""

from __future__ import annotations

import pytest

from schemas.aliases import devices
from schemas.guests import Flavor, Image, PciWant
from schemas.pinning import WantsError

ALIASES = (
    '{"name": "gpu", "vendor_id": "10de", "product_id": "1eb8", "device_type": "type-PCI", "numa_policy": "preferred"}',
    '{"name": "gpu", "vendor_id": "10de", "product_id": "1db4", "device_type": "type-PCI", "numa_policy": "preferred"}',
    '{"name": "nic", "vendor_id": "8086", "product_id": "154d", "device_type": "type-VF"}',
)


def wanting(text: str, **extra_specs: str) -> Flavor:
    said = {key.replace("__", ":"): value for key, value in extra_specs.items()}
    return Flavor(extra_specs={"pci_passthrough:alias": text} | said)


def test_aliases_become_specs_and_a_name_given_twice_has_both() -> None:
    gpu, nic = devices(wanting("gpu:2, nic:1", hw__pci_numa_affinity_policy="required"), Image(), ALIASES)

    assert (gpu.alias, gpu.count, gpu.numa_policy) == ("gpu", 2, "required")
    assert [spec["product_id"] for spec in gpu.specs] == ["1eb8", "1db4"]
    assert nic == PciWant(alias="nic", specs=({"vendor_id": "8086", "product_id": "154d", "dev_type": "type-VF"},), numa_policy="required")


def test_an_alias_says_in_any_word_whether_its_devices_must_be_live_migratable() -> None:
    def specs(word: str) -> tuple[dict[str, str], ...]:
        (want,) = devices(wanting("gpu:1"), Image(), (f'{{"name": "gpu", "live_migratable": "{word}"}}',))
        return want.specs

    assert specs("Yes") == specs("1") == ({"live_migratable": "true"},)
    assert specs("off") == ({"live_migratable": "false"},)
    with pytest.raises(WantsError, match="pci_alias gpu: live_migratable: expected true or false, got 'maybe'"):
        specs("maybe")


def test_an_alias_that_nobody_configured_is_told_with_those_there_are() -> None:
    with pytest.raises(WantsError, match="alias 'fpga' is not known; known: gpu, nic"):
        devices(wanting("fpga:1"), Image(), ALIASES)


def test_an_alias_asks_for_a_number_that_a_record_holds() -> None:
    with pytest.raises(WantsError, match="expected name:count, got 'gpu:9999"):
        devices(wanting("gpu:" + "9" * 25), Image(), ALIASES)


def test_an_alias_by_what_placement_knows_of_devices_is_refused() -> None:
    with pytest.raises(WantsError, match="pci_alias gpu: resource_class: Placement's, which no device has here"):
        devices(wanting("gpu:1"), Image(), ('{"name": "gpu", "resource_class": "CUSTOM_GPU"}',))
