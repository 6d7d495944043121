"""``megatrace record`` as a program: exit codes, output files, what it says."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatrace.capture.reader import open_capture
from megatrace.collect.sampling import COUNTER_BYTES_PER_S
from megatrace.documents import JSON_VERSION
from megatrace.sizes import size_text
from tests.collect.helpers import (
    FAKE_RANK,
    MEGATRACE,
    ROOT,
    child_pid,
    environment,
    megatrace,
    record,
    recording,
    said,
    said_so_far,
    sessions_left,
    wait_until,
)

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(125)", 125),
        ("raise RuntimeError('no')", 1),
        ("import os; os.kill(os.getpid(), 11)", 139),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
def test_the_exit_code_is_the_childs(tmp_path: Path, program: str, code: int) -> None:
    done = record(tmp_path / "run.mtr", PYTHON, "-c", program)
    assert done.returncode == code
    assert done.stdout == ""
    with open_capture(tmp_path / "run.mtr") as capture:
        assert capture.complete
        status = capture.facts("child")[0].fields["status"]
        assert (128 - status if status < 0 else status) == code


def test_a_program_that_is_not_there_is_127_and_leaves_nothing(tmp_path: Path) -> None:
    done = record(tmp_path / "run.mtr", "no-such-program")
    assert done.returncode == 127
    assert "megatrace: error: no program" in done.stderr
    assert list(tmp_path.glob("*.mtr*")) == []
    assert sessions_left() == []


@pytest.mark.parametrize("text", ["", "\x7fELF not really", "#!/no/such/interpreter\n"])
def test_what_cannot_be_executed_leaves_nothing_and_says_why(tmp_path: Path, text: str) -> None:
    path = tmp_path / "program"
    path.write_text(text)
    path.chmod(0o755)
    done = record(tmp_path / "run.mtr", str(path))
    assert done.returncode == (127 if text.startswith("#!") else 126)
    assert done.stderr.count("megatrace: error: ") == 1
    assert "megatrace: hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("*.mtr*")) == []
    assert sessions_left() == []


def test_a_file_without_execute_permission_is_126(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o644)
    assert record(tmp_path / "run.mtr", str(path)).returncode == 126


def test_existing_output_is_refused_before_the_child_starts(tmp_path: Path) -> None:
    output, witness = tmp_path / "run.mtr", tmp_path / "started"
    output.write_text("an hour of GPU time")
    done = record(output, PYTHON, "-c", f"open({str(witness)!r}, 'w')")
    assert done.returncode == 125
    assert "--force" in done.stderr
    assert output.read_text() == "an hour of GPU time"
    assert not witness.exists()
    assert sessions_left() == []


def test_a_part_file_that_was_cut_short_is_refused_and_recovery_is_named(tmp_path: Path) -> None:
    part = tmp_path / "run.mtr.part"
    part.write_text("half a recording")
    done = record(tmp_path / "run.mtr", PYTHON, "-c", "pass")
    assert done.returncode == 125
    assert f"megatrace recover {part}" in done.stderr
    assert part.read_text() == "half a recording"


def test_force_overwrites(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    output.write_text("old")
    assert record(output, PYTHON, "-c", "pass", options=("--force",)).returncode == 0
    with open_capture(output) as capture:
        assert capture.complete


def test_output_that_cannot_be_made_is_refused_before_the_child_starts(tmp_path: Path) -> None:
    witness = tmp_path / "started"
    done = record(tmp_path / "no" / "run.mtr", PYTHON, "-c", f"open({str(witness)!r}, 'w')")
    assert done.returncode == 125
    assert "No such file or directory" in done.stderr
    assert not witness.exists()


def test_a_directory_as_output_gets_the_default_name(tmp_path: Path) -> None:
    assert record(tmp_path, "true").returncode == 0
    assert [path.name.startswith("megatrace-true-") for path in tmp_path.glob("*.mtr")] == [True]


def test_without_output_the_name_says_program_and_time(tmp_path: Path) -> None:
    done = megatrace("record", "--", "json.tool", "--help", cwd=tmp_path)
    assert done.returncode == 0
    (path,) = tmp_path.glob("megatrace-json.tool-*Z-*.mtr")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_dotted_module_is_run_and_said(tmp_path: Path) -> None:
    done = record(tmp_path / "run.mtr", "json.tool", "--help")
    assert done.returncode == 0
    assert f"recording {PYTHON} -m json.tool" in done.stderr
    assert done.stdout.startswith("usage: ")


def test_the_child_keeps_stdin_and_stdout(tmp_path: Path) -> None:
    done = record(tmp_path / "run.mtr", "cat", input="through and through\n")
    assert done.stdout == "through and through\n"


def test_the_words_of_the_command_reach_the_child_as_they_are(tmp_path: Path) -> None:
    words = ["$HOME", "a b", "*", "--json", "-o", "--", ";true"]
    done = record(tmp_path / "run.mtr", PYTHON, "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout == f"{words}\n"


def test_the_child_blocks_no_signal_and_ignores_what_it_would_alone(tmp_path: Path) -> None:
    command = ("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    recorded = record(tmp_path / "run.mtr", *command)
    (_, theirs), (blocked, ours) = map(_signal_masks, (alone.stdout, recorded.stdout))
    assert blocked == 0
    assert ours == theirs


def _signal_masks(status: str) -> tuple[int, int]:
    """Those blocked, and those of the first 31 that are ignored."""
    masks = dict(line.split(":\t") for line in status.splitlines())
    return int(masks["SigBlk"], 16), int(masks["SigIgn"], 16) & 0x7FFFFFFF


@pytest.mark.parametrize(
    "options",
    [["--every", "0"], ["--steps", "9:3"], ["--sms", "999"], ["--level", "all"], ["--nope"], []],
)
def test_a_wrong_call_is_125_and_one_line(tmp_path: Path, options: list[str]) -> None:
    command = [] if not options else ["--", "true"]
    done = megatrace("record", *options, *command, cwd=tmp_path)
    assert done.returncode == 125
    assert done.stderr.count("megatrace: error: ") == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("*.mtr*")) == []


def test_no_process_attached_is_said_with_the_next_step(tmp_path: Path) -> None:
    done = record(tmp_path / "run.mtr", "true")
    assert done.returncode == 0
    assert "no process attached, so nothing was recorded" in done.stderr
    assert "megatrace doctor" in done.stderr.splitlines()[-1]


def test_the_last_lines_say_what_was_written_and_what_is_next(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    done = record(output, *FAKE_RANK, "--steps", "50", "--step-us", "0", "--fact")
    assert done.returncode == 0, done.stderr
    *_, written, after = done.stderr.splitlines()
    assert written.startswith(
        f"megatrace: wrote {output}: 1 rank, 32,000 records in 3,200 lines, 0 lines lost, "
        "50 host spans, host clock ±0.4 us"
    )
    assert after == (
        f"megatrace: next: megatrace report {output} | "
        f"megatrace export {output} -o {tmp_path / 'run.pftrace.gz'}"
    )
    assert "scheduler of rank 0: attached to Scheduler.run_batch" in done.stderr
    assert "not attached to ModelRunner.forward: AttributeError: gone" in done.stderr


def test_record_counts_the_records_that_report_counts(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    done = record(output, *FAKE_RANK, "--steps", "20", options=("--every", "1", "--json"))
    report = json.loads(megatrace("report", output, "--json").stdout)
    counted = [row["records"] for row in report["overhead"]]
    assert counted == [json.loads(done.stdout)["records"]] == [20 * 16 * 40]


@pytest.mark.parametrize("name", ["run.pftrace.gz", "x.txt", "run", "run.mtr.part"])
def test_an_output_that_is_no_mtr_is_refused_before_the_child_starts(
    tmp_path: Path, name: str
) -> None:
    witness = tmp_path / "started"
    done = record(tmp_path / name, PYTHON, "-c", f"open({str(witness)!r}, 'w')")
    assert done.returncode == 125
    error, hint = done.stderr.splitlines()
    assert error == f"megatrace: error: -o {tmp_path / name}: a recording is a *.mtr file"
    assert f"megatrace export {tmp_path / name.partition('.')[0]}.mtr -o " in hint
    assert list(tmp_path.iterdir()) == []
    assert sessions_left() == []


def test_a_program_that_fails_unattached_is_said_first_and_nothing_is_guessed(
    tmp_path: Path,
) -> None:
    done = record(tmp_path / "run.mtr", "json.tool", "no-such-file")
    _, said, nothing, _, after = [s for s in done.stderr.splitlines() if s.startswith("megatrace")]
    assert said == f"megatrace: json.tool exited {done.returncode}"
    assert nothing.endswith("no process had attached when json.tool ended: nothing was recorded")
    assert "doctor" not in done.stderr
    assert "installed" not in done.stderr
    assert after == "megatrace: next: read what json.tool said above, then record it again"


def test_a_summary_that_cannot_be_printed_keeps_the_childs_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [
                *MEGATRACE,
                "record",
                "-o",
                tmp_path / "run.mtr",
                "--json",
                "--",
                "sh",
                "-c",
                "exit 5",
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
            check=False,
        )
    assert done.returncode == 5
    assert "megatrace: error: cannot write /dev/full: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_is_one_document_alone_on_stdout(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    command = (*FAKE_RANK, "--steps", "10", "--fact", "--exit", "4")
    done = record(output, *command, options=("--json",))
    assert done.returncode == 4
    body = json.loads(done.stdout)
    assert (body["schema"], body["version"]) == ("megatrace.record", JSON_VERSION)
    assert body["path"] == str(output)
    assert body["complete"] is True
    assert (body["ranks"], body["lines_lost"], body["child_status"]) == (1, 0, 4)
    assert body["attach"][0]["missed"] == {"ModelRunner.forward": "AttributeError: gone"}


def test_output_to_no_terminal_has_no_escape_codes(tmp_path: Path) -> None:
    env = {k: v for k, v in environment().items() if k != "NO_COLOR"}
    for command in (("true",), ("no-such-program",)):
        done = record(tmp_path / f"{command[0]}.mtr", *command, env=env)
        assert "\x1b" not in done.stderr
        assert "\r" not in done.stderr


def test_colour_can_be_forced(tmp_path: Path) -> None:
    env = environment(CLICOLOR_FORCE="1")
    del env["NO_COLOR"]
    assert "\x1b[31m" in record(tmp_path / "run.mtr", "no-such-program", env=env).stderr
    env["NO_COLOR"] = "1"
    assert "\x1b" not in record(tmp_path / "run.mtr", "no-such-program", env=env).stderr


def test_the_capture_keeps_command_machine_and_ring_facts(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    env = environment(SGLANG_MARK="here", SGLANG_API_KEY="secret")
    record(output, *FAKE_RANK, "--rank", "5", "--steps", "4", env=env)
    with open_capture(output) as capture:
        opening = capture.facts("capture")[0].fields
        assert opening["command"][:2] == list(FAKE_RANK)
        assert opening["environment"]["env"]["SGLANG_MARK"] == "here"
        assert opening["environment"]["env"]["SGLANG_API_KEY"] == "***"
        ring = capture.rings[5]
        assert (ring.blocks, ring.warps, ring.device) == (4, 4, 0)
        assert ring.roles == ("loader", "math", "math", "storer")
        assert capture.tables[5].name == "fake"


def test_the_session_is_gone_afterwards(tmp_path: Path) -> None:
    record(tmp_path / "run.mtr", *FAKE_RANK, "--steps", "4")
    assert sessions_left() == []


def test_an_open_session_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "open"
    root.mkdir(mode=0o755)
    monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(root))
    done = record(tmp_path / "run.mtr", "true")
    assert done.returncode == 125
    assert "is open to others" in done.stderr
    assert list(tmp_path.glob("*.mtr*")) == []


def test_a_recorder_that_breaks_off_says_so_while_its_program_goes_on(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'record' in sys.orig_argv:\n"
        "    import megatrace.collect.source as source\n"
        "    source.role_sums = lambda *arguments: 1 / 0\n"
    )
    output = tmp_path / "run.mtr"
    program = (*FAKE_RANK, "--steps", "3000", "--step-us", "1000")
    with subprocess.Popen(
        [*MEGATRACE, "record", "-o", str(output), "--", *program],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)])),
    ) as process:
        pid = child_pid(process)
        broke = next(line for line in said_so_far(process) if "broke off" in line)
        assert "the program goes on: ZeroDivisionError: division by zero" in broke
        assert next(said_so_far(process)) == f"megatrace: hint: megatrace recover {output}.part\n"
        os.kill(pid, 0)
        assert "Traceback" in said(process)
    assert process.returncode not in (0, None)
    assert megatrace("recover", f"{output}.part").returncode == 0


def test_a_damaged_ring_is_refused_and_said(tmp_path: Path) -> None:
    program = (
        "import os, time; p = os.environ['MEGATRACE_SESSION'] + '/bad.ring';"
        "open(p, 'wb').write(b'MEGATRCE' + bytes(9000)); os.chmod(p, 0o600)"
    )
    done = record(tmp_path / "run.mtr", PYTHON, "-c", program)
    assert done.returncode == 0
    assert "bad.ring" in done.stderr


def test_steps_every_and_burst_reach_the_agent(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    obey = (*FAKE_RANK, "--obey", "--wait-control", "--steps", "40", "--step-us", "100")

    def timelines(*options: str) -> int:
        done = record(output, *obey, options=("--force", "--json", *options))
        return int(json.loads(done.stdout)["lines"]) // (16 * 4)

    assert timelines("--every", "1") == 40
    assert timelines("--every", "8") == 5
    assert timelines("--every", "1", "--steps", "10:+5") == 5
    assert timelines("--every", "1000", "--burst", "7") == 7
    assert timelines("--level", "counters") == 0


def test_a_capture_window_keeps_every_step(tmp_path: Path) -> None:
    command = ("--obey", "--wait-control", "--steps", "600", "--step-us", "2000")
    window = ("--window", "100", "500")
    output = tmp_path / "run.mtr"
    done = record(output, *FAKE_RANK, *command, *window, options=("--every", "100", "--json"))
    kept = json.loads(done.stdout)["lines"] // (16 * 4)
    # 6 steps outside the window, then all of it but the first tenth of a second, and what
    # passes until its end is seen.
    assert 250 <= kept <= 450


def test_counters_are_kept_with_every_launch(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    record(output, *FAKE_RANK, "--steps", "30", options=("--level", "counters"))
    with open_capture(output) as capture:
        samples = capture.counters()
        last = {int(s): r for s, r in zip(samples.slot, samples.records, strict=True)}
        assert sum(int(last[16 * layer]["count"][0]) for layer in range(4)) == 30 * 40


def test_counters_of_many_slots_keep_to_their_budget_and_end_exact(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    size = ("--blocks", "400", "--layers", "62", "--lines", "2", "--obey", "--wait-control")
    command = (*FAKE_RANK, "--steps", "2000", "--step-us", "2000", *size)
    done = record(output, *command, options=("--level", "counters", "--json"))
    elapsed_s = json.loads(done.stdout)["elapsed_s"]
    slots = 62 * 1600
    with open_capture(output) as capture:
        samples = capture.counters()
        many = len(samples.slot)
        last = np.zeros(slots, np.int64)
        last[samples.slot] = samples.records["count"][:, 0]
    assert elapsed_s > 4
    # The first sample and the last are on top.
    assert many <= 2 * slots + COUNTER_BYTES_PER_S * elapsed_s / 90
    assert last.sum() == 2000 * 40 * 1600


def test_overrun_rings_are_counted_exactly(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    command = ("--steps", "3000", "--step-us", "0", "--lines", "16", "--blocks", "8")
    done = record(output, *FAKE_RANK, *command, options=("--json",))
    body = json.loads(done.stdout)
    assert body["lines"] + body["lines_lost"] == 3000 * 4 * 32
    with open_capture(output) as capture:
        assert sum(capture.loss.values()) == body["lines_lost"]


def test_a_live_session_publishes_running_sums(tmp_path: Path) -> None:
    from megatrace.ring.aggregate import AggregatePage

    root = Path(os.environ["MEGATRACE_RUNTIME_DIR"])
    command = (*FAKE_RANK, "--steps", "2000", "--step-us", "2000")
    with recording(tmp_path / "run.mtr", *command):
        wait_until(lambda: list(root.glob("*/aggregate.page")), "there is a page")
        (page,) = root.glob("*/aggregate.page")

        def sums() -> bool:
            aggregate = AggregatePage.attach(page.parent)
            try:
                now = aggregate.read()
            finally:
                aggregate.close()
            if not now.ranks.size or not now.sums.cycles.sum():
                return False
            assert now.roles == ("loader", "math", "storer")
            count = now.sums.count[0, :, :, 0]
            assert (count[:, 1] == 2 * count[:, 0]).all()
            assert now.sums.cycles.sum() == 300 * now.sums.count.sum()
            return bool(now.ranks["lines_read"][0] > 0 and now.ranks["alive"][0])

        wait_until(sums, "the sums move")


HOST_ONLY = """
import os, sys
sys.path.insert(0, {root!r})
from megatrace.agent.host import HostAgent
agent = HostAgent.from_env("scheduler", rank=3)
{fact}
agent.close()
"""


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ("", "scheduler of rank 3: made a ring and never attached"),
        ('agent.fact("attach", {"state": "failed"})', "scheduler of rank 3: failed to attach"),
        (
            'agent.fact("attach", {"state": "registered", "attached": ["A.b"]})',
            "scheduler of rank 3: registered its hooks and never came up",
        ),
    ],
)
def test_a_process_that_never_attached_is_said(tmp_path: Path, fact: str, said: str) -> None:
    program = HOST_ONLY.format(root=str(Path(__file__).parents[2]), fact=fact)
    done = record(tmp_path / "run.mtr", PYTHON, "-c", program)
    assert f"megatrace: warning: {said}" in done.stderr
    assert "no kernel has a ring, and no host span came, so nothing was recorded" in done.stderr
    assert done.stderr.splitlines()[-1] == "megatrace: next: megatrace doctor"


def test_host_spans_alone_are_counted_and_can_be_reported(tmp_path: Path) -> None:
    spans = "for i in range(7): agent.span(3, 1000, 2000, i + 1, (1, 1, 0, -1))"
    program = HOST_ONLY.format(root=str(Path(__file__).parents[2]), fact=spans)
    output = tmp_path / "run.mtr"
    done = record(output, PYTHON, "-c", program, options=("--json",))
    note, written, after = done.stderr.splitlines()[-3:]
    assert note.startswith("megatrace: note: no kernel has a ring, so there are host spans alone")
    size = size_text(output.stat().st_size)
    assert written == f"megatrace: wrote {output}: 7 host spans, {size}"
    assert size.endswith(" kB")
    assert f"next: megatrace report {output} | megatrace export {output} -o " in after
    assert json.loads(done.stdout)["host_spans"] == 7
