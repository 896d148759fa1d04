//! The part of the page about the claims, by kind of evidence.

use maud::{Markup, html};

use super::plain::Plain;
use super::verdict::{class, mark};
use crate::certificate::{Check, Evidence};
use crate::report::words;

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        section #claims {
            h2 { "Claims" }
            @for kind in words::kinds(evidence) {
                h3 { (kind.name) }
                p.note { (kind.description) }
                @if kind.checks.is_empty() { p { "Nothing of this kind was examined." } }
                ul.claims { @for check in kind.checks { (claim(check)) } }
            }
        }
    }
}

fn claim(check: &Check) -> Markup {
    html! {
        li.(class(check.verdict)) id=(Plain(&check.id)) {
            p.claim {
                span.word { (mark(check.verdict)) " " (words::verdict(check.verdict)) }
                strong { (Plain(&check.claim)) }
            }
            p { (Plain(&check.evidence)) }
            @if check.failure_count > 0 {
                ul {
                    @for failure in &check.failures {
                        li {
                            (Plain(&failure.message))
                            @let place = words::place(failure);
                            @if !place.is_empty() { " " span.note { "(" (Plain(&place)) ")" } }
                        }
                    }
                    @let more = check.failure_count.saturating_sub(check.failures.len() as u64);
                    @if more > 0 { li { "and " (more) " more" } }
                }
            }
        }
    }
}
