"""Code of the site ``trac``, which runs in the environment of its recipe."""
