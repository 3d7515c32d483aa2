#pragma once
struct Params {
  uint rows;
  float scale;
};
