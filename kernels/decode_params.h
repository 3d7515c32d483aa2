// Numbers of a dispatch of the decode kernels.
#pragma once

struct ProjectParams {
  uint outputs0;  // rows of each stacked matrix, multiples of 4; 0: absent, its bindings are never read
  uint outputs1;
  uint outputs2;
  uint outputs3;
};

struct ProjectAddParams {
  uint inner;  // columns of the matrix, a multiple of 64
};

struct PrepareParams {
  uint max_pages;  // entries of a sequence in the page table
  uint q_stride;   // floats from one row of q_gate to the next, a multiple of 4
  uint kv_stride;  // floats from one row of k, and of v, to the next, a multiple of 4
};

struct BlockParams {
  uint block;      // tokens of a block of context: a multiple of PAGE, at most 256
  uint blocks;     // of the longest context that the plan allows
  uint max_pages;
};

struct CombineParams {
  uint block;
  uint blocks;
  uint q_stride;  // floats from one row of q_gate to the next
};

struct RouterParams {
  uint rows;
};

struct AdvanceParams {
  uint segments;
};
