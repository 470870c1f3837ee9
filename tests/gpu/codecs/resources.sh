#!/bin/sh
# The kernels stay within what the design allows: at most 1500 instances. That none spills registers is
# said by ptxas when they are compiled (codecs/gpu/meson.build); here a kernel that must spill shows
# that ptxas would say so. Arguments: nvcc, nm, the object of all kernels.
set -eu
nvcc=$1
nm=$2
object=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Each kernel has one guarded variable in its launch stub.
kernels=$("$nm" "$object" | grep -c '_ZGVZ.*__device_stub_.*__tmp$' || true)
echo "$kernels kernel instances, at most 1500 are allowed"
if [ "$kernels" -eq 0 ] || [ "$kernels" -gt 1500 ]; then
    exit 1
fi

cat >"$work/spilling.cu" <<'END'
__global__ void spilling(float* p) {
    float a[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) a[i] = p[i * threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) a[i] *= a[(i * 7 + 1) % 64];
#pragma unroll
    for (int i = 0; i < 64; ++i) p[i + threadIdx.x * 64] = a[i];
}
END
if "$nvcc" -maxrregcount=24 -Xptxas=--warn-on-spills -Xptxas=-Werror -cubin -o "$work/out.cubin" "$work/spilling.cu" \
    >"$work/report" 2>&1; then
    echo "ptxas did not object to a kernel that spills"
    exit 1
fi
grep -q spilled "$work/report" || { cat "$work/report"; exit 1; }
