#!/usr/bin/env bash
# Everything that must hold before a change lands: formatting, lints, all tests with all features,
# documentation, packages, and a user's crate. Installs what that needs first. A tool that is
# missing fails the run; nothing is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

# Prints the name of a step, and what the one before took.
current= started=$SECONDS
step() {
  [ -z "$current" ] || printf '\n-- %s: %d s\n' "$current" "$((SECONDS - started))"
  current=$* started=$SECONDS
  [ -z "$current" ] || printf '\n== %s\n' "$current"
}

step "tools"
./scripts/setup.sh
export SILUMIN_PTXAS="$PWD/.tools/bin/ptxas"
export SILUMIN_NVDISASM="$PWD/.tools/bin/nvdisasm"

# Properties are tested on the same drawn input every time, so that what fails came with the change. For other
# input: PROPTEST_RNG_SEED=$RANDOM ./scripts/test.sh. The longest tests judge the part of their cases that the commit
# chooses; `overnight.sh` judges all.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"

step "formatting"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
# Engines that run on GPUs alone leave the emulator out; then nothing of it may be needed.
cargo clippy -p silumin --no-default-features --features cuda --locked -- -D warnings

step "tests"
cargo test --workspace --all-features --locked

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --locked

step "book"
.tools/bin/mdbook build book

step "packages"
# Each crate must build from what cargo would publish, templates and fragments included. Cargo's own
# verification keeps what it unpacked of a version, and would judge an earlier state of it; so the
# archives are unpacked here, as a workspace of their own that stands in for crates.io.
rm -rf target/package target/packaged
cargo package --workspace --exclude silumin-bench-gpu --exclude silumin-bench-host --exclude silumin-emulator-tests --exclude silumin-messages --exclude silumin-testkit --exclude silumin-tests --exclude xtask --locked --allow-dirty --quiet --no-verify
mkdir -p target/packaged
{
  printf '[workspace]\nresolver = "3"\nmembers = ["silumin*"]\n\n[patch.crates-io]\n'
  for archive in target/package/silumin*.crate; do
    # Times of now: archives carry one fixed time, by which cargo would take an earlier build for fresh.
    tar xzmf "$archive" -C target/packaged
    folder=$(basename "$archive" .crate)
    printf '%s = { path = "%s" }\n' "${folder%-*}" "$folder"
  done
  # With the workspace's profiles what is already built of other crates is not built again.
  sed -n '/^\[profile\.dev/,/^$/p' Cargo.toml
} >target/packaged/Cargo.toml
cp Cargo.lock target/packaged/
cargo check --manifest-path target/packaged/Cargo.toml --workspace --lib --bins --examples --target-dir target --quiet

step "a user's crate: path dependency, default features, no LLVM"
# In the same folder, where other crates are built.
CARGO_TARGET_DIR="$PWD/target" ./tests/user_crate/check.sh

step
printf '\nall checks passed in %d s\n' "$SECONDS"
