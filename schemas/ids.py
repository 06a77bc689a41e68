"""How things are called: identities of nodes, instances, requests, claims and producers."""

from hashlib import sha1
from typing import NamedTuple
from uuid import UUID

from schemas.units import NAME_CHARACTERS_MAX, Name

NodeId = Name
"""The hypervisor's hostname, as libvirt and Nova give it."""
InstanceId = Name
"""The domain's uuid, which is Nova's."""
RequestId = Name
ClaimId = Name
GroupId = Name
RecordId = Name
ProducerId = Name

NOBODYS = "-" * (NAME_CHARACTERS_MAX + 1)
"""Too long for a request's id, so no instance that is derived from it is anywhere: for those that are only asked about."""
# Any fixed uuid would do: it keeps ids derived here apart from everybody else's.
INSTANCE_NAMESPACE = UUID("8c3f6a52-7d0e-4c6a-9a51-0d4f6b1f9d11")
_NAMESPACE = sha1(INSTANCE_NAMESPACE.bytes, usedforsecurity=False)
# The variant that a uuid has in the upper bits of its 17th digit.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def claim_id(request_id: str, index: int, process: str, epoch: int, counter: int) -> str:
    """The id of one attempt to claim the request's instance number `index`: never reused, so a copy is known for a copy."""
    return f"{request_id}/{index}/{process}-{epoch}.{counter}"


def instance_id(request_id: str, index: int) -> str:
    """The uuid of a request's instance number `index` where the requester named none: the same for every scheduler that looks."""
    # What `str(uuid5(...))` gives, without the object: it is worked out for every decision.
    digest = _NAMESPACE.copy()
    digest.update(f"{request_id}/{index}".encode())
    text = digest.hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


class Sequence(NamedTuple):
    """Where an observation stands among its producer's: epochs are ordered, the counter runs within an epoch (rule 4)."""

    epoch: int
    counter: int
