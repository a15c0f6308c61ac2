"""Replay a stored episode in a browser, and say where it first differs.

    python -m flows.replay --run runs/quickstart-seed0
    python -m flows.replay --run runs/quickstart-seed0 --episode v000020-eval-0007.0
    python -m flows.replay --trajectory episode.json --playwright episode.py --har episode.har

The actions are carried out again with the run's options. Each observation is compared with the
recorded one, and so is the reward. ``--playwright`` writes a script that does the same by
Playwright's own calls.

Ends with 0 if everything is as recorded, 1 if something differs, 2 if the arguments are wrong, 130
after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from envs.types import RollwrightError
from tasks_lib.processes.startup_interrupt import STATUS, raise_on_interrupt


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, metavar="FOLDER", help="folder of a run; the episode is one of its own")
    source.add_argument("--trajectory", type=Path, metavar="FILE", help="a trajectory as JSON (env.trajectory)")
    parser.add_argument("--episode", default="", metavar="ID", help="episode of the run; without it the ids are listed")
    parser.add_argument(
        "--task", default="", metavar="ID", help="task of --trajectory; the trajectory's own by default"
    )
    parser.add_argument("--playwright", type=Path, metavar="FILE", help="write the episode as a Playwright script")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the trajectory as indented JSON")
    parser.add_argument("--har", type=Path, metavar="FILE", help="write the replay's requests as an HTTP archive")
    parser.add_argument("--no-browser", action="store_true", help="only write the files; play nothing")
    options = parser.parse_args(arguments)
    if options.run and options.task:
        parser.error("--task is of a trajectory in a file; a run has its own tasks")
    if options.trajectory and options.episode:
        parser.error("--episode is of a run; a file holds one episode")
    if options.har and options.no_browser:
        parser.error("--har needs the browser: the requests are those of the replay")
    try:
        from tasks_lib.commands.replay import (  # takes seconds
            episode_of_file,
            episode_of_run,
            list_episodes,
            play_again,
            write_json,
            write_script,
        )

        raise_on_interrupt()
        if options.run and not options.episode:
            for line in list_episodes(options.run):
                print(line)
            return 0
        episode = (
            episode_of_run(options.run, options.episode)
            if options.run
            else episode_of_file(options.trajectory, options.task)
        )
        if options.playwright:
            write_script(episode, options.playwright)
            print(f"script: {options.playwright}")
        if options.json:
            write_json(episode, options.json)
            print(f"json:   {options.json}")
        if options.no_browser:
            return 0
        result = play_again(episode, options.har)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return STATUS
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.har:
        print(f"har:    {options.har}")
    print(f"{result.steps} of {len(episode.trajectory.steps)} actions were carried out again")
    print(f"first difference: {result.difference or 'none'}")
    reward = "the episode did not end" if not result.ended else result.replayed_reward
    print(f"reward: recorded {result.recorded_reward}, replayed: {reward}")
    same = result.difference is None and (not result.ended or result.replayed_reward == result.recorded_reward)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
