"""Runs on the emulated GPU, and predicted times."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _native
from ._errors import ArgumentError, LaunchError
from ._host import kind
from ._kernel import Kernel
from ._launch import Launch, RawLaunch, encode, integer, launch_of, with_arrays

Schedule = Union[str, int]


@dataclass(frozen=True)
class Finding:
    """What is wrong with a kernel, and where."""

    # Such as RaceShared, OutOfBounds, Deadlock.
    rule: str
    # Line of the PTX, from 1; 0 if no instruction is the cause.
    line: int
    # That line.
    text: str
    # The event, with its values.
    message: str
    cta: Tuple[int, int, int]
    warp: int
    lane: Optional[int]
    # How often this rule was broken at this line.
    count: int
    shown: str = field(repr=False)

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True)
class Stats:
    """What a run did."""

    # PTX instructions, counted once per warp.
    instructions: int
    # Multiply-accumulates of the tensor cores by instruction.
    mma_macs: Dict[str, int]
    # Bytes that threads read from and wrote to global memory.
    global_read: int
    global_written: int
    # Bytes that bulk and tensor copies read and wrote.
    tma_read: int
    tma_written: int
    # Seconds that the emulator took. They say nothing of a GPU.
    seconds: float


@dataclass(frozen=True)
class Report:
    """What a run found."""

    kernel: str
    findings: List[Finding]
    # What may fail by the ISA, though published kernels do it and run.
    warnings: List[Finding]
    stats: Stats
    # Findings of other kinds or lines beyond `max_findings`.
    left_out: int
    # Whether a finding stopped the run. Arrays then hold what was written until there.
    stopped: bool
    # Bytes that nothing has written, by buffer; those without any are left out.
    unwritten: Dict[str, int]
    # Contents of buffers of a launch file after the run.
    buffers: Dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong. Warnings do not count."""
        return not self.findings

    def __str__(self) -> str:
        lines = [f"finding {i}: {f}" for i, f in enumerate(self.findings, 1)]
        lines += [f"warning {i}: {f}" for i, f in enumerate(self.warnings, 1)]
        s = self.stats
        lines.append(f"ran       {self.kernel}: {s.instructions} PTX instructions (counted once a warp)")
        lines += [f"mma       {name}: {macs} MAC" for name, macs in s.mma_macs.items()]
        lines.append(
            f"bytes     {s.global_read} read and {s.global_written} written by threads, "
            f"{s.tma_read} and {s.tma_written} by bulk and tensor copies"
        )
        if self.stopped:
            lines.append("partial   a finding stopped the run: arrays hold what was written until there, and are no result")
        n = len(self.findings)
        more = f", and {self.left_out} of other kinds or lines" if self.left_out else ""
        lines.append("no finding" if n == 0 else f"{n} finding{'s' if n > 1 else ''}{more}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a launch, or of all launches of a kernel. Nothing in it is measured."""

    # Predicted time of a launch in a stream of launches, in microseconds.
    us: float
    # The range: the same with the uncertain numbers of the chip at their ends. Without a range, all three are equal.
    low: float
    high: float
    # What takes most of the critical path.
    bound_by: str
    # The critical path in microseconds by cause. The parts add up to `us`.
    breakdown: Dict[str, float]
    chip: str
    clock_mhz: float
    # Used fraction of the chip's parts, 0 to 1, in the longest launch.
    use: Dict[str, float]
    # Where issue costs come from: `sass` or `table`.
    issue: str
    # Each launch, if there are several.
    launches: List["Prediction"] = field(repr=False)
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass
class _RunOptions:
    schedule: Tuple[str, int, int]
    tracking: str
    reconvergence: str
    threads: int
    max_findings: int
    time_limit: Optional[float]
    instruction_limit: Optional[int]
    memory_limit: Optional[int]
    resident: Optional[int]
    values: bool


@dataclass
class _TimeRequest:
    chip: Optional[str]
    clock: str
    what_if: List[str]
    values: bool
    warm: bool
    programmatic: bool
    range: bool
    issue: str
    time_limit: Optional[float]
    instruction_limit: Optional[int]
    memory_limit: Optional[int]


def _schedule(value: Schedule) -> Tuple[str, int, int]:
    """Kind, warp and seed."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "random", 0, integer(value, "schedule", 0, 2**64 - 1)
    match = re.fullmatch(r"(early|late|random|starve|delay)((?: \d+){0,2})", value) if isinstance(value, str) else None
    numbers = [int(n) for n in match.group(2).split()] if match else []
    when = match.group(1) if match else ""
    allowed = {"early": (0, 0), "late": (0, 0), "random": (0, 1), "starve": (1, 2), "delay": (1, 2)}
    low, high = allowed.get(when, (1, 0))
    if not low <= len(numbers) <= high:
        raise ArgumentError(
            f"schedule = {value!r}: it is early, late, a seed (an int), \"random SEED\", \"starve WARP\", \"starve WARP SEED\", or "
            "delay in the place of starve"
        )
    if when == "random":
        return when, 0, integer((numbers + [0])[0], "schedule's seed", 0, 2**64 - 1)
    warp, seed = (numbers + [0, 0])[:2]
    return when, integer(warp, "schedule's warp", 0, 2**32 - 1), integer(seed, "schedule's seed", 0, 2**64 - 1)


def _limits(time_limit: Any, instruction_limit: Any, memory_limit: Any) -> Tuple[Optional[float], Optional[int], Optional[int]]:
    if time_limit is not None and (isinstance(time_limit, bool) or not isinstance(time_limit, (int, float))):
        raise ArgumentError(f"time_limit = {time_limit!r}: it is a number of seconds above 0, such as 2.5")
    word = 2**64 - 1
    return (
        None if time_limit is None else float(time_limit),
        None if instruction_limit is None else integer(instruction_limit, "instruction_limit", 1, word),
        None if memory_limit is None else integer(memory_limit, "memory_limit", 0, word),
    )


def _name(value: Any, label: str) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{label} = {value!r}: it is a string")
    return value


def _options(
    schedule: Schedule,
    tracking: str,
    reconvergence: str,
    threads: int,
    max_findings: int,
    time_limit: Optional[float],
    instruction_limit: Optional[int],
    memory_limit: Optional[int],
    resident: Optional[int],
    values: bool,
) -> _RunOptions:
    time, instructions, memory = _limits(time_limit, instruction_limit, memory_limit)
    return _RunOptions(
        schedule=_schedule(schedule),
        tracking=_name(tracking, "tracking"),
        reconvergence=_name(reconvergence, "reconvergence"),
        threads=integer(threads, "threads", 0, 2**32 - 1),
        max_findings=integer(max_findings, "max_findings", 1, 2**32 - 1),
        time_limit=time,
        instruction_limit=instructions,
        memory_limit=memory,
        resident=None if resident is None else integer(resident, "resident", 1, 2**32 - 1),
        values=bool(values),
    )


def _arch(arch: Optional[str]) -> Optional[str]:
    if arch is not None and not (isinstance(arch, str) and re.fullmatch(r"sm_\d{2,3}[af]?", arch)):
        raise ArgumentError(f"arch = {arch!r}: it is a chip that the kernel runs on, such as \"sm_90a\" or \"sm_120a\"")
    return arch


def _text(ptx: Any) -> str:
    if isinstance(ptx, bytes):
        return ptx.decode("utf-8", "replace")
    if not isinstance(ptx, str):
        raise ArgumentError(f"ptx: {kind(ptx)}; it is the text of a PTX module, or what silumin.emit returns")
    if ".entry" not in ptx and ".version" not in ptx and len(ptx) < 4096 and os.path.exists(ptx):
        raise ArgumentError(f"ptx = {ptx!r}: it is a path; give the text, as pathlib.Path({ptx!r}).read_text()")
    return ptx


def _jobs(ptx: Any, launch: Any, arrays: Any, chip: Optional[str], writes: bool) -> List[RawLaunch]:
    """What to run, in order."""
    if isinstance(ptx, Kernel) and launch is None:
        values = ptx._arguments(arrays, writes)
        return [encode(f"{ptx.name}.ptx", ptx.ptx, each, values, chip, writes) for each in ptx.launches]
    if launch is None:
        raise ArgumentError("launch: it is missing; only a kernel of silumin.emit has launches of its own. Give a silumin.Launch")
    launch, named = with_arrays(launch_of(launch), arrays)
    if isinstance(ptx, Kernel):
        named = ptx._arguments(named, writes) if named is not None else None
        return [encode(f"{ptx.name}.ptx", ptx.ptx, launch, named, chip, writes)]
    return [encode("kernel.ptx", _text(ptx), launch, named, chip, writes)]


def _report(document: Mapping[str, Any], contents: Sequence[Optional[bytes]]) -> Report:
    def findings(name: str) -> List[Finding]:
        return [Finding(**{**f, "cta": tuple(f["cta"])}) for f in document[name]]

    buffers = document["buffers"]
    return Report(
        kernel=document["kernel"],
        findings=findings("findings"),
        warnings=findings("warnings"),
        stats=Stats(**document["stats"]),
        left_out=document["left_out"],
        stopped=document["stopped"],
        unwritten={b["name"]: b["unwritten"] for b in buffers if b["unwritten"]},
        buffers={b["name"]: data for b, data in zip(buffers, contents) if data is not None},
    )


def emulate(
    ptx: Union[str, bytes, Kernel],
    launch: Union[Launch, Mapping[str, Any], None] = None,
    arrays: Union[Mapping[str, Any], Sequence[Any], None] = None,
    *,
    arch: Optional[str] = None,
    schedule: Schedule = "early",
    tracking: str = "on",
    values: bool = True,
    reconvergence: str = "eager",
    threads: int = 0,
    max_findings: int = 20,
    time_limit: Optional[float] = None,
    instruction_limit: Optional[int] = None,
    memory_limit: Optional[int] = None,
    resident: Optional[int] = None,
) -> Report:
    """Runs PTX of any compiler on the emulated GPU, and reports what is wrong with it. Arrays are written back in place.

    Args:
        ptx: the text of a module, or a `Kernel`.
        launch: what to run. A `Kernel` has launches of its own, which all run in order if this is left out.
        arrays: all arguments as a list, if the launch has none; or a dict of those that the launch's arguments name.
        arch: the chip, if it is not the PTX's `.target`. It decides how much shared memory a CTA may have.
        schedule: when asynchronous work completes and in which order warps run: "early", "late", a seed, "starve WARP", "delay WARP".
        tracking: "on" reports races that this schedule does not show, "strict" also what published kernels omit, "off" is fastest.
        values: whether arrays are written back.
        reconvergence: "eager" or "forced": when diverged lanes run together again.
        threads: host threads; 0 is one a core.
        max_findings: findings that are kept.
        time_limit: seconds, after which the run ends with a finding that says so.
        instruction_limit: PTX instructions of a cluster, counted once per warp.
        memory_limit: bytes of host memory for clusters.
        resident: clusters that run at a time.

    Raises:
        PtxError: PTX that is malformed or not supported, with every line.
        LaunchError: a launch that a device would refuse.
        ArgumentError: an argument of this function, by its name.
    """
    options = _options(
        schedule, tracking, reconvergence, threads, max_findings, time_limit, instruction_limit, memory_limit, resident, values
    )
    reports: List[Report] = []
    for job in _jobs(ptx, launch, arrays, _arch(arch), writes=bool(values)):
        if isinstance(ptx, Kernel):
            # What an earlier launch has left.
            for buffer in job.buffers:
                if buffer.home is not None and reports and buffer.name in ptx._workspace:
                    buffer.data = buffer.home.read()
        options.values = bool(values) or isinstance(ptx, Kernel)
        text, contents = _native.emulate(job, options)
        for buffer, data in zip(job.buffers, contents):
            if buffer.home is not None and data is not None and (values or buffer.name in getattr(ptx, "_workspace", ())):
                buffer.home.write(data)
        reports.append(_report(json.loads(text), []))
        if reports[-1].stopped:
            break
    return _joined(reports)


def _joined(reports: List[Report]) -> Report:
    if len(reports) == 1:
        return reports[0]
    macs: Dict[str, int] = {}
    for report in reports:
        for name, count in report.stats.mma_macs.items():
            macs[name] = macs.get(name, 0) + count
    total = {
        name: sum(getattr(report.stats, name) for report in reports)
        for name in ("instructions", "global_read", "global_written", "tma_read", "tma_written", "seconds")
    }
    return Report(
        kernel=", ".join(report.kernel for report in reports),
        findings=[f for report in reports for f in report.findings],
        warnings=[f for report in reports for f in report.warnings],
        stats=Stats(mma_macs=macs, **total),
        left_out=sum(report.left_out for report in reports),
        stopped=any(report.stopped for report in reports),
        unwritten=reports[-1].unwritten,
    )


def emulate_file(
    path: Union[str, "os.PathLike[str]"],
    *,
    schedule: Schedule = "early",
    tracking: str = "on",
    values: bool = True,
    reconvergence: str = "eager",
    threads: int = 0,
    max_findings: int = 20,
    time_limit: Optional[float] = None,
    instruction_limit: Optional[int] = None,
    memory_limit: Optional[int] = None,
    resident: Optional[int] = None,
) -> Report:
    """Runs a launch file, as `silumin emulate` does. `Report.buffers` has the contents of its buffers after the run."""
    options = _options(
        schedule, tracking, reconvergence, threads, max_findings, time_limit, instruction_limit, memory_limit, resident, values
    )
    text, contents = _native.emulate_file(os.fspath(path), options)
    return _report(json.loads(text), contents)


def predict(
    ptx: Union[str, bytes, Kernel, "os.PathLike[str]"],
    launch: Union[Launch, Mapping[str, Any], None] = None,
    arrays: Union[Mapping[str, Any], Sequence[Any], None] = None,
    *,
    chip: Optional[str] = None,
    clock: Union[str, float] = "maximum",
    values: bool = False,
    warm: bool = False,
    range: bool = True,
    issue: str = "auto",
    what_if: Optional[Mapping[str, Union[float, str]]] = None,
    pdl: bool = False,
    time_limit: Optional[float] = None,
    instruction_limit: Optional[int] = None,
    memory_limit: Optional[int] = None,
) -> Prediction:
    """Predicts how long a launch takes on a chip, and what bounds it. No chip is needed, and nothing is measured.

    Args:
        ptx: the text of a module, a `Kernel`, or a `pathlib.Path` of a launch file.
        launch: what to run. A `Kernel` has launches of its own.
        arrays: as for `emulate`. They are not written, and a `Buffer` can stand for each. A `Kernel` needs none.
        chip: b200, b300, h200, h100, jetson_thor, rtx_5090, rtx_pro_6000, dgx_spark, or the path of a chip file. Left out, it follows from the PTX's target.
        clock: "maximum", "sustained" (under a load that lasts), or MHz.
        values: whether products are made and bytes moved, for kernels that branch on them.
        warm: whether all buffers that fit are in L2 at the start.
        range: whether to predict at the ends of the chip's ranges, too; it takes two runs more.
        issue: where issue costs come from: "auto", "sass" (machine code; needs ptxas and nvdisasm) or "table".
        what_if: numbers of the chip to change, as {"dram_rate": "*2"}.
        pdl: assume that the launch before lets this one start early.

    Raises:
        PredictionError: no time, and why.
        PtxError, LaunchError, ArgumentError: as `emulate`.
    """
    time, instructions, memory = _limits(time_limit, instruction_limit, memory_limit)
    if what_if is not None and not isinstance(what_if, Mapping):
        raise ArgumentError(f"what_if = {what_if!r}: it is a dict from names of the chip's numbers to values, as {{\"dram_rate\": \"*2\"}}")
    request = _TimeRequest(
        chip=None if chip is None else _name(chip, "chip"),
        clock=str(clock),
        what_if=[f"{name}={value}" for name, value in (what_if or {}).items()],
        values=bool(values),
        warm=bool(warm),
        programmatic=bool(pdl),
        range=bool(range),
        issue=_name(issue, "issue"),
        time_limit=time,
        instruction_limit=instructions,
        memory_limit=memory,
    )
    if isinstance(ptx, os.PathLike):
        if launch is not None or arrays is not None:
            raise LaunchError("launch: a launch file has its own; leave out `launch` and `arrays`, or give the PTX's text")
        return _prediction(json.loads(_native.predict(os.fspath(ptx), request)))
    jobs = _jobs(ptx, launch, arrays, None, writes=False)
    return _together([_prediction(json.loads(_native.predict(job, request))) for job in jobs])


def _prediction(document: Mapping[str, Any]) -> Prediction:
    p = document["prediction"]
    us = p["time"] / 1e3
    low, high = (ns / 1e3 for ns in document["range"] or (p["time"], p["time"]))
    return Prediction(
        us=us,
        low=low,
        high=high,
        bound_by=document["bound_by"] or "nothing",
        breakdown=dict(sorted(document["breakdown"].items(), key=lambda item: -item[1])),
        chip=p["chip"],
        clock_mhz=p["clock"],
        use={share["name"]: share["used"] for share in p["shares"]},
        issue=document["issue"],
        launches=[],
        text=document["text"].rstrip("\n"),
    )


def _together(parts: List[Prediction]) -> Prediction:
    if len(parts) == 1:
        return parts[0]
    breakdown: Dict[str, float] = {}
    for part in parts:
        for cause, us in part.breakdown.items():
            breakdown[cause] = breakdown.get(cause, 0.0) + us
    breakdown = dict(sorted(breakdown.items(), key=lambda item: -item[1]))
    us, low, high = (sum(getattr(part, name) for part in parts) for name in ("us", "low", "high"))
    longest = max(parts, key=lambda part: part.us)
    head = f"predicted on {longest.chip}: {us:.2f} us for {len(parts)} launches ({low:.2f} to {high:.2f})"
    return Prediction(
        us=us,
        low=low,
        high=high,
        bound_by=next(iter(breakdown), "nothing"),
        breakdown=breakdown,
        chip=longest.chip,
        clock_mhz=longest.clock_mhz,
        use=longest.use,
        issue=longest.issue,
        launches=parts,
        text="\n\n".join([head] + [part.text for part in parts]),
    )


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Entry:
    """A kernel of a PTX module."""

    name: str
    parameters: List[Parameter]
    # `.reqntid` and `.reqnctapercluster`, where the kernel has them.
    block: Optional[Tuple[int, int, int]]
    cluster: Optional[Tuple[int, int, int]]


@dataclass(frozen=True)
class Problem:
    """A line of PTX that cannot run."""

    line: int
    text: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}\n    {self.text}"


def entries(ptx: Union[str, bytes]) -> List[Entry]:
    """The kernels of a PTX module, with what they take."""
    found = []
    for kernel in json.loads(_native.inspect("kernel.ptx", _text(ptx)))["kernels"]:
        parameters = [Parameter(p["name"], p["bytes"]) for p in kernel["parameters"]]
        block, cluster = (tuple(sizes) if sizes else None for sizes in (kernel["block"], kernel["cluster"]))
        found.append(Entry(kernel["name"], parameters, block, cluster))
    return found


def check(ptx: Union[str, bytes]) -> List[Problem]:
    """Everything in a PTX module that is malformed or that the emulator does not support. Nothing runs."""
    return [Problem(**problem) for problem in json.loads(_native.check("kernel.ptx", _text(ptx)))]
