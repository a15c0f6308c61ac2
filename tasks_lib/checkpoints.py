"""Policy checkpoints of a run: the base is published as version 0, later versions by the trainer. An evaluation publishes what it evaluates."""

from __future__ import annotations

import re
from pathlib import Path

from envs.types import ConfigError, PolicyError, StorageError
from tasks_lib.config.reading import PROJECT
from training.checkpoint_files import MANIFEST, check_checkpoint_files, file_hashes
from training.policy.templates import template_names
from training.store import RunStore, read_json

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")
"""Files of which a checkpoint has one at least."""

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
"""A repository of the Hugging Face hub: owner and name."""
TEMPLATES = {
    "qwen2_vl": ("qwen2_vl",),
    "qwen2_5_vl": ("qwen2_vl", "mimo_vl"),
    "qwen3_vl": ("qwen3_vl_nothink", "qwen3_vl"),
    "qwen3_vl_moe": ("qwen3_vl_nothink", "qwen3_vl"),
}
"""LLaMA-Factory's chat templates of each ``model_type``, the usual one first."""


def check_checkpoint(checkpoint: Path, key: str = "policy.checkpoint") -> None:
    """Check that the folder is a whole checkpoint, before anything is started.

    Raises:
        PolicyError: It is no checkpoint, has no tokenizer, or one of its files is damaged; names the ``key`` of the configuration.
    """
    if (newest := RunStore(checkpoint).latest_policy()) is not None:
        raise PolicyError(
            f"{key}: {checkpoint} is a run; give one of its policies, as {RunStore(checkpoint).policy_path(newest)}"
        )
    missing = "config.json" if not (checkpoint / "config.json").exists() else ""
    if not missing and not any((checkpoint / name).exists() for name in TOKENIZERS):
        missing = f"tokenizer ({' or '.join(TOKENIZERS)})"
    if missing and (hub := _hub_id(checkpoint)):
        raise PolicyError(
            f"{key}: there is no folder {hub}, and nothing is downloaded from the Hugging Face hub; "
            f"fetch it first, and give the folder: hf download {hub} --local-dir {checkpoint.name}"
        )
    if missing:
        raise PolicyError(
            f"{key}: {checkpoint} is no Hugging Face checkpoint folder (it has no {missing}); "
            f"give a folder, or make one with: python -m flows.warm_start"
        )
    try:
        check_checkpoint_files(checkpoint)
    except StorageError as error:
        raise PolicyError(
            f"{key}: {error}; give another checkpoint, or copy this one again from where it came"
        ) from error


def _hub_id(checkpoint: Path) -> str:
    """The path as it was given, if it has the form of a hub id and no folder is there; else empty."""
    given = checkpoint.relative_to(PROJECT) if checkpoint.is_relative_to(PROJECT) else checkpoint
    return str(given) if not checkpoint.exists() and not given.parent.exists() and HUB_ID.fullmatch(str(given)) else ""


def check_model_template(checkpoint: Path, template: str) -> None:
    """``ConfigError`` if a chat template is not one of the checkpoint's model: prompts and placeholders would be another model's.

    A template that does not exist is not looked at here, nor a model and a template that are both of no family above.
    """
    model_type = read_json(checkpoint / "config.json").get("model_type", "")
    own, known = TEMPLATES.get(model_type, ()), {name for names in TEMPLATES.values() for name in names}
    if template in own or template not in (known | template_names() if own else known):
        return
    fix = f"set policy.template to {' or '.join(own)}" if own else "set the template of that model"
    raise ConfigError(
        f"policy.template: {template} is not a chat template of {checkpoint}, which is a {model_type} model; {fix}"
    )


def publish_base(store: RunStore, checkpoint: Path, version: int = 0) -> None:
    """Publish ``checkpoint`` as the first version of a folder, unless it is there.

    ``StorageError`` when what is there is damaged.
    """
    check_checkpoint(checkpoint)
    store.publish_policy(version, checkpoint, {"parent": None, "source": checkpoint.name})
    store.check_policy(version)


def evaluated_version(store: RunStore, checkpoint: Path) -> int:
    """The version that an evaluation of ``checkpoint`` has in its folder: a run's policy keeps its number, any other checkpoint is version 0.

    A folder that has its policy already goes on with that: older evaluations have version 0 whatever they evaluate.
    """
    if (published := store.latest_policy()) is not None:
        return published
    name = re.fullmatch(r"v(\d{6})", checkpoint.name)
    is_of_run = checkpoint.parent.name == "policies" and (checkpoint / MANIFEST).exists()
    return int(name[1]) if name and is_of_run else 0


def check_same(store: RunStore, version: int, checkpoint: Path) -> None:
    """``PolicyError`` if ``checkpoint`` is not what ``store`` has published of it: the folder was written anew since.

    One that is not there any more is not looked at: the evaluation has a copy.
    """
    if version not in store.versions() or not (checkpoint / "config.json").exists():
        return
    published, found = store.manifest(version)["files"], file_hashes(checkpoint)
    if changed := sorted(name for name in published.keys() | found if published.get(name) != found.get(name)):
        raise PolicyError(
            f"policy.checkpoint: {checkpoint} is not what {store.root.name} evaluated: {', '.join(changed[:3])} changed since; "
            f"give another run_id"
        )
