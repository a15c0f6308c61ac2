"""The plain types that every part of Rollwright speaks, and its one exception tree.

Nothing here does I/O or imports a browser, torch or Prefect; it is the only package that ``envs`` and ``training`` share.
The words follow docs/concepts.md: a *task* is attempted in *episodes*, the record of an episode is a *trajectory* of *steps*, the K
episodes of one task and seed form a *group*, and an episode with no usable reward is an *abstention*.
"""

from envs.types.actions import Action, Click, Invalid, Select, Type
from envs.types.errors import (
    BrowserError,
    ConfigError,
    JudgeError,
    PolicyError,
    RollwrightError,
    SiteError,
    StorageError,
    TaskError,
    TrainingError,
)
from envs.types.observations import Element, ElementChange, Hidden, Observation, ObservationDiff
from envs.types.record import Record
from envs.types.rewards import RewardBundle, RewardPart
from envs.types.tasks import SeedRange, Split, WebTask
from envs.types.trajectories import TRAJECTORY_SCHEMA, Step, StepSeconds, StopReason, Trajectory

__all__ = [
    "TRAJECTORY_SCHEMA",
    "Action",
    "BrowserError",
    "Click",
    "ConfigError",
    "Element",
    "ElementChange",
    "Hidden",
    "Invalid",
    "JudgeError",
    "Observation",
    "ObservationDiff",
    "PolicyError",
    "Record",
    "RewardBundle",
    "RewardPart",
    "RollwrightError",
    "SeedRange",
    "Select",
    "SiteError",
    "Split",
    "Step",
    "StepSeconds",
    "StopReason",
    "StorageError",
    "TaskError",
    "TrainingError",
    "Trajectory",
    "Type",
    "WebTask",
]
