"""Inference engines: one protocol, generation from exact token ids, log-probs of every generated token.

``engine`` is the protocol; ``local`` serves a transformers model in the worker's own process, whose turns ``batches`` puts together and
``sampling`` draws; ``vllm`` has servers of their own.
"""
