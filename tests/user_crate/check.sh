#!/usr/bin/env bash
# A user's crate, as a user would build it: with Rust and nothing else it runs; a gate of one's own
# is refused with words that help, and what is probably not meant is noted; and with the feature `llvm` such a
# gate compiles, while the program itself holds no LLVM.
set -euo pipefail
cd "$(dirname "$0")"

fail() { printf 'user_crate: %s\n' "$*" >&2; exit 1; }

# Nothing of LLVM may be needed: this prefix has none.
LLVM_SYS_221_PREFIX=/nonexistent cargo run --locked

# Builds the program of a name, which must not compile, and looks for parts of what the compiler says.
refused() {
  local name=$1 messages part
  shift
  if messages=$(LLVM_SYS_221_PREFIX=/nonexistent cargo build --locked --features "$name" --bin "$name" 2>&1); then
    fail "$name compiled"
  fi
  for part; do
    grep -qF -- "$part" <<<"$messages" || fail "the message on $name lacks '$part':"$'\n'"$messages"
  done
}

refused own_gate 'the gate `tanh(A @ B1) * (A @ B2)` is not built in' 'enable the feature `llvm` of silumin' 'own_gate.rs:6:42'
refused notes '`k_order = ping_pong` is written `serpentine` now' 'notes.rs:8:33' 'notes.rs:12:61' \
  'a bias has an element a column: `bias[n]`' 'notes.rs:14:53'

cargo run --locked --features own_gate,llvm --bin own_gate
binary=${CARGO_TARGET_DIR:-target}/debug/own_gate
# Names like `llvm::` and `LLVMCreate...`; the compiler's own marks on crates (`.llvm.123`) are none.
found=$(nm --demangle "$binary" | grep -cE '\bllvm::|\bLLVM[A-Z]' || true)
[ "$found" = 0 ] || fail "$binary has $found symbols of LLVM"
printf 'user_crate: no LLVM in %s (%s bytes)\n' "$binary" "$(stat -c %s "$binary")"
