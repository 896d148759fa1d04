"""Reads the table of families, and makes a checkpoint of each with random weights."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("families.toml")


@dataclass(frozen=True)
class Family:
    """A family of decoders, as a configuration of transformers."""

    name: str
    model_type: str
    environment: str
    """The environment whose transformers makes the checkpoint and the reference."""
    settings: dict[str, Any]

    @property
    def has_encoder(self) -> bool:
        """Whether it is an encoder-decoder."""
        return "decoder_start_token_id" in self.settings


def families(only: list[str] | None = None) -> list[Family]:
    """Returns the families of the table without those to time, or the ones that `only` names."""
    table = tomllib.loads(TABLE.read_text())
    rows = table["family"] | table["timed"]
    unknown = set(only or []) - set(rows)
    if unknown:
        raise SystemExit(f"no such family: {', '.join(sorted(unknown))}")
    return [_family(name, dict(rows[name]), table["common"]) for name in only or table["family"]]


def _family(name: str, row: dict[str, Any], commons: dict[str, Any]) -> Family:
    common = commons.get(row.pop("like", ""), {})
    model_type = row.pop("model_type")
    environment = row.pop("environment", "optimum")
    return Family(name, model_type, environment, commons["all"] | common | row)
