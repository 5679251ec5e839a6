"""What the source tree says of itself: which files there are, what includes what, what links what.

Includes are read from the text, so that nothing needs to be built first: a file's closure is at least what a compiler
would report (`ninja -t deps`), since branches of #if count too. `tests/test_ci_selection.py` compares both.
"""
# SPDX-License-Identifier: Apache-2.0
import functools
import pathlib
import re
import subprocess

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
LIBRARY = re.compile(r"^kvlane_library\((\w+)\s*(?:DEPS\s+([^)]*?))?(?:PRIVATE[^)]*)?\)", re.MULTILINE)
PROGRAM = re.compile(r"target_link_libraries\(kvlane PRIVATE([^)]*)\)")
CODE = (".h", ".cpp", ".cu")


def git(root, *arguments):
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


class Tree:
    """The files of a checkout, tracked or not yet, by their paths from its root."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        listed = git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
        self.files = {path for path in listed if path and (self.root / path).is_file()}
        self.sources = sorted(path for path in self.files
                              if path.startswith(("src/", "include/")) and path.endswith(CODE))
        self.links, self.program_links = self._read_links()

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def _read_links(self):
        """For each library all that it links, itself included; and the same for the program."""
        cmake = self.text("CMakeLists.txt")
        direct = {name: set((deps or "").split()) for name, deps in LIBRARY.findall(cmake)}

        def reach(names):
            found = set()
            queue = [name for name in names if name in direct]
            while queue:
                name = queue.pop()
                if name not in found:
                    found.add(name)
                    queue += [dep for dep in direct[name] if dep in direct]
            return found

        program = PROGRAM.search(cmake).group(1).replace("kvlane_", "").split()
        return {name: reach([name]) for name in direct}, reach(program) | {"cli"}

    @functools.cache
    def includes(self, path):
        """The files of the tree that `path` names in an #include of its own."""
        named = INCLUDE.findall(self.text(path))
        places = [f"{folder}/{name}" for name in named for folder in ("src", "include")]
        return frozenset(place for place in places if place in self.files)

    @functools.cache
    def closure(self, path):
        """`path` and all that it includes, directly or not."""
        found = set()
        queue = [path]
        while queue:
            next_path = queue.pop()
            if next_path not in found:
                found.add(next_path)
                queue += self.includes(next_path)
        return frozenset(found)

    def including(self, path):
        """The objects whose closure has `path`."""
        return [source for source in self.objects() if path in self.closure(source)]

    def folder(self, path):
        return path.split("/")[1]

    def objects(self):
        """What is compiled by itself."""
        return [path for path in self.sources if path.endswith((".cpp", ".cu"))]


def is_test(path):
    return path.endswith(("_test.cpp", "_fixture.cpp"))


def is_fuzz(path):
    return path.endswith("_fuzz.cpp")


def is_gpu_test(path):
    return path.endswith("_gpu_test.cpp")


def runs_device_code(path):
    """Whether preset gpu-kernels compiles this file for what it says of kernels."""
    return path.endswith((".cu", "_gpu_test.cpp", "_device_test.cpp")) or path.startswith("src/gpu/")


def stands_alone(tree, path):
    """Whether to compile this file by itself: all sources, and headers that no source of their name includes first."""
    return path.endswith(".cpp") or path.endswith(".h") and f"{path.removesuffix('.h')}.cpp" not in tree.files
