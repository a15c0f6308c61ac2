"""The configuration of a run: one shallow tree with presets, overrides and validation.

Errors name the key.

Later sources override earlier ones: defaults, the preset (``deployments/presets/NAME.yaml``), and
given values. Values are given by ``--set key.sub=value``, by the parameters of a deployment
(`parameters`), or by a caller.
"""

from tasks_lib.config.parts import (
    ClusterConfig,
    EndpointConfig,
    RewardConfig,
    RolloutConfig,
    TasksConfig,
    TeacherConfig,
    describe_split,
)
from tasks_lib.config.reading import (
    PRESETS,
    PROJECT,
    RUN_NAME,
    load_preset,
    merge,
    parse_assignments,
    presets_of,
    resolve,
    resolve_checkpoint,
    resolve_path,
)
from tasks_lib.config.runs import EvaluateConfig, FolderConfig, RunConfig, TrainConfig, WarmStartConfig, check_preset
from tasks_lib.config.values import Flag

__all__ = [
    "PRESETS",
    "PROJECT",
    "RUN_NAME",
    "ClusterConfig",
    "EndpointConfig",
    "EvaluateConfig",
    "Flag",
    "FolderConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "TasksConfig",
    "TeacherConfig",
    "TrainConfig",
    "WarmStartConfig",
    "check_preset",
    "describe_split",
    "load_preset",
    "merge",
    "parse_assignments",
    "presets_of",
    "resolve",
    "resolve_checkpoint",
    "resolve_path",
]
