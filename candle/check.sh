#!/usr/bin/env bash
# The crate on its own: CPU tensors on the emulator, and, with `cuda`, the CUDA code on the emulated driver.
#
#     check.sh            # CPU tensors: tests, the examples, documentation, lints
#     check.sh cuda       # the CUDA code too; takes a C compiler and nm, and no CUDA
#
# candle's `cuda` compiles kernels of candle's own with nvcc and links the toolkit's libraries. Neither is here, so that its
# kernels are left out (their texts are empty: tests use no operation that needs one) and libraries of the right names stand in for
# the toolkit's. candle's tensors, streams and copies, the custom operation and silumin's kernels are the real ones. The test
# that this builds runs on a GPU with the real libraries as well: the last line says where it is.
set -euo pipefail
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-$PWD/../target/candle}
export CARGO_TARGET_DIR=$target

if [ "${1:-}" != cuda ]; then
  cargo fmt --check -- --config-path ../rustfmt.toml
  cargo clippy --locked --all-targets -- -D warnings
  cargo test --locked
  cargo run --locked --example gated_mlp
  cargo run --locked --example llama
  RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
  exit
fi

work=$target/cuda
rm -rf "$work"
mkdir -p "$work/lib" "$work/crate"
cp -r Cargo.toml Cargo.lock src tests examples "$work/crate/"
sed -i "s|path = \"\\.\\.\"|path = \"$(realpath ..)\"|" "$work/crate/Cargo.toml"
# candle's kernels without a build script that looks for nvcc.
manifest=$(cargo metadata --format-version 1 --features cuda --locked |
  python3 -c 'import json,sys; print(next(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "candle-kernels"))')
cp -r "$(dirname "$manifest")" "$work/kernels"
chmod -R u+w "$work/kernels"
cat >"$work/kernels/build.rs" <<'BUILD'
fn main() {
    let names = "AFFINE BINARY CAST CONV FILL INDEXING QUANTIZED REDUCE SORT TERNARY UNARY";
    let text: String = names.split(' ').map(|name| format!("pub const {name}: &str = \"\";\n")).collect();
    std::fs::write(std::path::Path::new(&std::env::var_os("OUT_DIR").unwrap()).join("ptx.rs"), text).unwrap();
}
BUILD
sed -i '/^\[build-dependencies/,$d' "$work/kernels/Cargo.toml"
printf '\n[patch.crates-io]\ncandle-kernels = { path = "../kernels" }\n' >>"$work/crate/Cargo.toml"

cd "$work/crate"
export CARGO_TARGET_DIR=$target CUDARC_CUDA_VERSION=13000
# Lazily bound, so that what is not called need not be there.
export RUSTFLAGS="-L native=$work/lib -C relro-level=partial -C link-arg=-Wl,-z,lazy -C link-arg=-Wl,--unresolved-symbols=ignore-all"
built=$(cargo build --features cuda --offline --message-format json)
# Every function that cudarc and candle's kernels name, in libraries of the names that the toolkit's have.
rlibs=$(python3 -c 'import json, sys
for message in map(json.loads, sys.stdin):
    if message.get("target", {}).get("name", "").replace("-", "_") in ("cudarc", "candle_kernels"):
        print(*(name for name in message.get("filenames", []) if name.endswith(".rlib")), sep="\n")' <<<"$built")
[ -n "$rlibs" ] || { echo "cargo names no library of cudarc and of candle-kernels" >&2; exit 1; }
names=$(for rlib in $rlibs; do nm -u "$rlib" 2>/dev/null; done | awk '{print $2}' | grep -E '^(cu|nvrtc|moe_|launch_)' | sort -u)
library() { # name soname pattern [own code]
  {
    printf '%s\n' "${4:-}"
    grep -E "$3" <<<"$names" | while read -r name; do
      grep -q "[ *]$name(" <<<"${4:-}" || printf 'int %s(void) { return 15; }\n' "$name"
    done
  } >"$work/lib/$1.c"
  cc -shared -fPIC -w -Wl,-soname,"$2" -o "$work/lib/lib$1.so" "$work/lib/$1.c"
  [ "$2" = "lib$1.so" ] || ln -sf "lib$1.so" "$work/lib/$2"
}
library cublasLt libcublasLt.so.13 '^cublasLt'
library cublas libcublas.so.13 '^cublas[^L]' \
  'int cublasCreate_v2(void **handle) { *handle = (void *)1; return 0; } int cublasSetStream_v2(void) { return 0; } int cublasDestroy_v2(void) { return 0; }'
library curand libcurand.so.10 '^curand' \
  'int curandCreateGenerator(void **handle) { *handle = (void *)1; return 0; } int curandSetStream(void) { return 0; } int curandSetPseudoRandomGeneratorSeed(void) { return 0; } int curandDestroyGenerator(void) { return 0; }'
library nvrtc libnvrtc.so.13 '^nvrtc'
library cuda libcuda.so.1 '^cu[A-Z]'
cargo test --features cuda --offline --test cuda --no-run
test=$(cargo test --features cuda --offline --test cuda --no-run --message-format json 2>/dev/null |
  python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
# The driver's place is the emulated driver's.
(cd "$OLDPWD/.." && RUSTFLAGS= cargo build --locked -p silumin-emulated-driver --target-dir "$target/driver")
rm "$work/lib/libcuda.so" "$work/lib/libcuda.so.1"
cp "$target/driver/debug/libsilumin_emulated_driver.so" "$work/lib/libcuda.so"
ln -s libcuda.so "$work/lib/libcuda.so.1"
for chip in sm_90a sm_100a; do
  SILUMIN_EMULATED_CHIP=$chip LD_LIBRARY_PATH=$work/lib "$test"
done
printf 'candle: the CUDA code ran on the emulated driver; on a GPU: %s\n' "$test"
