"""The engine draws from the distribution that the trainer trains: same tokens, pixels, positions,
temperature and bans.

The reference is the trainer itself (LLaMA-Factory's collator and model loader,
`PolicyTrainer.score`), not a copy of its formulas.
"""

from __future__ import annotations

import errno
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from envs.types import PolicyError, ReadError
from training.ledger.store import RunStore, write_json
from training.policy.bans import banned_ids
from training.policy.renderer import Renderer
from training.serving.engine import Generation, GenerationRequest, Picture, VersionSpan
from training.serving.local import LocalModel
from training.serving.sampling import TokenSampler
from training.trainer.collate import MicroBatch
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.rows import TrainingRow
from training.trainer.setup import build_trainer

from .trainer.conftest import make_spec
from .vision_models import FAMILIES, TEMPLATES, change_json, picture

TEMPERATURE = 0.7
SIZES = [(160, 210), (96, 130), (210, 100), (120, 120)]
"""Of the pictures; none of them is a whole number of patches in both directions."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models of this size are slower with more, and much slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def renderer_of(tiny_checkpoint: Callable[[str], Path]) -> Callable[[str], Renderer]:
    """``renderer_of(family)``: that of a tiny checkpoint."""
    return cache(lambda family: Renderer(tiny_checkpoint(family), TEMPLATES[family]))


@pytest.fixture(scope="module")
def engine_of(
    tiny_checkpoint: Callable[[str], Path], renderer_of: Callable[[str], Renderer]
) -> Callable[[str], LocalModel]:
    """``engine_of(family)``: a model that serves a tiny checkpoint as version 0."""

    def make(family: str) -> LocalModel:
        engine = LocalModel(renderer_of(family), "cpu")
        engine.load(0, tiny_checkpoint(family))
        return engine

    return cache(make)


@pytest.fixture(scope="module")
def trainer_of(
    tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], PolicyTrainer]:
    """``trainer_of(family)``: the trainer of a run that begins with the same checkpoint."""

    def make(family: str) -> PolicyTrainer:
        checkpoint, store = tiny_checkpoint(family), RunStore(tmp_path_factory.mktemp("run"))
        store.publish_policy(0, checkpoint, {})
        bans = tuple(banned_ids(checkpoint))
        return build_trainer(
            store,
            make_spec(template=TEMPLATES[family], temperature=TEMPERATURE, banned_ids=bans),
            0,
        )

    return cache(make)


def requests(engine: LocalModel, tokens: int = 6) -> list[GenerationRequest]:
    """Turns over prompts and pictures of several sizes; the last one is greedy."""
    return [
        GenerationRequest(
            prompt=engine.renderer.encode(
                "Page:\n" + '[1] button "ok"\n' * (1 + 2 * number) + "Task: click it", [size]
            ),
            pictures=(Picture(picture(size, number), size),),
            key=f"e{number}/0",
            episode=f"e{number}",
            seed=5,
            max_new_tokens=tokens + number,
            temperature=TEMPERATURE,
            greedy=number == len(SIZES) - 1,
        )
        for number, size in enumerate(SIZES)
    ]


def micro_batch(trainer: PolicyTrainer, asked: list[GenerationRequest], turns: list[Generation]) -> MicroBatch:
    """All turns as the rows of one forward pass."""
    rows = [
        TrainingRow(
            prompt_ids=request.prompt.ids,
            response_ids=turn.token_ids,
            behaviour=turn.logprobs,
            screenshots=tuple(picture.jpeg for picture in request.pictures),
            advantage=1.0,
        )
        for request, turn in zip(asked, turns, strict=True)
    ]
    micro: MicroBatch = trainer.data_collator.micro_batch(rows, [True] * len(rows))
    return micro


def scores(trainer: PolicyTrainer, asked: list[GenerationRequest], turns: list[Generation]) -> list[torch.Tensor]:
    """What the trainer makes of each turn's tokens."""
    micro = micro_batch(trainer, asked, turns)
    found, _ = trainer.score(micro)
    return [row[mask] for row, mask in zip(found, micro.mask, strict=True)]


def gap(found: list[torch.Tensor], turns: list[Generation]) -> float:
    """The largest difference of a token's two log-probabilities."""
    return float((torch.cat(found) - torch.tensor([value for turn in turns for value in turn.logprobs])).abs().max())


@contextmanager
def changed_weight(trainer: PolicyTrainer) -> Iterator[None]:
    parameter = next(value for name, value in trainer.model.named_parameters() if "layers.0.mlp.up_proj" in name)
    before = parameter.detach().clone()
    with torch.no_grad():
        parameter.mul_(1.2)
        yield
        parameter.copy_(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_the_trainer(
    family: str,
    engine_of: Callable[[str], LocalModel],
    trainer_of: Callable[[str], PolicyTrainer],
) -> None:
    engine, trainer = engine_of(family), trainer_of(family)
    asked = requests(engine)
    turns = engine.generate(asked)
    assert len({len(request.prompt.ids) for request in asked}) == len(asked), "the prompts must differ in length"
    assert len({len(turn.token_ids) for turn in turns}) > 2, "and so must the turns"
    assert gap(scores(trainer, asked, turns), turns) < 2e-5
    # Negative controls: the comparison sees other pixels, other weights and another temperature.
    others = [
        replace(request, pictures=(Picture(picture(size, 99), size),))
        for request, size in zip(asked, SIZES, strict=True)
    ]
    assert gap(scores(trainer, others, turns), turns) > 1e-3
    with changed_weight(trainer):
        assert gap(scores(trainer, asked, turns), turns) > 1e-3
    assert gap(scores(trainer, asked, turns), turns) < 2e-5
    warmer = engine.generate([replace(request, temperature=1.0) for request in asked])
    assert gap(scores(trainer, asked, warmer), warmer) > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_does_not_depend_on_its_company(family: str, engine_of: Callable[[str], LocalModel]) -> None:
    engine = engine_of(family)
    asked = requests(engine)
    together = engine.generate(asked)
    for request, expected in zip(asked, together, strict=True):
        (alone,) = engine.generate([request])
        assert alone.token_ids == expected.token_ids and alone.finish_reason == expected.finish_reason
        assert alone.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert engine.generate([replace(asked[0], key="other")])[0].token_ids != together[0].token_ids
    assert engine.generate([replace(asked[0], seed=6)])[0].token_ids != together[0].token_ids


def test_sampling_draws_from_the_distribution_and_greedy_takes_its_best(
    engine_of: Callable[[str], LocalModel], trainer_of: Callable[[str], PolicyTrainer]
) -> None:
    """The first token of one prompt, drawn often: its mean surprise is the trainer's entropy, its
    counts are as probable as recorded."""
    engine, draws = engine_of("qwen2_vl"), 150
    one = replace(requests(engine)[2], max_new_tokens=1)
    drawn = engine.generate([replace(one, key=f"k{number}") for number in range(draws)])
    _, entropy = trainer_of("qwen2_vl").score(micro_batch(trainer_of("qwen2_vl"), [one], drawn[:1]))
    surprise = -torch.tensor([turn.logprobs[0] for turn in drawn])
    assert float(entropy) > 2
    assert float(surprise.mean()) == pytest.approx(float(entropy), abs=4 * float(surprise.std()) / draws**0.5)
    recorded = {turn.token_ids[0]: turn.logprobs[0] for turn in drawn}
    for token, logprob in recorded.items():
        expected = draws * math.exp(logprob)
        assert sum(turn.token_ids[0] == token for turn in drawn) <= expected + 4.5 * expected**0.5 + 1
    (greedy,) = engine.generate([replace(one, greedy=True)])
    assert greedy.logprobs[0] == pytest.approx(max(recorded.values()), abs=1e-5)


# -- the checkpoint's generation_config.json

FIRST_IDS = list(range(40, 400))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_version_that_comes_within_a_batch_makes_the_later_tokens(
    family: str,
    renderer_of: Callable[[str], Renderer],
    trainer_of: Callable[[str], PolicyTrainer],
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, newer = trainer_of(family), tmp_path / "newer"
    shutil.copytree(tiny_checkpoint(family), newer)
    with changed_weight(trainer):
        trainer.save_weights(newer)
    engine = LocalModel(renderer_of(family), "cpu")
    engine.load(0, tiny_checkpoint(family))
    asked = requests(engine)
    undisturbed = engine.generate(asked)
    loading = threading.Thread(target=engine.load, args=(1, newer))
    passes = []

    def choose(sampler: TokenSampler, *tensors: torch.Tensor) -> torch.Tensor:
        passes.append(len(tensors[0]))
        if len(passes) == 3:
            loading.start()
            while not engine._loading:
                time.sleep(0.001)
        return chosen(sampler, *tensors)

    chosen = TokenSampler.__call__
    monkeypatch.setattr(TokenSampler, "__call__", choose)
    turns = engine.generate(asked)
    loading.join()
    assert engine.policy_version == 1
    for turn, before, request in zip(turns, undisturbed, asked, strict=True):
        assert (turn.token_ids[:3], turn.logprobs[:3]) == (before.token_ids[:3], before.logprobs[:3])
        assert len(turn.token_ids) == request.max_new_tokens or turn.finish_reason == "stop"
        ends = [span.end for span in turn.version_spans]
        assert ends == ([3, len(turn.token_ids)] if len(turn.token_ids) > 3 else [len(turn.token_ids)])
    assert any(len(turn.version_spans) == 2 for turn in turns)
    old = scores(trainer, asked, turns)
    with changed_weight(trainer):
        new = scores(trainer, asked, turns)
    both = [torch.cat([row[:3], other[3:]]) for row, other in zip(old, new, strict=True)]
    assert gap(both, turns) < 1e-4
    assert gap(old, turns) > 1e-3 and gap(new, turns) > 1e-3


SETTINGS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5},
    {"encoder_repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 1},
    {"suppress_tokens": FIRST_IDS},
    {"begin_suppress_tokens": FIRST_IDS},
    {"bad_words_ids": [[token] for token in FIRST_IDS]},
    {"sequence_bias": [[[token], 5.0] for token in FIRST_IDS]},
    {"forced_bos_token_id": 65, "forced_eos_token_id": 66},
    {"exponential_decay_length_penalty": [0, 3.0]},
    {"min_length": 4000},
    {"min_new_tokens": 40},
    {"max_length": 3},
    {"max_new_tokens": 2},
    {"max_time": 0.0},
    {"temperature": 0.1, "top_k": 3, "top_p": 0.2, "do_sample": True},
    {"top_p": 0.2, "typical_p": 0.5, "min_p": 0.4, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": True},
    {"guidance_scale": 3.0},
    {"renormalize_logits": True, "remove_invalid_values": True},
    {"stop_strings": ["a", "e", "o"]},
    {"prompt_lookup_num_tokens": 3},
    {"watermarking_config": {"greenlist_ratio": 0.5, "bias": 4.0}},
    {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
    {"cache_implementation": "static"},
    {"use_cache": False},
    {"bos_token_id": 12, "decoder_start_token_id": 13},
]


@dataclass(frozen=True)
class Served:
    """An engine that serves changed copies of a checkpoint, and the turns of the checkpoint
    itself."""

    engine: LocalModel
    checkpoint: Path
    asked: list[GenerationRequest]
    expected: list[Generation]

    def turns(self, checkpoint: Path) -> list[Generation]:
        """The same turns by another checkpoint, as if they were version 0's."""
        self.engine.load(1, checkpoint)
        try:
            return [
                replace(turn, version_spans=(VersionSpan(0, 0, len(turn.token_ids)),))
                for turn in self.engine.generate(self.asked)
            ]
        finally:
            self.engine.load(0, self.checkpoint)


@pytest.fixture(scope="module")
def served(engine_of: Callable[[str], LocalModel], tiny_checkpoint: Callable[[str], Path]) -> Served:
    engine = engine_of("qwen2_vl")
    asked = requests(engine)
    return Served(engine, tiny_checkpoint("qwen2_vl"), asked, engine.generate(asked))


@pytest.fixture
def copy(served: Served, tmp_path: Path) -> Path:
    """The checkpoint in a folder whose JSON files may be changed; the weights are a link."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(served.checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").symlink_to(served.checkpoint / "model.safetensors")
    return folder


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_the_checkpoint_s_generation_settings_change_nothing(
    settings: dict[str, Any], served: Served, copy: Path
) -> None:
    change_json(copy / "generation_config.json", **settings)
    assert served.turns(copy) == served.expected


def test_settings_in_config_json_change_nothing_either(served: Served, copy: Path) -> None:
    """Older checkpoints have them there, and no generation_config.json."""
    (copy / "generation_config.json").unlink()
    change_json(copy / "config.json", repetition_penalty=1.5, no_repeat_ngram_size=1)
    assert served.turns(copy) == served.expected


@pytest.mark.parametrize("as_list", [False, True])
def test_a_turn_ends_at_the_checkpoint_s_end_tokens(as_list: bool, served: Served, copy: Path) -> None:
    end = served.expected[0].token_ids[2]
    change_json(copy / "generation_config.json", eos_token_id=[757, end] if as_list else end)
    for turn, before in zip(served.turns(copy), served.expected, strict=True):
        stop = before.token_ids.index(end) + 1 if end in before.token_ids else None
        assert (turn.token_ids, turn.logprobs) == (before.token_ids[:stop], before.logprobs[:stop])


def test_a_checkpoint_that_names_no_end_has_its_tokenizer_s(served: Served, copy: Path) -> None:
    write_json(copy / "generation_config.json", {})
    change_json(copy / "config.json", eos_token_id=None)
    assert served.turns(copy) == served.expected
    served.engine.load(1, copy)
    ends = served.engine._model.generation_config.eos_token_id
    served.engine.load(0, served.checkpoint)
    assert ends == served.engine.renderer.encode_response("")


def test_a_policy_with_generation_settings_is_published_and_served(served: Served, copy: Path, tmp_path: Path) -> None:
    """Such settings go through the trainer's checkpoint and back into the engine."""
    change_json(copy / "generation_config.json", repetition_penalty=1.05, temperature=1e-6, do_sample=False)
    store = RunStore(tmp_path / "run")
    store.publish_policy(0, copy, {})
    trainer = build_trainer(store, make_spec(temperature=TEMPERATURE), 0)
    (copy / "model.safetensors").unlink()
    trainer.save_weights(copy)
    assert served.turns(copy) == served.expected


def test_an_engine_without_a_policy_says_so(renderer_of: Callable[[str], Renderer]) -> None:
    with pytest.raises(PolicyError, match="no policy yet"):
        LocalModel(renderer_of("qwen2_vl"), "cpu").generate([])


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (OSError(errno.ESTALE, "Stale file handle"), ReadError),
        (SafetensorError("Error while deserializing: IoError(Input/output error (os error 5))"), ReadError),
        (OSError("Error no file named model.safetensors found in directory"), PolicyError),
        (SafetensorError("Error while deserializing header: HeaderTooLarge"), PolicyError),
    ],
    ids=repr,
)
def test_a_storage_failure_is_not_blamed_on_the_checkpoint(
    served: Served, copy: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, kind: type[Exception]
) -> None:
    """A fault that may pass is retried (`tasks_lib.processes.retries`) and leaves the engine as it
    was; a wrong checkpoint is final."""

    def fail(*_: object, **__: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("transformers.AutoModelForImageTextToText.from_pretrained", fail)
        with pytest.raises(kind, match=re.escape(str(copy))) as said:
            served.engine.load(1, copy)
    assert type(said.value) is kind and served.engine.policy_version == 0
    assert served.turns(copy) == served.expected
