"""What a bring-up run found: numbers of probes, the chip file, and the report for people."""

import json
import statistics

TOOLS = ["synccheck", "racecheck", "memcheck"]


def reduce(how, rows):
    """What a probe's numbers mean. `rows` has a list for each run."""
    middle = [statistics.median(column) for column in zip(*rows)]
    kind, out = how["kind"], {}
    if kind == "line":
        counts = how["counts"]
        out[how["each"]] = round((middle[len(counts) - 1] - middle[len(counts) - 2]) / (counts[-1] - counts[-2]), 3)
        out[how["first"]] = round(middle[0], 1)
        if "ctas" in how:
            # Bytes a nanosecond of all CTAs.
            out["gb_per_s"] = round(how["ctas"] * how["bytes"] / out[how["each"]], 1) if out[how["each"]] else 0.0
        elif "bytes" in how:
            out["bytes_per_clk"] = round(how["bytes"] / out[how["each"]], 2) if out[how["each"]] else 0.0
    elif kind == "spread":
        unit = how["unit"]
        numbers = sorted(v for v in middle if v)
        at = lambda share: numbers[min(len(numbers) - 1, int(share * len(numbers)))]
        if numbers:
            out = {f"min_{unit}": numbers[0], f"p10_{unit}": at(0.1), f"median_{unit}": statistics.median(numbers)}
            out.update({f"p90_{unit}": at(0.9), f"max_{unit}": numbers[-1], "samples": len(numbers)})
        if "per" in how and numbers:
            groups = [middle[i : i + how["per"]] for i in range(0, len(middle), how["per"])]
            out[f"median_by_sm_{unit}"] = [statistics.median(g) for g in groups]
            halves = [statistics.median(sorted(g)[: len(g) // 2]) for g in groups], [statistics.median(sorted(g)[len(g) // 2 :]) for g in groups]
            out[f"near_half_{unit}"], out[f"far_half_{unit}"] = (statistics.median(h) for h in halves)
    elif kind == "columns":
        names = how["names"]
        for i, name in enumerate(names):
            values = [v for row in rows for v in row[i :: len(names)]]
            out[name] = statistics.median(values)
            if len(values) > len(rows):
                at = sorted(values)
                out["p10_" + name], out["p90_" + name] = at[len(at) // 10], at[len(at) * 9 // 10]
    elif kind == "turnover":
        gaps, starts = [], []
        for row in rows:
            ctas = [row[i : i + 4] for i in range(0, len(row), 4)]
            sms = {}
            for cta in ctas:
                sms.setdefault(cta[0], []).append(cta)
            for list_ in sms.values():
                list_.sort(key=lambda cta: cta[1])
                gaps += [b[1] - a[2] for a, b in zip(list_, list_[1:])]
            first = [list_[0][3] for list_ in sms.values()]
            starts.append(max(first) - min(first))
        gaps = sorted(gaps) or [0]
        out = {"end_to_start_clk": statistics.median(gaps), "min_clk": gaps[0], "p10_clk": gaps[len(gaps) // 10]}
        out.update({"p90_clk": gaps[len(gaps) * 9 // 10], "max_clk": gaps[-1], "first_ctas_ns": statistics.median(starts)})
    elif kind == "clock":
        out["sm_clock_mhz"] = round(1000 * middle[0] / middle[1], 1) if middle[1] else 0.0
    elif kind == "gaps":
        gaps, waits = [], []
        for row in rows:
            launches = [row[i : i + 3] for i in range(0, len(row), 3)]
            gaps += [b[0] - a[2] for a, b in zip(launches, launches[1:])]
            waits += [b[1] - a[2] for a, b in zip(launches, launches[1:])]
        out = {"end_to_start_ns": statistics.median(gaps), "end_to_work_ns": statistics.median(waits)}
        out.update({"end_to_work_min_ns": min(waits), "end_to_work_max_ns": max(waits)})
    else:
        raise ValueError(f"the pack reduces a probe by `{kind}`, which this program does not know")
    return out


def chip_file(report):
    """The probes' numbers as TOML, each with its source."""
    clock = next((p["values"]["sm_clock_mhz"] for p in report["probes"] if "sm_clock_mhz" in p.get("values", {})), 0.0)
    name = report["gpu"]["name"].replace('"', "'")
    lines = [
        f"# Measured by bring-up on {name}, {report['started']}; pack {report['pack']['commit']}.",
    ]
    if report["emulated"]:
        lines.append("# An emulated driver: these times mean nothing.")
    lines += [
        "[chip]",
        f'name = "{name}"',
        f'target = "{report["target"]}"',
        f"emulated = {str(report['emulated']).lower()}",
        f"sms = {report['gpu']['sms']}",
        f"l2_bytes = {report['gpu']['l2_bytes']}",
        f"max_sm_clock_khz = {report['gpu']['clock_khz']}",
        f"memory_clock_khz = {report['gpu']['memory_clock_khz']}",
        f"memory_bus_bits = {report['gpu']['memory_bus_bits']}",
    ]
    for one in report["probes"]:
        if one["verdict"] == "ok":
            lines += ["", f"[{one['name']}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in one["values"].items()]
            lines += [f'source = "probe {one["name"]}"', f"sm_clock_mhz_of_the_run = {clock}", f'date = "{report["started"][:10]}"']
    return "\n".join(lines) + "\n"


def page(report):
    """The report for people, in Markdown."""
    gpu, pack = report["gpu"], report["pack"]
    cases = [case for step in report["steps"] for case in step["cases"]]
    count = lambda verdict: sum(case["verdict"] == verdict for case in cases)
    lines = [f"# Bring-up of {report['target']} on {gpu['name']}", ""]
    if report["emulated"]:
        lines += ["**An emulated driver, no GPU: results count, times mean nothing.**", ""]
    if pack["planted"]:
        lines += [f"**A mistake was planted in {pack['planted']} when this pack was built.**", ""]
    if not report["finished"]:
        lines += ["**Not finished.**", ""]
    lines += [f"{count('ok')} of {len(cases)} kernels as the emulator has them, {count('failed')} failed, {count('not run')} not run.", ""]
    rows = [
        ("driver", f"CUDA {gpu['cuda']}" + (f", {report['nvidia_smi'].get('driver_version')}" if report["nvidia_smi"] else "")),
        ("SMs", gpu["sms"]),
        ("memory", f"{gpu['memory_bytes'] / 1e9:.1f} GB"),
        ("clocks", f"SM up to {gpu['clock_khz'] / 1000:g} MHz, memory {gpu['memory_clock_khz'] / 1000:g} MHz"),
        ("pack", f"silumin {pack['silumin']}, {pack['commit']}, {pack['size']}"),
        ("started", report["started"]),
        ("launches back to back", report["launches"]),
        ("tools", report["tools"] if isinstance(report["tools"], str) else ", ".join(f"{n}: {t if isinstance(t, str) else 'there'}" for n, t in report["tools"].items())),
    ]
    lines += ["| | |", "|---|---|"] + [f"| {a} | {b} |" for a, b in rows] + [""]
    failed = [(step, case) for step in report["steps"] for case in step["cases"] if case["verdict"] == "failed"]
    if failed:
        lines += ["## What failed", ""]
        for step, case in failed:
            knobs = "; ".join(f"{k} = {v}" for k, v in case["knobs"].items()) or "all auto"
            lines += [f"### {case['id']}: step {step['number']}, {step['title']}", "", f"{case['problem']}, {knobs}", ""]
            lines += [f"* {line}" for line in case["says"]] + [f"* afterwards the GPU is {case['gpu_afterwards']}"] * ("gpu_afterwards" in case) + [""]
    lines += ["## Steps", "", "| | problem | knobs | once | back to back | us | " + " | ".join(TOOLS) + " | instrumented |"]
    lines += ["|" + "---|" * (7 + len(TOOLS))]
    for step in report["steps"]:
        lines.append(f"| **{step['number']}** | **{step['title']}** |" + " |" * (5 + len(TOOLS)))
        for case in step["cases"]:
            knobs = "; ".join(f"{k} = {v}" for k, v in case["knobs"].items())
            ran = lambda name: case.get(name, {}).get("result", "not run")
            us = case.get("loop", {}).get("us_per_launch", "")
            results = " | ".join(ran(name) for name in [*TOOLS, "instrumented"])
            lines.append(f"| {case['id']} | {case['problem']} | {knobs} | {ran('once')} | {ran('loop')} | {us} | {results} |")
    if report["probes"]:
        lines += ["", "## Probes", ""]
        for one in report["probes"]:
            values = ", ".join(f"{key} {value}" for key, value in one.get("values", {}).items())
            lines.append(f"* `{one['name']}`: {values or one['verdict'] + ' ' + one.get('text', '')} ({one['about']})")
    return "\n".join(lines) + "\n"
