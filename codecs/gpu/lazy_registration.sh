#!/bin/sh
# lazy_registration.sh OUTPUT OBJECT...: one object of all, with the static constructors moved to the
# section slimwire_kernel_init (its bounds: __start_ and __stop_slimwire_kernel_init).
set -eu
output=$1
shift
ld -r -o "$output.all" "$@"
objcopy --rename-section .init_array=slimwire_kernel_init \
    --redefine-sym __cudaRegisterFunction=slimwire_register_function "$output.all" "$output"
rm -f "$output.all"
if [ "$(readelf -SW "$output" | grep -c 'slimwire_kernel_init')" -eq 0 ]; then
    echo "lazy_registration: the objects have no .init_array" >&2
    exit 1
fi
