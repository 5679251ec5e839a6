"""Tests of tools/tidy.py: each rule on a small tree that keeps it, and on one that breaks it."""
# SPDX-License-Identifier: Apache-2.0
import importlib.util
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("tidy", ROOT / "tools" / "tidy.py")
tidy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tidy)

ARCHITECTURE = """\
| top | what |
|---|---|
| `src` | sources |
| `include` | public |
| `tools`, `tests`, `bench` | others |

Words between the tables.

| src | what | may include, besides `base` |
|---|---|---|
| `base` | bottom | nothing |
| `cpu`, `gpu` | machines | nothing |
| `format` | frames | `cpu` |
| `engine` | middle | all above |
| `server` | top | `engine` |
| `bench`, `cli` | program | all |
"""
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def cpp(body):
    return "// What it is.\n" + SPDX + body


def header(body=""):
    return cpp("#pragma once\n" + body)


class TidyTest(unittest.TestCase):
    def findings(self, files):
        """What tidy says about a tree of these files, as "path:line: sentence"."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in {"ARCHITECTURE.md": ARCHITECTURE, **files}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text, encoding="utf-8")
            return [str(finding) for finding in tidy.check_tree(root)]

    def assert_clean(self, files):
        self.assertEqual(self.findings(files), [])

    def assert_one(self, files, start, words):
        """Exactly one finding, which begins with `start` and contains `words`."""
        found = self.findings(files)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(start), found[0])
        self.assertIn(words, found[0])


class IncludeTest(TidyTest):
    def test_row_base_self_and_public_headers_may_be_included(self):
        self.assert_clean({
            "include/kvlane/status.h": header(),
            "src/base/a.h": header('#include "kvlane/status.h"\n#include <vector>\n'),
            "src/cpu/b.h": header('#include "base/a.h"\n'),
            "src/format/c.h": header('#include "base/a.h"\n#include "cpu/b.h"\n'),
            "src/format/c.cpp": cpp('#include "format/c.h"\n'),
        })

    def test_folder_outside_the_row_is_refused_with_its_line(self):
        self.assert_one(
            {
                "src/gpu/b.h": header(),
                "src/format/c.cpp": cpp('\n#include "gpu/b.h"\n'),
            },
            "src/format/c.cpp:4:",
            'src/format may not include "gpu/b.h"',
        )

    def test_rows_are_not_transitive(self):
        files = {
            "src/cpu/b.h": header(),
            "src/format/c.h": header('#include "cpu/b.h"\n'),
            "src/engine/d.h": header('#include "format/c.h"\n'),
            "src/server/e.cpp": cpp('#include "engine/d.h"\n#include "format/c.h"\n'),
        }
        self.assert_one(files, "src/server/e.cpp:4:", 'may not include "format/c.h"')

    def test_all_above_is_not_what_comes_below(self):
        files = {
            "src/gpu/b.h": header(),
            "src/server/s.h": header(),
            "src/engine/d.cpp": cpp('#include "gpu/b.h"\n#include "server/s.h"\n'),
        }
        self.assert_one(files, "src/engine/d.cpp:4:", 'may not include "server/s.h"')

    def test_all_is_everything(self):
        self.assert_clean({
            "src/server/s.h": header(),
            "src/bench/b.h": header(),
            "src/cli/main.cpp": cpp('#include "bench/b.h"\n#include "server/s.h"\n'),
        })

    def test_public_headers_include_nothing_of_ours(self):
        files = {
            "src/base/a.h": header(),
            "include/kvlane/status.h": header('#include "base/a.h"\n'),
        }
        self.assert_one(files, "include/kvlane/status.h:4:", 'may not include "base/a.h"')

    def test_missing_and_relative_headers_are_refused(self):
        files = {"src/base/a.h": header(), "src/base/b.cpp": cpp('#include "base/a.h"\n#include "a.h"\n')}
        self.assert_one(files, "src/base/b.cpp:4:", 'there is no "a.h"')

    def test_heavy_libraries_stay_out_of_headers(self):
        self.assert_clean({"src/base/b.cpp": cpp("#include <nlohmann/json.hpp>\n")})
        self.assert_clean({"include/kvlane/a.h": header("#include <nlohmann/json_fwd.hpp>\n")})
        files = {
            "src/base/a.h": header("#include <nlohmann/json.hpp>\n"),
            "src/base/b.cpp": cpp('#include "base/a.h"\n'),
        }
        self.assert_one(files, "src/base/a.h:4:", "<nlohmann/json.hpp>")

    def test_command_line_library_is_for_one_file(self):
        include = "#include <CLI/CLI.hpp>\n"
        self.assert_clean({"src/cli/command_line.cpp": cpp(include)})
        self.assert_one({"src/cli/main.cpp": cpp(include)}, "src/cli/main.cpp:3:", "<CLI/CLI.hpp> is for")
        files = {
            "src/cli/command_line.h": header(include),
            "src/cli/main.cpp": cpp('#include "cli/command_line.h"\n'),
        }
        self.assert_one(files, "src/cli/command_line.h:4:", "<CLI/CLI.hpp> is for")

    def test_header_that_nobody_includes_is_dead(self):
        self.assert_one({"src/base/a.h": header()}, "src/base/a.h:1:", "nobody includes")
        self.assert_clean({"include/kvlane/a.h": header()})


class FolderTest(TidyTest):
    def test_unknown_folders_are_found_once(self):
        files = {"src/misc/a.cpp": cpp(""), "src/misc/b.cpp": cpp("")}
        self.assert_one(files, "src/misc/a.cpp:1:", "src/misc")
        self.assert_one({"junk/a.txt": "x\n"}, "junk/a.txt:1:", "junk")

    def test_files_directly_in_src_and_nested_folders_are_found(self):
        self.assert_one({"src/a.cpp": cpp("")}, "src/a.cpp:1:", "src/a.cpp is not")
        self.assert_one({"src/base/deep/a.cpp": cpp("")}, "src/base/deep/a.cpp:1:", "src/base/deep")

    def test_build_and_hidden_folders_are_not_looked_at(self):
        self.assert_clean({"build/x.cpp": "int x;\n", "build-2/x.cpp": "", ".venv/a.py": ""})

    def test_tree_without_tables_is_a_finding(self):
        self.assert_one({"ARCHITECTURE.md": "# Nothing\n"}, "ARCHITECTURE.md:1:", "missing")


class HeadTest(TidyTest):
    def test_every_source_needs_its_licence_line(self):
        self.assert_one({"src/base/a.cpp": "// What it is.\nint x;\n"}, "src/base/a.cpp:1:", "SPDX")
        self.assert_one({"tools/a.py": "x = 1\n"}, "tools/a.py:1:", "SPDX")
        self.assert_one({"tools/run": "#!/bin/sh\n"}, "tools/run:1:", "SPDX")
        self.assert_one({"CMakeLists.txt": "project(x)\n"}, "CMakeLists.txt:1:", "SPDX")
        self.assert_clean({"tools/list.txt": "x\n", "tools/a.py": "# SPDX-License-Identifier: Apache-2.0\n"})

    def test_first_line_says_what_the_file_is(self):
        self.assert_one({"src/base/a.cpp": SPDX}, "src/base/a.cpp:1:", "does not say")

    def test_header_needs_pragma_once(self):
        files = {"src/base/a.h": cpp(""), "src/base/a.cpp": cpp('#include "base/a.h"\n')}
        self.assert_one(files, "src/base/a.h:1:", "#pragma once")


class LengthTest(TidyTest):
    def test_columns_are_counted_in_characters(self):
        self.assert_clean({"src/base/a.cpp": cpp("// " + "é" * 97 + "\n")})
        self.assert_one({"src/base/a.cpp": cpp("// " + "é" * 98 + "\n")}, "src/base/a.cpp:3:", "101 columns")

    def test_file_length(self):
        self.assert_clean({"src/base/a.cpp": cpp("\n" * 698)})
        self.assert_one({"src/base/a.cpp": cpp("\n" * 699)}, "src/base/a.cpp:701:", "701 lines")

    def function(self, lines):
        return "namespace kvlane {\n\nint long_one(int a) {\n" + "  ++a;\n" * (lines - 2) + "}\n}\n"

    def test_function_length(self):
        self.assert_clean({"src/base/a.cpp": cpp(self.function(70))})
        self.assert_one(
            {"src/base/a.cpp": cpp(self.function(71))}, "src/base/a.cpp:5:", "function long_one has 71 lines"
        )

    def test_kernels_of_one_tier_may_be_long(self):
        for tier in ("avx512", "avx512_bf16"):
            self.assert_clean({f"src/base/a_{tier}.cpp": cpp(self.function(200))})

    def test_long_class_of_short_functions_is_fine(self):
        body = "class Many {\n public:\n" + "  int f(int x) const { return x; }\n" * 90 + "};\n"
        self.assert_clean({"src/base/a.cpp": cpp(body)})

    def test_constructor_with_braced_members_is_measured_whole(self):
        body = "Widget::Widget(int a)\n    : a_(a), b_{1, 2}, c_{} {\n" + "  ++a_;\n" * 68 + "}\n"
        self.assert_one({"src/base/a.cpp": cpp(body)}, "src/base/a.cpp:3:", "Widget::Widget has 71 lines")

    def test_braces_in_text_and_macros_do_not_count(self):
        body = (
            "#define OPEN {\n"
            "void f() {\n"
            "  auto a = \"{\"; char b = '{'; /* { */  // {\n"
            '  auto c = R"x({ " {)x"; int d = 1\'000\'000;\n'
            "}\n"
        ) + self.function(71)
        self.assert_one({"src/base/a.cpp": cpp(body)}, "src/base/a.cpp:10:", "long_one has 71 lines")

    def test_python_function_length(self):
        text = "# SPDX-License-Identifier: Apache-2.0\ndef f():\n" + "    x = 1\n" * 70
        self.assert_one({"tools/a.py": text}, "tools/a.py:2:", "function f has 71 lines")


class BannedTest(TidyTest):
    def test_a_library_does_not_print_or_end_the_process(self):
        for call in (
            'std::printf("x")', 'fprintf(stderr, "x")', 'puts("x")', "std::cout << 1", "std::exit(1)",
            "exit(1)", "std::abort()", "abort()", "std::terminate()", 'getenv("HOME")',
            'std::getenv("HOME")',
        ):
            with self.subTest(call):
                self.assert_one(
                    {"src/base/a.cpp": cpp(f"void f() {{\n  {call};\n}}\n")}, "src/base/a.cpp:4:", "banned"
                )

    def test_raw_memory(self):
        for statement in (
            "auto* p = new int[4]", "delete p", "delete[] p", "void* p = std::malloc(4)", "free(p)",
        ):
            with self.subTest(statement):
                self.assert_one(
                    {"src/base/a.cpp": cpp(f"void f() {{\n  {statement};\n}}\n")},
                    "src/base/a.cpp:4:",
                    "raw memory",
                )

    def test_using_namespace_std_even_in_tests(self):
        files = {"src/base/a_test.cpp": cpp("using namespace std;\n")}
        self.assert_one(files, "src/base/a_test.cpp:3:", "using namespace std")

    def test_what_looks_alike_is_fine(self):
        self.assert_clean({
            "src/base/a.cpp": cpp(
                "#include <new>\n"
                "struct A {\n"
                "  A(const A&) = delete;\n"
                "  virtual void abort(int request) = 0;\n"
                "  void close() { engine.abort(3); pool->free(4); app.exit(5); }\n"
                "};\n"
                "// printf() in words; new in words\n"
                'const char* text = "std::cout << exit(1) new int";\n'
                "int n = std::snprintf(nullptr, 0, text);\n"
                "std::unique_ptr<A> a(new A(1));\n"
                "auto b = std::shared_ptr<const A>(new A());\n"
                "int renew = 0, new_rows = 1;\n"
            )
        })

    def test_the_program_and_tests_may_print(self):
        self.assert_clean({
            "src/cli/main.cpp": cpp("void f() { std::cout << 1; }\n"),
            "src/base/a_test.cpp": cpp('void f() { printf("x"); getenv("X"); }\n'),
            "bench/peers/a.cpp": cpp('int main() { printf("x"); }\n'),
        })


class WordTest(TidyTest):
    def test_leftovers(self):
        for word in ("TO" "DO", "FIX" "ME", "XX" "X"):
            with self.subTest(word):
                self.assert_one({"src/base/a.cpp": cpp(f"// {word}: later\n")}, "src/base/a.cpp:3:", word)
        self.assert_clean({"src/base/a.cpp": cpp("// XXH3, METHODOLOGY\n")})

    def test_paths_of_a_machine(self):
        for path in ("/wo" "rk/x", "/fa" "rm/x", "a/.lib" "rary/x"):
            with self.subTest(path):
                self.assert_one({"README.md": f"See {path}\n"}, "README.md:1:", "somebody's machine")
        self.assert_clean({"README.md": "the workload, a library.\n"})

    def test_dead_links(self):
        files = {"README.md": "\n[x](docs/gone.md#part)\n"}
        self.assert_one(files, "README.md:2:", "docs/gone.md leads nowhere")
        text = "[x](ARCHITECTURE.md#folders) [y](https://example.org/z) [z](#here)\n"
        self.assert_clean({"README.md": text})


class TreeTest(unittest.TestCase):
    def test_this_tree_has_no_findings(self):
        self.assertEqual([str(finding) for finding in tidy.check_tree(ROOT)], [])


if __name__ == "__main__":
    unittest.main()
