"""Content of our own: sites, tasks over them (`generate`), scripted policies (`oracles`).

The rest of `envs` is the engine, which works without this package's content.
"""
