"""How image properties are read; the expected values are what Nova 34 makes of the same properties."""

from __future__ import annotations

from streams.scheduling.image_properties import counts, read


def test_old_names_count_as_todays_and_todays_count_before_them() -> None:
    assert read({"architecture": "AMD64", "vmware_ostype": "rhel7"}) == {"hw_architecture": "x86_64", "os_distro": "rhel7"}
    assert read({"hypervisor_type": "xapi", "img_hv_type": "KVM"}) == {"img_hv_type": "kvm"}
    assert read({"vmware_adaptertype": "paraVirtual"}) == {"hw_disk_bus": "scsi", "hw_scsi_model": "vmpvscsi"}
    assert read({"vmware_adaptertype": "ide"}) == {"hw_disk_bus": "ide"}


def test_words_and_numbers_come_out_in_one_spelling_and_no_says_nothing() -> None:
    found = read({"hw_boot_menu": " Yes", "hw_pmu": "maybe", "hw_cpu_cores": " 02", "hw_vif_model": "VirtualE1000", "os_distro": "False"})

    assert found == {"hw_boot_menu": "True", "hw_pmu": "False", "hw_cpu_cores": "2", "hw_vif_model": "e1000", "os_distro": "False"}
    assert [name for name, text in found.items() if counts(name, text)] == ["hw_boot_menu", "hw_cpu_cores", "hw_vif_model", "os_distro"]


def test_a_property_that_nova_has_no_name_for_is_nobodys_and_required_traits_are_one() -> None:
    found = read({"license": "gold", "disk_format": "raw", "trait:CUSTOM_A": "required", "trait:CUSTOM_B": "forbidden"})

    assert found == {"traits_required": "['CUSTOM_A']"}
