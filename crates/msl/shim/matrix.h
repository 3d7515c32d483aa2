// 8×8 matrices held by a SIMD-group, two elements a lane. Which ones is nobody's business: kernels load, multiply and
// store whole matrices.
#pragma once

#include "platform.h"

#if !defined(__CUDACC__) && !defined(__OPENCL_CPP_VERSION__)
namespace metal {

LILY_INLINE void make_products();

// Two elements of a lane: of row lane / 4, columns lane % 4 * 2 and the next.
template <class T> struct Elements {
  vec<T, 2> elements;
  LILY_INLINE vec<T, 2>& seen() { return elements; }
  LILY_INLINE const vec<T, 2>& seen() const { return elements; }
};
// Those may have products to come, which are added before anybody sees them or they are gone.
template <> struct Elements<float> {
  lily_host::Sums sums;
  Elements() { sums.waiting = false; }
  LILY_INLINE Elements(const Elements& other) : Elements() { *this = other; }
  LILY_INLINE Elements& operator=(const Elements& other) {
    const vec<float, 2> from = other.seen();
    seen() = from;
    return *this;
  }
  LILY_INLINE ~Elements() { seen(); }
  LILY_INLINE const vec<float, 2>& seen() const {
    if (sums.waiting) make_products();
    return reinterpret_cast<const vec<float, 2>&>(sums.elements);
  }
  LILY_INLINE vec<float, 2>& seen() {
    return const_cast<vec<float, 2>&>(static_cast<const Elements*>(this)->seen());
  }
};

template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix : Elements<T> {
  static_assert(ROWS == 8 && COLUMNS == 8, "Metal's matrices are 8 x 8");
  simdgroup_matrix() = default;
  explicit LILY_INLINE simdgroup_matrix(T value) { this->seen() = vec<T, 2>(value); }
  LILY_INLINE vec<T, 2>& thread_elements() { return this->seen(); }
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
  vec<T, 2>& elements = to.seen();
  for (int i = 0; i < 2; i++) elements[i] = from[matrix_element(i, per_row, origin, transposed)];
}
template <class T>
LILY_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& from, T* to, ulong per_row = 8, ulong2 origin = ulong2(0),
                                 bool transposed = false, LILY_HERE) {
  const vec<T, 2>& elements = from.seen();
  agree(LILY_SITE("simdgroup_store"), to);
  for (int i = 0; i < 2; i++) to[matrix_element(i, per_row, origin, transposed)] = elements[i];
}

// Makes the products that the running SIMD-group has asked for. A lane's slot says how many it has asked for, and becomes
// NOT_ALIKE if others have asked for more or fewer.
constexpr unsigned NOT_ALIKE = ~0u;
LILY_UNCHECKED inline void multiply(lily_host::Slots& slots) {
  lily_host::Products& group = lily_host::running_products[lily_host::simdgroup()];
  bool alike = true;
  for (unsigned lane = 0; lane < lily_host::LANES; lane++) alike = alike && lily_host::slot<unsigned>(slots, lane) == group.most_asked;
  for (unsigned lane = 0; !alike && lane < lily_host::LANES; lane++) lily_host::slot<unsigned>(slots, lane) = NOT_ALIKE;
  for (unsigned i = 0; alike && i < group.most_asked; i++) {
    for (unsigned row = 0; row < 8; row++) {
      lily_host::MatrixRow product = {};
      for (unsigned k = 0; k < 8; k++) product += group.left[i][row][k] * group.right[i][k];
      for (unsigned pair = 0; pair < 4; pair++) {
        lily_host::Sums& sums = *group.sums[i][row * 4 + pair];
        for (unsigned e = 0; e < 2; e++) sums.elements[e] = product[pair * 2 + e] + sums.elements[e];
        sums.waiting = false;
      }
    }
  }
  group.forget();
}
LILY_INLINE void make_products() {
  const lily_host::Products& group = lily_host::running_products[lily_host::simdgroup()];
  const lily_host::Site site = group.sites[0];
  if (exchange(site, group.asked[lily_host::lane()], &multiply) == NOT_ALIKE) lily_host::fail(site, "and what follows are not the same products in all lanes");
}
// sums += left · right, before they are seen.
LILY_UNCHECKED inline void ask_product(const lily_host::Site& site, const float (&left)[2], const float (&right)[2], lily_host::Sums& sums) {
  lily_host::Products& group = lily_host::running_products[lily_host::simdgroup()];
  const unsigned lane = lily_host::lane();
  if (group.asked[lane] == group.MOST) make_products();
  const unsigned i = group.asked[lane]++;
  if (i == group.most_asked)
    group.sites[group.most_asked++] = site;
  else if (!lily_host::same(group.sites[i], site)) lily_host::fail(site, "while other lanes of the SIMD-group ask for another product");
  for (unsigned e = 0; e < 2; e++) {
    group.left[i][lane / 4][lane % 4 * 2 + e] = left[e];
    group.right[i][lane / 4][lane % 4 * 2 + e] = right[e];
  }
  group.sums[i][lane] = &sums;
  sums.waiting = true;
}

// d = a·b + c
template <class D, class A, class B, class C>
LILY_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                               const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, LILY_HERE) {
  const lily_host::Site site = LILY_SITE("simdgroup_multiply_accumulate");
  const vec<A, 2>& of_a = a.seen();
  const vec<B, 2>& of_b = b.seen();
  const float left[2] = {float(of_a[0]), float(of_a[1])}, right[2] = {float(of_b[0]), float(of_b[1])};
  if constexpr (is_same_v<D, float> && is_same_v<C, float>) {
    if (&d != &c) d = c;
    ask_product(site, left, right, d.sums);
  } else {
    const vec<C, 2>& of_c = c.seen();
    simdgroup_matrix<float, 8, 8> sums;
    for (int i = 0; i < 2; i++) sums.sums.elements[i] = float(of_c[i]);
    ask_product(site, left, right, sums.sums);
    const vec<float, 2>& made = sums.seen();
    vec<D, 2>& to = d.seen();
    for (int i = 0; i < 2; i++) to[i] = D(made[i]);
  }
}
template <class D, class A, class B>
LILY_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                    const simdgroup_matrix<B, 8, 8>& b, LILY_HERE) {
  simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<float, 8, 8>(0.0f), file, line);
}

}  // namespace metal
#endif
