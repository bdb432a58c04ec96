"""Many models: one by one, in processes side by side, or on Ray. One that fails does not end the
others, and what is reported of each is the same everywhere. Must not import torch."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from lostwax.cli.outcome import CommandOutcome, Exit, run_safely
from lostwax.cli.progress import count_steps, show_status

Options = TypeVar("Options")
Told = dict[str, Any]
"""What is reported of one model, as data: `model`, `file`, `error`, and more."""


@dataclass(frozen=True)
class Job(Generic[Options]):
    """One model, and the file that is made of it or read with it; "" if there is none."""

    model: str
    file: str
    options: Options
    reads: bool = False
    """Is the file there already?"""


Work = Callable[[Job[Any]], Told]


def run_jobs(
    title: str, work: Work, todo: Sequence[Job[Any]], jobs: int, on_ray: bool
) -> list[Told]:
    """Do the work for each model; what is reported of each, in order."""
    if on_ray:
        running = _run_on_ray(work, todo)
    elif jobs > 1:
        running = _run_in_processes(work, todo, jobs)
    else:
        running = ((at, run_job(work, job)) for at, job in enumerate(todo))
    found: dict[int, Told] = {}
    with count_steps(title, len(todo)) as advance:
        for at, record in running:
            found[at] = record
            advance(todo[at].model)
    return [found[at] for at in range(len(todo))]


def find_exit(listed: Sequence[Told]) -> Exit:
    """The exit code of the first that failed, or whose answer is no."""
    for each in listed:
        if each["error"]:
            return Exit(each["error"]["exit"])
        if each.get("ok") is False:
            return Exit.DIFFERS
    return Exit.OK


def run_job(work: Work, job: Job[Any]) -> Told:
    """Do the work for one model; an error is reported, not raised, but for an interrupt."""
    made: list[Told] = []

    def do() -> CommandOutcome:
        made.append(work(job))
        return CommandOutcome(None, "")

    _, error = run_safely(do, False)
    if error and error["exit"] == Exit.INTERRUPTED:
        raise KeyboardInterrupt
    return made[0] if made else tell_failure(job, error)


def tell_failure(job: Job[Any], error: dict[str, Any]) -> Told:
    return {"model": job.model, "file": job.file if job.reads else None, "error": error}


def _tell_death(job: Job[Any], kind: str, message: str) -> Told:
    """What is reported of one whose process ended before it could tell anything."""
    error = {"exit": int(Exit.FAULT), "code": None, "class": kind, "message": message}
    empty = dict.fromkeys(("file", "line", "column", "traceback"))
    return tell_failure(job, {**error, **empty})


# -------------------------------------------------------------------------------------- processes


def _run_in_processes(
    work: Work, todo: Sequence[Job[Any]], jobs: int
) -> Iterator[tuple[int, Told]]:
    """Each in a process of its own: one that is killed, for memory perhaps, takes none along. Who
    ends this one ends them all."""
    processes = _Processes(work, max((os.cpu_count() or 1) // jobs, 1))
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(processes.run, job): at for at, job in enumerate(todo)}
        try:
            for each in as_completed(running):
                yield running[each], each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.end()
            raise


class _Processes:
    """Those that work at present."""

    def __init__(self, work: Work, threads: int) -> None:
        known = [os.path.abspath(each) for each in sys.path if each]  # what can be imported here
        self.code = f"import sys; sys.path[:] = {known!r}\n"
        self.code += "from lostwax.cli.several import run_sent; run_sent()"
        self.work = work
        self.threads = str(threads)
        self.running: set[subprocess.Popen[bytes]] = set()
        self.lock = threading.Lock()
        self.is_ended = False

    def run(self, job: Job[Any]) -> Told:
        with self.lock:
            if self.is_ended:
                return _tell_death(job, "ProcessError", "interrupted")
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [sys.executable, "-c", self.code],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env={"OMP_NUM_THREADS": self.threads, **os.environ},
            )
            self.running.add(process)
        out, err = process.communicate(pickle.dumps((self.work, job)))
        with self.lock:
            self.running.discard(process)
        if process.returncode == 0:
            return dict(json.loads(out.splitlines()[-1]))
        last = (err.decode(errors="replace").strip().splitlines() or [""])[-1]
        message = f"the process ended with {process.returncode}" + (f": {last}" if last else "")
        return _tell_death(job, "ProcessError", message)

    def end(self) -> None:
        with self.lock:
            self.is_ended = True
            for process in self.running:
                process.send_signal(signal.SIGINT)  # it leaves no half of a file


def run_sent() -> None:
    """What a process of `-j` runs: a job comes by stdin, and the report goes to stdout."""
    answer, sys.stdout = sys.stdout, sys.stderr
    work, job = pickle.load(sys.stdin.buffer)
    try:
        record = run_job(work, job)
    except KeyboardInterrupt:
        raise SystemExit(int(Exit.INTERRUPTED)) from None
    answer.write("\n" + json.dumps(record, default=str) + "\n")


# -------------------------------------------------------------------------------------------- Ray


_MOST_AHEAD = 4
"""How many jobs are handed over for each processor of the cluster: files that are read go along."""


def _run_on_ray(work: Work, todo: Sequence[Job[Any]]) -> Iterator[tuple[int, Told]]:
    """On the machines of a Ray cluster, or of this one. Files go there and come back."""
    from lostwax.ray.clusters import connect_to_ray

    with ExitStack() as until_end:
        with show_status("starting Ray"):
            ray = until_end.enter_context(connect_to_ray("--ray"))
        # A worker may die by accident: its model is tried once more.
        run = ray.remote(max_retries=1)(run_far)
        most = max(_MOST_AHEAD * int(ray.cluster_resources().get("CPU", 1)), 16)
        ahead, running = enumerate(todo), dict[Any, int]()
        while True:
            for at, job in islice(ahead, most - len(running)):
                running[run.remote(work, job, _read_sent(job))] = at
            if not running:
                return
            done, _ = ray.wait(list(running))
            for each in done:
                at = running.pop(each)
                yield at, _take_answer(ray, each, todo[at])


def _read_sent(job: Job[Any]) -> bytes | None:
    """The file that goes to a worker."""
    return Path(job.file).read_bytes() if job.reads and Path(job.file).is_file() else None


def _take_answer(ray: Any, task: Any, job: Job[Any]) -> Told:
    """What is reported of a model; its file is kept."""
    try:
        record, data = ray.get(task)
    except Exception as error:  # a worker died, twice; the others go on
        message = (str(error).strip().splitlines() or [""])[0]
        record, data = _tell_death(job, type(error).__name__, message), None
    if data is not None:
        record["file"] = _keep(data, job.file)
    return dict(record)


def _keep(data: bytes, file: str) -> str:
    """A file that came from afar; it is there whole, or not at all."""
    from lostwax.undo.replace_files import replace_files

    replace_files({file: lambda opened: opened.write(data)})
    return file


def run_far(work: Work, job: Job[Any], data: bytes | None) -> tuple[Told, bytes | None]:
    """What a worker of Ray runs: what is record, and the bytes of the file that was made."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / (Path(job.file).name or "none")
        if data is not None:
            file.write_bytes(data)
        there = job.file if not job.file or (job.reads and data is None) else str(file)
        record = run_job(work, replace(job, file=there))
        record["file"] = job.file if job.reads else record["file"]
        return record, file.read_bytes() if file.exists() and not job.reads else None
