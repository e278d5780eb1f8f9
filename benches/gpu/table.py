#!/usr/bin/env python3
"""Joins rows of the GPU harness with those of the peers' script into a table for book/src/measurements.md.

    table.py OURS.json PEERS.json [OURS.json PEERS.json ...] [--against SUBSTRING] [--format FORMAT]

Each pair of files is of one call, one after the other on the same GPU. The ratio is formed within each pair, and the
table has the median over the pairs. OURS is what `--json` wrote: the fastest right row of each shape counts. PEERS is
{name: {M, N, K, rows: {peer: {us, tflops, err, cfg}}}}; peers whose name says `alone` do less than the problem and do
not count as the best. A ratio is ours over theirs: under 1 is faster. Only peers that compute what the format does are compared:
see SAME. --best writes the fastest knobs of each shape as a list for `--sweep`. --against keeps peers whose name has the text; --format keeps rows of one format where OURS has several.
"""
import argparse
import json
import math
import statistics
import sys

# Which peers do the same work as a format of ours, by a part of their names.
SAME = {
    "bf16": ("cublas 2 gemms", "cublas 1 gemm + silu", "triton fused", "quack gated"),
    "f16": ("cublas 2 gemms", "cublas 1 gemm + silu", "triton fused", "quack gated"),
    "e4m3": ("cublas fp8",),
    "nvfp4w": ("quack w4a16",),
    "nvfp4w_repacked": ("quack w4a16",),
}


def best(rows, name, sizes, format_name):
    """Our fastest right row of a shape."""
    mine = [
        row
        for row in rows
        if row["status"] == "ok" and row["us"] and [row["m"], row["n"], row["k"]] == sizes
        and row["format"] == format_name and ":" not in row["shape"]
    ]
    return min(mine, key=lambda row: row["us"], default=None)


def peers_of(entry, format_name, against):
    """Peers of a shape that do the same, fastest first."""
    parts = [against] if against else SAME.get(format_name, ("",))
    rows = [
        (row["us"], peer)
        for peer, row in entry["rows"].items()
        if "alone" not in peer and any(part in peer for part in parts)
    ]
    return sorted(rows)


def geomean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else math.nan


def table(pairs, format_name, against):
    """The table of one format, as lines."""
    lines = [
        f"| {format_name}: M x N x K | ours, us | TFLOP/s | floor, us | of floor | best peer, us | which | ours / best | error | knobs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    names = [name for name in pairs[0][1] if not name.startswith("_")]
    for name in names:
        entry = pairs[0][1][name]
        sizes = [entry["M"], entry["N"], entry["K"]]
        found = []
        for ours, peers in pairs:
            mine = best(ours["rows"], name, sizes, format_name)
            theirs = peers_of(peers[name], format_name, against) if name in peers else []
            if mine and theirs:
                found.append((mine["us"] / theirs[0][0], mine, theirs[0]))
        if not found:
            continue
        ratio = statistics.median(ratio for ratio, _, _ in found)
        ratios.append(ratio)
        # The pair that the median is of, or is next to.
        _, mine, (us, peer) = min(found, key=lambda item: abs(item[0] - ratio))
        spread = f" ({min(r for r, _, _ in found):.3f} to {max(r for r, _, _ in found):.3f})" if len(found) > 1 else ""
        floor = mine.get("floor_us")
        lines.append(
            f"| {' x '.join(map(str, sizes))} | {mine['us']:.1f} | {mine['tflops']:.0f} | "
            + (f"{floor:.1f} | {floor / mine['us']:.0%}" if floor else "- | -")
            + f" | {us:.1f} | {peer} | {ratio:.3f}{spread} | {mine['error']['frobenius']:.2e} | `{mine['knobs'] or 'auto'}` |"
        )
    if ratios:
        lines.append(f"| geometric mean of {len(ratios)} |  |  |  |  |  |  | {geomean(ratios):.3f} |  |  |")
    return lines if ratios else []


def load(path):
    with open(path) as file:
        return json.load(file)


def list_best(documents):
    """The fastest right knobs of each shape, over all files, as lines for `--sweep`."""
    rows = [row for document in documents for row in document["rows"] if row["status"] == "ok" and row["us"]]
    fastest = {}
    for row in rows:
        key = (row["format"], row["shape"])
        if key not in fastest or row["us"] < fastest[key]["us"]:
            fastest[key] = row
    for (format_name, shape), row in fastest.items():
        print(f"{shape}: {row['knobs']}  # {format_name}, {row['us']:.2f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--against")
    parser.add_argument("--format")
    parser.add_argument("--best", action="store_true", help="FILES are all OURS.json")
    flags = parser.parse_args()
    if flags.best:
        list_best([load(path) for path in flags.files])
        return 0
    if len(flags.files) % 2:
        parser.error("files come in pairs: OURS.json PEERS.json")
    documents = [load(path) for path in flags.files]
    pairs = list(zip(documents[::2], documents[1::2]))
    machine = pairs[0][0]["machine"]
    print(f"{machine['device']}, {machine['sms']} SMs, reads {machine['read_gbytes']:.0f} GB/s; {len(pairs)} run(s)\n")
    formats = list(dict.fromkeys(row["format"] for ours, _ in pairs for row in ours["rows"]))
    shown = False
    for format_name in formats:
        if flags.format in (None, format_name):
            lines = table(pairs, format_name, flags.against)
            print("\n".join(lines + [""]) if lines else f"{format_name}: no shape that both have\n")
            shown = shown or bool(lines)
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
