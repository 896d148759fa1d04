//! Formats tables without frames, and sentences, so that they fit the terminal and no word is broken.

use std::cmp::Reverse;
use std::io;

/// The blanks between two columns of a table.
const GAP: usize = 2;

/// The most lines of a row. A row with more lines is easier to read as a record.
const MAX_LINES: usize = 3;

/// The most columns of sentences.
const MAX_PARAGRAPH: usize = 120;

/// Returns the columns of the terminal. If standard output is not a terminal, the variable `COLUMNS` gives
/// them. `None` means that there is no limit.
pub(crate) fn columns() -> Option<usize> {
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let terminal = terminal_size::terminal_size_of(io::stdout());
    terminal.map(|(width, _)| usize::from(width.0)).or_else(variable).filter(|&columns| columns > 0)
}

/// Returns a table with headers and rows. Columns in `numbers` are aligned to the right.
///
/// If a table is wider than the terminal, its cells are wrapped between words. If it is still too wide, each
/// row becomes a record with a line for each cell.
pub(crate) fn table(headers: &[&str], numbers: &[usize], rows: &[Vec<String>]) -> String {
    let columns = columns().unwrap_or(usize::MAX);
    match widths(headers, rows, columns) {
        Some(widths) => as_columns(headers, numbers, rows, &widths),
        None => as_records(headers, rows, columns),
    }
}

/// Splits a text between words into lines of at most `columns`. A longer word gets a separate line.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut end = 0_usize;
    for word in text.split(' ') {
        let with_word = end.saturating_add(1).saturating_add(width(word));
        match lines.last_mut() {
            Some(line) if with_word <= columns => {
                line.push(' ');
                line.push_str(word);
                end = with_word;
            }
            _ => {
                lines.push(word.to_owned());
                end = width(word);
            }
        }
    }
    lines
}

/// Wraps a text that begins `indent` columns from the left, and indents all lines after the first.
pub(crate) fn hanging(indent: usize, text: &str) -> String {
    let room = columns().unwrap_or(usize::MAX).saturating_sub(indent);
    wrapped(text, room).join(&format!("\n{:indent$}", ""))
}

/// Wraps sentences, even if there is no terminal.
pub(crate) fn paragraph(text: &str) -> String {
    wrapped(text, columns().unwrap_or(usize::MAX).min(MAX_PARAGRAPH)).join("\n")
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// Returns the width of each column, or `None` if the longest words of all columns do not fit into one line.
fn widths(headers: &[&str], rows: &[Vec<String>], columns: usize) -> Option<Vec<usize>> {
    let cells = |column: usize| {
        let rows = rows.iter().filter_map(move |row| row.get(column)).map(String::as_str);
        headers.get(column).copied().into_iter().chain(rows)
    };
    let longest = |column: usize| cells(column).map(width).max().unwrap_or(0);
    let longest_word = |column: usize| cells(column).flat_map(|cell| cell.split(' ')).map(width).max();
    let mut widths: Vec<_> = (0..headers.len()).map(longest).collect();
    let gaps = headers.len().saturating_sub(1).saturating_mul(GAP);
    let room = columns.saturating_sub(gaps);
    if widths.iter().sum::<usize>() <= room {
        return Some(widths);
    }
    let least: Vec<_> = (0..headers.len()).map(|column| longest_word(column).unwrap_or(0)).collect();
    if least.iter().sum::<usize>() > room {
        return None;
    }
    let lines = |column: usize, width: usize| cells(column).map(move |cell| wrapped(cell, width).len());
    while widths.iter().sum::<usize>() > room {
        // The column with the fewest new lines shrinks. If there are several, the widest of them shrinks.
        let shrinks = widths.iter().zip(&least).enumerate().filter(|(_, (width, least))| width > least);
        let (narrower, column) = shrinks
            .map(|(column, (&width, _))| {
                let narrower = width.saturating_sub(1);
                let more = lines(column, narrower).sum::<usize>().saturating_sub(lines(column, width).sum());
                ((more, Reverse(width)), (narrower, column))
            })
            .min()
            .map(|(_, narrower)| narrower)?;
        *widths.get_mut(column)? = narrower;
    }
    let most = widths.iter().enumerate().flat_map(|(column, &width)| lines(column, width)).max().unwrap_or(0);
    (most <= MAX_LINES).then_some(widths)
}

fn as_columns(headers: &[&str], numbers: &[usize], rows: &[Vec<String>], widths: &[usize]) -> String {
    let header = headers.iter().map(|&header| header.to_owned()).collect();
    let lines = |row: &Vec<String>| {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, &width)| wrapped(cell, width)).collect();
        let line = |line: usize| {
            let cell = |(column, (lines, &width)): (usize, (&Vec<String>, &usize))| {
                let text = lines.get(line).map_or("", String::as_str);
                if numbers.contains(&column) { format!("{text:>width$}") } else { format!("{text:width$}") }
            };
            let cells = cells.iter().zip(widths).enumerate().map(cell);
            cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
        };
        (0..cells.iter().map(Vec::len).max().unwrap_or(0)).map(line).collect::<Vec<_>>()
    };
    [header].iter().chain(rows).flat_map(lines).collect::<Vec<_>>().join("\n")
}

fn as_records(headers: &[&str], rows: &[Vec<String>], columns: usize) -> String {
    let label = headers.iter().map(|header| width(header)).max().unwrap_or(0).saturating_add(GAP);
    let record = |row: &Vec<String>| {
        let lines = headers.iter().zip(row).map(|(header, cell)| {
            let cell = wrapped(cell, columns.saturating_sub(label)).join(&format!("\n{:label$}", ""));
            format!("{header:label$}{cell}").trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    rows.iter().map(record).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::{as_columns, as_records, widths, wrapped};

    const HEADERS: [&str; 3] = ["cache", "type and shape", "bytes"];

    fn rows() -> Vec<Vec<String>> {
        let row = |name: &str, shape: &str, bytes: &str| [name, shape, bytes].map(str::to_owned).to_vec();
        vec![
            row("past_key_values.0.key", "float16 [batch, 8, 4096, 128]", "8388608"),
            row("k", "float16 [1, 8, 16, 128]", "32768"),
        ]
    }

    /// Formats the same table at full width, wrapped, and as records.
    #[test]
    fn tables_fit() {
        let rows = rows();
        for columns in 0..=100 {
            let text = match widths(&HEADERS, &rows, columns) {
                Some(widths) => as_columns(&HEADERS, &[2], &rows, &widths),
                None => as_records(&HEADERS, &rows, columns),
            };
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            // A record cannot be narrower than its label and its longest word.
            assert!(
                longest <= columns.max("type and shape  past_key_values.0.key".len()),
                "{columns}: {text}"
            );
            for word in rows.iter().flatten().flat_map(|cell| cell.split(' ')) {
                assert!(text.contains(word), "{columns}: {word} is broken in\n{text}");
            }
        }
        assert_eq!(widths(&HEADERS, &rows, 100), Some(vec![21, 29, 7]));
        assert_eq!(widths(&HEADERS, &rows, 60), Some(vec![21, 28, 7]));
        assert_eq!(widths(&HEADERS, &rows, 40), None);
    }

    #[test]
    fn records_have_a_line_for_each_cell() {
        let record = as_records(&HEADERS, &rows()[..1], 40);
        assert_eq!(
            record,
            "cache           past_key_values.0.key\n\
             type and shape  float16 [batch, 8, 4096,\n\
             \x20               128]\n\
             bytes           8388608"
        );
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("one two three", 3), ["one", "two", "three"]);
        assert_eq!(wrapped("", 3), [""]);
    }
}
