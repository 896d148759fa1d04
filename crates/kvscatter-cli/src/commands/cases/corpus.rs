//! Writes the conformance corpus: the cases of `kvscatter_oracle::corpus` and their index.

mod attention;
mod contents;
mod write;

use std::path::Path;

use kvscatter_onnx::internal::test_dir::TestCase;
use kvscatter_onnx::internal::{proto, tensor_proto};
use kvscatter_oracle::corpus::{self, Basis, CorpusCall, CorpusCase, Operator, RULES};
use serde::Serialize;

use crate::compare::Tolerance;
use crate::error::CommandError;
use crate::{case_tolerance, files, json_file};

use contents::{Contents, InPlace};

/// The name of the file that lists rules and cases.
const INDEX: &str = "index.json";
/// Rises when a field of the index changes its meaning or is removed.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Index {
    version: u32,
    rules: Vec<RuleEntry>,
    cases: Vec<CaseEntry>,
}

#[derive(Serialize)]
struct RuleEntry {
    id: &'static str,
    operator: &'static str,
    rule: &'static str,
    basis: &'static str,
    semantics: String,
}

#[derive(Serialize)]
struct CaseEntry {
    name: String,
    folder: String,
    operator: &'static str,
    rule: &'static str,
    what: &'static str,
    expect: &'static str,
    in_place: Option<InPlace>,
    tolerance: Option<Tolerance>,
    /// For each sample, query head and query, a text with `x` for each slot that the query sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    sees: Option<Vec<String>>,
}

/// How many cases were written, and how many of them must be refused.
#[derive(Clone, Copy, Default)]
pub(super) struct Written {
    pub(super) cases: usize,
    pub(super) refused: usize,
}

/// Writes all cases and the index into a folder.
pub(super) fn write_all(folder: &Path) -> Result<Written, CommandError> {
    let entries =
        corpus::cases().iter().map(|case| write_case(folder, case)).collect::<Result<Vec<_>, _>>()?;
    let written = Written {
        cases: entries.len(),
        refused: entries.iter().filter(|entry| entry.expect == "refused").count(),
    };
    let rules = RULES.iter().map(|rule| RuleEntry {
        id: rule.id,
        operator: rule.operator.name(),
        rule: rule.rule,
        basis: match rule.basis {
            Basis::Document => "document",
            Basis::Choice => "choice",
        },
        semantics: format!("docs/semantics.md#{}", rule.id),
    });
    let index = Index { version: VERSION, rules: rules.collect(), cases: entries };
    json_file::write(&folder.join(INDEX), &index)?;
    Ok(written)
}

/// Returns the names of the entries that [`write_all`] makes in the folder.
pub(super) fn entries() -> Vec<String> {
    Operator::ALL
        .into_iter()
        .map(|operator| folder_of(operator).to_owned())
        .chain([INDEX.to_owned()])
        .collect()
}

fn write_case(root: &Path, case: &CorpusCase) -> Result<CaseEntry, CommandError> {
    let operator = case.call.operator();
    let below = format!("{}/{}/{}", folder_of(operator), case.rule, case.name);
    let folder = root.join(&below);
    let contents = match &case.call {
        CorpusCall::Write(write, form) => write::one(write, *form, case.what)?,
        CorpusCall::TwoWrites(writes, how) => write::two(writes, *how, case.what)?,
        CorpusCall::Attention(attention, form) => attention::contents(attention, *form, case.what)?,
    };
    let outputs = contents.expected.as_ref().cloned().unwrap_or_default();
    TestCase::write(&folder, &contents.parts.model(), &[(contents.inputs.clone(), outputs)])?;
    if contents.is_typed {
        write_typed(&folder, &contents)?;
    }
    if let Err(refused) = &contents.expected {
        refused.write(&folder)?;
    }
    if let Some(tolerance) = &contents.tolerance {
        case_tolerance::write(&folder, tolerance)?;
    }
    Ok(CaseEntry {
        name: format!("{}/{}", case.rule, case.name),
        folder: below,
        operator: operator.name(),
        rule: case.rule,
        what: case.what,
        expect: if contents.expected.is_err() { "refused" } else { "output" },
        in_place: contents.in_place,
        tolerance: contents.tolerance,
        sees: match &case.call {
            CorpusCall::Attention(attention, _) => attention::sees(attention),
            CorpusCall::Write(..) | CorpusCall::TwoWrites(..) => None,
        },
    })
}

fn folder_of(operator: Operator) -> &'static str {
    match operator {
        Operator::TensorScatter => "tensor_scatter",
        Operator::Attention => "attention",
        Operator::KvCacheUpdate => "kv_cache_update",
        Operator::KvCacheOperation => "kv_cache_operation",
    }
}

/// Writes the inputs again, with their values in the typed fields.
fn write_typed(folder: &Path, contents: &Contents) -> Result<(), CommandError> {
    for (index, (tensor, declared)) in contents.inputs.iter().zip(&contents.parts.inputs).enumerate() {
        let message = tensor_proto::encode_typed(declared.name.as_deref().unwrap_or_default(), tensor);
        let path = folder.join("test_data_set_0").join(format!("input_{index}.pb"));
        files::write_bytes(&path, &proto::encode(&message)?, &[])?;
    }
    Ok(())
}
