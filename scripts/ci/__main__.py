"""Sets up, builds and tests, stage by stage; stops at the first stage that fails.

Without arguments each stage runs what the change asks for: all files that differ from the commit it started from, which
.ci/passed names. A stage that did not run in full in the last four changes runs in full. With names of test programs
it builds these alone, in preset dev, and runs their tests on all cores.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import pathlib
import sys
import time

import machine
import passed
from selection import Choice, choose
from stages import STAGES, Context, Counts, Failed, run_tests, say
from tree import Tree, git

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OVERRUN = 1.5  # of its budget, where a stage fails


def parse(arguments):
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Examples: scripts/test attention_test, "
                                            "scripts/test --only fuzz --fuzz-seconds 120")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--all", action="store_true", help="every stage in full")
    what.add_argument("--fast", action="store_true", help="only setup, tidy, format, build, unit and python")
    what.add_argument("--only", metavar="STAGE", choices=[stage.name for stage in STAGES],
                      help="one stage in full, without those before it: " + " ".join(stage.name for stage in STAGES))
    what.add_argument("--plan", action="store_true", help="say what would run and why, and run nothing")
    what.add_argument("--stages", action="store_true", help="print the table of stages, as CONTRIBUTING.md has it")
    what.add_argument("--passed", action="store_true",
                      help="add HEAD to .ci/passed, since it has passed as a whole: the next change starts there")
    what.add_argument("programs", nargs="*", metavar="PROGRAM", default=[],
                      help="a test program, such as attention_test")
    parser.add_argument("--fuzz-seconds", type=int, default=10, metavar="N", help="how long each fuzz target runs (10)")
    return parser.parse_args(arguments)


def table_of_stages():
    rows = ["| stage | what only it catches | runs on | minutes |", "|---|---|---|---|"]
    rows += [f"| `{stage.name}` | {stage.catches} | {stage.when} | {stage.minutes:g} |" for stage in STAGES]
    return "\n".join(rows)


def describe(choice):
    if choice.full:
        return f"in full ({choice.why})" if choice.why else "in full"
    if not choice.targets:
        return "nothing"
    names = " ".join(choice.targets[:8]) + (" ..." if len(choice.targets) > 8 else "")
    return f"{len(choice.targets)}: {names}"


def duration(seconds):
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def run_stage(stage, context):
    """Its Counts, and how long it took."""
    started = time.monotonic()
    try:
        counts = stage.run(context)
    except Failed as failure:
        say(f"{stage.name}: {failure}")
        counts = Counts(0, 1)
    return counts, time.monotonic() - started


def over_budget(stage, seconds, slowdown_at_start):
    """Whether a stage outgrew its budget on a machine that can be blamed for nothing."""
    if seconds <= OVERRUN * 60 * stage.minutes:
        return False
    slowdown = max(slowdown_at_start, machine.slowdown())
    say(f"{stage.name} took {duration(seconds)}, {seconds / 60 / stage.minutes:.1f} times its budget of "
        f"{stage.minutes:g} minutes; the machine is {slowdown:.2f} times slower than the reference")
    return slowdown <= machine.CROWDED


def run(stages, choices, tree, arguments):
    """Runs stages in order. Returns whether all of them passed."""
    (ROOT / "build/test").mkdir(parents=True, exist_ok=True)
    slowdown = machine.slowdown()
    say(f"this machine takes {slowdown:.2f} times as long as the reference")
    rows, skipped, totals, broken = [], [], [0, 0], None
    started = time.monotonic()
    for stage in stages:
        choice = choices[stage.name]
        if not choice:
            rows.append(f"{stage.name:10} nothing to do")
            continue
        say(f"=== {stage.name}: {describe(choice)}")
        counts, seconds = run_stage(stage, Context(ROOT, tree, choice, arguments.fuzz_seconds))
        rows.append(f"{stage.name:10} {counts.passed:5} passed {counts.failed:3} failed {len(counts.skipped):3} "
                    f"skipped  {duration(seconds):>12} of {stage.minutes:g} min")
        say(rows[-1])
        skipped += counts.skipped
        totals = [totals[0] + counts.passed, totals[1] + counts.failed]
        if counts.failed > 0:
            broken = f"Stage '{stage.name}' failed; run it alone with: scripts/test --only {stage.name}"
        elif over_budget(stage, seconds, slowdown):
            broken = f"Stage '{stage.name}' took more than {OVERRUN} times its budget"
            totals[1] += 1
        if broken:
            break
    print("\n" + "\n".join(rows))
    print("".join(f"skipped: {line}\n" for line in sorted(set(skipped))), end="")
    if broken:
        print(broken)
    print(f"in {duration(time.monotonic() - started)}:\n{totals[0]} passed, {totals[1]} failed, {len(skipped)} skipped")
    return broken is None


def run_programs(names):
    """Builds test programs in preset dev and runs them. Returns whether all of their tests passed."""
    (ROOT / "build/test").mkdir(parents=True, exist_ok=True)
    try:
        counts = run_tests(Context(ROOT, Tree(ROOT), Choice(targets=names), 0), "dev", names)
    except Failed as failure:
        say(f"scripts/test: {failure}")
        return False
    print(f"{counts.passed} passed, {counts.failed} failed, {len(counts.skipped)} skipped")
    return counts.failed == 0


def main():
    arguments = parse(sys.argv[1:])
    if arguments.programs:
        return 0 if run_programs(arguments.programs) else 1
    if arguments.stages:
        print(table_of_stages())
        return 0
    names = [stage.name for stage in STAGES]
    if arguments.only:
        choices = {arguments.only: Choice(full=True)}
    else:
        choices = choose(ROOT, names, "--all" if arguments.all else "")
    if arguments.passed:
        if git(ROOT, "status", "--porcelain").strip():
            say("scripts/test: there are changes that are not committed, so HEAD is not what passed")
            return 1
        full = [name for name in names if choices[name].full]
        say(f"{passed.FILE}: {passed.add(ROOT, full)[:12]} passed, in full: {' '.join(full)}")
        return 0
    if arguments.fast:
        names = ["setup", "tidy", "format", "build", "unit", "python"]
    stages = [stage for stage in STAGES if stage.name in choices and stage.name in names]
    if arguments.plan:
        for stage in stages:
            print(f"{stage.name:10} {describe(choices[stage.name])}")
        return 0
    return 0 if run(stages, choices, Tree(ROOT), arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
