"""Token ids are numbers in Python and compact text in JSON."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from envs.types.token_ids import TokenIds, read_ids, write_ids

IDS = st.lists(st.integers(0, 2**31 - 1))


class Prompt(BaseModel):
    ids: TokenIds


@given(IDS)
def test_ids_survive_json(ids: list[int]) -> None:
    prompt = Prompt(ids=tuple(ids))
    stored = json.loads(prompt.model_dump_json())
    assert struct.unpack(f"<{len(ids)}i", base64.b64decode(stored["ids"])) == tuple(ids)
    assert Prompt.model_validate(stored) == Prompt.model_validate_json(json.dumps(stored)) == prompt
    assert prompt.model_dump() == {"ids": tuple(ids)} and prompt.model_dump(mode="json") == stored
    assert read_ids(write_ids(ids)).tolist() == ids


@pytest.mark.parametrize("text", ["AQAA", "AQAAAA=", "AQAAAA==\n", "1, 2"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"bytes length|padding|base64"):
        read_ids(text)
    with pytest.raises(ValidationError):
        Prompt.model_validate({"ids": text})
