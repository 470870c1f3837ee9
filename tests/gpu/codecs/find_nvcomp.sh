#!/bin/sh
# Where nvCOMP 6.0 or newer is: its include folder and its library, a line each. Looks in NVCOMP_HOME, in
# the packages of python3 and in the system's folders; prints nothing where it is in none. For meson.build.
set -u
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
for home in "${NVCOMP_HOME:-}" ${packages:+"$packages/nvidia/libnvcomp" "$packages/nvidia/nvcomp"} \
    /usr/local/cuda /usr/local /usr; do
    [ -n "$home" ] || continue
    for include in "$home/include" "$home/include/nvcomp_12" "$home/include/nvcomp_13"; do
        [ -f "$include/nvcomp/ans.h" ] && [ -f "$include/nvcomp/version.h" ] || continue
        major=$(sed -n 's/^#define NVCOMP_VER_MAJOR \([0-9]*\).*/\1/p' "$include/nvcomp/version.h")
        [ "${major:-0}" -ge 6 ] || continue
        for library in "$home"/lib64/libnvcomp.so* "$home"/lib/libnvcomp.so* \
            "$home"/lib/x86_64-linux-gnu/libnvcomp.so* "$home"/lib/x86_64-linux-gnu/*/libnvcomp.so*; do
            if [ -f "$library" ]; then
                printf '%s\n%s\n' "$include" "$library"
                exit 0
            fi
        done
    done
done
