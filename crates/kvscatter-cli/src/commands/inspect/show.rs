//! Prints an inspection.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anstyle::AnsiColor;
use kvscatter_onnx::CheckedRing;
use kvscatter_onnx::convert::{ConvertOutcome, RingSize};
use kvscatter_onnx::decoder::{Cache, Cost, Hazard, InputRole, TensorRtRefusal, UnknownStyle, WriterStyle};
use kvscatter_onnx::internal::text::units;

use super::facts::{Inspected, Sizes, WholeCache, open_dims, total};
use super::fold::{Group, alike, folded, groups, shape};
use super::group_query::Coverage;
use super::words::{dim, part, role, style};
use crate::commands::form;
use crate::output::{Output, count, hanging, one_line, paragraph, styled, table};

pub(super) fn show(inspected: &Inspected<'_>, output: &mut Output) -> io::Result<()> {
    let groups = groups(&inspected.caches);
    writeln!(output, "{}\n", hanging(0, &format!("{}: {}", one_line(&inspected.model), summary(inspected))))?;
    if let Some(form) = inspected.form {
        writeln!(output, "{}\n", paragraph(&form::line(form)))?;
    }
    writeln!(output, "{}", what(&groups))?;
    unknown(&groups, output)?;
    writeln!(output)?;
    costs(inspected, &groups, output)?;
    open_sizes(inspected, output)?;
    shared(inspected, output)?;
    windows(inspected, output)?;
    rings(&inspected.rings, output)?;
    writeln!(output, "{}", inputs(inspected))?;
    hazards(&inspected.hazards, output)?;
    refusals(inspected, output)?;
    group_query_nodes(inspected.group_query_nodes.as_ref(), output)?;
    for line in next_steps(inspected) {
        writeln!(output, "\n{line}")?;
    }
    Ok(())
}

/// Returns a summary such as `64 caches, written by Concat`.
fn summary(Inspected { decoder, caches, .. }: &Inspected<'_>) -> String {
    let mut styles: Vec<_> = caches.iter().map(|whole| style(&whole.cache.style)).collect();
    styles.sort();
    styles.dedup();
    let written = format!("{}, written by {}", count(caches.len(), "cache"), styles.join(" and "));
    match decoder.states.len() {
        0 => written,
        states => format!("{written}, and {}", count(states, "state")),
    }
}

fn what(groups: &[Group<'_>]) -> String {
    let rows = groups.iter().filter_map(|group| {
        let whole = group.caches.first()?;
        let cache = whole.cache;
        Some(vec![
            group.past.clone(),
            group.present.clone(),
            group.caches.len().to_string(),
            part(cache.part).to_owned(),
            style(&cache.style),
            format!("{} [{}]", whole.types(), shape(&group.caches).join(", ")),
            cache.axis.to_string(),
        ])
    });
    table(&["past", "present", "caches", "holds", "written by", "type and shape", "axis"], &[2, 6], rows)
}

/// Prints why a style is unknown, if the operator in the table does not explain it.
fn unknown(groups: &[Group<'_>], output: &mut Output) -> io::Result<()> {
    for group in groups {
        let style = group.caches.first().map(|whole| &whole.cache.style);
        if let Some(WriterStyle::Unknown(why)) = style
            && !matches!(why, UnknownStyle::Operator { .. })
        {
            writeln!(output, "{}", hanging(2, &format!("{}: {why}", one_line(&group.past))))?;
        }
    }
    Ok(())
}

fn costs(inspected: &Inspected<'_>, groups: &[Group<'_>], output: &mut Output) -> io::Result<()> {
    let Sizes { batch, length, capacity, .. } = inspected.sizes;
    let sum = |caches: &[WholeCache<'_>]| total(caches.iter().map(|whole| whole.cost(&inspected.sizes)));
    // If every cache has a fixed capacity, the columns for static caches would repeat the other columns.
    let converts = inspected.decoder.caches.iter().any(|cache| cache.fixed_capacity().is_none());
    let row = |name: String, cost: Option<Cost>| {
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), units::bytes);
        let mut cells = vec![
            name,
            size(cost.map(|cost| cost.per_token)),
            size(cost.map(|cost| cost.size)),
            size(cost.and_then(|cost| cost.copied)),
        ];
        if converts {
            cells.push(size(cost.map(|cost| cost.static_size)));
            cells.push(size(cost.and_then(|cost| cost.copied_static)));
        }
        cells
    };
    let mut rows: Vec<_> = groups.iter().map(|group| row(group.past.clone(), sum(&group.caches))).collect();
    if groups.len() > 1 {
        let all: Vec<_> = groups.iter().flat_map(|group| group.caches.iter().copied()).collect();
        rows.push(row("all".to_owned(), sum(&all)));
    }
    let mut headers = vec!["bytes", "a token", "size", "written a step"];
    if converts {
        headers.extend(["size, static", "written a step, static"]);
    }
    let numbers: Vec<_> = (1..headers.len()).collect();
    let samples = count(batch, "sample");
    let of_each = if batch == 1 { "" } else { " of each" };
    let heading = match converts {
        true => format!(
            "{samples}, {length} tokens{of_each} in the cache, 1 new a step; static: {capacity} slots"
        ),
        false => format!("{samples}, {length} slots{of_each}, 1 new token a step"),
    };
    writeln!(output, "{}", paragraph(&heading))?;
    writeln!(output, "{}\n", table(&headers, &numbers, rows))
}

/// Prints why costs are `?`, and the options that give them values.
fn open_sizes(inspected: &Inspected<'_>, output: &mut Output) -> io::Result<()> {
    let open = open_dims(inspected.decoder, &inspected.sizes.dims);
    if open.is_empty() {
        return Ok(());
    }
    let options: Vec<_> = open.iter().map(|dim| format!("--dim {}=N", one_line(dim))).collect();
    let text = format!("the costs depend on sizes that the model leaves open: give {}", options.join(" "));
    writeln!(output, "{}\n", hanging(0, &text))
}

/// Prints which caches several attention operations read.
fn shared(Inspected { decoder, caches, .. }: &Inspected<'_>, output: &mut Output) -> io::Result<()> {
    let mut pasts: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for whole in caches {
        if let Some(readers) = decoder.attentions(whole.cache).filter(|readers| *readers > 1) {
            pasts.entry(readers).or_default().push(whole.cache.past);
        }
    }
    for (readers, pasts) in pasts {
        let text = format!("Shared: {readers} attention operations read each of {}.", folded(&pasts));
        writeln!(output, "{}\n", paragraph(&one_line(&text)))?;
    }
    Ok(())
}

/// Prints which caches are read through windows, and what rings would save.
fn windows(inspected: &Inspected<'_>, output: &mut Output) -> io::Result<()> {
    let Some(ConvertOutcome::Convert { max_seq, windows }) = &inspected.advice else { return Ok(()) };
    if !windows.are_any() {
        return Ok(());
    }
    let mut pasts: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for cache in &windows.caches {
        pasts.entry(cache.window).or_default().push(&cache.past);
    }
    // The caches without a window come last.
    let of_none = pasts.remove(&None).map(|pasts| (None, pasts));
    let each = pasts.into_iter().chain(of_none).map(|(window, pasts)| {
        let size = window.map_or_else(|| "none".to_owned(), |window| count(window, "token"));
        format!("{size} in {}", folded(&pasts))
    });
    let mut text = format!("Windows: {}.", each.collect::<Vec<_>>().join(", "));
    match (windows.linear_bytes, windows.ring_bytes, windows.linear.first()) {
        (Some(linear), Some(rings), _) => {
            let of_batch =
                |bytes: u64| bytes.saturating_mul(inspected.sizes.batch.try_into().unwrap_or(u64::MAX));
            let [linear, rings] = [linear, rings].map(|bytes| units::bytes(of_batch(bytes)));
            text += &format!(
                " With rings (convert --window ring) the caches take {rings} instead of {linear} at {max_seq} tokens."
            );
        }
        (_, None, Some(linear)) => text += &format!(" Rings are not used: {}.", linear.reason),
        _ => {}
    }
    writeln!(output, "{}\n", paragraph(&one_line(&text)))
}

/// Prints a line for each size of rings that are sound. The others are hazards.
fn rings(rings: &[CheckedRing], output: &mut Output) -> io::Result<()> {
    let mut sizes: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for ring in rings {
        if let Ok(size) = ring.outcome {
            sizes.entry(size).or_default().push(&ring.past);
        }
    }
    for (RingSize { capacity, window, chunk, rewind, .. }, mut pasts) in sizes {
        pasts.dedup();
        let rewinds = match rewind {
            0 => "without rewinds".to_owned(),
            rewind => format!("with rewinds of up to {rewind}"),
        };
        let text = format!(
            "Rings of {capacity} slots in {}: sound for a window of {}, in steps of up to {}, {rewinds}.",
            folded(&pasts),
            count(window, "token"),
            count(chunk, "token")
        );
        writeln!(output, "{}\n", paragraph(&one_line(&text)))?;
    }
    Ok(())
}

fn inputs(inspected: &Inspected<'_>) -> String {
    let inputs = inspected.decoder.inputs.iter().filter(|input| !matches!(input.role, InputRole::Past(_)));
    let rows = inputs.map(|input| {
        let shape = input.value.shape.as_ref().map(|shape| shape.iter().map(dim).collect::<Vec<_>>());
        let shape =
            shape.map_or_else(|| "of any shape".to_owned(), |shape| format!("[{}]", shape.join(", ")));
        vec![
            input.value.name.to_owned(),
            role(input).to_owned(),
            format!("{} {shape}", input.value.element.onnx_name()),
        ]
    });
    table(&["input", "is", "type and shape"], &[], rows)
}

/// Prints one line for each kind of hazard and kind of node. The line shows the first hazard.
fn hazards(hazards: &[Hazard], output: &mut Output) -> io::Result<()> {
    let kind = |hazard: &&Hazard| match hazard {
        Hazard::RuntimeBug { bug, .. } => (hazard.kind(), bug.to_string()),
        Hazard::FileUnread { file, .. } => (hazard.kind(), file.clone()),
        _ => (hazard.kind(), hazard.node().map(|node| node.op_type.clone()).unwrap_or_default()),
    };
    writeln!(output, "\n{}", if hazards.is_empty() { "no hazards" } else { "hazards" })?;
    for hazards in alike(hazards, kind) {
        let Some((first, rest)) = hazards.split_first() else { continue };
        let color = if first.kind() == "runtime" { AnsiColor::Cyan } else { AnsiColor::Yellow };
        let text = format!("{}{}", one_line(&first.to_string()), more(rest.len()));
        let indent = first.kind().len().saturating_add(4);
        writeln!(output, "  {}  {}", styled(first.kind(), color), hanging(indent, &text))?;
    }
    Ok(())
}

fn refusals(inspected: &Inspected<'_>, output: &mut Output) -> io::Result<()> {
    let Some(refusals) = &inspected.refusals else { return Ok(()) };
    if inspected.scatters == 0 {
        return writeln!(
            output,
            "\nTensorRT: the model has no TensorScatter, so it gets no KVCacheUpdate layer"
        );
    }
    let nodes = count(inspected.scatters, "TensorScatter node");
    if refusals.is_empty() {
        let pass = styled("pass", AnsiColor::Green);
        return writeln!(output, "\n{pass}  TensorRT turns {nodes} into KVCacheUpdate layers");
    }
    let fail = styled("FAIL", AnsiColor::Red);
    writeln!(output, "\n{fail}  of {nodes}, TensorRT refuses:")?;
    for refusals in alike(refusals, |refusal| rule(refusal)) {
        let Some((first, rest)) = refusals.split_first() else { continue };
        let text = format!("{}{}", one_line(&first.to_string()), more(rest.len()));
        writeln!(output, "  {}", hanging(2, &text))?;
    }
    Ok(())
}

/// Prints which nodes ONNX Runtime computes with kvscatter's plugin, and the first node of each kind that it does not.
fn group_query_nodes(of_model: Option<&Coverage>, output: &mut Output) -> io::Result<()> {
    let Some(of_model) = of_model else { return Ok(()) };
    let (nodes, in_plugin) = (count(of_model.nodes, "GroupQueryAttention node"), of_model.in_plugin());
    let what = format!("kvscatter's plugin for ONNX Runtime takes {in_plugin} of {nodes}");
    if of_model.left.is_empty() {
        return writeln!(output, "\n{}", paragraph(&what));
    }
    writeln!(output, "\n{}", paragraph(&format!("{what}, and ONNX Runtime's own kernel computes:")))?;
    for left in alike(&of_model.left, |(_, why)| why.to_string()) {
        let Some(((node, why), rest)) = left.split_first() else { continue };
        let text = format!("{}{}", one_line(&format!("{node:#}: {why}")), more(rest.len()));
        writeln!(output, "  {}", hanging(2, &text))?;
    }
    Ok(())
}

/// Returns the text of a refusal without the name of the layer.
fn rule(refusal: &TensorRtRefusal) -> String {
    let text = refusal.reason.to_string();
    match text.split_once(": ") {
        Some((layer, rule)) if layer.starts_with("layer ") => rule.to_owned(),
        _ => text,
    }
}

fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" (and {count} more like it)") }
}

/// Returns the advice.
fn next_steps(inspected: &Inspected<'_>) -> Vec<String> {
    let any = |is: fn(&Cache<'_>) -> bool| inspected.decoder.caches.iter().any(is);
    let mut steps = Vec::new();
    let are_scattered = any(|cache| cache.is_scattered());
    match &inspected.advice {
        Some(ConvertOutcome::Convert { max_seq, .. }) if are_scattered => steps.push(paragraph(&format!(
            "kvscatter convert MODEL -o OUT --max-seq {max_seq} makes TensorScatter of the scatters, which can write in \
             place and at another position in each sample."
        ))),
        Some(ConvertOutcome::Convert { max_seq, .. }) => steps.push(paragraph(&format!(
            "kvscatter convert MODEL -o OUT --max-seq {max_seq} makes the growing caches static. Choose --max-seq no \
             larger than your longest text, because ONNX Runtime's own attention reads all slots in every step."
        ))),
        Some(ConvertOutcome::Refused { max_seq, cause, depends_on_slots }) => {
            let size = match depends_on_slots {
                true => format!(" with {max_seq} slots (try another --max-seq)"),
                false => String::new(),
            };
            let what = if are_scattered { "scatters cannot become TensorScatter" } else { "growing caches cannot be made static" };
            let text = format!("The {what}{size}: {cause}");
            steps.push(hanging(0, &one_line(&text)));
        }
        None => {}
    }
    if any(|cache| cache.is_static()) {
        steps.push(paragraph(
            "A static cache is written in place only if its past and present are bound to one buffer (IO binding). \
             Otherwise the whole cache is copied in every step. Fill the buffer with finite values, such as zeros, at \
             the start.",
        ));
    }
    if inspected.group_query_nodes.as_ref().is_some_and(|nodes| nodes.in_plugin() > 0) {
        steps.push(paragraph(
            "To use the plugin in ONNX Runtime GenAI without a conversion, call kvscatter.onnxruntime_genai.use(config) \
             before Model(config) in Python (docs/genai.md).",
        ));
    }
    if any(|cache| cache.style == WriterStyle::GroupQueryAttention) {
        steps.push(paragraph(
            "As it is, GroupQueryAttention writes only the new rows if past and present of a cache are bound to one \
             buffer as long as the longest text (IO binding, or past_present_share_buffer in ONNX Runtime GenAI). \
             kvscatter generate --engine ort --no-convert does this. Otherwise every step copies the whole cache, as \
             the column \"written a step\" shows.",
        ));
    }
    steps
}
