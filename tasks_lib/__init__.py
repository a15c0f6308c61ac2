"""Prefect tasks and what joins the web side to the model side.

A Prefect task is a unit of work that a person wants to see, retry or cancel.

This is the only package that knows both ``envs`` and ``training``. Flows compose what is here;
algorithms live below.
"""
