"""An image's properties as Nova reads them, before any filter or weigher compares one.

Source of the rules: Nova 34, objects/image_meta.py and objects/fields.py. Old names count as those of today; numbers, words for yes and no,
and what old images call an architecture, a hypervisor or a device come out in one spelling; a property that Nova has no name for is
nobody's: an aggregate cannot ask for it. A value that Nova would refuse stays as it is, and matches whatever has the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from schemas.pinning import YES


def words(text: str) -> frozenset[str]:
    """The words of a text: a long list of names is read more easily as one."""
    return frozenset(text.split())


_OLD_NAMES: Mapping[str, str] = {
    "architecture": "hw_architecture",
    "owner_id": "img_owner_id",
    "vmware_disktype": "hw_disk_type",
    "vmware_image_version": "img_version",
    "vmware_ostype": "os_distro",
    "auto_disk_config": "hw_auto_disk_config",
    "ipxe_boot": "hw_ipxe_boot",
    "xenapi_device_id": "hw_device_id",
    "xenapi_image_compression_level": "img_compression_level",
    "vmware_linked_clone": "img_linked_clone",
    "xenapi_use_agent": "img_use_agent",
    "xenapi_skip_agent_inject_ssh": "os_skip_agent_inject_ssh",
    "xenapi_skip_agent_inject_files_at_boot": "os_skip_agent_inject_files_at_boot",
    "cache_in_nova": "img_cache_in_nova",
    "vm_mode": "hw_vm_mode",
    "bittorrent": "img_bittorrent",
    "bdm_v2": "img_bdm_v2",
    "root_device_name": "img_root_device_name",
    "hypervisor_version_requires": "img_hv_requested_version",
    "hypervisor_type": "img_hv_type",
}
_ADAPTER = "vmware_adaptertype"
_YES_OR_NO = words(
    "hw_boot_menu hw_firmware_stateless hw_ipxe_boot hw_locked_memory hw_mem_encryption hw_pmu hw_qemu_guest_agent hw_time_hpet "
    "hw_vif_multiqueue_enabled hw_ephemeral_encryption hw_virtio_packed_ring img_bittorrent img_bdm_v2 img_cache_in_nova img_linked_clone "
    "img_use_agent img_hide_hypervisor_id os_require_quiesce os_skip_agent_inject_files_at_boot os_skip_agent_inject_ssh"
)
_NUMBERS = words(
    "hw_cpu_cores hw_cpu_sockets hw_cpu_max_cores hw_cpu_max_sockets hw_cpu_max_threads hw_cpu_threads hw_device_id hw_numa_nodes "
    "hw_serial_port_count hw_video_ram hw_maxphysaddr_bits hw_redirected_usb_ports img_compression_level img_version"
)
_TEXTS = words(
    "hw_auto_disk_config hw_cdrom_bus hw_cpu_policy hw_cpu_thread_policy hw_cpu_realtime_mask hw_disk_bus hw_disk_type hw_floppy_bus "
    "hw_firmware_type hw_input_bus hw_machine_type hw_mem_encryption_model hw_mem_page_size hw_pci_numa_affinity_policy hw_pointer_model "
    "hw_rescue_bus hw_rescue_device hw_rng_model hw_video_model hw_viommu_model hw_watchdog_action hw_tpm_model hw_tpm_version "
    "hw_ephemeral_encryption_format hw_ephemeral_encryption_secret_uuid hw_maxphysaddr_mode hw_sound_model hw_usb_model "
    "img_hv_requested_version img_config_drive img_owner_id img_root_device_name img_signature img_signature_hash_method "
    "img_signature_certificate_uuid img_signature_key_type os_admin_user os_command_line os_distro os_secure_boot"
)
_ARCHITECTURES = {"i386": "i686", "i486": "i686", "i586": "i686", "x86_32": "i686", "x86_32p": "i686", "amd64": "x86_64"}
_SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "hw_architecture": _ARCHITECTURES,
    "hw_emulation_architecture": _ARCHITECTURES,
    "img_hv_type": {"xapi": "xen"},
    "hw_vm_mode": {"pv": "xen", "hv": "hvm", "baremetal": "hvm"},
    "hw_scsi_model": {"lsilogicsas": "lsisas1068", "paravirtual": "vmpvscsi"},
    "hw_vif_model": {
        "virtuale1000": "e1000",
        "virtuale1000e": "e1000e",
        "virtualpcnet32": "pcnet",
        "virtualsriovethernetcard": "sriov",
        "virtualvmxnet": "vmxnet",
        "virtualvmxnet3": "vmxnet3",
    },
    "os_type": {},
}
"""Properties whose letters may be large or small, with the names that count as others."""
_KNOWN = _YES_OR_NO | _NUMBERS | _TEXTS | frozenset(_SPELLINGS)
_KEPT = 1024
"""So many different images are kept: a cloud places the same ones again and again."""


def read(properties: Mapping[str, str]) -> Mapping[str, str]:
    """The properties that Nova knows, by today's names, each value in its one spelling; what says no is `False`."""
    return _read(tuple(properties.items())) if properties else {}


def spelled(name: str, text: str) -> str:
    """A property's value in its one spelling."""
    if name in _SPELLINGS:
        lowered = text.lower()
        return _SPELLINGS[name].get(lowered, lowered)
    if name in _YES_OR_NO:
        return str(text.strip().lower() in YES)
    if name in _NUMBERS:
        try:
            return str(int(text))
        except ValueError:
            return text
    return text


def counts(name: str, text: str) -> bool:
    """Whether a property says anything: `text`, in its one spelling, is neither empty nor no nor 0."""
    return bool(text) and not (name in _YES_OR_NO and text == "False") and not (name in _NUMBERS and text == "0")


@lru_cache(maxsize=_KEPT)
def _read(said: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    properties = dict(said)
    renamed = {new: properties[old] for old, new in _OLD_NAMES.items() if old in properties}
    if adapter := properties.get(_ADAPTER):
        renamed |= {"hw_disk_bus": "ide"} if adapter == "ide" else {"hw_disk_bus": "scsi", "hw_scsi_model": adapter}
    known = {name: text for name, text in properties.items() if name in _KNOWN}
    traits = [name.removeprefix("trait:") for name, text in properties.items() if name.startswith("trait:") and text == "required"]
    found = {name: spelled(name, text) for name, text in (renamed | known).items()}
    return found | ({"traits_required": str(traits)} if traits else {})
