"""Tests of tools/gpu_others.py where there is neither PyTorch nor a GPU: what is left out, and why."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import pathlib
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import gpu_others  # noqa: E402  (from the folder above)


class Values(list):
    """As much of a tensor as a codec's check looks at."""

    def view(self, _type):
        return self

    def flatten(self):
        return self

    def numel(self):
        return len(self)

    def element_size(self):
        return 2


def fake_torch():
    return types.SimpleNamespace(
        int16="int16",
        equal=lambda a, b: list(a) == list(b),
        cuda=types.SimpleNamespace(synchronize=lambda: None, is_available=lambda: False),
    )


class GpuOthers(unittest.TestCase):
    def setUp(self):
        quiet = contextlib.redirect_stderr(io.StringIO())
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)
        self.others = gpu_others.Others(fake_torch(), 3)

    def test_a_failure_is_left_out_with_its_reason(self):
        def refuse():
            raise RuntimeError("no such shape\nand more")

        self.others.try_to("attention", refuse)
        self.others.try_to("copy", lambda: [("gpu_torch_copy", 2.0, "GB/s")])
        self.assertEqual(self.others.left_out, {"attention": "RuntimeError: no such shape"})
        self.assertEqual(self.others.results, [{"name": "gpu_torch_copy", "value": 2.0, "unit": "GB/s"}])

    def test_a_codec_of_a_file_is_timed_both_ways(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "codec.py"
            path.write_text("encode = decode = lambda values: type(values)(values[::-1])\n", encoding="utf-8")
            values = Values(range(1000))
            found = gpu_others.splitzip(self.others, str(path), values)
        self.assertEqual([name for name, _, _ in found], ["gpu_triton_splitzip_encode", "gpu_triton_splitzip_decode"])
        self.assertTrue(all(value > 0 and unit == "GB/s" for _, value, unit in found))

    def test_a_codec_that_loses_values_has_no_figures(self):
        values = Values(range(10))
        with self.assertRaisesRegex(ValueError, "does not give the values back"):
            gpu_others.codec(self.others, "x", values, lambda v: v, lambda c: Values([0] * 10))

    def test_without_pytorch_it_says_so(self):
        if gpu_others.find_torch()[0] is not None:
            self.skipTest("there is PyTorch with a GPU")
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            self.assertEqual(gpu_others.main([]), gpu_others.SKIPPED)
        self.assertIn("SKIPPED", told.getvalue())


if __name__ == "__main__":
    unittest.main()
