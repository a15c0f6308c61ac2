#!/usr/bin/env bash
# The wheel of verl holds a top-level package `tests`, which hides a project's own folder of that name.
#
# Packages:  verl 0.9.1 (the wheel alone, without its requirements). Python 3.11 or newer.
# Input:     a project whose tests/ holds helpers.py and no __init__.py, as pytest's importlib mode allows. Its
#            folder comes first on sys.path; verl is installed.
# Expected:  `import tests.helpers` finds the project's file, as it does before verl is installed.
# Seen:      ModuleNotFoundError: `tests` is verl's, whatever the order of sys.path, since a package with an
#            __init__.py anywhere on the path wins over a folder without one.
# So:        install verl in an environment of its own, or give the project's tests an __init__.py.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
mkdir -p project/tests
echo 'NAME = "the project"' > project/tests/helpers.py
cat > look.py <<'PYTHON'
import sys

sys.path.insert(0, "project")
try:
    from tests.helpers import NAME

    print(f"found: {NAME}")
except ModuleNotFoundError as error:
    import tests

    print(f"{error}; tests is {'of site-packages' if 'site-packages' in str(tests.__file__) else tests.__file__}")
PYTHON
before=$(venv/bin/python look.py)
venv/bin/pip install --quiet --no-deps verl==0.9.1 2>/dev/null
after=$(venv/bin/python look.py)
echo "verl $(venv/bin/pip show verl 2>/dev/null | sed -n 's/^Version: //p')"
echo "expected: found: the project"
echo "before:   $before"
echo "seen:     $after"
[ "$before" = "found: the project" ] && [[ $after == *"of site-packages" ]] && echo "as described" || { echo CHANGED; exit 1; }
