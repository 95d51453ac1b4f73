// Eight floats at a time, with AVX2 and fused multiply-add written out.
//
// Every sum in these kernels is spelled as intrinsics, and the compiler is told not to fuse anything
// by itself (-ffp-contract=off). So the order and the rounding of every operation stand in the
// source, and results have the same bits for every compiler and every level of optimisation.
#pragma once

// gcc would keep a value for the next turn of a loop in a register that the sums need: the forward
// pass takes 1.5 times as long then. (clang has neither the habit nor the option.)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-predictive-commoning")
#endif

#include <immintrin.h>

#include <cstdint>
#include <cstring>

// Before a loop with a small fixed number of turns over an array of vectors: they can be in registers
// only when the loop is written out.
#define UNROLL _Pragma("GCC unroll 36")

namespace fedbench {

constexpr int LANES = 8;  // floats of a vector

using Vector = __m256;
using Size = std::int64_t;

// The same number, but the compiler does not know it. A loop with so many turns is not written out:
// otherwise vectors that the next turn needs, too, are kept, and registers for the sums run out.
inline int opaque(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

inline Vector load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector everywhere(float value) { return _mm256_set1_ps(value); }
inline Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
inline Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
inline Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }

// a * b + c, rounded once.
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }

// The sum of the eight lanes: halves are added until one number is left.
inline float sum_of_lanes(Vector value) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Which of eight lanes exist when there are only `count` things to put into them.
inline __m256i first_lanes(Size count) {
  const __m256i number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int most = count < LANES ? static_cast<int>(count) : LANES;
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(most), number);
}

// Turn eight rows of eight numbers into eight columns.
inline void transpose(Vector rows[LANES]) {
  Vector pairs[LANES], quads[LANES];
  UNROLL
  for (int i = 0; i < LANES; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  UNROLL
  for (int i = 0; i < LANES; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  UNROLL
  for (int i = 0; i < LANES / 2; ++i) {
    rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}

}  // namespace fedbench
