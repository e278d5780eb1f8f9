"""Objects that look like what Triton returns, around PTX that looks like Triton's. Triton itself is not needed."""

from collections import namedtuple

import kernels
import numpy as np
import pytest
import silumin

Metadata = namedtuple("Metadata", "name num_warps num_ctas shared global_scratch_size profile_scratch_size tensordesc_meta")
Descriptor = namedtuple("Descriptor", "base shape strides block_shape padding")


class Compiled:
    def __init__(self, ptx, name, **metadata):
        fields = {"num_warps": 2, "num_ctas": 1, "shared": 0, "global_scratch_size": 0, "profile_scratch_size": 0, "tensordesc_meta": []}
        self.asm = {"ptx": ptx, "cubin": b""}
        self.metadata = Metadata(name=name, **{**fields, **metadata})


# Triton's kernels end with pointers to scratch memory.
SCRATCH = kernels.SCALE.replace(".param .u32 count)", ".param .u32 count,\n    .param .u64 global_scratch,\n    .param .u64 profile_scratch)")
USES_SCRATCH = SCRATCH.replace(
    "    ld.param.u64 %rd1, [source];",
    "    ld.param.u64 %rd5, [global_scratch];\n    st.global.u32 [%rd5], 0;\n    ld.param.u64 %rd1, [source];",
)


def arguments(n=100):
    return [np.arange(n, dtype=np.float32), np.zeros(n, np.float32), 2.0, n]


@pytest.mark.parametrize("ptx", [kernels.SCALE, SCRATCH])
def test_a_compiled_kernel_is_run_and_timed(ptx):
    args = arguments()
    result = silumin.triton(Compiled(ptx, "scale"), 2, args, issue="table")
    assert result.ok and result.launch.block == (64, 1, 1) and result.launch.grid == (2, 1, 1)
    np.testing.assert_array_equal(args[1], 2 * args[0])
    assert 0 < result.prediction.low <= result.prediction.us <= result.prediction.high
    assert "no finding" in str(result) and "predicted on" in str(result)


def test_what_is_wrong_is_named_by_line():
    compiled = Compiled(kernels.reverse(barrier=False), "reverse")
    result = silumin.triton(compiled, (1,), [np.arange(64, dtype=np.int32)], issue="table")
    assert not result.ok and result.prediction is not None
    assert "RaceShared" in [f.rule for f in result.report.findings] and all(f.line for f in result.report.findings)
    # Three programs write beyond the arrays: there is no time for that, and the finding says why.
    args = arguments(128)
    result = silumin.triton(Compiled(SCRATCH, "scale"), 3, args[:3] + [192], issue="table")
    assert result.report.findings[0].rule == "OutOfBounds" and result.prediction is None and "OutOfBounds" in result.no_time


def test_only_one_of_both():
    args = arguments()
    timed = silumin.triton(Compiled(SCRATCH, "scale"), 2, args, run=False, issue="table", range=False)
    assert timed.report is None and timed.ok and timed.prediction.us > 0 and not args[1].any()
    ran = silumin.triton(Compiled(SCRATCH, "scale"), 2, args, time=False)
    assert ran.ok and ran.prediction is None and args[1].any()


def test_scratch_is_memory_where_the_metadata_asks_for_it():
    # One word for each of two programs, which both write the first.
    wants = Compiled(USES_SCRATCH, "scale", global_scratch_size=4)
    launch = silumin.triton_launch(wants, 2, arguments())
    assert launch.args[4].nbytes == 8 and launch.args[5] is None
    assert silumin.triton(wants, 1, arguments(64), time=False, tracking="off").ok
    assert not silumin.triton(Compiled(USES_SCRATCH, "scale"), 1, arguments(64), time=False).ok


def test_descriptors_of_the_host_are_written_out():
    ptx = kernels.BOX.replace(
        "    .param .u64 target)",
        "    .param .u32 d0, .param .u32 d1, .param .u64 s0, .param .u64 s1,\n    .param .u64 target,\n    .param .u64 scratch)",
    )
    source = np.arange(32 * 16, dtype=np.int32).reshape(16, 32)
    target = np.zeros((8, 16), np.int32)
    meta = [{"swizzle": 0, "elem_size": 4, "elem_type": 3, "block_size": [8, 16], "fp4_padded": False}]
    compiled = Compiled(ptx, "box", num_warps=1, tensordesc_meta=meta)
    descriptor = Descriptor(source, [16, 32], [32, 1], [8, 16], "zero")
    assert silumin.triton(compiled, 1, [descriptor, target], time=False).ok
    np.testing.assert_array_equal(target, source[4:12, 8:24])
    with pytest.raises(silumin.ArgumentError, match=r"args\[0\]: the kernel's metadata has no tiled tensor map"):
        silumin.triton(Compiled(ptx, "box"), 1, [descriptor, target])
    with pytest.raises(silumin.ArgumentError, match=r"args\[0\].base: a list"):
        silumin.triton(compiled, 1, [descriptor._replace(base=[1]), target])


def test_wrong_calls():
    compiled = Compiled(SCRATCH, "scale")
    for call, says in [
        (lambda: silumin.triton(object(), 1, []), r'an object without asm\["ptx"\]'),
        (lambda: silumin.triton(compiled, lambda meta: (1,), arguments()), "grid: a function"),
        (lambda: silumin.triton(compiled, 1, arguments()[:2]), "2 arguments, and `scale` has 6 parameters.*constexprs"),
        (lambda: silumin.triton(compiled, 1, arguments() + [1, 2, 3]), "7 arguments"),
        (lambda: silumin.triton(compiled, 1, arguments(), clock="fast"), "`fast` is not a clock"),
        (lambda: silumin.triton(Compiled(SCRATCH, "scale", num_warps=0), 1, arguments()), "num_warps"),
    ]:
        with pytest.raises(silumin.Error, match=says):
            call()
