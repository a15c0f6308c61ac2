"""``trainer.llamafactory`` takes the arguments that act in our trainer, and refuses all others by
name."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from llamafactory import hparams, model
from llamafactory.train import trainer_utils
from pydantic import ValidationError
from transformers import Trainer

from envs.types import ConfigError
from training.config import TrainerConfig
from training.trainer.options import ACCEPTED, ADAPTER_OPTIONS, NO_EFFECT, refuse
from training.trainer.rows import read_rows
from training.trainer.setup import build_trainer
from training.trainer.update import Stopwatch, run_update

from .conftest import HandMadeRun, make_spec

KNOWN = {
    argument.name
    for kind in ("ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments", "GeneratingArguments")
    for argument in fields(getattr(hparams, kind))
    if argument.init
}
"""Names that LLaMA-Factory's parser knows."""
OF_TRAINER = (
    "__init__ create_accelerator_and_postprocess _build_accelerator_args create_optimizer get_optimizer_cls_and_kwargs "
    "_wrap_model _prepare_for_training training_step"
)
"""Methods of transformers' trainer that ours runs."""


@pytest.mark.parametrize("finetuning", ["full", "lora"])
def test_each_argument_that_its_parser_knows_is_taken_or_refused_by_name(finetuning: str) -> None:
    taken = set()
    for name in sorted(KNOWN):
        try:
            TrainerConfig(finetuning_type=finetuning, llamafactory={name: None})
            taken.add(name)
        except ValidationError as error:
            assert f"llamafactory: {name} is refused: " in str(error)
    assert taken == (ACCEPTED if finetuning == "lora" else ACCEPTED - ADAPTER_OPTIONS)


def test_what_its_code_reads_here_is_not_said_to_have_no_effect() -> None:
    rooms = [path.read_text() for path in Path(model.__file__).parent.rglob("*.py")]
    rooms += [inspect.getsource(trainer_utils.create_custom_optimizer)]
    rooms += [inspect.getsource(getattr(Trainer, name)) for name in OF_TRAINER.split()]
    read = {name for room in rooms for name in re.findall(r"args\.(\w+)", room)} & KNOWN
    assert {"flash_attn", "use_dora", "rope_scaling", "adam_epsilon", "full_determinism"} <= read
    assert not [name for name in read - TrainerConfig.model_fields.keys() if refuse(name, lora=True) == NO_EFFECT]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("learning_rate", r"set trainer\.learning_rate; it takes adam_epsilon, ddp_timeout, flash_attn"),
        ("quantization_bit", "it changes the weights that adapters are added to"),
        ("use_dora", "servers would leave out its magnitudes"),
        ("additional_target", "servers load adapters of linear layers"),
        ("adapter_name_or_path", r"policy\.checkpoint names"),
        ("use_dft_loss", "set algorithm"),
        ("flash_atn", NO_EFFECT),
    ],
)
def test_a_refusal_says_what_to_use_instead(name: str, reason: str) -> None:
    for value in (False, "x"):
        with pytest.raises(ValidationError, match=f"llamafactory: {name} is refused: .*{reason}"):
            TrainerConfig(llamafactory={name: value})


def test_options_of_adapters_need_adapters() -> None:
    with pytest.raises(ValidationError, match=r"lora_alpha is refused: set trainer\.finetuning_type to lora"):
        TrainerConfig(llamafactory={"lora_alpha": 8})


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch and the environment are as before afterwards."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


@pytest.mark.usefixtures("deterministic")
def test_options_of_the_process_act(run: HandMadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of adapters, of attention and LoRA+ have tests with the numbers that they change."""
    passed: list[dict[str, Any]] = []
    checkpoint = torch.utils.checkpoint.checkpoint

    def watched(*args: Any, **kwargs: Any) -> Any:
        passed.append(kwargs)
        return checkpoint(*args, **kwargs)

    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", watched)
    options = {"adam_epsilon": 3e-7, "ddp_timeout": 7, "use_cpu": True, "full_determinism": True}
    settings = {"gradient_checkpointing": True, "llamafactory": options | {"use_reentrant_gc": False}}
    trainer = build_trainer(run.store, make_spec(trainer=settings), 0)
    batch = run.fill(1, 2)
    run_update(trainer, batch, read_rows(run.store, batch), Stopwatch())
    assert {group["eps"] for group in trainer.optimizer.param_groups} == {3e-7}
    assert trainer.args.ddp_timeout_delta.total_seconds() == 7 and trainer.args.device.type == "cpu"
    assert torch.are_deterministic_algorithms_enabled()
    assert passed and all(kwargs["use_reentrant"] is False for kwargs in passed)


def test_dropout_of_adapters_acts(run: HandMadeRun) -> None:
    settings = {"finetuning_type": "lora", "lora_rank": 4, "llamafactory": {"lora_dropout": 0.5}}
    modules = build_trainer(run.store, make_spec(trainer=settings), 0).model.named_modules()
    assert {layer.p for name, layer in modules if name.endswith("lora_dropout.default")} == {0.5}


def test_adapters_that_no_layer_takes_are_refused(run: HandMadeRun) -> None:
    spec = make_spec(trainer={"finetuning_type": "lora", "llamafactory": {"lora_target": "q_prj"}})
    with pytest.raises(
        ConfigError, match=r"trainer\.llamafactory: lora_target 'q_prj' cannot be used: .*target_modules"
    ):
        build_trainer(run.store, spec, 0)
