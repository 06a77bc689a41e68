"""Traits that a flavor's extra specs and an image's properties stand for, and what in them nothing can be placed with.

Source of the rules: Nova 34, `scheduler/utils.py` and `scheduler/request_filter.py` (what it asks Placement for of every request) and
`virt/hardware.py` (what it refuses at its API).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from schemas.guests import Flavor, Image
from schemas.pinning import AMOUNT_KEY, NO, YES, WantsError, agreed, one_of, whole
from streams.scheduling.image_properties import read

TRAITS: Mapping[str, Mapping[str, str]] = {
    "os:secure_boot": {"required": "COMPUTE_SECURITY_UEFI_SECURE_BOOT", "disabled": "", "optional": ""},
    "hw:maxphysaddr_mode": {"passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH", "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED"},
    "hw:tpm_version": {"1.2": "COMPUTE_SECURITY_TPM_1_2", "2.0": "COMPUTE_SECURITY_TPM_2_0"},
    "hw:sound_model": dict.fromkeys(("sb16", "es1370", "pcspk", "ac97", "ich6", "ich9", "usb"), "")
    | {"virtio": "COMPUTE_SOUND_MODEL_VIRTIO"},
}
"""The trait that each value of an extra spec stands for; of an image's property with the same name and `_` instead of `:` as well."""
TPM_MODELS = {"tpm-tis": "COMPUTE_SECURITY_TPM_TIS", "tpm-crb": "COMPUTE_SECURITY_TPM_CRB"}
TPM_SECRETS = {word: f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{word.upper()}" for word in ("user", "host", "deployment")}
ENCRYPTION_FORMATS = {word: f"COMPUTE_EPHEMERAL_ENCRYPTION_{word.upper()}" for word in ("plain", "luks", "luksv2")}
UNCOUNTED = {
    "hw:mem_encryption": "slots for encrypted memory are counted on no node",
    "hw:pmem": "persistent memory is counted on no node",
    "accel:device_profile": "devices of accelerators are counted on no node",
}
"""What asks for amounts that nothing here counts, like `pinning.uncounted`."""
FLAGS = ("hw:mem_encryption", "hw:locked_memory", "hw:virtio_packed_ring", "hw:ephemeral_encryption", "hw:cpu_realtime")
"""Extra specs that say yes or no."""
TRAIT_WORDS = ("required", "forbidden")
TRAIT_KEY = re.compile(r"trait[a-zA-Z0-9_-]{0,64}:(.+)")
"""An extra spec about a trait. With a name between, Placement's granular groups ask a part of a node for it; here a node has no parts."""
_KEPT = 1024

_Texts = tuple[tuple[str, str], ...]


class Implied(NamedTuple):
    """The traits that are required besides those by name, and why nothing can be placed; empty if it can."""

    traits: frozenset[str] = frozenset()
    problem: str = ""


def implied(flavor: Flavor, image: Image) -> Implied:
    """What such a flavor and image stand for."""
    if not flavor.extra_specs and not image.properties:
        return Implied()
    return _implied(tuple(flavor.extra_specs.items()), tuple(image.properties.items()))


class _Said(NamedTuple):
    """Extra specs, and properties by Nova's names of today, each in its one spelling."""

    extra_specs: Mapping[str, str]
    properties: Mapping[str, str]

    def word(self, key: str, known: Mapping[str, str]) -> str:
        """One of the words that are known, or none. Raises WantsError."""
        return agreed(key, self.extra_specs, self.properties, known)

    def is_set(self, key: str) -> bool:
        """Whether flavor or image says yes. Raises WantsError where one says yes and the other no."""
        said = self.extra_specs.get(key), self.properties.get(key.replace(":", "_"))
        truths = {text.strip().lower() in YES for text in said if text}
        if len(truths) > 1:
            raise WantsError(f"{key}: the image has {said[1]!r}, its flavor {said[0]!r}")
        return True in truths


@lru_cache(maxsize=_KEPT)
def _implied(extra_specs: _Texts, properties: _Texts) -> Implied:
    """A cloud has few flavors and images, and asks for them again and again."""
    said = _Said(dict(extra_specs), read(dict(properties)))
    try:
        _check_words(extra_specs, properties)
        _refuse(said)
        return Implied(frozenset(filter(None, _traits(said))))
    except WantsError as error:
        return Implied(problem=str(error))


def _traits(said: _Said) -> Iterator[str]:
    for key, traits in TRAITS.items():
        if word := said.word(key, traits):
            yield traits[word]
    if version := said.word("hw:tpm_version", TRAITS["hw:tpm_version"]):
        model = said.word("hw:tpm_model", TPM_MODELS) or "tpm-tis"
        if model == "tpm-crb" and version != "2.0":
            raise WantsError(f"hw:tpm_model: expected tpm-tis with version {version}, got {model!r}")
        yield TPM_MODELS[model]
        key = "hw:tpm_secret_security"  # Of flavors alone.
        yield TPM_SECRETS[one_of(key, said.extra_specs.get(key, ""), TPM_SECRETS) or "user"]
    if said.is_set("hw:virtio_packed_ring"):
        yield "COMPUTE_NET_VIRTIO_PACKED"
    if said.is_set("hw:ephemeral_encryption"):
        yield "COMPUTE_EPHEMERAL_ENCRYPTION"
        if word := said.word("hw:ephemeral_encryption_format", ENCRYPTION_FORMATS):
            yield ENCRYPTION_FORMATS[word]
    # Nova ignores it, with a warning, for an image of another firmware.
    if said.properties.get("hw_firmware_stateless") == "True" and said.properties.get("hw_firmware_type") == "uefi":
        yield "COMPUTE_SECURITY_STATELESS_FIRMWARE"


def _refuse(said: _Said) -> None:
    for key, why in UNCOUNTED.items():
        asked = said.is_set(key) if key == "hw:mem_encryption" else said.extra_specs.get(key, "").strip(" ,")
        if asked:
            raise WantsError(f"{key}: {why}; leave it out, or name such nodes by a trait")
    pages = said.extra_specs.get("hw:mem_page_size", "") or said.properties.get("hw_mem_page_size", "")
    if said.is_set("hw:locked_memory") and not pages:
        raise WantsError("hw:locked_memory: expected hw:mem_page_size beside it")


def _check_words(extra_specs: _Texts, properties: _Texts) -> None:
    """Raises WantsError for a wish in words that nobody knows.

    Nova refuses them when a flavor is made, and passes them over when it places one that it has already.
    """
    for key, text in extra_specs:
        if key in FLAGS and text and text.strip().lower() not in YES | NO:
            raise WantsError(f"{key}: expected yes or no, got {text!r}")
        if AMOUNT_KEY.match(key) and ((amount := whole(text)) is None or amount < 0):
            raise WantsError(f"{key}: expected an amount, got {text!r}")
    traits = [(key, text) for key, text in extra_specs if TRAIT_KEY.fullmatch(key)]
    traits += [(key, text) for key, text in properties if key.startswith("trait:")]
    for key, text in traits:
        if text not in TRAIT_WORDS:
            raise WantsError(f"{key}: expected {' or '.join(TRAIT_WORDS)}, got {text!r}")
