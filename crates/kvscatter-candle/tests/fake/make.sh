#!/bin/sh
# Makes what candle with CUDA is built with and runs on, where there is no CUDA, in the folder named: bin/nvcc, and in
# lib the driver of the tests under the names of all libraries that candle links.
set -e
here=$(dirname "$0")
mkdir -p "$1/bin" "$1/lib"
cp "$here/nvcc" "$1/bin"
g++ -std=c++17 -O1 -Wall -Wextra -Werror -DKVSCATTER_SHIM -shared -fPIC -pthread \
    -Wl,-soname,libcuda.so.1 "$here/driver.cpp" -o "$1/lib/libcuda.so.1"
for library in cuda cudart nvrtc curand cublas cublasLt; do
    ln -sf libcuda.so.1 "$1/lib/lib$library.so"
done
