"""Algorithms as combinations of choices, and published algorithms as presets. No torch.

The choices make up a loss; a preset is a set of values of ``AlgorithmConfig``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from training.settings import Settings

RatioLevel = Literal["token", "sequence", "none"]
TrustRegion = Literal["clip", "dual_clip", "dppo", "none"]
Correction = Literal["mask", "clamp", "band", "none"]
Aggregation = Literal["token", "sequence", "step"]


class PolicyLoss(Settings):
    """The choices that make up a policy loss, as keys of ``AlgorithmConfig``.

    Symbols: ``rho = pi / pi_proximal``, ``w = pi_proximal / pi_behaviour`` and the advantage ``A``.
    """

    ratio: RatioLevel = Field("token", description="Importance ratio: of each token, of a step's response, or none.")
    """Importance ratio. ``token``: rho of each token. ``sequence``: the geometric mean over a
    step's response (GSPO, Zheng et al. 2025, eq. 7). ``none``: the surrogate is ``-A log pi``
    (REINFORCE)."""
    trust_region: TrustRegion = Field(
        "dual_clip", description="PPO's clip, dual clip (bounds negative advantages too), DPPO's mask, or none."
    )
    """Trust region. ``clip``: ``max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))`` (PPO,
    Schulman et al. 2017, eq. 7). ``dual_clip``: for A < 0 at most ``dual_clip |A|`` (Ye et al.
    2020, eq. 5). ``dppo``: ``-A rho``, and no gradient where the token's probability moved more
    than ``dppo_limit`` in the advantage's direction (Divergence PPO, arXiv 2602.04879, binary total
    variation). ``none``: ``-A rho``."""
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip of the importance ratio: 1 - clip_low.")
    clip_high: float = Field(0.28, gt=0, le=10, description="Upper clip of the importance ratio: 1 + clip_high.")
    dual_clip: float = Field(
        3.0, gt=1, le=100, description="Bound of the loss for negative advantages, in units of |A|."
    )
    dppo_limit: float = Field(0.2, gt=0, lt=1, description="dppo: largest change of a token's probability.")
    correction: Correction = Field(
        "mask", description="pi_proximal / pi_behaviour above the cap: mask or clamp; band: mask below the floor too."
    )
    """Weight that corrects for the behaviour policy. ``mask``: w, and 0 above ``behaviour_cap``
    (AsyncWebRL). ``clamp``: at most ``behaviour_cap`` (truncated importance sampling). ``band``: w,
    and 0 outside of ``behaviour_floor`` to ``behaviour_cap`` (IcePop). ``none``: 1. The normaliser
    still counts tokens whose weight is 0."""
    behaviour_cap: float = Field(5.0, gt=1, description="Largest pi_proximal / pi_behaviour.")
    behaviour_floor: float = Field(0.5, gt=0, lt=1, description="band: smallest pi_proximal / pi_behaviour.")
    kl_coefficient: float = Field(0.0, ge=0, le=10, description="Weight of KL to the run's first policy.")

    @property
    def unmeasured(self) -> frozenset[str]:
        """Names of the metrics that these choices do not have."""
        clips = self.ratio != "none" and self.trust_region in ("clip", "dual_clip")
        absent = {
            "clip_low": not clips,
            "clip_high": not clips,
            "dual_clip": not clips or self.trust_region == "clip",
            "dppo_masked": self.ratio == "none" or self.trust_region != "dppo",
            "behaviour_masked": self.correction not in ("mask", "band"),
            "behaviour_clamped": self.correction != "clamp",
            "ess": self.correction == "none",
            "kl_reference": not self.kl_coefficient,
        }
        return frozenset(name for name, missing in absent.items() if missing)


PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {
        "clip_low": 0.2,
        "clip_high": 0.2,
        "trust_region": "clip",
        "correction": "none",
        "proximal": "behaviour",
        "aggregation": "step",
        "step_normalizer": "none",
        "kl_coefficient": 0.04,
    },
    "dr_grpo": {
        "advantages": "dr_grpo",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "trust_region": "clip",
        "correction": "none",
        "proximal": "behaviour",
        "step_normalizer": "none",
    },
    "dapo": {
        "clip_low": 0.2,
        "clip_high": 0.28,
        "trust_region": "clip",
        "correction": "none",
        "proximal": "behaviour",
        "step_normalizer": "none",
        "length_cut": "mask",
    },
    "gspo": {
        "ratio": "sequence",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "trust_region": "clip",
        "correction": "none",
        "proximal": "behaviour",
        "aggregation": "step",
        "step_normalizer": "none",
    },
    "dppo": {
        "trust_region": "dppo",
        "dppo_limit": 0.2,
        "correction": "none",
        "proximal": "behaviour",
        "step_normalizer": "none",
    },
    "rloo": {
        "advantages": "rloo",
        "ratio": "none",
        "trust_region": "none",
        "correction": "none",
        "proximal": "behaviour",
        "step_normalizer": "none",
    },
    "raft": {
        "advantages": "raft",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "trust_region": "clip",
        "step_normalizer": "trajectory",
    },
    "asyncwebrl": {
        "clip_low": 0.2,
        "clip_high": 0.2,
        "trust_region": "dual_clip",
        "dual_clip": 3.0,
        "correction": "mask",
        "behaviour_cap": 5.0,
        "proximal": "recompute",
        "step_normalizer": "constant",
        "step_constant": 10.0,
    },
    "webgym": {
        "name": "filtered_bc",
        "skip_unchanged": True,
        "replay_iterations": 4,
        "replay_steps": 1800,
        "replay_recency": 2.0,
    },
}
"""Published algorithms (docs/algorithms.md has the papers); values that a paper does not give are
the defaults."""
