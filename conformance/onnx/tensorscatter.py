# Copyright (c) ONNX Project Contributors
#
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ml_dtypes
import numpy as np

import onnx
from onnx.backend.test.case.base import Base
from onnx.backend.test.case.node import expect


class TensorScatter(Base):
    @staticmethod
    def export_tensorscatter_circular_batch_above_capacity() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            mode="circular",
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4]]],
                [[[5, 6], [7, 8]]],
                [[[9, 10], [11, 12]]],
                [[[13, 14], [15, 16]]],
                [[[17, 18], [19, 20]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2]]],
                [[[-3, -4]]],
                [[[-5, -6]]],
                [[[-7, -8]]],
                [[[-9, -10]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([0, 1, 2, 3, 4], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-1, -2], [3, 4]]],
                [[[5, 6], [-3, -4]]],
                [[[-5, -6], [11, 12]]],
                [[[13, 14], [-7, -8]]],
                [[[-9, -10], [19, 20]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_circular_batch_above_capacity",
        )

    @staticmethod
    def export_tensorscatter_circular_heads_above_capacity() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            mode="circular",
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]], [[13, 14], [15, 16]], [[17, 18], [19, 20]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2]], [[-3, -4]], [[-5, -6]], [[-7, -8]], [[-9, -10]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([1], dtype=np.int64)
        present_cache = np.array(
            [
                [[[1, 2], [-1, -2]], [[5, 6], [-3, -4]], [[9, 10], [-5, -6]], [[13, 14], [-7, -8]], [[17, 18], [-9, -10]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_circular_heads_above_capacity",
        )

    @staticmethod
    def export_tensorscatter_circular_index_above_capacity() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            mode="circular",
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6], [7, 8]]],
                [[[9, 10], [11, 12], [13, 14], [15, 16]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4]]],
                [[[-5, -6], [-7, -8]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([7, 10], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-3, -4], [3, 4], [5, 6], [-1, -2]]],
                [[[9, 10], [11, 12], [-5, -6], [-7, -8]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_circular_index_above_capacity",
        )

    @staticmethod
    def export_tensorscatter_circular_negative_index() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            mode="circular",
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6], [7, 8]]],
                [[[9, 10], [11, 12], [13, 14], [15, 16]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4]]],
                [[[-5, -6], [-7, -8]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([-1, -3], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-3, -4], [3, 4], [5, 6], [-1, -2]]],
                [[[9, 10], [-5, -6], [-7, -8], [15, 16]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_circular_negative_index",
        )

    @staticmethod
    def export_tensorscatter_circular_full_length() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            mode="circular",
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6]]],
                [[[7, 8], [9, 10], [11, 12]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([0, 2], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-9, -10], [-11, -12], [-7, -8]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_circular_full_length",
        )

    @staticmethod
    def export_tensorscatter_full_length() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6]]],
                [[[7, 8], [9, 10], [11, 12]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([0, 0], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_full_length",
        )

    @staticmethod
    def export_tensorscatter_no_write_indices() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]],
                [[[13, 14], [15, 16], [17, 18]], [[19, 20], [21, 22], [23, 24]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4]], [[-5, -6], [-7, -8]]],
                [[[-9, -10], [-11, -12]], [[-13, -14], [-15, -16]]],
            ],
            dtype=np.float32,
        )
        present_cache = np.array(
            [
                [[[-1, -2], [-3, -4], [5, 6]], [[-5, -6], [-7, -8], [11, 12]]],
                [[[-9, -10], [-11, -12], [17, 18]], [[-13, -14], [-15, -16], [23, 24]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update],
            outputs=[present_cache],
            name="test_tensorscatter_no_write_indices",
        )

    @staticmethod
    def export_tensorscatter_circular_no_write_indices() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update"],
            outputs=["present_cache"],
            mode="circular",
        )
        past_cache = np.array(
            [
                [[1, 2], [3, 4], [5, 6]],
                [[7, 8], [9, 10], [11, 12]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[-1, -2]],
                [[-3, -4]],
            ],
            dtype=np.float32,
        )
        present_cache = np.array(
            [
                [[-1, -2], [3, 4], [5, 6]],
                [[-3, -4], [9, 10], [11, 12]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update],
            outputs=[present_cache],
            name="test_tensorscatter_circular_no_write_indices",
        )

    @staticmethod
    def export_tensorscatter_4d_axis1() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            axis=1,
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]], [[13, 14], [15, 16]]],
                [[[17, 18], [19, 20]], [[21, 22], [23, 24]], [[25, 26], [27, 28]], [[29, 30], [31, 32]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4]]],
                [[[-5, -6], [-7, -8]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([1, 3], dtype=np.int64)
        present_cache = np.array(
            [
                [[[1, 2], [3, 4]], [[-1, -2], [-3, -4]], [[9, 10], [11, 12]], [[13, 14], [15, 16]]],
                [[[17, 18], [19, 20]], [[21, 22], [23, 24]], [[25, 26], [27, 28]], [[-5, -6], [-7, -8]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_4d_axis1",
        )

    @staticmethod
    def export_tensorscatter_circular_4d_axis1() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            axis=1,
            mode="circular",
        )
        past_cache = np.array(
            [
                [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], [[13, 14, 15, 16], [17, 18, 19, 20], [21, 22, 23, 24]], [[25, 26, 27, 28], [29, 30, 31, 32], [33, 34, 35, 36]], [[37, 38, 39, 40], [41, 42, 43, 44], [45, 46, 47, 48]], [[49, 50, 51, 52], [53, 54, 55, 56], [57, 58, 59, 60]]],
                [[[61, 62, 63, 64], [65, 66, 67, 68], [69, 70, 71, 72]], [[73, 74, 75, 76], [77, 78, 79, 80], [81, 82, 83, 84]], [[85, 86, 87, 88], [89, 90, 91, 92], [93, 94, 95, 96]], [[97, 98, 99, 100], [101, 102, 103, 104], [105, 106, 107, 108]], [[109, 110, 111, 112], [113, 114, 115, 116], [117, 118, 119, 120]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1, -2, -3, -4], [-5, -6, -7, -8], [-9, -10, -11, -12]], [[-13, -14, -15, -16], [-17, -18, -19, -20], [-21, -22, -23, -24]]],
                [[[-25, -26, -27, -28], [-29, -30, -31, -32], [-33, -34, -35, -36]], [[-37, -38, -39, -40], [-41, -42, -43, -44], [-45, -46, -47, -48]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([1, 4], dtype=np.int64)
        present_cache = np.array(
            [
                [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], [[-1, -2, -3, -4], [-5, -6, -7, -8], [-9, -10, -11, -12]], [[-13, -14, -15, -16], [-17, -18, -19, -20], [-21, -22, -23, -24]], [[37, 38, 39, 40], [41, 42, 43, 44], [45, 46, 47, 48]], [[49, 50, 51, 52], [53, 54, 55, 56], [57, 58, 59, 60]]],
                [[[-37, -38, -39, -40], [-41, -42, -43, -44], [-45, -46, -47, -48]], [[73, 74, 75, 76], [77, 78, 79, 80], [81, 82, 83, 84]], [[85, 86, 87, 88], [89, 90, 91, 92], [93, 94, 95, 96]], [[97, 98, 99, 100], [101, 102, 103, 104], [105, 106, 107, 108]], [[-25, -26, -27, -28], [-29, -30, -31, -32], [-33, -34, -35, -36]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_circular_4d_axis1",
        )

    @staticmethod
    def export_tensorscatter_last_axis() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            axis=-1,
        )
        past_cache = np.array(
            [
                [[[1, 2, 3, 4], [5, 6, 7, 8]], [[9, 10, 11, 12], [13, 14, 15, 16]], [[17, 18, 19, 20], [21, 22, 23, 24]]],
                [[[25, 26, 27, 28], [29, 30, 31, 32]], [[33, 34, 35, 36], [37, 38, 39, 40]], [[41, 42, 43, 44], [45, 46, 47, 48]]],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [[[-1], [-2]], [[-3], [-4]], [[-5], [-6]]],
                [[[-7], [-8]], [[-9], [-10]], [[-11], [-12]]],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([1, 3], dtype=np.int64)
        present_cache = np.array(
            [
                [[[1, -1, 3, 4], [5, -2, 7, 8]], [[9, -3, 11, 12], [13, -4, 15, 16]], [[17, -5, 19, 20], [21, -6, 23, 24]]],
                [[[25, 26, 27, -7], [29, 30, 31, -8]], [[33, 34, 35, -9], [37, 38, 39, -10]], [[41, 42, 43, -11], [45, 46, 47, -12]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_last_axis",
        )

    @staticmethod
    def export_tensorscatter_2d() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            axis=1,
        )
        past_cache = np.array(
            [
                [1, 2, 3, 4],
                [5, 6, 7, 8],
                [9, 10, 11, 12],
            ],
            dtype=np.float32,
        )
        update = np.array(
            [
                [-1],
                [-2],
                [-3],
            ],
            dtype=np.float32,
        )
        write_indices = np.array([0, 3, 1], dtype=np.int64)
        present_cache = np.array(
            [
                [-1, 2, 3, 4],
                [5, 6, 7, -2],
                [9, -3, 11, 12],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_2d",
        )

    @staticmethod
    def export_tensorscatter_empty_update() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6]]],
                [[[7, 8], [9, 10], [11, 12]]],
            ],
            dtype=np.float32,
        )
        update = np.zeros((2, 1, 0, 2), dtype=np.float32)
        write_indices = np.array([0, 3], dtype=np.int64)
        present_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6]]],
                [[[7, 8], [9, 10], [11, 12]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_empty_update",
        )

    @staticmethod
    def export_tensorscatter_circular_empty_update() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
            mode="circular",
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6]]],
                [[[7, 8], [9, 10], [11, 12]]],
            ],
            dtype=np.float32,
        )
        update = np.zeros((2, 1, 0, 2), dtype=np.float32)
        write_indices = np.array([-5, 9], dtype=np.int64)
        present_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6]]],
                [[[7, 8], [9, 10], [11, 12]]],
            ],
            dtype=np.float32,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_circular_empty_update",
        )

    @staticmethod
    def export_tensorscatter_float16() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [15, 16], [17, 18], [19, 20]]],
            ],
            dtype=np.float16,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.float16,
        )
        write_indices = np.array([0, 2], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.float16,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_float16",
        )

    @staticmethod
    def export_tensorscatter_bfloat16() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [15, 16], [17, 18], [19, 20]]],
            ],
            dtype=ml_dtypes.bfloat16,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=ml_dtypes.bfloat16,
        )
        write_indices = np.array([0, 2], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=ml_dtypes.bfloat16,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_bfloat16",
        )

    @staticmethod
    def export_tensorscatter_float8_e4m3fn() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [15, 16], [16, 18], [20, 20]]],
            ],
            dtype=ml_dtypes.float8_e4m3fn,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=ml_dtypes.float8_e4m3fn,
        )
        write_indices = np.array([0, 2], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=ml_dtypes.float8_e4m3fn,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_float8_e4m3fn",
        )

    @staticmethod
    def export_tensorscatter_int8() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [15, 16], [17, 18], [19, 20]]],
            ],
            dtype=np.int8,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.int8,
        )
        write_indices = np.array([0, 2], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.int8,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_int8",
        )

    @staticmethod
    def export_tensorscatter_int64() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [15, 16], [17, 18], [19, 20]]],
            ],
            dtype=np.int64,
        )
        update = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6]]],
                [[[-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.int64,
        )
        write_indices = np.array([0, 2], dtype=np.int64)
        present_cache = np.array(
            [
                [[[-1, -2], [-3, -4], [-5, -6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [-7, -8], [-9, -10], [-11, -12]]],
            ],
            dtype=np.int64,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_int64",
        )

    @staticmethod
    def export_tensorscatter_uint8() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [15, 16], [17, 18], [19, 20]]],
            ],
            dtype=np.uint8,
        )
        update = np.array(
            [
                [[[101, 102], [103, 104], [105, 106]]],
                [[[107, 108], [109, 110], [111, 112]]],
            ],
            dtype=np.uint8,
        )
        write_indices = np.array([0, 2], dtype=np.int64)
        present_cache = np.array(
            [
                [[[101, 102], [103, 104], [105, 106], [7, 8], [9, 10]]],
                [[[11, 12], [13, 14], [107, 108], [109, 110], [111, 112]]],
            ],
            dtype=np.uint8,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_uint8",
        )

    @staticmethod
    def export_tensorscatter_string() -> None:
        node = onnx.helper.make_node(
            "TensorScatter",
            inputs=["past_cache", "update", "write_indices"],
            outputs=["present_cache"],
        )
        past_cache = np.array(
            [
                [[["1", "2"], ["3", "4"], ["5", "6"], ["7", "8"], ["9", "10"]]],
                [[["11", "12"], ["13", "14"], ["15", "16"], ["17", "18"], ["19", "20"]]],
            ],
            dtype=object,
        )
        update = np.array(
            [
                [[["-1", "-2"], ["-3", "-4"], ["-5", "-6"]]],
                [[["-7", "-8"], ["-9", "-10"], ["-11", "-12"]]],
            ],
            dtype=object,
        )
        write_indices = np.array([0, 2], dtype=np.int64)
        present_cache = np.array(
            [
                [[["-1", "-2"], ["-3", "-4"], ["-5", "-6"], ["7", "8"], ["9", "10"]]],
                [[["11", "12"], ["13", "14"], ["-7", "-8"], ["-9", "-10"], ["-11", "-12"]]],
            ],
            dtype=object,
        )
        expect(
            node,
            inputs=[past_cache, update, write_indices],
            outputs=[present_cache],
            name="test_tensorscatter_string",
        )
