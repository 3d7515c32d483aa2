// Records of the kernels that run many rows at once (prefill).
#pragma once

// A tile of the grouped products: some of the pairs of one expert.
struct Block {
  uint expert;  // EXPERTS: the shared expert; NONE: nothing to do
  uint first;   // place of its first pair
  uint pairs;
};

struct GemmParams {
  uint rows;
  uint inner;     // columns of the weights, a multiple of GROUP
  uint outputs0;  // rows of each stacked matrix, multiples of 8; 0: absent, its bindings are never read
  uint outputs1;
  uint outputs2;
  uint outputs3;
};

struct GemmAddParams {
  uint rows;
  uint inner;
  uint outputs;
};

struct SortParams {
  uint rows;
  uint tile;    // pairs of a block: as many as the experts_gemm_up and _down that follow take, 16 or 32, or 128 with warpgroups
  uint blocks;  // records of the block map
};

struct AttentionPrefillParams {
  uint first;      // place in its segment of the first query: a long chunk is cut into several dispatches
  uint max_pages;  // columns of the page table
};
