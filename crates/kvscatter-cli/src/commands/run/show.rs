//! Prints a run.

use std::collections::BTreeMap;
use std::io::{self, Write};

use kvscatter::picture::Picture;
use kvscatter_onnx::Tensor;
use kvscatter_onnx::internal::eval::{NodeReport, Outcome};
use serde_json::{Value, json};

use super::record::{Input, RunRecord};
use crate::compare::Tolerance;
use crate::json::joined;
use crate::output::{Output, hanging, one_line, styled, table};
use crate::values::Summary;

pub(super) fn show(records: &[RunRecord], output: &mut Output) -> io::Result<()> {
    if output.is_json() {
        return output.json(&records.iter().map(document).collect::<Value>());
    }
    for (index, record) in records.iter().enumerate() {
        if index > 0 {
            writeln!(output)?;
        }
        record.print(output)?;
    }
    Ok(())
}

impl RunRecord {
    fn print(&self, output: &mut Output) -> io::Result<()> {
        let title = match &self.runtime {
            None => one_line(&self.title),
            Some(runtime) => one_line(&format!("{} in {runtime}", self.title)),
        };
        writeln!(output, "{}\n", hanging(0, &title))?;
        let inputs = self
            .inputs
            .iter()
            .map(|input| vec![input.name.clone(), input.summary.to_string(), input.origin.to_string()]);
        writeln!(output, "{}\n", table(&["input", "type and shape", "from"], &[], inputs))?;

        self.print_nodes(output)?;
        let outputs =
            self.result.outputs.iter().zip(&self.result.lies_in).map(|((name, tensor), lies_in)| {
                let memory = match lies_in {
                    Some(input) => format!("at the address of {input}"),
                    None => "in other memory".to_owned(),
                };
                vec![name.clone(), Summary::new(tensor).to_string(), memory]
            });
        writeln!(output, "{}", table(&["output", "type and shape", "where"], &[], outputs))?;
        self.print_checks(output)
    }

    fn print_nodes(&self, output: &mut Output) -> io::Result<()> {
        if self.runtime.is_some() {
            return Ok(());
        }
        let nodes = self.result.nodes.iter().map(|node| {
            vec![
                node.node.index.to_string(),
                node.node.op_type.clone(),
                node.output.clone(),
                node.planned_bytes.to_string(),
                node.moved_bytes.to_string(),
                how(node),
            ]
        });
        let headers = ["node", "operator", "output", "planned bytes", "moved bytes", "how"];
        writeln!(output, "{}\n", table(&headers, &[0, 3, 4], nodes))?;

        for (picture, nodes) in self.distinct_pictures() {
            if self.result.nodes.len() > 1 {
                writeln!(output, "{}", one_line(&nodes.join(", ")))?;
            }
            output.picture(picture)?;
            writeln!(output)?;
        }
        Ok(())
    }

    fn print_checks(&self, output: &mut Output) -> io::Result<()> {
        let fail = styled("FAIL", anstyle::AnsiColor::Red);
        if !self.not_in_place.is_empty() {
            writeln!(output, "\n{fail}  not in place: {}", one_line(&self.not_in_place.join(", ")))?;
        }
        match &self.check {
            None => Ok(()),
            Some(Ok(())) => {
                let how = match self.tolerance {
                    None => "bit for bit".to_owned(),
                    Some(Tolerance { rtol, atol }) => {
                        format!("within {atol:?} + {rtol:?} of each value")
                    }
                };
                let pass = styled("pass", anstyle::AnsiColor::Green);
                writeln!(output, "\n{pass}  every output is as expected, {how}")
            }
            Some(Err(mismatch)) => writeln!(output, "\n{fail}  {}", hanging(6, &mismatch.to_string())),
        }
    }

    /// Returns the different pictures. Keys, values and layers that are written at the same positions have
    /// one picture.
    fn distinct_pictures(&self) -> Vec<(&Picture, Vec<&str>)> {
        let outputs: BTreeMap<_, _> =
            self.result.nodes.iter().map(|node| (node.node.index, node.output.as_str())).collect();
        let mut distinct: Vec<(&Picture, Vec<&str>)> = Vec::new();
        for (index, picture) in &self.result.pictures {
            let name = outputs.get(index).copied().unwrap_or_default();
            match distinct.iter_mut().find(|(other, _)| *other == picture) {
                Some((_, names)) => names.push(name),
                None => distinct.push((picture, vec![name])),
            }
        }
        distinct
    }
}

/// Returns how the output of a node was made. The text is "in place" only if the report proves it.
fn how(node: &NodeReport) -> String {
    match &node.outcome {
        Outcome::InPlace { .. } if node.is_in_place() => "in place: present has past's address".to_owned(),
        Outcome::InPlace { .. } => "NOT in place: the address or the bytes differ".to_owned(),
        Outcome::Copied { reason } => format!("copied: {reason}"),
        Outcome::Alias => "the input under another name".to_owned(),
        Outcome::Constant => "part of the model".to_owned(),
        Outcome::Computed => "computed".to_owned(),
    }
}

/// Returns one call, as `--json` prints it.
fn document(record: &RunRecord) -> Value {
    let input = |input: &Input| {
        let summary = joined(json!({"name": input.name}), json!(input.summary));
        joined(summary, json!({"from": input.origin.to_string()}))
    };
    let node = |node: &NodeReport| {
        json!({
            "node": node.node.index,
            "operator": node.node.op_type,
            "output": node.output,
            "in_place": node.is_in_place(),
            "planned_bytes": node.planned_bytes,
            "moved_bytes": node.moved_bytes,
            "how": how(node),
        })
    };
    // An output lies in the memory of an input, or of none.
    let output = |((name, tensor), lies_in): (&(String, Tensor), &Option<String>)| {
        let summary = joined(json!({"name": name}), json!(Summary::new(tensor)));
        joined(summary, json!({"lies_in": lies_in}))
    };
    let outputs = record.result.outputs.iter().zip(&record.result.lies_in);
    json!({
        "run": record.title,
        // `null` if the command evaluated the nodes.
        "engine": record.runtime,
        "inputs": record.inputs.iter().map(input).collect::<Value>(),
        "nodes": record.result.nodes.iter().map(node).collect::<Value>(),
        "outputs": outputs.map(output).collect::<Value>(),
        // The outputs that `--in-place` requires to be in place and that are not.
        "not_in_place": record.not_in_place,
        // `null` if there are no expected outputs.
        "matches_expected": record.check.as_ref().map(Result::is_ok),
        "mismatch": record.check.as_ref().and_then(|check| check.as_ref().err()),
    })
}
