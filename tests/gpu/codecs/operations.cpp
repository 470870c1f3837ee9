#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "codecs/low_rank/learn.h"
#include "codecs/low_rank/low_rank.h"
#include "codecs/ops/measure.h"
#include "codecs/ops/move_ranges.h"
#include "codecs/ops/sketch.h"
#include "codecs/ops/sum_rows.h"
#include "codecs/residual/estimate.h"
#include "codecs/residual/load_store.h"
#include "codecs/residual/step_ahead.h"
#include "codecs/sparse/masked_values.h"
#include "tests/gpu/codecs/compare.h"

namespace slimwire::gpu {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBfloat16};

// The same buffers on the host and on the device.
class Buffers {
  public:
    // Returns its number. What is not compared is work memory.
    size_t add(std::vector<uint8_t> bytes, bool compared = true) {
        bytes.resize(std::max<size_t>(bytes.size(), 16));
        device_.push_back(std::make_unique<DeviceBuffer>(bytes.size()));
        device_.back()->fill(bytes);
        host_.push_back(std::move(bytes));
        compared_.push_back(compared);
        return host_.size() - 1;
    }
    template <class T = void>
    T* at(bool on_device, size_t buffer) {
        return reinterpret_cast<T*>(on_device ? device_[buffer]->data() : host_[buffer].data());
    }
    // Empty when all compared buffers are equal.
    std::string difference() {
        check(cudaDeviceSynchronize(), "operation");
        for (size_t i = 0; i < host_.size(); ++i) {
            std::vector<uint8_t> found(host_[i].size());
            check(
                cudaMemcpy(found.data(), device_[i]->data(), found.size(), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
            const auto [a, b] = std::mismatch(found.begin(), found.end(), host_[i].begin());
            if (compared_[i] && a != found.end()) {
                return "buffer " + std::to_string(i) + " differs at byte " +
                       std::to_string(a - found.begin());
            }
        }
        return {};
    }

  private:
    std::vector<std::vector<uint8_t>> host_;
    std::vector<std::unique_ptr<DeviceBuffer>> device_;
    std::vector<bool> compared_;
};

// One round: draws sizes and data, runs both.
class Round {
  public:
    Round(int64_t most, uint64_t seed) : random_(seed), count_(1 + draw(most)) {}

    // Runs `host` and `cuda` on what make(on_device) returns.
    template <class Make, class Host, class Cuda>
    std::string run(Buffers* buffers, const Make& make, const Host& host, const Cuda& cuda) {
        host(make(false));
        check(cuda(make(true), cudaStream_t{nullptr}), "launch");
        return buffers->difference();
    }

    std::string sum_rows() {
        Buffers buffers;
        const DType from = type(), to = type();
        const auto rows = static_cast<int32_t>(1 + draw(5));
        const size_t input = buffers.add(data(from, count_ * rows));
        const size_t output = buffers.add(data(to, count_));
        const auto make = [&](bool on_device) {
            SumRowsArgs args{};
            args.input = buffers.at(on_device, input);
            args.output = buffers.at(on_device, output);
            args.row_bytes = count_ * static_cast<int64_t>(dtype_bytes(from));
            args.count = count_;
            args.rows = rows;
            args.scale = 0.3f;
            args.input_scale = 0.7f;
            args.sum_limit = {rows > 2 ? 1.5f : kNoSumLimit, rows > 3 ? 1.25f : kNoSumLimit};
            args.input_dtype = from;
            args.output_dtype = to;
            return args;
        };
        return run(&buffers, make, sum_rows_on_host, sum_rows_on_cuda);
    }

    std::string move_ranges() {
        Buffers buffers;
        const DType of = type();
        const bool to_chunks = draw(2) == 0;
        const int64_t chunk_elems = kMovedTogether * (1 + draw(500));
        const auto bytes = static_cast<int64_t>(dtype_bytes(of));
        MoveRangesArgs args{};
        args.chunk_elems = chunk_elems;
        args.chunk_bytes = (chunk_elems * bytes + 15) / 16 * 16;
        args.scale = draw(2) == 0 ? 1.0f : 0.7f;
        args.dtype = of;
        args.to_chunks = to_chunks;
        int64_t element = 0;
        while (args.ranges < kMostMovedRanges && element < count_) {
            args.list[args.ranges++] = {element, args.end};
            const int64_t length = std::min(1 + draw(count_ / 8 + 9), count_ - element);
            args.end += length;
            element += length + draw(50);
        }
        const size_t buffer = buffers.add(data(of, count_));
        const int64_t chunks = (args.end + chunk_elems - 1) / chunk_elems;
        const size_t packed = buffers.add(data(DType::kFloat32, chunks * args.chunk_bytes / 4));
        const auto make = [&](bool on_device) {
            args.buffer = buffers.at(on_device, buffer);
            args.chunks = buffers.at(on_device, packed);
            return args;
        };
        return run(&buffers, make, move_ranges_on_host, move_ranges_on_cuda);
    }

    std::string measure() {
        Buffers buffers;
        const DType of = type();
        const size_t input = buffers.add(data(of, count_)), other = buffers.add(data(of, count_));
        const size_t work = buffers.add(std::vector<uint8_t>(sizeof(MeasureWork)), false);
        const size_t result = buffers.add(std::vector<uint8_t>(sizeof(Measured)));
        const auto make = [&](bool on_device) {
            MeasureArgs args{};
            args.input = buffers.at(on_device, input);
            args.other = buffers.at(on_device, other);
            args.work = buffers.at<MeasureWork>(on_device, work);
            args.result = buffers.at<Measured>(on_device, result);
            args.count = count_;
            args.scale = 0.9f;
            args.dtype = of;
            args.mark = 7;
            return args;
        };
        return run(&buffers, make, measure_on_host, measure_on_cuda);
    }

    std::string residuals() {
        Buffers buffers;
        const auto run_of = add_stored(&buffers);
        const size_t taken = buffers.add(data(DType::kFloat32, count_));
        std::string why = store(&buffers, run_of, 0.8f, 0.2f);
        why += store(&buffers, run_of, 0.8f, 0.2f);
        const auto take = [&](bool on_device) {
            return LoadResidualArgs{.stored = run_of(on_device),
                                    .output = buffers.at<float>(on_device, taken),
                                    .count = count_};
        };
        const auto rescale = [&](bool on_device) {
            return RescaleResidualArgs{.stored = run_of(on_device), .factor = 0x1p-3f};
        };
        why += run(&buffers, rescale, rescale_residual_on_host, rescale_residual_on_cuda);
        return why + run(&buffers, take, load_residual_on_host, load_residual_on_cuda);
    }

    // A step's size, and parameters moved by it.
    std::string step_ahead() {
        Buffers buffers;
        const DType of = type(), reduced_of = type();
        const auto run_of = add_stored(&buffers);
        const size_t now = buffers.add(data(of, count_));
        const size_t before = buffers.add(data(of, count_));
        const size_t reduced = buffers.add(data(reduced_of, count_));
        const size_t work = buffers.add(std::vector<uint8_t>(sizeof(StepSizeWork)), false);
        const size_t step = buffers.add(std::vector<uint8_t>(sizeof(StepSize)));
        const auto find = [&](bool on_device) {
            return StepSizeArgs{buffers.at(on_device, now),
                                buffers.at(on_device, before),
                                buffers.at(on_device, reduced),
                                buffers.at<StepSizeWork>(on_device, work),
                                buffers.at<StepSize>(on_device, step),
                                count_,
                                of,
                                reduced_of};
        };
        const auto shift = [&](bool on_device) {
            ShiftArgs args{};
            args.stored = run_of(on_device);
            args.parameters = buffers.at(on_device, now);
            args.step = buffers.at<StepSize>(on_device, step);
            args.count = count_;
            args.scale = 1.5f;
            args.dtype = of;
            return args;
        };
        std::string why = store(&buffers, run_of, 0.0f, 1.0f);
        for (int round = 0; round < 2 && why.empty(); ++round) {
            why = run(&buffers, find, find_step_size_on_host, find_step_size_on_cuda);
            why += run(&buffers, shift, shift_on_host, shift_on_cuda);
        }
        return why;
    }

    std::string estimates() {
        Buffers buffers;
        const DType of = type();
        const int64_t chunk_elems = 1 + draw(count_);
        const bool to_limit = draw(2) == 0;
        const size_t input = buffers.add(data(of, count_));
        const size_t shared = buffers.add(data(DType::kFloat32, count_, draw(2) == 0));
        const size_t own = buffers.add(data(DType::kFloat32, count_));
        const size_t output = buffers.add(data(DType::kFloat32, count_));
        const size_t marks = buffers.add(std::vector<uint8_t>(
            4 * static_cast<size_t>((count_ + chunk_elems - 1) / chunk_elems)));
        const auto difference = [&](bool on_device) {
            DifferenceArgs args{};
            args.input = buffers.at(on_device, input);
            args.estimate = buffers.at<float>(on_device, own);
            args.output = buffers.at<float>(on_device, output);
            args.count = count_;
            args.scale = 0.6f;
            args.dtype = of;
            return args;
        };
        const auto mark = [&](bool on_device) {
            MarkArgs args{};
            args.estimate = buffers.at<float>(on_device, shared);
            args.marks = buffers.at<uint32_t>(on_device, marks);
            args.count = count_;
            args.chunk_elems = chunk_elems;
            return args;
        };
        const auto settle = [&](bool on_device) {
            SettleArgs args{};
            args.estimate = buffers.at<float>(on_device, shared);
            args.own = buffers.at<float>(on_device, own);
            args.output = buffers.at(on_device, output);
            args.marks = buffers.at<uint32_t>(on_device, marks);
            args.count = count_;
            args.chunk_elems = chunk_elems;
            args.dtype = of;
            args.sum_limit = {to_limit ? 1.5f : kNoSumLimit, 1.5f};
            return args;
        };
        std::string why = run(&buffers, difference, difference_on_host, difference_on_cuda);
        why = why.empty() ? run(&buffers, mark, mark_on_host, mark_on_cuda) : why;
        return why.empty() ? run(&buffers, settle, settle_on_host, settle_on_cuda) : why;
    }

    // Up to four matrices of about count_ elements together, all operations in their order.
    std::string low_rank() {
        Buffers buffers;
        const DType of = type();
        const auto rank = static_cast<int32_t>(1 + draw(kMostRank));
        std::vector<MatrixShape> shapes;
        int64_t elems = 0;
        do {
            const int64_t cols = rank + draw(std::min<int64_t>(count_ / 8, 3000));
            const int64_t rows = rank + draw(count_ / (4 * cols) + 1);
            shapes.push_back({elems, static_cast<int32_t>(rows), static_cast<int32_t>(cols)});
            elems += rows * cols + draw(3);
        } while (shapes.size() < 4);
        const LowRankLayout layout = low_rank_layout(shapes, rank);
        const bool hostile = draw(3) == 0;
        const auto floats = [&](int64_t count) {
            return buffers.add(std::vector<uint8_t>(4 * static_cast<size_t>(count)));
        };
        const size_t input = buffers.add(data(of, elems, hostile));
        const size_t output = buffers.add(data(of, elems));
        const size_t residual = buffers.add(data(DType::kFloat32, elems, false));
        const size_t left = floats(layout.left_elems);
        const size_t right = floats(layout.right_elems);
        const size_t state = floats(layout.state_elems(kMostRank));
        const size_t work =
            buffers.add(std::vector<uint8_t>(4 * static_cast<size_t>(layout.work_elems)), false);
        const auto make = [&](bool on_device) {
            LowRankArgs args{};
            args.input = buffers.at(on_device, input);
            args.output = buffers.at(on_device, output);
            args.residual = buffers.at<float>(on_device, residual);
            args.left = buffers.at<float>(on_device, left);
            args.right = buffers.at<float>(on_device, right);
            args.state = buffers.at<float>(on_device, state);
            args.work = buffers.at<float>(on_device, work);
            args.scale = 0.7f;
            args.product_scale = 0.3f;
            args.mean = 0.5f;
            args.result = 1.0f;
            args.sum_limit = 2.0f;
            args.dtype = of;
            args.rank = rank;
            args.state_rank = kMostRank;
            args.matrices = static_cast<int32_t>(shapes.size());
            std::copy(layout.matrices.begin(), layout.matrices.end(), args.list);
            return args;
        };
        std::string why;
        for (int call = 0; call < 2 && why.empty(); ++call) {
            why = run(&buffers, make, begin_low_rank_on_host, begin_low_rank_on_cuda);
            why += run(&buffers, make, multiply_right_on_host, multiply_right_on_cuda);
            why += run(&buffers, make, balance_low_rank_on_host, balance_low_rank_on_cuda);
            why += run(&buffers, make, orthogonalise_on_host, orthogonalise_on_cuda);
            why += run(&buffers, make, multiply_left_on_host, multiply_left_on_cuda);
            why += run(&buffers, make, overflow_low_rank_on_host, overflow_low_rank_on_cuda);
            why += run(&buffers, make, restore_low_rank_on_host, restore_low_rank_on_cuda);
            why += run(&buffers, make, keep_low_rank_on_host, keep_low_rank_on_cuda);
        }
        return why;
    }

    // Gradients, some of no finite number, and steps; then what is kept of a message, or of none.
    std::string learning() {
        Buffers buffers;
        const size_t weights = buffers.add(std::vector<uint8_t>(16 * static_cast<size_t>(count_)));
        std::string why;
        for (int call = 0; call < 4 && why.empty(); ++call) {
            const size_t gradient = buffers.add(data(DType::kFloat32, count_));
            const auto make = [&](bool on_device) {
                LearnArgs args{};
                args.gradient = buffers.at<float>(on_device, gradient);
                args.weights = buffers.at<float>(on_device, weights);
                args.count = count_;
                args.rate = call % 2 == 0 ? 0.0f : 0.01f;
                args.first_scale = call < 2 ? 10.0f : 5.2631578f;
                args.second_scale = call < 2 ? 1000.0f : 500.25012f;
                return args;
            };
            why = run(&buffers, make, learn_on_host, learn_on_cuda);
        }
        const size_t number = buffers.add(std::vector<uint8_t>(16));
        const size_t misses = buffers.add(std::vector<uint8_t>(16));
        const size_t output = buffers.add(std::vector<uint8_t>(16 * static_cast<size_t>(count_)));
        const auto held = static_cast<uint32_t>(draw(2));
        const auto take = [&](bool on_device) {
            TakeKeptArgs args{};
            args.number = buffers.at<uint32_t>(on_device, number);
            args.output = buffers.at(on_device, output);
            args.misses = buffers.at<uint32_t>(on_device, misses);
            args.bytes = 16 * count_;
            args.held = 1;
            args.numbers[0] = held;
            args.kept[0] = buffers.at(on_device, weights);
            return args;
        };
        return why.empty() ? run(&buffers, take, take_kept_on_host, take_kept_on_cuda) : why;
    }

    // Of several buffers, one of which holds numbers that are not finite, and of a part of one.
    std::string sketch() {
        const DType of = type();
        const int64_t first_row = draw(2) * draw(1 << 20);
        std::string why;
        Buffers buffers;
        const size_t state = buffers.add(std::vector<uint8_t>(sizeof(SketchState)));
        const size_t workspace = buffers.add(
            std::vector<uint8_t>(static_cast<size_t>(sketch_workspace_bytes(count_))), false);
        for (int call = 0; call < 3 && why.empty(); ++call) {
            const size_t input = buffers.add(data(of, count_, call == 1));
            const auto make = [&](bool on_device) {
                SketchArgs args{};
                args.input = buffers.at(on_device, input);
                args.state = buffers.at<SketchState>(on_device, state);
                args.workspace = buffers.at(on_device, workspace);
                args.count = count_;
                args.first_row = first_row;
                args.dtype = of;
                return args;
            };
            why = run(&buffers, make, sketch_on_host, sketch_on_cuda);
        }
        return why;
    }

    [[nodiscard]] int64_t count() const { return count_; }

    // An encoding, the values at its positions of other elements, and the encoding made of both.
    std::string masked_values() {
        Buffers buffers;
        CodecSpec spec = parse_codec(draw(2) == 0 ? "topk:pair=mask" : "randomk:pair=mask").value();
        CodecParams& params = spec.params;
        const DType of = type();
        params.fraction = 1.0f / static_cast<float>(1 + draw(100));
        const MaskedFrame frame = MaskedFrame::of(params, of, count_);
        std::vector<uint8_t> sent(static_cast<size_t>(frame.bytes));
        const std::vector<uint8_t> forward = data(of, count_, false);
        spec.codec->host.encode({.input = forward.data(),
                                 .output = sent.data(),
                                 .count = count_,
                                 .chunk_elems = count_,
                                 .slot_bytes = frame.bytes,
                                 .params = params,
                                 .dtype = of});
        sent.resize(static_cast<size_t>(frame.mask_bytes()));
        const size_t mask = buffers.add(sent);
        const size_t input = buffers.add(data(of, count_, draw(2) == 0));
        const size_t answer = buffers.add(std::vector<uint8_t>(static_cast<size_t>(frame.bytes)));
        const size_t misses = buffers.add(std::vector<uint8_t>(16));
        const uint32_t held = static_cast<uint32_t>(draw(2));
        const std::string gathered = run(
            &buffers,
            [&](bool on_device) {
                return GatherMaskedArgs{buffers.at(on_device, mask),
                                        buffers.at(on_device, input),
                                        buffers.at(on_device, answer),
                                        count_,
                                        params,
                                        of,
                                        1};
            },
            gather_masked_on_host, gather_masked_on_cuda);
        if (!gathered.empty()) {
            return gathered;
        }
        return run(
            &buffers,
            [&](bool on_device) {
                JoinMaskedArgs join{};
                join.frame = buffers.at(on_device, answer);
                join.misses = buffers.at<uint32_t>(on_device, misses);
                join.count = count_;
                join.params = params;
                join.dtype = of;
                join.held = 1;
                join.numbers[0] = held;
                join.masks[0] = buffers.at(on_device, mask);
                return join;
            },
            join_masked_on_host, join_masked_on_cuda);
    }

  private:
    // Residuals of count_ elements, all zero: what returns them.
    std::function<StoredResiduals(bool on_device)> add_stored(Buffers* buffers) {
        const auto type = static_cast<ResidualType>(draw(3));
        const int64_t elems = (count_ + kResidualBlock - 1) / kResidualBlock * kResidualBlock;
        const size_t stored = buffers->add(
            std::vector<uint8_t>(stored_residual_bytes(type, static_cast<uint64_t>(elems))));
        return [=](bool on_device) {
            return StoredResiduals{buffers->at(on_device, stored), elems, 0, type};
        };
    }
    // Stores others beside them.
    template <class Run>
    std::string store(Buffers* buffers, const Run& run_of, float keep, float take) {
        const size_t left = buffers->add(data(DType::kFloat32, count_, false));
        const auto make = [&](bool on_device) {
            StoreResidualArgs args{};
            args.stored = run_of(on_device);
            args.input = buffers->at<float>(on_device, left);
            args.count = count_;
            args.keep = keep;
            args.take = take;
            args.random = {.seed = 3, .tensor = 4, .rank = 1, .step = 9};
            return args;
        };
        return run(buffers, make, store_residual_on_host, store_residual_on_cuda);
    }
    int64_t draw(int64_t below) {
        return static_cast<int64_t>(random_() % static_cast<uint64_t>(std::max<int64_t>(below, 1)));
    }
    DType type() { return kTypes[draw(3)]; }
    // Gaussian, with a few values that are not finite unless `hostile` is false.
    std::vector<uint8_t> data(DType dtype, int64_t count, bool hostile = true) {
        std::vector<uint8_t> bytes = gaussian_bytes(dtype, count, random_());
        const auto element = static_cast<int64_t>(dtype_bytes(dtype));
        for (int bad = 0; hostile && bad < 3 && count > 0; ++bad) {
            std::memset(bytes.data() + draw(count) * element, 0xFF, static_cast<size_t>(element));
        }
        return bytes;
    }

    std::mt19937_64 random_;
    int64_t count_;
};

}  // namespace

int compare_operations(int rounds,
                       int64_t most_elems,
                       uint64_t seed,
                       std::vector<std::string>* failures) {
    const struct {
        const char* name;
        std::string (Round::*run)();
    } kOperations[] = {
        {"sum_rows", &Round::sum_rows},     {"move_ranges", &Round::move_ranges},
        {"measure", &Round::measure},       {"residuals", &Round::residuals},
        {"step_ahead", &Round::step_ahead}, {"estimates", &Round::estimates},
        {"low_rank", &Round::low_rank},     {"learning", &Round::learning},
        {"sketch", &Round::sketch},         {"masked_values", &Round::masked_values},
    };
    int operations = 0;
    for (const auto& operation : kOperations) {
        ++operations;
        for (int i = 0; i < rounds; ++i) {
            // Small sizes first: a difference is easier to see there.
            const int64_t most = i < rounds / 2 ? std::min<int64_t>(most_elems, 5000) : most_elems;
            const uint64_t round_seed = seed + static_cast<uint64_t>(i);
            Round round(most, round_seed);
            const std::string why = (round.*operation.run)();
            if (!why.empty()) {
                failures->push_back(std::string(operation.name) + " of " +
                                    std::to_string(round.count()) + " elements, seed " +
                                    std::to_string(round_seed) + ": " + why);
                break;
            }
        }
    }
    return operations;
}

}  // namespace slimwire::gpu
