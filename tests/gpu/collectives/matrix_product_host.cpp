// The product as a host function in stream order: the emulator's device memory is the host's.
#include <memory>

#include "tests/gpu/collectives/matrix_product.h"

namespace slimwire::test {
namespace {

struct Product {
    const float *a, *b;
    float* c;
    int side;
};

void multiply(void* of) {
    const std::unique_ptr<Product> product(static_cast<Product*>(of));
    const auto side = static_cast<size_t>(product->side);
    for (size_t row = 0; row < side; ++row) {
        float* sums = product->c + row * side;
        for (size_t column = 0; column < side; ++column) {
            sums[column] = 0;
        }
        for (size_t k = 0; k < side; ++k) {
            const float factor = product->a[row * side + k];
            for (size_t column = 0; column < side; ++column) {
                sums[column] += factor * product->b[k * side + column];
            }
        }
    }
}

}  // namespace

cudaError_t launch_product(
    const float* a, const float* b, float* c, int side, cudaStream_t stream) {
    return cudaLaunchHostFunc(stream, multiply, new Product{a, b, c, side});
}

}  // namespace slimwire::test
