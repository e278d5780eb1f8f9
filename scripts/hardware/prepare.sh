#!/usr/bin/env bash
# Prepares a folder of kernels for sm_90a, with inputs and the emulator's outputs, to carry to a machine with a GPU:
#
#     scripts/hardware/prepare.sh FOLDER [KERNEL_NAMES_CONTAINING]
#     scp -r FOLDER scripts/hardware/run.py MACHINE: && ssh MACHINE python3 run.py FOLDER
#
# The kernels are those of other compilers (emulator/tests/corpus), the probes (emulator/tests/corpus/hardware) and ours, drawn
# by family (xtask/src/agreement.rs).
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${1:?the folder to write}")
mkdir -p "$folder"
SILUMIN_EXPORT=$folder cargo test --release -p silumin-emulator-tests -- "${2:-compilers::}"
# A kernel with a mistake of its compiler may have left no expected buffers.
for kernel in "$folder"/*/; do
    [ -n "$(ls -A "$kernel/expected")" ] || rm -r "$kernel"
done
cargo build --release -p silumin-cli
for launch in emulator/tests/corpus/hardware/*.toml; do
    name=$(basename "$launch" .toml)
    target=$folder/probe-$name
    mkdir -p "$target"
    cp "$launch" "$target/launch.toml"
    cp "${launch%.toml}.ptx" "$target/"
    target/release/silumin emulate "$target/launch.toml" --out "$target/expected"
done
SILUMIN_EXPORT=$folder cargo test --release -p silumin-emulator-tests -- scalar_truth:: grid_truth:: matrix_truth::
# Ours, without names to leave out.
[ -n "${2:-}" ] || cargo xtask agreement --out "$folder"
# Results of a megabyte tell nothing that their hash does not.
python3 - "$folder" <<'PYTHON'
import hashlib, pathlib, sys
for file in pathlib.Path(sys.argv[1]).glob("matrix-*/expected/out.bin"):
    file.with_suffix(".blake2b").write_text(hashlib.blake2b(file.read_bytes(), digest_size=32).hexdigest())
    file.unlink()
PYTHON
cp scripts/hardware/run.py "$folder/"
cat emulator/tests/corpus/hardware/h200.txt "$folder/stopped.txt" > "$folder/known.txt"
echo "$(find "$folder" -name launch.toml | wc -l) kernels in $folder, $(du -sh "$folder" | cut -f1)"
