"""Keeps model libraries offline and their messages short."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_model_libraries() -> None:
    """Set offline hubs, no telemetry, and warnings and above only.

    Call it before the first import of LLaMA-Factory.
    """
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "WANDB_DISABLED": "true",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "LLAMAFACTORY_VERBOSITY": "WARN",
    }.items():
        os.environ.setdefault(name, value)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    for name in ("transformers", "datasets", "torchao"):
        logging.getLogger(name).setLevel(logging.ERROR)
