"""`Program`: a `.pte` file that is called from Python."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from lostwax_run.arrays import make_rows, prepare_input, prepare_result
from lostwax_run.description import Description, Spec
from lostwax_run.errors import InputError, RunError
from lostwax_run.file import AnyFile, File, Session, Trace
from lostwax_run.runtime import DONE, STOPPED, last_problem, load_library


class Method:
    """One method of a program: call it with arrays, and it returns the list of its results."""

    def __init__(self, session: Session, description: Description) -> None:
        self._session, self.description = session, description
        self._call = load_library().run_call
        name, count = description.name, len(description.inputs)
        self._inputs, self._results = make_rows(count), make_rows(len(description.outputs))
        self._places = ctypes.addressof(self._inputs), ctypes.addressof(self._results)
        whats = [f"input {at} of {name!r}" for at in range(count)]
        self._puts = [
            prepare_input(spec, row, what)
            for row, spec, what in zip(self._inputs, description.inputs, whats, strict=False)
        ]
        self._takes = [*map(prepare_result, description.outputs, self._results)]

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return self.description.inputs

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return self.description.outputs

    def __call__(self, *inputs: Any) -> list[Any]:
        puts, session = self._puts, self._session
        if len(inputs) != len(puts):
            raise InputError(
                f"{self.description.name!r} takes {len(puts)} inputs, {len(inputs)} are given"
                f"\n  instead: {self}"
            )
        with session.lock:
            handle = session.load(self.description.name)
            held = [put(value) for put, value in zip(puts, inputs, strict=True)]
            takes, (given, results) = self._takes, self._places
            outcome = self._call(handle, given, len(held), results, len(takes))
            if outcome != DONE:
                raise self._fail(outcome)
            return [take() for take in takes]

    def _fail(self, outcome: int) -> RunError:
        text = f"{self.description.name!r} failed: {last_problem()}"
        if outcome == STOPPED:  # in the middle of a kernel: what was loaded cannot be used again
            self._session.close()
            text += "\n  why: a check of the runtime failed; its state is again that of the start"
        return RunError(text)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.inputs, self.outputs))
        return f"{self.description.name}({inputs}) -> {outputs or 'nothing'}"


class Program:
    """A program for the ExecuTorch runtime, from a path or from bytes.

    Its methods are called by their names, `program.forward(x)`, with arrays of the dtypes and
    shapes that `program.methods["forward"].inputs` says, and return lists of arrays. They keep
    their state from call to call, and share it as the file says. `weights` is the `.ptd` file with
    weights; that of a path may be beside it, `m.ptd` for `m.pte`. Threads that call one program
    take turns. With `alone=True` a call computes in its thread only. With `traced=True` calls note
    how long each instruction takes, for `take_trace`; with `traced_bytes`, too, what they compute
    instead, in so many bytes.
    """

    def __init__(
        self,
        file: AnyFile,
        weights: AnyFile | None = None,
        *,
        alone: bool = False,
        traced: bool = False,
        traced_bytes: int = 0,
    ) -> None:
        self._begin(File(file, weights), alone, traced, traced_bytes)

    def _begin(self, file: File, alone: bool, traced: bool = False, traced_bytes: int = 0) -> None:
        self._session = Session(file, alone, traced, traced_bytes)
        described = file.methods
        self._described = described
        self._methods: dict[str, Method] = {}
        self._constants: dict[str, Any] | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        """What can be called, by its name; constants are not among them."""
        names = [each.name for each in self._described.values() if not each.is_constant]
        return {name: self._find(name) for name in names}

    @property
    def constants(self) -> Mapping[str, Any]:
        """What constant methods say, as `get_max_seq_len`: a value, or a list of several."""
        if self._constants is None:
            names = [each.name for each in self._described.values() if each.is_constant]
            found = {name: self._find(name)() for name in names}
            self._constants = {n: v[0] if len(v) == 1 else v for n, v in found.items()}
        return self._constants

    def describe(self, method: str) -> Description:
        """What the file says of a method."""
        if method not in self._described:
            raise RunError(f"there is no method {method!r}; there are {sorted(self._described)}")
        return self._described[method]

    @property
    def missing(self) -> tuple[str, ...]:
        """The kernels and backends that methods need, and this runtime has not."""
        list_missing = self._session.file.list_missing
        return tuple(dict.fromkeys(n for d in self._described.values() for n in list_missing(d)))

    def _find(self, name: str) -> Method:
        if name not in self._methods:
            self._methods[name] = Method(self._session, self._described[name])
        return self._methods[name]

    def __getattr__(self, name: str) -> Method:
        described = self.__dict__.get("_described", {})
        if name in described:
            method = self._find(name)
            self.__dict__.setdefault(name, method)  # the next time it is found at once
            return method
        raise AttributeError(f"the program has no method {name!r}; it has {sorted(described)}")

    def run(self, *inputs: Any, method: str = "forward") -> list[Any]:
        """Call a method by its name, whatever that is."""
        return self._find(self.describe(method).name)(*inputs)

    def take_trace(self) -> Trace:
        """What the calls of a traced program did, as an ETDump. State is then as at the start."""
        with self._session.lock:
            return self._session.take_trace()

    def reset(self) -> None:
        """State as it was at the start. Memory is given back until the next call."""
        with self._session.lock:
            self._session.close()

    close = reset

    def session(self, *, alone: bool = True) -> Program:
        """The same program, with state and memory of its own; the file is there once."""
        other = Program.__new__(Program)
        other._begin(self._session.file, alone)
        return other

    def map(
        self, batch: Iterable[Sequence[Any]], *, method: str = "forward", sessions: int = 2
    ) -> list[list[Any]]:
        """Call a method for each tuple of inputs, several at a time: each in one of so many
        sessions and in a thread. Results come in the order of the inputs. The state of this program
        is not used; that of a session is what the inputs before have left."""
        if sessions < 1:
            raise InputError(f"sessions={sessions}: there must be one at least")
        free: SimpleQueue[Program] = SimpleQueue()
        for _ in range(sessions):
            free.put(self.session())

        def call(inputs: Sequence[Any]) -> list[Any]:
            taken = free.get()
            try:
                return taken.run(*inputs, method=method)
            finally:
                free.put(taken)

        with ThreadPoolExecutor(sessions) as pool:
            return list(pool.map(call, batch))

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Program({'; '.join(map(repr, self.methods.values()))})"


def get_threads() -> int:
    """How many threads the runtime computes with."""
    return int(load_library().run_threads())


def set_threads(count: int) -> None:
    """Let the runtime of this process compute with so many threads. It is said before the first
    call of a program: what is loaded keeps the threads that it was loaded with."""
    if count < 1:
        raise InputError(f"{count} threads: there must be one at least")
    if not load_library().run_set_threads(count):
        raise RunError(
            "the number of threads cannot change now: methods are loaded\n"
            "  instead: set_threads before the first call, or after close() of each program"
        )
