"""What a policy reads and writes: the prompt's text, its token ids, and the parsing of a model turn into an action.

Pure but for the renderer, which needs a checkpoint's tokenizer and LLaMA-Factory's template. No inference and no training here.
"""
