"""Launches on tensors of a GPU, here of the driver that emulates one: `SILUMIN_TEST_DRIVER` is its library."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("on_driver.py")


def run(folder, chip, *command):
    library = os.environ.get("SILUMIN_TEST_DRIVER")
    assert library, "SILUMIN_TEST_DRIVER is unset: it names the library of the driver that emulates, which check.sh builds"
    # One file, so that the loader loads it once.
    shutil.copy(library, folder / "libcuda.so.1")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "SILUMIN_EMULATED_CHIP": chip,
        "SILUMIN_CACHE_DIR": str(folder / "cache"),
    }
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("chip", ["sm_90a", "sm_100a"])
def test_tensors_of_a_gpu(tmp_path, chip):
    done = run(tmp_path, chip, str(SCRIPT), chip)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all passed\n"), done.stdout


def test_without_a_driver_the_error_says_so(tmp_path):
    program = """
import silumin
class Far:
    def __dlpack_device__(self): return 2, 0
    def __dlpack__(self, **_): raise AssertionError("it is not asked for")
try:
    silumin.gemm(Far(), Far(), out=Far())
except silumin.DeviceError as error:
    print(error)
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    if "GPU" in done.stdout or "is not asked for" in done.stderr:
        pytest.skip("this machine has a driver")
    assert "no CUDA driver was found" in done.stdout, done.stdout + done.stderr
