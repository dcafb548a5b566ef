"""What side_by_side.py makes of its samples."""

import io
import unittest
from contextlib import redirect_stderr

import side_by_side as side


def sample(rate: float, others: float = 0.0, ids: tuple[int, ...] = (1, 2)) -> dict:
    return {
        "tokens_per_s": rate,
        "prompt_seconds": 1.0,
        "asked_bytes": 100,
        "process_bytes": 50,
        "device_bytes": None,
        "token_ids": list(ids),
        "others_cpus": others,
    }


class Rows(unittest.TestCase):
    def test_ratios_lie_inside_rounds(self) -> None:
        taken = {side.LLAMA: [sample(1), sample(10)], side.OURS: [sample(2), sample(20)]}
        llama, ours = side.rows_of("w", taken)
        self.assertIsNone(llama["ratio"])
        self.assertEqual((ours["ratio"]["min"], ours["ratio"]["max"]), (2, 2))
        self.assertEqual(ours["process_bytes_per_asked"]["median"], 0.5)
        self.assertIsNone(ours["device_bytes_per_asked"])
        self.assertIn("only 2 rounds", ours["flags"][0])
        self.assertTrue(side.bar("b", [llama, ours], 2.0)["holds"])
        self.assertFalse(side.bar("b", [llama, ours], 2.1)["holds"])

    def test_other_work_is_flagged(self) -> None:
        rows = side.rows_of("w", {side.LLAMA: [sample(1, others=0.5)] * 5})
        self.assertIn("other work", rows[0]["flags"][0])
        self.assertEqual(side.rows_of("w", {side.LLAMA: [sample(1)] * 5})[0]["flags"], [])

    def test_tokens_that_differ_are_told(self) -> None:
        self.assertEqual(side.alike([1, 2], [1, 2]), "all 2 greedy tokens are llama.cpp's")
        self.assertIn("first 1 of 2", side.alike([1, 2], [1, 3]))
        taken = {side.LLAMA: [sample(1), sample(1, ids=(1, 3))]}
        self.assertIn("NOT the same", side.rows_of("w", taken)[0]["notes"][0])

    def test_nothing_measured_is_no_bar_that_holds(self) -> None:
        rows = side.skipped("w", "why")
        self.assertIn("why", rows[0]["flags"][0])
        line = side.bar("b", rows, 1.0)
        self.assertEqual((line["value"], line["holds"]), (None, False))


class Rounds(unittest.TestCase):
    def test_the_least_disturbed_count_whatever_came_of_them(self) -> None:
        turns = iter([sample(9), sample(8), sample(7)])
        arms = {side.LLAMA: lambda: next(turns)}
        loads = iter([0.9, 0.0, 0.05])
        timed = side.timed
        side.timed = lambda _name, arm: {**arm(), "others_cpus": next(loads)}
        try:
            taken = side.take(arms, 2, seconds=60)
        finally:
            side.timed = timed
        self.assertEqual([row["tokens_per_s"] for row in taken[side.LLAMA]], [8, 7])

    def test_a_round_is_not_begun_when_time_is_over(self) -> None:
        count = iter(range(100))
        side_timed = side.timed
        side.timed = lambda _name, _arm: sample(next(count), others=1.0)
        try:
            with redirect_stderr(io.StringIO()):
                taken = side.take({side.LLAMA: None}, 3, seconds=0)
        finally:
            side.timed = side_timed
        self.assertEqual(len(taken[side.LLAMA]), 3)
        self.assertEqual(next(count), 3)


if __name__ == "__main__":
    unittest.main()
