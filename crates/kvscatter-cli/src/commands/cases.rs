//! `kvscatter cases`: adversarial ONNX test directories for other people's TensorScatter.

mod model;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use kvscatter::ElementType;
use kvscatter_onnx::test_dir::TestCase;
use kvscatter_onnx::{Data, Tensor};
use kvscatter_oracle::cases::{Call, Case, Element, Values, tensor_scatter};
use serde::Serialize;

use crate::Outcome;
use crate::error::Error;
use crate::files;
use crate::numbers::whole;
use crate::output::{Output, count, one_line, progress};
use crate::refused::Refused;

/// Write adversarial ONNX test directories for TensorScatter
///
/// Each is one TensorScatter-24 model with inputs and, from the specification's own pseudocode, the expected output:
/// every element type, indices at every edge, batch and heads above the capacity, empty dimensions, odd rows of 4-bit
/// elements. Where the inputs must be refused there is no output, and refused.json says why.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter cases -o cases                  # every idea with every type
  kvscatter cases -o cases --seed 7 --count 5000
  kvscatter verify cases                    # ours
  kvscatter verify cases --actual results   # yours

The same seed gives the same cases on every machine, however many are asked for.")]
pub(crate) struct Cases {
    /// A new or empty folder
    #[arg(short, long = "output", value_name = "DIR")]
    output: PathBuf,

    /// Which cases
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>)]
    seed: u64,

    /// How many; from 624 on, every idea comes with every element type
    #[arg(long, default_value_t = 624, value_parser = whole::<usize>)]
    count: usize,
}

#[derive(Serialize)]
struct Document {
    folder: PathBuf,
    seed: u64,
    cases: usize,
    refused: usize,
}

pub(crate) fn run(args: Cases, output: &mut Output) -> Result<Outcome, Error> {
    make_empty(&args.output)?;
    let bar = progress(args.count);
    let mut refused = 0_usize;
    for case in tensor_scatter(args.seed, args.count) {
        let folder = args.output.join(&case.name);
        if write(&case, &folder)? {
            refused = refused.saturating_add(1);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if output.is_json() {
        output.json(&Document { folder: args.output, seed: args.seed, cases: args.count, refused })?;
    } else {
        let folder = one_line(&args.output.display().to_string());
        writeln!(
            output,
            "{folder}: {}, {refused} of them to be refused; check them with: kvscatter verify {folder}",
            count(args.count, "case")
        )?;
    }
    Ok(Outcome::Passed)
}

/// Writes one case; whether it is to be refused.
fn write(case: &Case, folder: &Path) -> Result<bool, Error> {
    let Call::TensorScatter { operator, write_indices, .. } = &case.call else {
        return Err(Error::NotTensorScatter { what: case.name.clone() });
    };
    let [cache, update] = case.elements;
    let (cache, update) = (element(cache)?, element(update)?);
    let mut inputs = vec![
        tensor(cache, &case.cache_shape, &case.cache)?,
        tensor(update, &case.update_shape, &case.update)?,
    ];
    if let Some(indices) = write_indices {
        let bytes = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        inputs.push(
            Tensor::new(ElementType::Int64, vec![indices.len()], Data::Bytes(bytes))
                .map_err(kvscatter_onnx::Error::from)?,
        );
    }
    let model = model::tensor_scatter(operator.axis, &operator.mode, &inputs);
    let (outputs, refused) = match &case.expected {
        Ok(expected) => (vec![tensor(cache, &case.cache_shape, &expected.present)?], None),
        Err(refusal) => (Vec::new(), Some(Refused::from_oracle(refusal)?)),
    };
    TestCase::write(folder, &model, &[(inputs, outputs)])?;
    if let Some(refused) = &refused {
        refused.write(folder)?;
    }
    Ok(refused.is_some())
}

fn element(element: &'static Element) -> Result<ElementType, Error> {
    ElementType::from_name(element.name).ok_or(Error::ElementName { name: element.name })
}

fn tensor(element: ElementType, shape: &[usize], values: &Values) -> Result<Tensor, Error> {
    let data = match values {
        Values::Bytes(bytes) => Data::Bytes(bytes.clone()),
        Values::Strings(strings) => {
            Data::Strings(strings.iter().map(|text| text.as_bytes().to_vec()).collect())
        }
    };
    Ok(Tensor::new(element, shape.to_vec(), data).map_err(kvscatter_onnx::Error::from)?)
}

/// Old cases beside new ones would be verified with them.
fn make_empty(folder: &Path) -> Result<(), Error> {
    let refuse = |error: io::Error| files::Error::at_path(folder, error);
    std::fs::create_dir_all(folder).map_err(refuse)?;
    match std::fs::read_dir(folder).map_err(refuse)?.next() {
        None => Ok(()),
        Some(_) => Err(Error::NotEmpty { dir: folder.to_owned() }),
    }
}
