#include "tools/demo_train/model.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tools/demo_train/error.h"
#include "tools/demo_train/random.h"

namespace demo {
namespace {

size_t weight_of(int layer) {
    return static_cast<size_t>(layer) * 2;
}
size_t bias_of(int layer) {
    return static_cast<size_t>(layer) * 2 + 1;
}
size_t elems_of(int rows, int columns) {
    return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

}  // namespace

Mlp::Mlp(std::vector<int> widths, int max_rows) : widths_(std::move(widths)), max_rows_(max_rows) {
    for (int layer = 0; layer < layers(); ++layer) {
        const int inputs = widths_[static_cast<size_t>(layer)];
        const int outputs = widths_[static_cast<size_t>(layer) + 1];
        const std::string name = "layer" + std::to_string(layer);
        tensors_.push_back({name + ".weight", layer, elems_of(outputs, inputs)});
        tensors_.push_back({name + ".bias", layer, static_cast<size_t>(outputs)});
        deltas_.emplace_back(elems_of(max_rows_, outputs));
    }
    for (const int width : widths_) {
        activations_.emplace_back(elems_of(max_rows_, width));
    }
    bound_.resize(tensors_.size());
}

size_t Mlp::parameters() const {
    size_t sum = 0;
    for (const Tensor& tensor : tensors_) {
        sum += tensor.elems;
    }
    return sum;
}

void Mlp::bind(size_t tensor, float* parameter, float* gradient) {
    bound_.at(tensor) = {parameter, gradient};
}

void Mlp::initialise(uint64_t seed) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
        float* values = bound_[i].parameter;
        const int layer = tensors_[i].layer;
        if (i == bias_of(layer)) {
            std::fill_n(values, tensors_[i].elems, 0.0f);
            continue;
        }
        Random random(seed, 0x696e697400000000ull + i);
        const float limit =
            std::sqrt(6.0f / static_cast<float>(widths_[static_cast<size_t>(layer)]));
        for (size_t j = 0; j < tensors_[i].elems; ++j) {
            values[j] = (2.0f * random.uniform() - 1.0f) * limit;
        }
    }
}

void Mlp::forward_layer(int layer, int rows) {
    if (rows > max_rows_) {
        throw TrainError("batch of " + std::to_string(rows) + " rows, at most " +
                         std::to_string(max_rows_));
    }
    const auto l = static_cast<size_t>(layer);
    const int inputs = widths_[l];
    const int outputs = widths_[l + 1];
    const float* bias = bound_[bias_of(layer)].parameter;
    float* output = activations_[l + 1].data();
    for (int row = 0; row < rows; ++row) {
        std::copy_n(bias, outputs, output + elems_of(row, outputs));
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, outputs, inputs, 1.0f,
                activations_[l].data(), inputs, bound_[weight_of(layer)].parameter, inputs, 1.0f,
                output, outputs);
    if (layer + 1 < layers()) {
        const size_t elems = elems_of(rows, outputs);
        for (size_t i = 0; i < elems; ++i) {
            output[i] = output[i] > 0.0f ? output[i] : 0.0f;
        }
    }
}

LossSum Mlp::loss(const uint8_t* labels, int rows, bool gradient) {
    const int classes = widths_.back();
    LossSum sum;
    for (int row = 0; row < rows; ++row) {
        const float* z = activations_.back().data() + elems_of(row, classes);
        float* delta = deltas_.back().data() + elems_of(row, classes);
        const float* largest = std::max_element(z, z + classes);
        double normaliser = 0;
        for (int c = 0; c < classes; ++c) {
            normaliser += std::exp(static_cast<double>(z[c]) - *largest);
        }
        sum.loss += std::log(normaliser) + *largest - static_cast<double>(z[labels[row]]);
        sum.hits += largest - z == labels[row] ? 1 : 0;
        if (!gradient) {
            continue;
        }
        for (int c = 0; c < classes; ++c) {
            const double p = std::exp(static_cast<double>(z[c]) - *largest) / normaliser;
            delta[c] = static_cast<float>((p - (c == labels[row] ? 1.0 : 0.0)) / rows);
        }
    }
    return sum;
}

void Mlp::backward_layer(int layer, int rows) {
    const auto l = static_cast<size_t>(layer);
    const int inputs = widths_[l];
    const int outputs = widths_[l + 1];
    const float* delta = deltas_[l].data();
    float* bias_gradient = bound_[bias_of(layer)].gradient;
    std::fill_n(bias_gradient, outputs, 0.0f);
    for (int row = 0; row < rows; ++row) {
        const float* values = delta + elems_of(row, outputs);
        for (int i = 0; i < outputs; ++i) {
            bias_gradient[i] += values[i];
        }
    }
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, outputs, inputs, rows, 1.0f, delta,
                outputs, activations_[l].data(), inputs, 0.0f, bound_[weight_of(layer)].gradient,
                inputs);
    if (layer == 0) {
        return;
    }
    float* previous = deltas_[l - 1].data();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, inputs, outputs, 1.0f, delta,
                outputs, bound_[weight_of(layer)].parameter, inputs, 0.0f, previous, inputs);
    const float* activation = activations_[l].data();
    const size_t elems = elems_of(rows, inputs);
    for (size_t i = 0; i < elems; ++i) {
        previous[i] = activation[i] > 0.0f ? previous[i] : 0.0f;
    }
}

void sgd_update(const SgdSettings& settings,
                float rate,
                const float* __restrict gradient,
                float* __restrict velocity,
                float* __restrict parameter,
                size_t elems) {
    const float momentum = settings.momentum;
    const float decay = settings.weight_decay;
    for (size_t i = 0; i < elems; ++i) {
        const float v = momentum * velocity[i] + gradient[i] + decay * parameter[i];
        velocity[i] = v;
        parameter[i] -= rate * v;
    }
}

float learning_rate(float peak, int step, int warmup_steps, int total_steps) {
    if (step < warmup_steps) {
        return peak * static_cast<float>(step + 1) / static_cast<float>(warmup_steps);
    }
    const double span = std::max(1, total_steps - warmup_steps);
    const double done = std::min(1.0, (step - warmup_steps) / span);
    return static_cast<float>(peak * 0.5 * (1.0 + std::cos(std::numbers::pi * done)));
}

BucketLayout make_buckets(const std::vector<Tensor>& tensors, size_t bucket_bytes, int ranks) {
    BucketLayout layout;
    layout.placements.resize(tensors.size());
    const auto pieces = static_cast<size_t>(ranks);
    Bucket open;
    const auto close = [&] {
        open.padded_elems = (open.elems + pieces - 1) / pieces * pieces;
        layout.flat_elems = open.offset + open.padded_elems;
        layout.buckets.push_back(open);
        open = Bucket{};
        open.offset = layout.flat_elems;
    };
    for (size_t i = tensors.size(); i-- > 0;) {
        const Tensor& tensor = tensors[i];
        if (open.elems == 0) {
            open.first_layer = open.last_layer = tensor.layer;
        }
        layout.placements[i] = {layout.buckets.size(), open.offset + open.elems};
        open.first_layer = std::min(open.first_layer, tensor.layer);
        open.last_layer = std::max(open.last_layer, tensor.layer);
        open.elems += tensor.elems;
        if (open.elems * sizeof(float) >= bucket_bytes) {
            close();
        }
    }
    if (open.elems > 0) {
        close();
    }
    return layout;
}

}  // namespace demo
