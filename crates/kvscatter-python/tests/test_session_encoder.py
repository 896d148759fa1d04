"""Encoder-decoders in sessions: the outputs of an encoder, and what is refused."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import kvscatter
from kvscatter import KvSession, errors
from support import TESTDATA

EXPORT = TESTDATA / "decoders/optimum-0.1-t5/decoder_with_past_model.onnx"
KEYS = "past_key_values.1.encoder.key"

Outputs = dict[str, NDArray[np.float32 | np.int64]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a converted decoder and its encoder."""
    folder = tmp_path_factory.mktemp("encoder")
    decoder, encoder = folder / "decoder.onnx", folder / "encoder.onnx"
    kvscatter.convert(EXPORT, decoder, max_seq=16, encoder_output=encoder)
    return decoder, encoder


@pytest.fixture
def session(models: tuple[Path, Path]) -> Iterator[KvSession]:
    """Returns a session with room for two samples."""
    with KvSession(models[0], batch=2, threads=1) as session:
        yield session


def encoded(encoder: Path, text: list[int]) -> Outputs:
    """Returns what the encoder computes for a text, and its mask."""
    run = onnxruntime.InferenceSession(encoder, providers=["CPUExecutionProvider"])
    names = [output.name for output in run.get_outputs()]
    ids = np.array([text])
    mask = np.ones_like(ids)
    arrays = run.run(names, {"input_ids": ids, "attention_mask": mask})
    return dict(zip(names, arrays, strict=True)) | {"encoder_attention_mask": mask}


def test_samples_attend_to_their_own_texts(models: tuple[Path, Path], session: KvSession) -> None:
    short, long = (encoded(models[1], text) for text in ([8, 2], [5, 9, 17, 40, 3]))
    alone = []
    for outputs in (short, long):
        sample = session.add()
        session.set_encoder_outputs(sample, outputs)
        alone.append(session.step({sample: [0, 7]}).last(sample))
        session.remove(sample)
    first, second = session.add(), session.add()
    # A view with other strides has the same elements.
    turned = {name: np.asfortranarray(array) for name, array in short.items()}
    session.set_encoder_outputs(first, turned)
    session.set_encoder_outputs(second, long)
    logits = session.step({first: [0, 7], second: [0, 7]})
    for sample, expected in zip((first, second), alone, strict=True):
        np.testing.assert_allclose(logits.last(sample), expected, atol=1e-5)
    assert not np.allclose(alone[0], alone[1], atol=1e-3)
    assert session.memory().encoder == 2 * 5 * (4 * 16 * 4 + 8)


def test_outputs_that_do_not_fit_are_refused(models: tuple[Path, Path], session: KvSession) -> None:
    outputs = encoded(models[1], [8, 2, 30])
    sample = session.add()
    keys = outputs[KEYS]
    without = {name: array for name, array in outputs.items() if name != KEYS}
    for wrong, kind in [
        (without, "encoder_output_missing"),
        (outputs | {"other": keys}, "encoder_output"),
        (outputs | {KEYS: keys[:, :, :2]}, "encoder_shape"),
        (outputs | {KEYS: keys.astype(np.float16)}, "encoder_shape"),
        (outputs | {KEYS: np.concatenate([keys, keys])}, "encoder_shape"),
    ]:
        with pytest.raises(errors.OptionError) as refused:
            session.set_encoder_outputs(sample, wrong)
        assert (refused.value.kind, refused.value.argument) == (kind, "outputs")
    with pytest.raises(errors.OptionError) as missing:
        session.step({sample: [0]})
    assert (missing.value.kind, missing.value.index) == ("encoder_missing", sample.batch_index)
    session.set_encoder_outputs(sample, outputs)
    session.step({sample: [0]})
    with pytest.raises(errors.OptionError) as changed:
        session.set_encoder_outputs(sample, outputs)
    assert changed.value.kind == "encoder_changed"
