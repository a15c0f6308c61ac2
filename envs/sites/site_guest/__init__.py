"""The processes of a recipe's site: supervisor, template, instances.

They run under the site's own Python, so this package imports the standard library alone, and its
own modules by relative names. `envs.sites.recipes.template` starts the supervisor and speaks to the
template in lines of JSON.
"""
