"""Inference engines: one protocol, generation from exact token ids, log-probs of every generated token.

``transformers_engine`` runs in the worker's process; ``waves`` batches the requests of concurrent episodes onto any engine.
"""
