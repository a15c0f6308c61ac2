"""Imported by vLLM in its own environment, each file as a top-level module; nothing of ours can be imported there."""
