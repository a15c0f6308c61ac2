"""Recorded sites: HTTP answers that were recorded once are served again, offline.

`har` reads HTTP archives, `replay` finds the recorded answer of a request, `site` serves a
recording to episodes, and `record` makes one with a browser. See ``docs/site-recipes.md``.
"""
