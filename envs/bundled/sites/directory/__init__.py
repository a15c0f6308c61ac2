"""A directory of the people of a company: departments, offices, contacts and one's own profile."""

from envs.bundled.sites.directory.pages import DIRECTORY
from envs.bundled.sites.directory.world import DirectoryWorld, Person, directory_world

__all__ = ["DIRECTORY", "DirectoryWorld", "Person", "directory_world"]
