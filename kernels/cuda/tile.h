// tile.h for CUDA: a warp's share of a matrix product through mma.sync, with fragments that ldmatrix reads from shared
// memory, eight rows of eight halves at a time. Rows 16 bytes more than a multiple of 128 apart meet no bank twice.
#pragma once

constant constexpr uint TILE_STRIP = 16;  // rows of a tile that are stored at a time

// Four 8 x 8 matrices of halves: lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i.
struct Fragment {
  uint words[4];

  LILY_INLINE void load(const half* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(uint(__cvta_generic_to_shared(row)))
                 : "memory");
  }
  LILY_INLINE void load_transposed(const half* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(uint(__cvta_generic_to_shared(row)))
                 : "memory");
  }
};

// Which row and column a lane gives for a left factor [16 rows][16 inner], or for a transposed right one [16 inner][16].
LILY_INLINE uint left_place(uint lane, uint stride) { return lane % 16 * stride + lane / 16 * 8; }
// And for a right factor [16 columns][16 inner]: words 0, 1 are of its first eight columns, 2, 3 of the others.
LILY_INLINE uint right_place(uint lane, uint stride) { return (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8; }

// A lane's share of 16 x 8 sums: columns lane % 4 * 2 and the next of row lane / 4 (first two) and of lane / 4 + 8.
struct Sums {
  float values[4];

  // += a b^T, with a [16][16] and b [8][16].
  LILY_INLINE void add_product(const Fragment& a, uint b0, uint b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(values[0]), "+f"(values[1]), "+f"(values[2]), "+f"(values[3])
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b0), "r"(b1));
  }
};

template <bool TENSOR, uint ROWS, uint COLUMNS>
struct Tile {
  Sums sums[ROWS / 16][COLUMNS / 8];

  LILY_INLINE void clear() {
#pragma unroll
    for (uint i = 0; i < ROWS / 16; i++)
#pragma unroll
      for (uint j = 0; j < COLUMNS / 8; j++) sums[i][j] = Sums{};
  }

  LILY_INLINE void multiply(const half* a, const half* b, uint stride, uint inner) {
    const uint lane = lily_cuda::lane();
    a += left_place(lane, stride);
    b += right_place(lane, stride);
#pragma unroll
    for (uint k = 0; k < inner; k += 16) {
      Fragment left[ROWS / 16];
#pragma unroll
      for (uint i = 0; i < ROWS / 16; i++) left[i].load(a + i * 16 * stride + k);
#pragma unroll
      for (uint j = 0; j < COLUMNS / 16; j++) {
        Fragment right;
        right.load(b + j * 16 * stride + k);
#pragma unroll
        for (uint i = 0; i < ROWS / 16; i++) {
          sums[i][j * 2].add_product(left[i], right.words[0], right.words[1]);
          sums[i][j * 2 + 1].add_product(left[i], right.words[2], right.words[3]);
        }
      }
    }
  }

  LILY_INLINE void store(uint strip, float* out) {
    float* place = out + lily_cuda::lane() / 4 * COLUMNS + lily_cuda::lane() % 4 * 2;
#pragma unroll
    for (uint i = 0; i < ROWS / 16; i++) {
      if (i != strip) continue;  // the registers' numbers must be constants
#pragma unroll
      for (uint j = 0; j < COLUMNS / 8; j++) {
        *(float2*)(place + j * 8) = float2(sums[i][j].values[0], sums[i][j].values[1]);
        *(float2*)(place + 8 * COLUMNS + j * 8) = float2(sums[i][j].values[2], sums[i][j].values[3]);
      }
    }
  }
};
