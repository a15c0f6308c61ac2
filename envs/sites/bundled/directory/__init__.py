"""A directory of the people of a company: departments, offices, contacts and one's own profile."""

from envs.sites.bundled.directory.pages import DIRECTORY
from envs.sites.bundled.directory.world import DirectoryWorld, Office, Person, directory_world

__all__ = ["DIRECTORY", "DirectoryWorld", "Office", "Person", "directory_world"]
