#!/usr/bin/env python3
"""Machine code of all GPU kernels against what is expected of it: wide accesses, the instructions that a kernel is
built around, and no memory of threads.

Disassembles what preset gpu-kernels compiled. Fails when a kernel has less than EXPECTED says (ON_HOPPER of
X_hopper.cu, with sm_90), or anything of FORBIDDEN, and when the compiler lets products of warpgroups wait for each
other, for which it compiles X_hopper.cu once more. Ends with 77, and says so, where there is no nvdisasm or cuobjdump:
`scripts/setup test` installs them.

    tools/sass_check.py [--table]        # counts of all kernels, too

Example: scripts/build gpu-kernels && tools/sass_check.py --table
"""
# SPDX-License-Identifier: Apache-2.0
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from kernel_registers import ROOT, short_name, target_of

SKIPPED = 77
BUILD = ROOT / "build" / "gpu-kernels"
ARCHITECTURES = ("sm_80", "sm_89", "sm_90")  # of the preset

# What is counted: a name, and the instructions that it stands for.
COUNTED = {
    "load16": r"LDG?\.E(\.\w+)*\.128\b",
    "store16": r"STG?\.E(\.\w+)*\.128\b",
    "mma": r"HMMA\.16816\.F32\.BF16\b",
    "mma_fp16": r"HMMA\.16816\.F32(?!\.BF16)\b",
    "mma_short": r"HMMA\.1688\.F32\b",
    "mma_bytes": r"IMMA\.16832\.",
    "warpgroup_bytes": r"IGMMA\.64x64x32\.S8\.S8\b",
    "warpgroup_fp16": r"HGMMA\.64x(72|136)x16\.F32\b",
    "transpose": r"MOVM\.",
    "ldmatrix": r"LDSM\.16(\.\w+)*\.4\b",
    # Bytes that become their top bit eight times.
    "sign_bytes": r"PRMT\b[^;]*0x(ba98|d9c8)\b",
    "bulk": r"UBLKCP\b",
    "async16": r"LDGSTS\.E(\.\w+)*\.128\b",
    "exp2": r"MUFU\.EX2\b",
    "shuffle": r"SHFL\.",
    "atomic": r"(ATOM|ATOMG|RED|REDG)\.",
    "local": r"(LDL|STL)\b",
}

INSTRUCTION = re.compile(r"\s*/\*\w+\*/\s+(?:@!?U?P\w+ )?\s*([\w.]+)")

# In no kernel. Local memory: a spilled register, or an array that is indexed at run time.
FORBIDDEN = ("local", "atomic")


def decode_attention(dim, tiles):
    """A warp's step of 16 tokens: K and V of 2 dim bytes each, and products of 16 x 16 x 8 for both of them."""
    return {"load16": dim // 8, "mma": tiles * dim // 8}


def narrow_attention(dim, tiles):
    """Groups of four copies: the first ones, and behind products of 16 channels of K and of 32 of V, by halves."""
    return {"async16": 4 * (4 + 1 + dim // 16), "mma": tiles * (4 + dim // 4), "transpose": 8 * tiles}


def narrow_prefill_attention(dim, tiles):
    """16 channels of K and all of V for a page of 64 tokens, and sums of weights; copies are in loops."""
    return {"async16": 8 + 1 + 1, "ldmatrix": tiles, "mma": tiles * (8 + 4 + dim // 2)}


def prefill_attention(dim, tiles):
    """A warp's page of 64 tokens: it copies a part of 128 threads, reads all of K and V, and multiplies both."""
    return {"async16": dim // 8, "ldmatrix": dim // 2, "mma": tiles * dim}


def coded_attention(dim, bits, partition):
    """A warp's page of 64 tokens: codes of K and V, products of both and of ones, weights moved. By both pages are
    copied, and means multiplied: those of K for many pages at once, those of V with sums of weights."""
    least = {"mma_bytes": dim // 4 + 2, "transpose": 4}
    if partition:
        return {**least, "load16": bits * dim // 32}
    return {**least, "async16": bits * dim // 32 + 1, "transpose": 5, "mma_fp16": dim // 8, "mma_short": dim // 16}


def coded_prefill_attention(dim, tiles, partition):
    """A warp's page of 64 tokens: codes as bytes come from shared memory, for scores and for V; by both, means."""
    least = {"ldmatrix": 3 * dim // 16, "mma_bytes": tiles * dim // 2, "async16": 3}
    return least if partition else {**least, "mma_fp16": 4}


# At least so many, on every architecture; kernels by the names of tools/kernel_registers.py.
EXPECTED = {
    # splitzip: a thread's 32 values, four at a time
    "encode_planes<bf16>": {"load16": 4, "store16": 3, "sign_bytes": 8},
    "encode_planes<fp8_e4m3>": {"load16": 2, "store16": 1, "sign_bytes": 8},
    "encode_planes<fp8_e5m2>": {"load16": 2, "store16": 1, "sign_bytes": 8},
    # A span is copied in three parts, of FP8 four; two spans before the first check.
    "decode_planes<bf16>": {"async16": 9, "store16": 4, "sign_bytes": 8},
    "decode_planes<fp8_e4m3>": {"async16": 12, "store16": 4},
    "decode_planes<fp8_e5m2>": {"async16": 12, "store16": 4, "sign_bytes": 16},
    # splitzip:channel: eight rows are loaded before the first is needed
    "encode_planes": {"load16": 8, "sign_bytes": 8},
    "decode_planes": {"store16": 4},
    **{f"attend_units<{dim}, {tiles}>": decode_attention(dim, tiles) for dim in (64, 128) for tiles in (1, 2)},
    "attend_units<256, 1>": decode_attention(256, 1),
    **{
        f"attend_narrow_runs<{dim}, {tiles}>": narrow_attention(dim, tiles)
        for dim, tiles in ((64, 1), (64, 2), (128, 1), (128, 2), (256, 1))
    },
    **{
        f"attend_narrow_tiles<{dim}, {tiles}, 2>": narrow_prefill_attention(dim, tiles)
        for dim, tiles in ((64, 2), (128, 2), (256, 1))
    },
    "attend_tiles<64, 2, 2>": prefill_attention(64, 2),
    "attend_tiles<128, 2, 2>": prefill_attention(128, 2),
    "attend_tiles<256, 1, 2>": prefill_attention(256, 1),
    **{
        f"attend_window_tiles<{dim}, {tiles}, {blocks}, {parts}>": prefill_attention(dim, tiles)
        for dim, tiles, blocks, parts in ((64, 2, 2, 1), (128, 1, 3, 2), (256, 1, 2, 1))
    },
    **{
        f"attend_coded_tiles<{dim}, {tiles}, 2, {partition}>": coded_prefill_attention(dim, tiles, partition)
        for dim, tiles in ((64, 2), (128, 2), (256, 1))
        for partition in (0, 32, 64, 128)
    },
    **{
        f"attend_coded_units<{dim}, {bits}, {bits}, {part}, {whole}, {heads}>": coded_attention(dim, bits, part)
        for bits, part in ((2, 0), (4, 0), (2, 32), (2, 64), (2, 128), (4, 64))
        for dim in ((64, 128, 256) if bits == 2 and part != 32 else (64, 128))
        for whole, heads in (((0, 2), (1, 2), (1, 1)) if part == 0 else ((0, 2),))
    },
    # Codes of K and V, and their metadata; products of both, sums of weights and, where values are split, means.
    "attend_dequantised_units<1>": {"load16": 14, "mma_fp16": 68, "transpose": 8},
    "attend_dequantised_units<0>": {"load16": 14, "mma_fp16": 81, "transpose": 8},
    **{f"attend_dequantised_units_on_cores<{heads}>": {"load16": 8} for heads in (1, 4, 8)},
    **{
        f"seal_pages<{dim}, {keys}, {both}>": {"store16": 1}
        for dim in (64, 128, 256)
        for keys in (0, 1)
        for both in (0, 1)
    },
    **{f"seal_narrow_pages<{keys}>": {"load16": 4, "store16": 4} for keys in (0, 1)},
    "embed_rows": {"store16": 1},
    # Residual, what is added, and weights, four values a thread and part.
    **{f"norm_rows<{parts}>": {"load16": 3 * parts, "store16": parts} for parts in (1, 2, 4)},
    "write_qkv_rows": {"load16": 6},  # both halves of a head, their angles and weights
    "write_turned_rows": {"load16": 12},  # as above, V beside its K, four rows of a matrix
    "silu_rows": {"load16": 2},
    "scan_parts": {"load16": 8},
    "sum_pieces": {"load16": 16},  # a quarter of a block of 1024 bytes
    "copy_words": {"load16": 4, "store16": 4},
}


# The first page, one of several loops over others, and the last one's V; means of channels by those who bring pages.
# Pages and means are copied in whole.
ON_HOPPER = {
    f"attend_coded_tiles_on_hopper<{dim}, {bits}>": {
        "warpgroup_bytes": 2 * dim // 32,
        "warpgroup_fp16": 2 * 4,
        "mma_fp16": dim // 8,
        "exp2": 2 * 32,
        "bulk": 2,
    }
    for dim in (64, 128)
    for bits in (2, 4)
}


def find_tool(name):
    """The path of a program of CUDA, or None: on the PATH, beside nvcc, or of PyPI's package."""
    if found := shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin"):
        return found
    packages = sorted((ROOT / "build/venv/lib").glob("python3*/site-packages"))
    for place in [pathlib.Path(path) for path in sys.path] + packages:
        for found in sorted(place.glob(f"nvidia/*/bin/{name}")):
            return str(found)
    return None


def output_of(command, about, **options):
    """What a command prints and what it says on the side; a command that fails ends the program."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"sass_check: {pathlib.Path(command[0]).name} fails on {about}:\n{done.stderr}")
    return done.stdout, done.stderr


def counts_of(cuobjdump, nvdisasm, compiled):
    """{architecture: {kernel: {name: count}}} of an object file."""
    with tempfile.TemporaryDirectory() as directory:
        output_of([cuobjdump, "-xelf", "all", compiled], compiled.name, cwd=directory)
        return {cubin.suffixes[-2].strip(".").removesuffix("a"):
                kernels_in(output_of([nvdisasm, "-c", cubin], cubin.name)[0])
                for cubin in pathlib.Path(directory).glob("*.cubin")}


def losses_of(nvcc, source):
    """What the compiler says of products that wait."""
    command = [nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-cubin", *target_of(source, "sm_90"),
               f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-o", os.devnull, source]
    return [line for line in output_of(command, source.name)[1].splitlines() if "Potential Performance Loss" in line]


def kernels_in(disassembly):
    """{kernel: {name: count}} of what nvdisasm prints."""
    kernels, kernel = {}, None
    for line in disassembly.splitlines():
        if match := re.match(r"\.text\.(\w+):", line):
            kernel = kernels.setdefault(short_name(match.group(1)), collections.Counter())
        elif kernel is not None and (match := INSTRUCTION.match(line)):
            # One pattern looks at operands, of PRMT; millions of lines share a few hundred names.
            kernel[line[match.start(1):] if match.group(1) == "PRMT" else match.group(1)] += 1
    return {kernel: {name: sum(count for text, count in found.items() if re.match(pattern, text))
                     for name, pattern in COUNTED.items()} for kernel, found in kernels.items()}


def findings_of(kernels, architecture):
    """Sentences about what is not as it should be."""
    findings = []
    for kernel, counts in kernels.items():
        findings += [f"{architecture} {kernel}: {counts[name]} of {name}" for name in FORBIDDEN if counts[name]]
    expected = {**EXPECTED, **ON_HOPPER} if architecture == "sm_90" else EXPECTED
    for kernel, least in expected.items():
        if kernel not in kernels:
            findings.append(f"{architecture} {kernel}: there is no such kernel")
            continue
        findings += [
            f"{architecture} {kernel}: {kernels[kernel][name]} of {name}, expected are {count} at least"
            for name, count in least.items()
            if kernels[kernel][name] < count
        ]
    return findings


def main(arguments):
    if arguments not in ([], ["--table"]):
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    tools = {name: find_tool(name) for name in ("nvcc", "cuobjdump", "nvdisasm")}
    if missing := [name for name, path in tools.items() if path is None]:
        print(f"sass_check: SKIPPED: there is no {missing[0]}")
        return SKIPPED
    objects = sorted(BUILD.glob("CMakeFiles/kvlane_*.dir/src/*/*.cu.o"))
    if not objects:
        print(f"sass_check: there are no kernels in {BUILD.relative_to(ROOT)}: run scripts/build gpu-kernels first")
        return 2
    kernels = {architecture: {} for architecture in ARCHITECTURES}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        losses = pool.map(lambda source: losses_of(tools["nvcc"], source), sorted(ROOT.glob("src/*/*_hopper.cu")))
        for found in pool.map(lambda compiled: counts_of(tools["cuobjdump"], tools["nvdisasm"], compiled), objects):
            for architecture, counts in found.items():
                kernels[architecture].update(counts)
        findings = [line for lines in losses for line in lines]
    for architecture, counted in kernels.items():
        findings += findings_of(counted, architecture)
        for kernel, counts in sorted(counted.items()) if arguments else ():
            print(architecture, kernel, *(f"{name} {count}" for name, count in counts.items() if count))
    for finding in findings:
        print(finding)
    print(f"sass_check: {len(findings)} findings on {', '.join(kernels)}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
