"""Whatever fails in megatrace, the server goes on, and it is said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from megatrace.ring.drain import HostReader
from megatrace.ring.file import RingFile
from megatrace.ring.session import Session
from tests.sglang.records import Run, read_session, rows_of
from tests.sglang.server import Environment, serving

TOKENS = 4

# SGLang takes seconds to import: once, then a fork for each script.
FORKS = """
import json, os, sys
import sglang.srt.plugins, sglang.srt.utils.profile_utils
for name, (variables, code) in json.load(sys.stdin).items():
    if os.fork() == 0:
        os.environ.update(variables)
        for fd, end in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{end}", os.O_WRONLY | os.O_CREAT, 0o600), fd)
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""

LOAD = """
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
print(len(HookRegistry._hooks), "hooks")
"""

MISSING = """
import json
from sglang.srt.plugins.hook_registry import HookRegistry
from megatrace.sglang.attach import Hook, attach
hook = lambda result, *args, **kwargs: None
there, gone = "sglang.srt.utils.common.get_bool_env_var", "sglang.srt.utils.common.no_such"
attachment = attach([Hook(there, "after", hook), Hook(gone, "after", hook)])
print(json.dumps([attachment.attached, attachment.missed]))
attachment.verify()
print(json.dumps([attachment.attached, attachment.missed]))
HookRegistry._hooks.clear()
attachment = attach([Hook(there, "after", hook)])
HookRegistry.apply_hooks()
attachment.verify()
print(json.dumps([attachment.attached, attachment.missed]))
"""

STAGED = """
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.utils.profile_utils import ProfileManager
from megatrace.agent.host import HostAgent
from megatrace.sglang import window
from megatrace.sglang.attach import Hook, attach
from megatrace.sglang.guard import Guard
agent = HostAgent.from_env("staged")
hooks = window.WindowHooks(agent, Guard(print), lambda: 7)
attach([Hook(window.STAGED_START, "after", hooks.after_staged_start),
        Hook(window.STAGED_STOP, "around", hooks.around_staged_stop)])
HookRegistry.apply_hooks()
for activities in (["MEGATRACE"], []):
    manager = ProfileManager.__new__(ProfileManager)
    manager.profiler = manager.cpu_group = None
    manager.detailed_annotations, manager.first_rank_in_node = False, True
    manager.profiler_kwargs = dict(activities=activities, with_stack=False, record_shapes=False,
        output_dir="", output_prefix="", profile_id="")
    manager._do_start(stage="decode")
    print(agent.window_open)
    manager._do_stop()
    print(agent.window_open)
agent.close()
"""


@dataclass(frozen=True, slots=True)
class Output:
    """What a script printed."""

    out: str
    err: str


Scripts = tuple[dict[str, Output], Session]


@pytest.fixture(scope="module")
def scripts(
    environment: Environment,
    new_session: Callable[[str], Session],
    tmp_path_factory: pytest.TempPathFactory,
) -> Scripts:
    """The scripts' output by name, and the session of the one that has one."""
    folder, session = tmp_path_factory.mktemp("scripts"), new_session("staged")
    codes: dict[str, tuple[dict[str, str], str]] = {
        "no_session": ({}, LOAD),
        "gone": ({"MEGATRACE_SESSION": "/no/such/session"}, LOAD),
        "missing": ({}, MISSING),
        "staged": (session.environment, STAGED),
    }
    subprocess.run(
        [environment.python, "-c", FORKS],
        cwd=folder,
        env=environment.variables({}),
        input=json.dumps(codes),
        text=True,
        timeout=150,
        check=True,
    )
    outputs = {
        name: Output(*((folder / f"{name}.{end}").read_text() for end in ("out", "err")))
        for name in codes
    }
    return outputs, session


@pytest.fixture(scope="module")
def faulty(
    environment: Environment,
    new_session: Callable[[str], Session],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Run, str]:
    """A server whose every forward makes megatrace's own hook raise, and its log."""
    session, folder = new_session("faulty"), tmp_path_factory.mktemp("faulty")
    log = folder / "server.log"
    variables = {**session.environment, "MEGATRACE_SHIM_FAULT": "_stage"}
    with serving(environment, log, variables=variables) as server:
        answer = server.generate("hello there", TOKENS, "alone")
        assert answer["meta_info"]["completion_tokens"] == TOKENS
        assert server.stop() == 0
    return read_session(session), log.read_text()


def test_a_hook_that_fails_is_reported_with_its_reason(faulty: tuple[Run, str]) -> None:
    fact = faulty[0].facts["scheduler"]["attach"]
    assert fact["missed"] == {"ModelRunner.forward": "RuntimeError: a fault on demand"}
    assert "ModelRunner.forward" not in fact["attached"]
    assert "Scheduler.run_batch" in fact["attached"]


def test_a_hook_that_fails_is_logged_once(faulty: tuple[Run, str]) -> None:
    lines = [line for line in faulty[1].splitlines() if "megatrace:" in line]
    assert len(lines) == 1
    assert "a fault on demand" in lines[0]


def test_the_other_hooks_go_on(faulty: tuple[Run, str]) -> None:
    rows = faulty[0].scheduler
    assert len(rows.steps_of("alone")) >= TOKENS
    assert rows.of("extend", "decode") == []


def test_without_a_session_nothing_is_hooked(scripts: Scripts) -> None:
    output = scripts[0]["no_session"]
    assert output.out == "0 hooks\n"
    assert "megatrace" not in output.err


def test_a_session_that_is_gone_is_said_and_changes_nothing(scripts: Scripts) -> None:
    output = scripts[0]["gone"]
    assert output.out == "0 hooks\n"
    assert "megatrace: not recorded: the session" in output.err
    assert output.err.count("megatrace:") == 1


def test_a_target_that_is_missing_or_not_applied_is_told_apart(scripts: Scripts) -> None:
    there, gone = "common.get_bool_env_var", "common.no_such"
    output = scripts[0]["missing"]
    before, unapplied, applied = map(json.loads, output.out.splitlines())
    assert before[0] == [there]
    assert before[1][gone].startswith("AttributeError: ")
    assert unapplied[0] == []
    assert set(unapplied[1]) == {there, gone}
    assert applied == [[there], {}]


def test_staged_profiling_opens_the_window_too(scripts: Scripts) -> None:
    outputs, session = scripts
    assert outputs["staged"].out.split() == ["True", "False", "False", "False"]
    (path,) = session.ring_paths()
    with RingFile.attach(path) as ring:
        rows = rows_of(HostReader(ring).drain())
    assert [(row.event, row.step) for row in rows] == [("window", 7)]
