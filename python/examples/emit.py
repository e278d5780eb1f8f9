"""Emits a kernel, reads it, runs it on the emulated GPU, and predicts its time."""

import numpy as np
import silumin

m, n, k = 64, 128, 256
kernel = silumin.emit("silu(A @ B1) * (A @ B2)", m, n, k, arch="sm_90a", a="bf16", b="bf16", c="f32")
print(kernel.plan.split("knobs")[0])
print("\n".join(kernel.ptx.splitlines()[:12]), "\n...")


def bf16(values):
    """The bits of a bf16, rounded towards zero."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


rng = np.random.default_rng(1)
a, gate, up = (bf16(rng.standard_normal(shape)) for shape in ((m, k), (n, k), (n, k)))
c = np.zeros((m, n), np.float32)
report = silumin.emulate(kernel, arrays={"a": a, "b1": gate, "b2": up, "c": c})
print(report)
assert report.ok

d1, d2 = wide(a) @ wide(gate).T, wide(a) @ wide(up).T
expected = d1 / (1 + np.exp(-d1)) * d2
print(f"largest error {np.abs(c - expected).max():.1e} of {np.abs(expected).max():.1f}")
assert np.allclose(c, expected, rtol=1e-3, atol=1e-2)

prediction = silumin.predict(kernel, chip="h200", issue="table")
print(f"predicted {prediction.us:.2f} us ({prediction.low:.2f} to {prediction.high:.2f}), bound by {prediction.bound_by}")
