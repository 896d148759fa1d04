//! Renders a certificate as one HTML page, for screens of any width, light and dark, and for paper.
//!
//! `page.html` is a template, which the certificate's JSON fills. The page does not contain scripts and does not load
//! fonts or pictures. Every text that the template prints is escaped, and fits on one line. If that failed, the page's
//! content security policy would still forbid the browser to load or run anything.

mod occupancy;
mod plot;

use kvscatter_onnx::internal::text::{names, units};
use minijinja::value::{Value, ViaDeserialize};
use minijinja::{Environment, UndefinedBehavior, escape_formatter};
use serde::Serialize;

use self::occupancy::Figure;
use self::plot::Plot;
use super::words;
use super::words::EvidenceKind;
use crate::certificate::{CacheSummary, Certificate, Check};

/// The certificate, and what is derived from it for the page.
#[derive(Serialize)]
struct Page<'c> {
    c: &'c Certificate,
    runtime: String,
    /// Which kernels compute `GroupQueryAttention`.
    kernels: Option<String>,
    headline: &'static str,
    counts: String,
    second_opinion: String,
    failed: Vec<&'c Check>,
    not_judged: Vec<String>,
    figures: Vec<[String; 3]>,
    caches: Vec<CacheGroup<'c>>,
    rings: Vec<String>,
    kinds: [EvidenceKind<'c>; 3],
    occupancy: Vec<Figure<'c>>,
    plot: Option<Plot>,
    limits: [&'static str; 4],
}

/// Caches that are alike except for their names.
#[derive(Serialize)]
struct CacheGroup<'c> {
    like: &'c CacheSummary,
    count: usize,
    bytes: u64,
}

/// Returns the page.
#[must_use]
#[expect(clippy::expect_used, reason = "the template is a part of the program, and fits each certificate")]
pub fn html(certificate: &Certificate) -> String {
    let evidence = &certificate.evidence;
    let decode = certificate.timings.as_ref().and_then(|timings| timings.decode.as_ref());
    let page = Page {
        c: certificate,
        runtime: certificate.runtime.to_string(),
        kernels: certificate.runtime.group_query_nodes.map(|nodes| nodes.to_string()),
        headline: words::headline(certificate),
        counts: words::verdict_counts(evidence),
        second_opinion: words::second_opinion(certificate),
        failed: words::failed(evidence).collect(),
        not_judged: words::not_judged(evidence).collect(),
        figures: words::key_figures(certificate),
        caches: cache_groups(&certificate.decoder.caches),
        rings: words::rings(&certificate.decoder),
        kinds: words::kinds(evidence),
        occupancy: certificate.occupancy.iter().map(Figure::new).collect(),
        plot: decode.filter(|times| times.at.len() > 1).and_then(Plot::new),
        limits: words::LIMITS,
    };
    let environment = environment().expect("the templates are valid");
    let template = environment.get_template(PAGE).expect("the template was added");
    template.render(page).expect("the template prints every certificate")
}

const PAGE: &str = "page.html";

fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) if !value.is_safe() => escape_formatter(out, state, &Value::from(names::one_line(text))),
        _ => escape_formatter(out, state, value),
    });
    environment.add_filter("against", |reference: ViaDeserialize<_>| words::against(*reference));
    environment.add_filter("bytes", units::bytes);
    environment.add_filter("crossover", |crossover: ViaDeserialize<_>| words::crossover(*crossover));
    environment.add_filter("difference", words::difference);
    environment.add_filter("fill", |fill: ViaDeserialize<_>| words::fill(*fill));
    environment.add_filter("phase", |phase: ViaDeserialize<_>| words::phase(*phase));
    environment.add_filter("place", |failure: ViaDeserialize<_>| words::place(&failure));
    environment.add_filter("side", |side: ViaDeserialize<_>| words::side(*side));
    environment.add_filter("three_digits", units::three_digits);
    environment.add_filter("time", units::time);
    environment.add_filter("verdict", |verdict: ViaDeserialize<_>| words::verdict(*verdict));
    environment.add_template("style.css", include_str!("html/style.css"))?;
    environment.add_template(PAGE, include_str!("html/page.html"))?;
    Ok(environment)
}

fn cache_groups(caches: &[CacheSummary]) -> Vec<CacheGroup<'_>> {
    let mut groups: Vec<CacheGroup<'_>> = Vec::new();
    for cache in caches {
        let alike = |one: &CacheSummary| {
            (&one.shape, &one.element, &one.style, one.ring)
                == (&cache.shape, &cache.element, &cache.style, cache.ring)
        };
        match groups.iter_mut().find(|group| alike(group.like)) {
            Some(group) => {
                group.count += 1;
                group.bytes += cache.bytes;
            }
            None => groups.push(CacheGroup { like: cache, count: 1, bytes: cache.bytes }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use html5ever::tendril::TendrilSink;
    use html5ever::{ParseOpts, parse_document};
    use kvscatter_onnx::convert::RingSize;
    use kvscatter_session::GroupQueryNodes;
    use markup5ever_rcdom::{Handle, NodeData, RcDom};
    use minijinja::HtmlEscape;
    use serde_json::Value;

    use super::html;
    use crate::certificate::{Certificate, Check, LinearCaches, SecondOpinion};
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
            let page = html(&certificate);
            let errors = parse(&page).errors.borrow().to_vec();
            assert!(errors.is_empty(), "{errors:?}");
            let has_rows = page.contains("<td class=\"n\">0.999820</td>");
            assert_eq!(
                (page.contains("id=\"stored\""), has_rows),
                [!certificate.stored.is_empty(); 2].into()
            );
        }
    }

    #[test]
    fn a_page_leaves_out_what_was_not_examined() {
        let mut certificate = Certificate {
            made_at: None,
            original: None,
            logits: vec![],
            occupancy: vec![],
            ..sample::passed()
        };
        let decode = certificate.timings.as_mut().and_then(|timings| timings.decode.as_mut()).unwrap();
        (decode.crossover, decode.at[0].original_ns) = (None, None);
        let timed = html(&certificate);
        certificate.timings = None;
        let untimed = html(&certificate);
        for page in [&timed, &untimed] {
            assert!(parse(page).errors.borrow().is_empty());
            assert!(
                page.contains("No logits were compared.") && page.contains("No scenario was run."),
                "{page}"
            );
        }
        assert!(timed.contains("<td class=\"n\">–</td>") && !untimed.contains("id=\"timings\""));
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
            assert!(
                !page.contains(|c| c != '\n' && kvscatter_onnx::internal::text::names::misleads(c)),
                "{page}"
            );
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
            certificate.runtime.group_query_nodes = Some(GroupQueryNodes { nodes: 2, in_plugin: 1 });
            let text = serde_json::to_string(&certificate).unwrap();
            assert_eq!(serde_json::from_str::<Certificate>(&text).unwrap(), certificate);
        }
    }

    #[test]
    fn missing_comparisons_stand_beside_the_verdict() {
        let mut certificate = sample::passed();
        let head = |page: &str| page.split("</header>").next().unwrap().to_owned();
        let engine = "both models ran in ONNX Runtime 1.31.1";
        assert!(head(&html(&certificate)).contains(&format!("{engine}. ")));
        certificate.runtime.plugin = Some("kvscatter 0.1.0".to_owned());
        let with_plugin = format!("{engine} with plugin kvscatter 0.1.0. ");
        assert!(head(&html(&certificate)).contains(&with_plugin));
        let kernels = "the plugin computes 1 of 2 GroupQueryAttention nodes";
        assert!(!html(&certificate).contains(kernels));
        certificate.runtime.group_query_nodes = Some(GroupQueryNodes { nodes: 2, in_plugin: 1 });
        assert!(html(&certificate).contains(&format!("0.1.0, CPU; {kernels}</dd>")));
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
        let ring = RingSize { capacity: 39, window: 4, chunk: 4, rewind: 32 };
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
                let claim = HtmlEscape(&check.claim).to_string();
                assert!(page.contains(&claim), "{}", check.id);
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
