"""Compares settings by simulation, with distributions that are given or fitted to a run:
``flows.simulate``."""
