#include "collectives/state/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>

namespace slimwire {
namespace {

static_assert(std::endian::native == std::endian::little, "the structs below are the file's bytes");

constexpr char kStateMagic[8] = {'S', 'L', 'W', 'S', 'T', 'A', 'T', 'E'};
constexpr uint32_t kVersion = 8, kOldestVersion = 2;
constexpr uint64_t kPiece = 8 << 20;     // bytes asked for at once
constexpr uint64_t kChecked = 16 << 10;  // bytes of a tensor that have a checksum

struct HeaderBytes {
    char magic[8];
    uint32_t version;
    uint32_t comms, tensors;
    int32_t launcher_rank, launcher_size;
    uint32_t atoms : 1, left_out : 31;
    uint64_t config_hash;
    uint64_t step;
    uint64_t file_bytes;
    uint64_t checksum;  // of the header before it
};
static_assert(sizeof(HeaderBytes) == 64 && offsetof(HeaderBytes, checksum) == 56);

struct CommBytes {
    uint64_t key;
    int32_t rank, ranks;
    uint32_t drawn[2];
    uint64_t snapshot_id;
    uint32_t drawn_alike, number;
    uint32_t index, groups, stride, zero;  // from version 7 on
};
static_assert(sizeof(CommBytes) == 56);
constexpr size_t kOldCommBytes = 40;

struct TensorBytes {
    uint64_t comm, path, count, zero, shape, bytes;
    uint32_t ordinal, ranges_id;
    int32_t root_or_peer;
    uint8_t op, dtype, redop, kind;
    double loss_scale;
    uint64_t owed_at;
};
static_assert(sizeof(TensorBytes) == 80);

constexpr uint64_t padded(uint64_t bytes) noexcept {
    return (bytes + 7) / 8 * 8;
}

constexpr uint64_t pieces_of(uint64_t bytes) noexcept {
    return bytes / kChecked + (bytes % kChecked != 0 ? 1 : 0);
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
    return std::as_bytes(std::span(&value, 1));
}

uint64_t header_checksum(const HeaderBytes& header) noexcept {
    return state_checksum(0, bytes_of(header).first(offsetof(HeaderBytes, checksum)));
}

// A file that is written beside its place, and removed unless it gets there.
class NewFile {
  public:
    explicit NewFile(const std::string& path)
        : path_(path), temporary_(path + "." + std::to_string(::getpid()) + ".tmp") {}
    ~NewFile() {
        if (file_ >= 0) {
            ::close(file_);
        }
        if (made_) {
            ::unlink(temporary_.c_str());
        }
    }
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;

    Status open() {
        struct stat existing {};
        if (::lstat(path_.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
            return {Code::kSystemError, "'" + path_ + "' is not a regular file"};
        }
        file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        made_ = file_ >= 0;
        return made_ ? Status() : failed();
    }
    Status write(std::span<const std::byte> bytes) {
        const bool large = bytes.size() >= 1 << 20;
        while (!bytes.empty()) {
            const ssize_t written = ::write(file_, bytes.data(), bytes.size());
            if (written < 0 && errno == EINTR) {
                continue;
            }
            if (written < 0) {
                return failed();
            }
            bytes = bytes.subspan(static_cast<size_t>(written));
        }
        if (large) {
            // The disk begins now, and not at the end. Some file systems cannot.
            (void)::sync_file_range(file_, 0, 0, SYNC_FILE_RANGE_WRITE);
        }
        return {};
    }
    Status finish() {
        const int file = std::exchange(file_, -1);
        const bool on_disk = ::fsync(file) == 0;
        const int error = errno;
        if (::close(file) != 0 || !on_disk) {
            errno = on_disk ? errno : error;
            return failed();
        }
        if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
            return failed();
        }
        made_ = false;
        // The name, too. A file system that has no such thing has what it has.
        const size_t slash = path_.rfind('/');
        const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
        if (const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            opened >= 0) {
            (void)::fsync(opened);
            ::close(opened);
        }
        return {};
    }

  private:
    [[nodiscard]] Status failed() const {
        return {Code::kSystemError,
                "state file '" + path_ + "' cannot be written: " + std::strerror(errno)};
    }
    const std::string path_, temporary_;
    int file_ = -1;
    bool made_ = false;
};

// What the bytes of one tensor's record say; an error for what no file of ours says.
Result<StateTensor> tensor_of(const TensorBytes& raw) {
    if (raw.op >= kOpCount || raw.redop >= kRedOpCount || raw.bytes == 0 || raw.path == 0 ||
        raw.dtype >= kDTypeCount || raw.kind >= kStateKindCount) {
        return Status(Code::kInvalidUsage, "is damaged: a tensor of no kind");
    }
    if (raw.zero != 0) {
        return Status(Code::kInvalidUsage,
                      "has a tensor whose calls chose their codec, which was removed");
    }
    StateTensor tensor;
    tensor.tensor = {raw.comm,
                     {static_cast<Op>(raw.op), static_cast<DType>(raw.dtype),
                      static_cast<RedOp>(raw.redop), raw.root_or_peer, raw.count, raw.ranges_id},
                     raw.path,
                     raw.ordinal};
    tensor.shape = raw.shape;
    tensor.bytes = raw.bytes;
    tensor.kind = static_cast<StateKind>(raw.kind);
    tensor.loss_scale = raw.loss_scale;
    tensor.owed_at = raw.owed_at;
    return tensor;
}

TensorBytes raw_of(const StateTensor& tensor) noexcept {
    const CallSignature& signature = tensor.tensor.signature;
    TensorBytes raw{};
    raw.comm = tensor.tensor.comm;
    raw.path = tensor.tensor.path;
    raw.count = signature.count;
    raw.shape = tensor.shape;
    raw.bytes = tensor.bytes;
    raw.ordinal = tensor.tensor.ordinal;
    raw.ranges_id = signature.ranges_id;
    raw.root_or_peer = signature.root_or_peer;
    raw.op = static_cast<uint8_t>(signature.op);
    raw.dtype = static_cast<uint8_t>(signature.dtype);
    raw.redop = static_cast<uint8_t>(signature.redop);
    raw.kind = static_cast<uint8_t>(tensor.kind);
    raw.loss_scale = tensor.loss_scale;
    raw.owed_at = tensor.owed_at;
    return raw;
}

// Not blocking: a pipe would wait for a writer.
int open_file(const std::string& path) noexcept {
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

Status cannot_open(const std::string& path) {
    return {Code::kNotFound, "state file '" + path + "' cannot be opened: " + std::strerror(errno)};
}

}  // namespace

// Each step is a bijection of the sum for a given word, and of the word for a given sum: no change
// within one word is lost.
uint64_t state_checksum(uint64_t before, std::span<const std::byte> bytes) noexcept {
    uint64_t sum = before ^ 0x736C696D77697265ull;
    while (!bytes.empty()) {
        uint64_t word = 0;
        const size_t size = std::min<size_t>(bytes.size(), sizeof word);
        std::memcpy(&word, bytes.data(), size);
        sum = std::rotl(sum ^ word, 29) * 0x9E3779B97F4A7C15ull;
        bytes = bytes.subspan(size);
    }
    return sum ^ sum >> 32;
}

Status write_state(const std::string& path,
                   const StateIndex& index,
                   const ReadResiduals& read,
                   const HeldResiduals& held) {
    HeaderBytes header{};
    std::memcpy(header.magic, kStateMagic, sizeof kStateMagic);
    header.version = kVersion;
    header.comms = static_cast<uint32_t>(index.comms.size());
    header.tensors = static_cast<uint32_t>(index.tensors.size());
    header.launcher_rank = index.launcher_rank;
    header.launcher_size = index.launcher_size;
    header.config_hash = index.config_hash;
    header.step = index.step;
    header.atoms = index.atoms ? 1 : 0;
    header.left_out = index.left_out & 0x7FFFFFFF;
    header.file_bytes = sizeof header + index.comms.size() * sizeof(CommBytes) +
                        index.tensors.size() * sizeof(TensorBytes) + sizeof(uint64_t);
    for (const StateTensor& tensor : index.tensors) {
        header.file_bytes += padded(tensor.bytes) + pieces_of(tensor.bytes) * sizeof(uint64_t);
    }
    header.checksum = header_checksum(header);
    NewFile file(path);
    SLIMWIRE_TRY(file.open());
    SLIMWIRE_TRY(file.write(bytes_of(header)));
    uint64_t sum = header.checksum;
    const auto put = [&](std::span<const std::byte> bytes) {
        sum = state_checksum(sum, bytes);
        return file.write(bytes);
    };
    for (const StateComm& comm : index.comms) {
        SLIMWIRE_TRY(put(bytes_of(CommBytes{comm.key,
                                            comm.rank,
                                            comm.ranks,
                                            {comm.drawn[0], comm.drawn[1]},
                                            comm.snapshot_id,
                                            comm.drawn_alike,
                                            comm.group.number,
                                            comm.group.index,
                                            comm.group.groups,
                                            comm.group.stride,
                                            0})));
    }
    for (const StateTensor& tensor : index.tensors) {
        SLIMWIRE_TRY(put(bytes_of(raw_of(tensor))));
    }
    std::vector<uint64_t> sums;
    const auto put_piece = [&](std::span<const std::byte> bytes) {
        for (uint64_t at = 0; at < bytes.size(); at += kChecked) {
            sums.push_back(
                state_checksum(0, bytes.subspan(at, std::min(kChecked, bytes.size() - at))));
        }
        return file.write(bytes);
    };
    std::vector<std::byte> piece;
    for (size_t i = 0; i < index.tensors.size(); ++i) {
        const uint64_t bytes = index.tensors[i].bytes;
        const std::byte* const there = held ? held(i) : nullptr;
        for (uint64_t offset = 0; offset < bytes; offset += kPiece) {
            const uint64_t size = std::min(kPiece, bytes - offset);
            if (there != nullptr) {
                SLIMWIRE_TRY(put_piece(std::span(there + offset, size)));
            } else {
                piece.resize(size);
                SLIMWIRE_TRY(read(i, offset, piece));
                SLIMWIRE_TRY(put_piece(piece));
            }
            // The checksum's last word has them already.
            SLIMWIRE_TRY(file.write(bytes_of(uint64_t{0}).first(padded(size) - size)));
        }
    }
    SLIMWIRE_TRY(put(std::as_bytes(std::span(sums))));
    SLIMWIRE_TRY(file.write(bytes_of(sum)));
    return file.finish();
}

Result<StateReader> StateReader::open(const std::string& path, bool stays_open) {
    StateReader reader(open_file(path), path);
    if (reader.file_ < 0) {
        return cannot_open(path);
    }
    SLIMWIRE_TRY(reader.read_index());
    if (!stays_open) {
        ::close(std::exchange(reader.file_, -1));
    }
    return reader;
}

StateReader::StateReader(StateReader&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      inode_(other.inode_),
      path_(std::move(other.path_)),
      index_(std::move(other.index_)),
      version_(other.version_),
      begins_(std::move(other.begins_)),
      sum_(other.sum_),
      sums_(std::move(other.sums_)),
      pieces_(std::move(other.pieces_)) {}

StateReader::~StateReader() {
    if (file_ >= 0) {
        ::close(file_);
    }
}

Status StateReader::damaged(const std::string& why) const {
    return {Code::kInvalidUsage, "state file '" + path_ + "' " + why};
}

Status StateReader::read_again(uint64_t offset, std::span<std::byte> out) const {
    StateReader again(open_file(path_), path_);
    if (again.file_ < 0) {
        return cannot_open(path_);
    }
    struct stat found {};
    if (::fstat(again.file_, &found) != 0 || found.st_ino != inode_) {
        return damaged("became another while it was read");
    }
    return again.read_at(offset, out);
}

Status StateReader::read_at(uint64_t offset, std::span<std::byte> out) const {
    if (file_ < 0) {
        return read_again(offset, out);
    }
    while (!out.empty()) {
        const ssize_t got = ::pread(file_, out.data(), out.size(), static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return {Code::kSystemError,
                    "state file '" + path_ + "' cannot be read: " + std::strerror(errno)};
        }
        if (got == 0) {
            return damaged("became shorter while it was read");
        }
        offset += static_cast<uint64_t>(got);
        out = out.subspan(static_cast<size_t>(got));
    }
    return {};
}

Status StateReader::read_index() {
    struct stat found {};
    const bool regular = ::fstat(file_, &found) == 0 && S_ISREG(found.st_mode);
    const auto file_bytes = static_cast<uint64_t>(found.st_size);
    inode_ = found.st_ino;
    if (!regular || file_bytes < sizeof(HeaderBytes) + sizeof(uint64_t)) {
        return damaged("is no saved state of slimwire: too short, or not a regular file");
    }
    HeaderBytes header{};
    SLIMWIRE_TRY(read_at(0, std::as_writable_bytes(std::span(&header, 1))));
    if (std::memcmp(header.magic, kStateMagic, sizeof kStateMagic) != 0) {
        return damaged("is no saved state of slimwire: it begins otherwise");
    }
    if (header.version < kOldestVersion || header.version > kVersion) {
        return damaged("has version " + std::to_string(header.version) +
                       "; this slimwire reads versions " + std::to_string(kOldestVersion) + " to " +
                       std::to_string(kVersion));
    }
    if (header.checksum != header_checksum(header)) {
        return damaged("is damaged: its header's checksum is wrong");
    }
    version_ = header.version;
    const uint64_t comm_bytes = version_ < 7 ? kOldCommBytes : sizeof(CommBytes);
    const uint64_t records =
        header.comms * comm_bytes + uint64_t{header.tensors} * sizeof(TensorBytes);
    if (header.file_bytes != file_bytes ||
        records > file_bytes - sizeof header - sizeof(uint64_t)) {
        return damaged("has " + std::to_string(file_bytes) + " bytes instead of " +
                       std::to_string(header.file_bytes) + ": cut short or damaged");
    }
    index_.config_hash = header.config_hash;
    index_.launcher_rank = header.launcher_rank;
    index_.launcher_size = header.launcher_size;
    index_.step = header.step;
    index_.atoms = header.atoms == 1;
    index_.left_out = header.left_out;
    std::vector<std::byte> comms(header.comms * comm_bytes);
    std::vector<TensorBytes> tensors(header.tensors);
    SLIMWIRE_TRY(read_at(sizeof header, comms));
    SLIMWIRE_TRY(read_at(sizeof header + comms.size(), std::as_writable_bytes(std::span(tensors))));
    sum_ = header.checksum;
    for (size_t at = 0; at < comms.size(); at += comm_bytes) {
        CommBytes comm{};
        comm.groups = comm.stride = 1;
        std::memcpy(&comm, comms.data() + at, comm_bytes);
        sum_ = state_checksum(sum_, std::span(comms).subspan(at, comm_bytes));
        if (comm.groups == 0 || comm.stride == 0) {
            return damaged("is damaged: a communicator of no ranks");
        }
        index_.comms.push_back({comm.key,
                                comm.rank,
                                comm.ranks,
                                {comm.drawn[0], comm.drawn[1]},
                                comm.snapshot_id,
                                comm.drawn_alike,
                                {comm.number, comm.index, comm.groups, comm.stride}});
    }
    uint64_t left = file_bytes - sizeof header - records - sizeof(uint64_t);
    begins_.push_back(sizeof header + records);
    pieces_.push_back(0);
    std::set<std::pair<LastingTensor, StateKind>> seen;
    for (const TensorBytes& raw : tensors) {
        sum_ = state_checksum(sum_, bytes_of(raw));
        Result<StateTensor> tensor = tensor_of(raw);
        if (!tensor.ok()) {
            return damaged(tensor.status().message());
        }
        const StateKind kind = tensor.value().kind;
        if (raw.bytes > left || padded(raw.bytes) > left ||
            !seen.insert({tensor.value().tensor, record_of(kind)}).second) {
            return damaged("is damaged: its tensors do not fit it");
        }
        const auto of = std::find_if(index_.comms.begin(), index_.comms.end(),
                                     [&](const StateComm& comm) { return comm.key == raw.comm; });
        if (of_all_ranks(kind) && (of == index_.comms.end() || of->snapshot_id == 0)) {
            return damaged("is damaged: a tensor of all ranks is of no moment");
        }
        left -= padded(raw.bytes);
        begins_.push_back(begins_.back() + padded(raw.bytes));
        pieces_.push_back(pieces_.back() + (checks_reads() ? pieces_of(raw.bytes) : 0));
        index_.tensors.push_back(std::move(tensor).value());
    }
    if (left != pieces_.back() * sizeof(uint64_t)) {
        return damaged("is damaged: its tensors do not fill it");
    }
    return checks_reads() ? read_sums() : Status();
}

Status StateReader::read_sums() {
    sums_.resize(pieces_.back());
    const auto raw = std::as_writable_bytes(std::span(sums_));
    SLIMWIRE_TRY(read_at(begins_.back(), raw));
    uint64_t wanted = 0;
    SLIMWIRE_TRY(
        read_at(begins_.back() + raw.size(), std::as_writable_bytes(std::span(&wanted, 1))));
    return state_checksum(sum_, raw) == wanted ? Status()
                                               : damaged("is damaged: its checksum is wrong");
}

std::span<const uint64_t> StateReader::sums(size_t tensor) const noexcept {
    return std::span(sums_).subspan(pieces_[tensor], pieces_[tensor + 1] - pieces_[tensor]);
}

Status StateReader::read(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
    const uint64_t bytes = padded(index_.tensors[tensor].bytes);
    if (offset > bytes || out.size() > bytes - offset) {
        return damaged("is damaged: its tensors do not fit it");
    }
    if (!checks_reads() || out.empty()) {
        return read_at(begins_[tensor] + offset, out);
    }
    const uint64_t first = offset / kChecked, begin = first * kChecked;
    const uint64_t end = std::min(bytes, pieces_of(offset + out.size()) * kChecked);
    std::vector<std::byte> more;
    std::span<std::byte> whole = out;
    if (begin != offset || end != offset + out.size()) {
        more.resize(end - begin);
        whole = more;
    }
    SLIMWIRE_TRY(read_at(begins_[tensor] + begin, whole));
    for (const uint64_t sum : sums(tensor).subspan(first, pieces_of(whole.size()))) {
        const uint64_t size = std::min<uint64_t>(kChecked, whole.size());
        if (state_checksum(0, whole.first(size)) != sum) {
            return damaged("is damaged: its checksum is wrong");
        }
        whole = whole.subspan(size);
    }
    if (!more.empty()) {
        std::copy_n(more.begin() + static_cast<ptrdiff_t>(offset - begin), out.size(), out.begin());
    }
    return {};
}

Status StateReader::check(const UsePiece& use) const {
    uint64_t sum = sum_;
    std::vector<std::byte> piece;
    for (size_t i = 0; i < index_.tensors.size(); ++i) {
        const uint64_t bytes = index_.tensors[i].bytes;
        for (uint64_t offset = 0; offset < bytes; offset += kPiece) {
            const uint64_t size = std::min(kPiece, bytes - offset);
            piece.resize(padded(size));
            SLIMWIRE_TRY(read(i, offset, piece));
            sum = checks_reads() ? sum : state_checksum(sum, piece);
            if (use) {
                use(i, offset, std::span(piece).first(size));
            }
        }
    }
    if (checks_reads()) {
        return {};
    }
    uint64_t wanted = 0;
    SLIMWIRE_TRY(read_at(begins_.back(), std::as_writable_bytes(std::span(&wanted, 1))));
    return sum == wanted ? Status() : damaged("is damaged: its checksum is wrong");
}

std::string left_out_text(uint64_t tensors) {
    return "the residuals of " + std::to_string(tensors) +
           " tensors that are told apart by their buffers' addresses, which another process does "
           "not know: their slot in the step is not known (slimwire_mark_step tells it)";
}

bool begins_as_state(const std::string& path) noexcept {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        return false;
    }
    struct stat found {};
    char magic[sizeof kStateMagic] = {};
    const bool read = ::fstat(file, &found) == 0 && S_ISREG(found.st_mode) &&
                      ::pread(file, magic, sizeof magic, 0) == sizeof magic;
    ::close(file);
    return read && std::memcmp(magic, kStateMagic, sizeof magic) == 0;
}

Result<StateContent> read_state(const std::string& path) {
    SLIMWIRE_TRY_ASSIGN(const StateReader reader, StateReader::open(path));
    return read_state(reader);
}

Result<StateContent> read_state(const StateReader& reader) {
    StateContent content;
    content.index = reader.index();
    for (const StateTensor& tensor : content.index.tensors) {
        content.held.push_back(std::make_unique<std::byte[]>(tensor.bytes));
    }
    SLIMWIRE_TRY(reader.check([&](size_t i, uint64_t offset, std::span<const std::byte> bytes) {
        std::copy(bytes.begin(), bytes.end(), content.held[i].get() + offset);
    }));
    return content;
}

}  // namespace slimwire
