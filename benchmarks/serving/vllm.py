"""A vLLM server on the CPU against the local engine, and what it costs to publish to it. Needs the
environment of ``make vllm``."""

from __future__ import annotations

import asyncio
import random
import shutil
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from benchmarks import Figure
from tasks_lib.config import PROJECT
from tasks_lib.processes.serving import PYTHON
from training.ledger.checkpoint_files import MANIFEST, file_hashes
from training.ledger.store import write_json
from training.policy.adapters import load_policy
from training.policy.renderer import Renderer
from training.serving.config import ServingConfig
from training.serving.engine import Generation, GenerationRequest
from training.serving.local import LocalModel
from training.serving.vllm.checksums import compare_weights
from training.serving.vllm.client import ServerClient
from training.serving.vllm.command import ServerOptions
from training.serving.vllm.probe import ProbeTurn, TransformersScorer, compare, probe_picture
from training.serving.vllm.service import make_supervisor
from training.serving.vllm.supervisor import Supervisor
from training.trainer.sender import WeightSender

READER = PROJECT / "datasets/policies/reader"
TURNS = (8, 16, 32)
"""At once."""
ROUNDS = 5
"""Of both engines in turn, and of publications; medians are reported."""
TOKENS = 24
"""Of each turn: ends of turns are banned."""
ENDS = ["<|im_end|>", "<|endoftext|>"]
LARGE_LAYERS = 8
"""Of the model with random weights: 0.5 GB."""
LINES = 30
"""Of the page in each prompt, some 300 tokens."""


def figures() -> list[Figure]:
    """Tokens a second, seconds of a publication, and log-probs against those of a forward pass."""
    if not PYTHON.exists():
        print("serving: the part vllm is left out: there is no serving environment (run `make vllm`)", file=sys.stderr)
        return []
    torch.set_num_threads(1)  # models of this size are slower with more
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_figures(Path(folder)))


async def _figures(folder: Path) -> list[Figure]:
    policies = [_policy(folder / "policies", version) for version in range(2)]
    renderer = Renderer(policies[0], "")
    renderer.banned_ids = sorted({*renderer.banned_ids, *renderer.tokenizer.convert_tokens_to_ids(ENDS)})
    local = LocalModel(renderer, "cpu")
    local.load(0, policies[0])
    async with _server(folder, policies[0], renderer) as supervisor:
        client = supervisor.replicas[0].client
        found = []
        for turns in TURNS:
            found += await _rates(local, client, renderer, turns)
        found += await _log_probs(local, client, renderer, policies[0])
        found += await _publications(supervisor, renderer, policies)
    large = [_large_policy(folder / "large", version) for version in range(2)]
    async with _server(folder / "large", large[0], renderer) as supervisor:
        return found + await _large_publications(supervisor, large) + await _broadcasts(supervisor, large)


def _policy(root: Path, version: int) -> Path:
    """The reader, or one with noise on all of its weights."""
    folder = root / f"v{version:06d}"
    shutil.copytree(READER, folder, ignore=shutil.ignore_patterns("recipe.json"))
    for path in folder.iterdir():
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(version)
    for _, tensor in sorted(weights.items()):
        tensor += version * 0.02 * torch.randn(tensor.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _large_policy(root: Path, version: int) -> Path:
    """A model of the reader's kind with 0.5 GB of random weights."""
    folder = _policy(root / "policies", version)
    config = AutoConfig.from_pretrained(folder)
    text = config.text_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 1024, 4096, LARGE_LAYERS
    text.num_attention_heads, text.num_key_value_heads = 16, 8
    text.layer_types = [text.layer_types[0]] * LARGE_LAYERS
    text.rope_parameters["mrope_section"] = [16, 8, 8]
    config.vision_config.hidden_size = config.hidden_size = text.hidden_size
    torch.manual_seed(version)
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


@asynccontextmanager
async def _server(folder: Path, policy: Path, renderer: Renderer) -> AsyncIterator[Supervisor]:
    options = ServerOptions(
        model=policy,
        weights_root=policy.parent,
        serving=ServingConfig(max_turns=max(TURNS)),
        python=PYTHON,
        dtype="float32",
        max_model_len=2048,
        flags={"enforce_eager": True},
    )
    (folder / "logs").mkdir(parents=True)
    supervisor = make_supervisor(options, renderer, folder / "logs")
    await supervisor.start(0, policy)
    try:
        yield supervisor
    finally:
        await supervisor.close()


def _requests(renderer: Renderer, name: str, turns: int) -> list[GenerationRequest]:
    """Turns over pages and pictures of their own: no prefix and no image is known."""
    found = []
    for turn in range(turns):
        draws = random.Random(f"{name}/{turn}")
        picture = probe_picture(draws.randrange(2**31))
        page = "\n".join(f'[{line}] button "{draws.randrange(10_000)}"' for line in range(LINES))
        prompt = renderer.encode(f"{page}\nTask: click the button {draws.randrange(10_000)}", [picture.size])
        key = f"{name}/{turn}"
        found.append(GenerationRequest(prompt, (picture,), key, key, 0, TOKENS, 1.0))
    return found


async def _ask(client: ServerClient, requests: Sequence[GenerationRequest], version: int = 0) -> list[Generation]:
    return list(await asyncio.gather(*(client.generate(request, version) for request in requests)))


async def _rates(local: LocalModel, client: ServerClient, renderer: Renderer, turns: int) -> list[Figure]:
    """Tokens a second of both engines, in turns, on the same prompts."""
    rates: dict[str, list[float]] = {"local": [], "vllm": []}
    for number in range(ROUNDS):
        requests = _requests(renderer, f"{turns}/{number}", turns)
        begun = time.perf_counter()
        made = local.generate(requests)
        middle = time.perf_counter()
        asked = await _ask(client, requests)
        end = time.perf_counter()
        rates["local"].append(sum(len(each.token_ids) for each in made) / (middle - begun))
        rates["vllm"].append(sum(len(each.token_ids) for each in asked) / (end - middle))
    ratio = statistics.median(ours / theirs for theirs, ours in zip(rates["local"], rates["vllm"], strict=True))
    return [
        Figure(f"tokens per second, local engine, {turns} turns", statistics.median(rates["local"]), "1/s", ""),
        Figure(f"vLLM / local engine, {turns} turns", ratio, "ratio", ""),
    ]


async def _log_probs(local: LocalModel, client: ServerClient, renderer: Renderer, policy: Path) -> list[Figure]:
    """Mean |difference| from a forward pass of transformers in float32."""
    requests = _requests(renderer, "log-probs", 8)
    scorer = TransformersScorer(renderer)
    found = []
    for name, made in (("local engine", local.generate(requests)), ("vLLM", await _ask(client, requests))):
        turns = [ProbeTurn(request, generation) for request, generation in zip(requests, made, strict=True)]
        difference = compare(turns, scorer(policy, turns)).mean
        found.append(Figure(f"log-probs, {name} against a forward pass", difference, "nats", "<= 0.0001"))
    return found


async def _publications(supervisor: Supervisor, renderer: Renderer, policies: Sequence[Path]) -> list[Figure]:
    """Seconds from the call to a token of the new version, and the server's pause, while turns are
    in flight."""
    client = supervisor.replicas[0].client
    first_token, pauses = [], []
    for number in range(1, ROUNDS + 1):
        in_flight = asyncio.create_task(_ask(client, _requests(renderer, f"in-flight/{number}", 8), number - 1))
        await asyncio.sleep(0.1)
        (short,) = (replace(each, max_new_tokens=1) for each in _requests(renderer, f"first/{number}", 1))
        begun = time.perf_counter()
        publication = await supervisor.publish(number, policies[number % 2])
        (generation,) = await _ask(client, [short], number)
        first_token.append(time.perf_counter() - begun)
        assert [span.version for span in generation.version_spans] == [number]
        pauses.append(publication.pause_seconds)
        await in_flight
    return [
        Figure("publish to first token of the new version", statistics.median(first_token), "s", "<= 1"),
        Figure("pause of a publication", statistics.median(pauses), "s", "<= 0.25"),
    ]


async def _large_publications(supervisor: Supervisor, policies: Sequence[Path]) -> list[Figure]:
    """The server's pause by the size of the weights, and the seconds to compare its weights."""
    size = sum(path.stat().st_size for path in policies[0].glob("*.safetensors")) / 1e9
    clients = [replica.client for replica in supervisor.replicas]
    pauses, compared = [], []
    for number in range(1, ROUNDS + 1):
        publication = await supervisor.publish(number, policies[number % 2])
        pauses.append(publication.pause_seconds)
        begun = time.perf_counter()
        result = await compare_weights(clients, number, policies[number % 2])
        compared.append(time.perf_counter() - begun)
        assert result.compared == result.tensors
    return [
        Figure("pause of a publication per 10 GB", statistics.median(pauses) / size * 10, "s", "<= 1"),
        Figure("comparison of weights per 10 GB", statistics.median(compared) / size * 10, "s", ""),
    ]


async def _broadcasts(supervisor: Supervisor, policies: Sequence[Path]) -> list[Figure]:
    """The pause where weights are broadcast (gloo, loopback) over the pause where they are read, in
    turns."""
    sender = WeightSender("127.0.0.1", "", torch.device("cpu"))
    models = [load_policy(policy, torch.float32) for policy in policies]
    pauses: dict[bool, list[float]] = {True: [], False: []}
    for number in range(10, 10 + 2 * ROUNDS):
        policy, model, broadcast = policies[number % 2], models[number % 2], number % 4 < 2
        names = {name for name, _ in model.named_parameters()}
        weights = {name: value for name, value in model.state_dict().items() if name in names}
        sender.offer(number, model, weights, policy)
        document = {"sender": sender.name if broadcast else "", "files": file_hashes(policy)}
        write_json(policy / MANIFEST, document, sealed=True)
        publication = await supervisor.publish(number, policy)
        assert publication.broadcast == broadcast
        pauses[broadcast].append(publication.pause_seconds)
    sender.close()
    ratio = statistics.median(pauses[True]) / statistics.median(pauses[False])
    return [Figure("pause of a publication, broadcast / read from disk", ratio, "ratio", "")]
