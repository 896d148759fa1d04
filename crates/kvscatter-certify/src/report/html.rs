//! Renders a certificate as one HTML page, for screens of any width, light and dark, and for paper.
//!
//! The page does not contain scripts and does not load fonts or pictures. All text from a model is wrapped in
//! [`Plain`], and `maud` escapes all text. If either were forgotten, the page's content security policy would
//! still forbid the browser to load or run anything.

mod claims;
mod occupancy;
mod plain;
mod plot;
mod subject;
mod timings;
mod verdict;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::plain::Plain;
use self::verdict::{class, mark};
use super::words;
use crate::certificate::{Certificate, Evidence, LogitsComparison};

/// Returns the page.
#[must_use]
pub fn html(certificate: &Certificate) -> String {
    let name = Plain(&certificate.model.file.name);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (words::verdict(certificate.verdict)) ": KV cache of " (name) }
                style { (PreEscaped(include_str!("html/style.css"))) }
            }
            body {
                main {
                    (head(certificate))
                    (subject::section(certificate))
                    (claims::section(&certificate.evidence))
                    (occupancy::section(&certificate.occupancy))
                    (logits(&certificate.logits))
                    @if let Some(timings) = &certificate.timings { (timings::section(timings)) }
                    (reproduce(certificate))
                    (limits())
                }
            }
        }
    };
    page.into_string()
}

fn head(certificate: &Certificate) -> Markup {
    html! {
        header {
            p.kind { "KV cache certificate" }
            h1 { code { (Plain(&certificate.model.file.name)) } }
            div.verdict.(class(certificate.verdict)) role="status" {
                p.word { (mark(certificate.verdict)) " " (words::verdict(certificate.verdict)) }
                p { strong { (words::headline(certificate)) } " " (words::verdict_counts(&certificate.evidence)) "." }
                (failed(&certificate.evidence))
                p { (Plain(&words::second_opinion(certificate))) }
                @for claim in words::not_judged(&certificate.evidence) { p { (Plain(&claim)) } }
            }
            p.note {
                "kvscatter " (Plain(&certificate.tool_version)) ", "
                (Plain(&certificate.runtime.to_string())) " on " (Plain(&certificate.runtime.device))
                @if let Some(made_at) = &certificate.made_at { ", " time { (Plain(made_at)) } " UTC" }
            }
            dl.figures {
                @for [name, figure, compared] in words::key_figures(certificate) {
                    div { dt { (name) } dd { b { (figure) } span { (compared) } } }
                }
            }
        }
    }
}

/// Renders the claims that do not hold, each with a link to its evidence.
fn failed(evidence: &Evidence) -> Markup {
    html! {
        @if words::failed(evidence).next().is_some() {
            ul { @for check in words::failed(evidence) {
                li { a href={ "#" (Plain(&check.id)) } { (Plain(&check.claim)) } }
            } }
        }
    }
}

fn logits(comparisons: &[LogitsComparison]) -> Markup {
    html! {
        section #logits {
            h2 { "Logits" }
            @if comparisons.is_empty() {
                p { "No logits were compared." }
            } @else {
                p {
                    "Every logit of every real token was compared with the reference. Each scenario ran with caches of "
                    "zeros and with caches of canaries, which are finite values of at most 1 in magnitude. A difference "
                    "between the two shows that a slot was read before it was written."
                }
                div.wide { table {
                    thead { tr {
                        th { "scenario" } th { "caches begin as" } th { "compared with" } th.n { "logits" }
                        th.n { "largest difference" } th.n { "tolerance" } th { "where" } th.n { "same next token" }
                    } }
                    tbody { @for comparison in comparisons { (logits_row(comparison)) } }
                } }
            }
        }
    }
}

fn logits_row(comparison: &LogitsComparison) -> Markup {
    let within = comparison.worst <= comparison.tolerance && comparison.not_finite == 0;
    let same = comparison.greedy_equal == comparison.greedy_compared;
    html! {
        tr {
            td { (Plain(&comparison.scenario)) }
            td { (words::fill(comparison.fill)) }
            td { (words::against(comparison.against)) }
            td.n { (comparison.compared) }
            td.n.bad[!within] {
                (words::difference(comparison.worst))
                @if comparison.not_finite > 0 { ", " (comparison.not_finite) " not finite" }
            }
            td.n { (words::difference(comparison.tolerance)) }
            td {
                @if let Some(at) = comparison.worst_at {
                    "step " (at.step) ", sample " (at.sample) ", token " (at.token) ", entry " (at.entry)
                } @else { "–" }
            }
            td.n.bad[!same] { (comparison.greedy_equal) " of " (comparison.greedy_compared) }
        }
    }
}

fn reproduce(certificate: &Certificate) -> Markup {
    html! {
        section #reproduce {
            h2 { "How to repeat this" }
            p {
                "Run this with the files above, which their hashes identify, and with "
                (Plain(&certificate.runtime.to_string())) ":"
            }
            pre { code { (Plain(&certificate.command)) } }
            p.note {
                "Tokens and canaries are drawn from seed " (certificate.parameters.seed) ", so structural and observed "
                "evidence will be the same. Times depend on the machine."
            }
        }
    }
}

fn limits() -> Markup {
    html! {
        section #limits {
            h2 { "What this does not show" }
            ul { @for limit in words::LIMITS { li { (limit) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use html5ever::tendril::TendrilSink;
    use html5ever::{ParseOpts, parse_document};
    use markup5ever_rcdom::{Handle, NodeData, RcDom};
    use serde_json::Value;

    use super::html;
    use crate::certificate::{Certificate, Check, LinearCaches, RingSummary, SecondOpinion};
    use crate::report::{sample, words};

    /// Markup, the end of an attribute, reversed text, a line break and terminal control sequences.
    const HOSTILE: &str = "</code></style><script>alert(1)</script><img src=x onerror=y>\" ' & \u{202e}gpj\n\x1b[2J\u{9b}2J\u{7f}\u{2028}\u{2066}\u{61c}";

    fn parse(page: &str) -> RcDom {
        parse_document(RcDom::default(), ParseOpts::default()).one(page)
    }

    fn elements(node: &Handle, found: &mut Vec<(String, Vec<(String, String)>)>) {
        if let NodeData::Element { name, attrs, .. } = &node.data {
            let attributes = attrs.borrow();
            let attributes = attributes.iter().map(|a| (a.name.local.to_string(), a.value.to_string()));
            found.push((name.local.to_string(), attributes.collect()));
        }
        node.children.borrow().iter().for_each(|child| elements(child, found));
    }

    fn names(page: &str) -> Vec<String> {
        let mut found = Vec::new();
        elements(&parse(page).document, &mut found);
        found.into_iter().map(|(name, _)| name).collect()
    }

    /// Returns copies of a certificate. In each copy, a hostile string replaces one field of free text.
    fn hostile() -> Vec<Certificate> {
        fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
            match value {
                Value::String(_) => found.push(path.to_owned()),
                Value::Array(items) => {
                    items.iter().enumerate().for_each(|(i, item)| paths(item, &format!("{path}/{i}"), found));
                }
                Value::Object(fields) => {
                    fields.iter().for_each(|(name, field)| paths(field, &format!("{path}/{name}"), found));
                }
                _ => {}
            }
        }
        let document = serde_json::to_value(sample::failed()).unwrap();
        let mut strings = Vec::new();
        paths(&document, "", &mut strings);
        let replaced = |path: &String| {
            let mut document = document.clone();
            *document.pointer_mut(path).unwrap() = Value::String(HOSTILE.to_owned());
            serde_json::from_value(document).ok()
        };
        strings.iter().filter_map(replaced).collect()
    }

    #[test]
    fn pages_are_well_formed() {
        for certificate in [sample::passed(), sample::failed()] {
            let errors = parse(&html(&certificate)).errors.borrow().to_vec();
            assert!(errors.is_empty(), "{errors:?}");
        }
    }

    #[test]
    fn nothing_is_loaded_and_nothing_runs() {
        let mut found = Vec::new();
        elements(&parse(&html(&sample::failed())).document, &mut found);
        for (name, attributes) in found {
            assert!(!["script", "link", "img", "iframe", "object", "image", "use"].contains(&name.as_str()));
            for (attribute, value) in attributes {
                assert!(!attribute.starts_with("on") && attribute != "src", "{name}");
                assert!(attribute != "href" || (name == "a" && value.starts_with('#')), "{name} {value}");
            }
        }
        assert!(!include_str!("html/style.css").contains("@import"));
    }

    #[test]
    fn no_name_of_a_model_becomes_markup_or_turns_the_text_around_it() {
        let hostile = hostile();
        assert!(hostile.len() > 60, "{}", hostile.len());
        let plain = names(&html(&sample::failed()));
        for certificate in &hostile {
            let page = html(certificate);
            assert!(parse(&page).errors.borrow().is_empty());
            assert!(!names(&page).iter().any(|name| name == "script" || name == "img"), "{page}");
            assert!(!page.contains(|c| c != '\n' && kvscatter_onnx::text::names::misleads(c)), "{page}");
            assert!(names(&page).len() <= plain.len() + 8, "{page}");
        }
        let shown = hostile.iter().filter(|certificate| html(certificate).contains("&lt;script&gt;")).count();
        assert!(shown > 40, "{shown}");
    }

    #[test]
    fn a_certificate_survives_its_json() {
        for mut certificate in [sample::passed(), sample::failed()] {
            let text = serde_json::to_string(&certificate).unwrap();
            assert_eq!(serde_json::from_str::<Certificate>(&text).unwrap(), certificate);
            // Documents of earlier builds do not have this field.
            let older = text.replace(r#","plugin":null"#, "");
            assert_ne!(older, text);
            assert_eq!(serde_json::from_str::<Certificate>(&older).unwrap(), certificate);
            certificate.runtime.plugin = Some("kvscatter 0.1.0".to_owned());
            let text = serde_json::to_string(&certificate).unwrap();
            assert_eq!(serde_json::from_str::<Certificate>(&text).unwrap(), certificate);
        }
    }

    #[test]
    fn what_was_not_compared_stands_beside_the_verdict() {
        let mut certificate = sample::passed();
        let head = |page: &str| page.split("</header>").next().unwrap().to_owned();
        let engine = "both models ran in ONNX Runtime 1.31.1";
        assert!(head(&html(&certificate)).contains(&format!("{engine}. ")));
        certificate.runtime.plugin = Some("kvscatter 0.1.0".to_owned());
        let with_plugin = format!("{engine} with plugin kvscatter 0.1.0. ");
        assert!(head(&html(&certificate)).contains(&with_plugin));
        certificate.runtime.plugin = None;
        certificate.second_opinion = SecondOpinion::None;
        let why = "not comparable because one scale is that of a whole tensor";
        certificate.evidence.observed.push(Check::not_comparable("in-batches", "Batches are alike.", why));
        let page = html(&certificate);
        let head = head(&page);
        assert!(head.contains("No second opinion") && !head.contains(engine), "{head}");
        assert!(head.contains("1 is not comparable") && head.contains(why), "{head}");
        assert!(parse(&page).errors.borrow().is_empty());
    }

    #[test]
    fn rings_and_what_they_save_are_on_the_page() {
        let mut certificate = sample::passed();
        assert!(!html(&certificate).contains("rings of"), "a page without rings mentions them");
        let ring = RingSummary { capacity: 39, window: 4, chunk: 4, rewind: 32 };
        certificate.decoder.caches.iter_mut().take(2).for_each(|cache| cache.ring = Some(ring));
        certificate.decoder.without_rings = Some(LinearCaches { capacity: 64, bytes: 1 << 20 });
        certificate.occupancy[0].is_ring = true;
        let page = html(&certificate);
        assert!(parse(&page).errors.borrow().is_empty());
        for text in [
            "2 rings of C = 39 slots: a window of W = 4 tokens, steps of up to S = 4 rows, and R = 32 tokens",
            "Without rings, they would take 1 MiB for 64 slots.",
            "(rings of 64 slots)",
        ] {
            assert!(page.contains(text), "{text}");
        }
        let text = serde_json::to_string(&certificate).unwrap();
        assert_eq!(serde_json::from_str::<Certificate>(&text).unwrap(), certificate);
    }

    #[test]
    fn the_verdict_and_every_claim_are_on_the_page() {
        for certificate in [sample::passed(), sample::failed()] {
            let page = html(&certificate);
            for check in certificate.evidence.checks() {
                assert!(page.contains(&maud::html! { (check.claim) }.into_string()), "{}", check.id);
            }
        }
        let failed = html(&sample::failed());
        for check in words::failed(&sample::failed().evidence) {
            let link = format!("<li><a href=\"#{}\">", check.id);
            let at = failed.find(&link).unwrap();
            assert!(at < failed.find("</header>").unwrap());
            assert!(failed.contains(&format!("id=\"{}\"", check.id)), "{}", check.id);
        }
        assert!(!html(&sample::passed()).contains("<a "));
        assert!(html(&sample::passed()).contains("The KV cache is written in place."));
        assert!(html(&sample::failed()).contains("and 22 more"));
    }
}
