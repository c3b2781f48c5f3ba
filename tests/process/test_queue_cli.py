"""`topicctl queue` against a daemon: every verb, its JSON, its exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.cli_kit import TOPICCTL, environment, run_ctl
from tests.support.daemon import Daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("queues") / "d", wal_shards=1, delivery_shards=2) as running:
        yield running


def queue_json(daemon: Daemon, *args: str) -> object:
    return json.loads(run_ctl(daemon, "queue", *args, "--json").stdout)


def stats(daemon: Daemon, name: str) -> dict[str, object]:
    found = queue_json(daemon, "stats", name)
    assert isinstance(found, dict)
    return found


def test_a_queue_is_made_filled_and_looked_at(daemon: Daemon) -> None:
    made = queue_json(daemon, "create", "thumbs", "--lease", "30s", "--backoff", "50ms", "durability=fsync")
    assert isinstance(made, dict)
    assert (made["config"]["lease_ms"], made["config"]["backoff_ms"]) == (30_000, 50)
    assert run_ctl(daemon, "queue", "put", "thumbs", '{"file": 9}', "--delay", "1h", "--priority", "7").stdout == "1\n"
    assert queue_json(daemon, "put", "thumbs", "a", "--unique", "k") == {"queue": "thumbs", "seq": 2, "new": True}
    assert run_ctl(daemon, "queue", "put", "thumbs", "b", "--unique", "k").stdout == "2 (there already)\n"
    assert run_ctl(daemon, "queue", "put", "thumbs", "-", "--lines", input="x\ny\n").stdout == "2 jobs\n"
    shown = run_ctl(daemon, "queue", "stats", "thumbs").stdout
    assert "delayed" in shown
    assert (stats(daemon, "thumbs")["ready"], stats(daemon, "thumbs")["delayed"]) == (3, 1)
    jobs = queue_json(daemon, "peek", "thumbs", "--state", "delayed")
    assert isinstance(jobs, dict)
    assert [(job["seq"], job["data"]) for job in jobs["jobs"]] == [(1, '{"file": 9}')]
    assert "delayed" in run_ctl(daemon, "queue", "peek", "thumbs").stdout
    why = queue_json(daemon, "why", "thumbs", "1")
    assert isinstance(why, dict)
    assert (why["state"], len(why["because"]) > 0) == ("delayed", True)
    assert "thumbs" in run_ctl(daemon, "queue", "list").stdout


def test_pause_resume_and_drain(daemon: Daemon) -> None:
    run_ctl(daemon, "queue", "put", "steered", "a")
    assert (
        run_ctl(daemon, "queue", "pause", "steered", "--reason", "lunch").stdout == "steered: paused by user: lunch\n"
    )
    assert "lunch" in run_ctl(daemon, "queue", "why", "steered").stdout
    run_ctl(daemon, "queue", "create", "idle")
    assert run_ctl(daemon, "queue", "why", "idle").stdout.startswith("idle has no job that is ready\n")
    assert run_ctl(daemon, "queue", "resume", "steered").stdout == "steered: open\n"
    assert run_ctl(daemon, "queue", "drain", "steered").stdout == "steered: draining\n"
    run_ctl(daemon, "queue", "put", "steered", "b", code=5)
    run_ctl(daemon, "queue", "resume", "steered")


def test_waiting_jobs_are_retried_and_deleted_by_seq(daemon: Daemon) -> None:
    for data in ("a", "b", "c"):
        run_ctl(daemon, "queue", "put", "waiting", data, "--delay", "1h")
    assert run_ctl(daemon, "queue", "retry", "waiting", "1").stdout == "waiting: 1 ready\n"
    assert queue_json(daemon, "retry", "waiting", "1", "2") == {"queue": "waiting", "changed": 1, "skipped": [1]}
    assert run_ctl(daemon, "queue", "delete", "waiting", "3", "9").stdout == (
        "waiting: 1 deleted; left as they are: 9\n"
    )
    jobs = queue_json(daemon, "peek", "waiting")
    assert isinstance(jobs, dict)
    assert [(job["seq"], job["state"]) for job in jobs["jobs"]] == [(1, "ready"), (2, "ready")]
    run_ctl(daemon, "queue", "delete", "waiting", "3", code=5)
    run_ctl(daemon, "queue", "retry", "waiting", "0", code=2)
    run_ctl(daemon, "queue", "retry", "no.such.queue", "1", code=4)


def test_work_runs_a_command_and_acts_on_its_exit_code(daemon: Daemon, tmp_path: Path) -> None:
    run_ctl(daemon, "queue", "create", "work", "backoff_ms=60000")
    for code in (0, 75, 3):
        run_ctl(daemon, "queue", "put", "work", str(code), "--tag", "t", "--meta", '{"a": 1}')
    script = "read code; echo $TOPICD_JOB_QUEUE $TOPICD_JOB_SEQ $TOPICD_JOB_TAG $TOPICD_JOB_META "
    script += "$TOPICD_JOB_DELIVERIES $TOPICD_JOB_LEASE $TOPICD_JOB_DEADLINE >> seen; "
    script += "echo out; echo first >&2; echo 'no luck' >&2; exit $code"
    command = ["queue", "work", "work", "--limit", "3", "--json", "--", "bash", "-c", f"cd {tmp_path}; {script}"]
    done = run_ctl(daemon, *command)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["outcome"], line["exit_code"]) for line in lines] == [("done", 0), ("released", 75), ("failed", 3)]
    assert lines[2]["reason"] == "no luck" and done.stderr.splitlines().count("out") == 3
    first = (tmp_path / "seen").read_text().splitlines()[0].split(" ")
    assert first[:3] == ["work", "1", "t"]
    assert '{"a":1}' in "".join(first[3:5])
    found = queue_json(daemon, "peek", "work")
    assert isinstance(found, dict)
    assert [(job["seq"], job["deliveries"], job["reason"]) for job in found["jobs"]] == [
        (2, 0, "no luck"),
        (3, 1, "no luck"),
    ]


def test_work_without_a_command_that_can_run_gives_the_job_back(daemon: Daemon) -> None:
    run_ctl(daemon, "queue", "put", "broken", "a")
    done = run_ctl(daemon, "queue", "work", "broken", "--", "/no/such/command", code=1)
    assert "cannot be run" in done.stderr
    assert done.stdout.endswith("cannot run /no/such/command: No such file or directory\n")
    assert (stats(daemon, "broken")["failed"], stats(daemon, "broken")["ready"]) == (0, 1)


def test_work_ends_politely_at_sigterm(daemon: Daemon, tmp_path: Path) -> None:
    run_ctl(daemon, "queue", "put", "polite", "-", "--lines", input="1\n2\n3\n")
    command = [*TOPICCTL, "queue", "work", "polite", "--", "sh", "-c", f"touch {tmp_path}/begun; sleep 0.5"]
    process = subprocess.Popen(command, env=environment(daemon), stdout=subprocess.PIPE, text=True)
    ends = time.monotonic() + 30
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < ends
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    done = printed.count(" done in ")
    assert done >= 1
    found = stats(daemon, "polite")
    assert (found["acked"], found["in_flight"], found["ready"]) == (done, 0, 3 - done)


def test_before_a_job_has_died_there_are_no_dead_letters(daemon: Daemon) -> None:
    run_ctl(daemon, "queue", "create", "healthy", "--dead-letter", "healthy.dead")
    assert run_ctl(daemon, "queue", "dead", "list", "healthy").stdout == "no dead letters\n"
    assert run_ctl(daemon, "queue", "dead", "redrive", "healthy", "--all").stdout == "0 redriven\n"
    assert run_ctl(daemon, "queue", "dead", "redrive", "healthy", "--where", "reason~x").stdout == "0 redriven\n"
    assert queue_json(daemon, "dead", "redrive", "healthy", "1", "2") == {
        "queue": "healthy",
        "redriven": 0,
        "discarded": 0,
        "skipped": [1, 2],
    }
    assert "healthy.dead" not in run_ctl(daemon, "topic", "list").stdout
    assert "no topic" in run_ctl(daemon, "queue", "dead", "list", "no.such.queue", code=4).stderr


def test_a_unique_key_is_held_as_long_as_is_said(daemon: Daemon) -> None:
    def put(data: str, *more: str) -> object:
        found = queue_json(daemon, "put", "keys", data, "--unique", "k", *more)
        assert isinstance(found, dict)
        return found["seq"], found["new"]

    assert put("a", "--delay", "1h") == (1, True)
    assert put("b", "--on-conflict", "drop") == (1, False)
    assert put("c", "--on-conflict", "replace", "--until", "1h") == (2, True)
    assert put("d", "--on-conflict", "reschedule", "--delay", "2h") == (2, False)
    run_ctl(daemon, "queue", "retry", "keys", "2")
    assert run_ctl(daemon, "queue", "work", "keys", "--idle", "0s", "--", "cat").stdout.startswith("c2 done")
    assert put("e") == (2, False)  # for an hour
    assert queue_json(daemon, "put", "keys", "f", "--unique", "s", "--until", "start") == {
        "queue": "keys",
        "seq": 3,
        "new": True,
    }
    assert "only with --unique" in run_ctl(daemon, "queue", "put", "keys", "g", "--until", "done", code=2).stderr
    run_ctl(daemon, "queue", "put", "keys", "g", "--unique", "k", "--until", "later", code=2)


def test_a_time_is_told_as_people_read_it(daemon: Daemon) -> None:
    run_ctl(daemon, "queue", "put", "tomorrow", "a", "--at", "2027-01-31T12:00+00:00")
    assert "before 2027-01-31T12:00:00.000+00:00, in " in run_ctl(daemon, "queue", "why", "tomorrow", "1").stdout


def test_what_is_no_queue_is_told(daemon: Daemon) -> None:
    run_ctl(daemon, "publish", "a-log", "x")
    assert "is a log" in run_ctl(daemon, "queue", "stats", "a-log", code=5).stderr
    assert "is a log" in run_ctl(daemon, "queue", "put", "a-log", "x", code=5).stderr
    run_ctl(daemon, "queue", "stats", "nothing", code=4)
    run_ctl(daemon, "queue", "work", "nothing", "--", "true", code=4)
    run_ctl(daemon, "queue", "put", "q", "x", "--delay", "soon", code=2)
    run_ctl(daemon, "queue", "dead", "list", "steered", "--where", "colour=red", code=2)
    assert "dead_letter" in run_ctl(daemon, "queue", "dead", "list", "thumbs", code=2).stderr


def test_work_says_of_which_jobs_it_could_not_report_the_end(tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", wal_shards=1, delivery_shards=1) as daemon:
        run_ctl(daemon, "queue", "put", "unheard", "a")
        script = f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
        work = ["queue", "work", "unheard", "--timeout", "0.5", "--limit", "1"]
        command = [*TOPICCTL, *work, "--", "sh", "-c", script]
        process = subprocess.Popen(
            command, env=environment(daemon), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        ends = time.monotonic() + 30
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < ends
            time.sleep(0.02)
        daemon.stop()
        (tmp_path / "go").touch()
        out, err = process.communicate(timeout=30)
        assert out == "1 done, but that could not be reported: it will be delivered again\n"
        assert (process.returncode, "1 job ended" in err) == (3, True)
