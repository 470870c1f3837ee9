#!/bin/sh
# The objects compiled for one instruction set define their tables and nothing else that a linker could
# share with other objects (codecs/simd/table.h says why). Arguments: nm, then the static libraries.
set -eu
nm=$1
shift
failed=0
for library in "$@"; do
    # Defined symbols with external linkage, weak ones included (upper case, and v, w, u).
    symbols=$("$nm" -C --defined-only "$library" | awk 'NF >= 3 && $2 ~ /[A-TV-Zuvw]/ {print}')
    if printf '%s\n' "$symbols" | grep -q '__asan\|__odr_asan'; then
        echo "skipped: built with a sanitizer"
        exit 77
    fi
    others=$(printf '%s\n' "$symbols" | grep -v 'slimwire::host_[a-z_]*_[a-z0-9]*$' || true)
    if [ -z "$symbols" ] || [ -n "$others" ]; then
        echo "$library: expected tables only, found:"
        printf '%s\n' "$symbols"
        failed=1
    fi
done
exit $failed
