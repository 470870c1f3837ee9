// Fuzz target: saved states. The first bytes of an input draw a job's files, the others what
// becomes of them. Whole files are a whole job, which stays one on other ranks; a byte that
// changed, a cut or a file that is missing or another's is found, also in the file of weights; and
// whatever files say whose checksums are right, they are a job or an error with its reason, and
// take no more memory than they are large.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "collectives/state/conversion.h"
#include "collectives/state/weights.h"
#include "tests/fuzz/reader.h"

namespace {

using namespace slimwire;
using Bytes = std::vector<std::byte>;

const std::string& folder() {
    static const auto* const made = [] {  // as long as what runs at exit
        const bool memory = ::access("/dev/shm", W_OK) == 0;
        const auto base = memory ? "/dev/shm" : std::filesystem::temp_directory_path();
        const std::string path = base / ("slimwire-fuzz-" + std::to_string(::getpid()));
        std::filesystem::remove_all(path);  // of a former process that was killed
        if (!std::filesystem::create_directory(path)) {
            finding("no folder for the files");
        }
        std::atexit([] { std::filesystem::remove_all(folder()); });
        return new std::string(path);
    }();
    return *made;
}

std::string file_of(int rank) {
    return folder() + "/state." + std::to_string(rank);
}

template <class T>
void put(Bytes* file, size_t at, T value) {
    if (at + sizeof value <= file->size()) {
        std::memcpy(file->data() + at, &value, sizeof value);
    }
}
template <class T>
T number_at(const Bytes& file, size_t at) {
    T value{};
    std::memcpy(&value, file.data() + at, sizeof value);
    return value;
}

// Makes sizes and checksums right (FORMAT.md), as far as the records lie in the file.
void seal(Bytes* file) {
    constexpr size_t kHeader = 64, kTensor = 80, kPiece = 16384;
    if (file->size() < kHeader + 8) {
        return;
    }
    const bool old = number_at<uint32_t>(*file, 8) < 7;  // of pieces it has no checksums
    const size_t comm = old ? 40 : 56;
    const std::span<const std::byte> all(*file);
    put(file, 48, static_cast<uint64_t>(file->size()));
    uint64_t sum = state_checksum(0, all.first(56));
    put(file, 56, sum);
    size_t at = kHeader;
    const size_t end = file->size() - 8;
    const auto take = [&](uint64_t bytes) {
        const bool there = bytes <= end - at;
        if (there) {
            sum = state_checksum(sum, all.subspan(at, bytes));
            at += bytes;
        }
        return there;
    };
    std::vector<uint64_t> sizes;
    bool there = true;
    for (uint32_t i = 0; there && i < number_at<uint32_t>(*file, 12); ++i) {
        there = take(comm);
    }
    for (uint32_t i = 0; there && i < number_at<uint32_t>(*file, 16); ++i) {
        there = take(kTensor);
        sizes.push_back(there ? number_at<uint64_t>(*file, at - 40) : 0);
    }
    std::vector<uint64_t> sums;
    for (size_t i = 0; there && i < sizes.size(); ++i) {
        const uint64_t bytes = (sizes[i] + 7) / 8 * 8;
        there = sizes[i] <= end && bytes <= end - at;
        for (size_t from = 0; there && !old && from < bytes; from += kPiece) {
            sums.push_back(
                state_checksum(0, all.subspan(at + from, std::min<size_t>(kPiece, bytes - from))));
        }
        there = there && (old ? take(bytes) : true);
        at += there && !old ? bytes : 0;
    }
    for (size_t i = 0; there && i < sums.size(); ++i) {
        put(file, at + 8 * i, sums[i]);
    }
    there = there && !old && take(8 * sums.size());
    put(file, end, sum);
}

// What a rank keeps of a tensor: a contribution, and its chunk of sums where `sums`. With EF21
// `follows` the sum, too, with `alike` something is in front of all, and what `waits` are atoms.
struct Tensor {
    LastingTensor name;
    ResidualType type = ResidualType::kFloat32;
    int64_t elems = 1;
    bool sums = false, follows = false, alike = false, waits = false;
    uint8_t value = 1;
};

void save(int rank, int ranks, uint64_t job, std::span<const Tensor> tensors) {
    StateIndex index;
    index.config_hash = job;
    index.launcher_rank = rank;
    index.launcher_size = ranks;
    index.step = 7;
    const uint64_t key = 100 + static_cast<uint64_t>(rank);
    index.comms.push_back({key, rank, ranks, {3, 4}, 9, 0, {1}});
    index.comms.push_back({atoms_key({1}), rank, ranks, {3, 4}, 9, 0, {1}});
    std::vector<Bytes> all;
    const auto add = [&](LastingTensor name, StateKind kind, Bytes bytes) {
        name.comm = name.comm == 0 ? key : name.comm;
        index.tensors.push_back({name, 0, bytes.size(), kind});
        all.push_back(std::move(bytes));
    };
    for (const Tensor& tensor : tensors) {
        if (tensor.waits) {
            LastingTensor atom = tensor.name;
            atom.comm = atoms_key({1});
            const Bytes values(static_cast<size_t>(tensor.elems) * sizeof(float),
                               static_cast<std::byte>(tensor.value & 0x3F));
            add(atom, tensor.follows ? StateKind::kEstimates : StateKind::kOwed, values);
            if (tensor.follows) {
                add(atom, StateKind::kEstimateOfSum, values);
            }
            if (tensor.sums) {
                add(atom, StateKind::kOwedBySums, values);
            }
            if (tensor.alike) {
                add(atom, StateKind::kAlike, Bytes(24, std::byte{7}));
            }
            index.tensors.back().owed_at = tensor.value % 9;
            continue;
        }
        // Chunks of sums begin where blocks do, and have less elements than contributions.
        const int64_t begin = (tensor.elems + 63) / 64 * 64;
        const int64_t chunk = (tensor.elems + ranks - 1) / ranks,
                      at = std::min(rank * chunk, tensor.elems);
        ResidualMap map{.type = tensor.type,
                        .contributors = static_cast<uint32_t>(ranks),
                        .unit = 1.0 / ranks,
                        .state_bytes = tensor.alike ? 16u : 0u,
                        .stored_elems = static_cast<uint64_t>((tensor.follows ? 3 : 2) * begin),
                        .elems = static_cast<uint64_t>(tensor.elems),
                        .runs = {{0, tensor.elems, 0, 0, 0}}};
        if (tensor.value % 2 != 0) {
            map.model = 3;
            map.parameters = {{1, 0, 0, tensor.elems / 2 + 1},
                              {0, 0, tensor.elems / 2, tensor.elems - tensor.elems / 2}};
        }
        for (size_t i = 0; tensor.value % 5 == 1 && i < std::max<size_t>(map.parameters.size(), 1);
             ++i) {
            map.names.push_back(
                {"name " + std::to_string(tensor.value % 3 + i),
                 tensor.value % 4 == 3 ? ResidualMap::kReplicated : tensor.value % 4u});
        }
        if (tensor.sums) {
            map.runs.push_back({begin, std::min(chunk, tensor.elems - at), at, 1, 0});
        }
        if (tensor.follows) {
            map.runs.push_back({2 * begin, tensor.elems, 0, 3, 0});
        }
        Bytes store(map.state_bytes + map.store_bytes());
        for (const ResidualMap::Run& run : map.runs) {
            const std::vector<float> values(static_cast<size_t>(run.count), tensor.value);
            write_run(map, store.data(), run, values);
        }
        add(tensor.name,
            tensor.alike || tensor.follows ? StateKind::kShared : StateKind::kResiduals,
            std::move(store));
        add(tensor.name, StateKind::kMap, bytes_of(map));
    }
    if (ranks > 1 && tensors[0].value % 8 == 3) {
        // Each rank is a group of its own.
        const uint64_t own = 300 + static_cast<uint64_t>(rank);
        index.comms.push_back({own,
                               0,
                               1,
                               {},
                               9,
                               0,
                               {1, static_cast<uint32_t>(rank), static_cast<uint32_t>(ranks), 1}});
        const LastingTensor name{own, {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 3}, 6, 0};
        add(name, StateKind::kResiduals, Bytes(12, static_cast<std::byte>(rank)));
        add(name, StateKind::kMap,
            bytes_of(
                {.contributors = 1, .stored_elems = 3, .elems = 3, .runs = {{0, 3, 0, 0, 0}}}));
    }
    LastingTensor counted;
    counted.path = 5;
    add(counted, StateKind{4}, Bytes(8, std::byte{6}));
    add(counted, StateKind::kMessages, Bytes(16, static_cast<std::byte>(rank)));
    const Status written =
        write_state(file_of(rank), index, [&](size_t i, uint64_t offset, auto out) {
            std::copy_n(all[i].begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
            return Status();
        });
    if (!written.ok()) {
        finding(written.message());
    }
}

// Whether the files are a whole job; then it is one on other ranks, too.
bool whole(int ranks, ConversionOptions options) {
    options.own = -1;
    const Result<SavedJob> job = SavedJob::open(folder());
    if (!job.ok() || !job.value().findings().empty()) {
        const std::string why = job.ok() ? job.value().findings().front() : job.status().message();
        if (why.find(folder()) == std::string::npos && why.find("count ") == std::string::npos &&
            why.find("there ") == std::string::npos) {
            finding("an error says neither which file nor which tensor: " + why);
        }
        return false;
    }
    Conversion conversion(job.value(), ranks, options);
    if (!conversion.plan().ok()) {
        return true;
    }
    uint64_t bytes = 0;
    for (const StateTensor& tensor : conversion.index().tensors) {
        bytes += tensor.bytes;
    }
    // An atom has 4 bytes an element, of which a rank stored at least one; and padding.
    const uint64_t padding = 4 * static_cast<uint64_t>(ranks) * conversion.index().tensors.size();
    if (bytes > 8 * job.value().bytes() + padding) {
        finding("a conversion is much larger than what it is made of");
    }
    std::filesystem::remove_all(folder() + "/then");
    std::filesystem::create_directory(folder() + "/then");
    for (int rank = 0; rank < ranks; ++rank) {
        const Status written = write_state(
            folder() + "/then/state." + std::to_string(rank), conversion.index(),
            [&](size_t i, uint64_t offset, auto out) { return conversion.read(i, offset, out); });
        if (!written.ok()) {
            finding("a whole job cannot be read: " + written.message());
        }
    }
    const Result<SavedJob> then = SavedJob::open(folder() + "/then");
    if (!then.ok() || !then.value().findings().empty()) {
        finding("a conversion is no whole job: " +
                (then.ok() ? then.value().findings().front() : then.status().message()));
    }
    return true;
}

// What a rank that comes back reads (converted_state): nothing where the state is refused, or of a
// record whose reading says what is wrong.
std::vector<Bytes> read_share(int ranks, const ConversionOptions& options) {
    std::vector<std::string> left_out;
    const Result<StateContent> content = converted_state(folder(), ranks, options, &left_out);
    std::vector<Bytes> all;
    for (size_t i = 0; content.ok() && i < content.value().index.tensors.size(); ++i) {
        const uint64_t bytes = content.value().index.tensors[i].bytes;
        Bytes record(content.value().held[i] == nullptr ? std::min<uint64_t>(bytes, 1 << 20) : 0);
        if (!record.empty() && !content.value().read(i, 0, record).ok()) {
            record.clear();
        }
        all.push_back(std::move(record));
    }
    return all;
}

Bytes read(int rank) {
    std::ifstream stream(file_of(rank), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
    return {begin, begin + text.size()};
}
void write(int rank, const Bytes& bytes) {
    std::ofstream(file_of(rank), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
}

// Weights that were written are read, and none from a file of which a byte changed or is missing.
void check_weights(Reader* reader) {
    const std::string path = weights_path(folder(), std::nullopt);
    SavedWeights weights;
    weights.print.square_sum = reader->byte();
    weights.step_calls = reader->byte();
    if (!write_weights(path, weights).ok() || !read_weights(path).has_value() ||
        !read_weights(path)->print.same(weights.print)) {
        finding("weights are not read as they were written");
    }
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(reader->byte() % 56);
    file.seekg(at);
    const int before = file.get(), after = reader->byte();
    file.seekp(at);
    file.put(static_cast<char>(after));
    file.close();
    if (before != after && read_weights(path).has_value()) {
        finding("damaged weights are read");
    }
    std::filesystem::resize_file(path, static_cast<uintmax_t>(at));
    if (read_weights(path).has_value()) {
        finding("weights that are cut are read");
    }
}

// One thing that happens to files; whether they are others than before.
bool damage(Reader* reader, int ranks, std::span<const Tensor> tensors) {
    const int rank = reader->byte() % ranks;
    Bytes file = read(rank);
    const uint64_t at = file.empty() ? 0 : reader->number() % file.size();
    const Bytes before = file;
    switch (reader->byte() % 6) {
        case 0:
            file.resize(at);
            break;
        case 1:
            file.resize(file.size() + 1 + at % 9);
            break;
        case 2:
            return ranks > 1 && std::filesystem::remove(file_of(rank));
        case 3:
            save(rank, ranks, 78, tensors);  // of another job
            return ranks > 1;
        case 4:
            if (ranks > 1) {
                write(rank, read((rank + 1) % ranks));
            }
            return ranks > 1 && read(rank) != before;
        default:
            if (!file.empty()) {
                file[at] = static_cast<std::byte>(reader->byte());
            }
    }
    write(rank, file);
    return file != before;
}

// Other values in the fields of a file, whose checksums are right again.
void forge(Reader* reader, int ranks) {
    constexpr uint64_t kValues[] = {0,
                                    1,
                                    2,
                                    255,
                                    1 << 16,
                                    uint64_t{1} << 32,
                                    uint64_t{1} << 48,
                                    ~uint64_t{0},
                                    uint64_t{1} << 63};
    const int rank = reader->byte() % ranks;
    Bytes file = read(rank);
    for (int i = 1 + reader->byte() % 4; i > 0 && !file.empty(); --i) {
        const size_t at = reader->number() % file.size();
        const uint64_t value = kValues[reader->byte() % std::size(kValues)];
        switch (reader->byte() % 4) {
            case 0:
                put(&file, at, reader->byte());
                break;
            case 1:
                put(&file, at / 4 * 4, static_cast<uint32_t>(value));
                break;
            case 2:
                put(&file, at / 8 * 8, value);
                break;
            default:
                file.resize(at);
        }
    }
    seal(&file);
    write(rank, file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Reader reader(data, size);
    std::filesystem::remove_all(folder());
    std::filesystem::create_directory(folder());
    const int ranks = 1 + reader.byte() % 3;
    std::vector<Tensor> tensors(1 + reader.byte() % 3);
    for (size_t i = 0; i < tensors.size(); ++i) {
        Tensor& tensor = tensors[i];
        const bool shards = reader.byte() % 2 == 0;
        tensor.elems = 1 + reader.byte() % 64;
        tensor.elems *= reader.byte() % 16 == 0 ? 200 : 1;  // several pieces
        const auto chunk = static_cast<uint64_t>((tensor.elems + ranks - 1) / ranks);
        tensor.elems = shards ? static_cast<int64_t>(chunk) * ranks : tensor.elems;
        tensor.name.signature = {shards ? Op::kReduceScatter : Op::kAllReduce, DType::kFloat32,
                                 RedOp::kAvg, 0,
                                 shards ? chunk : static_cast<uint64_t>(tensor.elems)};
        tensor.name.path = 6;
        tensor.name.ordinal = static_cast<uint32_t>(i);
        tensor.type = static_cast<ResidualType>(reader.byte() % 3);
        const uint8_t how = reader.byte();
        tensor.sums = how % 2 == 0;
        tensor.follows = how % 4 / 2 == 1;
        tensor.alike = how % 8 / 4 == 1;
        tensor.waits = how % 16 / 8 == 1;
        tensor.value = reader.byte();
    }
    for (int rank = 0; rank < ranks; ++rank) {
        save(rank, ranks, 77, tensors);
    }
    check_weights(&reader);
    const int then = 1 + reader.byte() % 5;
    const uint8_t drawn = reader.byte();
    const ConversionOptions options{.drop = drawn % 2 == 0,
                                    .flat_shards = drawn / 2 % 2 == 0,
                                    .own = drawn / 4 % (then + 1) - 1};
    switch (reader.byte() % 4) {
        case 0:
            if (!whole(then, options)) {
                finding("what a job saved is not whole");
            }
            break;
        case 1: {
            const std::vector<Bytes> before = read_share(then, options);
            const bool damaged = damage(&reader, ranks, tensors);
            const std::vector<Bytes> after = read_share(then, options);
            for (size_t i = 0; i < after.size(); ++i) {
                if (!after[i].empty() && after[i] != before.at(i)) {
                    finding("what is damaged is read");
                }
            }
            if (damaged && whole(then, options)) {
                finding("damage is not found");
            }
            break;
        }
        default:
            for (int i = reader.byte() % 3; i >= 0; --i) {
                forge(&reader, ranks);
            }
            (void)whole(then, options);
            (void)read_share(then, options);
    }
    return 0;
}
