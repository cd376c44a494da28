import errno
import json
import os
import socket
import subprocess
import sys
import threading

import pytest
import torch

from mirrorshot.files.checkpoint import CheckpointError
from mirrorshot.files.lock import RunError, RunLock, remove_run
from mirrorshot.files.writing import CheckpointWriteError
from mirrorshot.training.folder import RunFolder, read_config, read_log

CONFIG = {"method": "dkt", "seed": 1}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "dkt"


def begin(folder, n_steps=3, last=2):
    with RunFolder.create(folder, CONFIG) as run:
        for step in range(1, n_steps + 1):
            run.log({"step": step, "loss": 1.0 / step})
        if last:
            run.save("last", {"method.x": torch.tensor(last)}, {"step": last})


def test_a_run_leaves_its_files(folder):
    begin(folder)
    assert sorted(os.listdir(folder)) == ["config.json", "last.safetensors", "log.jsonl"]
    assert read_config(folder) == CONFIG
    assert read_log(folder) == [{"step": s, "loss": 1.0 / s} for s in (1, 2, 3)]


def test_records_are_in_the_file_at_once(folder):
    with RunFolder.create(folder, CONFIG) as run:
        run.log({"step": 1, "loss": 0.5})
        assert read_log(folder) == [{"step": 1, "loss": 0.5}]


def test_numbers_that_are_not_finite_become_null(folder):
    with RunFolder.create(folder, CONFIG) as run:
        run.log({"step": 1, "loss": float("nan")})
    assert (folder / "log.jsonl").read_text() == '{"step": 1, "loss": null}\n'


def test_resuming_goes_back_to_the_last_checkpoint(folder):
    begin(folder, n_steps=5, last=3)
    with RunFolder.resume(folder) as run:
        assert run.config == CONFIG
        assert int(run.load("last").tensors["method.x"]) == 3
        run.log({"step": 4, "loss": 0.1})
    assert [record["step"] for record in read_log(folder)] == [1, 2, 3, 4]


def test_resuming_without_a_checkpoint_begins_again(folder):
    begin(folder, last=None)
    with RunFolder.resume(folder) as run:
        assert not run.has("last")
    assert read_log(folder) == []


def test_a_half_written_last_line_is_dropped(folder):
    begin(folder, n_steps=2, last=9)
    with open(folder / "log.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    assert [record["step"] for record in read_log(folder)] == [1, 2]
    with RunFolder.resume(folder) as run:
        run.log({"step": 10})
    assert [record["step"] for record in read_log(folder)] == [1, 2, 10]


def test_a_damaged_line_in_the_middle_is_named(folder):
    begin(folder, n_steps=1)
    with open(folder / "log.jsonl", "a") as file:
        file.write('garbage\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"line 2 of .*log\.jsonl to be a JSON object, but got b'garbage'"):
        RunFolder.resume(folder)
    assert not (folder / "run.lock").exists()


def test_best_and_last_are_two_checkpoints(folder):
    with RunFolder.create(folder, CONFIG) as run:
        assert not run.has("best")
        run.save("best", {}, {"step": 1, "val_accuracy": 0.5})
        run.save("last", {}, {"step": 2})
        assert run.load("best").info["val_accuracy"] == 0.5
        assert run.load("last").info["step"] == 2


def test_a_folder_that_holds_a_run_is_refused(folder):
    begin(folder)
    with pytest.raises(
        RunError, match=r"config.json, log.jsonl, last.safetensors. Use --resume to continue it, or choose"
    ):
        RunFolder.create(folder, CONFIG)
    assert not (folder / "run.lock").exists()
    assert len(read_log(folder)) == 3


def test_other_files_in_the_folder_are_no_obstacle(folder):
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    begin(folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_without_a_run_cannot_be_resumed(folder):
    with pytest.raises(RunError, match=r"Expected a run in .* but got no config\.json"):
        RunFolder.resume(folder)


def test_a_folder_that_cannot_be_made_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointWriteError, match="to be a folder that can be made"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG)


def test_a_damaged_config_is_explained(folder):
    begin(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(RunError, match="to be a JSON object, but got"):
        read_config(folder)


def test_a_damaged_last_checkpoint_is_explained_and_the_lock_given_back(folder):
    begin(folder)
    (folder / "last.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="to be a file of mirrorshot"):
        RunFolder.resume(folder)
    assert not (folder / "run.lock").exists()


def test_steps_are_asked_for(folder):
    with RunFolder.create(folder, CONFIG) as run:
        with pytest.raises(RunError, match=r"a record with an integer 'step', but got {'loss': 1.0}"):
            run.log({"loss": 1.0})
        with pytest.raises(RunError, match=r"an integer 'step', but got the keys \['method'\]"):
            run.save("last", {}, {"method": "dkt"})


def test_a_full_disk_is_explained_by_the_log(folder, monkeypatch):
    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            pass

    with RunFolder.create(folder, CONFIG) as run:
        run._log.close()
        monkeypatch.setattr(run, "_log", Full())
        with pytest.raises(CheckpointWriteError, match=r"append to .*log\.jsonl, but got: No space"):
            run.log({"step": 1})


def test_leftovers_of_a_killed_process_are_removed(folder):
    begin(folder)
    (folder / ".last.safetensors.0badcafe.tmp").write_bytes(b"half")
    RunFolder.resume(folder).close()
    assert sorted(os.listdir(folder)) == ["config.json", "last.safetensors", "log.jsonl"]


def test_two_runs_cannot_write_into_one_folder(folder):
    with RunFolder.create(folder, CONFIG), pytest.raises(RunError, match=rf"in use by process {os.getpid()} on "):
        RunFolder.resume(folder)
    RunFolder.resume(folder).close()


def test_the_lock_is_given_back_after_an_error(folder):
    with pytest.raises(ZeroDivisionError), RunFolder.create(folder, CONFIG):
        _ = 1 / 0
    assert not (folder / "run.lock").exists()


def test_closing_twice_does_no_harm(folder):
    run = RunFolder.create(folder, CONFIG)
    run.close()
    run.close()


def test_what_a_process_left_is_no_lock(folder):
    """Its number may be another's by now, or its host another one: only a lock that is held counts."""
    begin(folder)
    (folder / "run.lock").write_text("")
    for owner in (json.dumps({"pid": os.getpid(), "host": "another-host"}), "", "garbage", "[]"):
        (folder / "run.owner").write_text(owner)
        with pytest.warns(
            UserWarning, match=r"Took over the lock .*run\.lock: .*process .*, which held it, no longer runs"
        ):
            RunFolder.resume(folder).close()
        assert sorted(os.listdir(folder)) == ["config.json", "last.safetensors", "log.jsonl"]


def test_a_lock_without_a_name_is_a_lock(folder):
    with RunFolder.create(folder, CONFIG):
        (folder / "run.owner").unlink()
        with pytest.raises(RunError, match="in use by a process that did not leave its name"):
            RunFolder.resume(folder)


def test_a_folder_is_removed_unless_it_is_in_use(folder):
    with RunFolder.create(folder, CONFIG), pytest.raises(RunError, match="in use"):
        remove_run(folder)
    assert (folder / "config.json").exists()
    remove_run(folder)
    assert not folder.exists()


TAKE = (
    "import sys, time, warnings; from pathlib import Path; from mirrorshot.files.lock import RunLock, remove_run\n"
    "warnings.simplefilter('ignore')\n"
    "try: lock = RunLock.acquire(Path(sys.argv[1])); print('mine', flush=True); time.sleep(3600)\n"
    "except ValueError as error: print('refused', error, flush=True)"
)


def take(folder):
    """A process that takes the lock and keeps it, and its answer."""
    process = subprocess.Popen([sys.executable, "-c", TAKE, str(folder)], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_one_process_after_the_other_gets_the_lock(tmp_path):
    holder, first = take(tmp_path)
    other, second = take(tmp_path)
    for process in (holder, other):
        process.kill()
        process.communicate()
    third, last = take(tmp_path)
    third.kill()
    third.communicate()
    assert first == last == "mine"
    assert f"in use by process {holder.pid} on {socket.gethostname()}" in second


def test_many_that_come_and_go_never_hold_the_lock_together(tmp_path):
    """Threads stand for processes: locks of one process exclude each other too."""
    inside, most, times = [], [], []

    def work():
        for _ in range(200):
            try:
                lock = RunLock.acquire(tmp_path)
            except RunError:
                continue
            inside.append(1)
            most.append(len(inside))
            times.append(1)
            inside.pop()
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert times
    assert max(most) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_run_can_be_resumed(folder):
    code = (
        "import sys, torch; from pathlib import Path; from mirrorshot.training.folder import RunFolder\n"
        "with RunFolder.create(Path(sys.argv[1]), {}) as run:\n"
        "    for step in range(10**9):\n"
        "        run.log({'step': step}); run.save('last', {'x': torch.full((10_000,), step)}, {'step': step})\n"
        "        print(step, flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    while (process.stdout.readline() or "999").strip() != "30":
        assert process.poll() is None
    process.kill()
    process.communicate()
    with pytest.warns(UserWarning, match=f"process {process.pid} on .*, which held it, no longer runs"):
        run = RunFolder.resume(folder)
    with run:
        tensors, info = run.load("last")
    assert info["step"] >= 30
    assert bool((tensors["x"] == info["step"]).all())
    assert [record["step"] for record in read_log(folder)] == list(range(info["step"] + 1))
    assert sorted(os.listdir(folder)) == ["config.json", "last.safetensors", "log.jsonl"]
