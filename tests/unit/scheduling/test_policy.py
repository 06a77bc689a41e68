"""A policy's text and digest, and what is said about one that cannot be used."""

from __future__ import annotations

import pytest

from streams.scheduling.filters import FILTERS
from streams.scheduling.loading import PolicyError, checked, from_dict, from_text, from_toml, without_effect
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, FILTERS_DEFAULT, PACK, POLICIES, Multiplied, Policy, digest, text


def test_the_text_of_a_policy_gives_the_policy_and_other_policies_have_other_digests() -> None:
    assert from_text(text(PACK)) == PACK
    assert digest(PACK) != digest(DEFAULT)
    assert digest(DEFAULT) == digest(Policy())
    assert len(digest(DEFAULT)) == 32


def test_the_default_names_filters_that_there_are() -> None:
    assert set(FILTERS_DEFAULT) <= set(FILTERS)
    assert checked(DEFAULT, source="default") is DEFAULT


def test_a_policy_is_read_from_toml_and_what_it_leaves_out_is_the_default() -> None:
    policy = from_toml('alternates_max = 1\n[[weighers]]\nweigher = "RAMWeigher"\nmultiplier = -1.0\n', source="policy.toml")

    assert policy == Policy(weighers=(Multiplied(weigher="RAMWeigher", multiplier=-1.0),), alternates_max=1)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('filters = ["RomFilter"]', "p: filter 'RomFilter' is not known; known: AllHostsFilter, .*DiskFilter.*; did you mean 'RamFilter'?"),
        ('[[weighers]]\nweigher = "GPUWeigher"', "p: weigher 'GPUWeigher' is not known; known: RAMWeigher, CPUWeigher, DiskWeigher"),
        ('filters = ["RamFilter", "RamFilter"]', "p: filter 'RamFilter' is named twice"),
        ("alternates_max = 16", "p: alternates_max: expected 0 to 15, got 16"),
        ("alternate_max = 1", "p: key 'alternate_max' is not known; known: filters, weighers, .*; did you mean 'alternates_max'"),
        ('[[weighers]]\nweigher = "RAMWeigher"\nmultiplier = inf', "expected a multiplier up to 1e.100, got inf"),
        ('[[weighers]]\nweigher = "RAMWeigher"\nmultiplier = 1e101', "expected a multiplier up to 1e.100, got 1e.101"),
        ("[options]\nweight_of_unavailable = nan", "expected a number up to 1e.100, got nan"),
        ('[options]\nweight_setting = ["x=1e101"]', "expected name=ratio in a weight setting"),
        ('filters = "RamFilter"', "p: Expected `array`, got `str` - at `\\$.filters`"),
        ("filters = [", "p: not TOML"),
        (f"seed = {'9' * 5_000}", "p: a number in it is too large to be read"),
        ("[options]\nhost_subset_size = 0", "p: options: host_subset_size: expected at least 1, got 0"),
        ('[options]\nweight_setting = ["idle"]', "p: options: expected name=ratio in a weight setting, got 'idle'"),
        ("[options]\nhost_subset = 2", "p: option 'host_subset' is not known; known: .*; did you mean 'host_subset_size'"),
        (
            "[options]\nram_weight_multiplier = 2.0",
            r"option 'ram_weight_multiplier' is not known; a multiplier stands beside its weigher: \[\[weighers\]\], RAMWeigher",
        ),
        ("options = 1", "p: Expected `object`, got `int` - at `\\$.options`"),
        (
            '[options]\npci_alias = [\'{"name": "a", "traits": "CUSTOM_FAST"}\']',
            "pci_alias a: traits: Placement's, which no device",
        ),
        (
            '[options]\npci_alias = [\'{"name": "a", "device_type": "type-PF"}\', \'{"name": "a", "device_type": "type-VF"}\']',
            "pci_alias a: expected one device_type, got type-PF and type-VF",
        ),
        (
            '[options]\npci_alias = [\'{"name": "a", "device_type": "type-PF"}\', \'{"name": "a", "vendor_id": "10de"}\']',
            "pci_alias a: expected one device_type, got none and type-PF",
        ),
        (
            '[options]\nweight_setting = ["idle=1"]\n[[weighers]]\nweigher = "MetricsWeigher"',
            "MetricsWeigher requires every metric; add MetricsFilter",
        ),
        (
            '[options]\nweight_setting = ["idle=1"]\n[[weighers]]\nweigher = "MetricsWeigher"\nmultiplier = 0.0',
            "MetricsWeigher requires every metric; add MetricsFilter",
        ),
    ],
)
def test_a_wrong_policy_is_refused_with_what_is_known(toml: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        from_toml(toml, source="p")


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ('[options]\nisolated_hosts = ["n1"]', ("isolated_hosts is set and has no effect without IsolatedHostsFilter",)),
        (
            "[options]\nmax_io_ops_per_host = 9",
            ("max_io_ops_per_host is set and has no effect without IoOpsFilter or AggregateIoOpsFilter",),
        ),
        ('filters = ["AggregateIoOpsFilter"]\n[options]\nmax_io_ops_per_host = 9', ()),
        ("[options]\nio_ops_step = 2", ("io_ops_step is set and has no effect without IoOpsWeigher",)),
        ('[[weighers]]\nweigher = "IoOpsWeigher"\n[options]\nio_ops_step = 2', ()),
        ('filters = ["os.path:join"]\n[options]\nisolated_hosts = ["n1"]', ()),
        ("[options]\nhost_subset_size = 2", ()),
    ],
)
def test_what_is_set_and_read_by_nobody_is_told(toml: str, told: tuple[str, ...]) -> None:
    assert without_effect(from_toml(toml, source="p")) == told


def test_a_policy_that_was_in_use_with_an_alias_of_two_kinds_is_read_to_explain_what_it_decided() -> None:
    aliases = tuple(f'{{"name": "nic", "device_type": "type-{kind}"}}' for kind in ("PF", "VF"))

    assert from_text(text(Policy(options=Options(pci_alias=aliases)))).options.pci_alias == aliases


def test_no_policy_that_has_a_name_sets_what_nobody_reads() -> None:
    assert {name: without_effect(policy) for name, policy in POLICIES.items()} == dict.fromkeys(POLICIES, ())


def test_a_dictionary_is_checked_alike() -> None:
    assert from_dict({"filters": ["RamFilter"]}, source="d").filters == ("RamFilter",)
    with pytest.raises(PolicyError, match="another version"):
        from_text('{"filters": 1}')
