"""From what an episode left behind to a reward bundle. Graded after the browser has been given back.

`bundle` does the arithmetic of parts, `rubric` grades by a rubric of facts, `facts` checks each type of fact against `evidence`, `formats` reads
rubrics of other systems, `compose` puts the parts of all sources together and `grader` asks them. Nothing here drives a browser; a judge, a server's
state and sources of parts come in through protocols, and `server_state` is the state of SQLite files and JSON over HTTP.
"""

from envs.rewards.bundle import NO_PARTS, PASS_THRESHOLD, page_reward, score
from envs.rewards.compose import Component, PartSource, compose
from envs.rewards.evidence import DomElement, Download, EpisodeEvidence
from envs.rewards.facts import FactResult, Judge
from envs.rewards.formats import from_w8, from_webgym, load_rubric, of_instruction, read_rubric, to_w8
from envs.rewards.rubric import combine, grade, grade_by_program
from envs.rewards.server_answers import ServerState, record_answers
from envs.sites.server_state import SiteState

__all__ = [
    "NO_PARTS",
    "PASS_THRESHOLD",
    "Component",
    "DomElement",
    "Download",
    "EpisodeEvidence",
    "FactResult",
    "Judge",
    "PartSource",
    "ServerState",
    "SiteState",
    "combine",
    "compose",
    "from_w8",
    "from_webgym",
    "grade",
    "grade_by_program",
    "load_rubric",
    "of_instruction",
    "page_reward",
    "read_rubric",
    "record_answers",
    "score",
    "to_w8",
]
