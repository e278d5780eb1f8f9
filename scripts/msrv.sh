#!/usr/bin/env bash
# The oldest Rust that `rust-version` of Cargo.toml promises builds what users build: libraries and programs, default features. Fetches that
# toolchain first (rustup). A folder of its own below target/ keeps the builds of the usual toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
[ -n "$version" ] || { printf 'msrv: Cargo.toml has no rust-version\n' >&2; exit 1; }
rustup toolchain list | grep -q "^$version" || rustup toolchain install "$version" --profile minimal
cargo "+$version" check --workspace --lib --bins --locked --target-dir target/msrv
printf 'msrv: Rust %s builds the workspace\n' "$version"
