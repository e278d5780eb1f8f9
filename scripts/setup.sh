#!/usr/bin/env bash
# Installs what the tests need: LLVM 22 (Debian packages) and NVIDIA's assembler and disassemblers
# (PyPI wheels, unpacked into .tools/, which git ignores), and mdbook (crates.io, into .tools/). Run it as often as you like: what is
# already there is left alone. `emit` and a user's build need none of this.
set -euo pipefail
cd "$(dirname "$0")/.."

# Pinned, so that "assembles without warnings" means the same thing on every machine.
PTXAS_VERSION=13.5.37
NVDISASM_VERSION=13.5.37
MDBOOK_VERSION=0.5.4
LLVM_PREFIX=/usr/lib/llvm-22
LLVM_PACKAGES="llvm-22-dev libpolly-22-dev libzstd-dev zlib1g-dev libffi-dev libxml2-dev libtinfo-dev"
TOOLS="$PWD/.tools"

say() { printf '[setup] %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_be_root() { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }

install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  can_be_root || fail "these packages are missing and this user has neither root nor password-less sudo; run: sudo apt-get install ${missing[*]}"
  say "installing ${missing[*]}"
  as_root apt-get update -qq
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    case " ${missing[*]}" in
      *" llvm-22"*) fail "could not install ${missing[*]}; Debian 12 has LLVM 22 in its security updates: is \`deb http://deb.debian.org/debian-security bookworm-security main\` among the sources of apt?" ;;
      *) fail "could not install ${missing[*]}" ;;
    esac
  fi
}

command -v cargo >/dev/null || fail "cargo is not on the PATH; install Rust first (https://rustup.rs)"
command -v apt-get >/dev/null || fail "this script installs Debian packages; elsewhere, install LLVM 22 with its static libraries yourself and set LLVM_SYS_221_PREFIX"

# shellcheck disable=SC2086  # a list of words on purpose
install_packages gcc g++ python3 unzip $LLVM_PACKAGES
[ -x "$LLVM_PREFIX/bin/llvm-config" ] || fail "$LLVM_PREFIX/bin/llvm-config is missing although its package is installed"

# A wheel is a zip archive. pip fetches it if there is one; unpacking by hand keeps the user's
# Python environment as it was.
fetch_wheel() { # package version file-inside target
  local package=$1 version=$2 inside=$3 target="$TOOLS/bin/$4" stamp="$TOOLS/.$1-$2" work
  [ -x "$target" ] && [ -e "$stamp" ] && return
  python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
  say "fetching $package $version"
  work=$(mktemp -d)
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$work" "$package==$version" ||
    fail "could not fetch $package==$version from PyPI"
  mkdir -p "$TOOLS/bin"
  unzip -q -o -j "$work"/*.whl "$inside" -d "$work/out" || fail "$package==$version holds no $inside"
  install -m 755 "$work/out/$4" "$target"
  rm -rf "$work"
  touch "$stamp"
}

fetch_wheel nvidia-cuda-nvcc "$PTXAS_VERSION" '*/bin/ptxas' ptxas
fetch_wheel nvidia-cuda-nvdisasm "$NVDISASM_VERSION" '*/bin/nvdisasm' nvdisasm

# Debian has no mdbook. A debug build takes half a minute and builds the book as well.
if ! "$TOOLS/bin/mdbook" --version 2>/dev/null | grep -q "v$MDBOOK_VERSION\$"; then
  say "building mdbook $MDBOOK_VERSION"
  work=$(mktemp -d)
  CARGO_TARGET_DIR="$work" cargo install mdbook --version "$MDBOOK_VERSION" --locked --no-default-features --debug --root "$TOOLS" --quiet ||
    fail "could not install mdbook $MDBOOK_VERSION from crates.io"
  rm -rf "$work"
fi

say "mdbook $MDBOOK_VERSION, LLVM $("$LLVM_PREFIX/bin/llvm-config" --version), ptxas $("$TOOLS/bin/ptxas" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'), nvdisasm $("$TOOLS/bin/nvdisasm" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
