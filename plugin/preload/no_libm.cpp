// fmod, for the linker alone: pugixml's XPath asks for it, which nothing here calls, and libm is
// not to be loaded into every process under the preload. In libslimwire.so and the drop-in, whose
// version script hides it.
extern "C" double fmod(double /*dividend*/, double /*divisor*/) {
    __builtin_trap();
}
