#!/usr/bin/env python3
"""Tries a pack of kernels on the GPU of this machine, from the simplest to the rarest, and says what fails and what that tells.

    python3 PACK/bring_up.py [--out FOLDER] [--launches N] [--only 1,5] [--from 5] [--seconds N]

Needs Python 3.8, an NVIDIA driver and nothing else. Each kernel runs in processes of its own, which end after --seconds: once; then
--launches times back to back, every result compared on the GPU; then, if they are on this machine, under compute-sanitizer and
assembled by ptxas with its checks of tensor memory. Probes at the end measure the chip.

Writes FOLDER/report.json, which is rewritten after every kernel and is what to send us, FOLDER/report.md for people, and
FOLDER/CHIP.measured.toml with what the probes measured.

Exit status: 0 all as the emulator has it, 1 something failed, 2 bad input or no GPU that the pack is for.
"""

import argparse
import datetime
import difflib
import glob
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import on_gpu  # noqa: E402
import run  # noqa: E402
from page import TOOLS, chip_file, page, reduce  # noqa: E402

FORMAT = 1
CHIPS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a", (11, 0): "sm_110a", (12, 0): "sm_120a", (12, 1): "sm_121a"}
FOUND = 86  # what compute-sanitizer exits with when it has found something
TENSOR_MEMORY_CHECK = "--g-tensor-memory-access-check"


def child(args):
    """The process that uses the driver; its last line has the result."""
    pack = args.pack
    try:
        if args.child == "identify":
            found = on_gpu.identify()
        elif args.child == "check":
            found = on_gpu.check(pack)
        elif args.child == "probe":
            found = on_gpu.probe(pack, pack / args.file, args.launches)
        else:
            found = on_gpu.launch(pack, pack / args.file, args.launches, args.image)
    except (run.Failure, OSError, KeyError, ValueError, on_gpu.struct.error) as e:
        found = {"result": "error", "text": f"{e}" if isinstance(e, run.Failure) else f"{type(e).__name__}: {e}"}
    print("RESULT " + json.dumps(found), flush=True)
    return 1 if found["result"] == "error" else 0


# ---- all of them ------------------------------------------------------------------------------------------------------


class Runner:
    """Starts processes and remembers what they said."""

    def __init__(self, args):
        self.args = args

    def start(self, what, *more, before=(), seconds=None):
        """Runs a process of this program; its result, or what became of it."""
        command = [*before, sys.executable, str(pathlib.Path(__file__).resolve()), "--child", what]
        command += [str(m) for m in more]
        seconds = seconds or self.args.seconds
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return self.stop(process, seconds)
        except KeyboardInterrupt:
            self.stop(process, seconds)
            raise
        found = {"result": "crash", "text": f"the process ended with status {process.returncode}"}
        lines = said.splitlines()
        for line in lines:
            if line.startswith("RESULT "):
                found = json.loads(line[7:])
        rest = [line for line in lines if not line.startswith(("RESULT ", "PROGRESS "))]
        if found["result"] in ("crash", "error") or process.returncode == FOUND:
            found["said"] = rest[-40:]
        found["status"] = process.returncode
        found["seconds"] = round(time.perf_counter() - started, 2)
        return found

    @staticmethod
    def stop(process, seconds):
        """Ends a process that takes too long, with all that it started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        said, stuck = "", ""
        try:
            said, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            stuck = "; the process cannot be ended: the driver is stuck"
        progress = [line for line in (said or "").splitlines() if line.startswith("PROGRESS ")]
        where = f" after {progress[-1].split()[1]} good launches" if progress else ", before the first launch"
        return {"result": "hang", "text": f"not done after {seconds:g} s{where}{stuck}", "seconds": seconds}


def damaged(pack, files):
    """Names of files that are not as they were built."""
    for name, (crc, size) in files.items():
        try:
            data = (pack / name).read_bytes()
        except OSError:
            yield f"{name} (cannot be read)"
            continue
        if len(data) != size or zlib.crc32(data) != crc:
            yield name


def find(program):
    """A tool of CUDA's: on the PATH, or where toolkits are installed."""
    found = shutil.which(program)
    places = sorted(glob.glob(f"/usr/local/cuda*/bin/{program}"), reverse=True)
    return found or (places[0] if places else None)


def said_by(command):
    """The output of a command, or nothing."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def tools():
    """The tools of this machine; why one is not there."""
    out = {}
    sanitizer = find("compute-sanitizer")
    out["compute-sanitizer"] = {"path": sanitizer, "version": said_by([sanitizer, "--version"]).splitlines()[-1:]} if sanitizer else None
    ptxas = find("ptxas")
    known = bool(ptxas) and TENSOR_MEMORY_CHECK in said_by([ptxas, "--help"])
    out["ptxas"] = {"path": ptxas, "version": said_by([ptxas, "--version"]).splitlines()[-1:], "checks_tensor_memory": known} if ptxas else None
    return out


def machine():
    """What nvidia-smi says of the first GPU, if it is there."""
    keys = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,mig.mode.current,ecc.mode.current,pstate"
    if not shutil.which("nvidia-smi"):
        return None
    line = said_by(["nvidia-smi", "--id=0", f"--query-gpu={keys}", "--format=csv,noheader"])
    values = [value.strip() for value in line.split(",")]
    return dict(zip(keys.split(","), values)) if len(values) == keys.count(",") + 1 else {"said": line[:500]}


class BringUp:
    """All steps on one chip, and the report."""

    def __init__(self, args, pack, gpu, target):
        self.args, self.runner = args, Runner(args)
        self.chip = pack["chips"][target]
        self.tools = {} if args.no_tools else tools()
        self.scratch = args.out / "instrumented"
        self.report = {
            "format": FORMAT,
            "pack": {key: pack[key] for key in ("silumin", "commit", "built_unix_s", "size", "planted")},
            "target": target,
            "gpu": gpu,
            "emulated": gpu["emulated"],
            "nvidia_smi": machine() if not gpu["emulated"] else None,
            "tools": "not asked for" if args.no_tools else {n: t or "not there" for n, t in self.tools.items()},
            "host": {"system": platform.system(), "machine": platform.machine(), "python": platform.python_version()},
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "launches": args.launches,
            "seconds_per_process": args.seconds,
            "steps": [],
            "probes": [],
            "finished": False,
        }
        self.health = ["check"]

    def save(self):
        """Writes both reports: whole, or the ones before."""
        self.args.out.mkdir(parents=True, exist_ok=True)
        for name, text in (("report.json", json.dumps(self.report, indent=1) + "\n"), ("report.md", page(self.report))):
            new = self.args.out / f".{name}"
            new.write_text(text)
            os.replace(new, self.args.out / name)

    def say(self, text):
        print(text, flush=True)

    def healthy(self):
        """Whether the GPU still runs what it ran before; it may need some seconds after a process was ended."""
        for wait in (0, 5, 15):
            time.sleep(wait if not self.report["emulated"] else 0)
            if self.runner.start(*self.health)["result"] == "ok":
                return True
        return False

    def case(self, case):
        """All runs of one kernel."""
        args, file = self.args, case["file"]
        out = {key: case[key] for key in ("id", "problem", "gate", "knobs", "settled", "adds")}
        out["once"] = self.runner.start("launch", file, "--launches", 1)
        if out["once"]["result"] == "ok":
            out["loop"] = self.runner.start("launch", file, "--launches", args.launches, seconds=args.loop_seconds)
        else:
            out["loop"] = {"result": "not run", "text": "a single launch failed"}
        for tool in TOOLS:
            out[tool] = self.sanitize(tool, file)
            if tool == "racecheck" and case["racecheck"] and out[tool]["result"] == "findings":
                out[tool].update(result="known findings", text=case["racecheck"])
        out["instrumented"] = self.instrument(case)
        return out

    def sanitize(self, tool, file):
        """One launch under compute-sanitizer."""
        sanitizer = self.tools.get("compute-sanitizer")
        if not sanitizer:
            return {"result": "not there"} if not self.args.no_tools else {"result": "not asked for"}
        before = [sanitizer["path"], "--tool", tool, "--error-exitcode", str(FOUND)]
        found = self.runner.start("launch", file, "--launches", 1, before=before, seconds=self.args.tool_seconds)
        if found["result"] == "hang":
            found["result"] = "not finished"
        elif found.get("status") == FOUND:
            found["result"], found["text"] = "findings", f"compute-sanitizer {tool} found something"
        return found

    def instrument(self, case):
        """One launch of machine code in which ptxas checks every access to tensor memory."""
        if self.args.no_tools:
            return {"result": "not asked for"}
        ptxas = self.tools.get("ptxas")
        if not ptxas:
            return {"result": "not there"}
        if not ptxas["checks_tensor_memory"]:
            return {"result": "not there", "text": f"this ptxas does not know {TENSOR_MEMORY_CHECK}"}
        source = self.args.pack / json.loads((self.args.pack / case["file"]).read_text())["ptx"]
        if b"tcgen05." not in source.read_bytes():
            return {"result": "does not apply", "text": "the kernel has no tensor memory"}
        self.scratch.mkdir(parents=True, exist_ok=True)
        image = self.scratch / f"{case['id']}.cubin"
        command = [ptxas["path"], "-arch", self.report["target"], TENSOR_MEMORY_CHECK, str(source), "-o", str(image)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode:
            return {"result": "error", "text": "ptxas: " + done.stdout.strip()[:2000]}
        return self.runner.start("launch", case["file"], "--launches", 1, "--image", image, seconds=self.args.tool_seconds)

    def steps(self):
        """All steps, one after the other, as far as the GPU goes along."""
        chosen = [s for s in self.chip["steps"] if s["number"] >= self.args.start]
        chosen = [s for s in chosen if not self.args.only or s["number"] in self.args.only]
        alive = True
        for step in chosen:
            out = {key: step[key] for key in ("number", "title", "assumption")}
            out["cases"] = []
            self.report["steps"].append(out)
            for case in step["cases"]:
                if not alive:
                    out["cases"].append({**{k: case[k] for k in ("id", "problem", "gate", "knobs", "settled", "adds")}, "verdict": "not run"})
                    continue
                found = self.case(case)
                judged(step, case, found)
                out["cases"].append(found)
                self.say(f"{case['id']:4} {found['verdict']:7} {case['problem']}{'; ' + case['adds'] if case['adds'] else ''}")
                for line in found.get("says", []):
                    self.say(f"     {line}")
                if found["verdict"] == "failed":
                    alive = self.healthy()
                    found["gpu_afterwards"] = "healthy" if alive else "runs nothing any more"
                    if not alive:
                        self.say("     the GPU runs nothing any more: reset it (nvidia-smi --gpu-reset, or start the machine anew),")
                        self.say(f"     then go on behind this step: --from {step['number'] + 1}")
                elif step["number"] == 1 and self.health == ["check"]:
                    self.health = ["launch", case["file"], "--launches", 1]
                self.save()
            verdicts = [case["verdict"] for case in out["cases"]]
            out["verdict"] = "failed" if "failed" in verdicts else "not run" if "not run" in verdicts else "ok"
            self.save()
        return alive

    def probes(self):
        """The probes asked for; their numbers."""
        for one in self.chip["probes"]:
            if self.args.probes and one["name"] not in self.args.probes:
                continue
            found = self.runner.start("probe", one["file"], "--launches", self.args.repeats)
            out = {"name": one["name"], "about": one["about"], "verdict": found["result"]}
            if found["result"] == "ok":
                out["values"] = reduce(one["reduce"], found["rows"])
            else:
                out["text"] = found.get("text", "")
                out["said"] = found.get("said", [])
            values = ", ".join(f"{k} {v:g}" for k, v in out.get("values", {}).items() if isinstance(v, (int, float)))
            self.say(f"probe {one['name']}: {values or out['verdict'] + ' ' + out.get('text', '')}")
            self.report["probes"].append(out)
            self.save()
            if found["result"] in ("hang", "crash") and not self.healthy():
                self.say("the GPU runs nothing any more: the other probes are left out")
                break


def judged(step, case, found):
    """Adds the verdict on a case, and what a failure says of the assumption."""
    says = []
    assumption = case["adds"] or step["assumption"]
    once, loop = found["once"]["result"], found["loop"]["result"]
    if once != "ok":
        says.append(f"one launch: {once}: {found['once'].get('text', '')}")
        says.append(f"it tests: {assumption}")
        says.append(f"look first at: {step['look']}")
    elif loop != "ok":
        says.append(f"back to back: {loop}: {found['loop'].get('text', '')}")
        says.append(f"it tests, one launch being right: {assumption}")
        says.append(f"look first at: {step['look_loop']}")
    for name in [*TOOLS, "instrumented"]:
        if found[name]["result"] == once != "ok":
            continue  # The tool has nothing to add.
        if found[name]["result"] in ("findings", "wrong", "error", "crash"):
            says.append(f"{name}: {found[name]['result']}: {found[name].get('text', '')}")
            if once == loop == "ok":
                says.append(f"it tests: {assumption}")
        elif found[name]["result"] in ("hang", "not finished"):
            says.append(f"{name}: not finished in {found[name]['seconds']:g} s, which says nothing of the kernel")
    if says and case["avoid"]:
        says.append(f"these knob values avoid it: {case['avoid']}")
    tooled = any(found[n]["result"] in ("findings", "wrong", "error", "crash") for n in [*TOOLS, "instrumented"])
    found["verdict"] = "failed" if once != "ok" or loop != "ok" or tooled else "ok"
    if says:
        found["says"] = says


def refuse(capability, name, pack):
    """Why this GPU is not for this pack, and what would be needed."""
    has = ", ".join(pack["chips"])
    number = f"{capability[0]}.{capability[1]}"
    target = CHIPS.get(tuple(capability))
    if target:
        return f"{name} (compute capability {number}) takes kernels for {target}, and the pack has {has}: build one with `--arch {target}`"
    if tuple(capability) == (10, 1):
        return f"{name} has compute capability {number} under this driver; one of CUDA 13.0 or newer has 11.0 for it, and takes kernels for sm_110a"
    known = ", ".join(f"{chip} ({major}.{minor})" for (major, minor), chip in CHIPS.items())
    need = "TMA, which compute capability 9.0 is the first to have" if capability[0] < 9 else "a silumin with a target for it"
    return f"{name} has compute capability {number}, and silumin has no kernels for it: they need {need}; the chips it knows are {known}"


def numbers(text):
    """Step numbers with commas."""
    return [int(part) for part in text.split(",") if part]


def names(text):
    """Names with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bring-up-report"), help="where the reports go")
    parser.add_argument("--launches", type=int, default=1000, help="launches back to back of each kernel")
    parser.add_argument("--only", type=numbers, default=[], help="numbers of the steps to take, with commas")
    parser.add_argument("--from", type=int, default=1, dest="start", help="the first step to take")
    parser.add_argument("--seconds", type=float, default=60, help="a process that takes longer is ended")
    parser.add_argument("--loop-seconds", type=float, default=300, help="the same for launches back to back")
    parser.add_argument("--tool-seconds", type=float, default=300, help="the same under compute-sanitizer and instrumented")
    parser.add_argument("--repeats", type=int, default=20, help="runs of each probe; their median counts")
    parser.add_argument("--no-tools", action="store_true", help="without compute-sanitizer and ptxas")
    parser.add_argument("--probes", type=names, default=[], help="names of the probes to take, with commas")
    parser.add_argument("--no-probes", action="store_true", help="without probes")
    for name in ("--child", "--image"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("file", nargs="?", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.pack = pathlib.Path(__file__).resolve().parent
    if args.child:
        return child(args)
    if args.launches < 1 or args.repeats < 1:
        parser.error("--launches and --repeats are at least 1")
    if args.probes and args.no_probes:
        parser.error("--probes and --no-probes exclude each other")
    try:
        pack = json.loads((args.pack / "pack.json").read_text())
    except (OSError, ValueError) as e:
        print(f"{args.pack / 'pack.json'}: {e}; run the bring_up.py that lies in a pack (book/src/bring-up.md)", file=sys.stderr)
        return 2
    if pack["format"] != FORMAT:
        print(f"the pack has form {pack['format']}, this program reads {FORMAT}: take the bring_up.py of the pack", file=sys.stderr)
        return 2
    bad = list(damaged(args.pack, pack["files"]))
    if bad:
        print(f"{len(bad)} files are not as they were built: {', '.join(bad[:5])}; carry the pack here again", file=sys.stderr)
        return 2
    runner = Runner(args)
    found = runner.start("identify")
    if found["result"] != "ok":
        print(f"no GPU: {found.get('text', '')}", file=sys.stderr)
        return 2
    gpu = found["gpu"]
    target = CHIPS.get(tuple(gpu["capability"]))
    if target not in pack["chips"]:
        print(refuse(gpu["capability"], gpu["name"], pack), file=sys.stderr)
        return 2
    known = [one["name"] for one in pack["chips"][target]["probes"]]
    unknown = [name for name in args.probes if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 3, 0.4)
        print(f"the pack has no probe `{unknown[0]}` for {target}; near it: {', '.join(near) or 'none'}; pack.json has all", file=sys.stderr)
        return 2
    bring_up = BringUp(args, pack, gpu, target)
    print(f"{gpu['name']}, {gpu['sms']} SMs, CUDA {gpu['cuda']}: steps for {target}", flush=True)
    if gpu["emulated"]:
        print("an emulated driver: results count, times mean nothing", flush=True)
    first = runner.start("check")
    bring_up.report["check"] = first
    if first["result"] != "ok":
        print(f"the driver does not even compare two buffers: {first.get('text', '')}", file=sys.stderr)
        bring_up.save()
        return 1
    try:
        alive = bring_up.steps()
        if alive and not args.no_probes:
            bring_up.probes()
        bring_up.report["finished"] = alive
    except KeyboardInterrupt:
        print("interrupted: the report has what was done", file=sys.stderr)
    bring_up.save()
    if bring_up.report["probes"]:
        (args.out / f"{target}.measured.toml").write_text(chip_file(bring_up.report))
    cases = [case for step in bring_up.report["steps"] for case in step["cases"]]
    good = sum(case["verdict"] == "ok" for case in cases)
    probes = [one["verdict"] == "ok" for one in bring_up.report["probes"]]
    print(f"{good} of {len(cases)} kernels as the emulator has them, {sum(probes)} of {len(probes)} probes; {args.out / 'report.json'} is what to send us")
    return 0 if good == len(cases) and all(probes) and bring_up.report["finished"] else 1


if __name__ == "__main__":
    sys.exit(main())
