"""An issue tracker: projects, tickets with status, priority, assignee, labels and comments."""

from envs.bundled.sites.tracker.pages import TRACKER
from envs.bundled.sites.tracker.world import PRIORITIES, STATUSES, Ticket, TrackerWorld, tracker_world

__all__ = ["PRIORITIES", "STATUSES", "TRACKER", "Ticket", "TrackerWorld", "tracker_world"]
