"""Small web applications of our own, served on loopback, with server state for each episode.

A world (`shop.world` and its siblings) is a pure function of a seed; `states` copies its database
for each episode, `app` makes an application of pages, and `site` is the side that a session sees.
`envs.tasks.generate` makes the tasks over them. See ``docs/sites.md``.
"""

from envs.sites.bundled.app import Application
from envs.sites.bundled.directory import DIRECTORY
from envs.sites.bundled.shop import SHOP
from envs.sites.bundled.site import BundledAttempt, BundledSite
from envs.sites.bundled.tracker import TRACKER

APPLICATIONS = {application.name: application for application in (SHOP, TRACKER, DIRECTORY)}
"""The bundled sites by name."""

__all__ = ["APPLICATIONS", "Application", "BundledAttempt", "BundledSite"]
