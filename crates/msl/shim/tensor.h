// The part of Metal 4's tensor operations that kernels use: matmul2d on tensors in memory and on cooperative tensors in
// registers. Which lane holds what differs from Apple's hardware on purpose: kernels are to ask
// get_multidimensional_index() and assume nothing.
#pragma once

#include "platform.h"

#if !defined(__CUDACC__) && !defined(__OPENCL_CPP_VERSION__)
namespace metal {

template <class T, int N> struct array {
  T values[N];
  LILY_INLINE T& operator[](int i) { return values[i]; }
  LILY_INLINE const T& operator[](int i) const { return values[i]; }
};

template <class I, int RANK> struct dextents {
  I sizes[RANK];
  dextents() = default;
  LILY_INLINE dextents(I a, I b) : sizes{a, b} {}
  LILY_INLINE I extent(int i) const { return sizes[i]; }
};
struct tensor_inline {};
struct execution_simdgroup {
  static constexpr int SIMDGROUPS = 1;
};
template <int N> struct execution_simdgroups {
  static constexpr int SIMDGROUPS = N;
};

// A matrix in memory; the first index runs fastest.
template <class T, class Extents, class Descriptor> struct tensor {
  using element = T;
  T* data;
  long sizes[2], strides[2];
  LILY_INLINE tensor(T* data, Extents extents) : data(data), sizes{extents.sizes[0], extents.sizes[1]}, strides{1, extents.sizes[0]} {}
  template <class I>
  LILY_INLINE tensor(T* data, Extents extents, array<I, 2> strides)
      : data(data), sizes{extents.sizes[0], extents.sizes[1]}, strides{long(strides[0]), long(strides[1])} {}
  // What lies from there on.
  LILY_INLINE tensor slice(int a, int b) const {
    tensor rest = *this;
    rest.data += a * strides[0] + b * strides[1];
    rest.sizes[0] -= a;
    rest.sizes[1] -= b;
    return rest;
  }
  LILY_INLINE bool has(int a, int b) const { return a >= 0 && b >= 0 && a < sizes[0] && b < sizes[1]; }
  LILY_INLINE T& at(int a, int b) const { return data[a * strides[0] + b * strides[1]]; }
};

}  // namespace metal

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m, int n, int k, bool transpose_left = false, bool transpose_right = false,
                                bool relaxed_precision = false, mode matmul_mode = mode::multiply)
      : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right), relaxed_precision(relaxed_precision),
        matmul_mode(matmul_mode) {}
};

// A ROWS×COLUMNS matrix spread over THREADS of them, element by element in turn.
template <class T, int ROWS, int COLUMNS, int THREADS, bool TRANSPOSED> struct CooperativeTensor {
  static constexpr int CAPACITY = ROWS * COLUMNS / THREADS;
  using element = T;
  T elements[CAPACITY];

  static constexpr LILY_INLINE int get_capacity() { return CAPACITY; }
  LILY_INLINE bool is_valid_element(int) const { return true; }
  LILY_INLINE T& operator[](int i) { return elements[i]; }
  LILY_INLINE const T& operator[](int i) const { return elements[i]; }
  static LILY_INLINE int row(int holder, int i) { return (i * THREADS + holder) / COLUMNS; }
  static LILY_INLINE int column(int holder, int i) { return (i * THREADS + holder) % COLUMNS; }
  static LILY_INLINE int me() { return int(lily_host::simdgroup() * lily_host::LANES + lily_host::lane()) % THREADS; }
  // Column and row, or the other way round if transposed: as in memory, the fastest first.
  LILY_INLINE metal::array<int, 2> get_multidimensional_index(int i) const {
    const int r = row(me(), i), c = column(me(), i);
    return TRANSPOSED ? metal::array<int, 2>{{r, c}} : metal::array<int, 2>{{c, r}};
  }
  template <class Tensor> LILY_INLINE void load(const Tensor& from) {
    for (int i = 0; i < CAPACITY; i++) {
      const auto at = get_multidimensional_index(i);
      elements[i] = from.has(at[0], at[1]) ? T(from.at(at[0], at[1])) : T(0.0f);
    }
  }
  template <class Tensor> LILY_INLINE void store(const Tensor& to) const {
    for (int i = 0; i < CAPACITY; i++) {
      const auto at = get_multidimensional_index(i);
      if (to.has(at[0], at[1])) to.at(at[0], at[1]) = typename Tensor::element(elements[i]);
    }
  }
};

// What a lane brings to a product in registers, and in place of it takes away.
template <class Left, class Right, class Destination> struct Operands {
  union {
    struct {
      float left[Left::CAPACITY], right[Right::CAPACITY];
    };
    float product[Destination::CAPACITY];
  };
};
template <class Left, class Right, class Destination, int M, int N, int K> LILY_UNCHECKED void multiply(lily_host::Slots& slots) {
  using Slot = Operands<Left, Right, Destination>;
  float left[M][K], right[K][N], product[M][N] = {};
  for (int lane = 0; lane < int(lily_host::LANES); lane++) {
    const Slot& slot = lily_host::slot<Slot>(slots, lane);
    for (int i = 0; i < Left::CAPACITY; i++) left[Left::row(lane, i)][Left::column(lane, i)] = slot.left[i];
    for (int i = 0; i < Right::CAPACITY; i++) right[Right::row(lane, i)][Right::column(lane, i)] = slot.right[i];
  }
  for (int m = 0; m < M; m++)
    for (int k = 0; k < K; k++)
      for (int n = 0; n < N; n++) product[m][n] += left[m][k] * right[k][n];
  for (int lane = 0; lane < int(lily_host::LANES); lane++) {
    Slot& slot = lily_host::slot<Slot>(slots, lane);
    for (int i = 0; i < Destination::CAPACITY; i++) slot.product[i] = product[Destination::row(lane, i)][Destination::column(lane, i)];
  }
}

template <matmul2d_descriptor DESCRIPTOR, class Scope> struct matmul2d {
  static constexpr int M = DESCRIPTOR.m, N = DESCRIPTOR.n, K = DESCRIPTOR.k, THREADS = int(lily_host::LANES) * Scope::SIMDGROUPS;
  static constexpr bool TL = DESCRIPTOR.transpose_left, TR = DESCRIPTOR.transpose_right;
  static constexpr bool ACCUMULATES = DESCRIPTOR.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;
  template <class T> using Left = CooperativeTensor<T, M, K, THREADS, TL>;
  template <class T> using Right = CooperativeTensor<T, K, N, THREADS, TR>;
  template <class T> using Destination = CooperativeTensor<T, M, N, THREADS, false>;

  template <class A, class B, class C> LILY_INLINE Left<A> get_left_input_cooperative_tensor() const { return {}; }
  template <class A, class B, class C> LILY_INLINE Right<B> get_right_input_cooperative_tensor() const { return {}; }
  template <class A, class B, class C> LILY_INLINE Destination<C> get_destination_cooperative_tensor() const { return {}; }

  // Factors in memory.
  template <class A, class EA, class DA, class B, class EB, class DB, class C>
  LILY_INLINE void run(const metal::tensor<A, EA, DA>& a, const metal::tensor<B, EB, DB>& b, Destination<C>& c) const {
    for (int i = 0; i < c.CAPACITY; i++) {
      const int m = c.row(c.me(), i), n = c.column(c.me(), i);
      float sum = ACCUMULATES ? float(c.elements[i]) : 0.0f;
      for (int k = 0; k < K; k++) {
        if ((TL ? a.has(m, k) : a.has(k, m)) && (TR ? b.has(k, n) : b.has(n, k)))
          sum += float(TL ? a.at(m, k) : a.at(k, m)) * float(TR ? b.at(k, n) : b.at(n, k));
      }
      c.elements[i] = C(sum);
    }
  }

  // Factors in the registers of one SIMD-group.
  template <class A, class B, class C>
  LILY_INLINE void run(const Left<A>& a, const Right<B>& b, Destination<C>& c, LILY_HERE) const {
    static_assert(Scope::SIMDGROUPS == 1, "factors in registers belong to one SIMD-group");
    Operands<Left<A>, Right<B>, Destination<C>> operands;
    for (int i = 0; i < a.CAPACITY; i++) operands.left[i] = float(a.elements[i]);
    for (int i = 0; i < b.CAPACITY; i++) operands.right[i] = float(b.elements[i]);
    operands = lily_host::exchange(LILY_SITE("matmul2d"), operands, &multiply<Left<A>, Right<B>, Destination<C>, M, N, K>);
    for (int i = 0; i < c.CAPACITY; i++) c.elements[i] = C(operands.product[i] + (ACCUMULATES ? float(c.elements[i]) : 0.0f));
  }
};

}  // namespace tensor_ops
}  // namespace mpp
#endif
