"""Episode memory: key-value notes that the policy writes and reads in its prompt.

Pure. `EpisodeMemory` is the copy that one episode works on. `merge_memories` applies the changes of
episodes to the memory of a task family, in a fixed order. Nothing here knows a page, a prompt or a
file. See ``docs/memory.md``.
"""

from envs.memory.episode import MAX_ENTRIES, MAX_KEY, MAX_VALUE, EpisodeMemory
from envs.memory.family import Contribution, merge_memories
from envs.memory.secrets import typed_secret

__all__ = [
    "MAX_ENTRIES",
    "MAX_KEY",
    "MAX_VALUE",
    "Contribution",
    "EpisodeMemory",
    "merge_memories",
    "typed_secret",
]
