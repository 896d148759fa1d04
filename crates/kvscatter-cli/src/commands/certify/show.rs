//! Prints a certificate. [`words`] has the texts that are also on the page.

use std::io::{self, Write};
use std::path::Path;

use anstyle::AnsiColor;
use kvscatter_certify::certificate::{Certificate, Check, Subject, Verdict};
use kvscatter_certify::report::words;
use kvscatter_onnx::internal::text::units;

use crate::output::{Output, count, hanging, one_line, styled, table};

/// The number of digits of a hash that are printed. The page and the JSON document have all digits.
const HASH_DIGITS: usize = 12;

pub(super) fn show(certificate: &Certificate, html: Option<&Path>, output: &mut Output) -> io::Result<()> {
    subject(certificate, output)?;
    for kind in words::kinds(&certificate.evidence) {
        if kind.checks.is_empty() {
            continue;
        }
        writeln!(output, "\n{}", kind.name)?;
        for check in kind.checks {
            claim(check, output)?;
        }
    }
    writeln!(output, "\n{}", logits(certificate))?;
    let figures = words::key_figures(certificate);
    if !figures.is_empty() {
        writeln!(output)?;
    }
    for [name, number, beside] in figures {
        writeln!(output, "{}", hanging(2, &format!("{name}: {number} ({beside})")))?;
    }
    let color = if certificate.verdict == Verdict::Passed { AnsiColor::Green } else { AnsiColor::Red };
    writeln!(
        output,
        "\n{} {}.",
        styled(words::headline(certificate), color),
        words::verdict_counts(&certificate.evidence)
    )?;
    for check in words::failed(&certificate.evidence) {
        let text = one_line(&format!("{}: {}", check.id, check.claim));
        writeln!(output, "{}  {}", styled("FAIL", AnsiColor::Red), hanging(6, &text))?;
    }
    writeln!(output, "{}", hanging(0, &one_line(&words::second_opinion(certificate))))?;
    for claim in words::not_judged(&certificate.evidence) {
        writeln!(output, "{}", hanging(0, &one_line(&claim)))?;
    }
    if let Some(html) = html {
        writeln!(output, "The certificate as a page: {}", one_line(&html.to_string_lossy()))?;
    }
    Ok(())
}

fn subject(certificate: &Certificate, output: &mut Output) -> io::Result<()> {
    let Certificate { model, original, runtime, decoder, parameters, .. } = certificate;
    writeln!(output, "{}", file(model))?;
    if let Some(original) = original {
        writeln!(output, "compared with {}", file(original))?;
    }
    let prompts: Vec<String> = parameters.prompts.iter().map(ToString::to_string).collect();
    writeln!(output, "{} on {}", one_line(&runtime.to_string()), runtime.device)?;
    if let Some(nodes) = runtime.group_query_nodes {
        writeln!(output, "{}", hanging(0, &nodes.to_string()))?;
    }
    let caches = count(decoder.caches.len(), "cache");
    let caches = match decoder.rings().values().sum() {
        0 => format!("{caches} of {} slots", parameters.capacity),
        rings => format!("{caches}, of which {rings} are rings"),
    };
    let sizes = format!(
        "{caches}, {} in all; prompts of {} tokens, {}, seed {}",
        units::bytes(decoder.bytes),
        prompts.join(", "),
        count(parameters.steps, "step"),
        parameters.seed
    );
    writeln!(output, "{}", hanging(0, &sizes))?;
    words::rings(decoder).iter().try_for_each(|sentence| writeln!(output, "{}", hanging(0, sentence)))
}

fn file(subject: &Subject) -> String {
    let hash: String = subject.file.sha256.chars().take(HASH_DIGITS).collect();
    format!("{} (sha256 {hash}...)", one_line(&subject.file.name))
}

fn claim(check: &Check, output: &mut Output) -> io::Result<()> {
    let (word, color) = match check.verdict {
        Verdict::Passed => ("pass", AnsiColor::Green),
        Verdict::Failed => ("FAIL", AnsiColor::Red),
        Verdict::NotApplicable => ("n/a ", AnsiColor::Yellow),
        Verdict::NotMeasured | Verdict::NotComparable => ("?   ", AnsiColor::Yellow),
    };
    writeln!(output, "{}  {}", styled(word, color), hanging(6, &one_line(&check.claim)))?;
    writeln!(output, "      {}", hanging(6, &one_line(&check.evidence)))?;
    for failure in &check.failures {
        let place = words::place(failure);
        let text =
            if place.is_empty() { failure.message.clone() } else { format!("{place}: {}", failure.message) };
        writeln!(output, "      - {}", hanging(8, &one_line(&text)))?;
    }
    let kept = u64::try_from(check.failures.len()).unwrap_or(u64::MAX);
    match check.failure_count.saturating_sub(kept) {
        0 => Ok(()),
        more => writeln!(output, "      - and {more} more"),
    }
}

fn logits(certificate: &Certificate) -> String {
    let rows = certificate.logits.iter().map(|comparison| {
        vec![
            comparison.scenario.clone(),
            words::fill(comparison.fill).to_owned(),
            words::against(comparison.against).to_owned(),
            comparison.compared.to_string(),
            words::difference(comparison.worst),
            words::difference(comparison.tolerance),
            format!("{} of {}", comparison.greedy_equal, comparison.greedy_compared),
        ]
    });
    let headers = ["scenario", "caches of", "against", "logits", "worst", "tolerance", "same token"];
    table(&headers, &[3, 4, 5, 6], rows)
}
