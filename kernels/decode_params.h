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
  uint stride;     // floats from one row of q_gate, k and v to the next, a multiple of 4
};

struct BlockParams {
  uint block;      // tokens of a block of context: a multiple of PAGE, at most MAX_BLOCK
  uint blocks;     // of the longest context that the plan allows
  uint max_pages;
};

struct CombineParams {
  uint block;
  uint blocks;
  uint stride;  // floats from one row of q_gate to the next
};
