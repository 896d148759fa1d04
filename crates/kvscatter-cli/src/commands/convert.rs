//! `kvscatter convert`: a decoder whose cache grows becomes one whose cache is written in place.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use kvscatter_onnx::convert::{self, Converted};
use kvscatter_onnx::{DataFile, Model};
use serde::Serialize;

use super::weights::{self, File, WeightFiles};
use crate::Outcome;
use crate::error::Error;
use crate::numbers::whole;
use crate::output::{Output, count, one_line, table};

/// Give a decoder a static cache that is written in place
///
/// Caches that Concat, or Attention with past inputs, copies on every step become [batch, heads, N, head size], written
/// by TensorScatter at the new input write_indices; attention_mask becomes [batch, N]. Slot j is then visible to new
/// token i of sample b if and only if j <= write_indices[b] + i and attention_mask[b, j]. The model is raised to
/// operator set 24 and its metadata describes the new inputs. Weights are not touched.
///
/// What the exporter's masks hide is computed, not guessed, and compared with that rule. A decoder that keeps another
/// rule (a sliding window shorter than N, ALiBi) or that is not understood is refused, and nothing is written.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter convert testdata/optimum-llama/model.onnx -o static.onnx \\
      --max-seq 4096
  kvscatter certify static.onnx --original testdata/optimum-llama/model.onnx")]
pub(crate) struct Convert {
    /// The decoder, an .onnx file
    model: PathBuf,

    /// Where the converted decoder goes; its weights, where they are files of their own, come along
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Slots of each sample: the most tokens a sample can ever have
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    max_seq: usize,

    /// How files of weights come into another folder
    #[arg(long, value_enum, default_value_t)]
    weights: WeightFiles,
}

/// What `--json` says.
#[derive(Serialize)]
struct Document<'a> {
    model: String,
    output: String,
    max_seq: usize,
    caches: usize,
    attentions: usize,
    write_indices: &'a str,
    attention_mask: Option<&'a str>,
    nonpad_kv_seqlen: Option<&'a str>,
    files: Vec<File>,
}

pub(crate) fn run(args: Convert, output: &mut Output) -> Result<Outcome, Error> {
    let model = Model::load(&args.model)?;
    let converted = convert::convert(&model, args.max_seq).map_err(|cause| {
        kvscatter_onnx::Error::InFile { path: args.model.clone(), cause: Box::new(cause) }
    })?;
    let files = converted.model.save_with_weights(&args.output, args.weights.into())?;
    if output.is_json() {
        output.json(&document(&args, &converted, &files))?;
    } else {
        show(&args, &converted, &files, output)?;
    }
    Ok(Outcome::Passed)
}

fn show(args: &Convert, converted: &Converted, files: &[DataFile], output: &mut Output) -> Result<(), Error> {
    let slots = args.max_seq;
    writeln!(
        output,
        "{}: {} of {}, read by {}",
        one_line(&args.output.display().to_string()),
        count(converted.caches, "cache"),
        count(slots, "slot"),
        count(converted.attentions, "attention")
    )?;
    weights::show(files, output)?;
    let input =
        |name: &str, what: &str, contract: &str| vec![name.to_owned(), what.to_owned(), contract.to_owned()];
    let mut rows =
        vec![input(&converted.write_indices, "int64 [batch]", "the slot of each sample's first new token")];
    if let Some(mask) = &converted.attention_mask {
        let shape = format!("[batch, {slots}]");
        rows.push(input(mask, &shape, "1 for every slot that holds a real token after this step"));
    }
    if let Some(nonpad) = &converted.nonpad_kv_seqlen {
        let contract = format!("{} + the new tokens of this step, padding included", converted.write_indices);
        rows.push(input(nonpad, "int64 [batch]", &contract));
    }
    writeln!(output, "\n{}", table(&["Input", "Shape", "Value"], &[], rows))?;
    writeln!(output, "\nBind each past and its present to one buffer, finite from the start.")?;
    Ok(())
}

fn document<'a>(args: &Convert, converted: &'a Converted, files: &[DataFile]) -> Document<'a> {
    Document {
        model: args.model.display().to_string(),
        output: args.output.display().to_string(),
        max_seq: args.max_seq,
        caches: converted.caches,
        attentions: converted.attentions,
        write_indices: &converted.write_indices,
        attention_mask: converted.attention_mask.as_deref(),
        nonpad_kv_seqlen: converted.nonpad_kv_seqlen.as_deref(),
        files: files.iter().map(File::from).collect(),
    }
}
