// 8×8 matrices held by a SIMD-group, two elements a lane. Which ones is nobody's business: kernels load, multiply and
// store whole matrices.
#pragma once

#include "platform.h"

#if !defined(__CUDACC__) && !defined(__OPENCL_CPP_VERSION__)
namespace metal {

template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix {
  static_assert(ROWS == 8 && COLUMNS == 8, "Metal's matrices are 8 x 8");
  vec<T, 2> elements;  // row lane / 4, columns lane % 4 * 2 and the next
  simdgroup_matrix() = default;
  explicit LILY_INLINE simdgroup_matrix(T value) : elements(value) {}
  LILY_INLINE vec<T, 2>& thread_elements() { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int ROWS, int COLUMNS> LILY_INLINE simdgroup_matrix<T, ROWS, COLUMNS> make_filled_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, ROWS, COLUMNS>(value);
}

// Where the running lane's elements lie in memory.
LILY_INLINE ulong matrix_element(int index, ulong per_row, ulong2 origin, bool transposed) {
  const ulong row = lily_host::lane() / 4, column = lily_host::lane() % 4 * 2 + ulong(index);
  return origin.x + origin.y * per_row + (transposed ? column * per_row + row : row * per_row + column);
}
// All lanes are to name one matrix in memory.
LILY_UNCHECKED inline void check_one_matrix(lily_host::Slots& slots) {
  for (unsigned i = 1; i < lily_host::LANES; i++)
    if (lily_host::slot<const void*>(slots, i) != lily_host::slot<const void*>(slots, 0)) lily_host::slot<const void*>(slots, i) = nullptr;
}
LILY_INLINE void agree(const lily_host::Site& site, const void* matrix) {
  if (exchange(site, matrix, &check_one_matrix) == nullptr) lily_host::fail(site, "lanes of a SIMD-group name different matrices");
}

template <class T>
LILY_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& to, const T* from, ulong per_row = 8, ulong2 origin = ulong2(0),
                                bool transposed = false) {
  for (int i = 0; i < 2; i++) to.elements[i] = from[matrix_element(i, per_row, origin, transposed)];
}
template <class T>
LILY_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& from, T* to, ulong per_row = 8, ulong2 origin = ulong2(0),
                                 bool transposed = false, LILY_HERE) {
  agree(LILY_SITE("simdgroup_store"), to);
  for (int i = 0; i < 2; i++) to[matrix_element(i, per_row, origin, transposed)] = from.elements[i];
}

// In: the lane's elements of both factors. Out: its elements of the product, in place of the first's.
struct Factors {
  float a[2], b[2];
};
LILY_UNCHECKED inline void multiply(lily_host::Slots& slots) {
  float a[8][8], b[8][8], product[8][8] = {};
  for (unsigned lane = 0; lane < lily_host::LANES; lane++)
    for (int i = 0; i < 2; i++) {
      const Factors& factors = lily_host::slot<Factors>(slots, lane);
      a[lane / 4][lane % 4 * 2 + i] = factors.a[i];
      b[lane / 4][lane % 4 * 2 + i] = factors.b[i];
    }
  for (int row = 0; row < 8; row++)
    for (int k = 0; k < 8; k++)
      for (int column = 0; column < 8; column++) product[row][column] += a[row][k] * b[k][column];
  for (unsigned lane = 0; lane < lily_host::LANES; lane++)
    for (int i = 0; i < 2; i++) lily_host::slot<Factors>(slots, lane).a[i] = product[lane / 4][lane % 4 * 2 + i];
}

// d = a·b + c
template <class D, class A, class B, class C>
LILY_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                               const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, LILY_HERE) {
  const Factors factors = {{float(a.elements[0]), float(a.elements[1])}, {float(b.elements[0]), float(b.elements[1])}};
  const Factors product = exchange(LILY_SITE("simdgroup_multiply_accumulate"), factors, &multiply);
  for (int i = 0; i < 2; i++) d.elements[i] = D(product.a[i] + float(c.elements[i]));
}
template <class D, class A, class B>
LILY_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                    const simdgroup_matrix<B, 8, 8>& b, LILY_HERE) {
  simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<float, 8, 8>(0.0f), file, line);
}

}  // namespace metal
#endif
