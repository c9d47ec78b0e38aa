"""`tilelink check`: keys, exit codes, and machines."""

from __future__ import annotations

from tests.tools.cli.command_lines import Run


def test_check(run: Run) -> None:
    code, found = run("check", "all_gather_matmul", "--world", "2", "--shape", "M=100")
    assert code == 0
    assert set(found) >= {"verdict", "proof", "findings", "events", "seconds", "peak_rss_bytes"}
    assert (found["verdict"], found["proof"], found["findings"], found["notes"]) == ("safe", "structural", [], [])
    assert found["events"] > 0 and found["seconds"] > 0 and found["peak_rss_bytes"] > 0
    assert (found["world"], found["shape"]["M"], found["schedule"].split(",")[0]) == (2, 100, "push")
    code, out, err = run.text("check", "all_gather_matmul", "--world", "2", "--shape", "M=100")
    assert (code, out) == (0, f"safe (proof: structural, for all sizes; {found['events']} events)\n")
    assert err.startswith("# tilelink check all_gather_matmul --world 2 --shape M=100,K=512,N=512")


def test_check_finds(run: Run) -> None:
    code, found = run("check", "all_gather_matmul", "--sms", "12", "--reserve", "3")
    assert code == 1
    assert (found["verdict"], found["proof"]) == ("unsafe", "unrolled")
    (finding,) = found["findings"]
    assert list(finding) == ["kind", "tensor", "what", "tiles", "ranks", "regions", "lines", "chain", "remedy"]
    assert (finding["kind"], finding["tiles"], finding["ranks"]) == ("residency", ["matmul tile 0"], [0])
    code, out, _ = run.text("check", "all_gather_matmul", "--sms", "12", "--reserve", "3")
    assert code == 1 and out.startswith("unsafe (1 finding;") and "remedy: launch on 9 SMs" in out


def test_check_says_why_the_proof_is_for_these_sizes_only(run: Run) -> None:
    asked = ["check", "matmul_ring_reduce_scatter", "--world", "2", "--shape", "M=64,N=64,K=64"]
    _, found = run(*asked)
    _, out, note = run.text(*asked)
    assert "proof: unrolled" in out and f"\n# the proof is unrolled, because {found['because']}\n" in note
    assert "the proof is" not in run.text("check", "all_gather_matmul", "--world", "2")[2]


def test_check_has_a_budget(run: Run) -> None:
    code, found = run("check", "all_gather_matmul", "--world", "2", "--budget", "10")
    assert (code, found["verdict"], found["proof"], found["events"]) == (0, "safe", "structural", 0)
    assert "the budget is 10" in found["notes"][0]
    code, found = run("check", "matmul_ring_reduce_scatter", "--world", "2", "--budget", "10")
    assert (code, found["error"]["class"]) == (2, "BudgetError") and "--budget" in found["error"]["message"]


def test_a_device_has_an_sm(run: Run) -> None:
    code, found = run("check", "all_gather_matmul", "--sms", "0")
    assert (code, found["error"]["class"]) == (2, "ScheduleError")
    assert found["error"]["message"].startswith("a device of 0 SMs: sms is at least 1")


def test_check_for_a_machine(run: Run) -> None:
    """Residency is a matter of the machine's SMs: one that waits for what an MI300X has no room for is all right on
    another."""
    shape = "M=8192,N=8192,K=256", "--reserve", "100"
    code, found = run("check", "all_gather_matmul", "--machine", "mi300x", "--shape", *shape)
    assert code == 1 and (found["machine"], found["sms"]) == ("mi300x", 304)
    (finding,) = found["findings"]
    assert finding["kind"] == "residency" and "204 are resident (304 SMs, 100 of them reserved" in finding["what"]
    code, found = run("check", "all_gather_matmul", "--machine", "h200", "--shape", *shape[:1])
    assert code == 0 and found["sms"] == 132
    code, found = run("check", "all_gather_matmul", "--machine", "h200", "--sms", "8")
    assert (code, found["error"]["class"]) == (2, "UsageError")
    code, found = run("check", "all_gather_matmul", "--machine", "h1000")
    assert (code, found["error"]["class"]) == (2, "UnknownMachineError")


def test_check_says_which_schedules_it_did_not_look_at(run: Run) -> None:
    _, _, note = run.text("check", "reduce_scatter")
    assert "not checked" not in note
    _, _, note = run.text("check", "all_gather_matmul")
    assert "\n# Other schedules, not checked (--schedule): pull, multicast, " in note
    _, _, note = run.text("check", "all_gather_matmul", "--world", "8")
    assert "--schedule push,gather.tile=" in note, "fitted to the sizes"
    assert "\n# Other schedules, not checked (--schedule): pull, multicast, " in note
    _, _, note = run.text("check", "all_gather_matmul", "--schedule", "pull")
    assert "not checked" not in note


def test_ranks_of_a_node(run: Run) -> None:
    code, found = run("check", "examples/hierarchical_gather.py", "--world", "4", "--per-node", "2")
    assert (code, found["verdict"], found["per_node"]) == (0, "safe", 2)
    code, found = run("check", "examples/hierarchical_gather.py", "--world", "4")
    assert code == 0 and "per_node" not in found


def test_numbers_that_can_not_be(run: Run) -> None:
    for flag, least in (("--reserve", 0), ("--slot", 0), ("--budget", 1)):
        error = run.error("check", "all_gather_matmul", flag, "-1")
        assert (error["class"], error["message"]) == ("UsageError", f"{flag} -1: it is {least} or more")
