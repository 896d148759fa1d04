//! The text of a file with switches.

use std::ops::Range;

use serde::Serialize;

use crate::sites::{Form, Site};

/// A part of a written file that belongs to mutants.
#[derive(Serialize)]
pub(crate) struct Region {
    file: String,
    /// The first byte, and the one after the last.
    start: usize,
    end: usize,
    mutants: Vec<u32>,
    /// Whether this is the text of the mutant itself, and not what surrounds it.
    own: bool,
}

/// Returns the text with the switches of these sites, and adds its regions.
pub(crate) fn write(file: &str, source: &str, sites: &[Site], regions: &mut Vec<Region>) -> String {
    let mut sites: Vec<&Site> = sites.iter().collect();
    // An outer site comes before the ones in it.
    sites.sort_by_key(|site| (site.bytes.start, std::cmp::Reverse(site.bytes.end)));
    let mut writer = Writer { file, source, written: String::new(), regions };
    writer.range(0..source.len(), &sites);
    writer.written
}

struct Writer<'a> {
    file: &'a str,
    source: &'a str,
    written: String,
    regions: &'a mut Vec<Region>,
}

impl Writer<'_> {
    /// Writes a range of the source. All these sites are in it.
    fn range(&mut self, bytes: Range<usize>, sites: &[&Site]) {
        let (mut from, mut rest) = (bytes.start, sites);
        while let Some((site, others)) = rest.split_first() {
            self.written.push_str(&self.source[from..site.bytes.start]);
            let is_inside = |other: &&&Site| other.bytes.end <= site.bytes.end && !site.bytes.is_empty();
            // A function's early return is before its first statement, and contains nothing.
            let is_return = matches!(site.form, Form::Return);
            let count = if is_return { 0 } else { others.iter().take_while(is_inside).count() };
            let (inside, after) = others.split_at(count);
            self.site(site, inside);
            from = if is_return { site.bytes.start } else { site.bytes.end };
            rest = after;
        }
        self.written.push_str(&self.source[from..bytes.end]);
    }

    fn site(&mut self, site: &Site, inside: &[&Site]) {
        let start = self.written.len();
        match site.form {
            Form::Choice => {
                self.written.push_str("(if ");
                for (number, text) in &site.mutants {
                    self.switch(*number);
                    self.written.push_str(" { ");
                    self.own(*number, text);
                    self.written.push_str(" } else if ");
                }
                self.written.truncate(self.written.len() - "if ".len());
                self.written.push_str("{ ");
                self.range(site.bytes.clone(), inside);
                self.written.push_str(" })");
            }
            Form::Return => {
                for (number, text) in &site.mutants {
                    self.written.push_str("if ");
                    self.switch(*number);
                    self.written.push_str(" { return ");
                    self.own(*number, text);
                    self.written.push_str("; } ");
                }
            }
            Form::Guard => {
                self.written.push_str(" if true");
                for (number, _) in &site.mutants {
                    self.written.push_str(" && !");
                    self.switch(*number);
                }
            }
            Form::Match => self.range(site.bytes.clone(), inside),
        }
        let mutants = site.mutants.iter().map(|(number, _)| *number).collect();
        self.region(start, mutants, false);
    }

    fn switch(&mut self, number: u32) {
        self.written.push_str(&format!("crate::kvscatter_mutant::is({number})"));
    }

    fn own(&mut self, number: u32, text: &str) {
        let start = self.written.len();
        self.written.push_str(text);
        self.region(start, vec![number], true);
    }

    fn region(&mut self, start: usize, mutants: Vec<u32>, own: bool) {
        self.regions.push(Region {
            file: self.file.to_owned(),
            start,
            end: self.written.len(),
            mutants,
            own,
        });
    }
}
