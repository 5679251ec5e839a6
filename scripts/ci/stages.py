"""The stages of scripts/test: what each does, what only it catches, how long it may take.

A stage is a function of a Context. It raises Failed with a sentence, or returns how many tests passed, failed and were
skipped, with a line for each that was skipped.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Callable, NamedTuple

import programs
from selection import PROGRAMS_OF_FOLDERS, THREADED, runs_program
from tree import is_fuzz, is_test, stands_alone


class Failed(Exception):
    """A stage's failure, in one sentence; what led to it was printed before."""


class Counts(NamedTuple):
    passed: int = 1  # a stage without tests of its own is one check
    failed: int = 0
    skipped: tuple = ()


class Context(NamedTuple):
    """What a stage knows: the checkout, its own Choice, and what the command line says."""

    root: pathlib.Path
    tree: object
    choice: object
    fuzz_seconds: int


class Stage(NamedTuple):
    name: str
    run: Callable
    minutes: float  # of a cold run in full on two idle cores
    catches: str  # what no other stage finds
    when: str  # in words, for CONTRIBUTING.md


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def call(context, *command, **variables):
    """Runs a command that says for itself what is wrong."""
    done = subprocess.run([str(word) for word in command], cwd=context.root, env=os.environ | variables,
                          stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command[:3]))} ended with status {done.returncode}")


def test_python(context):
    """The interpreter with the packages of tests/requirements.txt, if they are installed."""
    own = context.root / "build/venv/bin/python3"
    return str(own if own.exists() else sys.executable)


def build(context, preset, targets):
    call(context, "scripts/build", preset, *targets)


def all_programs(tree, wanted=lambda folder: True):
    """Names of the test programs of folders that `wanted` takes."""
    folders = {tree.folder(path) for path in tree.objects() if is_test(path)}
    return sorted(f"{folder}_test" for folder in folders if wanted(folder))


def run_tests(context, preset, names, variables=None):
    """Builds test programs in a preset and runs their tests."""
    build(context, preset, names)
    paths = [context.root / "build" / preset / name for name in names]
    outcome = programs.run_programs(paths, variables, say)
    slowest = sorted(outcome.seconds.items(), key=lambda item: -item[1])[:5]
    say("slowest: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest))
    (context.root / "build" / "test" / f"{preset}.json").write_text(json.dumps(outcome.seconds, indent=1))
    return Counts(len(outcome.passed), len(outcome.failed), tuple(sorted(outcome.skipped)))


# --- the stages -------------------------------------------------------------------------------------------------------


def setup(context):
    call(context, "scripts/setup", "all")
    # Without PyPI the tests with its packages are skipped, and listed at the end.
    if subprocess.run(["scripts/setup", "test"], cwd=context.root, check=False).returncode != 0:
        say("setup: going on without the packages of tests/requirements.txt")
    return Counts()


def tidy(context):
    call(context, sys.executable, "tools/tidy.py")
    return Counts()


def format_(context):
    files = context.tree.sources if context.choice.full else context.choice.targets
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        groups = [files[first::os.cpu_count()] for first in range(os.cpu_count())]
        check = ("clang-format-14", "--dry-run", "--Werror")
        list(pool.map(lambda group: group and call(context, *check, *group), groups))
    return Counts()


def build_(context):
    """The program and the tests of stage unit, in batches of files."""
    build(context, "release", ["kvlane", "kvlane_tests"] if context.choice.full else context.choice.targets)
    return Counts()


def unit(context):
    names = context.choice.targets
    if context.choice.full:
        names = all_programs(context.tree) + list(PROGRAMS_OF_FOLDERS)
    # company_test, which looks for answers that depend on company, gets a minute.
    return run_tests(context, "release", names, {"KVLANE_COMPANY_SECONDS": "60"})


def python(context):
    result = context.root / "build/test/python.json"
    result.unlink(missing_ok=True)
    files = [] if context.choice.full else context.choice.targets
    if context.choice.full or any(runs_program(context.tree, f"tests/{name}") for name in files):
        build(context, "release", ["kvlane"])  # nothing to do behind stage build
    done = subprocess.run([test_python(context), "scripts/ci/python_tests.py", "tests", result, *files],
                          cwd=context.root, stdin=subprocess.DEVNULL, check=False,
                          env=os.environ | {"KVLANE_PROGRAM": str(context.root / "build/release/kvlane")})
    if not result.exists():
        raise Failed(f"the Python tests ended with status {done.returncode} and no result")
    counts = json.loads(result.read_text(encoding="utf-8"))
    return Counts(counts["passed"], counts["failed"], tuple(counts["skipped"]))


def install(context):
    """The installed program must stand on its own."""
    build(context, "release", ["kvlane"])  # nothing to do behind stage build
    prefix = context.root / "build/test/prefix"
    shutil.rmtree(prefix, ignore_errors=True)
    call(context, "cmake", "--install", "build/release", "--prefix", prefix)
    call(context, prefix / "bin/kvlane", "version")
    if not (prefix / "include/kvlane/status.h").exists():
        raise Failed("cmake --install left out kvlane/status.h")
    return Counts()


def plain(context):
    """Each file by itself: batches of files hide a missing include. Tests, which nothing includes, when they change."""
    build(context, "dev", ["kvlane_commit"])  # a header that the build writes; and how each file is compiled
    listed = json.loads((context.root / "build/dev/compile_commands.json").read_text())
    commands = {os.path.relpath(entry["file"], context.root): entry for entry in listed}
    files = context.choice.targets
    if context.choice.full:
        files = [path for path in context.tree.sources if stands_alone(context.tree, path) and not is_test(path)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda path: check_alone(context, commands, path), files))
    failed = [path for path, good in zip(files, results) if good is False]
    absent = [path for path, good in zip(files, results) if good is None]
    return Counts(len(files) - len(failed) - len(absent), len(failed),
                  tuple(f"plain: {path} (not part of this build)" for path in absent))


def gpu(context):
    """Compiles all kernels; a spilled register is an error, and so is machine code without what kernels are built
    around (tools/sass_check.py). What needs a GPU skips where there is none, and scripts/gpu_check is what runs it."""
    if not shutil.which("nvcc") and not pathlib.Path("/usr/local/cuda/bin/nvcc").exists():
        say("gpu: SKIPPED: there is no nvcc on the PATH nor in /usr/local/cuda, so no kernel was compiled")
        return Counts(0, 0, ("gpu: all kernels (there is no nvcc)",))
    build(context, "gpu-kernels", [])
    folder = context.root / "build/gpu-kernels"
    # A program built with CUDA starts where no driver is: nothing of CUDA is loaded with it.
    for name in ("gpu_test", "kvlane_gpu_bench"):
        linked = subprocess.run(["ldd", folder / name], capture_output=True, text=True, check=True).stdout
        if "cuda" in linked.lower() or "nvidia" in linked.lower():
            raise Failed(f"{name} of preset gpu-kernels loads libraries of CUDA:\n{linked}")
    call(context, folder / "kvlane_gpu_bench", "--help")
    names = sorted(path.name for path in folder.glob("*_test") if os.access(path, os.X_OK) and path.is_file())
    counts = run_tests(context, "gpu-kernels", names)
    if counts.skipped:
        say("gpu: there is no GPU here: kernels were compiled, not run; scripts/gpu_check does that where one is")
    outcome = subprocess.run([test_python(context), "tools/sass_check.py"], cwd=context.root, check=False).returncode
    if outcome == 77:
        missing = "gpu: machine code of kernels (scripts/setup test installs nvdisasm)"
        return counts._replace(skipped=counts.skipped + (missing,))
    return counts._replace(failed=counts.failed + int(outcome != 0))


def analyse(context):
    call(context, "scripts/analyse", *([] if context.choice.full else context.choice.targets))
    return Counts()


def asan(context):
    names = all_programs(context.tree) if context.choice.full else context.choice.targets
    return run_tests(context, "asan", names)


def tsan(context):
    names = context.choice.targets
    if context.choice.full:
        names = all_programs(context.tree, lambda folder: folder in THREADED)
    suppressions = context.root / "cmake/tsan_suppressions.txt"
    return run_tests(context, "tsan", names, {"TSAN_OPTIONS": f"suppressions={suppressions}"})


# Valid inputs for a target to begin with: folders that tests have anyway.
FUZZ_SEEDS = {
    "frame_fuzz": ["tests/golden/frame/valid"],
    "extent_fuzz": ["tests/golden/extent"],
    "splitzip_fuzz": ["tests/golden/codec/valid", "tests/golden/codec/corrupt"],
    "message_fuzz": ["tests/golden/message/valid"],
    "tokenizer_fuzz": ["tests/fixtures/tokenizer"],
    "gguf_fuzz": ["tests/fixtures/gguf", "tests/fixtures/gguf_small"],
    "chat_template_fuzz": ["tests/fixtures/chat_template"],
    "safetensors_fuzz": ["tests/fixtures/models/*"],
    "tensor_file_fuzz": [f"tests/golden/tensor_file/{kind}" for kind in ("valid", "corrupt", "unsupported")],
}


def fuzz(context):
    targets = context.choice.targets
    if context.choice.full:
        targets = sorted(pathlib.PurePosixPath(path).stem for path in context.tree.objects() if is_fuzz(path))
    build(context, "fuzz", targets)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        good = list(pool.map(lambda target: fuzz_one(context, target), targets))
    return Counts(sum(good), len(good) - sum(good))


def fuzz_one(context, target):
    """Runs one target. What it finds interesting stays in build/corpus and starts the next run."""
    corpus = context.root / "build/corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = [folder for pattern in FUZZ_SEEDS.get(target, []) for folder in context.root.glob(pattern)]
    log = context.root / "build/test" / f"fuzz-{target}.log"
    with open(log, "w", encoding="utf-8") as file:
        status = subprocess.run(
            [context.root / "build/fuzz" / target, "-seed=1", f"-max_total_time={context.fuzz_seconds}", "-timeout=10",
             "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={corpus}-", corpus, *seeds],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if status != 0:
        say("\n".join(said[-60:]))
        say(f"{target} failed; the input is build/corpus/{target}-*, the log {log.relative_to(context.root)}")
        return False
    inputs = [line.split()[-1] for line in said if "number_of_executed_units" in line]
    say(f"{target}: {inputs[0] if inputs else 'no'} inputs")
    return True


def check_alone(context, commands, path):
    """Whether a source or header is right without others before it; None if this build does not have it."""
    # A header is compiled as a source is that includes it: one of an instruction set needs its flags.
    sources = [path] if path.endswith(".cpp") else context.tree.including(path)
    entry = next((commands[source] for source in sources if source in commands), None)
    if entry is None:
        return None
    words = [word for word in entry["command"].split(" -o ")[0].split() if not word.endswith("ccache")]
    # A header is included, since "#pragma once" in what is compiled is a warning.
    file = context.root / path
    what = ["-include", file, "-x", "c++", "/dev/null"] if path.endswith(".h") else [file]
    done = subprocess.run(" ".join(map(str, [*words, "-O0", "-g0", "-fsyntax-only", *what])),
                          shell=True, cwd=entry["directory"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say(f"{path} does not compile by itself:\n{done.stderr[:4000]}")
    return done.returncode == 0


ALWAYS = "always"
STAGES = [
    Stage("setup", setup, 1, "a dependency that no script installs", ALWAYS),
    Stage("tidy", tidy, 0.5, "an include against the layers, a long function, a dead link", ALWAYS),
    Stage("format", format_, 0.5, "a layout that clang-format would change", "changed files"),
    Stage("build", build_, 9, "a warning of g++", "what unit, python and install run"),
    Stage("unit", unit, 5, "wrong results of libraries", "programs that link a changed library"),
    Stage("python", python, 6, "wrong answers of the program as its users see it; documents and tools",
          "all if the program changed, else those without it"),
    Stage("install", install, 0.5, "an installed program that lacks something", "the program changed"),
    Stage("plain", plain, 8, "a file that compiles only behind others", "changed files"),
    Stage("gpu", gpu, 7, "kernels that do not compile, spill registers or lost their instructions",
          "a kernel or what it includes changed"),
    Stage("analyse", analyse, 3, "what cppcheck sees and compilers do not", "changed files"),
    Stage("asan", asan, 26, "memory touched out of bounds, after its end or never given back; undefined behaviour; "
          "coroutines that g++ 12 miscompiles", "programs of changed folders"),
    Stage("tsan", tsan, 13, "races", "programs of changed folders that have threads"),
    Stage("fuzz", fuzz, 9, "inputs that break a reader", "targets that link a changed library"),
]
