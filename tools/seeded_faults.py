#!/usr/bin/env python3
"""Puts known faults into the tree, one at a time, and looks whether the stage that claims to catch each is selected by
the changed file alone, and fails.

    tools/seeded_faults.py [--list] [NAME...]

Faults are in tests/faults.toml: each replaces one piece of text in one file. They are tried in a worktree of HEAD,
build/faults, which keeps its builds for the next time. All of them take half an hour where
the compiler cache knows the tree, and longer where it does not.

Example: tools/seeded_faults.py leak no-lock
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import pathlib
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "ci"))
import passed  # noqa: E402
from selection import Choice, choose  # noqa: E402
from stages import STAGES, Context, Failed  # noqa: E402
from tree import Tree, git  # noqa: E402

FAULTS = ROOT / "tests" / "faults.toml"
FUZZ_SECONDS = 60
# These find faults by what programs do: a fault that does not compile is none of theirs.
BY_RUNNING = ("unit", "python", "asan", "tsan", "fuzz")


def read_faults():
    with open(FAULTS, "rb") as file:
        return tomllib.load(file)["fault"]


def prepare():
    """A worktree of HEAD in which HEAD has passed with all stages in full. Builds of an earlier one stay."""
    tree = ROOT / "build" / "faults"
    if not (tree / ".git").exists():
        git(ROOT, "worktree", "prune")
        git(ROOT, "worktree", "add", "--detach", tree, "HEAD")
    git(tree, "checkout", "--quiet", "--force", "--detach", git(ROOT, "rev-parse", "HEAD").strip())
    (tree / passed.FILE).write_text("", encoding="utf-8")
    passed.add(tree, [stage.name for stage in STAGES])
    return tree


def is_caught(tree, fault):
    """Whether the fault's stage is selected and fails; and in words, what happened."""
    file = tree / fault["file"]
    text = file.read_text(encoding="utf-8")
    if text.count(fault["old"]) != 1:
        return False, f"its text stands {text.count(fault['old'])} times in {fault['file']}"
    file.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")
    try:
        names = [stage.name for stage in STAGES]
        choice = choose(tree, names, "")[fault["stage"]]
        # Of what is selected the one target that holds the fault's test is enough.
        target = fault.get("target")
        if not choice or (target and not choice.full and target not in choice.targets):
            return False, f"stage {fault['stage']} is not selected by {fault['file']}"
        if target:
            choice = Choice(targets=[target])
        stage = next(stage for stage in STAGES if stage.name == fault["stage"])
        (tree / "build/test").mkdir(parents=True, exist_ok=True)
        try:
            counts = stage.run(Context(tree, Tree(tree), choice, FUZZ_SECONDS))
        except Failed as failure:
            return fault["stage"] not in BY_RUNNING, str(failure)
        return counts.failed > 0, f"{counts.failed} failed of {counts.passed + counts.failed}"
    finally:
        file.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the faults and try none")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    arguments = parser.parse_args()
    faults = [fault for fault in read_faults() if not arguments.names or fault["name"] in arguments.names]
    if arguments.list:
        for fault in faults:
            print(f"{fault['name']:24} {fault['stage']:10} {fault['file']}: {fault['what']}")
        return 0
    tree = prepare()
    rows, missed = [], 0
    for fault in faults:
        started = time.monotonic()
        caught, how = is_caught(tree, fault)
        missed += not caught
        rows.append(f"{'caught' if caught else 'MISSED':7} {fault['stage']:10} {fault['name']:24} "
                    f"{time.monotonic() - started:4.0f} s  {how.splitlines()[0]}")
        print(rows[-1], flush=True)
    print("\n" + "\n".join(rows))
    print(f"{len(faults) - missed} of {len(faults)} faults were caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
