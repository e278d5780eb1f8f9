#!/usr/bin/env python3
"""Writes what `beside.py --json` measured as a file of `evidence/beside`, and prints it as a table for book/src/measurements.md.

    record.py BESIDE.json --title bf16 --formats bf16,bf16,bf16 --device "NVIDIA H200, driver 580.159.04" --date 2026-11-28 --commit 1330680d
              --out evidence/beside/h200_bf16.toml

Times are medians in us. A ratio is the median of our time over theirs, turn by turn. A contender that does not take a shape has no entry there: its
time is `nan` in the file and `-` in the table.
"""
import argparse
import json
import math
import pathlib
import statistics

# Names of `beside.py`, as the tables have them.
NAMES = {
    "cublas 2 gemms + silu + mul": "cuBLAS, 2 GEMMs + 2 kernels",
    "cublas 1 gemm + silu_mul kernel": "cuBLAS, 1 GEMM + 1 kernel",
    "triton fused": "Triton, fused",
    "triton 1 gemm + silu_mul kernel": "Triton, 1 GEMM + 1 kernel",
    "quack gated swiglu": "QuACK, gated",
    "quack w4a16 nvfp4 + silu_mul kernel": "QuACK W4A16 GEMM + 1 kernel",
    "cublas fp8 1 gemm + silu_mul kernel": "cuBLAS FP8, 1 GEMM + 1 kernel",
    "deepgemm 1 gemm + silu_mul kernel": "DeepGEMM, 1 GEMM + 1 kernel",
}
HEAD = "# Times of kernels by turns in one process (`benches/gpu/beside.py`), in us. `ratio` is the median, turn by turn, of our time over theirs."


def number(value, digits):
    return "nan" if value is None else f"{value:.{digits}f}"


def listed(values, digits):
    return f"[{', '.join(number(value, digits) for value in values)}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured")
    for name in ("title", "formats", "device", "date", "commit", "out"):
        parser.add_argument(f"--{name}", required=True)
    flags = parser.parse_args()
    shapes = json.loads(pathlib.Path(flags.measured).read_text())
    others = list(dict.fromkeys(name for shape in shapes.values() for name in shape["rows"] if name != "ours"))
    text = [HEAD] + [f'{key} = "{getattr(flags, key)}"' for key in ("title", "formats", "device", "date", "commit")]
    text.append(f"others = [{', '.join(json.dumps(NAMES.get(name, name)) for name in others)}]")
    print("| M x N x K | ours |", " | ".join(NAMES.get(name, name) for name in others), "| ours / the best |")
    print("|---" * (len(others) + 3) + "|")
    bests = []
    for shape in shapes.values():
        rows = [shape["rows"].get(name) for name in others]
        times, ratios = ([row and row[key] for row in rows] for key in ("us", "ratio"))
        ours = shape["rows"]["ours"]["us"]
        best = max((round(ratio, 3) for ratio in ratios if ratio is not None), default=None)
        if best is None:
            raise SystemExit(f"{flags.measured}: {shape['M']} x {shape['N']} x {shape['K']} has no contender: leave it out by beside.py --shapes")
        bests.append(best)
        sizes = [shape["M"], shape["N"], shape["K"]]
        text += ["", "[[row]]", f"shape = {sizes}", f"ours = {ours:.2f}", f"theirs = {listed(times, 2)}", f"ratio = {listed(ratios, 3)}"]
        cells = ["-" if us is None else f"{us:.1f} ({ratio:.3f})" for us, ratio in zip(times, ratios)]
        print("|", " x ".join(map(str, sizes)), f"| {ours:.1f} |", " | ".join(cells), f"| {best:.3f} |")
    pathlib.Path(flags.out).write_text("\n".join(text) + "\n")
    mean = math.exp(statistics.fmean(map(math.log, bests)))
    print(f"\nThe geometric mean is {mean:.3f}, the worst {max(bests):.3f}.")


if __name__ == "__main__":
    main()
