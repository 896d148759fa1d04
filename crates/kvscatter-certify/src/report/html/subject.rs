//! The part of the page about the model, its files, the runtime, the machine and the caches.

use kvscatter_onnx::text::units;
use maud::{Markup, html};

use super::plain::Plain;
use crate::certificate::{CacheSummary, Certificate, FileIdentity, Parameters, Subject};
use crate::report::words;

pub(super) fn section(certificate: &Certificate) -> Markup {
    let Certificate { model, original, machine, parameters, .. } = certificate;
    html! {
        section #subject {
            h2 { "What was examined" }
            (subject("Model", model))
            @if let Some(original) = original { (subject("Original", original)) }
            dl.facts {
                dt { "Runtime" }
                dd {
                    (Plain(&certificate.runtime.to_string())) ", "
                    (Plain(&certificate.runtime.device))
                }
                dt { "Machine" }
                dd {
                    @if !machine.cpu.is_empty() { (Plain(&machine.cpu)) ", " }
                    (machine.cores) @if machine.cores == 1 { " core, " } @else { " cores, " } (Plain(&machine.os))
                }
                dt { "Run with" }
                dd { (run_with(parameters)) }
            }
            (caches(certificate))
        }
    }
}

fn run_with(parameters: &Parameters) -> String {
    let prompts: Vec<_> = parameters.prompts.iter().map(ToString::to_string).collect();
    format!(
        "batch {}, capacity {} slots, prompts of {} tokens, chunks of up to {}, {} decode steps, seed {}, tolerance {}",
        parameters.batch,
        parameters.capacity,
        prompts.join(", "),
        parameters.chunk,
        parameters.steps,
        parameters.seed,
        words::difference(parameters.tolerance),
    )
}

fn subject(title: &str, subject: &Subject) -> Markup {
    html! {
        h3 { (title) }
        dl.facts {
            (file("File", &subject.file))
            @for data in &subject.external_data { (file("External data", data)) }
            dt { "Format" }
            dd {
                @if let Some(version) = subject.ir_version { "IR version " (version) ", " }
                "operator sets "
                @for (index, opset) in subject.opsets.iter().enumerate() {
                    @if index > 0 { ", " }
                    code { (Plain(&opset.domain)) } " " (opset.version)
                }
            }
            @if !subject.producer.is_empty() { dt { "Written by" } dd { (Plain(&subject.producer)) } }
            @if let Some(compared) = &subject.compared { dt { "Compared by convert" } dd { (Plain(compared)) } }
        }
    }
}

fn file(title: &str, file: &FileIdentity) -> Markup {
    html! {
        dt { (title) }
        dd {
            code { (Plain(&file.name)) } ", " (file.bytes) " bytes" br;
            span.note { "SHA-256 " } code.hash { (Plain(&file.sha256)) }
        }
    }
}

/// Caches that are alike except for their names.
struct CacheGroup<'c> {
    shape: String,
    like: &'c CacheSummary,
    caches: Vec<&'c CacheSummary>,
}

fn cache_groups(caches: &[CacheSummary]) -> Vec<CacheGroup<'_>> {
    let mut groups: Vec<CacheGroup<'_>> = Vec::new();
    for cache in caches {
        let same = |group: &&mut CacheGroup<'_>| {
            let like = group.like;
            (&like.shape, &like.element, &like.style, like.ring)
                == (&cache.shape, &cache.element, &cache.style, cache.ring)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.caches.push(cache),
            None => {
                let shape = format!("[{}]", cache.shape.join(", "));
                groups.push(CacheGroup { shape, like: cache, caches: vec![cache] });
            }
        }
    }
    groups
}

fn caches(certificate: &Certificate) -> Markup {
    let decoder = &certificate.decoder;
    html! {
        h3 { "Caches" }
        div.wide { table {
            thead { tr {
                th.n { "caches" } th { "shape" } th { "element" } th { "written by" } th.n { "bytes" }
            } }
            tbody {
                @for CacheGroup { shape, like, caches } in cache_groups(&decoder.caches) {
                    tr {
                        td.n { (caches.len()) }
                        td { code { (Plain(&shape)) } }
                        td { code { (Plain(&like.element)) } }
                        td { (Plain(&like.style)) }
                        td.n { (units::bytes(caches.iter().map(|cache| cache.bytes).sum())) }
                    }
                }
            }
            tfoot { tr {
                td.n { (decoder.caches.len()) }
                td colspan="3" { "in all; " (units::bytes(decoder.bytes_per_token)) " per token and sample" }
                td.n { (units::bytes(decoder.bytes)) }
            } }
        } }
        @for sentence in words::rings(decoder) { p { (sentence) } }
        details {
            summary { "Inputs and outputs of each cache" }
            ul.names {
                @for cache in &decoder.caches {
                    li { code { (Plain(&cache.past)) } " → " code { (Plain(&cache.present)) } }
                }
            }
        }
    }
}
