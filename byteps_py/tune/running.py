"""One run of one cell: ``bpslaunch`` is started, watched through the records of its workers, ended, and read.

What a run leaves is in a folder of its own::

    runs/BLOCK-CELL/output.log    what the launcher and all processes have printed
                    log/          the same by process, until the run has ended: worker-0.log, server-0.log ...
                    records/      what each process has measured
                    files/        the job's own: BYTEPS_RUN_DIR, and {run_dir} in the command

The launcher leads a session of its own, so a Ctrl-C typed at the terminal reaches only the experiment, which then ends
the run in order.  It gets SIGTERM from the kernel when the experiment is killed, and its guard ends the rest if it is
killed itself: a run never outlives its experiment by more than some seconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import msgspec

from byteps_py import errors, known_names
from byteps_py.tune import factors, records
from byteps_py.tune.model import Cell, Design, Run
from byteps_py.tune.output import find_metric, leave_out_displays, read_policy, tail
from byteps_py.tune.watch import Watch
from byteps_py.tune.wording import count, shell_word

__all__ = [
    "OUTPUT",
    "RUN_DIR",
    "Stop",
    "Watch",
    "as_shell_line",
    "check_cells",
    "environment",
    "run_cell",
    "run_folder",
]

RUN_DIR = "{run_dir}"
"""In the words of the command: replaced by the folder of the run's own files."""
OUTPUT = "output.log"
"""In the folder of a run: what the launcher and all processes have printed."""
POLL_SECONDS = 0.1
_GRACE = "BYTEPS_GRACE_PERIOD"
_GRACE_SECONDS = "1"
"""What a run that is ended leaves its workers to save, unless the user says something else."""
_ENDING_SECONDS = 15.0
"""After the grace period, a launcher needs at most about seven seconds to end everything."""
_SWEEP_SECONDS = 15.0
"""After a launcher was killed, its guard has ended everything."""
_CHECK_SECONDS = 60.0
_SILENT_SECONDS = 5.0
"""A check that takes longer is told."""

_LAUNCHER = (
    # As the launcher starts its own processes: not from the working folder, where another byteps_py may lie.
    "import sys; sys.path[:1] = []; import ctypes, os; root, parent = sys.argv[1:3]; del sys.argv[1:3]; "
    # SIGTERM when the experiment ends; it may have ended before this line. 1 is PR_SET_PDEATHSIG.
    "ctypes.CDLL(None).prctl(1, 15); os.getppid() == int(parent) or sys.exit(1); "
    "import runpy; sys.path.append(root); runpy.run_module('byteps_py.launcher', run_name='__main__', alter_sys=True)"
)


@dataclass
class Stop:
    """Whether the experiment is to end; set by a handler of signals.

    Attributes:
        number: of the first signal, 0 while none has come.
        count: how many have come.
    """

    number: int = 0
    count: int = 0


def run_folder(design: Design, cell: int, block: int, folder: Path) -> Path:
    """Where a run of the experiment in ``folder`` has its files; blocks are counted from 1 there."""
    return folder / "runs" / f"{block + 1}-{design.cells[cell].slug}"


def environment(design: Design, cell: int, block: int, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the launcher of a run: the user's without another job's, and what the cell and the run add."""
    place = run_folder(design, cell, block, folder).absolute()
    kept = {name: value for name, value in environ.items() if not name.startswith(factors.OF_ANOTHER_JOB)}
    if not kept.get(_GRACE, "").strip():
        kept[_GRACE] = _GRACE_SECONDS
    return kept | {
        "BYTEPS_AB_RECORD": str(place / "records"),
        "BYTEPS_AB_CELL": design.cells[cell].slug,
        "BYTEPS_AB_BLOCK": str(block),
        "BYTEPS_AB_WARMUP_STEPS": str(design.warmup_steps),
        "BYTEPS_AB_STEPS": str(design.steps),
        "BYTEPS_RUN_DIR": str(place / "files"),
        "OMP_DISPLAY_ENV": "TRUE",
        **factors.variables(design, design.cells[cell]),
    }


def run_cell(
    design: Design,
    cell: int,
    block: int,
    folder: Path,
    *,
    environ: Mapping[str, str],
    stop: Stop,
    progress: Callable[[int], None] = lambda steps: None,
    keep_open: tuple[int, ...] = (),
) -> Run | None:
    """Make one run and wait until nothing of it is left; None if ``stop`` was set meanwhile.

    Args:
        design, cell, block: which run.
        folder: of the experiment. What an earlier attempt at this run has left there is removed.
        environ: the user's environment.
        stop: looked at ten times a second.
        progress: called as often, with the number of steps made, warm-up included.
        keep_open: descriptors that the launcher inherits.

    Raises:
        OSError: the folder cannot be written, or Python not be started.
    """
    place = run_folder(design, cell, block, folder)
    shutil.rmtree(place, ignore_errors=True)
    for name in ("log", "records", "files"):
        (place / name).mkdir(parents=True)
    started = time.time()
    with (place / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            _command(design, design.cells[cell], place),
            env=environment(design, cell, block, folder, environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=design.directory or None,
            start_new_session=True,
            pass_fds=keep_open,
        )
    watch = Watch(place / "records", _workers(design, cell))
    try:
        problem, steps = _wait(process, design, watch, stop, progress)
    finally:
        _end(process, place, stop, environ)
    if stop.number:
        return None
    run = _read(design, cell, block, place, _missing(watch, place) or problem, steps, watch, stop)
    if stop.count:  # meanwhile
        return None
    _tidy(place)
    return msgspec.structs.replace(run, started=started)


def _missing(watch: Watch, place: Path) -> str:
    """What somebody has removed without which a run cannot be measured."""
    if watch.is_there:
        return ""
    gone = next(path for path in (place.parent.parent, place, place / "records") if not path.exists())
    return f"{gone} was removed during the run: the job may remove only what is in BYTEPS_RUN_DIR"


def _tidy(place: Path) -> None:
    """Keep what was printed once, and without what nobody wants to read."""
    with contextlib.suppress(OSError):
        leave_out_displays(place / OUTPUT)
        shutil.rmtree(place / "log", ignore_errors=True)


def _workers(design: Design, cell: int) -> int:
    levels = zip(design.factors, design.cells[cell].levels, strict=True)
    return next((int(level) for factor, level in levels if factor.name == "num-workers"), design.num_workers)


def _words(design: Design, cell: Cell, place: Path) -> list[str]:
    """What follows the launcher's name."""
    options = factors.launch_options(design, cell)
    files = str((place / "files").absolute())
    command = [word.replace(RUN_DIR, files) for word in design.command]
    return [*options, f"--log-dir={(place / 'log').absolute()}", "--", *command]


def _command(design: Design, cell: Cell, place: Path, *more: str) -> list[str]:
    root = Path(errors.__file__).parent.parent
    return [sys.executable, "-c", _LAUNCHER, str(root), str(os.getpid()), *more, *_words(design, cell, place)]


def _wait(
    process: subprocess.Popen[bytes], design: Design, watch: Watch, stop: Stop, progress: Callable[[int], None]
) -> tuple[str | None, int]:
    """Wait for the end of the run, or of its measurement. Returns why it has failed, None if the script still has
    to prove itself by its output and records, and the number of steps made."""
    wanted = design.warmup_steps + design.steps if design.steps else None
    deadline = time.monotonic() + design.timeout
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
        steps = watch.steps()
        progress(steps)
        if stop.number or (wanted is not None and steps >= wanted):
            return None, steps
        if process.returncode is not None:
            return _describe_end(process.returncode), steps
        if not watch.is_there:
            return "its folder was removed", steps
        if time.monotonic() >= deadline:
            late = f"not finished after {design.timeout:g} s"
            if silent := watch.describe_silent():
                return f"{late}: {silent}", steps
            made = f"{steps} of {wanted} steps" if wanted is not None else f"{steps} steps"
            return f"{late} ({made}): --timeout leaves more", steps


def _describe_end(status: int) -> str | None:
    if status == 0:
        return None
    number = -status if status < 0 else status - 128
    with contextlib.suppress(ValueError):
        return f"the job was ended by {signal.Signals(number).name}"
    return f"the job ended with exit status {status}"


def _end(process: subprocess.Popen[bytes], place: Path, stop: Stop, environ: Mapping[str, str]) -> None:
    """End the launcher, if it runs, and with it everything else."""
    try:
        grace = float(environ.get(_GRACE, "").strip() or _GRACE_SECONDS)
    except ValueError:
        grace = float(_GRACE_SECONDS)
    deadline = time.monotonic() + grace + _ENDING_SECONDS
    told = 0
    while process.poll() is None and time.monotonic() < deadline:
        if told == 0 or stop.count > told:
            # The launcher takes a second one as the wish that nobody be given time to save.
            process.terminate()
            told = max(1, stop.count)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    killed = process.poll() is None or process.returncode == -signal.SIGKILL
    if killed:
        process.kill()
        process.wait()
        _wait_until_gone(place)


def _wait_until_gone(place: Path) -> None:
    """The launcher was killed, so its guard ends the run: wait until that is done."""
    mark = f"BYTEPS_RUN_DIR={place.absolute() / 'files'}".encode()
    deadline = time.monotonic() + _SWEEP_SECONDS
    while any(mark in each for each in _environments()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _environments() -> Iterator[list[bytes]]:
    """Of every process that lets us look."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            yield path.read_bytes().split(b"\0")


def _read(
    design: Design, cell: int, block: int, place: Path, problem: str | None, steps: int, watch: Watch, stop: Stop
) -> Run:
    """What the run has left, as a value."""
    run = _measured(design, cell, block, place)
    if problem is None and design.metric:
        value, problem = find_metric(place / "log", design.metric, lambda: stop.number > 0)
        run = msgspec.structs.replace(run, value=value, unit="metric")
    elif problem is None:
        problem = (watch.describe_silent() if steps == 0 else "") or _lacking(design, run, steps)
    # Of a run with a metric it does not matter why the records have no value.
    if not problem:
        return msgspec.structs.replace(run, problem="")
    return msgspec.structs.replace(run, problem=problem, value=0.0, log=tail(place / OUTPUT))


def _measured(design: Design, cell: int, block: int, place: Path) -> Run:
    """From the records; without any, a run that has the reason as its problem."""
    try:
        jobs = records.read([place / "records"])
    except errors.SettingsError as error:
        return Run(cell=cell, block=block, problem="; ".join(error.problems))
    jobs = [job for job in jobs if len(job.of("worker")) >= _workers(design, cell)]
    if not jobs:
        return Run(cell=cell, block=block, problem="not every worker has left a record")
    run = records.to_run(jobs[-1], cell, block)
    processes = tuple(
        msgspec.structs.replace(
            each, policy=read_policy(place / "log" / f"{each.role}-{each.rank}.log", told=each.policy)
        )
        for each in run.processes
    )
    return msgspec.structs.replace(run, processes=processes)


def _lacking(design: Design, run: Run, steps: int) -> str:
    """Why a script that ended well, or was ended after its steps, has no value."""
    wanted = design.warmup_steps + design.steps
    if steps == 0:
        return "it ended before every worker had made a step: the script must call bps.step() after each one"
    if steps < wanted:
        left = steps - design.warmup_steps
        mend = (
            f"give --steps {left} or fewer"
            if left > 0
            else f"give --warmup-steps below {steps}, and --steps for the rest"
        )
        return f"it ended after {steps} of {wanted} steps ({design.warmup_steps} warm-up + {design.steps}): {mend}"
    return run.problem


def check_cells(
    design: Design, cells: Sequence[int], folder: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> list[str]:
    """What the launcher has to object to in each of these cells; nothing is started.

    Args:
        design: the experiment.
        cells: which ones to look at.
        folder: of the experiment; need not exist.
        environ: the user's environment.
        say: prints a line, if it takes long.
    """
    found: dict[str, list[str]] = {}
    # A thread waits for each of some processes, which have to load Python and little else.
    pool = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))))
    try:
        asked = [pool.submit(_objections, design, cell, folder, environ) for cell in cells]
        if wait(asked, _SILENT_SECONDS).not_done:
            say(f"checking the settings of {count(len(cells), 'combination')} ...")
        for cell, each in zip(cells, asked, strict=True):
            for line in each.result():
                found.setdefault(line, []).append(design.cells[cell].label)
    finally:
        pool.shutdown(cancel_futures=True)
    return [text if len(labels) == len(cells) else f"{text} [{', '.join(labels)}]" for text, labels in found.items()]


def _objections(design: Design, cell: int, folder: Path, environ: Mapping[str, str]) -> list[str]:
    inherited = environment(design, cell, 0, folder, environ)
    try:
        done = subprocess.run(
            _command(design, design.cells[cell], run_folder(design, cell, 0, folder), "--dry-run"),
            env=inherited,
            cwd=design.directory or None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHECK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [
            f"bpslaunch --dry-run has not ended after {_CHECK_SECONDS:g} s: is this machine busy with something else?"
        ]
    if not done.returncode:
        return []
    lines = done.stderr.decode(errors="replace").splitlines()
    said = [line.removeprefix("bpslaunch: ").removeprefix("error: ") for line in lines]
    beside = {"", *known_names.report(inherited)}
    said = [line for line in said if line not in beside and not line.startswith(("usage:", " "))]
    return said or [f"bpslaunch --dry-run ended with status {done.returncode}"]


def as_shell_line(design: Design, cell: int, block: int, folder: Path, environ: Mapping[str, str]) -> str:
    """A run as a line for a shell: what is added to the environment, and the launcher's words."""
    added = environment(design, cell, block, folder, environ)
    pairs = [f"{name}={shell_word(value)}" for name, value in sorted(added.items()) if environ.get(name) != value]
    place = run_folder(design, cell, block, folder)
    return " ".join([*pairs, "bpslaunch", *map(shell_word, _words(design, design.cells[cell], place))])
