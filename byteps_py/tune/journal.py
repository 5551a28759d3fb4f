"""An experiment on the disk: what was asked (``design.json``) and each run that was made (``runs.jsonl``).

A run is written when it has ended, and is on the disk before the next one begins: an experiment that is interrupted, in
whichever way, loses the run in progress and nothing else.  A line that was cut short is passed over.  A run that has
failed and is made again gets a line of its own.  As long as no run is good there is nothing to lose: another design
begins anew in the same folder.

The environment that the runs inherit belongs to the experiment, as far as it may make them faster or slower: runs of
two environments would be compared as if they were of one.

One process works in a folder: it holds a lock (``flock``) on ``lock``, in which its process id stands.  The launcher of
the run in progress holds the same lock, so that an experiment goes on only after what an earlier one has left running
has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from byteps_py.errors import SettingsError
from byteps_py.tune import durable, factors
from byteps_py.tune.model import Design, Run

__all__ = ["DESIGN", "RUNS", "Journal", "holds_experiment", "load", "open_journal"]

DESIGN = "design.json"
RUNS = "runs.jsonl"
_LOCK = "lock"
_LOCK_SECONDS = 30.0
"""How long it may take until the run of an experiment that was killed has ended."""
_POLL_SECONDS = 0.1

Say = Callable[[str], None]
Check = Callable[[Design, list[Run]], None]


class Journal:
    """An experiment that is open for writing. Made by :func:`open_journal`; belongs to one thread.

    Attributes:
        design: what is asked.
        folder: where it is.
        lock: descriptor that holds the lock, for a child to inherit.
        runs: all that were made, also those that failed and were made again, in the order of time.
    """

    def __init__(self, design: Design, folder: Path, lock: int, runs: list[Run]) -> None:
        self.design = design
        self.folder = folder
        self.lock = lock
        self.runs = runs
        self._file = os.open(folder / RUNS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            durable.sync_folder(folder)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, run: Run) -> None:
        """Write a run that has ended; it is on the disk when this returns.

        Raises:
            OSError: it cannot be written, or somebody has removed the file meanwhile.
        """
        path = self.folder / RUNS
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(self._file)):
            raise OSError(errno.ENOENT, "it was removed during the run", str(path))
        line = memoryview(msgspec.json.encode(run) + b"\n")
        while line:
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)
        self.runs.append(run)

    def close(self) -> None:
        """Give the descriptor of the runs back."""
        os.close(self._file)


@contextmanager
def open_journal(
    design: Design,
    folder: Path,
    say: Say,
    *,
    any_seed: bool = False,
    check: Check = lambda design, runs: None,
) -> Iterator[Journal]:
    """Begin an experiment in ``folder``, or go on with the one that is there.

    Args:
        design: what is asked. It may ask for more repeats, and another timeout, than the experiment that is there; the
            machine and the working folder of that one are kept. If that one has no good run, all may be different: it
            is removed, and this one begins anew.
        folder: made if need be, and not left behind if something is refused.
        say: prints a line.
        any_seed: take the seed of the experiment that is there.
        check: called with the design in force and the runs that are there, before anything is written; it may raise
            SettingsError.

    Raises:
        SettingsError: the folder holds another experiment or other files, is in use, or cannot be written; the
            environment is another than that of the runs which are there; or what ``check`` raises.
    """
    with contextlib.ExitStack() as stack:
        try:
            made = durable.make_folder(folder)
            # Taken back at the end, if nothing is kept: the lock while it is held, then the folders.
            stack.callback(lambda: durable.remove_folders(made))
            _refuse_foreign(folder)
            lock = stack.enter_context(_locked(folder, say))
            undo = stack.enter_context(contextlib.ExitStack())
            if made:
                undo.callback((folder / _LOCK).unlink, missing_ok=True)
            design, runs, anew = _join(design, folder, any_seed, say)
            check(design, runs)
            undo.pop_all()
            if anew:
                say("no run of the experiment that was there is good: this one takes its place")
                _remove_runs(folder)
            _write_design(design, folder)
            _cut(folder / RUNS)
            journal = Journal(design, folder, lock, runs)
        except OSError as error:
            raise SettingsError(f"--out {folder}: {error.strerror or error}: choose another folder") from error
        stack.callback(journal.close)
        yield journal


def holds_experiment(folder: Path) -> bool:
    """Whether ``bps ab`` has worked there."""
    return (folder / DESIGN).is_file()


def load(folder: Path) -> tuple[Design, list[Run]]:
    """Read an experiment; nothing is changed, and another process may be writing it.

    Raises:
        SettingsError: there is none, or its files cannot be read or are none that ``bps ab`` writes.
    """
    try:
        design = msgspec.json.decode((folder / DESIGN).read_bytes(), type=Design)
    except OSError as error:
        raise SettingsError(f"{folder / DESIGN}: {error.strerror}: no experiment was begun there") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"{folder / DESIGN} is no design of an experiment ({error}): {_instead(folder)}") from error
    problems = factors.problems_of(design)
    if problems:
        text = "; ".join(problems)
        raise SettingsError(f"{folder / DESIGN} is no design of an experiment: {text}: {_instead(folder)}")
    return design, list(_read_runs(folder / RUNS, design))


def _instead(folder: Path) -> str:
    report = f"; `bps ab report {folder / 'runs'}` shows what was measured" if (folder / "runs").is_dir() else ""
    return f"choose another folder{report}"


def _read_runs(path: Path, design: Design) -> Iterator[Run]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        try:
            run = msgspec.json.decode(line, type=Run)
        except msgspec.DecodeError as error:
            hint = "without that line its run is made again"
            raise SettingsError(f"{path}, line {number} is no record of a run ({error}); {hint}") from error
        if not (0 <= run.cell < len(design.cells) and run.block >= 0):
            raise SettingsError(f"{path}, line {number}: a run of cell {run.cell}, which {DESIGN} does not have")
        yield run


def _refuse_foreign(folder: Path) -> None:
    if holds_experiment(folder):
        return
    foreign = sorted(each.name for each in folder.iterdir() if not _is_ours(each.name))
    if foreign:
        names = ", ".join(foreign[:3]) + (" ..." if len(foreign) > 3 else "")
        raise SettingsError(f"--out {folder} holds files of others ({names}): choose an empty folder, or a new one")


def _is_ours(name: str) -> bool:
    """Whether a file may be what we have left that were killed before an experiment was there."""
    return name == _LOCK or name.startswith(durable.temporary_prefix(DESIGN))


def _join(design: Design, folder: Path, any_seed: bool, say: Say) -> tuple[Design, list[Run], bool]:
    """The design in force, the runs that are there, and whether others were there that are to be removed."""
    if not holds_experiment(folder):
        return design, [], False
    there, runs = load(folder)
    if any_seed:
        design = msgspec.structs.replace(design, seed=there.seed)
    differences = [
        f"{name} {_shown(name, old)} there, {_shown(name, new)} here"
        for name in Design.__struct_fields__
        if name not in ("timeout", "cells", "environment", "machine", "directory")
        and (old := getattr(there, name)) != (new := getattr(design, name))
        and not (name == "repeats" and new > old)
    ]
    others = bool(differences) or there.cells != design.cells
    if all(run.problem for run in runs):
        anew = bool(runs) and (others or there.environment != design.environment)
        return design, [] if anew else runs, anew
    if others:
        text = "; ".join(differences) or "its cells have other names, so another version of bps ab has begun it"
        raise SettingsError(f"--out {folder} holds another experiment: {text}. Choose another folder for this one")
    # Older versions did not note it.
    if there.machine:
        _refuse_environment(there.environment, design.environment, folder)
        if there.machine != design.machine:
            say(f"this experiment was begun on another machine or version ({there.machine}), which its reports name")
        design = msgspec.structs.replace(design, machine=there.machine)
    if there.directory and there.directory != design.directory:
        say(f"runs are made in {there.directory}, where the others were, not in {design.directory}")
        design = msgspec.structs.replace(design, directory=there.directory)
    return design, runs, False


def _remove_runs(folder: Path) -> None:
    """First what counts: if this is interrupted, the experiment still has no good run."""
    (folder / RUNS).unlink(missing_ok=True)
    shutil.rmtree(folder / "runs", ignore_errors=True)


def _refuse_environment(there: Mapping[str, str], here: Mapping[str, str], folder: Path) -> None:
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if not names:
        return
    problems = [
        f"--out {folder}: {name} {_described(there.get(name))} in its runs, and {_described(here.get(name), 'is')} now"
        for name in names
    ]
    unset = [name for name in names if name not in there]
    again = [f"export {name}={shlex.quote(there[name])}" for name in names if name in there]
    mend = "; ".join([*([f"unset {' '.join(unset)}"] if unset else []), *again])
    raise SettingsError(
        [*problems, f"runs of two environments cannot be compared: `{mend}` goes on, another --out begins anew"]
    )


def _described(value: str | None, verb: str = "was") -> str:
    return f"{verb} not set" if value is None else f"{verb} {value!r}"


def _shown(name: str, value: object) -> str:
    if name == "factors":
        return " ".join(f"{each.name}={','.join(each.levels)}" for each in value) or "nothing"  # type: ignore[attr-defined]
    return " ".join(value) if isinstance(value, tuple) else repr(value) if isinstance(value, str) else str(value)


def _write_design(design: Design, folder: Path) -> None:
    durable.replace(folder / DESIGN, msgspec.json.format(msgspec.json.encode(design), indent=2) + b"\n")


def _cut(path: Path) -> None:
    """Remove a last line that is not complete."""
    with contextlib.suppress(FileNotFoundError):
        text = path.read_bytes()
        if text and not text.endswith(b"\n"):
            os.truncate(path, text.rfind(b"\n") + 1)


@contextmanager
def _locked(folder: Path, say: Say) -> Iterator[int]:
    """Hold the lock of the folder, and have our process id in it."""
    path = folder / _LOCK
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _wait_for(lock, folder, say)
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        yield lock
    finally:
        os.close(lock)


def _wait_for(lock: int, folder: Path, say: Say) -> None:
    """Take the lock. Whoever is at work there keeps it; what somebody who was killed has left ends soon."""
    deadline = time.monotonic() + _LOCK_SECONDS
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        if _is_alive(holder):
            raise SettingsError(f"--out {folder}: another bps ab (pid {holder}) works there: wait for it, or end it")
        if time.monotonic() >= deadline:
            raise SettingsError(
                f"--out {folder}: a run that an earlier bps ab (pid {holder or '?'}) has left still runs after "
                f"{_LOCK_SECONDS:g} s: end it"
            )
        if not told:
            say(f"waiting until the run has ended that bps ab (pid {holder or '?'}) was killed in")
            told = True
        time.sleep(_POLL_SECONDS)


def _is_alive(pid: str) -> bool:
    if not pid.isdigit() or int(pid) < 1:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
