"""Runs a kernel that is written by hand, and finds the barrier that it lacks."""

import numpy as np
import silumin

# Each of two warps stores 32 words to shared memory, and then reads those of the other.
PTX = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry reverse(.param .u64 data)
.reqntid 64
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 words[256];
    ld.param.u64 %rd1, [data];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r2, [%rd1];
    mov.u32 %r3, words;
    shl.b32 %r4, %r1, 2;
    add.u32 %r5, %r3, %r4;
    st.shared.u32 [%r5], %r2;
    BARRIER
    sub.u32 %r6, 252, %r4;
    add.u32 %r6, %r3, %r6;
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%rd1], %r7;
    ret;
}
"""

data = np.arange(64, dtype=np.int32)
report = silumin.emulate(PTX.replace("BARRIER", "// nothing waits here"), silumin.Launch(grid=1), [data])
print(report)
race = next(finding for finding in report.findings if finding.rule == "RaceShared")
print(f"\nthe race is at line {race.line}: {race.text}\n")

data = np.arange(64, dtype=np.int32)
report = silumin.emulate(PTX.replace("BARRIER", "bar.sync 0;"), silumin.Launch(grid=1), [data])
print(report)
assert report.ok and (data == np.arange(64)[::-1]).all()
