"""Runs histories on generators of ONNX Runtime GenAI."""

from pathlib import Path

import models
import pytest

from kvscatter.histories import check
from kvscatter.histories.adapters.genai import Genai


@pytest.mark.parametrize("variant", ["llama", "window"])
def test_rewinds_pass(variant: str, tmp_path: Path) -> None:
    folder = models.write(variant, tmp_path / "model")
    report = check(lambda: Genai(str(folder)), minutes=5, histories=40)
    assert report.passed and report.done["truncate"] > 20 and report.refused["feed"], str(report)
