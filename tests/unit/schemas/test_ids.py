"""Ids that are derived are the same for everybody, whoever works them out."""

from __future__ import annotations

from uuid import uuid5

import pytest

from schemas.ids import INSTANCE_NAMESPACE, instance_id


@pytest.mark.parametrize("request_id", ["r1", "", "größer/als/alles", "x" * 200])
@pytest.mark.parametrize("index", [0, 1, 99_999])
def test_an_instance_without_a_name_has_the_uuid_of_its_request_and_number(request_id: str, index: int) -> None:
    assert instance_id(request_id, index) == str(uuid5(INSTANCE_NAMESPACE, f"{request_id}/{index}"))
