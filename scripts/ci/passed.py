"""The file .ci/passed: which changes passed as a whole, and which stages ran in full there.

One line a change, the newest last: the commit, then the names of those stages. `scripts/test --passed` adds HEAD.
"""
# SPDX-License-Identifier: Apache-2.0
import subprocess

from tree import git

FILE = ".ci/passed"
# A stage that did not run in full in this many changes runs in full in the next.
CHANGES_MAX = 4


def read(root):
    """Pairs of a commit and the set of its full stages, in the file's order; empty without a file."""
    path = root / FILE
    if not path.is_file():
        return []
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return [(words[0], set(words[1:])) for words in lines if words and not words[0].startswith("#")]


def base(root):
    """The commit that the change started from, or None and why everything has to run."""
    changes = read(root)
    if not changes:
        return None, f"{FILE} names no commit"
    commit = changes[-1][0]
    known = subprocess.run(["git", "-C", root, "merge-base", "--is-ancestor", commit, "HEAD"],
                           capture_output=True, check=False)
    if known.returncode != 0:
        return None, f"{commit[:12]}, which {FILE} names, is no ancestor of HEAD"
    return commit, ""


def overdue(root, stages):
    """Those of `stages` that ran in full in none of the last CHANGES_MAX changes."""
    recent = read(root)[-CHANGES_MAX:]
    return {stage for stage in stages if not any(stage in full for _, full in recent)}


def add(root, stages):
    """Adds HEAD as a change that passed, with `stages` in full. Returns the commit."""
    commit = git(root, "rev-parse", "HEAD").strip()
    with open(root / FILE, "a", encoding="utf-8") as file:
        file.write(" ".join([commit, *stages]) + "\n")
    return commit
