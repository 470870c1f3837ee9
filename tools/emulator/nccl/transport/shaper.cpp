#include "tools/emulator/nccl/transport/shaper.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>

#include "codecs/base/number_text.h"
#include "tools/emulator/nccl/bootstrap/clock.h"

namespace slimwire::emu {
namespace {

constexpr uint64_t kMinChunkBytes = 16 * 1024;
constexpr uint64_t kMaxChunkBytes = 256 * 1024;

struct Unit {
    std::string_view name;
    double factor;
};

// A positive number followed by one of `units`; 0 when it is not that.
template <size_t N>
double parse_quantity(std::string_view text, const Unit (&units)[N]) {
    const auto [number, rest] = leading_number(text);
    for (const Unit& unit : units) {
        if (unit.name == rest && number > 0 && number < 1e6) {
            return number * unit.factor;
        }
    }
    return 0;
}

constexpr Unit kRates[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
constexpr Unit kTimes[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};

}  // namespace

uint64_t LinkSpec::chunk_bytes() const noexcept {
    if (!shaped()) {
        return kMaxChunkBytes;
    }
    uint64_t bytes = kMinChunkBytes;
    while (bytes < kMaxChunkBytes && wire_ns(bytes) < 1'000'000) {
        bytes *= 2;
    }
    return bytes;
}

Result<LinkSpec> parse_link_spec(std::string_view text) {
    LinkSpec spec;
    if (text.empty()) {
        return spec;
    }
    const size_t comma = text.find(',');
    spec.bits_per_second = parse_quantity(text.substr(0, comma), kRates);
    bool good = spec.bits_per_second > 0;
    if (comma != std::string_view::npos) {
        const std::string_view latency(text.substr(comma + 1));
        spec.latency_ns = static_cast<uint64_t>(parse_quantity(latency, kTimes));
        good = good && (spec.latency_ns > 0 || latency == "0" || latency == "0us");
    }
    if (!good) {
        return Status(Code::kInvalidArgument,
                      "SLIMWIRE_EMU_LINK='" + std::string(text) +
                          "': expected a rate and, if wanted, a latency, such as 1gbit or "
                          "100mbit,50us (units kbit mbit gbit; ns us ms s)");
    }
    return spec;
}

namespace {

constexpr size_t kSegmentBytes = sizeof(NicClock) * kMaxNodes;

// Of all segments of this user.
std::string segment_prefix() {
    return "/slimwire-emu-" + std::to_string(getuid()) + "-";
}

Status system_error(const std::string& what) {
    return {Code::kSystemError, what + ": " + strerror(errno)};
}

// Opens the segment with a shared lock. A concurrent last user may unlink the name between open and
// lock: then the file has no name any more, and the opening starts over.
Result<Descriptor> open_locked(const std::string& name) {
    for (int attempt = 0; attempt < 100; ++attempt) {
        Descriptor segment(shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        const int fd = segment.fd();
        if (!segment.valid()) {
            return system_error("shared memory " + name);
        }
        // Alone with it: whatever a killed job left in the clocks is void.
        const bool alone = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (alone && (ftruncate(fd, 0) != 0 || ftruncate(fd, kSegmentBytes) != 0)) {
            return system_error("shared memory " + name);
        }
        struct stat info {};
        if (flock(fd, LOCK_SH) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0 &&
            info.st_size == static_cast<off_t>(kSegmentBytes)) {
            return segment;
        }
        sleep_until_ns(now_ns() + 1'000'000);
    }
    return Status(Code::kSystemError,
                  "shared memory " + name + ": could not be opened in 100 tries");
}

// True when no process holds the segment any more; it is removed then.
bool remove_if_unused(int fd, const std::string& name) {
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return false;
    }
    struct stat info {};
    return fstat(fd, &info) == 0 && info.st_nlink > 0 && shm_unlink(name.c_str()) == 0;
}

}  // namespace

Result<std::unique_ptr<Shaper>> Shaper::open(const LinkSpec& spec, const std::string& token) {
    std::unique_ptr<Shaper> shaper(new Shaper);
    shaper->spec_ = spec;
    shaper->name_ = segment_prefix() + std::to_string(std::hash<std::string>{}(token));
    shaper->owner_pid_ = getpid();
    SLIMWIRE_TRY_ASSIGN(shaper->segment_, open_locked(shaper->name_));
    void* memory =
        mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, shaper->segment_.fd(), 0);
    if (memory == MAP_FAILED) {
        return system_error("shared memory " + shaper->name_);
    }
    shaper->nics_ = static_cast<NicClock*>(memory);
    return shaper;
}

void Shaper::leave() noexcept {
    // A forked child shares the lock; only the process that opened it may let it go.
    if (segment_.valid() && owner_pid_ == getpid()) {
        remove_if_unused(segment_.fd(), name_);
    }
    segment_.reset();
}

Shaper::~Shaper() {
    leave();
    if (nics_ != nullptr) {
        munmap(nics_, kSegmentBytes);
    }
}

int Shaper::remove_stale_segments() {
    std::error_code error;
    int removed = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
        const std::string name = "/" + entry.path().filename().string();
        if (name.starts_with(segment_prefix())) {
            const Descriptor segment(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600));
            removed += segment.valid() && remove_if_unused(segment.fd(), name) ? 1 : 0;
        }
    }
    return removed;
}

WireSlot Shaper::reserve(std::atomic<uint64_t>& clock,
                         uint64_t earliest_ns,
                         uint64_t bytes) noexcept {
    const uint64_t duration = spec_.wire_ns(bytes);
    uint64_t free_ns = clock.load(std::memory_order_relaxed);
    while (true) {
        const uint64_t start = std::max(free_ns, earliest_ns);
        if (clock.compare_exchange_weak(free_ns, start + duration, std::memory_order_relaxed)) {
            return {start, start + duration};
        }
    }
}

WireSlot Shaper::reserve_egress(int node, uint64_t earliest_ns, uint64_t bytes) noexcept {
    return reserve(nics_[node % kMaxNodes].egress_free_ns, earliest_ns, bytes);
}

WireSlot Shaper::reserve_ingress(int node, uint64_t earliest_ns, uint64_t bytes) noexcept {
    return reserve(nics_[node % kMaxNodes].ingress_free_ns, earliest_ns, bytes);
}

uint64_t Shaper::egress_free_ns(int node) const noexcept {
    return nics_[node % kMaxNodes].egress_free_ns.load(std::memory_order_relaxed);
}

namespace {

std::string job_token(const std::string& fallback) {
    if (const char* job = getenv("SLIMWIRE_EMU_JOB"); job != nullptr && *job != '\0') {
        return job;
    }
    const char* address = getenv("MASTER_ADDR");
    const char* port = getenv("MASTER_PORT");
    if (address != nullptr && port != nullptr) {
        return std::string(address) + ":" + port + "/" + std::to_string(getuid());
    }
    return fallback;
}

std::mutex g_job_mutex;
Shaper* g_job_shaper = nullptr;

// The mapping stays: threads of streams may still be at work while the process exits.
void leave_job() {
    g_job_shaper->leave();
}

}  // namespace

Result<Shaper*> job_shaper(const std::string& fallback_token) {
    const std::lock_guard lock(g_job_mutex);
    const char* text = getenv("SLIMWIRE_EMU_LINK");
    SLIMWIRE_TRY_ASSIGN(const LinkSpec spec, parse_link_spec(text != nullptr ? text : ""));
    if (!spec.shaped()) {
        return static_cast<Shaper*>(nullptr);
    }
    if (g_job_shaper == nullptr) {
        Shaper::remove_stale_segments();
        SLIMWIRE_TRY_ASSIGN(auto shaper, Shaper::open(spec, job_token(fallback_token)));
        g_job_shaper = shaper.release();
        std::atexit(leave_job);
    }
    return g_job_shaper;
}

}  // namespace slimwire::emu
