#!/bin/sh
# Cargo runs this in place of rustc for the packages of the workspace. It adds counters to those that contain
# unsafe code. The oracle, for example, is left as it is, because counters would make the tests slower.
case $CARGO_PKG_NAME in
kvscatter | kvscatter-attention | kvscatter-bench | kvscatter-candle | kvscatter-capi | kvscatter-certify | \
    kvscatter-cli | kvscatter-cuda | kvscatter-onnxruntime | kvscatter-ort | kvscatter-python | \
    kvscatter-xla)
    exec "$@" -Cinstrument-coverage
    ;;
*) exec "$@" ;;
esac
