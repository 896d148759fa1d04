//! The first slot of every sample.

use std::fmt;
use std::str::FromStr;

use kvscatter::Mode;
use serde::{Deserialize, Serialize};

use super::dims::CacheDims;

/// The first slots that a write fills, one for each sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Starts {
    /// The slots are computed by a rule.
    Rule(StartRule),
    /// The slots are listed in the order of the samples.
    List(Vec<usize>),
}

/// A rule that gives the first slot of every sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRule {
    /// Sample `i` starts at `(i * 977 + 13) % (capacity - rows + 1)`, as in a batch of mixed lengths.
    Ragged,
    /// Every sample starts at the same slot. At a power-of-two capacity, all rows then compete for the same
    /// sets of a CPU cache.
    Equal,
    /// Every sample wraps at the end of a circular cache, and each is split at a different row.
    Wrap,
}

/// An error for text that is neither a rule nor a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("starts '{text}': must be ragged, equal, wrap or one slot per sample, such as 3,0")]
pub struct NotStarts {
    text: String,
}

/// The serialised form: a word or a list.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    List(Vec<usize>),
}

impl Starts {
    /// Checks that there is a start for every sample, and that each start fits.
    pub(super) fn check(&self, dims: &CacheDims, rows: usize, mode: Mode) -> Result<(), String> {
        let circular = mode == Mode::Circular;
        match self {
            Self::Rule(StartRule::Wrap) if !circular => {
                Err("starts wrap: mode is linear, must be circular".to_owned())
            }
            Self::Rule(StartRule::Wrap) if rows < 2 => {
                Err(format!("starts wrap: rows = {rows}, must be at least 2"))
            }
            Self::Rule(_) => Ok(()),
            Self::List(starts) if starts.len() != dims.batch => {
                Err(format!("starts: got {}, must be {}, one for each sample", starts.len(), dims.batch))
            }
            Self::List(starts) => {
                let last = if circular { dims.capacity - 1 } else { dims.capacity - rows };
                match starts.iter().position(|&start| start > last) {
                    Some(sample) => {
                        Err(format!("starts[{sample}] = {}: must be 0 to {last}", starts[sample]))
                    }
                    None => Ok(()),
                }
            }
        }
    }

    /// Returns the first slot of a sample.
    pub(super) fn of(&self, sample: usize, dims: &CacheDims, rows: usize) -> usize {
        let places = dims.capacity - rows + 1;
        match self {
            Self::Rule(StartRule::Ragged) => (sample * 977 + 13) % places,
            Self::Rule(StartRule::Equal) => 13 % places,
            Self::Rule(StartRule::Wrap) => dims.capacity - 1 - (sample * 977 + 13) % (rows - 1),
            Self::List(starts) => starts[sample],
        }
    }
}

impl Default for Starts {
    fn default() -> Self {
        Self::Rule(StartRule::Ragged)
    }
}

impl FromStr for Starts {
    type Err = NotStarts;

    fn from_str(text: &str) -> Result<Self, NotStarts> {
        match text {
            "ragged" => Ok(Self::Rule(StartRule::Ragged)),
            "equal" => Ok(Self::Rule(StartRule::Equal)),
            "wrap" => Ok(Self::Rule(StartRule::Wrap)),
            list => {
                let slots = list.split(',').map(|slot| slot.trim().parse());
                slots
                    .collect::<Result<_, _>>()
                    .map(Self::List)
                    .map_err(|_| NotStarts { text: text.to_owned() })
            }
        }
    }
}

impl fmt::Display for Starts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(StartRule::Ragged) => f.write_str("ragged"),
            Self::Rule(StartRule::Equal) => f.write_str("equal"),
            Self::Rule(StartRule::Wrap) => f.write_str("wrap"),
            Self::List(starts) => {
                let starts: Vec<_> = starts.iter().map(ToString::to_string).collect();
                f.write_str(&starts.join(","))
            }
        }
    }
}

impl TryFrom<Written> for Starts {
    type Error = NotStarts;

    fn try_from(written: Written) -> Result<Self, NotStarts> {
        match written {
            Written::Word(word) => word.parse(),
            Written::List(list) => Ok(Self::List(list)),
        }
    }
}

impl From<Starts> for Written {
    fn from(starts: Starts) -> Self {
        match starts {
            Starts::List(list) => Self::List(list),
            rule => Self::Word(rule.to_string()),
        }
    }
}
