#!/usr/bin/env bash
# Everything of a release but what others see: checks the tree, the version's changes, the oldest Rust, all tests, and what cargo would upload of
# each crate. Ends with the commands that tag and publish, which it does not run.
#
#   ./scripts/release.sh            all of it
#   ./scripts/release.sh --quick    without the tests, for a look at the packages
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'release: %s\n' "$*" >&2; exit 1; }
case ${1:-} in
  ''|--quick) quick=${1:-} ;;
  *) fail "\`$1\` is not --quick" ;;
esac

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
[ -z "$(git status --porcelain)" ] || fail "the tree has changes: commit them first"
git rev-parse -q --verify "refs/tags/v$version" >/dev/null && fail "the tag v$version exists: raise \`version\` in Cargo.toml"
grep -qE "^## $version \([0-9]{4}-[0-9]{2}-[0-9]{2}\)\$" CHANGELOG.md || fail "CHANGELOG.md has no heading \`## $version (YYYY-MM-DD)\`"
grep -q '^## Unreleased' CHANGELOG.md && fail "CHANGELOG.md still has \`## Unreleased\`"
other=$(grep -E '^silumin.* version = "' Cargo.toml | grep -v "version = \"$version\"" || true)
[ -z "$other" ] || fail "dependencies in Cargo.toml on another version than $version:"$'\n'"$other"
grep -qE '^repository *=' Cargo.toml || printf 'release: note: Cargo.toml names no repository (decision 0190); crates.io will show none, and no pictures of the README\n'

./scripts/msrv.sh
[ -n "$quick" ] || ./scripts/test.sh

# Packs, unpacks and builds every crate that is published, in the order of their dependencies; uploads nothing.
cargo publish --workspace --dry-run --locked

# It depends on silumin by its version, so cargo can judge it after silumin is on crates.io.
printf '\nrelease: %s is ready. To publish:\n' "$version"
printf '  git tag -a v%s -m "silumin %s" && git push origin v%s\n' "$version" "$version" "$version"
printf '  cargo publish --workspace --locked\n'
printf '  (cd candle && cargo publish --dry-run && cargo publish)\n'
