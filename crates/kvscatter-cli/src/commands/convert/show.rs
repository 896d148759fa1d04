//! Prints a conversion.

use std::io::Write;

use kvscatter_onnx::convert::{
    Converted, KeptAttention, KeptReason, LinearWindow, PassReport, Report, RingSize,
};
use kvscatter_onnx::{DataFile, RuntimeVersion};
use kvscatter_session::SessionError;

use super::args::Convert;
use super::cost::{cost, size};
use crate::commands::{form, weights};
use crate::error::CommandError;
use crate::output::{Output, count, hanging, one_line, paragraph, table};

/// What runs a decoder with states, in the words of docs/models.md.
const WHO_RUNS_STATES: &str = "In your own loop, feed all samples equally many tokens, and no padding. KvSession, \
                               generate and certify choose such runs themselves";

pub(super) fn show(
    args: &Convert,
    converted: &Converted,
    refusal: Option<&SessionError>,
    files: &[DataFile],
    output: &mut Output,
) -> Result<(), CommandError> {
    let report = &converted.report;
    let slots = args.max_seq;
    let heading = format!(
        "{}: {}, read by {}",
        one_line(&args.output.display().to_string()),
        caches(report, slots),
        readers(report)
    );
    writeln!(output, "{}", hanging(0, &heading))?;
    rings(report, args).iter().try_for_each(|line| writeln!(output, "{}", hanging(2, line)))?;
    narrow(report).iter().try_for_each(|line| writeln!(output, "{}", hanging(2, line)))?;
    weights::show(files, output)?;
    if let Some(path) = &args.encoder_output {
        let path = one_line(&path.display().to_string());
        writeln!(output, "{}", hanging(2, &format!("{path}: the encoder, which runs once for each text.")))?;
    }
    if let Some(form) = &report.form {
        writeln!(output, "{}", hanging(2, &form::line(form)))?;
    }
    if report.attention.fused > 0 {
        let became =
            format!("{} took the place of separate nodes.", count(report.attention.fused, "Attention node"));
        writeln!(output, "{became}")?;
    }
    kept(&report.attention.kept).iter().try_for_each(|line| writeln!(output, "{}", hanging(2, line)))?;
    if report.least_onnxruntime >= RuntimeVersion::WITH_CAP {
        let needs = format!(
            "Attention caps its scores. Run the model with kvscatter's plugin, with tract, or with ONNX Runtime {} or \
             newer: earlier versions let hidden slots count.",
            report.least_onnxruntime
        );
        writeln!(output, "{}", hanging(2, &needs))?;
    }
    let input =
        |name: &str, what: &str, contract: &str| vec![name.to_owned(), what.to_owned(), contract.to_owned()];
    let first = match report.caches.rings.is_empty() {
        true => "the slot of each sample's first new token",
        false => "the position of each sample's first new token, which keeps growing in rings",
    };
    let mut rows = vec![input(&report.inputs.write_indices, "int64 [batch]", first)];
    if let Some(mask) = &report.inputs.attention_mask {
        let shape = format!("[batch, {slots}]");
        rows.push(input(mask, &shape, "1 for every slot that holds a real token after this step"));
    }
    if let Some(nonpad) = &report.inputs.nonpad_kv_seqlen {
        let contract =
            format!("{} + the new tokens of this step, padding included", report.inputs.write_indices);
        rows.push(input(nonpad, "int64 [batch]", &contract));
    }
    if let Some((_, scales)) =
        report.caches.narrow.as_ref().and_then(|narrow| narrow.scales.first_key_value())
    {
        let others = report.caches.narrow.as_ref().map_or(0, |narrow| narrow.scales.len().saturating_sub(1));
        let more = if others == 0 { String::new() } else { format!(", and {others} more") };
        let contract = format!("the scales of a cache{more}, bound like its codes");
        rows.push(input(scales, "float32 [batch, heads, slots, 1]", &contract));
    }
    writeln!(output, "\n{}", table(&["Input", "Shape", "Value"], &[], rows))?;
    writeln!(
        output,
        "\n{}",
        paragraph(
            "Bind each past and its present to one buffer, and fill it with finite values at the start."
        )
    )?;
    if let Some(first) = report.states.first() {
        let text = format!(
            "The model keeps {}, such as {:?}. Start with zeros, and feed the state of each step to the next one. A \
             state contains all tokens of a sample. {WHO_RUNS_STATES}.",
            count(report.states.len(), "state"),
            first.past
        );
        writeln!(output, "\n{}", paragraph(&one_line(&text)))?;
        if let Some(columns) = &first.columns {
            let text = format!(
                "For each state, an output such as {columns:?} returns its columns and those of the new tokens. So \
                 KvSession and generate keep any number of drafted tokens without another run."
            );
            writeln!(output, "\n{}", paragraph(&one_line(&text)))?;
        }
    }
    if let Some(refusal) = refusal {
        let text = format!("KvSession and generate refuse this model: {refusal}. Run it in your own loop.");
        writeln!(output, "\n{}", paragraph(&one_line(&text)))?;
    }
    size(report, slots).map_or(Ok(()), |size| writeln!(output, "\n{size}"))?;
    writeln!(output)?;
    cost(report, slots).iter().try_for_each(|text| writeln!(output, "{}", paragraph(text)))?;
    Ok(())
}

/// Shows the passes with their proofs, and what the nodes of the exported attention do.
pub(super) fn explain(report: &Report, output: &mut Output) -> Result<(), CommandError> {
    let cells = |pass: &PassReport| {
        vec![pass.name.to_owned(), pass.change.clone(), pass.claim.to_string(), pass.proof.clone()]
    };
    let passes = table(&["Pass", "Changed", "Keeps", "Compared"], &[], report.passes.iter().map(cells));
    writeln!(output, "\n{passes}")?;
    if report.attention.idioms.is_empty() {
        return Ok(());
    }
    let idioms =
        report.attention.idioms.iter().map(|(name, nodes)| vec![nodes.to_string(), (*name).to_owned()]);
    writeln!(output, "\n{}", table(&["Nodes", "Of the exported attention"], &[0], idioms))?;
    Ok(())
}

/// Returns the number of caches of each size.
fn caches(report: &Report, max_seq: usize) -> String {
    let in_rings = report.caches.rings.values().sum();
    let linear = report.caches.count.saturating_sub(in_rings);
    let sizes = report.caches.rings.iter().map(|(ring, caches)| (*caches, "ring", ring.capacity));
    let sizes = [(linear, "cache", max_seq)].into_iter().filter(|(caches, ..)| *caches > 0).chain(sizes);
    let texts: Vec<_> = sizes
        .map(|(caches, what, slots)| format!("{} of {}", count(caches, what), count(slots, "slot")))
        .collect();
    texts.join(" and ")
}

/// Returns a line for each size of rings, and one for each window without a ring.
fn rings(report: &Report, args: &Convert) -> Vec<String> {
    let ring = |ring: &RingSize| {
        format!(
            "Rings of {}: a window of {}, steps of up to {}, and a sample can go back {}.",
            count(ring.capacity, "slot"),
            count(ring.window, "token"),
            count(ring.chunk, "row"),
            count(ring.rewind, "token")
        )
    };
    let linear = |LinearWindow { window, attentions, reason }: &LinearWindow| {
        let attentions = count(*attentions, "attention operation");
        one_line(&format!("Kept linear caches for {attentions} with a window of {window}: {reason}"))
    };
    let mut lines: Vec<_> =
        report.caches.rings.keys().map(ring).chain(report.caches.linear_windows.iter().map(linear)).collect();
    if lines.is_empty() && (args.chunk.is_some() || args.rewind.is_some()) {
        lines.push("No layer has a window, so --chunk and --rewind have no effect.".to_owned());
    }
    lines
}

/// Returns a line with the type of the caches, and one about keys that are not rotated.
fn narrow(report: &Report) -> Vec<String> {
    let Some(narrow) = &report.caches.narrow else { return Vec::new() };
    let mut lines = vec![format!("{} became {narrow}.", count(narrow.count, "cache"))];
    if !narrow.unrotated.is_empty() {
        let sizes: Vec<_> = narrow.unrotated.iter().map(ToString::to_string).collect();
        let sizes = sizes.join(", ");
        lines.push(format!("Keys in heads of {sizes} are not rotated: their size is not a multiple of 16."));
    }
    lines
}

/// Returns a line for each attention operation that stays, and one for all that were not examined.
fn kept(all: &[KeptAttention]) -> Vec<String> {
    let is_unproved = |kept: &&KeptAttention| matches!(kept.reason, KeptReason::Unproved);
    let examined = all.iter().filter(|kept| !is_unproved(kept));
    let mut lines: Vec<_> = examined
        .map(|kept| one_line(&format!("Kept the nodes of {:?}: {}", kept.output, kept.reason)))
        .collect();
    let unproved = all.iter().filter(is_unproved).count();
    if unproved > 0 {
        let unproved = count(unproved, "attention operation");
        lines.push(format!("Kept the nodes of {unproved}: {}", KeptReason::Unproved));
    }
    lines
}

/// Returns the number of attention operations of each kind.
fn readers(report: &Report) -> String {
    let nodes = count(report.attention.nodes, "Attention node");
    let separate = report.attention.count.saturating_sub(report.attention.nodes);
    match (report.attention.nodes, separate) {
        (_, 0) => nodes,
        (0, _) => format!("{} of separate nodes", count(separate, "attention")),
        _ => format!("{nodes} and {} of separate nodes", count(separate, "attention")),
    }
}

#[cfg(test)]
mod tests {
    use kvscatter_onnx::convert::KeptForm;

    use super::{KeptAttention, KeptReason, WHO_RUNS_STATES, kept};

    #[test]
    fn attention_that_was_not_examined_takes_one_line() {
        let layer = |(at, reason)| KeptAttention { output: format!("y{at}"), reason };
        let reasons = [KeptReason::Unproved, KeptReason::Form(KeptForm::ScaledWeights), KeptReason::Unproved];
        assert_eq!(
            kept(&reasons.into_iter().enumerate().map(layer).collect::<Vec<_>>()),
            [
                "Kept the nodes of \"y1\": the weights are scaled",
                "Kept the nodes of 2 attention operations: not examined, since earlier proofs used up the \
                 work that one conversion may do",
            ]
        );
    }

    #[test]
    fn the_page_names_the_same_programs_that_run_states() {
        let page = include_str!("../../../../../docs/models.md").replace('`', "");
        assert!(page.contains(WHO_RUNS_STATES));
    }
}
