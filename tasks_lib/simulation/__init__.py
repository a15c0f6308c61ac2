"""Compares settings by simulation (``flows.simulate``).

The distributions are given, or fitted to a run.
"""
