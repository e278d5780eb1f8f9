"""Prints MLP blocks beside PyTorch's as a Markdown table.

    python3 mlp_table.py ours.json torch.json        # of `gpu --mlp --json` and of `torch_mlp.py --json`
"""

import json
import math
import sys


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main():
    ours, torch = (json.load(open(path)) for path in sys.argv[1:3])
    key = lambda row: (row["hidden"], row["features"], row["tokens"])
    theirs = {key(row): row for row in torch["rows"]}
    ratios = {}
    print("| block | weights | tokens | one GPU: PyTorch | ours | ratio | two GPUs: PyTorch | ours | ratio | share of the sum |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in ours["rows"]:
        other = theirs[key(row)]
        cells = [f"{row['hidden']} x {row['features']}", row["weights"], str(row["tokens"])]
        for which in ("one_us", "all_us"):
            ratio = row[which] / other[which]
            ratios.setdefault((row["weights"], which), []).append(ratio)
            cells += [f"{other[which]:.1f}", f"{row[which]:.1f}", f"{ratio:.2f}"]
        share = 1 - row["without_sum_us"] / row["all_us"]
        print("| " + " | ".join(cells + [f"{100 * share:.0f} %"]) + " |")
    for (weights, which), of in ratios.items():
        gpus = "one GPU" if which == "one_us" else f"{ours['rows'][0]['ranks']} GPUs"
        print(f"\n{weights} weights on {gpus}: geometric mean {mean(of):.2f}, from {min(of):.2f} to {max(of):.2f}")


if __name__ == "__main__":
    main()
