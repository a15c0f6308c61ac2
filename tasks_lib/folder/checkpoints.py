"""Policy checkpoints of a run: the base is version 0, the trainer publishes others.

An evaluation publishes what it evaluates.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, TypeVar, cast

from envs.types import ConfigError, PolicyError, ReadError, StorageError
from tasks_lib.config import PROJECT, EvaluateConfig, TrainConfig, WarmStartConfig, resolve_path
from tasks_lib.folder.frozen_config import read_frozen
from training.ledger.checkpoint_files import MANIFEST, check_checkpoint_files, check_not_removed, file_hashes
from training.ledger.disk import folder_bytes, raise_disk_errors
from training.ledger.store import RunStore, policy_name
from training.policy.adapters import MODEL_WEIGHTS, base_of, has_whole_model, is_adapter, merge_adapter
from training.policy.templates import MODEL_TEMPLATES, derive_template, model_type, template_names

MERGED_FROM = "merged_from"
"""In the manifest of a version that was merged from an adapter: name, size and hash of the adapter's files."""
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")
"""Files of which a checkpoint has one at least."""

HUB_ID = re.compile(
    r"(?:hf:/+|(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co|(?P<modelscope>modelscope\.(?:cn|ai)))/+(?:models/)?)?"
    r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?:\.git)?(?:(?:/(?:tree|blob|resolve)/|@)(?P<revision>[\w.-]+)(?:/.*)?)?/*"
)
"""A repository of a model hub, owner and name: bare or in an address, as a path holds it (with one slash for two)."""
OWN_FOLDERS = frozenset({"checkpoints", "datasets", "models", "runs"})
"""First parts of relative paths that are taken for folders that are not there, not for owners on a hub."""
RECIPE_TEMPLATE = "qwen2_vl"
"""Chat template of what a warm start's recipe pre-trains, a tiny Qwen2-VL."""


def check_checkpoint(checkpoint: Path, key: str = "policy.checkpoint") -> None:
    """Check that the folder is a whole checkpoint, before anything is started.

    Raises:
        PolicyError: It is no vision-language checkpoint, has no tokenizer or weights, or one of its files is damaged;
            names the ``key`` of the configuration.
    """
    if (newest := RunStore(checkpoint).latest_policy()) is not None:
        raise PolicyError(
            f"{key}: {checkpoint} is a run; give one of its policies, as {RunStore(checkpoint).policy_path(newest)}"
        )
    try:
        check_not_removed(checkpoint)
    except StorageError as error:
        raise PolicyError(f"{key}: {error}") from error
    if other := _other_format(checkpoint):
        raise PolicyError(f"{key}: {checkpoint} {other}")
    if is_adapter(checkpoint):
        _check_adapter(checkpoint, key)
        return
    missing = "config.json" if not (checkpoint / "config.json").exists() else ""
    if not missing and not any((checkpoint / name).exists() for name in TOKENIZERS):
        missing = f"tokenizer ({' or '.join(TOKENIZERS)})"
    if missing:
        raise PolicyError(
            _fetch_hint(checkpoint, key)
            or f"{key}: {checkpoint} is no Hugging Face checkpoint folder (it has no {missing}); "
            f"give a folder, or make one with: python -m flows.warm_start"
        )
    if not has_whole_model(checkpoint):
        raise PolicyError(
            f"{key}: {checkpoint} has no weights ({' or '.join(MODEL_WEIGHTS)}); copy or download the folder again, whole"
        )
    try:
        check_checkpoint_files(checkpoint)
    except ReadError:
        raise
    except StorageError as error:
        raise PolicyError(
            f"{key}: {error}; give another checkpoint, or copy this one again from where it came"
        ) from error
    if '"vision' not in (checkpoint / "config.json").read_text(encoding="utf-8"):
        raise PolicyError(
            f"{key}: {checkpoint} is a {model_type(checkpoint)} model, which reads text only; give a vision-language model"
        )


def _check_adapter(folder: Path, key: str) -> None:
    """Of an adapter: its base is there, and both are whole."""
    try:
        base = base_of(folder)
        check_checkpoint_files(folder)
    except ReadError:
        raise
    except (PolicyError, StorageError) as error:
        raise PolicyError(f"{key}: {error}") from error
    check_checkpoint(base, key)


def _other_format(checkpoint: Path) -> str:
    """What is there in place of a whole Hugging Face checkpoint, and what to do; empty if nothing of that kind is."""
    if has_whole_model(checkpoint):
        return ""
    if (checkpoint.suffix == ".gguf" and checkpoint.is_file()) or any(checkpoint.glob("*.gguf")):
        return "holds GGUF weights, which cannot be trained; give the Hugging Face folder that they were made from"
    return ""


def _fetch_hint(checkpoint: Path, key: str) -> str:
    """How to get a repository of a hub, if the path has the form of one and no folder is there; else empty."""
    roots = (root for root in (PROJECT, PROJECT.resolve()) if checkpoint.is_relative_to(root))
    given = next((checkpoint.relative_to(root) for root in roots), checkpoint)
    found = HUB_ID.fullmatch(str(given))
    is_address = found is not None and found.start("id") > 0
    if (
        found is None
        or checkpoint.exists()
        or (not is_address and (given.parts[0] in OWN_FOLDERS or given.parent.exists()))
    ):
        return ""
    hub, revision, folder = found["id"], found["revision"], found["id"].split("/")[1]
    command = f"hf download {hub} --local-dir {folder}"
    if found["modelscope"]:
        command = f"modelscope download --model {hub} --local_dir {folder}"
    if revision not in (None, "main", "master"):
        command += f" --revision {revision}"
    return (
        f"{key}: there is no folder {hub}, and nothing is downloaded from a model hub; "
        f"fetch it first, in {PROJECT}: {command}, then set {key}={folder}"
    )


Config = TypeVar("Config", bound=TrainConfig | EvaluateConfig | WarmStartConfig)


def with_template(config: Config) -> Config:
    """The configuration with its chat template: as given, else what its run began with, else what its checkpoint needs.

    It stays empty where none of them says it; `check_model_template` refuses that.
    """
    if config.policy.template:
        return config
    begun = (read_frozen(RunStore(config.run_dir).config_path) or {}).get("config", {}).get("policy") or {}
    template = begun.get("template") or _needed_template(config)
    policy = config.policy.model_copy(update={"template": template})
    return cast(Config, config.model_copy(update={"policy": policy}))


def _needed_template(config: TrainConfig | EvaluateConfig | WarmStartConfig) -> str:
    """The template of the checkpoint that a flow starts from."""
    if isinstance(config, WarmStartConfig):
        return derive_template(resolve_path(config.base)) if config.base else RECIPE_TEMPLATE
    return derive_template(resolve_path(config.policy.checkpoint))


def check_model_template(checkpoint: Path, template: str) -> None:
    """``ConfigError`` if a chat template is not one of the checkpoint's model: prompts and placeholders would be another model's.

    A template that does not exist is not looked at here, nor a model and a template that are both of no family that is known.
    """
    kind = model_type(checkpoint)
    if not template:
        raise ConfigError(
            f"policy.template: the chat template of {checkpoint}, which is a {kind} model, cannot be derived; "
            f"set the LLaMA-Factory template of that model"
        )
    own, known = MODEL_TEMPLATES.get(kind, ()), {name for names in MODEL_TEMPLATES.values() for name in names}
    if template in own or template not in (known | template_names() if own else known):
        return
    fix = f"set policy.template to {' or '.join(own)}" if own else "set the template of that model"
    raise ConfigError(
        f"policy.template: {template} is not a chat template of {checkpoint}, which is a {kind} model; {fix}"
    )


def publish_base(store: RunStore, checkpoint: Path, version: int = 0) -> None:
    """Publish ``checkpoint`` as the first version of a folder, unless it is there: a whole model, also of an adapter.

    ``StorageError`` when what is there is damaged.
    """
    details = {"parent": None, "source": checkpoint.name}
    if version not in store.versions():  # else the checkpoint may be gone by now
        check_checkpoint(checkpoint)
        if is_adapter(checkpoint):
            _publish_merged(store, checkpoint, version, details)
        else:
            store.publish_policy(version, checkpoint, details)
    store.check_policy(version)


def _publish_merged(store: RunStore, adapter: Path, version: int, details: dict[str, Any]) -> None:
    merged = store.policy_path(version).with_name(f".tmp-merged-{policy_name(version)}")
    needed = folder_bytes(base_of(adapter))
    shutil.rmtree(merged, ignore_errors=True)
    try:
        with raise_disk_errors(merged, needed=needed):
            merge_adapter(adapter, merged)
        store.publish_policy(version, merged, {**details, MERGED_FROM: file_hashes(adapter)})
    finally:
        shutil.rmtree(merged, ignore_errors=True)


def evaluated_version(store: RunStore, checkpoint: Path) -> int:
    """The version that an evaluation of ``checkpoint`` has in its folder: a run's policy keeps its number, any other checkpoint is version 0.

    A folder that has its policy already goes on with that: older evaluations have version 0 whatever they evaluate.
    """
    if (published := store.latest_policy()) is not None:
        return published
    name = re.fullmatch(r"v(\d{6})", checkpoint.name)
    is_of_run = checkpoint.parent.name == "policies" and (checkpoint / MANIFEST).exists()
    return int(name[1]) if name and is_of_run else 0


def check_unchanged(store: RunStore, version: int, checkpoint: Path) -> None:
    """``PolicyError`` if ``checkpoint`` is not what ``store`` has published of it: the folder was written anew since.

    One that is not there any more is not looked at: the evaluation has a copy.
    """
    if version not in store.versions() or not (checkpoint / "config.json").exists():
        return
    manifest, found = store.manifest(version), file_hashes(checkpoint)
    published = manifest.get(MERGED_FROM, manifest["files"])
    if changed := sorted(name for name in published.keys() | found if published.get(name) != found.get(name)):
        raise PolicyError(
            f"policy.checkpoint: {checkpoint} is not what {store.root.name} evaluated: {', '.join(changed[:3])} changed since; "
            f"give another run_id"
        )
