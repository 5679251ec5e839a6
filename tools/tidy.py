#!/usr/bin/env python3
"""Holds the tree against the rules that a compiler does not know: who may include whom, lengths of
lines, functions and files, licence lines, banned calls, leftovers, dead files and links.

Prints "file:line: sentence" for each breach and fails if there is one. The tables of folders are
read from ARCHITECTURE.md, so that the page and the check cannot differ.

    tools/tidy.py [ROOT]
"""
# SPDX-License-Identifier: Apache-2.0
import ast
import bisect
import os
import pathlib
import re
import sys
from typing import NamedTuple

CPP_COLUMNS_MAX = 100  # as .clang-format has it
COLUMNS_MAX = 120  # of other sources
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
HEAD_LINES = 40  # the SPDX line stands within these, after what the file is

# The public headers; every folder may include them.
PUBLIC = "kvlane"
# Libraries that cost seconds in every file that includes them: never in a header.
HEAVY_INCLUDES = ("nlohmann/json.hpp", "spdlog/", "fmt/", "prometheus/")
# Libraries that one file includes, for all that use them through its header.
INCLUDED_ONCE = {"CLI/": "src/cli/command_line.cpp"}
# Headers that the build writes, with what writes them.
GENERATED_HEADERS = {"bench/commit.h": "cmake/commit.cmake"}
# Folders of src/ that talk to a terminal.
TERMINAL_FOLDERS = ("cli", "bench")
# Files that may own memory by hand, with the reason.
RAW_MEMORY_FILES: dict[str, str] = {}
# The one place where the environment may be read.
ENVIRONMENT_FILES = {"src/cli/environment.cpp": "what flags cannot say"}

CPP_SUFFIXES = (".h", ".cpp", ".cu", ".cuh")
TEXT_SUFFIXES = CPP_SUFFIXES + (".py", ".md", ".txt", ".cmake", ".csv", ".sh", "")
# Written in pieces, so that this file does not breach its own rules.
MACHINE_PATHS = re.compile(r"/wo" r"rk/|/fa" r"rm/|(?<!\w)\.lib" r"rary\b")
LEFTOVERS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")

COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"""
    r""""(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
INCLUDE = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]""", re.MULTILINE)
MARKDOWN_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


class Finding(NamedTuple):
    path: str
    line: int
    sentence: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.sentence}"


class Tables(NamedTuple):
    """What ARCHITECTURE.md says: known top-level folders; folders of src and what each may include."""

    top: set
    includes: dict


def blanked(match):
    """The same length and line breaks without the text, so that offsets stay true."""
    return re.sub(r"[^\n]", " ", match.group())


class Source:
    """One text file of the tree, by its path relative to the root, with '/' between parts."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.lines = text.splitlines()
        self.suffix = pathlib.PurePosixPath(path).suffix
        self.is_cpp = self.suffix in CPP_SUFFIXES
        self.is_script = self.suffix == "" and text.startswith("#!")
        parts = path.split("/")
        self.folder = parts[1] if parts[0] == "src" and len(parts) > 2 else None
        stem = pathlib.PurePosixPath(path).stem
        # Experiments and what measures others are free as tests are: they are programs of their own.
        self.is_lab = parts[0] in ("lab", "bench")
        self.is_test = stem.endswith(("_test", "_fuzz")) or parts[0] == "tests" or self.is_lab
        # What a compiler sees, at the same offsets: no comments, literals or directives.
        self.code = DIRECTIVE.sub(blanked, COMMENT_OR_LITERAL.sub(blanked, text)) if self.is_cpp else ""
        self._line_starts = [0] + [match.end() for match in re.finditer("\n", text)]

    def line_at(self, offset):
        return bisect.bisect_right(self._line_starts, offset)

    def finding(self, line, sentence):
        return Finding(self.path, line, sentence)


# --- tables ---------------------------------------------------------------------------------------


def table_after(lines, heading):
    """The rows of the Markdown table whose first header cell is `heading`, as lists of cells."""
    rows = []
    inside = False
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if inside and line.startswith("|"):
            rows.append(cells)
        elif inside:
            break
        elif line.startswith("|") and cells[0] == heading:
            inside = True
    return rows[1:]  # the first is the |---| line


def names_in(cell):
    return re.findall(r"`(\w+)`", cell)


def read_tables(text):
    lines = text.splitlines()
    top = {name for row in table_after(lines, "top") for name in names_in(row[0])}
    rows = [(names_in(row[0]), row[-1]) for row in table_after(lines, "src")]
    every = {name for names, _ in rows for name in names}
    includes = {}
    for names, may in rows:
        above = set(includes)
        allowed = {"all": every, "all above": above, "nothing": set()}.get(may, set(names_in(may)))
        for name in names:
            includes[name] = allowed | {name, "base", PUBLIC}
    return Tables(top, includes)


# --- checks of one file ---------------------------------------------------------------------------


def check_head(source):
    if source.suffix == ".md" or source.suffix in (".txt", ".csv") and source.path != "CMakeLists.txt":
        return
    if source.suffix == "" and not source.is_script:
        return
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in source.lines[:HEAD_LINES]):
        yield source.finding(1, f"no SPDX line within the first {HEAD_LINES} lines")
    if source.is_cpp and not re.match(r"// (?!SPDX)\S", source.text):
        yield source.finding(1, "the first line does not say what this file is")
    if source.suffix == ".h" and "#pragma once" not in source.text:
        yield source.finding(1, "a header without #pragma once")


def check_lengths(source):
    if not (source.is_cpp or source.suffix in (".py", ".cmake") or source.is_script):
        return
    if len(source.lines) > FILE_LINES_MAX:
        yield source.finding(
            FILE_LINES_MAX + 1, f"{len(source.lines)} lines, the limit is {FILE_LINES_MAX}"
        )
    columns_max = CPP_COLUMNS_MAX if source.is_cpp else COLUMNS_MAX
    for number, line in enumerate(source.lines, 1):
        if len(line) > columns_max:
            yield source.finding(number, f"{len(line)} columns, the limit is {columns_max}")


def check_words(source):
    for pattern, sentence in (
        (MACHINE_PATHS, "'{}' is a path of somebody's machine"),
        (LEFTOVERS, "'{}' was left over"),
    ):
        for match in pattern.finditer(source.text):
            yield source.finding(source.line_at(match.start()), sentence.format(match.group()))


def check_links(source, root):
    if source.suffix != ".md":
        return
    for match in MARKDOWN_LINK.finditer(source.text):
        target = (root / source.path).parent / match.group(1)
        if not target.exists():
            line = source.line_at(match.start())
            yield source.finding(line, f"the link {match.group(1)} leads nowhere")


def check_includes(source, tables, headers):
    if not source.is_cpp:
        return
    may = tables.includes.get(source.folder, {PUBLIC})
    for match in INCLUDE.finditer(source.text):
        bracket, name = match.groups()
        line = source.line_at(match.start(2))
        if bracket == "<":
            if source.suffix == ".h" and name.startswith(HEAVY_INCLUDES):
                yield source.finding(line, f"<{name}> in a header costs every includer seconds")
            for library, path in INCLUDED_ONCE.items():
                if name.startswith(library) and source.path != path:
                    yield source.finding(line, f"<{name}> is for {path} alone")
            continue
        folder = name.split("/")[0]
        if name not in headers and name not in GENERATED_HEADERS:
            yield source.finding(line, f'there is no "{name}" under src or include')
        elif folder not in may and not source.is_lab:
            where = f"src/{source.folder}" if source.folder else source.path
            yield source.finding(line, f'{where} may not include "{name}"')


BANNED_EVERYWHERE = (
    (re.compile(r"\busing\s+namespace\s+std\b"), "using namespace std"),
)
BANNED_IN_LIBRARY = (
    (re.compile(r"(?<![\w.>])(?:v?f?printf|v?sprintf|f?puts|f?putc|putchar)\s*\("), "prints"),
    (
        re.compile(r"(?:std::|(?<![\w.>:]))(?:_?exit|_Exit|quick_exit|terminate)\s*\("),
        "ends the process; return a Status",
    ),
    # Not "abort(request)": that is a fine name for a method of ours.
    (
        re.compile(r"(?:std::abort|(?<![\w.>:])abort)\s*\(\s*\)(?!\s*(?:const|override|=|\{))"),
        "ends the process; return a Status",
    ),
)
TERMINAL = re.compile(r"\bstd::(?:cout|cerr|clog)\b")
ENVIRONMENT = re.compile(r"\b(?:secure_)?getenv\s*\(")
# A new object that a smart pointer takes at once (a private constructor) is not raw memory.
RAW_MEMORY = re.compile(
    r"\bnew\b(?!\s*\()(?<!operator new)|\bdelete\b(?:\s*\[\s*\])?\s+\w|\bdelete\s*\[|"
    r"(?<![\w.>])(?:malloc|calloc|realloc|free)\s*\("
)
OWNED_AT_ONCE = re.compile(r"_ptr<[^;{}]*>\s*(?:\w+\s*)?[({]\s*$")


def check_banned(source):
    """A library never prints, exits or aborts, and reads no environment."""
    if not source.is_cpp:
        return
    banned = list(BANNED_EVERYWHERE)
    if not source.is_test:
        banned += BANNED_IN_LIBRARY
        if source.folder not in TERMINAL_FOLDERS:
            banned.append((TERMINAL, "prints"))
        if source.path not in ENVIRONMENT_FILES:
            banned.append((ENVIRONMENT, "reads the environment"))
    for pattern, why in banned:
        for match in pattern.finditer(source.code):
            call = match.group().rstrip("( \t")
            yield source.finding(source.line_at(match.start()), f"'{call}' is banned here: {why}")
    if source.is_test or source.path in RAW_MEMORY_FILES:
        return
    for match in RAW_MEMORY.finditer(source.code):
        before = source.code[max(0, match.start() - 200) : match.start()]
        if match.group() == "new" and OWNED_AT_ONCE.search(before):
            continue
        word = match.group().rstrip("( \t")
        yield source.finding(source.line_at(match.start()), f"'{word}' is banned here: raw memory")


SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum)\b|\bextern\b")


def cpp_functions(code):
    """Yields (start, end) offsets of the functions in a Source's `code`.

    A heuristic: a brace at namespace or class level opens a function when what stands before it has
    parentheses; braces of a member's initialiser are told by what follows them.
    """
    stack = []  # True for a scope (namespace, class), else the start of what was opened
    head = 0
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        at_scope = all(entry is True for entry in stack)
        if match.group() == "{":
            before = code[head:at]
            if at_scope and SCOPE.search(before) and not re.search(r"\)\s*(?:const\s*)?$", before):
                stack.append(True)
                head = at + 1
            else:
                stack.append((head, "(" in before) if at_scope else None)
        elif match.group() == "}" and stack:
            opened = stack.pop()
            if isinstance(opened, tuple):
                start, is_function = opened
                if is_function and re.match(r"\s*[,{]", code[at + 1 : at + 200]):
                    continue  # a member's initialiser: the body is still to come
                head = at + 1
                if is_function:
                    yield start + len(code[start:at]) - len(code[start:at].lstrip()), at
            elif opened is True:
                head = at + 1
        elif at_scope:
            head = at + 1


def check_functions(source):
    if source.suffix == ".py":
        for node in ast.walk(ast.parse(source.text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    yield source.finding(node.lineno, long_function(node.name, lines))
    # Kernels of one instruction-set tier are unrolled on purpose.
    if not source.is_cpp or re.search(r"_avx512(_bf16)?\.cpp$", source.path):
        return
    for start, end in cpp_functions(source.code):
        first, last = source.line_at(start), source.line_at(end)
        if last - first + 1 > FUNCTION_LINES_MAX:
            name = re.search(r"([\w~:]+)\s*\(", source.code[start:end])
            yield source.finding(first, long_function(name.group(1), last - first + 1))


def long_function(name, lines):
    return f"function {name} has {lines} lines, the limit is {FUNCTION_LINES_MAX}"


# --- checks of the tree ---------------------------------------------------------------------------


def check_folders(paths, tables):
    seen = set()
    for path in paths:
        parts = path.split("/")
        if len(parts) > 1 and parts[0] not in tables.top and not parts[0].startswith("."):
            unknown, table = parts[0], "table of folders"
        elif parts[0] == "src" and (len(parts) != 3 or parts[1] not in tables.includes):
            unknown, table = "/".join(parts[:-1]) if len(parts) > 2 else path, "table of src"
        else:
            continue
        if unknown not in seen:
            seen.add(unknown)
            yield Finding(path, 1, f"{unknown} is not in the {table} in ARCHITECTURE.md")


def check_dead_headers(sources):
    included = {
        match.group(2)
        for source in sources
        if source.is_cpp
        for match in INCLUDE.finditer(source.text)
    }
    for source in sources:
        if source.folder and source.suffix == ".h" and source.path.removeprefix("src/") not in included:
            yield source.finding(1, "nobody includes this header")


def tree_paths(root):
    """Every file of the tree, without what git ignores and what belongs to git."""
    for folder, folders, files in os.walk(root):
        relative = pathlib.PurePath(folder).relative_to(root).as_posix()
        folders[:] = sorted(
            name
            for name in folders
            if name != "__pycache__"
            and not (relative == "." and (name.startswith("build") or name.startswith(".") and name != ".ci"))
        )
        for name in sorted(files):
            yield name if relative == "." else f"{relative}/{name}"


def read_sources(root, paths):
    for path in paths:
        if pathlib.PurePosixPath(path).suffix not in TEXT_SUFFIXES:
            continue
        try:
            yield Source(path, (root / path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # data, not text


def check_tree(root):
    architecture = root / "ARCHITECTURE.md"
    if not architecture.is_file():
        return [Finding("ARCHITECTURE.md", 1, "missing: it holds the tables of folders")]
    tables = read_tables(architecture.read_text(encoding="utf-8"))
    if not tables.top or not tables.includes:
        return [Finding("ARCHITECTURE.md", 1, "the tables that begin with 'top' and 'src' are missing")]
    paths = list(tree_paths(root))
    sources = list(read_sources(root, paths))
    headers = {re.sub(r"^(?:src|include)/", "", path) for path in paths if path.endswith((".h", ".cuh"))}
    findings = [*check_folders(paths, tables), *check_dead_headers(sources)]
    for source in sources:
        findings += check_head(source)
        findings += check_lengths(source)
        findings += check_words(source)
        findings += check_links(source, root)
        findings += check_includes(source, tables, headers)
        findings += check_banned(source)
        findings += check_functions(source)
    return sorted(findings)


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    findings = check_tree(root)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings" if findings else "tidy: no findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
