"""A policy's input and output: prompts, token ids, and action parsing.

Pure but for the renderer, which needs a checkpoint's tokenizer and LLaMA-Factory's template. No inference and no training here.
"""
