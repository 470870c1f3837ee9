// The model that the demo trains, its optimizer, and how its parameters lie in buckets.
//
// A multi-layer perceptron with ReLU and softmax cross-entropy, on host memory; the products go
// through OpenBLAS. The trainer calls it layer by layer, so that gradients can leave for the
// network while earlier layers are still being computed. Weights are rows of outputs, as in most
// frameworks:
//   z = x W^T + b,  dW = dz^T x,  db = sum dz,  dx = dz W
// One object a rank, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace demo {

// One parameter of the model, in model order: layer 0's weight, its bias, layer 1's weight, ...
struct Tensor {
    std::string name;
    int layer = 0;
    size_t elems = 0;
};

struct LossSum {
    double loss = 0;  // sum over the rows, natural logarithm
    size_t hits = 0;  // rows whose largest output is the label
};

class Mlp {
  public:
    // widths: inputs, hidden layers, outputs. `max_rows`: largest batch of a call.
    Mlp(std::vector<int> widths, int max_rows);

    int layers() const { return static_cast<int>(widths_.size()) - 1; }
    const std::vector<Tensor>& tensors() const { return tensors_; }
    size_t parameters() const;

    // Where tensor i and its gradient live; both must outlive this object's use.
    void bind(size_t tensor, float* parameter, float* gradient);
    // Uniform of variance 2 / fan-in (He et al., 2015); biases zero. Depends on the seed only.
    void initialise(uint64_t seed);

    // Rows x inputs, to be filled before forward_layer(0).
    float* input() { return activations_.front().data(); }
    void forward_layer(int layer, int rows);
    // After the last forward_layer. `gradient`: also prepare backward, of the mean loss of the
    // rows.
    LossSum loss(const uint8_t* labels, int rows, bool gradient);
    // From the last layer to the first: overwrites the layer's bound gradients.
    void backward_layer(int layer, int rows);

  private:
    struct Bound {
        float* parameter = nullptr;
        float* gradient = nullptr;
    };

    std::vector<int> widths_;
    int max_rows_;
    std::vector<Tensor> tensors_;
    std::vector<Bound> bound_;
    std::vector<std::vector<float>> activations_;  // [0] input, [l + 1] output of layer l
    std::vector<std::vector<float>> deltas_;       // [l] loss gradient at layer l's sum z
};

// Stochastic gradient descent with momentum and weight decay, and the learning-rate schedule.
//   v = momentum * v + g + weight_decay * p;  p = p - rate * v
// Works on any flat piece of the parameters: a bucket, or one rank's shard of it.

struct SgdSettings {
    float momentum = 0.9f;
    float weight_decay = 1e-4f;
};

void sgd_update(const SgdSettings& settings,
                float rate,
                const float* gradient,
                float* velocity,
                float* parameter,
                size_t elems);

// Linear warm-up over the first `warmup_steps`, then half a cosine down to zero at `total_steps`.
float learning_rate(float peak, int step, int warmup_steps, int total_steps);

// How the parameters lie in flat buckets. Tensors are taken from the last layer to the first, since
// gradients become ready in that order; a bucket closes when it has reached the wanted size, and no
// tensor is cut (the rule of the data-parallel wrappers of the frameworks). Pure computation.

struct Placement {
    size_t bucket = 0;
    size_t offset = 0;  // elements from the start of the flat array of all buckets
};

struct Bucket {
    size_t offset = 0;        // elements, in the flat array
    size_t elems = 0;         // of its tensors
    size_t padded_elems = 0;  // multiple of the number of ranks: what sharding exchanges
    int first_layer = 0;      // lowest layer inside: the bucket is ready after its backward
    int last_layer = 0;       // highest layer inside
};

struct BucketLayout {
    std::vector<Bucket> buckets;        // in the order of readiness
    std::vector<Placement> placements;  // of each tensor, in model order
    size_t flat_elems = 0;              // all buckets with their padding
};

// `bucket_bytes`: a bucket closes when its tensors reach this size. `ranks` >= 1.
BucketLayout make_buckets(const std::vector<Tensor>& tensors, size_t bucket_bytes, int ranks);

}  // namespace demo
