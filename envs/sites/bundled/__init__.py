"""Small web applications of our own, served on loopback, each episode with a state of its own on the server.

A world (`shop.world` and its siblings) is a pure function of a seed; `states` copies its database for each episode, `app` turns pages into an
application, `site` is what a session sees. The tasks over them are made in `envs.tasks.generate`. See ``docs/sites.md``.
"""

from envs.sites.bundled.app import Application
from envs.sites.bundled.directory import DIRECTORY
from envs.sites.bundled.shop import SHOP
from envs.sites.bundled.site import BundledEpisode, BundledSite
from envs.sites.bundled.tracker import TRACKER

APPLICATIONS = {application.name: application for application in (SHOP, TRACKER, DIRECTORY)}
"""The bundled sites by name."""

__all__ = ["APPLICATIONS", "Application", "BundledEpisode", "BundledSite"]
