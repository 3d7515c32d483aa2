// Which executor the kernels are compiled for.
#pragma once
#if defined(__OPENCL_CPP_VERSION__)
#include "check.h"
#elif defined(__CUDACC__)
#include "cuda.h"
#else
#include "host.h"
#endif
