#!/usr/bin/env bash
# What `test.sh` only samples, whole: all values, all schedules, all mutants of the sample's kernels, the benchmark at full size, and
# thousands of drawn configurations, optimised; and the oldest Rust. It takes hours. A step that fails does not stop the others; the end lists them.
#
#   ./scripts/overnight.sh                 all steps, draws chosen by today's date
#   SILUMIN_LATTICE_SEED=7 ./scripts/overnight.sh draws
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh
export SILUMIN_PTXAS="$PWD/.tools/bin/ptxas"
export SILUMIN_NVDISASM="$PWD/.tools/bin/nvdisasm"
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-$(date +%Y%m%d)}"
export SILUMIN_LATTICE_SEED="${SILUMIN_LATTICE_SEED:-$(date +%Y%m%d)}"

failed=()
# Runs a step, if the command line names it or names none.
step() {
  local name=$1 started=$SECONDS
  shift
  [ ${#wanted[@]} = 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  printf '\n== %s: %s\n' "$name" "$*"
  env "$@" || failed+=("$name")
  printf -- '-- %s: %d s\n' "$name" "$((SECONDS - started))"
}
wanted=("$@")
steps=(msrv whole draws schedules compilers mutants)
for name in ${wanted[@]+"${wanted[@]}"}; do
  [[ " ${steps[*]} " == *" $name "* ]] || { printf 'no step `%s`; there are: %s\n' "$name" "${steps[*]}" >&2; exit 2; }
done

step msrv ./scripts/msrv.sh
# Fixed draws here: those of the date come next.
step whole -u SILUMIN_LATTICE_SEED SILUMIN_FULL=1 cargo test --release --workspace --all-features --locked --no-fail-fast
step draws SILUMIN_LATTICE=3000 SILUMIN_HOPPER=2000 cargo test --release --test all --locked --no-fail-fast -- lattice:: hopper::
step schedules SILUMIN_FULL=1 SILUMIN_SEEDS=64 cargo test --release --test all --locked -- ordered::
step compilers SILUMIN_SEEDS=64 cargo test --release -p silumin-emulator-tests --locked -- compilers::
# It writes `evidence/mutants.jsonl`, and fails if a mistake is neither caught nor explained.
step mutants cargo run --release --quiet -p xtask --locked -- mutants --every 4

if [ ${#failed[@]} != 0 ]; then
  printf '\nfailed: %s (SILUMIN_LATTICE_SEED=%s, PROPTEST_RNG_SEED=%s)\n' "${failed[*]}" "$SILUMIN_LATTICE_SEED" "$PROPTEST_RNG_SEED" >&2
  exit 1
fi
printf '\nall steps passed in %d s\n' "$SECONDS"
