"""Saves samples to files and loads them, also in sessions of other sizes, and refuses damaged and foreign files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kvscatter
from kvscatter import KvSession, errors
from support import TESTDATA

STATIC = TESTDATA / "mobius-llama-static/model.onnx"
GROUP_QUERY = TESTDATA / "genai-llama-gqa/model.onnx"
GROWING = TESTDATA / "optimum-llama/model.onnx"
PROMPT = [5, 9, 200, 17, 33]


def opened(model: Path = STATIC, batch: int = 2, capacity: int = 64) -> KvSession:
    return KvSession(model, batch=batch, capacity=capacity, threads=1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.kv"
    with opened() as session:
        sample = session.add()
        session.step({sample: PROMPT})
        session.save(sample, path)
    return path


@pytest.mark.parametrize("model", [STATIC, GROUP_QUERY], ids=["static", "group_query"])
def test_a_loaded_sample_goes_on_as_the_saved_one(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.kv"
    with opened(model) as session:
        session.add()
        sample = session.add()
        session.step({sample: PROMPT})
        session.save(sample, path)
        want = session.step({sample: [7]}).last(sample).copy()
    with opened(model) as session:
        session.add()
        loaded = session.load(path)
        assert session.tokens(loaded) == PROMPT
        np.testing.assert_array_equal(session.step({loaded: [7]}).last(loaded), want)
    with opened(GROUP_QUERY if model == GROUP_QUERY else STATIC, batch=4) as session:
        loaded = session.load(str(path))
        got = session.step({loaded: [7]}).last(loaded)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_another_capacity_takes_a_sample_if_it_fits(tmp_path: Path) -> None:
    path = tmp_path / "prompt.kv"
    with opened(GROUP_QUERY, capacity=40) as session:
        sample = session.add()
        session.step({sample: PROMPT})
        session.save(sample, path)
        want = session.step({sample: [7]}).last(sample).copy()
    with opened(GROUP_QUERY, capacity=9) as session:
        loaded = session.load(path)
        np.testing.assert_allclose(session.step({loaded: [7]}).last(loaded), want, rtol=1e-4, atol=1e-5)
    with opened(GROUP_QUERY, capacity=4) as session:
        with pytest.raises(
            errors.PositionError, match="the sample has 5 tokens, and the capacity is 4"
        ) as caught:
            session.load(path)
        assert (caught.value.kind, caught.value.argument) == ("saved_too_long", "path")
        assert session.samples == []


def test_the_file_is_described_by_its_header(saved: Path) -> None:
    data = saved.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header["kvscatter.tokens"]["dtype"] == "I64"
    begin, end = header["kvscatter.tokens"]["data_offsets"]
    tokens = np.frombuffer(data[8 + length :][begin:end], np.int64)
    assert tokens.tolist() == PROMPT
    assert header["value_cache.1"]["shape"] == [1, 5, 32]
    with opened() as session:
        assert header["__metadata__"]["kvscatter.model"] == session.fingerprint()


def test_files_that_cannot_be_loaded_or_saved_are_refused(saved: Path, tmp_path: Path) -> None:
    with opened(GROUP_QUERY) as session:
        with pytest.raises(errors.SessionError, match="the sample was saved with model") as caught:
            session.load(saved)
        assert caught.value.kind == "saved_model"
    with opened(batch=1) as session:
        sample = session.load(saved)
        with pytest.raises(errors.OptionError, match="the batch of 1 is full"):
            session.load(saved)
        damaged = tmp_path / "damaged.kv"
        damaged.write_bytes(saved.read_bytes()[:-1])
        with pytest.raises(errors.SessionError, match=r"damaged\.kv"):
            session.load(damaged)
        assert session.samples == [sample]
        text = tmp_path / "text"
        text.write_text("no saved sample")
        for path in (text, tmp_path):
            with pytest.raises(errors.SessionError):
                session.save(sample, path)
        assert text.read_text() == "no saved sample"
        with pytest.raises(errors.SessionError, match=r"none\.kv"):
            session.load(tmp_path / "none.kv")
        with pytest.raises(TypeError):
            session.load(5)  # type: ignore[arg-type]
        session.remove(sample)
        with pytest.raises(errors.OptionError):
            session.save(sample, tmp_path / "removed.kv")
    with pytest.raises(errors.SessionError, match="closed"):
        session.load(saved)


def test_generation_continues_a_saved_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompt.kv"
    whole = kvscatter.generate(STATIC, [[*PROMPT, 4, 8]], 6, threads=1).samples
    kvscatter.generate(STATIC, [PROMPT], 1, threads=1, save_prefix=path)
    assert kvscatter.generate(STATIC, [[4, 8]], 6, threads=1, prefix=path).samples == whole
    with pytest.raises(errors.OptionError, match="2 prompts cannot be saved"):
        kvscatter.generate(STATIC, [[1], [2]], 1, save_prefix=tmp_path / "two.kv")
    with pytest.raises(errors.OptionError, match="the caches grow"):
        kvscatter.generate(GROWING, [[1]], 1, convert=False, save_prefix=tmp_path / "two.kv")
    assert not (tmp_path / "two.kv").exists()
