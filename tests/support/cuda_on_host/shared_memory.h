// Static shared memory of the modelled GPU: what kernels declare with __shared__. See machine.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)

#define __shared__ static

namespace cuda_on_host {
constexpr bool kExchangesShared = false;
struct StaticShared {
    size_t bytes = 0;
    static StaticShared& get() {
        static StaticShared shared;
        return shared;
    }
    void save(std::vector<uint8_t>&) {}
    void load(const std::vector<uint8_t>&) {}
};
}  // namespace cuda_on_host

#else

#include <link.h>

#define __shared__ static __thread

namespace cuda_on_host {
constexpr bool kExchangesShared = true;

// The thread-local storage of the program itself, which comes first in the loader's list.
struct StaticShared {
    void* data = nullptr;
    size_t bytes = 0;

    static StaticShared& get() {
        static StaticShared shared;
        return shared;
    }
    void save(std::vector<uint8_t>& to) const {
        if (bytes > 0) {
            std::memcpy(to.data(), data, bytes);
        }
    }
    void load(const std::vector<uint8_t>& from) const {
        if (bytes > 0) {
            std::memcpy(data, from.data(), bytes);
        }
    }

  private:
    StaticShared() {
        dl_iterate_phdr(
            [](dl_phdr_info* info, size_t, void* self) {
                for (int i = 0; i < info->dlpi_phnum; ++i) {
                    if (info->dlpi_phdr[i].p_type == PT_TLS && info->dlpi_tls_data != nullptr) {
                        static_cast<StaticShared*>(self)->data = info->dlpi_tls_data;
                        static_cast<StaticShared*>(self)->bytes = info->dlpi_phdr[i].p_memsz;
                    }
                }
                return 1;
            },
            this);
    }
};
}  // namespace cuda_on_host

#endif
