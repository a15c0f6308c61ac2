"""A real vLLM server serves what the trainer trains, before and after publications; and what would
go wrong shows."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from envs.types import PolicyError, StorageError
from training.ledger.checkpoint_files import file_hashes
from training.ledger.store import write_json
from training.policy.renderer import Renderer
from training.serving.engine import Generation, GenerationRequest, Picture
from training.serving.vllm.client import GENERATE, ServerClient
from training.serving.vllm.probe import (
    Probe,
    probe_picture,
    probe_requests,
)
from training.serving.vllm.publishing import publish
from training.serving.vllm.supervisor import Replica, Supervisor

from .conftest import Policy, Served, copy_policy
from .judging import EXACT, WRONG, Judge, ask

pytestmark = pytest.mark.vllm

ENOUGH = 20
"""Tokens of one version that tell it from another; a single one may be as likely in both."""


@pytest.mark.parametrize("images", [1, 2])
async def test_log_probs_are_those_of_transformers(
    client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge, images: int
) -> None:
    folder = policy(1)
    await publish([client], 1, folder)
    request = ask(renderer, *(probe_picture(seed) for seed in range(images)))
    turn = await client.generate(request, 1)
    assert len(turn.token_ids) == 24 and turn.finish_reason == "length"
    result = differ(folder, request, turn)
    print(f"{images} images: {result}")
    assert result.maximum <= EXACT
    assert differ(policy(2), request, turn).maximum > WRONG


async def test_a_published_policy_is_served_from_then_on(
    client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge
) -> None:
    request = ask(renderer, probe_picture(0))
    for version in (1, 2):
        publication = await publish([client], version, policy(version))
        begun = time.monotonic()
        first = await client.generate(replace(request, max_new_tokens=1), version)
        print(f"{publication}, then the first token after {time.monotonic() - begun:.3f} s")
        turn = await client.generate(request, version)
        assert [span.version for span in (*first.version_spans, *turn.version_spans)] == [version, version]
        assert differ(policy(version), request, turn).maximum <= EXACT
        assert differ(policy(3 - version), request, turn).maximum > WRONG


async def test_turns_in_flight_go_on_with_tokens_of_one_version_each(
    client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge
) -> None:
    seconds = 1.5
    for _ in range(12):  # until the publication is in the middle of both, on a fast or a slow machine
        await publish([client], 1, policy(1))
        requests = [ask(renderer, probe_picture(index), key=f"turn/{index}", tokens=500) for index in range(2)]
        # Known prefixes: vLLM leaves out their pictures, and needs them once caches are cleared.
        await asyncio.gather(*(client.generate(replace(one, max_new_tokens=1), 1) for one in requests))
        turns = [asyncio.ensure_future(client.generate(request, 1)) for request in requests]
        await asyncio.sleep(seconds)
        print(await publish([client], 2, policy(2)))
        answered = await asyncio.gather(*turns)
        before = [turn.version_spans[0].end if turn.version_spans[0].version == 1 else 0 for turn in answered]
        if all(ENOUGH <= tokens <= 500 - ENOUGH for tokens in before):
            break
        seconds = seconds + 0.3 if min(before) < ENOUGH else seconds / 2
    for request, turn in zip(requests, answered, strict=True):
        print(turn.version_spans)
        assert [span.version for span in turn.version_spans] == [1, 2]
        assert (turn.version_spans[0].start, turn.version_spans[-1].end) == (0, 500)
        for span in turn.version_spans:
            assert _part(differ, policy(span.version), request, turn, span.start, span.end) <= EXACT
            assert _part(differ, policy(3 - span.version), request, turn, span.start, span.end) > WRONG


def _part(differ: Judge, folder: Path, request: GenerationRequest, turn: Generation, start: int, end: int) -> float:
    """The largest difference of the tokens ``start`` to ``end - 1``: what comes before them is
    prompt."""
    ids = (*request.prompt.ids, *turn.token_ids[:start])
    longer = replace(request, prompt=replace(request.prompt, ids=ids))
    return differ(
        folder, longer, replace(turn, token_ids=turn.token_ids[start:end], logprobs=turn.logprobs[start:end])
    ).maximum


async def test_the_probe_finds_a_stale_tied_head(client: ServerClient, renderer: Renderer, policy: Policy) -> None:
    """vLLM's own reload leaves the packed copy of a tied head as it was."""
    await publish([client], 1, policy(1))
    await client.post(
        "/collective_rpc", 60, json={"method": "reload_weights", "kwargs": {"weights_path": str(policy(2))}}
    )
    await client.post("/update_weight_version", 60, json={"new_version": "2"})
    with pytest.raises(PolicyError, match="does not serve v2"):
        await Probe(renderer).check([client], 2, policy(2))
    await publish([client], 2, policy(2))
    await Probe(renderer, images=2).check([client], 2, policy(2))
    with pytest.raises(PolicyError, match="serves v2 and not v1"):
        await Probe(renderer).check([client], 1, policy(1))


class OldNames(ServerClient):
    """Names images by version 1, whichever is served."""

    def _content_part(self, picture: Picture, version: int) -> dict[str, str]:
        return super()._content_part(picture, 1)


async def test_a_version_in_the_name_of_an_image_keeps_its_embedding_fresh(
    client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge
) -> None:
    """With kept caches an image would be what the vision tower of the version before made of it."""
    tower = _with_other_tower(policy(1))
    request = ask(renderer, probe_picture(7))
    old_names = OldNames(client.address, banned=renderer.banned_ids)
    await publish([client], 1, policy(1))
    await client.generate(request, 1)
    await publish([client], 2, tower, update="fast")
    stale = await old_names.generate(request, 2)
    assert differ(tower, request, stale).maximum > WRONG
    fresh = await client.generate(request, 3)  # a salt of its own, so that the prefix of the turn before is not taken
    assert differ(tower, request, fresh).maximum <= EXACT
    await publish([client], 2, tower)
    cleared = await old_names.generate(request, 2)
    assert differ(tower, request, cleared).maximum <= EXACT
    await old_names.close()


async def test_a_second_run_finds_nothing_of_the_first(served: Served, renderer: Renderer, policy: Policy) -> None:
    """Both have a version 1, by which prefixes and images are cached; the probe's prompts are the
    same ones."""
    for folder in (policy(1), policy(2)):
        run = Supervisor([Replica(served.client(renderer))], served.root, update="fast", probe=Probe(renderer))
        await run.start(1, folder)
        await run.close()


def _with_other_tower(folder: Path) -> Path:
    target = folder.with_name(f"{folder.name}-tower")
    if not target.exists():
        copy_policy(target)
        weights = load_file(folder / "model.safetensors")
        generator = torch.Generator().manual_seed(9)
        for name, tensor in sorted(weights.items()):
            if name.startswith("visual"):
                tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


async def test_a_version_as_salt_keeps_prefixes_fresh(
    client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge
) -> None:
    await publish([client], 1, policy(1))
    request = ask(renderer, probe_picture(8))
    await client.generate(request, 1)
    await publish([client], 2, policy(2), update="fast")
    stale = await client.generate(request, 1)  # with the salt of the version before
    assert differ(policy(2), request, stale).maximum > WRONG
    fresh = await client.generate(request, 2)
    assert differ(policy(2), request, fresh).maximum <= EXACT


@pytest.mark.parametrize("fault", ["missing", "reshaped", "damaged", "empty", "outside"])
async def test_a_bad_folder_leaves_the_old_weights(
    client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge, tmp_path: Path, served: Served, fault: str
) -> None:
    await publish([client], 1, policy(1))
    bad, reason = _bad_folder(fault, policy, served, tmp_path)
    with pytest.raises(StorageError if fault == "damaged" else PolicyError, match=reason):
        await publish([client], 5, bad)
    assert await client.weight_version() == 1
    request = ask(renderer, probe_picture(1), key=f"turn/{fault}")
    assert differ(policy(1), request, await client.generate(request, 1)).maximum <= EXACT


def _bad_folder(fault: str, policy: Policy, served: Served, tmp_path: Path) -> tuple[Path, str]:
    """A folder that cannot be served, and what the server says of it."""
    if fault == "outside":
        copy_policy(tmp_path / "elsewhere")
        return tmp_path / "elsewhere", "is not below"
    folder = served.root / f"bad-{fault}"
    copy_policy(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    if fault == "missing":
        del weights["model.norm.weight"]
        save_file(weights, file, metadata={"format": "pt"})
        return folder, r"1 missing \(model.norm.weight\)"
    if fault == "reshaped":
        weights["model.norm.weight"] = torch.ones(64)
        save_file(weights, file, metadata={"format": "pt"})
        return folder, r"model.norm.weight is \(64,\), expected \(128,\)"
    if fault == "empty":
        file.unlink()
        return folder, "has no .*safetensors"
    write_json(folder / "manifest.json", {"files": file_hashes(folder)}, sealed=True)
    save_file({name: tensor + 1 for name, tensor in weights.items()}, file, metadata={"format": "pt"})
    return folder, "does not hold what manifest.json says"


async def test_many_long_prompts_at_once_are_answered(
    client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge
) -> None:
    """On the CPU the server would die of a prompt that is taken in pieces."""
    await publish([client], 1, policy(1))
    requests = [ask(renderer, probe_picture(100 + index), key=f"many/{index}", tokens=4) for index in range(12)]
    turns = await asyncio.gather(*(client.generate(request, 1) for request in requests))
    assert differ(policy(1), requests[-1], turns[-1]).maximum <= EXACT


async def test_an_image_by_reference_gives_the_same_turn(
    client: ServerClient, renderer: Renderer, policy: Policy, served: Served
) -> None:
    await publish([client], 1, policy(1))
    picture = probe_picture(3)
    path = served.media / f"{hashlib.sha256(picture.jpeg).hexdigest()}.jpg"
    path.write_bytes(picture.jpeg)
    sent = await client.generate(ask(renderer, picture), 1)
    read = await client.generate(ask(renderer, replace(picture, path=path)), 1)
    assert sent == read
    other = await client.generate(ask(renderer, picture, key="another"), 1)
    assert other.token_ids != sent.token_ids


async def test_another_prompt_than_ours_is_refused(client: ServerClient, renderer: Renderer, policy: Policy) -> None:
    await publish([client], 1, policy(1))
    request = ask(renderer, probe_picture(0))
    twice = replace(request, prompt=replace(request.prompt, short_ids=request.prompt.ids))
    with pytest.raises(PolicyError, match="one placeholder for each image"):
        await client.generate(twice, 1)
    with pytest.raises(PolicyError, match="1 image placeholders and 0 pictures"):
        await client.generate(replace(request, pictures=()), 1)


async def test_a_request_without_its_image_is_no_fault_of_the_engine(client: ServerClient, renderer: Renderer) -> None:
    """vLLM answers 500; asking again would give the same."""
    body = {
        "model": "policy",
        "token_ids": [1, 2, 3],
        "content_parts": [_part_of(probe_picture(0))],
        "sampling_params": {"max_tokens": 2},
    }
    with pytest.raises(PolicyError, match="500"):
        await client.post(GENERATE, 60, json=body)


def _part_of(picture: Picture) -> dict[str, str]:
    return ServerClient("http://127.0.0.1:1")._content_part(picture, 0)


async def test_a_prompt_without_room_for_its_turn_overflows(client: ServerClient, renderer: Renderer) -> None:
    turn = await client.generate(ask(renderer, probe_picture(0), tokens=2000), 1)
    assert turn == Generation((), (), (), "context_overflow")


async def test_probe_prompts_are_longer_than_a_prefix_block(renderer: Renderer) -> None:
    lengths = [len(request.prompt.ids) for request in probe_requests(renderer, 3, images=2)]
    assert min(lengths) > 2 * 128
