"""What a profile is: pieces of time with where they come from, in groups, beside another, as data.

Must not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from lostwax.errors import LoadError
from lostwax.ir.origin import NodeOrigin


@dataclass(frozen=True)
class TimedPiece:
    """What one instruction takes, or one node, or what a delegate does inside of it."""

    name: str
    """The kernel, the operator, or what the delegate calls it."""
    seconds: float
    """In one call: the median of several."""
    nodes: tuple[NodeOrigin, ...] = ()
    delegate: str = ""
    bytes: int = 0
    """What it writes."""
    at: str = ""
    """The instruction in the file, "i3"; "" of a program's node."""

    @property
    def operator(self) -> str:
        return self.name

    @property
    def module(self) -> str:
        """The module that it is of; of several nodes the one that has them all."""
        paths = [each.module.split(".") if each.module else [] for each in self.nodes]
        if not paths:
            return "(the runtime)"
        if len(paths) <= 2:  # a layer and its activation
            return ".".join(paths[0]) or "(the model)"
        common = []
        for names in zip(*paths, strict=False):
            if len(set(names)) > 1:
                break
            common.append(names[0])
        return ".".join(common) or "(the model)"

    @property
    def line(self) -> str:
        """The line that it is of."""
        lines = dict.fromkeys(f"{n.line}  {n.code}".strip() for n in self.nodes if n.line)
        if len(lines) == 1:
            return next(iter(lines))
        return f"({len(lines)} lines)" if lines else "(no line)"


@dataclass(frozen=True)
class Profile:
    """How long the calls of one program took."""

    title: str
    seconds: float
    """Of a whole call: the median."""
    calls: int
    pieces: tuple[TimedPiece, ...]
    notes: tuple[str, ...] = field(default=())

    def group(self, by: str) -> list[TimedGroup]:
        """The pieces together by their "operator", "module" or "line", the slowest first."""
        found: dict[str, list[TimedPiece]] = {}
        for piece in self.pieces:
            found.setdefault(getattr(piece, by), []).append(piece)
        groups = [_join(name, pieces, self.seconds) for name, pieces in found.items()]
        return sorted(groups, key=lambda group: -group.seconds)

    def to_json(self) -> dict[str, Any]:
        """As plain data, which `profile_from_json` reads, and the explorer."""
        pieces = [{**asdict(p), "nodes": [n._asdict() for n in p.nodes]} for p in self.pieces]
        groups = {by: [asdict(group) for group in self.group(by)] for by in KINDS}
        head = {"file": self.title, "seconds": self.seconds, "calls": self.calls}
        return {**head, "pieces": pieces, "groups": groups}


@dataclass(frozen=True)
class TimedGroup:
    """Pieces that belong together."""

    name: str
    seconds: float
    share: float
    count: int
    bytes: int
    delegate: str


KINDS = ("operator", "module", "line")


def _join(name: str, pieces: Sequence[TimedPiece], whole: float) -> TimedGroup:
    seconds = sum(piece.seconds for piece in pieces)
    delegates = ", ".join(dict.fromkeys(p.delegate for p in pieces if p.delegate))
    size = sum(piece.bytes for piece in pieces)
    return TimedGroup(
        name, seconds, seconds / whole if whole else 0.0, len(pieces), size, delegates
    )


def profile_from_json(given: Any) -> Profile:
    """What `to_json` gave, or the answer of `lostwax profile --json`."""
    try:
        given = given.get("result") or given
        given = given.get("profile") or given
        pieces = [
            TimedPiece(**{**each, "nodes": tuple(NodeOrigin(**n) for n in each["nodes"])})
            for each in given["pieces"]
        ]
        return Profile(given["file"], given["seconds"], given["calls"], tuple(pieces))
    except (AttributeError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise LoadError(
            f"this is no profile: {why}\n  instead: what lostwax profile --json prints"
        ) from error


# ---------------------------------------------------------------------------------------- as text


def write_profile(profile: Profile, kinds: Sequence[str] = KINDS, most: int = 12) -> str:
    """The groups as tables."""
    unit = _choose_unit(profile.seconds)
    whole = f"{unit.write(profile.seconds)} {unit.name} a call"
    lines = [f"{profile.title}: {whole}, the median of {profile.calls}"]
    for kind in kinds:
        lines += ["", *_table(kind, profile.group(kind), unit, most)]
    return "\n".join(lines)


def _table(kind: str, groups: Sequence[TimedGroup], unit: TimeUnit, most: int) -> list[str]:
    shown = groups[:most]
    rows = [(unit.name, "share", "count", "bytes", "delegate", f"by {kind}")]
    rows += [
        (unit.write(g.seconds), f"{g.share:.1%}", str(g.count), _size(g.bytes), g.delegate, g.name)
        for g in shown
    ]
    left = groups[most:]
    if left:
        rest = sum(g.seconds for g in left), sum(g.share for g in left), len(left)
        rows.append((unit.write(rest[0]), f"{rest[1]:.1%}", "", "", "", f"({rest[2]} more)"))
    return _align(rows, right=4)


def _align(rows: Sequence[Sequence[str]], right: int) -> list[str]:
    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])] or [0]
    widths = {at: max(len(row[at]) for row in rows) for at in kept}
    return [
        "  ".join(
            row[at].rjust(widths[at]) if at < right else row[at].ljust(widths[at]) for at in kept
        ).rstrip()
        for row in rows
    ]


class TimeUnit(NamedTuple):
    """In what times are told: so that a call has figures to tell."""

    name: str
    seconds: float

    def write(self, seconds: float, sign: str = "") -> str:
        return f"{seconds / self.seconds:{sign}.3f}"


def _choose_unit(seconds: float) -> TimeUnit:
    return TimeUnit("ms", 1e-3) if seconds >= 1e-3 else TimeUnit("µs", 1e-6)


def _size(count: int) -> str:
    return f"{count:,}" if count else ""


# ----------------------------------------------------------------------------------------- beside


def compare_profiles(one: Profile, other: Profile) -> dict[str, list[dict[str, Any]]]:
    """The groups of two profiles beside each other, what changed most first."""
    found = {}
    for kind in KINDS:
        sides = [{g.name: g.seconds for g in profile.group(kind)} for profile in (one, other)]
        rows: list[dict[str, Any]] = [
            {"name": name, "old": sides[0].get(name, 0.0), "new": sides[1].get(name, 0.0)}
            for name in {**sides[0], **sides[1]}
        ]
        found[kind] = sorted(rows, key=lambda row: -abs(row["new"] - row["old"]))
    return found


def write_comparison(
    one: Profile, other: Profile, kinds: Sequence[str] = KINDS, most: int = 12
) -> str:
    """What changed from one profile to the other, as tables."""
    unit = _choose_unit(max(one.seconds, other.seconds))
    ratio = f"{other.seconds / one.seconds:.2f}x" if one.seconds else ""
    lines = [
        f"{one.title}: {unit.write(one.seconds)} {unit.name} a call",
        f"{other.title}: {unit.write(other.seconds)} {unit.name} a call, {ratio}",
    ]
    found: Mapping[str, list[dict[str, Any]]] = compare_profiles(one, other)
    for kind in kinds:
        rows = [(f"old {unit.name}", f"new {unit.name}", "change", f"by {kind}")]
        for row in found[kind][:most]:
            old, new = row["old"], row["new"]
            change = unit.write(new - old, "+")
            rows.append((unit.write(old), unit.write(new), change, row["name"]))
        lines += ["", *_align(rows, right=3)]
    return "\n".join(lines)
