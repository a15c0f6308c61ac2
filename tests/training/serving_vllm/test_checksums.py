"""Checksums differ where weights do, and the parts of all ranks of a server are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from envs.types import EngineError, PolicyError
from training.serving.vllm.checksums import ChecksumResult, compare_adapter, compare_weights
from training.serving.vllm.client import ServerClient
from training.serving.vllm.in_server.rollwright_checksums import CHUNK, checksum

WEIGHTS = {"wide": torch.randn(8, 6), "bias": torch.randn(5), "long": torch.randn(2, CHUNK)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (7,), (2, 3, 4), (2, CHUNK + 1), (CHUNK // 4 + 3, 5)])
def test_a_checksum_depends_on_each_value_and_its_place(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    flat = tensor.reshape(-1)
    of_all = {checksum(tensor)}
    for place in {0, len(flat) // 2, len(flat) - 1}:
        other = flat.clone()
        other[place] = torch.nextafter(flat[place], torch.tensor(9.0, dtype=dtype))
        of_all.add(checksum(other.reshape(shape)))
    swapped = flat.clone()
    swapped[[0, -1]] = flat[[-1, 0]]
    of_all.add(checksum(swapped.reshape(shape)))
    assert len(of_all) == len({0, len(flat) // 2, len(flat) - 1}) + 2
    assert checksum(tensor.clone()) in of_all


class Ranks:
    """A client whose server's ranks answer these pieces."""

    def __init__(self, *ranks: list[dict[str, Any]], fault: EngineError | None = None) -> None:
        self.address, self._ranks, self._fault = "http://server", ranks, fault

    async def post(self, path: str, seconds: float, **send: Any) -> dict[str, Any]:
        if self._fault:
            raise self._fault
        return {"results": [{"pieces": pieces, "unknown": []} for pieces in self._ranks]}


def piece(name: str, values: torch.Tensor, row: int = 0, column: int = 0, dtype: str = "float32") -> dict[str, Any]:
    matrix = values.reshape(values.shape[0], -1).to(getattr(torch, dtype))
    place = {"row": row, "rows": matrix.shape[0], "column": column, "columns": matrix.shape[1], "packed": False}
    return {"name": name, **place, "dtype": dtype, "sum": checksum(matrix)}


async def compare(tmp_path: Path, *clients: Ranks) -> ChecksumResult:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    return await compare_weights([cast(ServerClient, client) for client in clients], 3, tmp_path)


async def test_parts_of_ranks_make_a_whole_tensor(tmp_path: Path) -> None:
    wide, bias, long = WEIGHTS.values()
    first = [piece("wide", wide[:4]), piece("bias", bias), piece("long", long[:, : CHUNK // 2])]
    second = [piece("wide", wide[4:], row=4), piece("bias", bias), piece("long", long[:, CHUNK // 2 :], 0, CHUNK // 2)]
    assert await compare(tmp_path, Ranks(first, second)) == ChecksumResult(3, 3, {})
    half = Ranks(first)
    half.address = "http://half"
    assert (await compare(tmp_path, half, Ranks(first, second))).compared == 1  # the bias alone is whole
    halved = [piece(name, tensor, dtype="bfloat16") for name, tensor in WEIGHTS.items()]
    assert (await compare(tmp_path, Ranks(halved))).compared == 3


@pytest.mark.parametrize("wrong", ["rank", "copy", "place"])
async def test_one_wrong_rank_is_named(tmp_path: Path, wrong: str) -> None:
    wide, bias, _ = WEIGHTS.values()
    first = [piece("wide", wide[:4]), piece("bias", bias)]
    second = {
        "rank": [piece("wide", wide[4:].flip(0), row=4), piece("bias", bias)],
        "copy": [piece("wide", wide[4:], row=4), piece("bias", bias.flip(0))],
        "place": [piece("wide", wide[:4], row=4), piece("bias", bias)],
    }[wrong]
    name = "bias" if wrong == "copy" else "wide"
    with pytest.raises(PolicyError, match=rf"http://server does not hold .*: 1 of 3 tensors .* \({name}\)"):
        await compare(tmp_path, Ranks(first, second))


async def test_a_server_that_is_down_is_left_out(tmp_path: Path) -> None:
    down = Ranks(fault=EngineError("down"))
    down.address = "http://down"
    result = await compare(tmp_path, down, Ranks([piece("bias", WEIGHTS["bias"])]))
    assert list(result.failed) == ["http://down"] and result.compared == 1
    with pytest.raises(EngineError, match="v3 reached no server"):
        await compare(tmp_path, down)


async def test_one_server_with_other_weights_is_left_out(tmp_path: Path) -> None:
    stale, right = Ranks([piece("bias", WEIGHTS["bias"] + 1)]), Ranks([piece("bias", WEIGHTS["bias"])])
    stale.address = "http://stale"
    for clients in ([stale, right], [right, stale]):
        result = await compare(tmp_path, *clients)
        assert result.compared == 1 and list(result.failed) == ["http://stale"]
        assert isinstance(result.failed["http://stale"], PolicyError), "it is not down"
    down = Ranks(fault=EngineError("down"))
    down.address = "http://down"
    with pytest.raises(PolicyError, match="http://stale does not hold the weights of v3"):
        await compare(tmp_path, down, stale)


class AdapterRanks(Ranks):
    """A client whose server's ranks hold these matrices of an adapter."""

    def __init__(self, *ranks: dict[str, torch.Tensor], differ: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._held, self._differ = ranks, differ

    async def post(self, path: str, seconds: float, **send: Any) -> dict[str, Any]:
        assert send["json"]["kwargs"]["name"] == "policy-v3" and len(send["json"]["kwargs"]["tensors"]) == 2
        sums = [{name: [str(each.dtype)[6:], checksum(each)] for name, each in rank.items()} for rank in self._held]
        return {"results": [{"held": held, "differ": list(self._differ)} for held in sums]}


FIRST, SECOND = (f"base_model.model.layers.0.up.lora_{letter}.weight" for letter in "AB")


@pytest.mark.parametrize(
    ("config", "factor"),
    [({}, 2.0), ({"use_rslora": True}, 4.0), ({"rank_pattern": {"layers.0.up": 2}, "alpha_pattern": {"up": 3}}, 1.5)],
)
async def test_an_adapter_is_compared_as_servers_scale_it(
    tmp_path: Path, config: dict[str, Any], factor: float
) -> None:
    first, second = torch.randn(4, 6), torch.randn(5, 4)
    save_file({FIRST: first, SECOND: second}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8, **config}))

    async def compare(*ranks: AdapterRanks) -> ChecksumResult:
        return await compare_adapter([cast(ServerClient, rank) for rank in ranks], 3, tmp_path)

    whole = {FIRST: first, SECOND: second * factor}
    half = {name: tensor.bfloat16() for name, tensor in ((FIRST, first), (SECOND, second))}
    half[SECOND] = half[SECOND] * factor
    assert (await compare(AdapterRanks(whole, whole))).compared == (await compare(AdapterRanks(half))).compared == 2
    for ranks, number in (({FIRST: first, SECOND: second}, 1), ({FIRST: first}, 1), ({}, 2)):
        with pytest.raises(PolicyError, match=rf"http://server .*adapter of v3 .*: {number} of 2 tensors"):
            await compare(AdapterRanks(whole, ranks))
    with pytest.raises(PolicyError, match=r"layers\.0\.up"):
        await compare(AdapterRanks(whole, differ=("layers.0.up",)))
    wrong = AdapterRanks({})
    wrong.address = "http://wrong"
    assert list((await compare(wrong, AdapterRanks(whole))).failed) == ["http://wrong"]
