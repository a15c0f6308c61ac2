"""Recording proxy: an OpenAI-compatible endpoint that keeps what the trainer needs of each call.

A foreign agent (browser-use, LangGraph, AgentLab) talks to it as to any model. For each call it
writes token ids, log-probs, policy versions and pictures under the call's session. `join` puts a
session's calls together with the rewards of the environment, as trajectories for the trainer.
"""
