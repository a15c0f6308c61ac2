"""Policy checkpoints of a run: the base is version 0, the trainer publishes the others.

An evaluation publishes the checkpoint that it evaluates.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, TypeVar, cast

from envs.types import ConfigError, PolicyError, ReadError, StorageError
from tasks_lib.config import PROJECT, EvaluateConfig, TrainConfig, WarmStartConfig, resolve_checkpoint
from tasks_lib.folder.frozen_config import read_frozen
from training.ledger.aliases import check_alias
from training.ledger.checkpoint_files import MANIFEST, check_checkpoint_files, check_not_removed, file_hashes
from training.ledger.disk import folder_bytes, raise_disk_errors
from training.ledger.paths import policy_name
from training.ledger.store import RunStore
from training.policy.adapters import MODEL_WEIGHTS, base_of, has_whole_model, is_adapter, merge_adapter
from training.policy.templates import MODEL_TEMPLATES, derive_template, model_type, template_names

MERGED_FROM = "merged_from"
"""Manifest key of a version merged from an adapter. It holds name, size and hash of the adapter's
files."""
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")
"""Tokenizer files; a checkpoint has at least one of them."""

HUB_ID = re.compile(
    r"(?:hf:/+|(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co|(?P<modelscope>modelscope\.(?:cn|ai)))/+(?:models/)?)?"
    r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?:\.git)?(?:(?:/(?:tree|blob|resolve)/|@)(?P<revision>[\w.-]+)(?:/.*)?)?/*"
)
"""Pattern of a model hub's repository, owner and name. It is bare, or in an address in the form of
a path (with one slash for two)."""
OWN_FOLDERS = frozenset({"checkpoints", "datasets", "models", "runs"})
"""First parts of relative paths that name missing folders, not owners on a hub."""
RECIPE_TEMPLATE = "qwen2_vl"
"""Chat template of the model that a warm start's recipe pre-trains, a tiny Qwen2-VL."""


def check_checkpoint(checkpoint: Path, key: str = "policy.checkpoint") -> None:
    """Check that the folder is a complete checkpoint, before anything is started.

    Raises:
        PolicyError: it is no vision-language checkpoint, has no tokenizer or weights, or one of its
            files is damaged; names the ``key`` of the configuration.
    """
    try:
        check_alias(checkpoint)
    except PolicyError as error:
        raise PolicyError(f"{key}: {error}") from None
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
    """Check that an adapter's base exists, and that both are complete."""
    try:
        base = base_of(folder)
        check_checkpoint_files(folder)
    except ReadError:
        raise
    except (PolicyError, StorageError) as error:
        raise PolicyError(f"{key}: {error}") from error
    check_checkpoint(base, key)


def _other_format(checkpoint: Path) -> str:
    """Describe weights in another format than Hugging Face's, and what to do. Empty if there are
    none."""
    if has_whole_model(checkpoint):
        return ""
    if (checkpoint.suffix == ".gguf" and checkpoint.is_file()) or any(checkpoint.glob("*.gguf")):
        return "holds GGUF weights, which cannot be trained; give the Hugging Face folder that they were made from"
    return ""


def _fetch_hint(checkpoint: Path, key: str) -> str:
    """Say how to fetch a hub's repository, if the path looks like one.

    Empty if it does not, or if a folder is there.
    """
    roots = (root for root in (PROJECT, PROJECT.resolve()) if checkpoint.is_relative_to(root))
    path_in_project = next((checkpoint.relative_to(root) for root in roots), checkpoint)
    match = HUB_ID.fullmatch(str(path_in_project))
    is_address = match is not None and match.start("id") > 0
    if (
        match is None
        or checkpoint.exists()
        or (not is_address and (path_in_project.parts[0] in OWN_FOLDERS or path_in_project.parent.exists()))
    ):
        return ""
    hub, revision, folder = match["id"], match["revision"], match["id"].split("/")[1]
    command = f"hf download {hub} --local-dir {folder}"
    if match["modelscope"]:
        command = f"modelscope download --model {hub} --local_dir {folder}"
    if revision not in (None, "main", "master"):
        command += f" --revision {revision}"
    return (
        f"{key}: there is no folder {hub}, and nothing is downloaded from a model hub; "
        f"fetch it first, in {PROJECT}: {command}, then set {key}={folder}"
    )


Config = TypeVar("Config", bound=TrainConfig | EvaluateConfig | WarmStartConfig)


def with_template(config: Config) -> Config:
    """Return the configuration with its chat template.

    It is the given one, else the one that its run began with, else the one that its checkpoint
    needs. It stays empty where none is known; `check_model_template` refuses that.
    """
    if config.policy.template:
        return config
    begun = (read_frozen(RunStore(config.run_dir).config_path) or {}).get("config", {}).get("policy") or {}
    template = begun.get("template") or _needed_template(config)
    policy = config.policy.model_copy(update={"template": template})
    return cast(Config, config.model_copy(update={"policy": policy}))


def _needed_template(config: TrainConfig | EvaluateConfig | WarmStartConfig) -> str:
    """Return the template of the checkpoint that a flow starts from."""
    if isinstance(config, WarmStartConfig):
        return derive_template(resolve_checkpoint(config.base)) if config.base else RECIPE_TEMPLATE
    return derive_template(resolve_checkpoint(config.policy.checkpoint))


def check_model_template(checkpoint: Path, template: str) -> None:
    """Raise ``ConfigError`` if a chat template does not fit the checkpoint's model.

    Prompts and placeholders would be another model's. A template that does not exist is not checked
    here, nor a model and a template that both belong to no known family.
    """
    kind = model_type(checkpoint)
    if not template:
        raise ConfigError(
            f"policy.template: the chat template of {checkpoint}, which is a {kind} model, cannot be derived; "
            f"set the LLaMA-Factory template of that model"
        )
    templates, known_templates = (
        MODEL_TEMPLATES.get(kind, ()),
        {name for names in MODEL_TEMPLATES.values() for name in names},
    )
    if template in templates or template not in (known_templates | template_names() if templates else known_templates):
        return
    fix = f"set policy.template to {' or '.join(templates)}" if templates else "set the template of that model"
    raise ConfigError(
        f"policy.template: {template} is not a chat template of {checkpoint}, which is a {kind} model; {fix}"
    )


def publish_base(store: RunStore, checkpoint: Path, version: int = 0) -> None:
    """Publish ``checkpoint`` as the first version of a folder, unless it is published. Adapters are
    merged.

    ``StorageError`` when the published one is damaged.
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
    """Return the version number of an evaluated ``checkpoint`` in the evaluation's folder.

    A run's policy keeps its number, any other checkpoint is version 0. A folder that has a policy
    already keeps that policy's number, whatever the name of the checkpoint's folder is now.
    """
    if (published := store.latest_policy()) is not None:
        return published
    name = re.fullmatch(r"v(\d{6})", checkpoint.name)
    is_of_run = checkpoint.parent.name == "policies" and (checkpoint / MANIFEST).exists()
    return int(name[1]) if name and is_of_run else 0


def check_unchanged(store: RunStore, version: int, checkpoint: Path) -> None:
    """Raise ``PolicyError`` if the folder ``checkpoint`` was changed since ``store`` published it.

    A folder that no longer exists is not checked: the evaluation has a copy.
    """
    if version not in store.versions() or not (checkpoint / "config.json").exists():
        return
    manifest, hashes = store.manifest(version), file_hashes(checkpoint)
    published = manifest.get(MERGED_FROM, manifest["files"])
    if changed := sorted(name for name in published.keys() | hashes if published.get(name) != hashes.get(name)):
        raise PolicyError(
            f"policy.checkpoint: {checkpoint} is not what {store.root.name} evaluated: {', '.join(changed[:3])} changed since; "
            f"give another run_id"
        )
