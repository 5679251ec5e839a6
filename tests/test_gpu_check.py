# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check where everything that it calls is a stand-in: what it makes of tests that pass, fail, hang, are
none, or take the step that runs them along."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).parents[1]
PARTS = ("gpu", "codec", "attention", "quant", "ops", "model", "bench")

PASSES = "echo '[  PASSED  ] 2 tests.'"
FAILS = 'echo "shard $GTEST_SHARD_INDEX"; [ "$GTEST_SHARD_INDEX" != 1 ] && echo "[  PASSED  ] 2 tests."'
RUNS_NONE = "echo '[  PASSED  ] 0 tests.'"
FINDS_NO_GPU = "echo 'no GPU: there is no driver'; echo '[  PASSED  ] 2 tests.'"
HANGS = "echo '[ RUN      ] Hangs'; exec sleep 60"
# Ends what waits for it: behind the shell that runs shards and `timeout`.
KILLS_ITS_STEP = """
step=$PPID
for hop in 1 2; do step=$(awk '{print $4}' /proc/$step/stat); done
kill -9 $step"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.bin = self.root / "bin"
        (self.root / "scripts").mkdir()
        for name in ("gpu_check", "common.sh"):
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts")
        self.write(self.bin / "nvidia-smi", "echo 'Stand-in, 1.2.3, 9.0'")
        self.write(self.bin / "nvcc", "echo 'release 13.0, V13.0.1'")
        self.write(self.bin / "ldconfig", "echo libcublasLt.so.13")
        self.write(self.bin / "cmake", "")
        self.write(self.bin / "python3", "exit 1")  # no PyTorch
        self.write(self.bin / "compute-sanitizer", """while [[ $1 == --* ]]; do
  if [[ $1 == --tool || $1 == --error-exitcode || $1 == --num-cuda-barriers ]]; then shift; fi
  shift
done
exec "$@" """)
        self.programs = self.root / "build" / "gpu-kernels-90"
        for part in PARTS:
            self.write(self.programs / f"{part}_test", PASSES)
        self.write(self.programs / "kvlane_gpu_bench", """[ "$1" = --output ] && echo '{"results": []}' > "$2" """)

    @staticmethod
    def write(path, script):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def start(self, *flags):
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        return subprocess.Popen([self.root / "scripts" / "gpu_check", "--commit", "abc", *flags], env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def check(self, *flags):
        """How it ended, the steps of its report by name, and what it printed."""
        with self.start(*flags) as process:
            out, err = process.communicate(timeout=60)
        report = json.loads((self.root / "build" / "gpu-check" / "stand-in.json").read_text(encoding="utf-8"))
        return process.returncode, {step["name"]: step for step in report["steps"]}, out + err

    def assert_only_bad(self, steps, name, outcome):
        self.assertEqual({step: told["outcome"] for step, told in steps.items()
                          if told["outcome"] != "passed" and step != "others"}, {name: outcome})

    def test_all_that_passes_is_counted(self):
        code, steps, text = self.check()
        self.assertEqual(code, 0, text)
        self.assertEqual(steps["test-codec"]["remark"], "6 tests, 0 skipped")
        self.assertEqual(steps["racecheck-attention"]["remark"], "2 tests, 0 skipped")
        self.assertEqual(len(steps), 23)
        self.assertEqual(steps["others"]["outcome"], "left out")
        self.assertRegex(text, "Stand-in, sm_90, driver 1.2.3, commit abc")

    def test_one_process_that_fails_fails_its_step_and_nothing_else(self):
        self.write(self.programs / "attention_test", FAILS)
        code, steps, text = self.check("--skip-sanitizer")
        self.assertEqual(code, 1)
        self.assert_only_bad(steps, "test-attention", "failed")
        log = (self.root / "build" / "gpu-check" / "test-attention.log").read_text(encoding="utf-8")
        self.assertEqual(log.splitlines()[-1], "shard 1")  # what failed comes last
        self.assertIn("shard 1", text)

    def test_what_ran_no_test_has_not_passed(self):
        for script in (RUNS_NONE, FINDS_NO_GPU):
            self.write(self.programs / "ops_test", script)
            code, steps, _ = self.check("--skip-sanitizer")
            self.assertEqual(code, 1)
            self.assert_only_bad(steps, "test-ops", "failed")

    def test_a_test_that_hangs_ends_with_the_time_and_leaves_its_log(self):
        self.write(self.programs / "quant_test", HANGS)
        code, steps, _ = self.check("--skip-sanitizer", "--seconds", "6")
        self.assertEqual(code, 1)
        self.assertEqual(steps["test-quant"]["outcome"], "failed")
        self.assertEqual(steps["bench"]["remark"], "no time left")
        log = (self.root / "build" / "gpu-check" / "test-quant.log").read_text(encoding="utf-8")
        self.assertIn("[ RUN      ] Hangs", log)

    def test_a_step_that_is_killed_loses_no_other(self):
        self.write(self.programs / "model_test", KILLS_ITS_STEP)
        code, steps, _ = self.check("--skip-sanitizer")
        self.assertEqual(code, 1)
        self.assert_only_bad(steps, "test-model", "failed")
        self.assertIn("without telling how", steps["test-model"]["remark"])

    def test_who_interrupts_it_ends_what_it_began(self):
        self.write(self.programs / "gpu_test", f"echo $$ > '{self.root}/pid'; exec sleep 60")
        with self.start("--skip-sanitizer") as process:
            while not (self.root / "pid").exists():
                time.sleep(0.05)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130)
        test = pathlib.Path("/proc") / (self.root / "pid").read_text(encoding="utf-8").strip()
        deadline = time.monotonic() + 10
        while test.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(test.exists())


if __name__ == "__main__":
    unittest.main()
