"""Small web applications of our own, served on loopback, with server state for each episode.

A world (`shop.world` and its siblings) is a pure function of a seed; `states` copies its database
for each episode, `app` makes an application of pages, and `site` is the side that a session sees.
`envs.bundled.generate` makes the tasks over them. See ``docs/sites.md``.
"""

from envs.bundled.sites.app import Application
from envs.bundled.sites.directory import DIRECTORY
from envs.bundled.sites.shop import SHOP
from envs.bundled.sites.site import BundledAttempt, BundledSite
from envs.bundled.sites.tracker import TRACKER

APPLICATIONS = {application.name: application for application in (SHOP, TRACKER, DIRECTORY)}
"""The bundled sites by name."""

__all__ = ["APPLICATIONS", "Application", "BundledAttempt", "BundledSite"]
