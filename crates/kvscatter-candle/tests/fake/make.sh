#!/bin/sh
# Creates what is needed to build and run candle with CUDA on a machine without CUDA. The named folder gets
# bin/nvcc, and in lib the simulated driver under the names of all libraries that candle links.
set -e
here=$(dirname "$0")
mkdir -p "$1/bin" "$1/lib"
cp "$here/nvcc" "$1/bin"
g++ -std=c++17 -O1 -Wall -Wextra -Werror -DKVSCATTER_SHIM -shared -fPIC -pthread \
    -Wl,-soname,libcuda.so.1 "$here/driver.cpp" -o "$1/lib/libcuda.so.1"
for library in cuda cudart nvrtc curand cublas cublasLt; do
    ln -sf libcuda.so.1 "$1/lib/lib$library.so"
done
