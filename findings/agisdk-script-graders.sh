#!/usr/bin/env bash
# Of the 121 tasks of REAL that a script grades, one can never pass, and one passes a state without a diff.
#
# Packages:  agisdk 0.3.5 (the wheel alone, without its requirements). Python 3.11 or newer.
# Input:     the script of each task of version 2, run on a file with a state as the package runs it; a task
#            passes if the script prints SUCCESS. First `{}`, then a state whose diff is empty.
# Expected:  each script prints a verdict, and none SUCCESS where nothing was done.
# Seen:      eval_gocalendar_11.py has 0 bytes, so no state passes, though the task is said to be possible;
#            eval_gomail_21.py ("Snooze all emails ...") prints SUCCESS on `{}`. On an empty diff none passes.
# So:        take an output without a verdict for an error of the grader, and refuse a state that is empty.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-deps agisdk==0.3.5 2>/dev/null
scripts=$(echo venv/lib/python3*/site-packages/agisdk/REAL/browsergym/webclones/v2/eval_scripts)
tasks=$(dirname "$scripts")/tasks
echo '{}' > empty.json
echo '{"initialfinaldiff": {"added": {}, "updated": {}, "deleted": {}}, "differences": {}}' > undone.json
seen=""
for task in "$tasks"/*.json; do
    script=$(venv/bin/python -c 'import json, sys; print(json.load(open(sys.argv[1]))["evals"][0]["script"])' "$task")
    for state in empty undone; do
        case $(venv/bin/python "$scripts/$script" "$state.json" 2> /dev/null) in
            *SUCCESS*) seen+="$script passes $state.json; " ;;
            *FAILURE*) ;;
            *) seen+="$script prints no verdict on $state.json; " ;;
        esac
    done
done
expected="eval_gocalendar_11.py prints no verdict on empty.json; eval_gocalendar_11.py prints no verdict on undone.json; "
expected+="eval_gomail_21.py passes empty.json; "
echo "expected: nothing"
echo "seen:     $seen"
[ "$seen" = "$expected" ] && echo "as described" || { echo CHANGED; exit 1; }
