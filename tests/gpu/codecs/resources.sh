#!/bin/sh
# No kernel of the codecs spills registers, by the compiler's own report. Arguments: nvcc, the source
# root, "75,90,..." architectures, the .cu files. Prints the largest register count of each file.
set -eu
nvcc=$1
root=$2
archs=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for arch in $(printf '%s' "$archs" | tr ',' ' '); do
    for file in "$@"; do
        "$nvcc" -std=c++20 -O3 -fmad=false -arch="sm_$arch" --resource-usage -I"$root" -cubin \
            -o "$work/out.cubin" "$file" >"$work/report" 2>&1 || { cat "$work/report"; exit 1; }
        registers=$(grep -o 'Used [0-9]* registers' "$work/report" | awk '$2 > m {m = $2} END {print m + 0}')
        kernels=$(grep -c 'Used [0-9]* registers' "$work/report" || true)
        spilling=$(grep 'spill stores' "$work/report" | grep -vc ' 0 bytes spill stores, 0 bytes spill loads' || true)
        echo "sm_$arch $(basename "$file"): $kernels kernels, at most $registers registers, $spilling spill"
        if [ "$kernels" -eq 0 ] || [ "$spilling" -ne 0 ]; then
            failed=1
        fi
    done
done
exit $failed
