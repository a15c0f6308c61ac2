"""When a page has settled: see `envs.settle`, where it is done."""

from envs.settle import BUDGET_MS, EPOCH_SECONDS, NAVIGATION_BUDGET_MS, VirtualClock

__all__ = ["BUDGET_MS", "EPOCH_SECONDS", "NAVIGATION_BUDGET_MS", "VirtualClock"]
