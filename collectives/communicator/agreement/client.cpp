#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "collectives/call/interfaces.h"
#include "collectives/communicator/agreement/wire.h"

namespace slimwire {
namespace agreement_wire {

int open_socket(uint8_t family) {
    const int made =
        socket(family == 6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int at_once = 1;
    (void)setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
    return made;
}

uint64_t now_us() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000u +
           static_cast<uint64_t>(now.tv_nsec) / 1000u;
}

bool wait_for(int socket, short events, uint64_t deadline_us, const AgreementClient::Stop& stop) {
    for (;;) {
        if (stop && stop()) {
            return false;
        }
        const uint64_t now = now_us();
        if (now >= deadline_us) {
            return false;
        }
        pollfd entry{socket, events, 0};
        const uint64_t left_ms = (deadline_us - now) / 1000 + 1;
        const int ready = poll(&entry, 1, static_cast<int>(std::min<uint64_t>(left_ms, 50)));
        if (ready > 0) {
            return true;
        }
        if (ready < 0 && errno != EINTR) {
            return false;
        }
    }
}

bool read_all(
    int socket, void* data, size_t bytes, uint64_t deadline_us, const AgreementClient::Stop& stop) {
    auto* out = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t got = recv(socket, out, bytes, 0);
        if (got > 0) {
            out += got;
            bytes -= static_cast<size_t>(got);
        } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            return false;
        } else if (!wait_for(socket, POLLIN, deadline_us, stop)) {
            return false;
        }
    }
    return true;
}

bool write_all(int socket, const void* data, size_t bytes, uint64_t deadline_us) {
    const auto* in = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t put = send(socket, in, bytes, MSG_NOSIGNAL);
        if (put > 0) {
            in += put;
            bytes -= static_cast<size_t>(put);
        } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            return false;
        } else if (!wait_for(socket, POLLOUT, deadline_us, {})) {
            return false;
        }
    }
    return true;
}

std::string encode_hello(const Hello& hello, uint64_t token) {
    const std::string error = hello.error.substr(0, kMaxText / 2);
    // Another version takes it all as the reason, which it then does not look at.
    const std::string rest =
        hello.native_reason.substr(0, kMaxText / 2) + '\0' + hello.settings.substr(0, kMaxSettings);
    HelloHeader header{};
    header.magic = kMagic;
    header.version = kAgreementVersion;
    header.text_bytes = static_cast<uint32_t>(error.size() + rest.size());
    header.token = token;
    header.config_hash = hello.config_hash;
    header.ranks = hello.ranks;
    header.rank = hello.rank;
    header.error_bytes = static_cast<uint32_t>(error.size());
    header.process = static_cast<uint32_t>(getpid());
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    return bytes + error + rest;
}

std::string encode_answer(const Agreement& answer, int32_t whole_at) {
    const std::string text = answer.text.substr(0, whole_at < 0 ? kMaxText : kShortText);
    AnswerHeader header{kMagic, kAgreementVersion, static_cast<uint32_t>(answer.verdict),
                        static_cast<uint32_t>(text.size()),
                        text.size() < answer.text.size() ? whole_at : -1};
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + text;
}

std::vector<int32_t> brief_ranks(const std::vector<int32_t>& ranks) {
    if (ranks.size() <= kMostBrief) {
        return ranks;
    }
    std::vector<int32_t> brief = {ranks.front()};
    for (size_t told = 1; told < ranks.size();) {
        const int32_t distance = ranks[told] - ranks[0];
        size_t as_told = told;
        while (as_told < ranks.size() && ranks[as_told] == ranks[as_told - told] + distance) {
            ++as_told;
        }
        const size_t times = as_told / told;
        brief.push_back(static_cast<int32_t>(times));
        brief.push_back(distance);
        told *= times;
        if (times < 2 || brief.size() > kMostBrief) {
            return {};
        }
    }
    return brief;
}

std::vector<int32_t> ranks_in_brief(const std::vector<int32_t>& brief, size_t count) {
    std::vector<int32_t> ranks = brief;
    if (count > kMostBrief && !brief.empty()) {
        ranks.resize(1);
        for (size_t i = 1; i + 1 < brief.size(); i += 2) {
            const size_t told = ranks.size();
            const auto times = static_cast<size_t>(std::max(brief[i], 0));
            for (size_t next = told; next < told * times && next < count; ++next) {
                ranks.push_back(ranks[next - told] + brief[i + 1]);
            }
        }
    }
    return ranks.size() == count ? ranks : std::vector<int32_t>();
}

Result<int> connect_to(const AgreementAddress& address,
                       uint64_t deadline_us,
                       const AgreementClient::Stop& stop) {
    SocketAddress target{};
    socklen_t length = 0;
    if (address.family == 6) {
        target.v6.sin6_family = AF_INET6;
        target.v6.sin6_port = htons(address.port);
        std::memcpy(&target.v6.sin6_addr, address.address, 16);
        target.v6.sin6_scope_id = address.scope;
        length = sizeof(target.v6);
    } else {
        target.v4.sin_family = AF_INET;
        target.v4.sin_port = htons(address.port);
        std::memcpy(&target.v4.sin_addr, address.address, 4);
        length = sizeof(target.v4);
    }
    char text[INET6_ADDRSTRLEN] = "?";
    inet_ntop(address.family == 6 ? AF_INET6 : AF_INET, address.address, text, sizeof(text));
    const int socket = open_socket(address.family);
    int error = socket < 0 ? errno : 0;
    if (socket >= 0 && connect(socket, &target.any, length) != 0) {
        error = errno;
        if (error == EINPROGRESS) {
            error = ETIMEDOUT;
            if (wait_for(socket, POLLOUT, deadline_us, stop)) {
                socklen_t size = sizeof(error);
                getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
            }
        }
    }
    if (error == 0) {
        return socket;
    }
    if (socket >= 0) {
        close(socket);
    }
    return Status(Code::kRemoteError, std::string(text) + " port " + std::to_string(address.port) +
                                          ": " + std::strerror(error));
}

}  // namespace agreement_wire

using namespace agreement_wire;

AgreementClient::AgreementClient(AgreementClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)) {}

AgreementClient& AgreementClient::operator=(AgreementClient&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
}

AgreementClient::~AgreementClient() {
    if (socket_ >= 0) {
        close(socket_);
    }
}

Status AgreementClient::send(const AgreementAddress& address,
                             const Hello& hello,
                             uint64_t timeout_us,
                             const Stop& stop) {
    const uint64_t deadline_us = now_us() + timeout_us;
    Result<int> connected = connect_to(address, deadline_us, stop);
    if (!connected.ok()) {
        return {Code::kRemoteError, "agreement server " + connected.status().message()};
    }
    socket_ = connected.value();
    const std::string bytes = encode_hello(hello, address.token);
    if (!write_all(socket_, bytes.data(), bytes.size(), deadline_us)) {
        return {Code::kRemoteError, "agreement server: connection lost while saying hello"};
    }
    return {};
}

Result<Agreement> AgreementClient::wait(uint64_t timeout_us, const Stop& stop) {
    const uint64_t deadline_us = now_us() + timeout_us;
    AnswerHeader header{};
    if (!read_all(socket_, &header, sizeof(header), deadline_us, stop)) {
        return Status(
            Code::kRemoteError,
            "no answer to this rank's hello: the process that made the unique id ended, or "
            "the wait was cancelled");
    }
    if (header.magic != kMagic || header.text_bytes > kMaxText) {
        return Status(Code::kRemoteError, "the agreement's answer is malformed");
    }
    Agreement answer;
    answer.verdict = header.verdict == 0   ? Verdict::kGo
                     : header.verdict == 1 ? Verdict::kNative
                                           : Verdict::kError;
    answer.text.resize(header.text_bytes);
    if (!read_all(socket_, answer.text.data(), answer.text.size(), deadline_us, stop)) {
        return Status(Code::kRemoteError, "the agreement's answer is cut short");
    }
    if (header.whole_at >= 0) {
        answer.text += "... (rank " + std::to_string(header.whole_at) + " says all of it)";
    }
    return answer;
}

}  // namespace slimwire
