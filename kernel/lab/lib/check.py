# SPDX-License-Identifier: GPL-2.0-only
"""The lab checks itself: what the guest's programs read, and what the verdicts say."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import cells
import guest
import matrix
import record
import scenarios

BIN = guest.LAB / "bin"
SMALL = ["--scan", "16/3/40"]
EXPERT = 64 << 10


def made(folder, *more, source=SMALL):
    """A list in `folder`, and what its maker says of it."""
    path = Path(folder) / "list"
    argv = [BIN / "expert-accesses", *source, "--out", path, *more]
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=True)
    return path, json.loads(done.stdout)


def reader(*argv):
    return subprocess.run([str(BIN / "reader"), *map(str, argv)], capture_output=True, text=True,
                          check=False)


def some_device():
    return Path("/proc/diskstats").read_text().split()[2]


class Orders(unittest.TestCase):
    """The guest's reader asks for what the trace crate says, in its order."""

    def test_every_scenario(self):
        for name in scenarios.SCENARIOS:
            for seed in (0, 1, 2):
                with self.subTest(scenario=name, seed=seed):
                    path, facts = scenarios.access_list(name, seed)
                    done = reader("-n", "-l", path)
                    self.assertEqual(done.stdout.strip(), facts["order"], done.stderr)

    def test_scenarios_fit_the_pool(self):
        build = (guest.ROOT / "kernel/lab/lib/build.sh").read_text()
        pool = int(build.split("POOL_MIB=")[1].split()[0]) << 20
        for name, (_, expert, experts) in scenarios.SCENARIOS.items():
            _, facts = scenarios.access_list(name, 1)
            self.assertLessEqual(facts["keys"] * expert, pool, name)
            self.assertGreaterEqual(facts["keys"], min(experts, facts["keys"]), name)

    def test_another_order_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            one = made(folder, "--seed", 1)[1]["order"]
            self.assertNotEqual(one, made(folder, "--seed", 2)[1]["order"])

    def test_damaged_lists_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path, _ = made(folder)
            whole = path.read_bytes()
            damaged = {"cut": whole[:-5], "empty": b"", "longer": whole + b"\0" * 4,
                       "foreign": b"X" + whole[1:]}
            for at in (9, 30, len(whole) // 2, len(whole) - 20, len(whole) - 1):
                damaged[f"byte {at}"] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]
            for name, content in damaged.items():
                path.write_bytes(content)
                done = reader("-n", "-l", path)
                self.assertEqual((done.returncode, done.stdout), (1, ""), name)


class Reading(unittest.TestCase):
    """The reader on this machine, over a pool of its own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir=guest.LAB)
        cls.pool = Path(cls.folder.name) / "pool"
        subprocess.run([BIN / "mkpool", cls.pool, "4"], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def read(self, channel, *more):
        path, facts = made(self.folder.name, "--seed", 5)
        done = reader("-f", self.pool, "-l", path, "-S", EXPERT, "-m", channel, "-d",
                      some_device(), *more)
        lines = [l for l in done.stdout.splitlines() if l.startswith("RESULT ")]
        return done.returncode, facts, json.loads(lines[0][7:]) if lines else None

    def test_every_channel_reads_every_page_in_order(self):
        for channel in cells.CHANNELS:
            code, facts, result = self.read(channel)
            self.assertEqual((code, result["bad_pages"]), (0, 0), channel)
            self.assertEqual(result["order"], facts["order"], channel)
            self.assertEqual(result["pages"], facts["accesses"] * EXPERT // 4096, channel)

    def test_a_wrong_page_is_told(self):
        with open(self.pool, "r+b") as pool:
            for at, bad in ((4096 * 77, b"\1"), (4096 * 78 - 1, b"\1")):
                pool.seek(at)
                before = pool.read(1)
                pool.seek(at)
                pool.write(bytes([before[0] ^ bad[0]]))
                pool.flush()
                for channel in cells.CHANNELS:
                    code, _, result = self.read(channel)
                    self.assertEqual(code, 3, channel)
                    self.assertGreater(result["bad_pages"], 0, channel)
                pool.seek(at)
                pool.write(before)
                pool.flush()

    def test_a_short_pool_is_refused(self):
        path, _ = made(self.folder.name)
        done = reader("-f", self.pool, "-l", path, "-S", 1 << 20, "-m", "pread", "-d", "vda")
        self.assertEqual(done.returncode, 1)
        self.assertIn("below", done.stderr)

    def test_warm_passes_count_their_pages(self):
        for channel in ("pread", "mapped"):
            code, facts, result = self.read(channel, "-w", "3")
            self.assertEqual(code, 0)
            self.assertEqual(result["pages"], (3 + 3) * facts["keys"] * EXPERT // 4096)


class Verdicts(unittest.TestCase):
    def test_legacy_must_be_near_lru_and_others_need_not(self):
        def judged(read, **axes):
            cell = cells.cell(**axes)
            return matrix.verdict(cell, {"device_bytes": read}, {"lru": 100.0})

        for read, holds in ((89, False), (91, True), (100, True), (109, True), (111, False)):
            self.assertEqual(judged(read)["holds"], holds, read)
            self.assertTrue(judged(read)["required"])
        self.assertFalse(judged(300, channel="mapped")["required"])
        self.assertFalse(judged(300, scenario="scan-half")["required"])
        self.assertIsNone(judged(300, policy="mglru"))

    def test_a_cell_that_does_not_calibrate_fails_the_run(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(
                record, "RESULTS", Path(folder)), mock.patch.object(guest, "ROOT", Path(folder)):
            for read, code in ((104.0, 0), (120.0, 1)):
                runner = matrix.Runner("quick")
                cell = cells.cell()
                nominal = {"lru": 100.0, "cast:9": 100.0, "cast*": 98.0, "cast* decay": 9, "belady": 50.0}
                result = {"device_bytes": read, "resident_bytes": 1000.0}
                found = {"cell": cell, "result": result, "nominal_bytes": nominal, "asked_bytes": 500,
                         "calibration": matrix.verdict(cell, result, nominal)}
                with mock.patch.object(matrix, "measure", lambda _: found), mock.patch(
                        "builtins.print"):
                    runner.run([cell])
                    self.assertEqual(runner.finish(), code)

    def test_the_full_run_goes_on_and_only_with_the_same_kernels(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(
                record, "RESULTS", Path(folder)), mock.patch("builtins.print"):
            some = cells.over(seeds=(1,), scenario="olmoe")
            asked = []

            def measure(cell):
                asked.append(cell["id"])
                if cell["policy"] == "mglru":
                    raise guest.GuestError("no result")
                return {"cell": cell, "result": {"device_bytes": 1.0}, "nominal_bytes": {"lru": 1.0, "cast:9": 1.0},
                        "asked_bytes": 1, "calibration": None}

            def run(name="full"):
                asked.clear()
                runner = matrix.Runner(name)
                with mock.patch.object(matrix, "measure", measure), mock.patch.object(
                        matrix, "line", str):
                    runner.run([cell for cell in some if cell["tree"] == "cast" or cell["policy"] != "cast"])
                return sorted(asked), runner

            first, runner = run()
            self.assertIn(some[1]["id"], first)
            with open(runner.records.path, "a") as out:
                out.write('{"cell": {"id": "half a li')
            again, runner = run()
            self.assertEqual(again, [some[1]["id"]], "only what failed is asked for again")
            self.assertEqual(len(runner.records.rows), len(first))
            with mock.patch.object(record, "kernels", lambda: {"cast-um": "another"}):
                self.assertEqual(run()[0], first)
            self.assertEqual(run("quick")[0], run("quick")[0], "other runs start again")

    def test_seeds_of_a_case_are_judged_together(self):
        def row(ratio, **axes):
            return {"cell": cells.cell(**axes), "calibration": {"required": True, "ratio": ratio}}

        astray = [row(1.15), row(1.02, seed=2), row(1.04, seed=3)]
        self.assertEqual(record.uncalibrated(astray), {})
        wrong = record.uncalibrated([*astray, row(0.88, scenario="kimi"), {"failed": "x"}])
        self.assertEqual(list(wrong.values()), [0.88])
        self.assertIn("kimi, 25 %, cgroup, pread", record.name_of(*wrong))

    def test_cells_of_cast_are_skipped_without_a_patch(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(
                record, "RESULTS", Path(folder)), mock.patch("builtins.print"):
            runner = matrix.Runner("quick")
            runner.run([{**cells.cell(policy="cast"), "tree": "stock"}])
            self.assertEqual((len(runner.skipped), runner.records.rows), (1, []))

    def test_a_logs_failure_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            log.write_text("argv\nENV kernel=6.12 free_mib=9\r\nFAIL reader: exit 3\n"
                           "Kernel panic - not syncing: x\n")
            said = guest.read_log(log)
            self.assertEqual((said["kernel"], said["result"]), ("6.12", None))
            self.assertEqual(len(said["failures"]), 2)

    def test_a_machine_that_stops_early_is_quoted(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(
                guest, "LAB", Path(folder)), mock.patch.object(
                guest, "command", lambda *_: ["sh", "-c", "echo no such disk >&2; exit 3"]):
            for name in ("initrd.gz", "list"):
                (Path(folder) / name).write_bytes(b"")
            with self.assertRaises(guest.GuestError) as told:
                guest.run(cells.cell(policy="legacy"), Path(folder) / "list")
            for said in ("without a result", "| no such disk", "sh: exit status 3"):
                self.assertIn(said, str(told.exception))


class Matrices(unittest.TestCase):
    def test_no_cell_twice_and_names_tell_them_apart(self):
        for name, make in cells.MATRICES.items():
            ids = [cell["id"] for cell in make()]
            self.assertEqual(len(ids), len(set(ids)), name)

    def test_full_has_every_combination(self):
        have = {(c["policy"], c["wall"], c["channel"], c["scenario"], c["seed"])
                for c in cells.everything()}
        for policy in cells.POLICIES:
            for wall in cells.WALLS:
                for channel in cells.CHANNELS:
                    for scenario in scenarios.SCENARIOS:
                        for seed in cells.SEEDS:
                            self.assertIn((policy, wall, channel, scenario, seed), have)

    def test_wrong_settings_are_refused(self):
        for wrong in ({"policy": "fifo"}, {"wall": "brick"}, {"bogus": 1}, {"scenario": "none"}):
            with self.assertRaises(SystemExit):
                cells.cell(**wrong)

    def test_archives_are_what_cpio_reads(self):
        archive = guest.cpio_of({"lists/a": b"12345", "lists/bcd": b"x" * 4099})
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/lists")
            subprocess.run(["cpio", "-i", "--quiet"], input=archive, cwd=folder, check=True)
            self.assertEqual(Path(f"{folder}/lists/a").read_bytes(), b"12345")
            self.assertEqual(Path(f"{folder}/lists/bcd").read_bytes(), b"x" * 4099)


if __name__ == "__main__":
    result = unittest.TextTestRunner(verbosity=1).run(
        unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]))
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(bool(bad))
