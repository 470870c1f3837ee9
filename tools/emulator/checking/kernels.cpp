#include "tools/emulator/checking/kernels.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/emulator_abi.h"
#include "tools/emulator/checking/data.h"
#include "tools/emulator/cudart/machine/runtime.h"

extern "C" const slimwire::EmulatorApi* slimwire_emulator_api(uint32_t version);

namespace slimwire::emulator::checking {
namespace {

// "ns::name<A, ns::B>(...)" as "name", {"A", "B"}.
struct KernelName {
    std::string_view base;
    std::vector<std::string_view> arguments;
};

std::string_view without_namespace(std::string_view name) {
    const size_t at = name.rfind("::");
    return at == std::string_view::npos ? name : name.substr(at + 2);
}

// No template argument of these kernels is itself a template.
std::optional<KernelName> parse_name(std::string_view demangled) {
    const size_t open = demangled.find('<');
    const size_t close = demangled.find('>');
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
        return std::nullopt;
    }
    KernelName name;
    const std::string_view before = demangled.substr(0, open);
    const size_t space = before.rfind(' ');  // behind the return type, or within a namespace's name
    name.base =
        without_namespace(space == std::string_view::npos ? before : before.substr(space + 1));
    std::string_view list = demangled.substr(open + 1, close - open - 1);
    while (!list.empty()) {
        const size_t comma = list.find(", ");
        name.arguments.push_back(without_namespace(list.substr(0, comma)));
        list = comma == std::string_view::npos ? "" : list.substr(comma + 2);
    }
    return name;
}

template <class Value>
struct Named {
    std::string_view name;
    Value value;
};

constexpr Named<DType> kElements[] = {
    {"signed char", DType::kInt8},
    {"unsigned char", DType::kUint8},
    {"int", DType::kInt32},
    {"unsigned int", DType::kUint32},
    {"long", DType::kInt64},
    {"unsigned long", DType::kUint64},
    {"__half", DType::kFloat16},
    {"__nv_bfloat16", DType::kBfloat16},
    {"__nv_fp8_e4m3", DType::kFloat8e4m3},
    {"__nv_fp8_e5m2", DType::kFloat8e5m2},
    {"float", DType::kFloat32},
    {"double", DType::kFloat64},
};
constexpr Named<Reduction> kReductions[] = {
    {"ReduceNil", Reduction::kNone},  {"ReduceSum", Reduction::kSum},
    {"ReduceProd", Reduction::kProd}, {"ReduceMin", Reduction::kMin},
    {"ReduceMax", Reduction::kMax},   {"ReducePreMulSum", Reduction::kPreMulSum},
    {"ReduceAvg", Reduction::kAvg},
};
constexpr Named<int> kUnsignedBytes[] = {
    {"unsigned char", 1}, {"unsigned short", 2}, {"unsigned int", 4}, {"unsigned long", 8}};

template <class Value, size_t kCount>
std::optional<Value> find(const Named<Value> (&table)[kCount], std::string_view name) {
    for (const Named<Value>& row : table) {
        if (row.name == name) {
            return row.value;
        }
    }
    return std::nullopt;
}

// One launch: every kernel's arguments, as far as it has them.
struct Launch {
    void (*run)(const Launch& launch) = nullptr;
    Data data{DType::kInt8, Reduction::kNone, 1, 0};
    int rank = 0;
    int64_t first = 0;
    int64_t count = 0;
    int bytes = 0;  // of an element
    void* elements = nullptr;
    const void* expected = nullptr;
    unsigned tolerance = 0;
    int64_t* wrong = nullptr;
};

template <class T>
T* on_host(T* pointer) {
    static const EmulatorApi& api = *slimwire_emulator_api(kEmulatorAbiVersion);
    return static_cast<T*>(api.device_view(const_cast<std::remove_const_t<T>*>(pointer)));
}

// Little-endian, like the devices; chunks of a buffer need not be aligned.
uint64_t load(const void* elements, int64_t index, int bytes) {
    uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(elements) + index * bytes,
                static_cast<size_t>(bytes));
    return bits;
}
void store(void* elements, int64_t index, int bytes, uint64_t bits) {
    std::memcpy(static_cast<char*>(elements) + index * bytes, &bits, static_cast<size_t>(bytes));
}

// SLIMWIRE_EMU_CHECK_ERROR; 0: exact. Never called before the first CUDA call.
double allowed_error() {
    static const double allowed = [] {
        cudaError_t error = cudaSuccess;
        const Runtime* const runtime = Runtime::get(&error);
        return runtime != nullptr ? runtime->settings().check_error : 0;
    }();
    return allowed;
}

void prepare_input(const Launch& launch) {
    void* elements = on_host(launch.elements);
    // What moves and is not reduced is its own expected result.
    if (allowed_error() > 0) {
        remember_expected(launch.elements, {launch.data.element, 0});
    }
    for (int64_t i = 0; i < launch.count; ++i) {
        store(elements, i, launch.bytes, input_bits(launch.data, launch.rank, launch.first + i));
    }
}

void prepare_expected(const Launch& launch) {
    void* elements = on_host(launch.elements);
    Expected expected{launch.data.element, 0};
    const bool bounded = allowed_error() > 0 && is_float(launch.data.element);
    for (int64_t i = 0; i < launch.count; ++i) {
        store(elements, i, launch.bytes, result_bits(launch.data, launch.first + i));
        if (bounded) {
            expected.inputs_norm2 += inputs_norm2(launch.data, launch.first + i);
        }
    }
    if (allowed_error() > 0) {
        remember_expected(launch.elements, expected);
    }
}

template <class Wanted>
void count_wrong(const Launch& launch, const Expected& expected, const Wanted& wanted_at) {
    const void* results = on_host(launch.elements);
    int64_t wrong = 0;
    if (is_float(expected.element) &&
        dtype_bytes(expected.element) == static_cast<size_t>(launch.bytes)) {
        Comparison comparison(expected, allowed_error());
        for (int64_t i = 0; i < launch.count; ++i) {
            comparison.add(load(results, i, launch.bytes), wanted_at(i));
        }
        std::atomic_ref(*on_host(launch.wrong)).fetch_add(comparison.wrong());
        return;
    }
    for (int64_t i = 0; i < launch.count; ++i) {
        const uint64_t got = load(results, i, launch.bytes);
        const uint64_t wanted = wanted_at(i);
        wrong += (got < wanted ? wanted - got : got - wanted) > launch.tolerance ? 1 : 0;
    }
    std::atomic_ref(*on_host(launch.wrong)).fetch_add(wrong);
}

void verify_prepared(const Launch& launch) {
    const void* expected = on_host(launch.expected);
    count_wrong(launch, allowed_error() > 0 ? recall_expected(launch.expected) : Expected{},
                [&](int64_t i) { return load(expected, i, launch.bytes); });
}

void verify_inline(const Launch& launch) {
    Expected expected;
    if (allowed_error() > 0 && is_float(launch.data.element)) {
        expected.element = launch.data.element;
        for (int64_t i = 0; i < launch.count; ++i) {
            expected.inputs_norm2 += inputs_norm2(launch.data, launch.first + i);
        }
    }
    count_wrong(launch, expected,
                [&](int64_t i) { return result_bits(launch.data, launch.first + i); });
}

// The kernels, and where the arguments of a launch are; -1: it has none.
constexpr struct Kernel {
    std::string_view name;
    size_t type_arguments;
    int expected, count, ranks, rank, seed, first, tolerance, wrong;
    void (*run)(const Launch& launch);
} kKernels[] = {
    {"prepareInput2", 2, -1, 1, 3, 4, 5, 6, -1, -1, prepare_input},
    {"prepareExpected2", 2, -1, 1, 3, -1, 4, 5, -1, -1, prepare_expected},
    {"verifyPrepared", 1, 1, 2, -1, -1, -1, -1, 3, 4, verify_prepared},
    {"verifyInline2", 3, -1, 1, 3, -1, 4, 5, 6, 7, verify_inline},
};

template <class T>
void read(void** args, int place, T* value) {
    if (place >= 0) {
        std::memcpy(value, args[place], sizeof *value);
    }
}

// What the name says: false when it names no type or reduction that is known here.
bool read_types(const KernelName& name, Launch* launch) {
    if (name.arguments.size() == 1) {
        const auto bytes = find(kUnsignedBytes, name.arguments[0]);
        launch->bytes = bytes.value_or(0);
        return bytes.has_value();
    }
    const auto element = find(kElements, name.arguments[0]);
    const auto reduction = find(kReductions, name.arguments.back());
    if (!element || !reduction) {
        return false;
    }
    launch->data.element = *element;
    launch->data.reduction = *reduction;
    launch->bytes = static_cast<int>(dtype_bytes(*element));
    return true;
}

int make(const KernelName& name,
         const Kernel& kernel,
         void** args,
         slimwire_emulator_kernel_call* out) {
    Launch launch;
    launch.run = kernel.run;
    read(args, 0, &launch.elements);
    read(args, kernel.expected, &launch.expected);
    read(args, kernel.count, &launch.count);
    read(args, kernel.ranks, &launch.data.ranks);
    read(args, kernel.rank, &launch.rank);
    read(args, kernel.seed, &launch.data.seed);
    read(args, kernel.first, &launch.first);
    read(args, kernel.tolerance, &launch.tolerance);
    read(args, kernel.wrong, &launch.wrong);
    if (!read_types(name, &launch) || launch.data.ranks < 1 || launch.rank < 0) {
        return 1;
    }
    out->state = new Launch(launch);
    out->run = [](void* state, dim3, dim3, size_t) {
        const Launch& launched = *static_cast<const Launch*>(state);
        launched.run(launched);
    };
    out->destroy = [](void* state) { delete static_cast<Launch*>(state); };
    return 0;
}

}  // namespace

KernelMaker find_checking_kernel(std::string_view demangled_name) {
    const std::optional<KernelName> name = parse_name(demangled_name);
    for (const Kernel& kernel : kKernels) {
        if (name && name->base == kernel.name && name->arguments.size() == kernel.type_arguments) {
            return [name = *name, &kernel](void** args, slimwire_emulator_kernel_call* out) {
                return make(name, kernel, args, out);
            };
        }
    }
    return nullptr;
}

}  // namespace slimwire::emulator::checking
