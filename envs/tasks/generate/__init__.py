"""Tasks over the bundled sites, by the hundred thousand: templates (`shop` and its siblings) draw requests from a world, `generate` makes a set of
distinct tasks of them. Each comes with its solution (`moves`), which `check` carries out on the site and grades. See ``docs/generated-tasks.md``.
"""

from envs.tasks.generate.generate import TEMPLATES, World, generate, generate_world, solution_of, worlds
from envs.tasks.generate.spec import WORLDS, GeneratorSpec

__all__ = ["TEMPLATES", "WORLDS", "GeneratorSpec", "World", "generate", "generate_world", "solution_of", "worlds"]
