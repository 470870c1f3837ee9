#include "collectives/call/launcher.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "collectives/call/launcher_names.h"

namespace slimwire {
namespace {

template <size_t N>
std::optional<int> first_number(GetenvFunction getenv_function, const char* const (&names)[N]) {
    for (const char* name : names) {
        const char* const value = getenv_function(name);
        if (value == nullptr) {
            continue;
        }
        const std::string_view text(value);
        int number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (error == std::errc() && end == text.data() + text.size() && number >= 0) {
            return number;
        }
    }
    return std::nullopt;
}

}  // namespace

const char* process_getenv(const char* name) noexcept {
    return std::getenv(name);
}

std::optional<int> launcher_rank(GetenvFunction getenv_function) {
    return first_number(getenv_function, kRankNames);
}

std::optional<int> launcher_size(GetenvFunction getenv_function) {
    return first_number(getenv_function, kSizeNames);
}

std::optional<int> launcher_local_rank(GetenvFunction getenv_function) {
    return first_number(getenv_function, kLocalRankNames);
}

std::optional<int> launcher_local_size(GetenvFunction getenv_function) {
    return first_number(getenv_function, kLocalSizeNames);
}

std::string host_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown";
}

RankGroup group_of(std::span<const int> members, int ranks) noexcept {
    const auto size = static_cast<int>(members.size());
    const int first = size > 0 ? members[0] : 0, stride = size > 1 ? members[1] - first : 1;
    if (size < 1 || first < 0 || stride < 1 || ranks < 1 || ranks % size != 0 ||
        ranks / size % stride != 0 || first % (stride * size) >= stride) {
        return {};
    }
    for (int i = 0; i < size; ++i) {
        if (members[static_cast<size_t>(i)] != first + i * stride) {
            return {};
        }
    }
    const int index = first / (stride * size) * stride + first % stride;
    return {1, static_cast<uint32_t>(index), static_cast<uint32_t>(ranks / size),
            static_cast<uint32_t>(stride)};
}

bool tell_run(const char* socket_name, bool send) noexcept {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const size_t length = std::strlen(socket_name);
    if (length == 0 || length >= sizeof address.sun_path) {
        return false;
    }
    std::memcpy(address.sun_path + 1, socket_name, length);  // behind a zero: an abstract name
    const auto bytes = static_cast<socklen_t>(sizeof address.sun_family + 1 + length);
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool there = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0;
    if (there && send) {
        (void)!::send(fd, "", 1, MSG_NOSIGNAL);
    }
    ::close(fd);
    return there;
}

}  // namespace slimwire
