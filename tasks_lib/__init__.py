"""Prefect tasks: the retriable, visible units of work, and what joins the web side to the model side.

This is the only package that knows both ``envs`` and ``training``. Flows compose what is here; algorithms live below.
"""
