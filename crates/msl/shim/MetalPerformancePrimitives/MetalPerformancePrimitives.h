#pragma once
#include "../platform.h"
#include "../tensor.h"
