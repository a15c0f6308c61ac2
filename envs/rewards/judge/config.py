"""Which endpoint judges, with which models, and how much it may cost."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from envs.rewards.judge.ledger import Limits
from envs.rewards.judge.records import Purpose
from envs.types import ConfigError, Record


class JudgeStyle(StrEnum):
    """How an episode is judged."""

    WEBGYM = "webgym"
    """Blocking, keyframes, anti-hallucination, then fact by fact and the reference answer: partial credit."""
    WEBJUDGE = "webjudge"
    """Key points, screenshots scored 1 to 5, one verdict (Online-Mind2Web)."""
    WEBVOYAGER = "webvoyager"
    """The last screenshots and the answer, one verdict."""


class Structured(StrEnum):
    """Whether the server is to hold a model to the form of a reply."""

    NONE = "none"
    """The prompt says the form; every endpoint can do that."""
    JSON_SCHEMA = "json_schema"
    """A schema is sent with each question (``response_format``): vLLM, SGLang, llama.cpp and others let nothing else be generated."""


class JudgeModels(Record):
    """A model for each purpose; those left out are the default one."""

    model_config = ConfigDict(json_schema_extra={"short": "a name alone"})

    default: str = Field(min_length=1, examples=["Qwen3-VL-8B"], description="Model name at the endpoint.")
    keyframe: str | None = Field(None, description="Selects screenshots; may be small.")
    blocking: str | None = Field(None, description="Finds captchas and walls; may be small.")
    criterion_a: str | None = Field(None, description="Decides facts and verdicts.")
    criterion_b: str | None = Field(None, description="Finds claims that were not seen.")
    reference: str | None = Field(None, description="Compares answers.")

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, value: object) -> object:
        """A word is the one model for everything."""
        return {"default": value} if isinstance(value, str) else value

    def of(self, purpose: Purpose) -> str:
        """The model that answers this question."""
        chosen = {
            Purpose.KEYFRAME: self.keyframe,
            Purpose.RELEVANCE: self.keyframe,
            Purpose.BLOCKING: self.blocking,
            Purpose.CRITERION_A: self.criterion_a,
            Purpose.VERDICT: self.criterion_a,
            Purpose.KEY_POINTS: self.criterion_a,
            Purpose.CRITERION_B: self.criterion_b,
            Purpose.REFERENCE: self.reference,
            Purpose.SAME_ANSWER: self.reference,
            Purpose.RUBRIC: self.default,
            Purpose.INSTRUCTION: self.default,
        }[purpose]
        return chosen or self.default


class JudgeConfig(Record):
    """The judge and its limits."""

    base_url: str = Field(
        examples=["http://127.0.0.1:8000/v1"],
        description="OpenAI-compatible endpoint, up to and with /v1.",
    )
    models: JudgeModels = Field(description="Model of each purpose.")
    style: JudgeStyle = Field(JudgeStyle.WEBGYM, description="How an episode is judged.")
    api_key_env: str | None = Field(None, description="Environment variable with the key.")
    temperature: float | None = Field(0.0, ge=0, le=2, description="Sampling temperature; null: not sent.")
    max_tokens: int = Field(800, ge=16, le=32_768, description="Length of a reply; thinking models need more.")
    length_parameter: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="The name that the length is sent under."
    )
    json_mode: bool = Field(False, description="Request response_format json_object, if the endpoint knows it.")
    structured: Structured = Field(Structured.NONE, description="Send the reply's schema, if the endpoint knows it.")
    timeout: float = Field(120.0, gt=0, le=3600, description="Seconds for one request.")
    deadline: float = Field(900.0, gt=0, le=86_400, description="Seconds for one episode, with retries.")
    retries: int = Field(3, ge=0, le=20, description="Retries after 429, 5xx or bad JSON.")
    backoff: float = Field(1.0, gt=0, le=60, description="Seconds before the first retry; doubles.")
    max_backoff: float = Field(60.0, gt=0, le=600, description="Longest wait before a retry.")
    concurrency: int = Field(16, ge=1, le=1024, description="Concurrent requests over all episodes.")
    budget_requests: int | None = Field(None, ge=0, description="Requests of a whole run; null: no limit.")
    budget_tokens: int | None = Field(None, ge=0, description="Tokens of a whole run; null: no limit.")
    prompt_price: float = Field(0.0, ge=0, le=1e6, description="Dollars per million prompt tokens.")
    answer_price: float = Field(0.0, ge=0, le=1e6, description="Dollars per million answer tokens.")
    votes: int = Field(1, ge=1, le=15, description="Answers to each deciding question (odd).")
    seed: int | None = Field(
        42, ge=0, lt=2**31, description="Seed of requests and sampled screenshots; null: not sent."
    )
    early_exit: bool = Field(False, description="Stop at the first failed fact: no partial score.")
    max_images: int = Field(48, ge=1, le=500, description="Screenshots in one question, the last ones.")
    blocking_images: int = Field(20, ge=1, le=500, description="Screenshots of the blocking question.")
    last_images: int = Field(1, ge=1, le=500, description="Screenshots of a webvoyager verdict.")
    page_text_chars: int = Field(4000, ge=0, le=200_000, description="Page text per screenshot; 0: none.")
    cache: Path | None = Field(None, description="Folder of earlier answers; null: ask every question.")

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        return endpoint_address(value, "api_key_env")

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        if self.json_mode and self.structured is not Structured.NONE:
            raise ValueError("json_mode: structured asks for more than it does; leave one of them out")
        return self

    @model_validator(mode="after")
    def _odd(self) -> Self:
        if self.votes % 2 == 0:
            raise ValueError(f"votes: {self.votes} is even; an odd number has a majority")
        return self

    @property
    def limits(self) -> Limits:
        """The budget."""
        return Limits(self.budget_requests, self.budget_tokens)

    def dollars(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What so many tokens cost."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.answer_price) / 1e6

    def api_key(self) -> str | None:
        """The key, read now; it is kept by nobody but the connection.

        Raises:
            ConfigError: the named variable is not set or cannot be sent in a header.
        """
        return None if self.api_key_env is None else endpoint_key("api_key_env", self.api_key_env)


def endpoint_address(value: str, key_setting: str) -> str:
    """An endpoint's address without the slash at its end.

    Args:
        key_setting: Names the variable of the key in the configuration.

    Raises:
        ValueError: it is no http(s) address, or more than an address.
    """
    parts = urlsplit(value)  # raises ValueError for a bad port or bracket
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is no http(s) address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"no user, password, query or fragment here: a key goes into the variable {key_setting}")
    _ = parts.port
    return value.rstrip("/")


def endpoint_key(setting: str, variable: str) -> str:
    """The key in an environment variable, which the configuration names in ``setting``.

    Raises:
        ConfigError: it is not set or cannot be sent in a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"{setting}: the variable {variable} is not set; export it or leave it out")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{setting}: the value of {variable} has characters that no header may have")
    return key
