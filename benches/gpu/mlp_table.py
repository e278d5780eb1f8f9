"""Prints MLP blocks, or experts of a mixture, beside PyTorch's or DeepGEMM's as a Markdown table.

    python3 mlp_table.py ours.json torch.json        # of `gpu --mlp --json` and of `torch_mlp.py --json`
    python3 mlp_table.py ours.json torch.json        # of `gpu --experts --json` and of `torch_experts.py --json`
    python3 mlp_table.py ours.json deepgemm.json     # of `gpu --experts --json` and of `deepgemm_experts.py --json`
"""

import json
import math
import sys


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def key(row):
    return tuple(row.get(name) for name in ("hidden", "features", "experts", "top_k", "tokens"))


def deepgemm(ours, theirs):
    """Whole layers beside DeepGEMM's two GEMMs."""
    weights = {"bf16": "bf16", "fp8": "e4m3_128x128"}
    silumin = {(key(row), row["weights"]): row["us"] for row in ours["rows"]}
    print("| layer | weights | tokens | DeepGEMM, two GEMMs | its layout | our layer | ratio |\n|---|---|---|---|---|---|---|")
    ratios = {}
    for row in theirs["rows"]:
        name = weights[row["format"]]
        if (key(row), name) not in silumin or row["us"] is None:
            continue
        hidden, features, experts, top_k, tokens = key(row)
        layout = next(way for way in ("contiguous", "masked") if row[way].get("us") == row["us"])
        us = silumin[key(row), name]
        ratios.setdefault(name, []).append(us / row["us"])
        print(f"| {hidden} x {features}, {top_k} of {experts} | {name} | {tokens} | {row['us']:.1f} | {layout} | {us:.1f} | {us / row['us']:.2f} |")
    for name, of in ratios.items():
        print(f"\n{name}: geometric mean {mean(of):.2f}, from {min(of):.2f} to {max(of):.2f}")


def main():
    ours, torch = (json.load(open(path)) for path in sys.argv[1:3])
    if "deep_gemm" in torch:
        return deepgemm(ours, torch)
    theirs = {key(row): row for row in torch["rows"]}
    ranks, ratios = ours["rows"][0].get("ranks", 1), {}
    one = "us" if "experts" in ours["rows"][0] else "one_us"
    columns = [("one GPU", one)] + ([(f"{ranks} GPUs", "all_us")] if ranks > 1 else [])
    peer = "the better of PyTorch and Triton" if one == "us" else "PyTorch"
    titles = [title for gpus, _ in columns for title in (f"{gpus}: {peer}", "ours", "ratio")]
    titles += ["share of the sum"] if ranks > 1 else []
    print("| " + " | ".join(["block", "weights", "tokens"] + titles) + " |")
    print("|---" * (3 + len(titles)) + "|")
    for row in ours["rows"]:
        other = theirs[key(row)]
        experts = f", {row['top_k']} of {row['experts']}" if "experts" in row else ""
        cells = [f"{row['hidden']} x {row['features']}{experts}", row["weights"], str(row["tokens"])]
        for gpus, which in columns:
            ratio = row[which] / other[which]
            ratios.setdefault((row["weights"], gpus), []).append(ratio)
            cells += [f"{other[which]:.1f}", f"{row[which]:.1f}", f"{ratio:.2f}"]
        if ranks > 1:
            # A zero without a sign.
            cells.append(f"{round(100 * (1 - row['without_sum_us'] / row['all_us']))} %")
        print("| " + " | ".join(cells) + " |")
    for (weights, gpus), of in ratios.items():
        print(f"\n{weights} weights on {gpus}: geometric mean {mean(of):.2f}, from {min(of):.2f} to {max(of):.2f}")


if __name__ == "__main__":
    main()
