"""A directory of the people of a company: departments, offices, contacts and one's own profile."""

from envs.bundled.sites.directory.pages import DIRECTORY
from envs.bundled.sites.directory.world import DirectoryWorld, Office, Person, directory_world

__all__ = ["DIRECTORY", "DirectoryWorld", "Office", "Person", "directory_world"]
