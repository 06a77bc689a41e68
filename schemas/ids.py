"""How things are called: identities of nodes, instances, requests, claims and producers."""

from hashlib import sha1
from typing import NamedTuple
from uuid import UUID

from schemas.units import Name

NodeId = Name
"""The hypervisor's hostname, as libvirt and Nova give it."""
InstanceId = Name
"""The domain's uuid, which is Nova's."""
RequestId = Name
ClaimId = Name
GroupId = Name
RecordId = Name
ProducerId = Name

# Any fixed uuid would do: it keeps ids derived here apart from everybody else's.
INSTANCE_NAMESPACE = UUID("8c3f6a52-7d0e-4c6a-9a51-0d4f6b1f9d11")
_NAMESPACE = INSTANCE_NAMESPACE.bytes


def claim_id(request_id: str, index: int, process: str, epoch: int, counter: int) -> str:
    """The id of one attempt to claim the request's instance number `index`: never reused, so a copy is known for a copy."""
    return f"{request_id}/{index}/{process}-{epoch}.{counter}"


def instance_id(request_id: str, index: int) -> str:
    """The uuid of a request's instance number `index` where the requester named none: the same for every scheduler that looks."""
    # What `str(uuid5(...))` gives, without the object: it is worked out for every decision.
    digest = bytearray(sha1(_NAMESPACE + f"{request_id}/{index}".encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Sequence(NamedTuple):
    """Where an observation stands among its producer's: epochs are ordered, the counter runs within an epoch (rule 4)."""

    epoch: int
    counter: int
