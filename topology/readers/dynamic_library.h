// A library opened at run time that may be missing.
#pragma once

#include <dlfcn.h>

#include <string>

namespace slimwire {

class DynamicLibrary {
  public:
    explicit DynamicLibrary(const std::string& name)
        : handle_(name.empty() ? nullptr : dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {}
    ~DynamicLibrary() {
        if (handle_ != nullptr) {
            dlclose(handle_);
        }
    }
    DynamicLibrary(const DynamicLibrary&) = delete;
    DynamicLibrary& operator=(const DynamicLibrary&) = delete;

    [[nodiscard]] bool opened() const noexcept { return handle_ != nullptr; }
    // Sets `*function`; false when the library has no such symbol.
    template <class Function>
    bool find(const char* symbol, Function** function) const noexcept {
        *function =
            handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, symbol));
        return *function != nullptr;
    }

  private:
    void* handle_;
};

}  // namespace slimwire
