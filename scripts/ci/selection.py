"""What a change asks of each stage: all of it, some targets, or nothing.

A change is every file that differs from the commit it started from (.ci/passed), committed or not. Files of src select
by what includes and links them:

- unit, fuzz: programs that link a library with a changed object, and programs with a changed object of their own;
- asan, tsan: programs of the folders themselves, and programs with a changed object of their own, since the same tests
  of the others run in stage unit; where those are many (a header that most include), programs of folders with a
  changed file, and the others when the stage is due in full;
- plain, analyse: the changed files.

Files that say how things are built select everything that is built. Of sanitizers, which find faults of sources, they
select one small program: it shows that such builds work.
"""
# SPDX-License-Identifier: Apache-2.0
import ast
import dataclasses
import pathlib

import passed
from tree import Tree, git, is_fuzz, is_gpu_test, is_test, runs_device_code, stands_alone

# A difference here may change any object or any stage.
BUILD_FILES = ("CMakeLists.txt", "CMakePresets.json", "scripts/build", "scripts/common.sh", "scripts/test",
               "scripts/packages.txt", "tests/requirements.txt", ".ci/run")
BUILD_FOLDERS = ("cmake/", "scripts/ci/")
# What test programs read when they run, those whose sources say kSourceDir.
DATA_FOLDERS = ("tests/golden/", "tests/fixtures/", "models/")
# Programs whose tests come from other folders than their name says.
PROGRAMS_OF_FOLDERS = {"ucx_test": ("transfer", "engine")}
# Folders that a change may reach for all of their programs to run under sanitizers.
REACH_MAX = 8
# The libraries that have threads of their own.
THREADED = ("transfer", "engine", "server", "tensors", "store", "restore")
# Stages that look at files alone: how things are built does not change what they find.
OF_FILES = ("format", "plain", "analyse")
# A program that is soon built, of stages whose presets compile everything once more.
SMALL = {"asan": "base_test", "tsan": "tensors_test", "fuzz": "frame_fuzz"}


@dataclasses.dataclass
class Choice:
    """What a stage runs: everything (`full`), or `targets`, of which there may be none."""

    full: bool = False
    targets: list = dataclasses.field(default_factory=list)
    why: str = ""

    def __bool__(self):
        return self.full or bool(self.targets)


def changed_files(root, commit):
    """Paths that differ from `commit`, in commits since, in the working tree, or by not being tracked."""
    differ = git(root, "diff", "--name-only", "--no-renames", "-z", commit).split("\0")
    new = git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return {path for path in differ + new if path} - {passed.FILE}


class Selection:
    """The choices for one change; `commit` is what it started from."""

    def __init__(self, root, commit):
        self.tree = Tree(root)
        self.changed = changed_files(root, commit)
        removed = {path for path in self.changed if path not in self.tree.files}
        self.objects = [path for path in self.tree.objects() if self.tree.closure(path) & self.changed]
        # What a file that is gone was part of is known by its folder alone.
        gone = {self.tree.folder(path) for path in removed if path.startswith("src/") and not is_test(path)}
        self.folders = gone | {self.tree.folder(path) for path in self.objects
                               if path.startswith("src/") and not is_test(path) and not is_fuzz(path)}
        self.own_tests = {self.tree.folder(path) for path in self.objects if is_test(path)}
        self.own_tests |= {self.tree.folder(path) for path in removed if path.startswith("src/") and is_test(path)}

    def build_file(self):
        """A changed file that says how things are built, or None."""
        for path in sorted(self.changed):
            if path in BUILD_FILES or path.startswith(BUILD_FOLDERS):
                return path
        return None

    def reads_data(self):
        """Folders whose tests read files of the tree, if such a file changed."""
        if not any(path.startswith(DATA_FOLDERS) for path in self.changed):
            return set()
        said = {path for path in self.tree.sources if "kSourceDir" in self.tree.text(path)}
        return {self.tree.folder(path) for path in self.tree.objects()
                if is_test(path) and not is_gpu_test(path) and self.tree.closure(path) & said}

    def programs(self, folders):
        """The test programs of these folders, of those that have one."""
        having = {self.tree.folder(path) for path in self.tree.objects() if is_test(path)}
        extra = [name for name, parts in PROGRAMS_OF_FOLDERS.items() if folders & set(parts)]
        return sorted([f"{folder}_test" for folder in folders & having] + extra)

    def unit(self):
        linking = {name for name, links in self.tree.links.items() if links & self.folders}
        return self.programs(linking | self.own_tests | self.reads_data())

    def sanitized(self):
        """Test programs, for AddressSanitizer."""
        folders = self.folders | self.own_tests
        if len(folders) > REACH_MAX:
            folders &= {self.tree.folder(path) for path in self.changed if path.startswith("src/")}
        return [name for name in self.programs(folders) if name not in PROGRAMS_OF_FOLDERS]

    def threaded(self):
        return [name for name in self.sanitized() if name.removesuffix("_test") in THREADED]

    def fuzz(self):
        chosen = []
        for path in self.tree.objects():
            if is_fuzz(path) and (path in self.objects or self.tree.links[self.tree.folder(path)] & self.folders):
                chosen.append(pathlib.PurePosixPath(path).stem)
        return sorted(chosen)

    def device(self):
        return [path for path in self.objects if runs_device_code(path)]

    def sources(self):
        """Changed sources and headers."""
        return [path for path in self.tree.sources if path in self.changed]

    def program_changed(self):
        return bool(self.folders & self.tree.program_links)

    def python(self):
        """Files of tests: all that run the program if it changed, those that do not in any case."""
        tests = sorted(path for path in self.tree.files if path.startswith("tests/test_") and path.endswith(".py"))
        everything = self.program_changed() or any(path.startswith("models/") for path in self.changed)
        return [pathlib.PurePosixPath(path).name for path in tests
                if everything or not runs_program(self.tree, path) or modules(self.tree, path) & self.changed]


def modules(tree, path):
    """A Python file and those of its folder that it imports, directly or not."""
    found, queue = set(), [path]
    while queue:
        file = queue.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(tree.text(file))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            near = [str(pathlib.PurePosixPath(file).with_name(f"{name}.py")) for name in names]
            queue += [name for name in near if name in tree.files]
    return found


def runs_program(tree, path):
    return "tests/program.py" in modules(tree, path)


def choose(root, stages, everything):
    """A Choice for each of `stages`: names in order. `everything` is why all of them run in full, or empty."""
    commit, why = passed.base(root)
    everything = everything or why
    if everything:
        return {name: Choice(full=True, why=everything) for name in stages}
    selection = Selection(root, commit)
    due = passed.overdue(root, stages)
    built = selection.build_file()
    since = f"since {commit[:12]}"
    unit = selection.unit()
    python = selection.python()
    program = selection.program_changed() or any(runs_program(selection.tree, f"tests/{name}") for name in python)
    wanted = {
        "build": ["kvlane"] * program + unit,
        "format": selection.sources(), "analyse": selection.sources(),
        "plain": [path for path in selection.sources() if stands_alone(selection.tree, path)],
        "unit": unit, "python": python,
        "install": ["kvlane"] if selection.program_changed() else [],
        "gpu": selection.device(), "asan": selection.sanitized(),
        "fuzz": selection.fuzz(), "tsan": selection.threaded(),
    }
    choices = {}
    for name in stages:
        if name in due:
            choices[name] = Choice(full=True, why=f"did not run in full in {passed.CHANGES_MAX} changes")
        elif built and name in SMALL:
            choices[name] = Choice(targets=sorted({SMALL[name], *wanted[name]}), why=f"{built} changed")
        elif built and name not in OF_FILES:
            choices[name] = Choice(full=True, why=f"{built} changed")
        elif name in ("setup", "tidy"):
            choices[name] = Choice(full=True)
        else:
            choices[name] = Choice(targets=wanted[name], why=since)
    return choices
