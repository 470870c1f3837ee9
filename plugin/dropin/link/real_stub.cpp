// Stand-in for libnccl-real.so at link time only: it has the name and nothing else.
extern "C" {
[[gnu::visibility("default")]] extern const int slimwire_real_nccl_stub = 0;
}
