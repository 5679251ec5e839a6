#!/usr/bin/env python3
"""Registers, shared memory and spills of all GPU kernels, as ptxas tells them.

Compiles every src/*/*.cu that has kernels for each architecture, apart from any build, and prints a table; X_hopper.cu
for sm_90a alone, where sm_90 is asked for. Fails when a kernel spills registers or has a stack frame (the build does,
too).

    tools/kernel_registers.py [ARCHITECTURE...]        # sm_80 sm_89 sm_90
"""
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
# Behind a kernel's name: the element type or the numbers that it is made for.
MADE_FOR = re.compile(r"ILNS?_?\d*\w*?ElementTypeE(\d)E|I((?:L[ib]\d+E)+)E")
TYPES = {"2": "bf16", "3": "fp16", "4": "fp8_e4m3", "5": "fp8_e5m2"}


def short_name(mangled):
    """Of _ZN 6kvlane 3gpu 9scan_rows E...: the last name, and what it is made for."""
    start = re.match(r"_ZN?(?=\d)", mangled)
    if not start:
        return mangled
    name, rest = "", mangled[start.end() :]
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match.group())
        name, rest = rest[match.end() : end], rest[end:]
    match = MADE_FOR.match(rest)
    if not match:
        return name
    element, numbers = match.groups()
    return f"{name}<{TYPES[element] if element else ', '.join(re.findall(r'[0-9]+', numbers))}>"


def target_of(source, architecture):
    """nvcc's options for a source, or None where it is not compiled for this architecture."""
    if not source.stem.endswith("_hopper"):
        return [f"-arch={architecture}"]
    return ["-gencode=arch=compute_90a,code=sm_90a"] if architecture == "sm_90" else None


def report(nvcc, source, architecture):
    """Rows of (kernel, registers, shared bytes, stack bytes, spilled bytes)."""
    target = target_of(source, architecture)
    if target is None:
        return []
    command = [nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-cubin", *target, "-Xptxas=-v"]
    command += [f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-o", os.devnull, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"kernel_registers: {source.name} does not compile for {architecture}:\n{done.stderr}")
    rows = []
    kernel, frame = None, (0, 0, 0)
    for line in (done.stdout + done.stderr).splitlines():
        if match := ENTRY.search(line):
            kernel = short_name(match.group(1))
        elif match := FRAME.search(line):
            frame = tuple(int(number) for number in match.groups())
        elif kernel and (match := USED.search(line)):
            registers, shared = match.groups()
            rows.append((kernel, int(registers), int(shared or 0), frame[0], frame[1] + frame[2]))
            kernel = None
    return sorted(rows)


def main(architectures):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(nvcc).exists():
        sys.exit("kernel_registers: there is no nvcc on the PATH nor in /usr/local/cuda")
    sources = [path for path in sorted(ROOT.glob("src/*/*.cu")) if "__global__" in path.read_text(encoding="utf-8")]
    print(f"{'file':<22}{'kernel':<26}{'for':<8}{'registers':>10}{'shared':>8}{'stack':>7}{'spilled':>9}")
    bad = 0
    for source in sources:
        for architecture in architectures or ["sm_80", "sm_89", "sm_90"]:
            for kernel, registers, shared, stack, spilled in report(nvcc, source, architecture):
                numbers = f"{registers:>10}{shared:>8}{stack:>7}{spilled:>9}"
                print(f"{source.name:<22}{kernel:<26}{architecture:<8}{numbers}")
                bad += stack > 0 or spilled > 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
