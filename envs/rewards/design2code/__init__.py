"""Design2Code rewards: visual similarity of a built page to a reference.

Rewards for building a page that looks like a given one: Design2Code's five parts, from text blocks
and screenshots.

Pure functions: rendering pages and finding their blocks is done elsewhere.
"""

from envs.rewards.design2code.colour import ciede2000, difference, lab
from envs.rewards.design2code.matching import match_blocks
from envs.rewards.design2code.records import PageBlocks, TextBlock
from envs.rewards.design2code.score import Clip, DesignScore, design_score
from envs.rewards.design2code.ssim import Image, ssim

__all__ = [
    "Clip",
    "DesignScore",
    "Image",
    "PageBlocks",
    "TextBlock",
    "ciede2000",
    "design_score",
    "difference",
    "lab",
    "match_blocks",
    "ssim",
]
