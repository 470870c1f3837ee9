"""Tells slimwire over ctypes what a program knows, and prints what the functions return.

usage: told.py [LIBRARY]     whose functions to call; without one, whatever the process has
"""
import ctypes
import sys


def main():
    api = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else None)
    if not hasattr(api, "slimwire_version"):
        print("absent")
        return
    api.slimwire_last_error.restype = ctypes.c_char_p
    name_tensor = api.slimwire_name_tensor
    name_tensor.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p]
    api.slimwire_forget_tensor.argtypes = [ctypes.c_void_p]
    sizes = (ctypes.c_int64 * 2)(4, 3)
    print(api.slimwire_version(), name_tensor(0x7F0000000000, 64, b"layer.weight"),
          api.slimwire_forget_tensor(0x7F0000000000), name_tensor(0, 64, b"layer.weight"),
          api.slimwire_last_error().decode())
    print(api.slimwire_register_parameter(1, 0, b"w", sizes, 2), api.slimwire_forget_model(1),
          api.slimwire_forget_model(1))
    print(api.slimwire_mark_step(ctypes.c_uint64(7)), api.slimwire_mark_phase(2),
          api.slimwire_set_learning_rate(ctypes.c_double(0.25)),
          api.slimwire_set_learning_rate(ctypes.c_double(-1)),
          api.slimwire_set_loss_scale(ctypes.c_double(2)), api.slimwire_save_state(b"told.state"),
          api.slimwire_load_state(b"told.state"))


if __name__ == "__main__":
    main()
