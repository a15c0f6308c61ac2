"""Modules that vLLM imports as top-level modules; they cannot import Rollwright's packages."""
