#!/bin/sh
# Where the real NCCL is: its include folder and its library, a line each. Looks in NCCL_HOME, in the
# packages of python3 (PyTorch brings one) and in the system's folders; prints nothing where it is in
# none. For meson.build and run.
set -u
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
machine=$(uname -m)
for home in "${NCCL_HOME:-}" ${packages:+"$packages/nvidia/nccl"} /usr/local/cuda /usr/local /usr; do
    [ -n "$home" ] && [ -f "$home/include/nccl.h" ] || continue
    for library in "$home/lib/libnccl.so.2" "$home/lib64/libnccl.so.2" \
        "$home/lib/$machine-linux-gnu/libnccl.so.2"; do
        if [ -f "$library" ]; then
            printf '%s\n%s\n' "$home/include" "$library"
            exit 0
        fi
    done
done
