// A job that saves its state and goes on with other ranks, on other nodes or under another policy
// still owes what it owed (`slimwire state convert`, SLIMWIRE_STATE).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "collectives/state/atoms.h"
#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

struct Ranks {
    const char* name;
    const char* rule;
    const char* scatter = nullptr;  // the rule of reduce-scatters where it is another one
    int before = 2, after = 4;
    const char *nodes = nullptr, *then = nullptr;  // "2x4": of four ranks each; and after
    bool sums = false;                             // and not averages
    bool ring = false;                             // by SLIMWIRE_STATE alone
    const char* later = nullptr;                   // the rule after
    bool unmarked = false;                         // by the ring, and no step is marked
    int hybrid = 0;                                // so many ranks share a copy of the model
    bool table = false;  // the bucket is several of parameters, others after, whose vectors are raw
    int hybrid_then = hybrid;
    bool named = false;     // the parameters are, and in another order of the model after
    bool converts = false;  // the saving of the ring, which does not find it itself
};

constexpr char kBoth[] = "allreduce\", \"reducescatter";

class AnotherNumberOfRanks : public testing::TestWithParam<Ranks> {
  protected:
    // What rank 0 printed.
    std::string run(int ranks, const char* nodes, std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), SLIMWIRE_TEST_CHECKPOINTED);
        if (GetParam().sums) {
            arguments.emplace_back("sum");
        }
        if (GetParam().unmarked) {
            arguments.emplace_back("unmarked");
        }
        const Ranks& of = GetParam();
        if (const int sharing = ranks == of.before ? of.hybrid : of.hybrid_then; sharing > 0) {
            arguments.emplace_back("hybrid=" + std::to_string(sharing));
        }
        arguments.insert(arguments.end(), more_.begin(), more_.end());
        Job job = slimwire_job(arguments, ranks);
        job.environment["SLIMWIRE_POLICY"] = policy_;
        job.environment["runtime.summary"] = "0";
        job.environment["SLIMWIRE_EMU_DEVICES"] = "2";  // of which it uses the last
        if (GetParam().ring && rings_) {
            job.environment["SLIMWIRE_STATE"] = folder_.file("ring") +
                                                (GetParam().unmarked ? ",every=12" : ",every=3") +
                                                load_ + shards_;
        }
        if (nodes != nullptr) {
            job.environment["SLIMWIRE_EMU_NODES"] = nodes;
            job.environment["SLIMWIRE_EMU_DEVICES"] = "1";  // a rank is one of its node
        }
        const std::vector<Ended> ended = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ended), "");
        for (const Ended& rank : ended) {
            EXPECT_TRUE(rank.err.empty() || ranks == 1 || warns_) << rank.err;
        }
        said_ = ended.empty() ? "" : ended[0].err;
        printed_.clear();
        for (const Ended& rank : ended) {
            printed_.push_back(rank.out);
        }
        return ended.empty() ? "" : ended[0].out;
    }
    // A fresh folder of the test's.
    std::string made(const char* name) const {
        std::filesystem::create_directory(folder_.file(name));
        return folder_.file(name);
    }
    // The parameters go on in another folder.
    static void copy_model(const std::string& from, const std::string& to) {
        std::filesystem::copy_file(from + "/state.%r.model", to + "/state.%r.model",
                                   std::filesystem::copy_options::overwrite_existing);
    }
    void put_rule(const std::string& operations, const std::string& actions) const {
        std::ofstream(policy_) << "version = 1\n[[rule]]\nname = \"all\"\nmatch = { op = [\""
                               << operations << "\"] }\n"
                               << actions;
    }
    std::vector<std::string> tables(const char* which) const {
        std::vector<std::string> all(GetParam().table ? 1 : 0, which);
        all.insert(all.end(), GetParam().named ? 1 : 0, "named");
        return all;
    }
    static void convert(const std::string& from, int ranks, const std::string& to) {
        Job job;
        job.command = {SLIMWIRE_TEST_CLI,     "state", "convert", from,       "--ranks",
                       std::to_string(ranks), "--out", to,        "--shards", "flat"};
        const std::vector<Ended> converted = run_ranks(job);
        ASSERT_EQ(unless_all_exit(converted), "") << converted[0].err;
    }
    // Of the bucket and both units, what the saved state says is owed.
    std::vector<double> owed(const std::string& folder) {
        const Result<SavedJob> job = SavedJob::open(folder);
        EXPECT_TRUE(job.ok()) << job.status().message();
        if (!job.ok()) {
            return {};
        }
        EXPECT_EQ(job.value().findings(), std::vector<std::string>());
        std::vector<double> all(kParameters);
        size_t found = 0;
        for (const Atom& atom : job.value().atoms()) {
            if (atom.elems() == 0 || atom.key.comm == kWholeTensors) {
                continue;  // nothing, or what waits for ranks that can share it
            }
            const RankGroup& group = atom.key.group;
            if (const auto& map = atom.shares.front().map; map != nullptr) {
                EXPECT_EQ(map->contributors < atom.shares.size(), GetParam().nodes != nullptr);
            }
            const bool bucket = atom.key.signature.op == Op::kAllReduce && group.of_all();
            const bool whole = atom.key.signature.op == Op::kReduceScatter;
            const bool first = !bucket && atom.elems() * (whole ? 1 : group.groups) < 70000;
            const size_t begin = bucket ? 0 : first ? kBucket : kBucket + 30000;
            const size_t count = bucket ? kBucket : first ? 30000 : 70001;
            // Copies of each part of the units have it, with padding; or the averages of copies.
            const bool part = group.of_some() && atom.key.signature.op == Op::kAllReduce;
            const size_t from = part ? group.index * atom.elems() : 0;
            const double share = part ? 1 : 1.0 / group.groups;
            std::vector<Place> places{
                {0, begin + from, part ? std::min(atom.elems(), count - from) : count}};
            if (bucket && GetParam().table) {
                places = places_of(atom);
            }
            for (const Place& place : places) {
                for (const bool sums : {false, true}) {
                    std::vector<double> owed_here(place.count);
                    EXPECT_TRUE(job.value().owed(atom, sums, place.at, owed_here).ok());
                    for (size_t i = 0; i < place.count; ++i) {
                        all[place.begin + i] += share * owed_here[i];
                    }
                }
                found += place.count;
            }
        }
        EXPECT_TRUE(found == kParameters || GetParam().table || GetParam().hybrid > 0 ||
                    !more_.empty())
            << found;
        return all;
    }
    // Elements of an atom, and where in the bucket they are.
    struct Place {
        size_t at, begin, count;
    };
    // Of its parameters, which have a number of elements each: of a bucket's, or of an atom of one.
    static std::vector<Place> places_of(const Atom& atom) {
        static const std::map<size_t, size_t> kBegins = {
            {200000, 0}, {500, 200000}, {60000, 200500}, {300, 260500}, {2344, 260800}};
        const ResidualMap* const map = atom.shares.front().map.get();
        std::vector<ResidualMap::Parameter> parameters{
            {0, 0, 0, static_cast<int64_t>(atom.elems())}};
        std::vector<Place> places;
        for (const auto& one : map != nullptr ? map->parameters : parameters) {
            const auto count = static_cast<size_t>(one.count);
            places.push_back({static_cast<size_t>(one.at), kBegins.at(count), count});
        }
        return places;
    }
    std::vector<double> balance(const std::string& path) {
        const std::string bytes = read_file(path + ".balance");
        std::vector<double> all(kParameters);
        EXPECT_EQ(bytes.size(), all.size() * sizeof(double));
        std::memcpy(all.data(), bytes.data(), std::min(bytes.size(), all.size() * sizeof(double)));
        return all;
    }
    static double distance(const std::vector<double>& a, const std::vector<double>& b) {
        double square = 0, of = 0;
        for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
            square += (a[i] - b[i]) * (a[i] - b[i]);
            of += b[i] * b[i];
        }
        return std::sqrt(square / of);
    }
    static constexpr size_t kBucket = 262144 + 1000, kParameters = kBucket + 30000 + 70001;
    const TemporaryFolder folder_;
    const std::string policy_ = folder_.file("policy.toml");
    std::string load_, shards_ = ",shards=flat";  // behind the folder of SLIMWIRE_STATE
    bool rings_ = true;
    std::vector<std::string> more_;  // arguments
    bool warns_ = false;
    std::string said_;                  // by rank 0
    std::vector<std::string> printed_;  // by each rank
};

std::string vectors_of(bool named) {
    return std::string(
               "[[rule]]\nname = \"vectors\"\nmatch = { op = \"allreduce\", param = \"1d\"") +
           (named ? ", name = \"parameter *\"" : "") + " }\ncodec = \"native\"\n";
}

TEST_P(AnotherNumberOfRanks, IsOwedWhatTheOneBeforeWas) {
    if (std::string(SLIMWIRE_TEST_CLI).empty()) {
        GTEST_SKIP() << "the states are converted by the command line, which is only built where "
                        "CLI11, fmt and nlohmann-json are";
    }
    const Ranks& of = GetParam();
    const auto put_policy = [&](const char* sums, const char* shards) {
        std::ofstream(policy_) << "version = 1\n"
                               << (of.table ? vectors_of(of.named) : "")
                               << "[[rule]]\nname = \"sums\"\n"
                               << "match = { op = \"allreduce\" }\n"
                               << sums << "[[rule]]\nname = \"shards\"\n"
                               << "match = { op = \"reducescatter\" }\n"
                               << shards;
    };
    put_policy(of.rule, of.scatter != nullptr ? of.scatter : of.rule);
    const std::string first = made("first"), second = made("second"),
                      laid_out = folder_.file("laid_out");
    // Steps are found by the ninth, and counted from the first on.
    const std::string at = of.unmarked ? "12" : "3",
                      end = std::to_string(std::stoi(at) + (of.ring ? 1 : 0)),
                      last = std::to_string(std::stoi(at) + (of.unmarked ? 6 : 2));
    // Those of a job that divides them by the number of ranks.
    const bool mean = of.sums && of.ring;
    shards_ += mean ? ",sums=mean" : "";
    more_ = tables("table=1");
    run(of.before, of.nodes, {"0", end, "-", first + "/state.%r", at});
    const std::vector<double> before = owed(first);
    EXPECT_LT(distance(before, balance(first + "/state.%r")), 1e-3)
        << "what is saved is what the reductions so far lack";
    rings_ = !of.converts;
    if (of.converts) {
        convert(folder_.file("ring/step-3.run-1.of-" + std::to_string(of.before)), of.after,
                laid_out);
    } else if (of.ring) {
        std::filesystem::create_directory(laid_out);
    } else {
        convert(first, of.after, laid_out);
    }
    copy_model(first, laid_out);
    if (of.later != nullptr) {
        put_policy(of.later, of.later);
    }
    more_ = tables("table=2");
    run(of.after, of.then, {at, last, laid_out + "/state.%r", second + "/state.%r", last});
    if (of.after == 1) {
        // Nothing is compressed, and so it still waits: for as many ranks as before.
        const std::string back = folder_.file("back"), third = made("third");
        convert(second, of.before, back);
        copy_model(second, back);
        run(of.before, of.nodes, {"5", "7", back + "/state.%r", third + "/state.%r", "7"});
        std::filesystem::remove_all(second);
        std::filesystem::rename(third, second);
    }
    std::vector<double> wanted = before;
    const std::vector<double> more = balance(second + "/state.%r");
    for (size_t i = 0; i < wanted.size(); ++i) {
        wanted[i] = (mean ? static_cast<double>(of.after) / of.before : 1) * wanted[i] + more[i];
    }
    EXPECT_LT(distance(owed(second), wanted), 1e-3);
}

// A job that marks no steps brings to the bit what it would have brought had it never stopped, but
// for three steps that were native.
class WithoutMarks : public AnotherNumberOfRanks {};

TEST_P(WithoutMarks, GoesOnToTheBit) {
    put_rule(GetParam().hybrid > 0 ? "reducescatter" : kBoth, GetParam().rule);
    const std::string state = folder_.file("state.%r");
    const int ranks = GetParam().before;
    run(ranks, nullptr, {"0", "13", "-", state, "12"});
    const std::string later = run(ranks, nullptr, {"12", "18", state, "-", "0"});
    EXPECT_NE(later, "");
    std::filesystem::remove_all(folder_.file("ring"));
    more_ = {"pause"};
    const std::string whole = run(ranks, nullptr, {"0", "18", "-", "-", "-1"});
    EXPECT_TRUE(whole.ends_with(later)) << whole << "and later\n" << later;
}

constexpr char kInt4[] = "codec = \"int4\"\nerror_feedback = \"ef14\"\n";
constexpr char kNative[] = "codec = \"native\"\n";
constexpr char kTopk[] = "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n";
constexpr char kNodes[] =
    "codec = \"int4\"\nerror_feedback = \"ef14\"\nalgorithm = \"hierarchical\"\n";
// Two of the three calls of a tensor are a window.
constexpr char kWindows[] =
    "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n"
    "accordion = { low = \"topk:fraction=0.2\", window = 2, ratio = 0.5, hysteresis = 1 }\n";
constexpr Ranks of_parameters(const char* name, int after, bool ring, bool named = false) {
    Ranks of{name, kInt4, nullptr, 2, after};
    of.ring = ring;
    of.table = true;
    of.named = named;
    return of;
}
constexpr Ranks kRanksBecome[] = {
    {"one_and_four", kTopk, kInt4, 4, 1},
    {"two", kTopk, nullptr, 4, 2},
    {"three", kInt4, nullptr, 4, 3},
    {"eight", kInt4, nullptr, 4, 8},
    {"sixteen", kTopk, nullptr, 4, 16, nullptr, nullptr, true},
    {"gather", "codec = \"int4\"\nerror_feedback = \"ef14\"\nalgorithm = \"gather\"\n", kInt4},
    {"groups_of_four", kInt4, kNative, 4, 8, nullptr, nullptr, false, true, nullptr, false, 2},
    {"groups_of_two", kTopk, kNative, 8, 4, nullptr, nullptr, false, true, nullptr, false, 2},
    {"shards_of_groups", kNative, kInt4, 4, 8, nullptr, nullptr, false, true, nullptr, false, 2,
     false, 4},
    {"drawn",
     "codec = \"randomk:fraction=0.1\"\nalgorithm = \"summable\"\nerror_feedback = \"ef14\"\n"},
    {"factors", "codec = \"powersgd:rank=2,row=512\"\nerror_feedback = \"ef14\"\n", kInt4},
    {"codes", "codec = \"linear_ae:width=2,row=512\"\nerror_feedback = \"ef14\"\n", kInt4},
    {"mean_sums", kInt4, nullptr, 2, 4, nullptr, nullptr, true, true},
    {"saving_converted", kInt4, nullptr, 4, 3, nullptr, nullptr, false, true, nullptr, false, 0,
     false, 0, false, true},
    {"controlled", kWindows, nullptr, 3, 2},
    {"controlled_by_ring", kWindows, nullptr, 2, 3, nullptr, nullptr, false, true},
    {"ring", kInt4, nullptr, 2, 3, nullptr, nullptr, false, true},
    {"unmarked", kInt4, nullptr, 2, 2, nullptr, nullptr, false, true, nullptr, true},
    {"unmarked_on_three", kTopk, nullptr, 2, 3, nullptr, nullptr, false, true, nullptr, true},
    {"policy_by_ring", kInt4, nullptr, 2, 2, nullptr, nullptr, false, true, kTopk},
    {"nodes", kNodes, nullptr, 8, 8, "2x4", "4x2"},
    {"nodes_by_ring", kNodes, nullptr, 8, 8, "2x4", "4x2", false, true},
    {"nodes_and_more", kNodes, nullptr, 4, 6, "2x2", "3x2"},
    of_parameters("other_buckets", 2, true),
    of_parameters("other_buckets_on_three", 3, true),
    of_parameters("other_buckets_converted", 3, false),
    of_parameters("names", 2, true, true),
    of_parameters("names_on_three", 3, true, true),
    of_parameters("names_converted", 3, false, true),
};
constexpr Ranks without_marks(const char* name, const char* rule, int ranks = 2) {
    return {name,    rule,  nullptr, ranks,   ranks, nullptr,
            nullptr, false, true,    nullptr, true,  ranks > 2 ? 2 : 0};
}
constexpr Ranks kWithoutMarks[] = {
    without_marks("contributions", kInt4),
    without_marks("estimates", "codec = \"int4\"\nerror_feedback = \"ef21\"\n"),
    without_marks("drawn", "codec = \"int4:rounding=stochastic\"\nerror_feedback = \"ef14\"\n"),
    without_marks("drawn_alike",
                  "codec = \"randomk:fraction=0.1\"\nalgorithm = \"summable\"\n"
                  "error_feedback = \"ef14\"\n"),
    without_marks("averaged",
                  "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n"
                  "average_every = 4\n"),
    without_marks("thresholds",
                  "codec = \"threshold:fraction=0.05,refresh=4\"\nerror_feedback = \"ef14\"\n"),
    without_marks("copies", kInt4, 4),
};
INSTANTIATE_TEST_SUITE_P(Jobs, WithoutMarks, testing::ValuesIn(kWithoutMarks), name_of);
INSTANTIATE_TEST_SUITE_P(Jobs, AnotherNumberOfRanks, testing::ValuesIn(kRanksBecome), name_of);

// A rank reads the heads of the files and what it owes itself, once: of as many ranks its own file.
class ReadsItsShare : public AnotherNumberOfRanks {
  protected:
    std::vector<size_t> bytes_read() const {
        std::vector<size_t> all;
        for (const std::string& one : printed_) {
            const size_t at = one.rfind("read ");
            all.push_back(at == std::string::npos ? 0 : std::stoul(one.substr(at + 5)));
        }
        return all;
    }
};

TEST_P(ReadsItsShare, Once) {
    const Ranks& of = GetParam();
    put_rule(kBoth, of.rule);
    const std::string first = made("first");
    run(of.before, of.nodes, {"0", "4", "-", first + "/state.%r", "3"});
    size_t file = 0;  // all are of this size
    for (int rank = 0; rank < of.before; ++rank) {
        file = std::filesystem::file_size(folder_.file("ring/step-3.run-1.of-" +
                                                       std::to_string(of.before) + "/state." +
                                                       std::to_string(rank)));
    }
    more_ = {"counted"};
    run(of.after, of.then, {"3", "5", first + "/state.%r", "-", "0"});
    // Contributions of all ranks, of nodes this rank's columns alone, and its chunk of the sums.
    const double given = 4.0 * kParameters * of.before, sums = 4.0 * kBucket / of.after;
    const double most = of.nodes == nullptr ? 1.04 * (given + sums) : 1.04 * (given / 2 + sums);
    for (const size_t read : bytes_read()) {
        EXPECT_EQ(read == file, of.after == of.before) << read << " of files of " << file;
        EXPECT_LT(static_cast<double>(read), most) << read << " of files of " << file;
    }
    EXPECT_EQ(bytes_read().size(), static_cast<size_t>(of.after));
    RecordProperty("bytes_read", std::to_string(bytes_read()[0]));
}

constexpr Ranks kReadsItsShare[] = {
    {"four", kInt4, nullptr, 4, 4, nullptr, nullptr, false, true},
    {"two", kInt4, nullptr, 4, 2, nullptr, nullptr, false, true},
    {"eight", kInt4, nullptr, 4, 8, nullptr, nullptr, false, true},
    {"nodes", kNodes, nullptr, 4, 8, "2x2", "4x2", false, true},
};
INSTANTIATE_TEST_SUITE_P(Jobs, ReadsItsShare, testing::ValuesIn(kReadsItsShare), name_of);

// What cannot be taken is said, and not added.
class BeginsAnew : public AnotherNumberOfRanks {
  protected:
    void SetUp() override {
        put_rule(kBoth, GetParam().rule);
        for (const char* job : {"first", "second", "third"}) {
            (void)made(job);
        }
        run(2, nullptr, {"0", "4", "-", folder_.file("first/state.%r"), "3"});
        warns_ = true;
    }
    void go_on(const char* from, const char* to) {
        copy_model(folder_.file(from), folder_.file(to));
    }
};

TEST_P(BeginsAnew, OfShardsOnOtherRanksThatNobodySaidAreFlat) {
    std::vector<double> wanted = owed(folder_.file("first"));
    shards_ = "";
    go_on("first", "second");
    const std::string second = folder_.file("second/state.%r");
    run(3, nullptr, {"3", "5", second, second, "5"});
    EXPECT_HAS(said_, "begins anew on 3 ranks: 2 atoms, first reducescatter f32 avg count");
    const std::vector<double> more = balance(second);
    for (size_t i = 0; i < wanted.size(); ++i) {
        wanted[i] = (i < kBucket ? wanted[i] : 0) + more[i];
    }
    EXPECT_LT(distance(owed(folder_.file("second")), wanted), 1e-3);
}

// A group of ranks that share a model, of which there are more now.
TEST_P(BeginsAnew, OfGroupsThatAreOthers) {
    const std::string first = folder_.file("second/state.%r");
    more_ = {"hybrid=2"};
    run(4, nullptr, {"0", "4", "-", first, "3"});
    run(8, nullptr, {"3", "5", first, "-", "0"});
    // What two groups of four would have.
    EXPECT_HAS(said_,
               "2 tensors, 400016 bytes, are not added, first reducescatter f32 avg "
               "count 7500 ordinal 0 residuals: no call took them in ");
    run(6, nullptr, {"3", "5", first, "-", "0"});
    EXPECT_HAS(said_, "loaded state: 2 tensors");
}

// Each group has a part of two units, of which one has as many elements for four as for two.
TEST_P(BeginsAnew, OfPartsThatAreNoEqualPartsOfTheSame) {
    put_rule("allreduce", GetParam().rule);
    const std::string first = folder_.file("second/state.%r"),
                      then = folder_.file("third/state.%r");
    more_ = {"hybrid=2", "named"};
    run(4, nullptr, {"0", "4", "-", first, "3"});
    std::vector<double> wanted = owed(folder_.file("second"));
    go_on("second", "third");
    more_ = {"hybrid=4", "named"};
    run(8, nullptr, {"3", "5", then, then, "5"});
    EXPECT_HAS(said_,
               "1 tensors, 280008 bytes, are not added, first allreduce f32 avg count "
               "70002 'unit 1' residuals: the tensor of this name is of another kind");
    const std::vector<double> more = balance(then);
    for (size_t i = 0; i < wanted.size(); ++i) {
        wanted[i] = (i < kBucket + 30000 ? wanted[i] : 0) + more[i];
    }
    EXPECT_LT(distance(owed(folder_.file("third")), wanted), 1e-3);
}

TEST_P(BeginsAnew, OfABucketThatAJobBetweenHadInHalves) {
    more_ = {"halves"};
    go_on("first", "second");
    const std::string second = folder_.file("second/state.%r"),
                      third = folder_.file("third/state.%r");
    run(2, nullptr, {"3", "7", second, second, "6"});
    EXPECT_HAS(said_, "loaded state: 1 tensors, ");
    EXPECT_HAS(said_,
               "first allreduce f32 avg count 263144 ordinal 0 residuals: no call took "
               "them in 3 steps, and 2 other tensors began at zero");
    more_ = {};
    go_on("second", "third");
    const auto bucket = [&] { return run(2, nullptr, {"6", "7", third, "-", "0"}).substr(0, 26); };
    const std::string back = bucket();
    EXPECT_HAS(said_, "they were owed at step 3, and a job that reduced other tensors");
    load_ = ",load=none";
    EXPECT_EQ(back, bucket());
}

constexpr Ranks kBeginsAnew[] = {
    {"ring", kInt4, nullptr, 2, 3, nullptr, nullptr, false, true},
};
INSTANTIATE_TEST_SUITE_P(Jobs, BeginsAnew, testing::ValuesIn(kBeginsAnew), name_of);

// What EF21 follows is taken up elsewhere, and all ranks follow the same sum. Ranks whose targets
// are those of before lack less than where they begin to follow anew, if not much less: each begins
// with the mean of estimates that differ here.
class Followed : public AnotherNumberOfRanks {};

TEST_P(Followed, GoesOnElsewhere) {
    const Ranks& of = GetParam();
    const std::string followed = "error_feedback = \"ef21\"\n", first = made("first");
    put_rule(kBoth, of.rule + followed);
    run(of.before, nullptr, {"0", "4", "-", first + "/state.%r", "3"});
    put_rule(kBoth, of.later + followed);
    double lacks[2] = {};
    for (const bool anew : {true, false}) {
        load_ = anew ? ",load=none" : "";
        const std::string place = made(anew ? "anew" : "on");
        const std::string then = made(anew ? "anew.then" : "on.then");
        copy_model(first, place);
        run(of.after, nullptr, {"3", "5", place + "/state.%r", then + "/state.%r", "5"});
        for (const double lack : balance(then + "/state.%r")) {
            lacks[anew ? 1 : 0] += lack * lack;
        }
        const Result<SavedJob> job = SavedJob::open(then);
        ASSERT_TRUE(job.ok()) << job.status().message();
        EXPECT_EQ(job.value().findings(), std::vector<std::string>());
    }
    if (of.after == of.before) {
        EXPECT_LT(lacks[0], 0.96 * lacks[1]);
    } else {
        EXPECT_NE(lacks[0], lacks[1]);
    }
}

constexpr Ranks kFollowed[] = {
    {"policy", "codec = \"int4\"\n", nullptr, 3, 3, nullptr, nullptr, false, true,
     "codec = \"int4:block=128\"\n"},
    {"sums", "codec = \"int4\"\n", nullptr, 3, 3, nullptr, nullptr, true, true,
     "codec = \"int8\"\n"},
    {"ranks", "codec = \"int4\"\n", nullptr, 4, 3, nullptr, nullptr, false, true,
     "codec = \"int4\"\n"},
};
INSTANTIATE_TEST_SUITE_P(Jobs, Followed, testing::ValuesIn(kFollowed), name_of);

}  // namespace
}  // namespace slimwire::test
