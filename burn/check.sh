#!/usr/bin/env bash
# The example on its own: CPU tensors on silumin's emulated device, and, with `cuda`, the CUDA code on the emulated driver.
#
#     check.sh            # format, lints with and without the feature `cuda`, tests, the example, documentation
#     check.sh cuda       # runs the CUDA code, too; takes a C compiler and nm, and no CUDA
#
# burn's `cuda` links LLVM 23, which a build script downloads. Here nothing is downloaded: burn's kernels go through NVRTC (the feature
# `nvrtc`), and functions that abort stand in for LLVM's, which are not called then. The emulated driver runs silumin's kernels. It has no
# NVRTC, so that the tests use no kernel of burn's. The programs that this builds run on a GPU with the real libraries as well: the last
# lines say where they are.
set -euo pipefail
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-$PWD/../target/burn}
export CARGO_TARGET_DIR=$target

if [ "${1:-}" != cuda ]; then
  cargo fmt --check -- --config-path ../rustfmt.toml
  cargo clippy --locked --all-targets -- -D warnings
  # Tells the build scripts to leave LLVM out, as on docs.rs.
  DOCS_RS=1 cargo clippy --locked --all-targets --features cuda -- -D warnings
  cargo test --locked
  cargo run --locked --example gated_mlp
  cargo run --locked --example gated_mlp -- --weights nvfp4
  RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
  exit
fi

work=$target/cuda
rm -rf "$work"
mkdir -p "$work/lib"
export DOCS_RS=1
# Every function that pliron and cubecl name of LLVM and of cubecl's own C++ over it.
rlibs=$(cargo build --locked --release --features nvrtc --lib --message-format json | python3 -c 'import json, sys
for message in map(json.loads, sys.stdin):
    if message.get("target", {}).get("name", "").replace("-", "_") in ("pliron_llvm", "cubecl_llvm", "llvm_sys"):
        print(*(name for name in message.get("filenames", []) if name.endswith(".rlib")), sep="\n")')
[ -n "$rlibs" ] || { echo "cargo names no library of pliron-llvm and cubecl-llvm" >&2; exit 1; }
names=$(for rlib in $rlibs; do nm -u "$rlib" 2>/dev/null; done | awk '{print $2}' | grep -E '^(LLVM|cubecl_)' | sort -u)
{
  printf '#include <stdlib.h>\n'
  for name in $names; do printf 'void %s(void) { abort(); }\n' "$name"; done
} >"$work/llvm.c"
cc -c -fPIC -w -o "$work/llvm.o" "$work/llvm.c"
build() { # what, of cargo's targets
  cargo rustc --locked --release --features nvrtc "$@" --message-format json -- -C "link-arg=$work/llvm.o" | python3 -c 'import json, sys
print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])'
}
example=$(build --example gated_mlp)
test=$(build --test cuda)
# The emulated driver, and beside it the few functions of the driver that cubecl and the example call and silumin does not. Work on the emulated
# driver is done when a call returns.
(cd .. && cargo build --locked -p silumin-emulated-driver --target-dir "$target/driver")
cp "$target/driver/debug/libsilumin_emulated_driver.so" "$work/lib/"
cat >"$work/driver.c" <<'DRIVER'
#include <stdlib.h>
int cuDeviceGetPCIBusId(char *id, int length, int device) { return 801; }
int cuMemAllocHost_v2(void **address, size_t bytes) { return (*address = malloc(bytes)) ? 0 : 2; }
int cuMemFreeHost(void *address) { free(address); return 0; }
int cuEventSynchronize(void *event) { return 0; }
int cuCtxRecordEvent(void *context, void *event) { return 0; }
int cuCtxWaitEvent(void *context, void *event) { return 0; }
DRIVER
cc -shared -fPIC -o "$work/lib/libcuda.so" "$work/driver.c" -L"$work/lib" -Wl,--no-as-needed -lsilumin_emulated_driver -Wl,-rpath,'$ORIGIN'
ln -s libcuda.so "$work/lib/libcuda.so.1"
SILUMIN_EMULATED_CHIP=sm_90a LD_LIBRARY_PATH=$work/lib "$test"
printf 'burn: the CUDA code ran on the emulated driver. On a GPU, with NVRTC and CUDA_PATH:\n  %s\n  %s --cuda 0\n' "$test" "$example"
