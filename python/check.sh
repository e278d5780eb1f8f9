#!/usr/bin/env bash
# The package on its own: builds the wheel, installs it into a fresh environment, and tests it.
#
#     check.sh            # format, lints, the wheel, tests, examples
#     check.sh release    # the same with the wheel that is published: slower to build, faster to emulate
#
# It takes cargo and a Python of at least 3.11 with venv. Everything else it installs by requirements.txt, below target/.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
profile=dev
[ "${1:-}" = release ] && profile=release
python=${PYTHON:-python3}

step() { printf '\npython: %s\n' "$*"; }
need() { command -v "$1" >/dev/null || { printf 'python: %s is missing: %s\n' "$1" "$2" >&2; exit 1; }; }
need cargo "install Rust with rustup"
need "$python" "install Python 3.11 or later, or name one with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  printf 'python: %s is older than the 3.11 that the pinned numpy needs; name another with PYTHON=...\n' "$python" >&2
  exit 1
}
"$python" -c 'import venv, ensurepip' || { printf 'python: %s has no venv: install python3-venv\n' "$python" >&2; exit 1; }

step "format and lints of the Rust half"
cargo fmt --check -- --config-path ../rustfmt.toml
cargo clippy --locked --all-targets -- -D warnings

step "an environment with $(grep -c == requirements.txt) pinned packages"
environment=$CARGO_TARGET_DIR/venv
"$python" -m venv --clear "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps -r requirements.txt

step "the wheel, profile $profile"
wheels=$CARGO_TARGET_DIR/wheels
rm -rf "$wheels"
"$environment/bin/maturin" build --locked --profile "$profile" --interpreter "$environment/bin/python" --out "$wheels"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps "$wheels"/*.whl

step "the driver that emulates a GPU, for tests of launches on a GPU's tensors"
cargo build --locked --manifest-path ../Cargo.toml --package silumin-emulated-driver
export SILUMIN_TEST_DRIVER=$CARGO_TARGET_DIR/debug/libsilumin_emulated_driver.so

step "tests"
# From a folder without the package's source, so that what is tested is what the wheel holds.
here=$PWD
cd "$CARGO_TARGET_DIR"
"$environment/bin/python" -m pytest -c "$here/pyproject.toml" --rootdir "$here" "$here/tests"

step "examples"
for example in "$here"/examples/*.py; do
  printf '\n$ python %s\n' "examples/${example##*/}"
  "$environment/bin/python" "$example"
done

step "all passed; the wheel is $(ls "$wheels"/*.whl)"
