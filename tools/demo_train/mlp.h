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

}  // namespace demo
