#!/usr/bin/env bash
# Opens pages of `silumin view` in headless Chromium, checks what their script draws, and writes the screenshots of the book.
# Needs Chromium (Debian's package `chromium`), ptxas and nvdisasm (`setup.sh`).
set -euo pipefail
cd "$(dirname "$0")/.."
export SILUMIN_PTXAS="${SILUMIN_PTXAS:-$PWD/.tools/bin/ptxas}" SILUMIN_NVDISASM="${SILUMIN_NVDISASM:-$PWD/.tools/bin/nvdisasm}"

fail() { printf 'screenshots: %s\n' "$*" >&2; exit 1; }
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || fail "no Chromium: apt-get install chromium"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
silumin=${SILUMIN:-}
if [ -z "$silumin" ]; then
  cargo build --release --quiet -p silumin-cli
  silumin=target/release/silumin
fi

# --no-sandbox: pages come from here, and root has no sandbox.
browse() { "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=4000 --user-data-dir="$work/profile" "$@" 2>>"$work/log"; }

# page NAME PICTURE WIDTH HEIGHT HASH ARGUMENTS...: a page, judged by its DOM, and a picture of it.
page() {
  local name=$1 picture=$2 size=$3,$4 hash=$5 file dom wanted
  shift 5
  file=$("$silumin" view --out "$work/$name" "$@" | grep '\.html$') || fail "$name: no page"
  dom="$work/$name.dom"
  browse --dump-dom "file://$file#$hash" >"$dom"
  local parts=('class="timeline"' 'data-drawn="[1-9]' '<h2>Findings</h2>' 'class="ptx"' 'predicted on')
  [[ $hash != *arrows* ]] || parts+=('class="arrow"')
  for wanted in "${parts[@]}"; do
    grep -q "$wanted" "$dom" || fail "$name: the page has no $wanted"
  done
  grep -q 'class="note">undefined\|NaN' "$dom" && fail "$name: the page shows undefined values"
  browse --window-size="$size" --screenshot="$work/$picture" "file://$file#$hash"
  [ "$(stat -c %s "$work/$picture")" -gt 20000 ] || fail "$name: $picture is empty"
  cp "$work/$picture" "book/src/pictures/$picture"
  printf 'book/src/pictures/%s\n' "$picture"
}

page pair view_pair.png 1300 640 'from=3500&to=5200&arrows' --beside stages=3
page hopper view_hopper.png 900 620 arrows tests/in/hopper_vectors.toml
page race view_race.png 900 700 "" tests/view/race.toml
