"""What a flavor and an image stand for without naming a trait; the expected values are what Nova 34 asks Placement for."""

from __future__ import annotations

import pytest

from schemas.guests import Flavor, Image
from schemas.requests import PlacementRequested
from streams.scheduling.ask import ask_of
from streams.scheduling.filters.labels import required_traits
from streams.scheduling.implied import Implied, implied

USER = "COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER"


def said(extra_specs: dict[str, str] | None = None, properties: dict[str, str] | None = None) -> Implied:
    return implied(Flavor(extra_specs=extra_specs or {}), Image(properties=properties or {}))


@pytest.mark.parametrize(
    ("extra_specs", "properties", "traits"),
    [
        ({}, {}, set()),
        ({"quota:cpu_shares": "2"}, {"hw_disk_bus": "scsi"}, set()),
        ({"os:secure_boot": "required"}, {}, {"COMPUTE_SECURITY_UEFI_SECURE_BOOT"}),
        ({"os:secure_boot": "optional"}, {"os_secure_boot": "optional"}, set()),
        ({}, {"os_secure_boot": "required"}, {"COMPUTE_SECURITY_UEFI_SECURE_BOOT"}),
        ({"hw:maxphysaddr_mode": "emulate"}, {}, {"COMPUTE_ADDRESS_SPACE_EMULATED"}),
        ({}, {"hw_maxphysaddr_mode": "passthrough"}, {"COMPUTE_ADDRESS_SPACE_PASSTHROUGH"}),
        ({"hw:tpm_version": "1.2"}, {}, {"COMPUTE_SECURITY_TPM_1_2", "COMPUTE_SECURITY_TPM_TIS", USER}),
        ({"hw:tpm_version": "2.0"}, {"hw_tpm_model": "tpm-crb"}, {"COMPUTE_SECURITY_TPM_2_0", "COMPUTE_SECURITY_TPM_CRB", USER}),
        (
            {"hw:tpm_version": "2.0", "hw:tpm_secret_security": "host"},
            {},
            {"COMPUTE_SECURITY_TPM_2_0", "COMPUTE_SECURITY_TPM_TIS", "COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST"},
        ),
        ({"hw:tpm_model": "tpm-crb"}, {}, set()),
        ({"hw:sound_model": "virtio"}, {}, {"COMPUTE_SOUND_MODEL_VIRTIO"}),
        ({"hw:sound_model": "ich9"}, {}, set()),
        ({"hw:virtio_packed_ring": "true"}, {"hw_virtio_packed_ring": "1"}, {"COMPUTE_NET_VIRTIO_PACKED"}),
        ({"hw:virtio_packed_ring": "false"}, {}, set()),
        ({}, {"hw_firmware_stateless": "yes", "hw_firmware_type": "uefi"}, {"COMPUTE_SECURITY_STATELESS_FIRMWARE"}),
        ({}, {"hw_firmware_stateless": "yes", "hw_firmware_type": "bios"}, set()),
        ({"hw:ephemeral_encryption": "true"}, {}, {"COMPUTE_EPHEMERAL_ENCRYPTION"}),
        (
            {"hw:ephemeral_encryption": "true"},
            {"hw_ephemeral_encryption_format": "luks"},
            {"COMPUTE_EPHEMERAL_ENCRYPTION", "COMPUTE_EPHEMERAL_ENCRYPTION_LUKS"},
        ),
        ({"hw:locked_memory": "true", "hw:mem_page_size": "large"}, {}, set()),
        ({"hw:mem_encryption": "false", "hw:pmem": " "}, {}, set()),
    ],
)
def test_extra_specs_and_properties_stand_for_traits(extra_specs: dict[str, str], properties: dict[str, str], traits: set[str]) -> None:
    assert said(extra_specs, properties) == Implied(frozenset(traits))


@pytest.mark.parametrize(
    ("extra_specs", "properties", "problem"),
    [
        ({"os:secure_boot": "always"}, {}, "os:secure_boot: expected required, disabled, optional, got 'always'"),
        (
            {"os:secure_boot": "required"},
            {"os_secure_boot": "disabled"},
            "os:secure_boot: the image has 'disabled', its flavor 'required'",
        ),
        ({"hw:tpm_version": "1.2", "hw:tpm_model": "tpm-crb"}, {}, "hw:tpm_model: expected tpm-tis with version 1.2, got 'tpm-crb'"),
        (
            {"hw:virtio_packed_ring": "no"},
            {"hw_virtio_packed_ring": "yes"},
            "hw:virtio_packed_ring: the image has 'True', its flavor 'no'",
        ),
        ({"hw:locked_memory": "true"}, {}, "hw:locked_memory: expected hw:mem_page_size beside it"),
        (
            {},
            {"hw_mem_encryption": "true", "hw_firmware_type": "uefi"},
            "hw:mem_encryption: slots for encrypted memory are counted on no node; leave it out, or name such nodes by a trait",
        ),
        (
            {"hw:pmem": "SMALL,LARGE"},
            {},
            "hw:pmem: persistent memory is counted on no node; leave it out, or name such nodes by a trait",
        ),
        (
            {"accel:device_profile": "fpga"},
            {},
            "accel:device_profile: devices of accelerators are counted on no node; leave it out, or name such nodes by a trait",
        ),
        ({"trait:CUSTOM_X": "Required"}, {}, "trait:CUSTOM_X: expected required or forbidden, got 'Required'"),
        ({"trait_G:CUSTOM_X": "yes"}, {}, "trait_G:CUSTOM_X: expected required or forbidden, got 'yes'"),
        ({}, {"trait:CUSTOM_X": "maybe"}, "trait:CUSTOM_X: expected required or forbidden, got 'maybe'"),
        ({"resources:MEMORY_MB": "4GB"}, {}, "resources:MEMORY_MB: expected an amount, got '4GB'"),
        ({"resources_G:VGPU": "-1"}, {}, "resources_G:VGPU: expected an amount, got '-1'"),
        ({"hw:cpu_realtime": "perhaps"}, {}, "hw:cpu_realtime: expected yes or no, got 'perhaps'"),
        ({"hw:locked_memory": "ture"}, {}, "hw:locked_memory: expected yes or no, got 'ture'"),
    ],
)
def test_what_nothing_can_be_placed_with_says_why(extra_specs: dict[str, str], properties: dict[str, str], problem: str) -> None:
    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=1, extra_specs=extra_specs), image=Image(properties=properties))

    assert said(extra_specs, properties) == Implied(problem=problem)
    assert ask_of(request, 0, seed=1).unusable == problem


def test_what_is_implied_is_required_beside_what_is_named() -> None:
    flavor = Flavor(extra_specs={"os:secure_boot": "required", "trait:CUSTOM_A": "required"})
    request = PlacementRequested(request_id="r", flavor=flavor, traits_required=("CUSTOM_B",))

    assert required_traits(request) == {"COMPUTE_SECURITY_UEFI_SECURE_BOOT", "CUSTOM_A", "CUSTOM_B"}
