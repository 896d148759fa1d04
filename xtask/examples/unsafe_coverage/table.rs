//! The tables of `docs/unsafe-code.md`.

use std::error::Error;
use std::fmt::Write;

use super::reasons::Reasons;
use super::{CRATES, File};

const BEGIN: &str = "<!-- cargo xtask unsafe-coverage -->\n";
const END: &str = "<!-- end -->\n";

/// Replaces the text between the two markers.
pub(crate) fn replace(page: &str, text: &str) -> Result<String, Box<dyn Error>> {
    let (before, rest) = page.split_once(BEGIN).ok_or("the page has no marker")?;
    let (_, after) = rest.split_once(END).ok_or("the page has no end marker")?;
    Ok(format!("{before}{BEGIN}{text}{END}{after}"))
}

/// Returns one sentence with the totals.
pub(crate) fn total(files: &[File]) -> String {
    let measured = files.iter().filter(|file| file.lines.is_some());
    let blocks: usize = measured.clone().map(|file| file.blocks).sum();
    let (executed, count) =
        measured.fold((0, 0), |sum, file| (sum.0 + file.executed(), sum.1 + file.count()));
    format!(
        "The tests execute {executed} of {count} lines in {blocks} unsafe blocks ({}).",
        share(executed, count)
    )
}

/// Returns the totals, a table of the crates and a table of the files.
pub(crate) fn written(files: &[File], reasons: &Reasons) -> String {
    let mut text =
        format!("{}\n\n| crate | blocks | lines | executed | share |\n|---|---|---|---|---|\n", total(files));
    for krate in CRATES {
        let files: Vec<_> = files.iter().filter(|file| file.krate == krate).collect();
        let sum = |of: fn(&File) -> usize| files.iter().map(|file| of(file)).sum::<usize>();
        let (blocks, count, executed) = (sum(|file| file.blocks), sum(File::count), sum(File::executed));
        let _ =
            writeln!(text, "| `{krate}` | {blocks} | {count} | {executed} | {} |", share(executed, count));
    }
    text.push_str("\n| file | blocks | lines | executed | not executed |\n|---|---|---|---|---|\n");
    for file in files {
        let reason = reasons.get(&file.name()).map_or("", String::as_str);
        let missed = match &file.lines {
            None => format!("not measured: {reason}"),
            Some(_) if file.executed() == file.count() => String::new(),
            Some(_) => format!("line {}: {reason}", listed(&file.unexecuted())),
        };
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {missed} |",
            file.name(),
            file.blocks,
            file.count(),
            file.executed()
        );
    }
    text
}

/// Returns the share, rounded down.
fn share(executed: usize, count: usize) -> String {
    match (executed * 1000).checked_div(count) {
        Some(thousandths) => format!("{}.{} %", thousandths / 10, thousandths % 10),
        None => "not measured".to_owned(),
    }
}

fn listed(lines: &[usize]) -> String {
    lines.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
