#!/usr/bin/env python3
"""What others do on this GPU, on the shapes of kvlane_gpu_bench: PyTorch's attention (FlashAttention-2 and cuDNN),
copies and products, and codecs that are there.

    tools/gpu_others.py [--splitzip FILE] [--file FILE] [--rounds N] [--output FILE]

    --splitzip FILE   a Python file that leads to SplitZip's public Triton codec. It defines encode(values), which
                      takes a contiguous CUDA tensor of bfloat16 and returns anything, and decode(coded), which
                      returns a tensor of the same values. A codec with other names takes a file of two functions.
    --file FILE       of bfloat16 values for codecs; else they are drawn from a normal distribution
    --rounds N        of which figures are medians (20)
    --output FILE     where to write an object with `results`, as docs/bench.md has them, and `left_out`

nvCOMP is measured where its Python package (nvidia-nvcomp) is installed. What is not there, or refuses a shape, is in
`left_out` with the reason. Ends with 77, and says so, without PyTorch or a GPU. scripts/gpu_check runs it.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import pathlib
import runpy
import statistics
import sys
import time

SKIPPED = 77
WARM_UPS = 3
KV_HEADS = 8
HEAD_DIM = 128
DECODE_BATCH, DECODE_TOKENS = 8, 32768
DECODE_GROUPS = (1, 4, 8)
PREFILL_HEADS, PREFILL_TOKENS = 32, 16384
COPY_BYTES = 1 << 30
MATRIX = 8192
CODEC_BYTES = 1 << 29
NVCOMP_ALGORITHMS = ("ANS", "Bitcomp", "Cascaded", "LZ4")


class Others:
    """Figures so far, and what was left out with its reason."""

    def __init__(self, torch, rounds):
        self.torch = torch
        self.rounds = rounds
        self.results = []
        self.left_out = {}

    def try_to(self, name, measure):
        """Adds the figures that `measure` returns as (name, value, unit); or the reason why there are none."""
        try:
            found = measure()
        except Exception as error:  # pylint: disable=broad-except  (whatever another program says is the reason)
            self.left_out[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"gpu_others: {name}: left out: {self.left_out[name]}", file=sys.stderr)
            return
        for figure, value, unit in found:
            self.results.append({"name": figure, "value": value, "unit": unit})
            print(f"gpu_others: {figure}: {value:.4g} {unit}", file=sys.stderr)

    def seconds_of(self, run):
        """The median time of a run on the device."""
        events = []
        for round_number in range(WARM_UPS + self.rounds):
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            if round_number >= WARM_UPS:
                events.append((begin, end))
        self.torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) * 1e-3 for begin, end in events)

    def wall_seconds_of(self, run):
        """The same by the host's clock, for what may use streams of its own."""
        seconds = []
        for round_number in range(WARM_UPS + self.rounds):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            self.torch.cuda.synchronize()
            if round_number >= WARM_UPS:
                seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    def normal(self, *shape):
        return self.torch.randn(shape, device="cuda", dtype=self.torch.bfloat16)


def copy(others):
    source = others.torch.ones(COPY_BYTES, dtype=others.torch.uint8, device="cuda")
    target = others.torch.empty_like(source)
    seconds = others.seconds_of(lambda: target.copy_(source))
    return [("gpu_torch_copy", 2 * COPY_BYTES / seconds * 1e-9, "GB/s")]


def matrix(others):
    a, b = others.normal(MATRIX, MATRIX), others.normal(MATRIX, MATRIX)
    seconds = others.seconds_of(lambda: others.torch.matmul(a, b))
    return [("gpu_torch_matrix", 2 * MATRIX**3 / seconds * 1e-12, "TFLOP/s")]


def attention(others, backend, q, k, v, causal):
    """Seconds of scaled_dot_product_attention; raises where the backend does not take the shape."""
    from torch.nn.attention import sdpa_kernel  # pylint: disable=import-error,import-outside-toplevel

    attend = others.torch.nn.functional.scaled_dot_product_attention
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    with sdpa_kernel([backend]):
        return others.seconds_of(lambda: attend(q, k, v, is_causal=causal, **grouped))


def decode_attention(others, label, backend, group):
    q = others.normal(DECODE_BATCH, KV_HEADS * group, 1, HEAD_DIM)
    k, v = (others.normal(DECODE_BATCH, KV_HEADS, DECODE_TOKENS, HEAD_DIM) for _ in range(2))
    seconds = attention(others, backend, q, k, v, causal=False)
    kv_bytes = 2 * 2 * DECODE_BATCH * KV_HEADS * DECODE_TOKENS * HEAD_DIM
    name = f"gpu_torch_attention_{label}_{HEAD_DIM}x{group}_{DECODE_TOKENS}"
    return [(name, kv_bytes / seconds * 1e-9, "GB/s")]


def prefill_attention(others, label, backend):
    q = others.normal(1, PREFILL_HEADS, PREFILL_TOKENS, HEAD_DIM)
    k, v = (others.normal(1, KV_HEADS, PREFILL_TOKENS, HEAD_DIM) for _ in range(2))
    seconds = attention(others, backend, q, k, v, causal=True)
    # As kvlane_gpu_bench counts: row t sees t + 1 tokens, once for the scores and once for V.
    operations = 2 * PREFILL_TOKENS * (PREFILL_TOKENS + 1) * PREFILL_HEADS * HEAD_DIM
    return [(f"gpu_torch_prefill_{label}_{HEAD_DIM}_{PREFILL_TOKENS}", operations / seconds * 1e-12, "TFLOP/s")]


def codec_values(others, file):
    """Values to code, as bfloat16."""
    count = CODEC_BYTES // 2
    if file is None:
        return others.normal(count)
    raw = bytearray(pathlib.Path(file).read_bytes())
    values = others.torch.frombuffer(raw, dtype=others.torch.bfloat16).to("cuda")
    return values.repeat(count // values.numel() + 1)[:count].contiguous()


def codec(others, name, values, encode, decode):
    """Encoder and decoder, once they have given the values back bit for bit."""
    coded = encode(values)
    back = decode(coded)
    as_bits = others.torch.int16
    if not others.torch.equal(back.view(as_bits).flatten(), values.view(as_bits).flatten()):
        raise ValueError("the decoder does not give the values back")
    size = values.numel() * values.element_size()
    return [
        (f"{name}_encode", size / others.wall_seconds_of(lambda: encode(values)) * 1e-9, "GB/s"),
        (f"{name}_decode", size / others.wall_seconds_of(lambda: decode(coded)) * 1e-9, "GB/s"),
    ]


def splitzip(others, path, values):
    functions = runpy.run_path(path)
    return codec(others, "gpu_triton_splitzip", values, functions["encode"], functions["decode"])


def nvcomp_codec(others, algorithm, values):
    from nvidia import nvcomp  # pylint: disable=import-error,import-outside-toplevel

    made = nvcomp.Codec(algorithm=algorithm)

    def encode(tensor):
        return made.encode(nvcomp.as_array(tensor.view(others.torch.uint8)))

    def decode(coded):
        return others.torch.as_tensor(made.decode(coded), device="cuda").view(others.torch.bfloat16)

    return codec(others, f"gpu_nvcomp_{algorithm.lower()}", values, encode, decode)


def measure(others, splitzip_file, values_file):
    from torch.nn.attention import SDPBackend  # pylint: disable=import-error,import-outside-toplevel

    others.try_to("copy", lambda: copy(others))
    others.try_to("matrix", lambda: matrix(others))
    for label, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        for group in DECODE_GROUPS:
            name = f"decode attention, {label}, group {group}"
            others.try_to(name, lambda b=backend, i=label, g=group: decode_attention(others, i, b, g))
        others.try_to(f"prefill attention, {label}", lambda b=backend, i=label: prefill_attention(others, i, b))
    values = codec_values(others, values_file)
    if splitzip_file is None:
        others.left_out["SplitZip's Triton codec"] = "--splitzip does not say where it is"
    else:
        others.try_to("SplitZip's Triton codec", lambda: splitzip(others, splitzip_file, values))
    for algorithm in NVCOMP_ALGORITHMS:
        others.try_to(f"nvCOMP {algorithm}", lambda a=algorithm: nvcomp_codec(others, a, values))


def find_torch():
    """PyTorch with a GPU, or the reason why not."""
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        return None, "there is no PyTorch"
    return (torch, None) if torch.cuda.is_available() else (None, "PyTorch finds no GPU")


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splitzip")
    parser.add_argument("--file")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output")
    arguments = parser.parse_args(words)
    torch, why = find_torch()
    if torch is None:
        print(f"gpu_others: SKIPPED: {why}")
        return SKIPPED
    torch.manual_seed(1)
    others = Others(torch, arguments.rounds)
    measure(others, arguments.splitzip, arguments.file)
    report = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "results": others.results,
        "left_out": others.left_out,
    }
    text = json.dumps(report, indent=2)
    if arguments.output:
        pathlib.Path(arguments.output).write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
