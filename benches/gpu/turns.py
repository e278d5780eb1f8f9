#!/usr/bin/env python3
"""Times kernels by turns from their launch files, each turn after a pause: a chip that was idle has not lowered its clock yet.

    turns.py FIRST.toml OTHER.toml ... [--rounds 60] [--pause 0.03] [--seed N] [--json OUT]

For two states of the generator, or for PTX edited by hand: `emit --out FOLDER` and `silumin-bench-gpu --emit FOLDER` write launch files, and
of a kernel with several launches the first file stands for all. All are given the same rotating sets of operands, drawn as the formats
in the launch file's first line want, and a CUDA graph of launches that takes about 2 ms. Shown are medians, the median and the
10th and 90th percentile of a kernel's time over the first one's, formed round by round, and whether C is bit for bit what the first one leaves.

Without a pause, and under load for a second before: `beside.py`, which compares with other people's kernels.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import launch  # noqa: E402
import torch  # noqa: E402
from beside import Graph, percentile, repacked, rotations  # noqa: E402

FORMATS = re.compile(r"# .*, (\S+) x (\S+) -> ")
ELEMENTS = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}
BLOCKS = ("e4m3_1x128", "e4m3_128x128")
ELEMENTS |= dict.fromkeys(BLOCKS, torch.float8_e4m3fn)
# Scale factors about 1, by the weights' format: e4m3 of 0.25 to 3.75, and powers of two from 1/16 to 2.
SCALES = {"nvfp4": (0x28, 0x48), "mxfp4": (0x7B, 0x81)}


def formats_of(kernel):
    """Formats of A and of B."""
    first = kernel.files[0].read_text().split("\n", 1)[0]
    if not (found := FORMATS.match(first)):
        raise SystemExit(f"{kernel.files[0]}: the first line has no formats, such as `bf16 x nvfp4 -> bf16`: {first!r}")
    return found.groups()


def elements_of(kernel):
    """Formats of A and of B, with the usual format for a repacked one: the elements are the same."""
    a, b = formats_of(kernel)
    return a, b.removesuffix("_repacked")


def sizes_of(kernel):
    """Bytes of the buffers that a caller gives; where a launch takes what another left, the other says how many."""
    sizes = {}
    for stated in kernel.launches:
        for name, buffer in stated.get("buffers", {}).items():
            if "bytes" in buffer and buffer.get("fill", 0) != 0:
                sizes[name] = buffer["bytes"]
    return sizes


def draw(name, size, formats):
    """What a buffer holds."""
    of = formats[0] if name in ("a", "sfa") else formats[1]
    if name in ("a", "b1", "b2") and of in ELEMENTS:
        count = size // ELEMENTS[of].itemsize
        return torch.randn(count, device="cuda").to(ELEMENTS[of]).view(torch.uint8)
    if name in ("a", "b1", "b2"):
        return torch.randint(0, 256, (size,), device="cuda", dtype=torch.uint8)
    if name.startswith("sf") and of in SCALES:
        return torch.randint(*SCALES[of], (size,), device="cuda", dtype=torch.uint8)
    if name.startswith("sf") and of in BLOCKS:
        return (torch.rand(size // 4, device="cuda") + 0.5).view(torch.uint8)
    if name == "c":
        return torch.zeros(size, device="cuda", dtype=torch.uint8)
    raise SystemExit(f"{name} of {of}: this script draws a, b1, b2 and scale factors of {', '.join([*SCALES, *BLOCKS])}; emit a gate and formats without others")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.03, help="seconds before each replay")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json")
    flags = parser.parse_args()
    torch.manual_seed(flags.seed if flags.seed is not None else torch.seed() % 2**31)
    torch.zeros(1, device="cuda")
    kernels = [launch.Kernel(file) for file in flags.files]
    formats, sizes = elements_of(kernels[0]), sizes_of(kernels[0])
    for kernel in kernels[1:]:
        if elements_of(kernel) != formats or sizes_of(kernel) != sizes:
            raise SystemExit(f"{kernel.files[0]}: other operands than {kernels[0].files[0]} has")
    sets = [
        {name: draw(name, size, formats) for name, size in sizes.items()}
        for _ in range(rotations(sum(sizes.values())))
    ]
    # Graphs hold addresses alone: `kept` keeps repacked copies alive.
    graphs, left, kept = [], [], []
    for kernel in kernels:
        # A workspace for all: the launches of a stream follow each other.
        own = kernel.own(sets[0])
        mine = sets
        if formats_of(kernel) != formats:
            mine = [one | {name: repacked(one[name]) for name in ("b1", "b2") if name in one} for one in sets]
            kept.append(mine)
        bound = [kernel.bind(**own, **{name: tensor.data_ptr() for name, tensor in one.items()}) for one in mine]
        graphs.append(Graph([lambda b=b: b.launch(torch.cuda.current_stream().cuda_stream) for b in bound]))
        left.append(sets[0]["c"].clone())
        for one in sets:
            one["c"].zero_()
    times = [[] for _ in kernels]
    for turn in range(flags.rounds):
        for step in range(len(kernels)):
            place = (turn + step) % len(kernels)
            time.sleep(flags.pause)
            times[place].append(graphs[place].time())
    rows = []
    for file, mine, c in zip(flags.files, times, left):
        ratios = [one / first for one, first in zip(mine, times[0])]
        rows.append({
            "file": file,
            "us": statistics.median(mine),
            "ratio": statistics.median(ratios),
            "ratio_spread": [percentile(ratios, 0.1), percentile(ratios, 0.9)],
            "same": torch.equal(c, left[0]),
        })
        low, high = rows[-1]["ratio_spread"]
        print(
            f"{rows[-1]['us']:9.2f} us  this/first {rows[-1]['ratio']:.3f} ({low:.3f} to {high:.3f})"
            f"  {'same C' if rows[-1]['same'] else 'other C'}  {file}",
            flush=True,
        )
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
