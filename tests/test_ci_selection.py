"""scripts/ci/selection.py: what a change of one file selects, in a small tree and in this one.

SPDX-License-Identifier: Apache-2.0
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "ci"))
import passed  # noqa: E402
import selection  # noqa: E402
from selection import choose  # noqa: E402
from tree import INCLUDE, Tree  # noqa: E402

STAGES = ["setup", "tidy", "format", "build", "unit", "python", "install", "plain", "gpu", "analyse", "asan",
          "tsan", "fuzz"]
# base <- store <- server, and alone, which nothing links.
FILES = {
    "CMakeLists.txt": "kvlane_library(base)\nkvlane_library(store DEPS base PRIVATE x)\n"
                      "kvlane_library(server DEPS store)\nkvlane_library(alone)\n"
                      "target_link_libraries(kvlane PRIVATE kvlane_server)\n",
    "README.md": "",
    "models/m.bin": "",
    "src/base/a.h": "",
    "src/base/a.cpp": '#include "base/a.h"\n',
    "src/base/a_test.cpp": '#include "base/a.h"\n',
    "src/base/inner.h": "",
    "src/base/b.cpp": '#include "base/inner.h"\n',
    "src/base/kernel_device.h": "",
    "src/base/kernel_cuda.cu": '#include "base/kernel_device.h"\n',
    "src/store/s.h": '#include "base/a.h"\n',
    "src/store/s.cpp": '#include "store/s.h"\n',
    "src/store/s_test.cpp": '#include "store/s.h"\nkSourceDir\n',
    "src/store/s_fuzz.cpp": '#include "store/s.h"\n',
    "src/server/w.cpp": '#include "store/s.h"\n',
    "src/server/w_test.cpp": "",
    "src/alone/x.cpp": "",
    "src/alone/x_test.cpp": "",
    "src/cli/main.cpp": "",
    "tests/program.py": "",
    "tests/helper.py": "import program\n",
    "tests/test_served.py": "from helper import x\n",
    "tests/test_other.py": "",
}


class SelectionTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.git("init", "-q")
        for path, text in FILES.items():
            self.write(path, text)
        self.commit()
        self.name_passed(STAGES)

    def git(self, *arguments):
        done = subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", self.root, *arguments],
                              capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")

    def name_passed(self, stages):
        (self.root / ".ci").mkdir(exist_ok=True)
        passed.add(self.root, stages)
        self.commit()

    def choices(self):
        return choose(self.root, STAGES, "")

    def changed(self, *paths):
        """What is chosen when these files differ: targets by stage, without those that run in any case."""
        for path in paths:
            self.write(path, FILES.get(path, "") + ("# differs\n" if path.endswith(".py") else "// differs\n"))
        choices = self.choices()
        return {name: choice.targets for name, choice in choices.items() if choice.targets}

    def test_nothing_changed(self):
        self.assertEqual(self.changed(), {"python": ["test_other.py"]})

    def test_documents_select_python_tests_that_need_no_program(self):
        self.assertEqual(self.changed("README.md"), {"python": ["test_other.py"]})

    def test_a_source_selects_what_links_it(self):
        chosen = self.changed("src/base/b.cpp")
        self.assertEqual(chosen["unit"], ["base_test", "server_test", "store_test"])
        self.assertEqual(chosen["build"], ["kvlane", "base_test", "server_test", "store_test"])
        self.assertEqual(chosen["asan"], ["base_test"])
        self.assertEqual(chosen["fuzz"], ["s_fuzz"])
        self.assertEqual(chosen["plain"], ["src/base/b.cpp"])
        self.assertEqual(chosen["python"], ["test_other.py", "test_served.py"])
        self.assertNotIn("tsan", chosen)
        self.assertNotIn("gpu", chosen)

    def test_a_header_selects_sanitizers_of_all_that_include_it(self):
        chosen = self.changed("src/base/a.h")
        self.assertEqual(chosen["asan"], ["base_test", "server_test", "store_test"])
        self.assertEqual(chosen["tsan"], ["server_test", "store_test"])

    def test_a_header_of_many_folders_selects_sanitizers_of_its_own(self):
        with unittest.mock.patch.object(selection, "REACH_MAX", 2):
            chosen = self.changed("src/base/a.h")
        self.assertEqual(chosen["asan"], ["base_test"])
        self.assertEqual(chosen["unit"], ["base_test", "server_test", "store_test"])

    def test_a_test_selects_its_program_alone(self):
        chosen = self.changed("src/store/s_test.cpp")
        for stage in ("unit", "asan", "tsan", "build"):
            self.assertEqual(chosen[stage], ["store_test"])
        self.assertNotIn("install", chosen)

    def test_what_the_program_does_not_link_leaves_it_alone(self):
        chosen = self.changed("src/alone/x.cpp")
        self.assertEqual(chosen["unit"], ["alone_test"])
        self.assertEqual(chosen["python"], ["test_other.py"])

    def test_kernels_select_stage_gpu(self):
        self.assertEqual(self.changed("src/base/kernel_device.h")["gpu"], ["src/base/kernel_cuda.cu"])

    def test_data_selects_programs_that_read_files_of_the_tree(self):
        chosen = self.changed("tests/golden/x")
        self.assertEqual(chosen["unit"], ["store_test"])
        self.assertEqual(chosen["python"], ["test_other.py"])
        self.assertEqual(self.changed("models/m.bin")["python"], ["test_other.py", "test_served.py"])

    def test_a_python_module_selects_the_tests_that_import_it_and_the_program(self):
        chosen = self.changed("tests/helper.py")
        self.assertEqual(chosen["python"], ["test_other.py", "test_served.py"])
        self.assertEqual(chosen["build"], ["kvlane"])

    def test_what_is_gone_selects_its_folder(self):
        (self.root / "src/store/s.cpp").unlink()
        self.assertEqual({name: choice.targets for name, choice in self.choices().items()}["unit"],
                         ["server_test", "store_test"])

    def test_what_is_committed_counts_as_what_is_not(self):
        self.write("src/alone/x.cpp", "differs")
        self.commit()
        self.assertEqual(self.changed()["unit"], ["alone_test"])

    def test_how_things_are_built_selects_all_that_is_built(self):
        for path in ("CMakeLists.txt", "cmake/x.cmake", "scripts/ci/x.py"):
            with self.subTest(path):
                self.git("stash", "-q", "-u") if self.git("status", "--porcelain") else None
                self.changed(path)
                choices = self.choices()
                full = {name for name, choice in choices.items() if choice.full}
                self.assertEqual(full, {"setup", "tidy", "build", "unit", "python", "install", "gpu"})
                small = {name: choices[name].targets for name in ("asan", "tsan", "fuzz")}
                self.assertEqual(small, {"asan": ["base_test"], "tsan": ["tensors_test"], "fuzz": ["frame_fuzz"]})

    def test_without_a_commit_that_passed_everything_runs(self):
        self.write(passed.FILE, "# none\n")
        self.assertTrue(all(choice.full for choice in self.choices().values()))
        self.write(passed.FILE, "0123456789012345678901234567890123456789 unit\n")
        choices = self.choices()
        self.assertTrue(all(choice.full for choice in choices.values()))
        self.assertIn("no ancestor", choices["unit"].why)

    def test_a_stage_that_was_not_full_in_four_changes_is(self):
        for _ in range(3):
            self.name_passed(["unit"])
            self.assertFalse(self.choices()["tsan"].full)
        self.name_passed(["unit"])
        choices = self.choices()
        self.assertTrue(choices["tsan"].full)
        self.assertFalse(choices["unit"].full)
        self.name_passed(["tsan"])
        self.assertFalse(self.choices()["tsan"].full)


class ThisTreeTest(unittest.TestCase):
    """What is read from the text against what the compiler reported, where there is a build."""

    def test_closures_hold_all_that_the_compiler_read(self):
        builds = [ROOT / "build" / name for name in ("dev", "release")]
        builds = [build for build in builds if (build / ".ninja_deps").exists()]
        if not builds:
            self.skipTest("nothing is built")
        tree = Tree(ROOT)
        deps = subprocess.run(["ninja", "-C", builds[0], "-t", "deps"], capture_output=True, text=True, check=True)
        checked = 0
        for record in deps.stdout.split("\n\n"):
            if "(VALID)" not in record:
                continue
            read = {path.resolve() for path in (builds[0] / line.strip() for line in record.splitlines()[1:])}
            ours = {str(path.relative_to(ROOT)) for path in read if path.is_relative_to(ROOT)}
            sources = {path for path in ours if path.endswith(".cpp") and path in tree.files}
            generated = [path for path in read if path.is_relative_to(builds[0]) and path.suffix == ".cpp"]
            named = {f"src/{name}" for path in generated for name in INCLUDE.findall(path.read_text(encoding="utf-8"))}
            known = set().union(*(tree.closure(path) for path in sources | named))
            missing = {path for path in ours if path.startswith(("src/", "include/"))} - known
            self.assertEqual(missing if sources else set(), set(), sources)
            checked += bool(sources)
        self.assertGreater(checked, 10)

    def test_contributing_has_the_table_of_stages(self):
        table = subprocess.run([ROOT / "scripts/test", "--stages"], capture_output=True, text=True, check=True).stdout
        self.assertIn(table, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))

    def test_every_library_is_known(self):
        tree = Tree(ROOT)
        folders = {tree.folder(path) for path in tree.sources if path.startswith("src/")} - {"cli"}
        self.assertEqual(folders, set(tree.links))
        self.assertIn("server", tree.program_links)


if __name__ == "__main__":
    unittest.main()
