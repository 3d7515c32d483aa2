// The part of Metal 4's tensor operations that kernels use, for the strict check: operands in registers.
#pragma once

namespace metal {
template <class T, int N> struct array {
  T values[N];
  T operator[](int) const;
};
struct execution_simdgroup {};
template <class T> using remove_addrspace_t = T;
}  // namespace metal

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool left, right, relaxed;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m, int n, int k, bool left = false, bool right = false, bool relaxed = false,
                                mode matmul_mode = mode::multiply)
      : m(m), n(n), k(k), left(left), right(right), relaxed(relaxed), matmul_mode(matmul_mode) {}
};

// What each lane of a SIMD-group holds of a matrix: the role keeps factors and sums apart.
template <class T, int ELEMENTS, int ROLE> struct cooperative_tensor {
  T elements[ELEMENTS];
  T& operator[](int i) { return elements[i]; }
  static constexpr int get_capacity() { return ELEMENTS; }
  bool is_valid_element(int) const;
  metal::array<int, 2> get_multidimensional_index(int) const;
};

// lily-msl writes matmul2d<descriptor, scope> with the descriptor's sizes: this front end is C++17, where an object is no
// argument of a template.
template <int M, int N, int K, class Scope> struct lily_matmul2d {
  static_assert(M % 16 == 0 || N % 16 == 0, "M or N is to be a multiple of 16");
  static_assert(M == 32 || N == 32 || K == 32, "one of M, N and K is to be 32 for a single SIMD-group");
  template <class A, class B, class C> cooperative_tensor<A, M * K / 32, 0> get_left_input_cooperative_tensor() const;
  template <class A, class B, class C> cooperative_tensor<B, K * N / 32, 1> get_right_input_cooperative_tensor() const;
  template <class A, class B, class C> cooperative_tensor<C, M * N / 32, 2> get_destination_cooperative_tensor() const;
  template <class T, class C>
  void run(const cooperative_tensor<T, M * K / 32, 0>&, const cooperative_tensor<T, K * N / 32, 1>&,
           cooperative_tensor<C, M * N / 32, 2>&) const;
};

}  // namespace tensor_ops
}  // namespace mpp
