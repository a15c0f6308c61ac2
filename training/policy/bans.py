"""Lists the tokens that a policy must never generate.

They are read from a checkpoint's tokenizer without loading torch.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from envs.types import PolicyError

ENDS = ("<|im_end|>", "<|endoftext|>")
"""Special tokens that may be generated: the ends of a turn. Every other one is banned in sampling
and in log-probs: an image placeholder in a response, for example, would ask the model for pixels
that do not exist."""


def banned_ids(checkpoint: Path) -> list[int]:
    """Return the ids of all special tokens but ``ENDS``, ascending."""
    path = Path(checkpoint) / "tokenizer.json"
    if not path.exists():
        raise PolicyError(f"{checkpoint} has no tokenizer.json; save its tokenizer with save_pretrained")
    added = Tokenizer.from_file(str(path)).get_added_tokens_decoder()
    return sorted(index for index, token in added.items() if token.special and token.content not in ENDS)
