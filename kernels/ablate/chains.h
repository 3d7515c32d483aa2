// Numbers of a dispatch of chains.metal.
#pragma once

struct ProductRowParams {
  uint inner;    // columns of the matrix, a multiple of 64
  uint outputs;  // its rows, a multiple of 4
};
