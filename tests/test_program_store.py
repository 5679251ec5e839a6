"""`kvlane store` with the real program: what it writes and reads, and what a process that is killed leaves.

    python3 -m unittest discover -s tests -p 'test_program_store.py'

KVLANE_KILLS=500 kills it so often, instead of 60 times. Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import program
from program import PROGRAM, ROOT, needs_program

sys.path.insert(0, str(ROOT / "spec" / "decoder"))
import extent  # noqa: E402
import xxh3  # noqa: E402

KILLS = int(os.environ.get("KVLANE_KILLS", "60"))
LAYERS = 3
PLANE = 5000  # bytes of a layer
EXTENT = extent.PAGE * (1 + 2 * LAYERS)


def name_of(block):
    return block.to_bytes(4, "little") + bytes(28)


class Planes:
    """Planes of a few contents, whose checksums are computed once: XXH3 in plain Python is slow."""

    def __init__(self):
        rng = random.Random(5)
        self.contents = [rng.randbytes(PLANE) for _ in range(4)]
        self.checksums = [xxh3.xxh3_64(content) for content in self.contents]

    def extent(self, block):
        of = [(block + layer) % 4 for layer in range(LAYERS)]
        return extent.build(name_of(block), [self.contents[i] for i in of], [self.checksums[i] for i in of],
                            position=64 * block)  # fmt: skip


def assert_room_is_given_back(test, folder, extents):
    """Segments take the room of `extents` extents."""
    segments = list(folder.rglob("*.seg"))
    taken = sum(512 * path.stat().st_blocks for path in segments)
    # A file of many holes has an index in its file system, which is counted with it.
    test.assertLessEqual(taken, extents * EXTENT + len(segments) * extent.PAGE)


@needs_program
class StoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.planes = Planes()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.store = self.folder / "store"

    def write(self, name, blocks):
        path = self.folder / name
        path.write_bytes(b"".join(map(self.planes.extent, blocks)))
        return path

    def run_store(self, *arguments, status=0):
        done = program.run("store", *arguments)
        self.assertEqual(done.status, status, done.err)
        return done

    def listed(self, *directories):
        lines = self.run_store("ls", "--json", *(directories or [self.store])).out.splitlines()
        return {entry["name"]: entry for entry in map(json.loads, lines)}

    def test_extents_come_and_go(self):
        path = self.write("in", range(5))
        self.assertEqual(self.run_store("import", path, self.store).out, "saved 5 extents\n")
        listed = self.listed()
        self.assertEqual(set(listed), {name_of(block).hex() for block in range(5)})
        self.assertEqual(listed[name_of(2).hex()]["position"], 128)
        stat = self.run_store("stat", "--json", self.store).json()
        self.assertEqual((stat["extents"], stat["bytes"]), (5, 5 * EXTENT))
        self.assertIn("5 extents", self.run_store("stat", self.store).out)
        self.assertIn("layers 0-2", self.run_store("ls", self.store).out)
        self.assertEqual(self.run_store("verify", "--json", self.store).json()["whole"], 5)
        out = self.folder / "out"
        exported = self.run_store("export", "--json", out, self.store).json()
        self.assertEqual(exported, {"file": str(out), "extents": 5, "bytes": out.stat().st_size})
        again = self.run_store("import", "--json", out, self.folder / "copy").json()
        self.assertEqual(again, {"extents": 5})
        self.assertEqual(sorted(whole for _, whole in extent.walk(out.read_bytes())),
                         sorted(whole for _, whole in extent.walk(path.read_bytes())))  # fmt: skip
        # Segments are such files, too.
        segment = next(self.store.rglob("*.seg")).read_bytes()
        self.assertEqual(len(list(extent.walk(segment))), 5)
        self.run_store("gc", self.store)

    def test_damage_is_named_and_forgotten(self):
        self.run_store("import", self.write("in", range(3)), self.store)
        segment = next(self.store.rglob("*.seg"))
        data = bytearray(segment.read_bytes())
        data[EXTENT + extent.PAGE + 7] ^= 4
        segment.write_bytes(data)
        done = self.run_store("verify", "--json", self.store, status=1)
        shown = json.loads(done.out)
        self.assertEqual((shown["whole"], len(shown["damaged"])), (2, 1))
        self.assertIn("checksum", shown["damaged"][0]["why"])
        self.assertIn("1 extents were damaged", done.err)
        self.assertEqual(self.run_store("verify", "--json", self.store).json()["whole"], 2)
        segment.unlink()
        done = self.run_store("verify", "--json", self.store, status=1)
        self.assertEqual(json.loads(done.out)["lost"], 2)
        self.assertEqual(self.run_store("verify", "--json", self.store).json()["whole"], 0)

    def test_several_directories_and_a_key(self):
        both = [self.folder / "a", self.folder / "b"]
        key = self.folder / "key"
        key.write_text("0123456789abcdef" * 4 + "\n")
        self.run_store("import", self.write("in", range(20)), *both, "--key-file", key)
        self.assertEqual({entry["directory"] for entry in self.listed(*both).values()}, {0, 1})
        self.assertTrue(all(entry["encrypted"] for entry in self.listed(*both).values()))
        self.assertEqual(self.run_store("verify", "--json", *both[::-1], "--key-file", key).json()["whole"], 20)
        for path in both:
            for segment in path.rglob("*.seg"):
                self.assertNotIn(self.planes.contents[0][:64], segment.read_bytes())
        self.assertIn("directories, of which 1", self.run_store("verify", both[0], status=1).err)
        key.write_text("short")
        self.assertIn("64 lower-case", self.run_store("verify", *both, "--key-file", key, status=1).err)
        key.write_text("f" * 64)
        self.assertIn("another key", self.run_store("verify", *both, "--key-file", key, status=1).out)
        self.assertEqual(len(self.listed(*both)), 20)

    def test_what_is_no_store_and_no_extent_is_refused(self):
        for command in ("ls", "stat", "verify", "gc"):
            self.assertIn("no", self.run_store(command, self.store, status=1).err)
            self.assertFalse(self.store.exists())
        path = self.write("in", range(2))
        data = path.read_bytes()
        for wrong in (data[:-1], data[:5000], b"x" * 5000, data[:100] + b"x" + data[101:]):
            path.write_bytes(wrong)
            self.run_store("import", path, self.folder / "other", status=1)
        (self.folder / "full").mkdir()
        (self.folder / "full" / "photo.jpg").write_text("")
        path.write_bytes(data)
        self.assertIn("is not empty", self.run_store("import", path, self.folder / "full", status=1).err)

    def test_a_second_process_is_told_so(self):
        path = self.write("in", range(2))
        self.run_store("import", path, self.store)
        with open(self.store / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for arguments in (["verify", self.store], ["gc", self.store], ["import", path, self.store]):
                done = self.run_store(*arguments, status=1)
                self.assertIn(f"another process has the store in {self.store} open", done.err)
                self.assertEqual(len(done.err.splitlines()), 1, done.err)
            # Looking is free.
            self.assertEqual(len(self.listed()), 2)
        self.assertEqual(self.run_store("verify", "--json", self.store).json()["whole"], 2)

    def mounted(self, megabytes, *scripts):
        """Runs shell scripts in turn beside a file system of its own at self.store; their results."""
        self.store.mkdir()
        begin = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
        mount = f"mount -t tmpfs -o size={megabytes}m kvlane-test {self.store}"
        if not shutil.which("unshare") or subprocess.run([*begin, mount], capture_output=True, check=False).returncode:
            self.skipTest("a file system of a few megabytes cannot be mounted here")
        # Each script's status and output in files, as all need the same mount.
        lines = [mount]
        for number, script in enumerate(scripts):
            out = self.folder / f"out{number}"
            lines.append(f"( {script} ) >{out} 2>&1 </dev/null; echo $? >{out}.status")
        subprocess.run([*begin, "\n".join(lines)], env=program.environment(), timeout=program.PATIENCE, check=True)
        outs = [self.folder / f"out{number}" for number in range(len(scripts))]
        return [(int(pathlib.Path(f"{out}.status").read_text()), out.read_text()) for out in outs]

    def test_a_full_disk_keeps_what_is_newest(self):
        blocks = 200  # 5.7 MB, on a disk of 3 MiB
        path = self.write("in", range(blocks))
        more = self.write("more", range(blocks, blocks + 20))
        small = f"--saving-bytes {4 * EXTENT}"
        (status, told), (_, whole), (_, listed), (filled, _), (again, more_told), (_, after) = self.mounted(
            3,
            f"{PROGRAM} store import {path} {self.store} {small}",
            f"{PROGRAM} store verify --json {self.store}",
            f"{PROGRAM} store ls --json {self.store}",
            f"head -c 4m /dev/zero >{self.store}/others; test $(df --output=avail {self.store} | tail -1) = 0",
            f"{PROGRAM} store import {more} {self.store} {small}; rm {self.store}/others; "
            f"{PROGRAM} store import {more} {self.store} {small}",
            f"{PROGRAM} store verify --json {self.store}",
        )
        self.assertEqual(status, 0, told)
        whole = json.loads(whole)
        self.assertEqual((whole["damaged"], whole["lost"], whole["rebuilt"]), ([], 0, False))
        names = {json.loads(line)["name"] for line in listed.splitlines()}
        self.assertGreater(len(names), 10)
        self.assertLess(len(names), blocks)
        newest = {name_of(block).hex() for block in range(blocks - 8, blocks)}
        self.assertLessEqual(newest, names)
        # Somebody else takes what is left; what fails then is refused in a sentence, and passes.
        self.assertEqual(filled, 0)
        self.assertEqual(again, 0, more_told)
        after = json.loads(after)
        self.assertEqual((after["damaged"], after["lost"], after["rebuilt"]), ([], 0, False))
        self.assertGreater(after["whole"], 10)

    def test_a_read_only_disk_is_refused_in_a_sentence(self):
        path = self.write("in", range(5))
        results = self.mounted(
            3,
            f"{PROGRAM} store import {path} {self.store}",
            f"mount -o remount,ro {self.store}",
            f"{PROGRAM} store import {path} {self.store}",
            f"{PROGRAM} store verify {self.store}",
            f"mount -o remount,rw {self.store}",
            f"{PROGRAM} store verify --json {self.store}",
        )
        for status, told in results[:2]:
            self.assertEqual(status, 0, told)
        for status, told in results[2:4]:
            self.assertEqual((status, len(told.splitlines())), (1, 1), told)
            self.assertIn(str(self.store), told)
            self.assertIn("Read-only file system", told)
        whole = json.loads(results[5][1])
        self.assertEqual((whole["whole"], whole["lost"], whole["rebuilt"]), (5, 0, False))
        # And where none was begun.
        status, told = self.mounted_read_only()
        self.assertEqual((status, len(told.splitlines())), (1, 1), told)
        self.assertIn("Read-only file system", told)

    def mounted_read_only(self):
        self.store.rmdir()
        _, result = self.mounted(
            3,
            f"mount -o remount,ro {self.store}",
            f"{PROGRAM} store import {self.folder / 'in'} {self.store}",
        )
        return result

    def start_import(self, path, *options):
        return subprocess.Popen([PROGRAM, "store", "import", path, self.store, "--verbose", *options],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=program.environment())  # fmt: skip

    def test_kills_at_any_moment_lose_nothing_durable(self):
        rng = random.Random(11)
        count = 40
        files = [self.write(f"in{n}", range(n * count, (n + 1) * count)) for n in range(6)]
        # Few extents at a time: many moments between the steps of saving.
        small = ["--saving-bytes", str(4 * EXTENT)]
        start = time.monotonic()
        self.run_store("import", files[0], self.store, *small)
        whole_run = time.monotonic() - start
        killed = 0
        for turn in range(KILLS):
            if turn % len(files) == 0:
                shutil.rmtree(self.store, ignore_errors=True)
                durable = set()
                bounded = turn // len(files) % 2 == 1
            options = ["--segment-bytes", str(rng.choice([3, 10, 1000]) * EXTENT)]
            if bounded:
                options += ["--directory-bytes", str(60 * EXTENT)]
            process = self.start_import(files[turn % len(files)], *small, *options)
            time.sleep(rng.uniform(0, 1.1 * whole_run))
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate(timeout=program.PATIENCE)
            # Moments up to the end, however fast the machine is just now.
            was_killed = process.returncode == -signal.SIGKILL
            killed += was_killed
            whole_run *= 1.05 if was_killed else 0.9
            self.assertEqual(err, b"")
            # A line that was cut off is no promise.
            lines = out.decode().split("\n")[:-1]
            durable |= {line.split()[1] for line in lines if line.split()[2:] == ["0"]}
            if not (self.store / "kvlane-store").exists():
                self.assertFalse(durable)
                continue  # not begun; the next process begins it
            shown = self.run_store("verify", "--json", self.store).json()
            self.assertEqual((shown["damaged"], shown["lost"], shown["rebuilt"]), ([], 0, False))
            listed = self.listed()
            self.assertEqual(shown["whole"], len(listed))
            if bounded:
                self.assertLessEqual(len(listed), 60)
            else:
                self.assertLessEqual(durable, set(listed))
            # What was written in vain takes no room.
            assert_room_is_given_back(self, self.store, len(listed))
        self.assertGreater(killed, KILLS // 2)


if __name__ == "__main__":
    unittest.main()
