#!/usr/bin/env bash
# Opens pages of `silumin view` in headless Chromium, checks what their script draws, and writes the screenshots of the book: of these
# pages, and of a sweep in a terminal. Needs Chromium (Debian's package `chromium`), ptxas and nvdisasm (`setup.sh`).
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

# terminal PICTURE WIDTH HEIGHT ARGUMENTS...: what a terminal shows of a command, without its bars of progress.
terminal() {
  local picture=$1 size=$2,$3 html="$work/terminal.html" text="$work/terminal.txt"
  shift 3
  # A list of words with quotes, as a shell reads it.
  script --quiet --return --command "stty cols 250; exec $silumin $*" /dev/null >"$text" || fail "$picture: the command failed"
  {
    printf '<!doctype html><meta charset="utf-8"><style>body{margin:0;background:#1d2021;color:#d5c4a1}'
    printf 'pre{margin:16px;font:13px/1.45 monospace}b{color:#fff}</style><pre><b>$ silumin %s</b>\n' "${*//\>/\&gt;}"
    sed -e 's/.*\x1b\[2K//; s/\r//g; s/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/\x1b\[1m/<b>/g; s/\x1b\[0m/<\/b>/g' "$text"
    printf '</pre>'
  } >"$html"
  grep -q '<b>\*' "$html" || fail "$picture: no row is marked as the fastest"
  grep -q $'\x1b' "$html" && fail "$picture: a control sequence is left"
  browse --window-size="$size" --screenshot="$work/$picture" "file://$html"
  [ "$(stat -c %s "$work/$picture")" -gt 20000 ] || fail "$picture is empty"
  cp "$work/$picture" "book/src/pictures/$picture"
  printf 'book/src/pictures/%s\n' "$picture"
}

terminal sweep.png 1290 320 "sweep --shape 256,4096,7168 --verify-k 256 --sweep-knob 'stages=3;5;7' --sweep-knob 'cta_group=1;2'"
