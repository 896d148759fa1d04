//! A chat whose turns are read from a terminal or from standard input.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use kvscatter_session::Generated;

use super::prompts::MAX_BYTES;
use super::texter::{Texter, Turns, system};
use crate::error::CommandError;
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::text::{ChatTemplate, Message, Role};

/// Answers turn after turn until the input ends, and adds them to `turns`. The generator keeps its cache, so a turn
/// computes only the tokens that the text of the chat has more than before.
pub(super) fn run(
    texter: &mut Texter<'_>,
    template: &ChatTemplate,
    turns: &mut Turns,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut messages: Vec<Message> = system(texter.args).into_iter().collect();
    for line in 1.. {
        let Some(turn) = read_turn(line)? else { break };
        if turn.trim().is_empty() {
            continue;
        }
        messages.push(Message { role: Role::User, content: turn.clone() });
        let ids = texter.tokenizer.encode_template(&template.apply(&messages)?)?;
        texter.room.check("the chat", &ids)?;
        let interrupts = Interrupts::catch();
        let (generated, mut samples) =
            texter.generate(std::slice::from_ref(&ids), &[], &interrupts, output)?;
        drop(interrupts);
        let answer = samples.pop().unwrap_or_default();
        messages.push(Message { role: Role::Assistant, content: answer.clone() });
        turns.ids.push(ids);
        turns.texts.prompts.push(turn);
        turns.texts.samples.push(answer);
        turns.generated = Some(joined(turns.generated.take(), generated));
    }
    Ok(())
}

/// Reads a line, after a prompt if a person types it. Returns `None` at the end of the input.
fn read_turn(line: usize) -> Result<Option<String>, CommandError> {
    let (stdin, mut stderr) = (io::stdin(), io::stderr());
    let is_typed = stdin.is_terminal() && stderr.is_terminal();
    if is_typed {
        // A prompt that cannot be printed is no reason to end.
        let _ = write!(stderr, "> ");
        let _ = stderr.flush();
    }
    let mut bytes = Vec::new();
    stdin.lock().take(MAX_BYTES).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        if is_typed {
            let _ = writeln!(stderr);
        }
        return Ok(None);
    }
    let is_cut = bytes.last() != Some(&b'\n') && u64::try_from(bytes.len()).unwrap_or(u64::MAX) >= MAX_BYTES;
    let problem = |problem: &str| CommandError::Prompt {
        place: "standard input".to_owned(),
        line,
        problem: problem.to_owned(),
    };
    match String::from_utf8(bytes) {
        _ if is_cut => Err(problem("longer than 16 MiB")),
        Ok(turn) => Ok(Some(turn.trim_end_matches(['\n', '\r']).to_owned())),
        Err(_) => Err(problem("not UTF-8")),
    }
}

/// Returns the samples and the cost of two generations together.
fn joined(first: Option<Generated>, mut next: Generated) -> Generated {
    let Some(mut all) = first else { return next };
    all.samples.append(&mut next.samples);
    all.ends.append(&mut next.ends);
    all.reused.append(&mut next.reused);
    for (sum, more) in [
        (&mut all.prompt_tokens, next.prompt_tokens),
        (&mut all.steps, next.steps),
        (&mut all.decoded, next.decoded),
        (&mut all.drafted, next.drafted),
        (&mut all.accepted, next.accepted),
    ] {
        *sum = sum.saturating_add(more);
    }
    all.saved = all.saved.or(next.saved);
    all.prefill = all.prefill.saturating_add(next.prefill);
    all.decode = all.decode.saturating_add(next.decode);
    if next.steps > 0 {
        all.written_per_step = next.written_per_step;
    }
    all.copied = all.copied.saturating_add(next.copied);
    all
}
